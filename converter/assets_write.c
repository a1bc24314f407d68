/*
 * Tokenizer and configuration files, written into a package.
 */
#include <inttypes.h>
#include <string.h>

#include "converter/assets_priv.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/splice.h"

/* ---- places on somebody's machine ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* An absolute path of any system, or one from a home: a single line, and more
 * than the root and one name, which a word of a language could be. */
static bool is_path(const char *v)
{
    if (!strncmp(v, "file:", 5) || !strncmp(v, "~/", 2))
        return true;
    if (is_letter(v[0]) && v[1] == ':' && (v[2] == '\\' || v[2] == '/'))
        return true;
    return v[0] == '/' && (is_letter(v[1]) || v[1] == '_' || v[1] == '.') &&
           strchr(v + 1, '/') && !strpbrk(v, "\n<>|{}");
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);

    return n >= k && !strcmp(s + n - k, end);
}

bool assets_names_a_place(const char *key, const struct js_node *value)
{
    const char *v;

    if (!strcmp(key, "_name_or_path") || !strcmp(key, "name_or_path"))
        return true;
    /* The text of a token may look like anything. */
    if (!strcmp(key, "content") || ends_with(key, "_token") ||
        ends_with(key, "_tokens"))
        return false;
    if (js_kind(value) == JS_ARRAY && js_count(value) &&
        js_string(js_first(value), &v))
        return is_path(v);
    return js_string(value, &v) && is_path(v);
}

/* ---- members ---- */

static int set_string(struct splice *s, const char *key, const char *value,
                      struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = -1;

    js_quote(&b, value, strlen(value));
    if (!buf_ok(&b, e))
        rc = splice_set(s, key, buf_text(&b), e);
    buf_release(&b);
    return rc;
}

/* Complete already: the text stays as it is. */
static int set_stops(const struct assets *a, struct splice *s, struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = -1;

    if (a->n_config_stops == a->n_stops)
        return 0;
    buf_puts(&b, "[");
    for (size_t i = 0; i < a->n_stops; i++)
        buf_printf(&b, "%s%" PRId64, i ? ", " : "", a->stops[i]);
    buf_puts(&b, "]");
    if (!buf_ok(&b, e))
        rc = splice_set(s, "eos_token_id", buf_text(&b), e);
    buf_release(&b);
    return rc;
}

/* Readers of the package look at the top level alone. */
static int lift(const struct assets *a, struct splice *s, const char *key,
                struct err *e)
{
    const struct js_node *root = js_root(a->ckpt->config);
    const struct js_node *n = js_get(root, key);
    struct buf b = BUF_INIT;
    int64_t id;
    int rc = -1;

    if (n && js_kind(n) != JS_NULL)
        return 0;
    if (!js_integral(js_get(js_get(root, "text_config"), key), &id) &&
        !(a->ckpt->generation &&
          js_integral(js_get(js_root(a->ckpt->generation), key), &id)))
        return 0;
    buf_printf(&b, "%" PRId64, id);
    if (!buf_ok(&b, e))
        rc = splice_set(s, key, buf_text(&b), e);
    buf_release(&b);
    return rc;
}

/* Sets the class that Swift knows and keeps the source's as metadata. */
static int set_class(const struct assets *a, struct splice *s,
                     const struct js_doc *d, struct err *e)
{
    const char *cls = NULL;

    if (js_string(js_get(js_root(d), "tokenizer_class"), &cls)) {
        if (!strcmp(cls, a->class))
            return 0;
        if (set_string(s, "source_tokenizer_class", cls, e))
            return -1;
    }
    return set_string(s, "tokenizer_class", a->class, e);
}

/* ---- files ---- */

static int finish(struct splice *s, const struct js_doc *before,
                  const char *const *changed, const char *dir, const char *name,
                  struct err *e)
{
    char *path = io_join(dir, name, e);
    int rc = -1;

    if (path && !splice_verify(s, before, changed, assets_names_a_place, e))
        rc = io_write_file(path, s->text.data, s->text.len, e);
    mem_free(path);
    return rc;
}

static int begin(struct splice *s, const struct js_doc *d, struct err *e)
{
    size_t len, removed;
    const char *text = js_text(d, &len);

    if (splice_begin(s, text, len, e))
        return -1;
    return splice_remove_all(s, assets_names_a_place, &removed, e);
}

/* The source's config with end tokens and a tokenizer class at its top. */
static int write_config(const struct assets *a, const char *dir, struct err *e)
{
    static const char *const changed[] = {
        "eos_token_id",    "bos_token_id",           "pad_token_id",
        "tokenizer_class", "source_tokenizer_class", NULL
    };
    const struct js_doc *d = a->ckpt->config;
    struct splice s = { BUF_INIT };
    int rc = -1;

    if (!begin(&s, d, e) && !set_stops(a, &s, e) &&
        !lift(a, &s, "bos_token_id", e) && !lift(a, &s, "pad_token_id", e) &&
        !set_class(a, &s, d, e))
        rc = finish(&s, d, changed, dir, "config.json", e);
    splice_release(&s);
    return rc ? err_in(e, "config.json") : 0;
}

static int set_template(const struct assets *a, struct splice *s,
                        const struct js_doc *d, struct err *e)
{
    const char *now;

    if (!a->template || (js_string(js_get(js_root(d), "chat_template"), &now) &&
                         !strcmp(now, a->template)))
        return 0;
    return set_string(s, "chat_template", a->template, e);
}

