/*
 * Lint of meta.yaml: its form, its keys and their values. ANEMLL's readers
 * take typed values in Swift, int() in Python, and fields between spaces in
 * the shell.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/lint_priv.h"

#define FILE_NAME "meta.yaml"
#define MAX_BYTES 1000000

enum value { V_INT, V_BITS, V_TEXT, V_BOOL, V_NUMBER, V_FILE, V_INTS, V_ANY };
enum { REQUIRED = 1, REQUIRED_WHOLE = 2, LEGACY = 4 };

/* What stands under model_info.parameters. The second part are the keys of
 * extended packages, which ANEMLL's own readers leave alone. */
static const struct key {
    const char *name;
    enum value value;
    int64_t min, max;
    unsigned flags;
} keys[] = {
    { "context_length", V_INT, 1, 1 << 24, REQUIRED | REQUIRED_WHOLE },
    { "batch_size", V_INT, 1, 1 << 16, REQUIRED | REQUIRED_WHOLE },
    { "lut_embeddings", V_BITS, 1, 8, REQUIRED },
    { "lut_ffn", V_BITS, 1, 8, REQUIRED },
    { "lut_lmhead", V_BITS, 1, 8, REQUIRED },
    { "lut_bits", V_BITS, 1, 8, 0 },
    { "lut_embeddings_per_channel", V_INT, 0, 1 << 24, 0 },
    { "lut_ffn_per_channel", V_INT, 0, 1 << 24, 0 },
    { "lut_lmhead_per_channel", V_INT, 0, 1 << 24, 0 },
    { "lut_per_channel", V_INT, 0, 1 << 24, 0 },
    { "num_chunks", V_INT, 1, LINT_MAX_CHUNKS, REQUIRED },
    { "model_prefix", V_TEXT, 0, 0, 0 },
    { "embeddings", V_FILE, 0, 0, 0 },
    { "lm_head", V_FILE, 0, 0, 0 },
    { "ffn", V_FILE, 0, 0, 0 },
    { "monolithic_model", V_FILE, 0, 0, 0 },
    { "split_lm_head", V_INT, 1, 4096, 0 },
    { "argmax_in_model", V_BOOL, 0, 0, 0 },
    { "vocab_size", V_INT, 1, 1 << 24, 0 },
    { "lm_head_chunk_sizes", V_INTS, 1, 1 << 24, 0 },
    { "sliding_window", V_INT, 1, 1 << 24, 0 },
    { "update_mask_prefill", V_BOOL, 0, 0, 0 },
    { "prefill_dynamic_slice", V_BOOL, 0, 0, 0 },
    { "recommended_sampling", V_ANY, 0, 0, 0 },
    { "attention_size", V_INT, 1, 1 << 24, 0 },
    { "state_length", V_INT, 1, 1 << 24, 0 },
    { "single_cache", V_BOOL, 0, 0, 0 },
    { "functions", V_ANY, 0, 0, 0 },
    { "split_rotate", V_BOOL, 0, 0, 0 },
    { "num_logits", V_INT, 1, 4096, LEGACY },
    { "tokenizer_path", V_TEXT, 0, 0, LEGACY },
    { "prefill", V_FILE, 0, 0, LEGACY },
    { "pf", V_FILE, 0, 0, LEGACY },
    { "per_chunk_state", V_BOOL, 0, 0, LEGACY },
    { "infer_only", V_BOOL, 0, 0, LEGACY },

    { "hidden_size", V_INT, 1, 1 << 24, 0 },
    { "num_layers", V_INT, 1, 10000, 0 },
    { "prefill_last_token_output", V_BOOL, 0, 0, 0 },
    { "recurrent_state", V_BOOL, 0, 0, 0 },
    { "prefill_full_batches_only", V_BOOL, 0, 0, 0 },
    { "gdn_chunk_size", V_INT, 1, 1 << 16, 0 },
    { "layer_types", V_ANY, 0, 0, 0 },
    { "states", V_ANY, 0, 0, 0 },
    { "moe", V_ANY, 0, 0, 0 },
    { "quant_embeddings", V_TEXT, 0, 0, 0 },
    { "quant_ffn", V_TEXT, 0, 0, 0 },
    { "quant_lmhead", V_TEXT, 0, 0, 0 },
    { "lut_embeddings_mixed", V_NUMBER, 0, 0, 0 },
    { "lut_ffn_mixed", V_NUMBER, 0, 0, 0 },
    { "lut_lmhead_mixed", V_NUMBER, 0, 0, 0 },
    { "local_attention_window", V_INT, 1, 1 << 24, 0 },
    { "local_cache_length", V_INT, 1, 1 << 24, 0 },
    { "final_logit_softcap", V_NUMBER, 0, 0, 0 },
    { "per_layer_inputs", V_INT, 1, 1 << 24, 0 },
    { "kv_shared_layers", V_ANY, 0, 0, 0 },
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static const struct key info_keys[] = {
    { "name", V_TEXT, 0, 0, 0 },         { "version", V_ANY, 0, 0, 0 },
    { "description", V_ANY, 0, 0, 0 },   { "license", V_ANY, 0, 0, 0 },
    { "author", V_ANY, 0, 0, 0 },        { "framework", V_ANY, 0, 0, 0 },
    { "language", V_ANY, 0, 0, 0 },      { "model_type", V_TEXT, 0, 0, 0 },
    { "architecture", V_TEXT, 0, 0, 0 }, { "parameters", V_ANY, 0, 0, 0 },
};
#define N_INFO_KEYS (sizeof(info_keys) / sizeof(info_keys[0]))

/* ---- nodes ---- */

const char *lint_node_text(const yaml_node_t *n)
{
    return n && n->type == YAML_SCALAR_NODE &&
                   strlen((const char *)n->data.scalar.value) ==
                       n->data.scalar.length
               ? (const char *)n->data.scalar.value
               : NULL;
}

static bool is_plain(const yaml_node_t *n)
{
    return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_word(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(s, *words))
            return true;
    return false;
}

bool lint_node_int(const yaml_node_t *n, int64_t *out)
{
    const char *s = lint_node_text(n);

    return s && is_plain(n) && num_parse_i64(s, strlen(s), out);
}

static bool node_number(const yaml_node_t *n, double *out)
{
    const char *s = lint_node_text(n);

    return s && is_plain(n) && num_parse_double(s, strlen(s), out);
}

static bool node_bool(const yaml_node_t *n, bool *out)
{
    static const char *const yes[] = { "true", "True", "TRUE", NULL };
    static const char *const no[] = { "false", "False", "FALSE", NULL };
    const char *s = lint_node_text(n);

    if (!s || !is_plain(n))
        return false;
    *out = is_word(s, yes);
    return *out || is_word(s, no);
}

static bool is_none(const char *s)
{
    static const char *const none[] = { "none", "None", NULL };

    return is_word(s, none);
}

/* A scalar that YAML readers give as a string. */
static bool is_string(const yaml_node_t *n)
{
    static const char *const others[] = { "",      "~",     "null",  "Null",
                                          "NULL",  "true",  "True",  "TRUE",
                                          "false", "False", "FALSE", NULL };
    const char *s = lint_node_text(n);
    double ignored;

    return s && (!is_plain(n) || (!is_word(s, others) &&
                                  !num_parse_double(s, strlen(s), &ignored)));
}

/* Value of a key; the second of two equal ones is told by check_twice. */
yaml_node_t *lint_node_member(const struct lint *l, const yaml_node_t *map,
                              const char *key)
{
    yaml_document_t *d = (yaml_document_t *)(uintptr_t)&l->meta.doc;

    if (!map || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         p < map->data.mapping.pairs.top; p++) {
        const char *k = lint_node_text(yaml_document_get_node(d, p->key));

        if (k && !strcmp(k, key))
            return yaml_document_get_node(d, p->value);
    }
    return NULL;
}

yaml_node_t *lint_meta_node(const struct lint *l, const char *key)
{
    return lint_node_member(l, l->meta.params, key);
}

bool lint_meta_int(const struct lint *l, const char *key, int64_t *out)
{
    return lint_node_int(lint_meta_node(l, key), out);
}

/* ---- reading ---- */

/* Keys where they belong, else where older and foreign forms have them. */
static void find_maps(struct lint *l)
{
    struct lint_meta *m = &l->meta;
    yaml_node_t *root = yaml_document_get_root_node(&m->doc);

    m->info = lint_node_member(l, root, "model_info");
    m->params = lint_node_member(l, m->info, "parameters");
    m->placed = m->params && m->params->type == YAML_MAPPING_NODE;
    if (m->placed)
        return;
    m->params = NULL;
    if (lint_node_member(l, m->info, "context_length"))
        m->params = m->info;
    else if (lint_node_member(l, root, "context_length"))
        m->params = root;
    else if (lint_node_member(l, lint_node_member(l, root, "parameters"),
                              "context_length"))
        m->params = lint_node_member(l, root, "parameters");
    lint_add(l, LINT_ID_meta_layout, FILE_NAME, "%s",
             m->params == m->info && m->info
                 ? "the keys stand under model_info itself"
             : m->params ? "the keys do not stand under model_info"
                         : "there is no such mapping");
    if (!m->info || m->info->type != YAML_MAPPING_NODE)
        m->info = root;
}

static int64_t int_of(const struct lint *l, const char *key)
{
    int64_t v = 0;

    for (size_t i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].name, key) && lint_meta_int(l, key, &v) &&
            v >= keys[i].min && v <= keys[i].max)
            return v;
    return 0;
}

