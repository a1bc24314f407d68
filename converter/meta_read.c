/*
 * meta.yaml of any ANEMLL package, ours or not: required keys, defaults for
 * the rest, and the files that belong to it. Hostile input.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "converter/meta.h"
#include "converter/meta_priv.h"
#include "converter/yaml_doc_priv.h"

#define META_MAX_BYTES 1000000

static int need_map(yaml_document_t *d, yaml_node_t *map, const char *key,
                    yaml_node_t **out, struct err *e)
{
    *out = yaml_doc_get(d, map, key, e);
    if (!*out || (*out)->type != YAML_MAPPING_NODE)
        return err_set(e, ERR_INPUT, "'%s' is %s", key,
                       *out ? "no mapping" : "missing");
    return 0;
}

/* A scalar into a fixed buffer; absent leaves it as it is. */
static int get_text(yaml_document_t *d, yaml_node_t *map, const char *key,
                    char *out, size_t cap, struct err *e)
{
    yaml_node_t *n = yaml_doc_get(d, map, key, e);

    if (!n)
        return e->code ? -1 : 0;
    if (n->type != YAML_SCALAR_NODE || n->data.scalar.length >= cap ||
        strlen((char *)n->data.scalar.value) != n->data.scalar.length)
        return err_set(e, ERR_INPUT, "'%s' is no text of fewer than %zu bytes",
                       key, cap);
    memcpy(out, n->data.scalar.value, n->data.scalar.length + 1);
    return 0;
}

static int get_int(yaml_document_t *d, yaml_node_t *map, const char *key,
                   int64_t min, int64_t max, bool required, int64_t *out,
                   struct err *e)
{
    char t[32] = "";

    if (get_text(d, map, key, t, sizeof(t), e))
        return -1;
    if (!t[0])
        return required ? err_set(e, ERR_INPUT, "'%s' is missing", key) : 0;
    if (!num_parse_i64(t, strlen(t), out) || *out < min || *out > max)
        return err_set(e, ERR_INPUT,
                       "'%s' is '%s', a number from %" PRId64 " to %" PRId64
                       " is allowed",
                       key, t, min, max);
    return 0;
}

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(s, *words))
            return true;
    return false;
}

/* Bits, or one of the words for none. */
static int get_bits(yaml_document_t *d, yaml_node_t *map, const char *key,
                    int *out, struct err *e)
{
    static const char *const none[] = { "", "none", "None", "null", "~", NULL };
    char t[32] = "";
    int64_t v = 0;

    if (get_text(d, map, key, t, sizeof(t), e))
        return -1;
    if (!is_one_of(t, none) &&
        (!num_parse_i64(t, strlen(t), &v) || v < 1 || v > 8))
        return err_set(e, ERR_INPUT, "'%s' is '%s', 1 to 8 or none are allowed",
                       key, t);
    *out = (int)v;
    return 0;
}

static int get_flag(yaml_document_t *d, yaml_node_t *map, const char *key,
                    bool *out, struct err *e)
{
    static const char *const yes[] = { "true", "True", "TRUE", NULL };
    static const char *const no[] = { "", "false", "False", "FALSE", NULL };
    char t[32] = "";

    if (get_text(d, map, key, t, sizeof(t), e))
        return -1;
    *out = is_one_of(t, yes);
    if (!*out && !is_one_of(t, no))
        return err_set(e, ERR_INPUT, "'%s' is '%s', true and false are allowed",
                       key, t);
    return 0;
}

static int get_file(yaml_document_t *d, yaml_node_t *map, const char *key,
                    char out[192], struct err *e)
{
    if (get_text(d, map, key, out, 192, e))
        return -1;
    if (out[0] && !io_is_component(out))
        return err_set(e, ERR_INPUT, "'%s' is '%s', which is no file name", key,
                       out);
    return 0;
}

static int fill(yaml_document_t *d, yaml_node_t *root, struct meta *m,
                struct err *e)
{
    yaml_node_t *info, *p;
    char type[32] = "";

