/*
 * Tokenizer and configuration files of a package; see assets.h.
 */
#include "converter/assets.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/log.h"
#include "converter/splice.h"
#include "models/models.h"

#define MAX_JSON 400000000u
#define MAX_TEMPLATE 10000000u
#define MAX_STOPS 64

/* Copied byte for byte when the checkpoint has them. */
static const char *const copied[] = {
    "tokenizer.json",      "tokenizer.model",
    "vocab.json",          "merges.txt",
    "added_tokens.json",   "special_tokens_map.json",
    "chat_template.json",  "generation_config.json",
    "chat_template.jinja", "tokenizer_config_search.json",
};
#define N_COPIED (sizeof(copied) / sizeof(copied[0]))

struct assets {
    const struct ckpt *ckpt;
    struct js_doc *tokenizer;        /* tokenizer.json or NULL */
    struct js_doc *tokenizer_config; /* or NULL */
    char *template;                  /* the effective chat template or NULL */
    bool template_spliced;
    int64_t stops[MAX_STOPS];
    size_t n_stops;
    bool config_stops_complete;
    uint64_t bytes;
    struct buf *notes;
};

/* ---- reading ---- */

/* A JSON file of the checkpoint; *out stays NULL when it is absent. */
static int read_json(const struct ckpt *c, const char *name,
                     struct js_doc **out, struct err *e)
{
    char *path = io_join(c->dir, name, e);
    int rc = 0;

    if (!path)
        return -1;
    if (io_exists(path)) {
        *out = js_read_file(path, MAX_JSON, e);
        rc = *out ? 0 : -1;
        if (!rc && js_kind(js_root(*out)) != JS_OBJECT)
            rc = err_set(e, ERR_INPUT, "'%s' is %s, an object is needed", path,
                         js_kind_name(js_kind(js_root(*out))));
    }
    mem_free(path);
    return rc;
}

/* ---- tokens ---- */

static int64_t token_id(const struct assets *a, const char *content)
{
    const struct js_node *root = a->tokenizer ? js_root(a->tokenizer) : NULL;
    const struct js_node *n, *added = js_get(root, "added_tokens");
    const char *s;
    int64_t id;

    for (n = js_first(added); n; n = js_next(n))
        if (js_string(js_get(n, "content"), &s) && !strcmp(s, content) &&
            js_integral(js_get(n, "id"), &id))
            return id;
    n = js_get(js_get(js_get(root, "model"), "vocab"), content);
    if (js_integral(n, &id))
        return id;
    n = a->tokenizer_config
            ? js_get(js_root(a->tokenizer_config), "added_tokens_decoder")
            : NULL;
    for (n = js_first(n); n; n = js_next(n))
        if (js_string(js_get(n, "content"), &s) && !strcmp(s, content) &&
            num_parse_i64(js_key(n), strlen(js_key(n)), &id))
            return id;
    return -1;
}

static void add_stop(struct assets *a, int64_t id)
{
    for (size_t i = 0; i < a->n_stops; i++)
        if (a->stops[i] == id)
            return;
    if (id >= 0 && a->n_stops < MAX_STOPS)
        a->stops[a->n_stops++] = id;
}

static bool has_stop(const struct assets *a, int64_t id)
{
    for (size_t i = 0; i < a->n_stops; i++)
        if (a->stops[i] == id)
            return true;
    return false;
}

/* eos_token_id: an integer, an array of them, null or absent. */
static int add_stops(struct assets *a, const struct js_node *n,
                     const char *where, struct err *e)
{
    int64_t id;

    if (!n || js_kind(n) == JS_NULL)
        return 0;
    if (js_integral(n, &id)) {
        add_stop(a, id);
        return 0;
    }
    if (js_kind(n) != JS_ARRAY)
        return err_set(e, ERR_INPUT,
                       "%s: eos_token_id is %s, an integer or a list of them "
                       "is allowed",
                       where, js_kind_name(js_kind(n)));
    for (n = js_first(n); n; n = js_next(n)) {
        if (!js_integral(n, &id))
            return err_set(e, ERR_INPUT,
                           "%s: eos_token_id holds %s, integers are allowed",
                           where, js_kind_name(js_kind(n)));
        add_stop(a, id);
    }
    return 0;
}

/* "eos_token": a string or an object with "content". */
static const char *token_text(const struct js_node *n)
{
    const char *s = NULL;

    if (n && js_kind(n) == JS_OBJECT)
        n = js_get(n, "content");
    return js_string(n, &s) ? s : NULL;
}