static bool flag_of(const struct lint *l, const char *key)
{
    bool v = false;

    return node_bool(lint_meta_node(l, key), &v) && v;
}

static int bits_of(const struct lint *l, const char *key)
{
    const char *s = lint_node_text(lint_meta_node(l, key));
    int64_t v;

    if (s && is_none(s))
        return 0;
    return lint_meta_int(l, key, &v) && v >= 1 && v <= 8 ? (int)v : -1;
}

static const char *file_of(const struct lint *l, const char *key)
{
    const char *s = lint_node_text(lint_meta_node(l, key));

    return s && io_is_component(s) ? s : NULL;
}

static void fill(struct lint *l)
{
    struct lint_meta *m = &l->meta;
    const char *type =
        lint_node_text(lint_node_member(l, m->info, "model_type"));

    m->whole = type && !strcmp(type, "monolithic");
    m->version = lint_node_text(lint_node_member(l, m->info, "version"));
    m->architecture =
        lint_node_text(lint_node_member(l, m->info, "architecture"));
    m->context = int_of(l, "context_length");
    m->batch = int_of(l, "batch_size");
    m->chunks = int_of(l, "num_chunks");
    m->head_parts = int_of(l, "split_lm_head");
    m->vocab = int_of(l, "vocab_size");
    m->hidden = int_of(l, "hidden_size");
    m->layers = int_of(l, "num_layers");
    m->window = int_of(l, "sliding_window");
    m->bits[0] = bits_of(l, "lut_embeddings");
    m->bits[1] = bits_of(l, m->whole ? "lut_bits" : "lut_ffn");
    m->bits[2] = bits_of(l, "lut_lmhead");
    m->prefix = lint_node_text(lint_meta_node(l, "model_prefix"));
    m->file[0] = file_of(l, "embeddings");
    m->file[1] = file_of(l, m->whole ? "monolithic_model" : "ffn");
    m->file[2] = file_of(l, "lm_head");
    m->argmax = flag_of(l, "argmax_in_model");
    m->last_token = flag_of(l, "prefill_last_token_output");
    m->recurrent = flag_of(l, "recurrent_state");
    m->full_batches = flag_of(l, "prefill_full_batches_only");
    m->update_mask = flag_of(l, "update_mask_prefill");
}