    if (need_map(d, root, "model_info", &info, e) ||
        need_map(d, info, "parameters", &p, e) ||
        get_text(d, info, "model_type", type, sizeof(type), e))
        return -1;
    if (!strcmp(type, "monolithic"))
        return err_set(e, ERR_UNSUPPORTED,
                       "it is a monolithic package; packages of embeddings, "
                       "chunks and LM head are supported");
    if (get_text(d, info, "name", m->name, sizeof(m->name), e) ||
        get_text(d, info, "version", m->version, sizeof(m->version), e) ||
        get_text(d, info, "architecture", m->architecture,
                 sizeof(m->architecture), e) ||
        get_text(d, p, "model_prefix", m->prefix, sizeof(m->prefix), e))
        return -1;
    if (get_int(d, p, "context_length", 1, 1 << 24, true, &m->context_length,
                e) ||
        get_int(d, p, "batch_size", 1, 1 << 16, true, &m->batch_size, e) ||
        get_int(d, p, "num_chunks", 1, 99, false, &m->num_chunks, e) ||
        get_int(d, p, "split_lm_head", 1, 4096, false, &m->split_lm_head, e) ||
        get_int(d, p, "vocab_size", 1, 1 << 24, false, &m->vocab_size, e) ||
        get_int(d, p, "hidden_size", 1, 1 << 24, false, &m->hidden_size, e) ||
        get_int(d, p, "num_layers", 1, 10000, false, &m->num_layers, e) ||
        get_int(d, p, "sliding_window", 1, 1 << 24, false, &m->sliding_window,
                e) ||
        get_int(d, p, "local_cache_length", 1, 1 << 24, false,
                &m->local_cache_length, e))
        return -1;
    if (!m->sliding_window)
        m->sliding_window = 512;
    if (get_bits(d, p, "lut_embeddings", &m->lut_embeddings, e) ||
        get_bits(d, p, "lut_ffn", &m->lut_ffn, e) ||
        get_bits(d, p, "lut_lmhead", &m->lut_lmhead, e) ||
        get_flag(d, p, "prefill_last_token_output",
                 &m->prefill_last_token_output, e) ||
        get_flag(d, p, "recurrent_state", &m->recurrent_state, e))
        return -1;
    return get_file(d, p, "embeddings", m->embeddings, e) ||
                   get_file(d, p, "ffn", m->ffn, e) ||
                   get_file(d, p, "lm_head", m->lm_head, e)
               ? -1
               : 0;
}

static int parse(const struct buf *text, struct meta *m, struct err *e)
{
    yaml_document_t doc;
    int rc;

    if (yaml_doc_parse(text, &doc, e))
        return -1;
    rc = fill(&doc, yaml_document_get_root_node(&doc), m, e);
    yaml_document_delete(&doc);
    m->ours = strstr(buf_text(text), "\n" META_SIGNATURE " ") != NULL;
    return rc;
}

int meta_read(const char *dir, struct meta *m, struct err *e)
{
    struct buf text = BUF_INIT;
    char *path = io_join(dir, "meta.yaml", e);
    int rc = -1;

    memset(m, 0, sizeof(*m));
    if (path && !io_read_file(path, META_MAX_BYTES, &text, e)) {
        rc = parse(&text, m, e);
        if (rc)
            err_in(e, "cannot read '%s'", path);
    }
    buf_release(&text);
    mem_free(path);
    return rc;
}

/* ---- files ---- */

/* The value of two digits; 0 if they are none. */
static int two_digits(const char *p)
{
    bool digits = p[0] >= '0' && p[0] <= '9' && p[1] >= '0' && p[1] <= '9';

    return digits ? 10 * (p[0] - '0') + p[1] - '0' : 0;
}