static int unite_stops(struct assets *a, struct err *e)
{
    const struct js_node *config = js_root(a->ckpt->config);
    const char *eos;
    size_t own;

    if (add_stops(a, js_get(config, "eos_token_id"), "config.json", e))
        return -1;
    own = a->n_stops;
    if (add_stops(a, js_get(js_get(config, "text_config"), "eos_token_id"),
                  "config.json, text_config", e) ||
        (a->ckpt->generation &&
         add_stops(a, js_get(js_root(a->ckpt->generation), "eos_token_id"),
                   "generation_config.json", e)))
        return -1;
    eos = a->tokenizer_config
              ? token_text(js_get(js_root(a->tokenizer_config), "eos_token"))
              : NULL;
    if (eos)
        add_stop(a, token_id(a, eos));
    a->config_stops_complete = own == a->n_stops;
    for (size_t i = 0; i < a->n_stops; i++)
        if (a->stops[i] >= a->ckpt->hp.vocab)
            return err_set(e, ERR_INPUT,
                           "end token %" PRId64 " is beyond the vocabulary of "
                           "%" PRId64 " rows",
                           a->stops[i], a->ckpt->hp.vocab);
    if (!a->n_stops)
        buf_puts(a->notes, "the checkpoint names no end token: generation "
                           "will not stop by itself\n");
    return 0;
}

/* Ids beyond the rows happen in good models; they are told, and refused only
 * where a prompt cannot do without them. */
static int check_ids(struct assets *a, struct err *e)
{
    const struct js_node *root = a->tokenizer ? js_root(a->tokenizer) : NULL;
    int64_t id, vocab = a->ckpt->hp.vocab, beyond = 0, first = 0;
    const struct js_node *n;
    const char *s;

    for (n = js_first(js_get(js_get(root, "model"), "vocab")); n;
         n = js_next(n))
        if (js_integral(n, &id) && id >= vocab) {
            first = beyond++ ? first : id;
        }
    for (n = js_first(js_get(root, "added_tokens")); n; n = js_next(n)) {
        if (!js_integral(js_get(n, "id"), &id) || id < vocab)
            continue;
        first = beyond++ ? first : id;
        if (js_string(js_get(n, "content"), &s) && a->template &&
            strstr(a->template, s))
            return err_set(e, ERR_INPUT,
                           "the chat template writes '%s', whose id %" PRId64
                           " is beyond the vocabulary of %" PRId64 " rows",
                           s, id, vocab);
    }
    if (beyond)
        buf_printf(a->notes,
                   "the tokenizer has %" PRId64 " ids beyond the vocabulary "
                   "of %" PRId64 " rows, the first is %" PRId64 "\n",
                   beyond, vocab, first);
    return 0;
}

/* ---- chat template ---- */

static int template_file(struct assets *a, char **out, struct err *e)
{
    char *path = io_join(a->ckpt->dir, "chat_template.jinja", e);
    struct buf b = BUF_INIT;
    int rc = path ? 0 : -1;

    *out = NULL;
    if (path && io_exists(path)) {
        rc = io_read_file(path, MAX_TEMPLATE, &b, e);
        if (!rc)
            *out = mem_strndup(buf_text(&b), b.len, e);
        if (!rc && !*out)
            rc = -1;
    }
    buf_release(&b);
    mem_free(path);
    return rc;
}

/* A string, or a list of named ones of which "default" counts. */
static const char *template_member(const struct js_node *n)
{
    const char *s = NULL, *name;

    if (js_string(n, &s))
        return s;
    if (n && js_kind(n) == JS_ARRAY)
        for (const struct js_node *x = js_first(n); x; x = js_next(x))
            if (js_string(js_get(x, "name"), &name) &&
                !strcmp(name, "default") &&
                js_string(js_get(x, "template"), &s))
                return s;
    return NULL;
}

/* transformers' order: chat_template.jinja, then tokenizer_config.json; then
 * chat_template.json, which processors carry. */
static int choose_template(struct assets *a, struct err *e)
{
    const struct js_node *member =
        a->tokenizer_config
            ? js_get(js_root(a->tokenizer_config), "chat_template")
            : NULL;
    const char *inner = template_member(member);
    struct js_doc *json = NULL;

    if (template_file(a, &a->template, e))
        return -1;
    if (a->template && inner && strcmp(a->template, inner))
        buf_puts(a->notes, "chat_template.jinja and the template in "
                           "tokenizer_config.json differ: the file wins\n");
    if (!a->template && inner && !(a->template = mem_strdup(inner, e)))
        return -1;
    if (!a->template) {
        if (read_json(a->ckpt, "chat_template.json", &json, e))
            return -1;
        inner = json ? template_member(js_get(js_root(json), "chat_template"))
                     : NULL;
        if (inner)
            a->template = mem_strdup(inner, e);
        js_free(json);
        if (inner && !a->template)
            return -1;
    }
    a->template_spliced =
        a->template && (!member || js_kind(member) != JS_STRING ||
                        strcmp(template_member(member), a->template));
    return 0;
}

