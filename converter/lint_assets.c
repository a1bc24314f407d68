/*
 * Lint of tokenizer and configuration files, of the gate's verdict, and of
 * places on somebody's machine in any text of the package.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/assets_priv.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/lint_priv.h"

/* The files that the checks read, while they run. */
struct files {
    struct lint *l;
    struct js_doc *tokenizer, *tokenizer_config, *config, *generation;
    struct buf jinja;
    bool has_tokenizer, has_tokenizer_config, has_config, has_jinja;
};

/* ---- reading ---- */

static char *path_of(struct lint *l, const char *name, bool *there)
{
    char *path = io_join(l->dir, name, l->e);

    *there = path && io_exists(path);
    return path;
}

static struct js_doc *read_object(struct lint *l, const char *name,
                                  enum lint_id id, bool *there)
{
    char *path = path_of(l, name, there);
    struct err e = ERR_INIT;
    struct js_doc *d =
        *there ? js_read_file_hollow(path, ASSETS_MAX_JSON, ASSETS_UNREAD, &e)
               : NULL;

    if (*there && !d)
        lint_add_err(l, id, name, &e);
    else if (d && js_kind(js_root(d)) != JS_OBJECT) {
        lint_add(l, id, name, "%s, an object is needed",
                 js_kind_name(js_kind(js_root(d))));
        js_free(d);
        d = NULL;
    }
    mem_free(path);
    return d;
}

static void read_files(struct files *f)
{
    struct lint *l = f->l;
    struct err e = ERR_INIT;
    bool ignored;
    char *path = path_of(l, ASSETS_JINJA, &f->has_jinja);

    f->tokenizer = read_object(l, "tokenizer.json", LINT_ID_tokenizer_broken,
                               &f->has_tokenizer);
    f->tokenizer_config =
        read_object(l, "tokenizer_config.json", LINT_ID_tokenizer_broken,
                    &f->has_tokenizer_config);
    f->config =
        read_object(l, "config.json", LINT_ID_config_broken, &f->has_config);
    f->generation = read_object(l, "generation_config.json",
                                LINT_ID_config_broken, &ignored);
    if (f->has_jinja && io_read_file(path, ASSETS_MAX_TEMPLATE, &f->jinja, &e))
        f->has_jinja = false; /* what is no file is told elsewhere */
    mem_free(path);
}

static void release(struct files *f)
{
    js_free(f->tokenizer);
    js_free(f->tokenizer_config);
    js_free(f->config);
    js_free(f->generation);
    buf_release(&f->jinja);
}

static const struct js_node *member(const struct js_doc *d, const char *key)
{
    return d ? js_get(js_root(d), key) : NULL;
}

/* ---- the tokenizer ---- */

static void check_tokenizer(struct files *f)
{
    const struct js_node *vocab =
        js_get(member(f->tokenizer, "model"), "vocab");
    const char *cls;

    if (!f->has_tokenizer)
        lint_add(f->l, LINT_ID_tokenizer_missing, ".", "no tokenizer.json");
    else if (!f->has_tokenizer_config)
        lint_add(f->l, LINT_ID_tokenizer_config_missing, ".",
                 "no tokenizer_config.json");
    if (f->tokenizer && !js_count(vocab))
        lint_add(f->l, LINT_ID_tokenizer_broken, "tokenizer.json",
                 "no vocabulary (model.vocab)");
    if (js_string(member(f->tokenizer_config, "tokenizer_class"), &cls) &&
        !assets_swift_knows(cls))
        lint_add(f->l, LINT_ID_tokenizer_class, "tokenizer_config.json",
                 "'%.60s'", cls);
}

/* Vocabularies are objects of ids, or lists whose places are the ids. */
static void check_ids(struct files *f)
{
    const struct js_node *vocab =
        js_get(member(f->tokenizer, "model"), "vocab");
    const struct js_node *added = member(f->tokenizer, "added_tokens");
    int64_t id, beyond = 0, most = 0, limit = f->l->meta.vocab;

    if (!f->tokenizer || !limit)
        return;
    if (vocab && js_kind(vocab) == JS_ARRAY)
        most = (int64_t)js_count(vocab) - 1;
    else
        for (vocab = js_first(vocab); vocab; vocab = js_next(vocab))
            if (js_integral(vocab, &id) && id > most)
                most = id;
    for (added = js_first(added); added; added = js_next(added))
        if (js_integral(js_get(added, "id"), &id) && id > most)
            most = id;
    beyond = most - limit + 1;
    if (beyond > 0)
        lint_add(f->l, LINT_ID_tokenizer_ids, "tokenizer.json",
                 "the highest id is %" PRId64 ", vocab_size %" PRId64, most,
                 limit);
}