/* The number in "..._chunk_XXofYY", XX or YY; 0 if the name has none. */
static int chunk_number(const char *name, bool total)
{
    const char *p = strstr(name, "_chunk_");
    int a, b;

    if (!p || strlen(p) < 13 || strncmp(p + 9, "of", 2) != 0)
        return 0;
    a = two_digits(p + 7);
    b = two_digits(p + 11);
    return a && b ? (total ? b : a) : 0;
}

static const char *const ends[] = {
    [META_COMPILED] = ".mlmodelc", [META_PACKAGE] = ".mlpackage"
};
#define N_ENDS (sizeof(ends) / sizeof(ends[0]))
#define STEM_MAX 260

/* A name without the extension of either form; false if it has none. */
static bool stem_of(const char *name, char out[STEM_MAX])
{
    size_t n;

    snprintf(out, STEM_MAX, "%s", name);
    n = strlen(out);
    for (size_t i = 0; i < N_ENDS; i++) {
        size_t k = strlen(ends[i]);

        if (n > k && !strcmp(out + n - k, ends[i])) {
            out[n - k] = '\0';
            return true;
        }
    }
    return false;
}

static bool is_part(const char *name, enum cv_kind kind, int chunk)
{
    switch (kind) {
    case CV_EMBEDDINGS: return strstr(name, "_embeddings") != NULL;
    case CV_HEAD: return strstr(name, "_lm_head") != NULL;
    case CV_CHUNK:
        return strstr(name, "_FFN_PF") && chunk_number(name, false) == chunk;
    }
    return false;
}

/* The one part of that kind, whatever its forms: into `stem`. */
static int scan(const char *dir, enum cv_kind kind, int chunk,
                char stem[STEM_MAX], struct err *e)
{
    static const char *const what[] = { "_embeddings", "_FFN_PF*_chunk_",
                                        "_lm_head" };
    char **names, found[STEM_MAX] = "";
    size_t n, hits = 0;

    if (io_list(dir, &names, &n, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (stem_of(names[i], stem) && is_part(stem, kind, chunk) &&
            strcmp(stem, found) != 0) {
            hits++;
            snprintf(found, sizeof(found), "%s", stem);
        }
    io_list_free(names, n);
    snprintf(stem, STEM_MAX, "%s", found);
    if (hits == 1)
        return 0;
    return err_set(e, ERR_INPUT,
                   "'%s' holds %zu files *%s*.mlmodelc or .mlpackage%s, one is "
                   "needed",
                   dir, hits, what[kind],
                   kind == CV_CHUNK ? " of that chunk" : "");
}

/* The key names the first chunk; a name without a number is that of all. */
static int chunk_stem(const struct meta *m, int chunk, char stem[STEM_MAX],
                      struct err *e)
{
    char *p = strstr(stem, "_chunk_");
    int total = m->num_chunks ? (int)m->num_chunks : 1;

    if (!p) {
        p = stem + strlen(stem);
    } else if (chunk_number(stem, true) != total || strlen(p) != 13) {
        return err_set(e, ERR_INPUT,
                       "'ffn' is '%s', which names no chunk of %d "
                       "(_chunk_01of%02d)",
                       m->ffn, total, total);
    }
    snprintf(p, STEM_MAX - (size_t)(p - stem), "_chunk_%02dof%02d", chunk,
             total);
    return 0;
}

char *meta_part_path(const char *dir, const struct meta *m, enum cv_kind kind,
                     int chunk, enum meta_form form, struct err *e)
{
    const char *key = kind == CV_EMBEDDINGS ? m->embeddings
                      : kind == CV_HEAD     ? m->lm_head
                                            : m->ffn;
    char stem[STEM_MAX];

    if (!key[0]) {
        if (scan(dir, kind, chunk, stem, e))
            return NULL;
    } else {
        (void)stem_of(key, stem);
        if (kind == CV_CHUNK && chunk_stem(m, chunk, stem, e))
            return NULL;
    }
    return mem_printf(e, "%s/%s%s", dir, stem, ends[form]);
}
