/*
 * Rules of a recipe: read with libyaml's tree, matched by name, part and
 * layer.
 */
#include "converter/recipe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/yaml_doc_priv.h"

/* By enum cv_kind, as in the lut_* keys of meta.yaml. */
static const char *const parts[] = { "embeddings", "ffn", "lmhead" };
#define N_PARTS ((int)(sizeof(parts) / sizeof(parts[0])))
#define RULE_KEYS "tensor, part, layers, lut and quant"

struct reader {
    struct recipe *r;
    yaml_document_t *doc;
    struct err *e;
};

static int bad(const struct reader *rd, const yaml_node_t *at, const char *fmt,
               ...) ATTR_PRINTF(3, 4);
static int bad(const struct reader *rd, const yaml_node_t *at, const char *fmt,
               ...)
{
    char text[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(rd->e, ERR_INPUT, "'%s', line %zu: %s", rd->r->path,
                   at ? at->start_mark.line + 1 : 1, text);
}

/* A scalar's text; NULL and an error where it is something else. */
static const char *scalar(const struct reader *rd, const yaml_node_t *n,
                          const char *what)
{
    const char *s;

    if (!n || n->type != YAML_SCALAR_NODE) {
        bad(rd, n, "%s is a list or a mapping, one word is wanted", what);
        return NULL;
    }
    s = (const char *)n->data.scalar.value;
    for (size_t i = 0; i < n->data.scalar.length; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) {
            bad(rd, n, "%s holds a control character", what);
            return NULL;
        }
    return s;
}

/* ---- the keys of a rule ---- */

static int read_tensor(struct reader *rd, const yaml_node_t *n, const char *s,
                       struct recipe_rule *rule)
{
    size_t len = strlen(s);

    if (!len || len > RECIPE_MAX_PATTERN)
        return bad(rd, n,
                   "tensor: a pattern of %zu characters; 1 to %u are "
                   "allowed",
                   len, RECIPE_MAX_PATTERN);
    if (strpbrk(s, "[]{}\\"))
        return bad(rd, n,
                   "tensor '%s': names of tensors hold no brackets, braces or "
                   "backslashes, and patterns know '*' and '?' alone",
                   s);
    rule->tensor = mem_strdup(s, rd->e);
    return rule->tensor ? 0 : -1;
}

static int read_part(struct reader *rd, const yaml_node_t *n, const char *s,
                     struct recipe_rule *rule)
{
    for (int i = 0; i < N_PARTS; i++)
        if (!strcmp(s, parts[i])) {
            rule->part = i;
            return 0;
        }
    return bad(rd, n, "part '%.80s' is none of embeddings, ffn and lmhead", s);
}

static int read_layers(struct reader *rd, const yaml_node_t *n, const char *s,
                       struct recipe_rule *rule)
{
    const char *dash = strchr(s, '-');
    size_t len = dash ? (size_t)(dash - s) : strlen(s);
    uint64_t first, last;

    if (!num_parse_u64(s, len, &first) ||
        !num_parse_u64(dash ? dash + 1 : s, dash ? strlen(dash + 1) : len,
                       &last) ||
        first > last || last > 1000000)
        return bad(rd, n,
                   "layers '%.80s' is neither a layer (3) nor a range that "
                   "ascends (0-3)",
                   s);
    rule->first = (int64_t)first;
    rule->last = (int64_t)last;
    return 0;
}

static int read_lut(struct reader *rd, const yaml_node_t *n, const char *s,
                    struct recipe_rule *rule)
{
    struct err e = ERR_INIT;

    return cv_lut_parse("lut", s, &rule->lut, &e) ? bad(rd, n, "%.500s", e.text)
                                                  : 0;
}

static int read_quant(struct reader *rd, const yaml_node_t *n, const char *s,
                      struct recipe_rule *rule)
{
    struct err e = ERR_INIT;

    return cv_quant_parse("quant", s, &rule->lut, &e)
               ? bad(rd, n, "%.500s", e.text)
               : 0;
}

static const struct key {
    const char *name;
    bool selects; /* else it says how */
    int (*read)(struct reader *rd, const yaml_node_t *n, const char *s,
                struct recipe_rule *rule);
} keys[] = {
    { "tensor", true, read_tensor }, { "part", true, read_part },
    { "layers", true, read_layers }, { "lut", false, read_lut },
    { "quant", false, read_quant },
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static int read_key(struct reader *rd, const yaml_node_pair_t *p,
                    struct recipe_rule *rule, unsigned *seen)
{
    const yaml_node_t *k = yaml_document_get_node(rd->doc, p->key);
    const yaml_node_t *v = yaml_document_get_node(rd->doc, p->value);
    const char *name = scalar(rd, k, "a key"), *s;

    for (size_t i = 0; name && i < N_KEYS; i++) {
        if (strcmp(keys[i].name, name) != 0)
            continue;
        if (*seen >> i & 1)
            return bad(rd, k, "key '%s' stands there twice", name);
        *seen |= 1u << i;
        s = scalar(rd, v, name);
        return s ? keys[i].read(rd, v, s, rule) : -1;
    }
    return name ? bad(rd, k, "key '%.80s' is not known; a rule has " RULE_KEYS,
                      name)
                : -1;
}

static int check_rule(struct reader *rd, const yaml_node_t *n,
                      const struct recipe_rule *rule, unsigned seen)
{
    int how = 0, selects = 0;

    for (size_t i = 0; i < N_KEYS; i++) {
        how += (seen >> i & 1) && !keys[i].selects;
        selects += (seen >> i & 1) && keys[i].selects;
    }
    if (!selects)
        return bad(rd, n,
                   "a rule without tensor, part or layers: one of them tells "
                   "what it is for");
    if (how != 1)
        return bad(rd, n, "a rule has %s lut %s quant; one of them is wanted",
                   how ? "both" : "neither", how ? "and" : "nor");
    if (rule->first >= 0 && rule->part >= 0 && rule->part != CV_CHUNK)
        return bad(rd, n,
                   "a rule for layers of the part %s; only ffn has layers",
                   parts[rule->part]);
    return 0;
}

static int read_rule(struct reader *rd, const yaml_node_t *n)
{
    struct recipe *r = rd->r;
    struct recipe_rule *rule;
    unsigned seen = 0;

    if (!n || n->type != YAML_MAPPING_NODE)
        return bad(rd, n, "a rule is a mapping with " RULE_KEYS);
    if (r->n == RECIPE_MAX_RULES)
        return bad(rd, n, "more than %u rules", RECIPE_MAX_RULES);
    if (mem_grow((void **)&r->rules, &r->cap, r->n, sizeof(*rule), rd->e))
        return -1;
    rule = &r->rules[r->n++];
    *rule = (struct recipe_rule){
        .part = -1, .first = -1, .last = -1, .line = n->start_mark.line + 1
    };
    for (const yaml_node_pair_t *p = n->data.mapping.pairs.start;
         p < n->data.mapping.pairs.top; p++)
        if (read_key(rd, p, rule, &seen))
            return -1;
    return check_rule(rd, n, rule, seen);
}

/* ---- the file ---- */

static int read_top(struct reader *rd)
{
    const yaml_node_t *root = yaml_document_get_root_node(rd->doc), *k, *v;
    const yaml_node_pair_t *p;
    const char *name;
    bool seen = false;

    if (!root || root->type != YAML_MAPPING_NODE)
        return bad(rd, root, "a recipe is a mapping with the key rules");
    p = root->data.mapping.pairs.start;
    for (; p < root->data.mapping.pairs.top; p++) {
        k = yaml_document_get_node(rd->doc, p->key);
        name = scalar(rd, k, "a key");
        if (!name)
            return -1;
        if (strcmp(name, "rules") != 0)
            return bad(rd, k, "key '%.80s' is not known; a recipe has rules",
                       name);
        if (seen)
            return bad(rd, k, "key 'rules' stands there twice");
        seen = true;
        v = yaml_document_get_node(rd->doc, p->value);
        if (!v || v->type != YAML_SEQUENCE_NODE)
            return bad(rd, v ? v : k, "rules is no list");
        for (const yaml_node_item_t *i = v->data.sequence.items.start;
             i < v->data.sequence.items.top; i++)
            if (read_rule(rd, yaml_document_get_node(rd->doc, *i)))
                return -1;
    }
    return rd->r->n ? 0 : bad(rd, root, "the recipe holds no rule");
}

struct recipe *recipe_parse(const char *path, const char *text, size_t len,
                            struct err *e)
{
    struct recipe *r = mem_zalloc(1, sizeof(*r), e);
    struct buf copy = BUF_INIT;
    yaml_document_t doc;
    int rc = -1;

    if (!r)
        return NULL;
    buf_add(&copy, text, len);
    r->path = mem_strdup(path, e);
    if (r->path && !buf_ok(&copy, e)) {
        struct reader rd = { r, &doc, e };

        if (yaml_doc_parse(&copy, &doc, e)) {
            err_in(e, "'%s'", path);
        } else {
            rc = read_top(&rd);
            yaml_document_delete(&doc);
        }
    }
    buf_release(&copy);
    if (!rc)
        return r;
    recipe_free(r);
    return NULL;
}

struct recipe *recipe_read(const char *path, struct err *e)
{
    struct buf text = BUF_INIT;
    struct recipe *r = NULL;

    if (!io_read_file(path, RECIPE_MAX_BYTES, &text, e))
        r = recipe_parse(path, buf_text(&text), text.len, e);
    buf_release(&text);
    if (!r)
        err_in(e, "--recipe");
    return r;
}

void recipe_free(struct recipe *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        mem_free(r->rules[i].tensor);
    mem_free(r->rules);
    mem_free(r->path);
    mem_free(r);
}

/* ---- matching ---- */

bool recipe_glob(const char *pattern, const char *name)
{
    const char *star = NULL, *from = NULL;

    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            from = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) { /* the star takes one more */
            pattern = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

static bool name_fits(const char *pattern, const struct ckpt *c,
                      const char *tensor)
{
    const struct need *nd = ckpt_need(c, tensor);

    if (recipe_glob(pattern, tensor))
        return true;
    if (!nd || !nd->tensor)
        return false;
    for (size_t i = 0; i < nd->n_parts; i++)
        if (!recipe_glob(pattern, nd->parts[i]->name))
            return false;
    return nd->n_parts || recipe_glob(pattern, nd->tensor->name);
}

/* Of "layers.N.", else -1. */
static int64_t layer_of(const char *tensor)
{
    uint64_t n;

    if (strncmp(tensor, "layers.", 7) != 0 ||
        !num_parse_u64(tensor + 7, strcspn(tensor + 7, "."), &n))
        return -1;
    return (int64_t)n;
}

static bool fits(const struct recipe_rule *rule, const struct ckpt *c, int part,
                 const char *tensor)
{
    int64_t layer = layer_of(tensor);

    return (rule->part < 0 || part < 0 || rule->part == part) &&
           (rule->first < 0 || (layer >= rule->first && layer <= rule->last)) &&
           (!rule->tensor || name_fits(rule->tensor, c, tensor));
}

const struct cv_lut *recipe_find(struct recipe *r, const struct ckpt *c,
                                 enum cv_kind part, const char *tensor)
{
    const struct cv_lut *found = NULL;

    for (size_t i = 0; r && i < r->n; i++)
        if (fits(&r->rules[i], c, (int)part, tensor)) {
            r->rules[i].fitted++;
            found = &r->rules[i].lut;
        }
    return found;
}

int recipe_check_layers(const struct recipe *r, int64_t layers, struct err *e)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->rules[i].last >= layers)
            return err_set(e, ERR_INPUT,
                           "--recipe: '%s', line %zu: layers %" PRId64
                           "-%" PRId64 "; the model has layers 0 to %" PRId64,
                           r->path, r->rules[i].line, r->rules[i].first,
                           r->rules[i].last, layers - 1);
    return 0;
}

static int unused(const struct recipe *r, const struct recipe_rule *rule,
                  const struct ckpt *c, struct err *e)
{
    for (size_t i = 0; i < c->ledger.n; i++)
        if (fits(rule, c, -1, c->ledger.needs[i].name))
            return err_set(e, ERR_INPUT,
                           "--recipe: '%s', line %zu: the rule fits no matrix "
                           "that is stored by its part's options, but tensors "
                           "that always stay fp16 or lie in another part "
                           "('%s' is one)",
                           r->path, rule->line, c->ledger.needs[i].name);
    return err_set(e, ERR_INPUT,
                   "--recipe: '%s', line %zu: the rule fits no tensor of the "
                   "model%s%s%s (anemll-inspect lists them)",
                   r->path, rule->line,
                   rule->tensor ? "; its pattern is '" : "",
                   rule->tensor ? rule->tensor : "", rule->tensor ? "'" : "");
}

int recipe_check_used(const struct recipe *r, const struct ckpt *c,
                      struct err *e)
{
    for (size_t i = 0; i < r->n; i++)
        if (!r->rules[i].fitted)
            return unused(r, &r->rules[i], c, e);
    return 0;
}