/* The id of a text among added tokens and vocabulary; -1: none. */
static int64_t token_id(const struct files *f, const char *text)
{
    const struct js_node *n = member(f->tokenizer, "added_tokens");
    const char *s;
    int64_t id;

    for (n = js_first(n); n; n = js_next(n))
        if (js_string(js_get(n, "content"), &s) && !strcmp(s, text) &&
            js_integral(js_get(n, "id"), &id))
            return id;
    return js_integral(js_get(js_get(member(f->tokenizer, "model"), "vocab"),
                              text),
                       &id)
               ? id
               : -1;
}

/* ---- the chat template ---- */

static void check_template(struct files *f)
{
    const struct js_node *n = member(f->tokenizer_config, "chat_template");
    const char *text = NULL;
    bool string = js_string(n, &text);

    if (!f->has_tokenizer)
        return;
    if (n && !string)
        lint_add(f->l, LINT_ID_template_form, "tokenizer_config.json",
                 "'chat_template' is %s", js_kind_name(js_kind(n)));
    else if (!n && f->has_jinja)
        lint_add(f->l, LINT_ID_template_form, "tokenizer_config.json",
                 "the template is in " ASSETS_JINJA " alone");
    else if (!n)
        lint_add(f->l, LINT_ID_template_missing, ".",
                 "neither tokenizer_config.json nor " ASSETS_JINJA " has one");
    else if (f->has_jinja && strcmp(text, buf_text(&f->jinja)) != 0)
        lint_add(f->l, LINT_ID_template_differs, ASSETS_JINJA,
                 "%zu bytes, tokenizer_config.json %zu", f->jinja.len,
                 strlen(text));
}

/* ---- end tokens ---- */

struct stops {
    int64_t ids[ASSETS_MAX_STOPS];
    size_t n;
};

static bool has_stop(const struct stops *s, int64_t id)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->ids[i] == id)
            return true;
    return false;
}

static void add_stop(struct stops *s, const struct js_node *n)
{
    int64_t id;

    if (js_integral(n, &id) && !has_stop(s, id) && s->n < ASSETS_MAX_STOPS)
        s->ids[s->n++] = id;
}

static struct stops stops_of(const struct js_node *n)
{
    struct stops s = { .n = 0 };

    if (n && js_kind(n) == JS_ARRAY)
        for (n = js_first(n); n; n = js_next(n))
            add_stop(&s, n);
    else
        add_stop(&s, n);
    return s;
}

/* Added tokens that Swift takes for ends whatever the config says. */
static void add_known(const struct files *f, struct stops *s)
{
    static const char *const known[] = { "<eos>",         "</s>",
                                         "<|endoftext|>", "<end_of_turn>",
                                         "<|im_end|>",    "<|eot_id|>" };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        int64_t id = token_id(f, known[i]);

        if (id >= 0 && !has_stop(s, id) && s->n < ASSETS_MAX_STOPS)
            s->ids[s->n++] = id;
    }
}

static void check_turn_end(struct files *f, struct stops *s)
{
    static const char *const ends[] = { "<|im_end|>", "<end_of_turn>",
                                        "<|eot_id|>", "<turn|>",
                                        "<|end|>",    "</s>" };
    const char *text = buf_text(&f->jinja);

    (void)js_string(member(f->tokenizer_config, "chat_template"), &text);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        int64_t id = token_id(f, ends[i]);

        if (id >= 0 && strstr(text, ends[i]) && !has_stop(s, id))
            lint_add(f->l, LINT_ID_stop_template, "config.json",
                     "'%s' (%" PRId64 ") is no end token", ends[i], id);
    }
}

static void check_stops(struct files *f)
{
    struct stops s = stops_of(member(f->config, "eos_token_id"));
    struct stops g = stops_of(member(f->generation, "eos_token_id"));
    const struct js_node *nested =
        js_get(member(f->config, "text_config"), "eos_token_id");

    if (!f->config)
        return;
    if (!s.n)
        lint_add(f->l, LINT_ID_stop_missing, "config.json",
                 nested ? "eos_token_id stands in text_config alone"
                        : "no eos_token_id");
    for (size_t i = 0; i < g.n; i++)
        if (s.n && !has_stop(&s, g.ids[i]))
            lint_add(f->l, LINT_ID_stop_incomplete, "generation_config.json",
                     "%" PRId64, g.ids[i]);
    for (size_t i = 0; i < s.n; i++)
        if (f->l->meta.vocab && s.ids[i] >= f->l->meta.vocab)
            lint_add(f->l, LINT_ID_stop_range, "config.json",
                     "%" PRId64 ", vocab_size is %" PRId64, s.ids[i],
                     f->l->meta.vocab);
    /* Swift's own list helps where the template's end is on it; Python has
     * fewer, so an end that is on no list of the package is still told. */
    if (!s.n)
        add_known(f, &s);
    check_turn_end(f, &s);
}