/* An end marker that the template writes must stop generation. */
static void check_turn_end(struct assets *a)
{
    const struct js_node *n =
        a->tokenizer ? js_get(js_root(a->tokenizer), "added_tokens") : NULL;
    static const char *const ends[] = { "<|im_end|>", "<end_of_turn>",
                                        "<|eot_id|>", "<turn|>", "</s>" };
    const char *s;
    int64_t id;

    for (n = js_first(n); n && a->template; n = js_next(n)) {
        if (!js_string(js_get(n, "content"), &s) ||
            !js_integral(js_get(n, "id"), &id) || !strstr(a->template, s))
            continue;
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
            if (!strcmp(ends[i], s) && !has_stop(a, id))
                buf_printf(a->notes,
                           "the chat template ends turns with '%s' (%" PRId64
                           "), which is no end token of the checkpoint\n",
                           s, id);
    }
}

/* ---- opening ---- */

static int measure(struct assets *a, struct err *e)
{
    a->bytes = 1000000; /* config.json, tokenizer_config.json, gate.json */
    if (a->template)
        a->bytes += 4 * strlen(a->template);
    for (size_t i = 0; i < N_COPIED; i++) {
        char *path = io_join(a->ckpt->dir, copied[i], e);
        struct io_file f = IO_FILE_INIT;
        int rc = path ? 0 : -1;

        if (path && io_exists(path)) {
            rc = io_open_input(&f, path, e);
            a->bytes += f.size;
            io_close(&f);
        }
        mem_free(path);
        if (rc)
            return -1;
    }
    return 0;
}

struct assets *assets_open(const struct ckpt *c, struct buf *notes,
                           struct err *e)
{
    struct assets *a = mem_zalloc(1, sizeof(*a), e);

    if (!a)
        return NULL;
    a->ckpt = c;
    a->notes = notes;
    if (read_json(c, "tokenizer.json", &a->tokenizer, e) ||
        read_json(c, "tokenizer_config.json", &a->tokenizer_config, e) ||
        choose_template(a, e) || unite_stops(a, e) || check_ids(a, e) ||
        measure(a, e)) {
        assets_close(a);
        return NULL;
    }
    if (!a->tokenizer)
        buf_puts(notes, "the checkpoint has no tokenizer.json: the package "
                        "runs on token ids only\n");
    else if (!a->template)
        buf_puts(notes, "the checkpoint has no chat template\n");
    check_turn_end(a);
    return a;
}

void assets_close(struct assets *a)
{
    if (!a)
        return;
    js_free(a->tokenizer);
    js_free(a->tokenizer_config);
    mem_free(a->template);
    mem_free(a);
}

uint64_t assets_bytes(const struct assets *a)
{
    return a->bytes;
}

size_t assets_stop_tokens(const struct assets *a, const int64_t **ids)
{
    *ids = a->stops;
    return a->n_stops;
}

bool assets_sampling(const struct assets *a, struct assets_sampling *out)
{
    const struct js_node *g =
        a->ckpt->generation ? js_root(a->ckpt->generation) : NULL;

    out->do_sample = true;
    (void)js_bool(js_get(g, "do_sample"), &out->do_sample);
    return js_double(js_get(g, "temperature"), &out->temperature) &&
           js_double(js_get(g, "top_p"), &out->top_p) &&
           js_integral(js_get(g, "top_k"), &out->top_k);
}

/* ---- writing ---- */

/* Classes of the Swift tokenizer library, with or without "Fast". */
static bool swift_knows(const char *cls)
{
    static const char *const known[] = {
        "BertTokenizer",   "CodeGenTokenizer", "CodeLlamaTokenizer",
        "CohereTokenizer", "FalconTokenizer",  "GemmaTokenizer",
        "GPT2Tokenizer",   "LlamaTokenizer",   "PreTrainedTokenizer",
        "Qwen2Tokenizer",  "T5Tokenizer",      "WhisperTokenizer",
    };
    size_t n = strlen(cls);

    if (n > 4 && !strcmp(cls + n - 4, "Fast"))
        n -= 4;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i]) == n && !memcmp(known[i], cls, n))
            return true;
    return false;
}

static bool names_a_place(const char *key)
{
    return strstr(key, "path") || strstr(key, "file") || strstr(key, "dir");
}

static bool is_path(const char *v)
{
    return v[0] == '/' || v[0] == '~' || (v[0] && v[1] == ':');
}