int lint_meta_read(struct lint *l)
{
    struct lint_meta *m = &l->meta;
    struct err e = ERR_INIT;
    char *path = io_join(l->dir, FILE_NAME, l->e);

    m->bits[0] = m->bits[1] = m->bits[2] = -1;
    if (!path)
        return -1;
    if (!io_exists(path)) {
        lint_add(l, LINT_ID_meta_missing, ".", "no " FILE_NAME);
    } else if (io_read_file(path, MAX_BYTES, &m->text, &e)) {
        lint_add_err(l, LINT_ID_meta_unreadable, FILE_NAME, &e);
    } else {
        m->read = true;
        m->loaded = !yaml_doc_parse(&m->text, &m->doc, &e);
        if (!m->loaded)
            lint_add_err(l, LINT_ID_meta_unreadable, FILE_NAME, &e);
    }
    mem_free(path);
    if (m->loaded) {
        find_maps(l);
        fill(l);
    }
    return l->e->code ? -1 : 0;
}

/* ---- keys and values ---- */

static void tell(struct lint *l, enum lint_id id, const char *key,
                 const char *fmt, ...) ATTR_PRINTF(4, 5);
static void tell(struct lint *l, enum lint_id id, const char *key,
                 const char *fmt, ...)
{
    char where[256], what[512];
    va_list ap;

    snprintf(where, sizeof(where), FILE_NAME ": %.200s", key);
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    lint_add(l, id, where, "%s", what);
}