static void check_config(struct files *f)
{
    static const char *const needed[] = { "model_type", "tokenizer_class" };

    if (!f->has_config)
        lint_add(f->l, LINT_ID_config_missing, ".", "no config.json");
    for (int i = 0; f->config && i < 2; i++) {
        const char *s;

        if (!js_string(member(f->config, needed[i]), &s))
            lint_add(f->l, LINT_ID_config_type, "config.json", "no '%s'",
                     needed[i]);
    }
}

/* ---- the gate's verdict ---- */

static void check_gate(struct lint *l)
{
    bool there;
    char *path = path_of(l, "gate.json", &there);
    struct err e = ERR_INIT;
    struct js_doc *d = there ? js_read_file(path, 100000000, &e) : NULL;
    const char *s;

    if (js_string(member(d, "verdict"), &s) && !strcmp(s, "FAIL"))
        lint_add(l, LINT_ID_gate_failed, "gate.json", "verdict %s", s);
    js_free(d);
    mem_free(path);
}

/* ---- places ---- */

/* In free text: the beginning of a home, a temporary or a drive's folder. */
const char *lint_find_place(const char *text)
{
    static const char *const roots[] = { "/Users/",
                                         "/home/",
                                         ("/roo"
                                          "t/"),
                                         "/tmp/",
                                         "/var/",
                                         "/private/",
                                         "/mnt/",
                                         "/Volumes/",
                                         "file://",
                                         ":\\Users\\" };
    const char *first = NULL;

    for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
        const char *p = strstr(text, roots[i]);

        if (p && (!first || p < first))
            first = p;
    }
    return first;
}

static void check_text(struct lint *l, const char *where, const char *what,
                       const char *text)
{
    const char *p = text ? lint_find_place(text) : NULL;

    if (p)
        lint_add(l, LINT_ID_path_inside, where, "%s%s'%.*s'", what,
                 *what ? ": " : "",
                 (int)(strcspn(p, "\n\"") < 80 ? strcspn(p, "\n\"") : 80), p);
}

static void check_node(struct lint *l, const char *where,
                       const struct js_node *n, int depth)
{
    if (depth > JS_MAX_DEPTH)
        return;
    for (n = js_first(n); n; n = js_next(n)) {
        const char *key = js_key(n), *s;

        if (key && assets_names_a_place(key, n) && js_string(n, &s))
            lint_add(l, LINT_ID_path_inside, where, "%.60s: '%.80s'", key, s);
        else
            check_node(l, where, n, depth + 1);
    }
}

static void check_json_places(struct lint *l, const char *name)
{
    bool there;
    char *path = path_of(l, name, &there);
    struct err e = ERR_INIT;
    struct js_doc *d =
        there ? js_read_file_hollow(path, ASSETS_MAX_JSON, ASSETS_UNREAD, &e)
              : NULL;

    if (d)
        check_node(l, name, js_root(d), 0);
    js_free(d);
    mem_free(path);
}

static void check_program_places(struct lint *l)
{
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        const struct mil_program *p = pkg_program(m->pkg);

        for (size_t i = 0; i < p->n_metadata; i++)
            check_text(l, m->name, p->metadata[i].key, p->metadata[i].value);
        for (size_t i = 0; i < p->n_build_info; i++)
            check_text(l, m->name, p->build_info[i].key,
                       p->build_info[i].value);
        check_text(l, m->name, "description", p->description);
        check_text(l, m->name, "author", p->author);
        check_text(l, m->name, "license", p->license);
    }
}

static void check_places(struct lint *l)
{
    static const char *const names[] = { "config.json", "tokenizer_config.json",
                                         "gate.json", "report.json" };
    const struct assets_file *f;

    if (l->meta.read)
        check_text(l, "meta.yaml", "", buf_text(&l->meta.text));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        check_json_places(l, names[i]);
    for (size_t i = 0; (f = assets_file_at(i)) != NULL; i++)
        if (f->json)
            check_json_places(l, f->name);
    check_program_places(l);
}

int lint_assets_check(struct lint *l)
{
    struct files f = { .l = l };

    read_files(&f);
    check_tokenizer(&f);
    check_ids(&f);
    check_template(&f);
    check_config(&f);
    check_stops(&f);
    release(&f);
    check_gate(l);
    check_places(l);
    return l->e->code ? -1 : 0;
}