/* Members that hold a place on somebody's machine. `changed` collects their
 * names for the final comparison. */
static int scrub(struct splice *s, const struct js_doc *d,
                 const char *changed[], size_t *n, size_t cap, struct err *e)
{
    for (const struct js_node *m = js_first(js_root(d)); m; m = js_next(m)) {
        const char *v;

        if (!js_string(m, &v) || *n + 1 >= cap)
            continue;
        if (strcmp(js_key(m), "_name_or_path") &&
            !(names_a_place(js_key(m)) && is_path(v)))
            continue;
        if (splice_remove(s, js_key(m), e))
            return -1;
        changed[(*n)++] = js_key(m);
    }
    return 0;
}

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

static int set_stops(const struct assets *a, struct splice *s, struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = -1;

    buf_puts(&b, "[");
    for (size_t i = 0; i < a->n_stops; i++)
        buf_printf(&b, "%s%" PRId64, i ? ", " : "", a->stops[i]);
    buf_puts(&b, "]");
    if (!buf_ok(&b, e))
        rc = splice_set(s, "eos_token_id", buf_text(&b), e);
    buf_release(&b);
    return rc;
}

#define MAX_CHANGED 32

static int finish(struct splice *s, const struct js_doc *before,
                  const char *const *changed, const char *dir, const char *name,
                  struct err *e)
{
    char *path = io_join(dir, name, e);
    int rc = -1;

    if (path && !splice_verify(s, before, changed, e))
        rc = io_write_file(path, s->text.data, s->text.len, e);
    mem_free(path);
    return rc;
}

/* The source's config with end tokens and a tokenizer class at its top. */
static int write_config(const struct assets *a, const char *dir, struct err *e)
{
    const struct js_doc *d = a->ckpt->config;
    const char *changed[MAX_CHANGED + 1] = { "eos_token_id",
                                             "tokenizer_class" };
    size_t n = 2, len;
    const char *text = js_text(d, &len), *cls;
    struct splice s;
    int rc = -1;

    if (splice_begin(&s, text, len, e))
        return -1;
    if (!scrub(&s, d, changed, &n, MAX_CHANGED, e) &&
        (a->config_stops_complete || !set_stops(a, &s, e)) &&
        ((js_string(js_get(js_root(d), "tokenizer_class"), &cls) &&
          swift_knows(cls)) ||
         !set_string(&s, "tokenizer_class", a->ckpt->hp.arch->tokenizer_class,
                     e)))
        rc = finish(&s, d, changed, dir, "config.json", e);
    splice_release(&s);
    return rc ? err_in(e, "config.json") : 0;
}

static int set_class(const struct assets *a, struct splice *s, struct err *e)
{
    const struct js_node *n =
        js_get(js_root(a->tokenizer_config), "tokenizer_class");
    const char *cls = NULL;

    if (js_string(n, &cls) && swift_knows(cls))
        return 0;
    if (cls && set_string(s, "source_tokenizer_class", cls, e))
        return -1;
    return set_string(s, "tokenizer_class", a->ckpt->hp.arch->tokenizer_class,
                      e);
}

static int write_tokenizer_config(const struct assets *a, const char *dir,
                                  struct err *e)
{
    const struct js_doc *d = a->tokenizer_config;
    const char *changed[MAX_CHANGED + 1] = { "tokenizer_class",
                                             "chat_template" };
    size_t n = 2, len;
    const char *text = js_text(d, &len);
    struct splice s;
    int rc = -1;

    if (splice_begin(&s, text, len, e))
        return -1;
    if (!scrub(&s, d, changed, &n, MAX_CHANGED, e) && !set_class(a, &s, e) &&
        (!a->template_spliced ||
         !set_string(&s, "chat_template", a->template, e)))
        rc = finish(&s, d, changed, dir, "tokenizer_config.json", e);
    splice_release(&s);
    return rc ? err_in(e, "tokenizer_config.json") : 0;
}

static int copy_files(const struct assets *a, const char *dir, struct err *e)
{
    for (size_t i = 0; i < N_COPIED; i++) {
        char *from = io_join(a->ckpt->dir, copied[i], e);
        char *to = io_join(dir, copied[i], e);
        int rc = from && to ? 0 : -1;

        if (!rc && io_exists(from))
            rc = io_copy_file(from, to, e);
        mem_free(from);
        mem_free(to);
        if (rc)
            return -1;
    }
    return 0;
}

int assets_write(const struct assets *a, const char *dir, struct err *e)
{
    if (write_config(a, dir, e) || copy_files(a, dir, e))
        return -1;
    return a->tokenizer_config ? write_tokenizer_config(a, dir, e) : 0;
}