static void bad_type(struct lint *l, const struct key *k, const yaml_node_t *n,
                     const char *wanted)
{
    const char *s = lint_node_text(n);
    bool quoted = s && !is_plain(n);

    tell(l, LINT_ID_meta_type, k->name, "%s%s%.60s%s is there, %s is needed",
         quoted ? "the text " : "", s ? "'" : "", s ? s : "a list or a mapping",
         s ? "'" : "", wanted);
}

static void check_range(struct lint *l, const struct key *k, int64_t v)
{
    if (v < k->min || v > k->max)
        tell(l, LINT_ID_meta_range, k->name,
             "%" PRId64 ", %" PRId64 " to %" PRId64 " are allowed", v, k->min,
             k->max);
}

static void check_ints(struct lint *l, const struct key *k,
                       const yaml_node_t *n)
{
    int64_t v;

    if (n->type != YAML_SEQUENCE_NODE) {
        bad_type(l, k, n, "a list of integers");
        return;
    }
    for (yaml_node_item_t *i = n->data.sequence.items.start;
         i < n->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(&l->meta.doc, *i);

        if (!lint_node_int(item, &v)) {
            bad_type(l, k, item, "an integer");
            return;
        }
        check_range(l, k, v);
    }
}

static void check_file(struct lint *l, const struct key *k,
                       const yaml_node_t *n)
{
    const char *s = lint_node_text(n);

    if (!is_string(n))
        bad_type(l, k, n, "a file name");
    else if (!io_is_component(s))
        tell(l, LINT_ID_meta_file_key, k->name, "'%.200s'", s);
}

static void check_value(struct lint *l, const struct key *k,
                        const yaml_node_t *n)
{
    const char *s = lint_node_text(n);
    int64_t v;
    double x;
    bool b;

    switch (k->value) {
    case V_INT:
        if (lint_node_int(n, &v))
            check_range(l, k, v);
        else
            bad_type(l, k, n, "an integer");
        break;
    case V_BITS:
        if (lint_node_int(n, &v))
            check_range(l, k, v);
        else if (!s || !is_none(s))
            bad_type(l, k, n, "an integer or the word none");
        break;
    case V_TEXT:
        if (!is_string(n))
            bad_type(l, k, n, "a text");
        break;
    case V_BOOL:
        if (!node_bool(n, &b))
            bad_type(l, k, n, "true or false");
        break;
    case V_NUMBER:
        if (!node_number(n, &x))
            bad_type(l, k, n, "a number");
        break;
    case V_FILE: check_file(l, k, n); break;
    case V_INTS: check_ints(l, k, n); break;
    case V_ANY: break;
    }
}

static const struct key *find_key(const struct key *list, size_t n,
                                  const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].name, name))
            return &list[i];
    return NULL;
}