static int edit_tokenizer_config(const struct assets *a, const struct js_doc *d,
                                 const char *dir, struct err *e)
{
    static const char *const changed[] = { "tokenizer_class", "chat_template",
                                           "source_tokenizer_class", NULL };
    struct splice s = { BUF_INIT };
    int rc = -1;

    if (!begin(&s, d, e) && !set_class(a, &s, d, e) &&
        !set_template(a, &s, d, e))
        rc = finish(&s, d, changed, dir, "tokenizer_config.json", e);
    splice_release(&s);
    return rc;
}

/* What readers cannot do without, where the source has no such file. */
static int make_tokenizer_config(const struct assets *a, const char *dir,
                                 struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;
    struct js_doc *d = NULL;
    int rc = -1;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    if (a->bos)
        js_w_string(&w, "bos_token", a->bos);
    if (a->eos)
        js_w_string(&w, "eos_token", a->eos);
    js_w_string(&w, "tokenizer_class", a->class);
    js_w_end(&w);
    if (!buf_ok(&b, e) && (d = js_parse(b.data, b.len, e)) != NULL)
        rc = edit_tokenizer_config(a, d, dir, e);
    js_free(d);
    buf_release(&b);
    return rc;
}

static int write_tokenizer_config(const struct assets *a, const char *dir,
                                  struct err *e)
{
    int rc = 0;

    if (a->tokenizer_config)
        rc = edit_tokenizer_config(a, a->tokenizer_config, dir, e);
    else if (a->has_tokenizer)
        rc = make_tokenizer_config(a, dir, e);
    return rc ? err_in(e, "tokenizer_config.json") : 0;
}

/* JSON that names a place is written without it, all else is copied. */
static int copy_json(const struct assets *a, const char *name, const char *from,
                     const char *dir, const char *to, struct err *e)
{
    static const char *const changed[] = { NULL };
    struct splice s = { BUF_INIT };
    struct js_doc *d = NULL;
    size_t len;
    int rc = -1;

    if (!assets_read_json(a->ckpt, name, &d, e) && !begin(&s, d, e)) {
        js_text(d, &len);
        if (s.text.len == len)
            rc = io_copy_file(from, to, e);
        else
            rc = finish(&s, d, changed, dir, name, e);
    }
    splice_release(&s);
    js_free(d);
    return rc;
}

static int copy_files(const struct assets *a, const char *dir, struct err *e)
{
    const struct assets_file *f;

    for (size_t i = 0; (f = assets_file_at(i)) != NULL; i++) {
        char *from = io_join(a->ckpt->dir, f->name, e);
        char *to = io_join(dir, f->name, e);
        int rc = from && to ? 0 : -1;

        if (!rc && io_exists(from))
            rc = f->json ? copy_json(a, f->name, from, dir, to, e)
                         : io_copy_file(from, to, e);
        mem_free(from);
        mem_free(to);
        if (rc)
            return -1;
    }
    return 0;
}

/* ---- further templates ---- */

/* dir/name, made when it is first needed. */
static char *folder(const char *dir, struct err *e)
{
    char *path = io_join(dir, ASSETS_FOLDER, e);

    if (path && !io_exists(path) && io_mkdir(path, e)) {
        mem_free(path);
        path = NULL;
    }
    return path;
}

static int copy_templates(const struct assets *a, const char *dir,
                          struct err *e)
{
    char *from = io_join(a->ckpt->dir, ASSETS_FOLDER, e), *to = NULL;
    char **names = NULL;
    size_t n = 0;
    int rc = from ? 0 : -1;

    if (from && io_is_dir(from))
        rc = io_list(from, &names, &n, e);
    for (size_t i = 0; !rc && i < n; i++) {
        char *src, *dst = NULL;

        if (!ends_with(names[i], ".jinja"))
            continue;
        if (!to)
            to = folder(dir, e);
        src = io_join(from, names[i], e);
        if (to && src)
            dst = io_join(to, names[i], e);
        rc = dst ? io_copy_file(src, dst, e) : -1;
        mem_free(src);
        mem_free(dst);
    }
    io_list_free(names, n);
    mem_free(from);
    mem_free(to);
    return rc;
}

/* Named templates leave tokenizer_config.json, where one string replaces
 * them; they go where transformers looks for them instead. */
static int write_named(const struct assets *a, const char *dir, struct err *e)
{
    for (size_t i = 0; i < a->n_named; i++) {
        char *to = folder(dir, e), *path = NULL;
        int rc = to ? 0 : -1;

        if (to)
            path = mem_printf(e, "%s/%s.jinja", to, a->named[i].name);
        if (!path)
            rc = -1;
        else if (!io_exists(path))
            rc = io_write_file(path, a->named[i].text, strlen(a->named[i].text),
                               e);
        mem_free(path);
        mem_free(to);
        if (rc)
            return -1;
    }
    return 0;
}

/* Beside a folder of further templates transformers takes the default from
 * its own file alone. */
static int write_default(const struct assets *a, const char *dir, struct err *e)
{
    char *path = io_join(dir, ASSETS_JINJA, e);
    int rc = path ? 0 : -1;

    if (path && a->template && a->template_listed && !io_exists(path))
        rc = io_write_file(path, a->template, strlen(a->template), e);
    mem_free(path);
    return rc;
}

int assets_write(const struct assets *a, const char *dir, struct err *e)
{
    if (write_config(a, dir, e) || write_tokenizer_config(a, dir, e) ||
        copy_files(a, dir, e) || copy_templates(a, dir, e) ||
        write_named(a, dir, e))
        return -1;
    return write_default(a, dir, e);
}
