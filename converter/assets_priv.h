/*
 * Between assets.c, assets_template.c and assets_write.c.
 */
#ifndef CONVERTER_ASSETS_PRIV_H
#define CONVERTER_ASSETS_PRIV_H

#include "converter/assets.h"

#define ASSETS_MAX_JSON 100000000u /* three times the largest known */
/* Arrays of tokenizer.json that nothing here reads, larger than all else. */
#define ASSETS_UNREAD "merges"
#define ASSETS_MAX_TEMPLATE 10000000u
#define ASSETS_MAX_STOPS 64
#define ASSETS_FOLDER "additional_chat_templates"
#define ASSETS_JINJA "chat_template.jinja"

/* A chat template with a name of its own, beside the default. */
struct assets_named {
    char *name, *text;
};

struct assets {
    const struct ckpt *ckpt;
    struct buf *notes;
    struct js_doc *tokenizer;        /* tokenizer.json, while opening */
    struct js_doc *tokenizer_config; /* or NULL */
    bool has_tokenizer;              /* tokenizer.json is there */

    char *template;       /* the effective chat template or NULL */
    bool template_listed; /* it stood in a list of named ones */
    struct assets_named *named;
    size_t n_named, cap_named;

    int64_t stops[ASSETS_MAX_STOPS];
    size_t n_stops, n_config_stops; /* the latter from its top level */
    char *eos, *bos;                /* texts for a tokenizer_config we make */
    char *class;                    /* tokenizer_class of both files */
};

/* A JSON object of the checkpoint; *out stays NULL when it is absent. */
int assets_read_json(const struct ckpt *c, const char *name,
                     struct js_doc **out, struct err *e) ATTR_MUST_USE;
/* Files that are copied, and whether one is JSON that may name places. */
struct assets_file {
    const char *name;
    bool json;
};
const struct assets_file *assets_file_at(size_t i); /* NULL behind the last */

/* Fills template, template_listed and named. */
int assets_choose_template(struct assets *a, struct err *e) ATTR_MUST_USE;

/* Whether the Swift tokenizer library has the class. */
bool assets_swift_knows(const char *cls);

/* splice_rule: the member holds a place on somebody's machine. */
bool assets_names_a_place(const char *key, const struct js_node *value);

#endif