static void check_map(struct lint *l, const yaml_node_t *map,
                      const struct key *list, size_t n_list)
{
    yaml_document_t *d = &l->meta.doc;

    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         p < map->data.mapping.pairs.top; p++) {
        const char *name = lint_node_text(yaml_document_get_node(d, p->key));
        const yaml_node_t *v = yaml_document_get_node(d, p->value);
        const struct key *k = name ? find_key(list, n_list, name) : NULL;

        if (!name || !v)
            continue;
        if (lint_node_member(l, map, name) != v)
            tell(l, LINT_ID_meta_key_twice, name, "line %zu and before",
                 yaml_document_get_node(d, p->key)->start_mark.line + 1);
        else if (k) {
            if (k->flags & LEGACY)
                tell(l, LINT_ID_meta_key_legacy, name, "the key is there");
            check_value(l, k, v);
        } else if (map != l->meta.info || map != l->meta.params ||
                   !find_key(info_keys, N_INFO_KEYS, name)) {
            tell(l, LINT_ID_meta_key_unknown, name, "the key is there");
        }
    }
}

static void check_required(struct lint *l)
{
    unsigned need = l->meta.whole ? REQUIRED_WHOLE : REQUIRED;

    for (size_t i = 0; i < N_KEYS; i++)
        if ((keys[i].flags & need) && !lint_meta_node(l, keys[i].name))
            tell(l, LINT_ID_meta_key_missing, keys[i].name, "no such key");
}

static void check_version(struct lint *l)
{
    const char *s = l->meta.version;
    int points = 0;
    bool ok = s != NULL;

    for (const char *p = s; ok && *p; p++) {
        points += *p == '.';
        ok = (*p >= '0' && *p <= '9') ||
             (*p == '.' && p > s && p[1] && p[1] != '.');
    }
    if (!s)
        tell(l, LINT_ID_meta_version, "version", "no such key");
    else if (!ok || points != 2 || !strcmp(s, "0.1.1"))
        tell(l, LINT_ID_meta_version, "version", "'%.60s'", s);
}

/* ---- the shell's view ---- */

/* Field `n` of a line cut at single spaces (cut -d' '), or at runs of white
 * space (awk) for n < 0. Empty if there are fewer. */
static void field_of(const char *line, size_t len, int n, char out[200])
{
    bool runs = n < 0;
    size_t at = 0;

    out[0] = '\0';
    for (n = runs ? -n : n; n > 0; n--) {
        size_t k = 0;

        while (runs && at < len && strchr(" \t", line[at]))
            at++;
        while (at + k < len && line[at + k] != ' ' &&
               !(runs && line[at + k] == '\t'))
            k++;
        if (n == 1)
            snprintf(out, 200, "%.*s", (int)(k < 190 ? k : 190), line + at);
        at += k + 1;
        if (at > len)
            return;
    }
}

static bool holds(const char *line, size_t len, const char *word)
{
    size_t n = strlen(word);

    for (size_t i = 0; i + n <= len; i++)
        if (!memcmp(line + i, word, n))
            return true;
    return false;
}

static void check_shell_key(struct lint *l, const char *key, int n,
                            const char *value)
{
    char word[64], got[200] = "", field[200];
    const char *text = buf_text(&l->meta.text);
    int hits = 0;

    snprintf(word, sizeof(word), "%s:", key);
    while (*text) {
        size_t len = strcspn(text, "\n");

        if (holds(text, len, word)) {
            field_of(text, len, n, field);
            hits += field[0] != '\0';
            if (field[0] && hits == 1)
                memcpy(got, field, sizeof(got));
        }
        text += len + (text[len] == '\n');
    }
    if (value ? hits != 1 || strcmp(got, value) != 0 : hits != 0)
        tell(l, LINT_ID_meta_shell, key, "it reads '%.100s'%s, YAML '%.100s'",
             got, hits > 1 ? " and more" : "", value ? value : "");
}

/* As prepare_hf.sh cuts lines. */
static void check_shell(struct lint *l)
{
    static const struct {
        const char *key;
        int field;
        bool info;
    } cuts[] = {
        { "name", 4, true },
        { "version", 4, true },
        { "context_length", 6, false },
        { "batch_size", 6, false },
        { "model_prefix", 6, false },
        { "num_chunks", 6, false },
        { "lut_ffn", 6, false },
        { "lut_lmhead", 6, false },
        { "lut_embeddings", 6, false },
        { "lut_bits", 6, false },
        { "model_type", -2, true },
        { "monolithic_model", -2, false },
        { "split_rotate", -2, false },
        { "architecture", -2, true },
    };

    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++)
        check_shell_key(l, cuts[i].key, cuts[i].field,
                        lint_node_text(lint_node_member(
                            l, cuts[i].info ? l->meta.info : l->meta.params,
                            cuts[i].key)));
}

/* ---- what values say together ---- */

static bool range_number(const yaml_node_t *n, double low, double high)
{
    double v;

    return node_number(n, &v) && v > low && v <= high;
}

static void check_sampling(struct lint *l)
{
    const yaml_node_t *s = lint_meta_node(l, "recommended_sampling");
    const yaml_node_t *p, *k;

    if (!s)
        return;
    p = lint_node_member(l, s, "top_p") ? lint_node_member(l, s, "top_p")
                                        : lint_node_member(l, s, "topP");
    k = lint_node_member(l, s, "top_k") ? lint_node_member(l, s, "top_k")
                                        : lint_node_member(l, s, "topK");
    if (!range_number(lint_node_member(l, s, "temperature"), 0, 100))
        tell(l, LINT_ID_meta_sampling, "recommended_sampling",
             "temperature is no number above 0");
    if (!range_number(p, 0, 1))
        tell(l, LINT_ID_meta_sampling, "recommended_sampling",
             "top_p is no number above 0 and up to 1");
    if (!range_number(k, -1, 1e9))
        tell(l, LINT_ID_meta_sampling, "recommended_sampling",
             "top_k is no number from 0");
}

static void check_prefix(struct lint *l)
{
    static const char *const marks[] = { ".", "FFN", "_chunk_", "_embeddings",
                                         "_lm_head" };
    const char *p = l->meta.prefix;

    for (size_t i = 0; p && i < sizeof(marks) / sizeof(marks[0]); i++)
        if (strstr(p, marks[i]))
            tell(l, LINT_ID_meta_prefix, "model_prefix", "'%.100s' holds '%s'",
                 p, marks[i]);
}

static void check_layer_types(struct lint *l)
{
    const yaml_node_t *t = lint_meta_node(l, "layer_types");
    int64_t n;

    if (!t)
        return;
    n = t->type == YAML_SEQUENCE_NODE
            ? t->data.sequence.items.top - t->data.sequence.items.start
            : 0;
    if (!n || (l->meta.layers && n != l->meta.layers))
        tell(l, LINT_ID_meta_layer_types, "layer_types",
             "%" PRId64 " entries, num_layers is %" PRId64, n, l->meta.layers);
}

static void check_together(struct lint *l)
{
    const struct lint_meta *m = &l->meta;
    bool v = false;

    if (!m->update_mask &&
        !(node_bool(lint_meta_node(l, "prefill_dynamic_slice"), &v) && v))
        tell(l, LINT_ID_meta_prefill_flags, "prefill_dynamic_slice",
             "no such key, or false");
    if (!lint_meta_node(l, "vocab_size"))
        tell(l, LINT_ID_meta_vocab_keys, "vocab_size", "no such key");
    else if (!lint_meta_node(l, "lm_head_chunk_sizes"))
        tell(l, LINT_ID_meta_vocab_keys, "lm_head_chunk_sizes", "no such key");
    if (node_bool(lint_meta_node(l, "split_rotate"), &v) && v)
        tell(l, LINT_ID_meta_split_rotate, "split_rotate", "true");
    if (m->batch > m->context && m->context)
        tell(l, LINT_ID_meta_batch, "batch_size",
             "%" PRId64 ", context_length is %" PRId64, m->batch, m->context);
}

void lint_meta_check(struct lint *l)
{
    struct lint_meta *m = &l->meta;

    if (!m->loaded || !m->params)
        return;
    if (m->info != m->params && m->info->type == YAML_MAPPING_NODE &&
        m->info != yaml_document_get_root_node(&m->doc))
        check_map(l, m->info, info_keys, N_INFO_KEYS);
    check_map(l, m->params, keys, N_KEYS);
    check_required(l);
    check_version(l);
    if (m->placed)
        check_shell(l);
    check_sampling(l);
    check_prefix(l);
    check_layer_types(l);
    check_together(l);
}
