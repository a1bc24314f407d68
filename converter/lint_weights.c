/*
 * Lint of the weights: where they lie, whether functions share them, and
 * whether tables and integers are those of meta.yaml. Their bytes are not
 * read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/lint_priv.h"

/* ---- places ---- */

#define SMALL_BLOB 4096

static int by_value(const void *a, const void *b)
{
    uint64_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return x < y ? -1 : x > y;
}

/* Places of the large constants of a function, sorted; how many. */
static size_t places_of(struct lint *l, const struct lint_model *m,
                        const struct mil_function *f, uint64_t **out)
{
    size_t n = 0;

    *out = mem_alloc(f->n_values, sizeof(**out), l->e);
    for (size_t i = 1; *out && i < f->n_values; i++) {
        const struct mil_const *c = f->values[i].konst;
        const char *file;
        uint64_t at;

        if (c && c->data && c->data->bytes >= SMALL_BLOB &&
            pkg_blob(m->pkg, c->data, &file, &at))
            (*out)[n++] = at;
    }
    if (n)
        qsort(*out, n, sizeof(**out), by_value);
    return n;
}

static void check_shared(struct lint *l, const struct lint_model *m)
{
    const struct mil_program *p = pkg_program(m->pkg);
    const struct mil_function *infer = mil_program_find(p, "infer");
    const struct mil_function *prefill = mil_program_find(p, "prefill");
    uint64_t *a = NULL, *b = NULL;
    size_t n, k, apart = 0;

    if (!infer || !prefill)
        return;
    n = places_of(l, m, infer, &a);
    k = places_of(l, m, prefill, &b);
    for (size_t i = 0; a && b && i < n; i++)
        apart += !bsearch(&a[i], b, k, sizeof(*b), by_value);
    if (n && 2 * apart > n)
        lint_add(l, LINT_ID_program_weights_apart, m->name,
                 "%zu of %zu weights of infer are not prefill's", apart, n);
    mem_free(a);
    mem_free(b);
}

/* Core ML looks for weights in this folder, and compilers copy no other. */
#define FOLDER "@model_path/weights/"

static void check_folder(struct lint *l, const struct lint_model *m)
{
    const struct mil_program *p = pkg_program(m->pkg);
    const char *told = NULL, *file;
    uint64_t at;

    for (size_t i = 0; i < p->n_functions; i++)
        for (size_t k = 1; k < p->functions[i]->n_values; k++) {
            const struct mil_const *c = p->functions[i]->values[k].konst;

            if (!c || !c->data || !pkg_blob(m->pkg, c->data, &file, &at) ||
                !strncmp(file, FOLDER, strlen(FOLDER)) ||
                (told && !strcmp(file, told)))
                continue;
            told = file;
            lint_add(l, LINT_ID_weights_folder, m->name, "'%.200s'", file);
        }
}

/* ---- widths and groups ---- */

static const char *const parts[] = { "embeddings", "ffn", "lmhead" };

/* What one part holds. */
struct held {
    int narrow, wide;       /* bits of its tables; 0: none */
    int linear;             /* bits of its narrowest integers; 0: none */
    int64_t elems, fitting; /* palettized; with tables of the said size */
};

/* Whether tables serve as many rows as the key says (0: one a weight). */
static bool group_fits(const struct mil_type *indices,
                       const struct mil_type *lut, int64_t group)
{
    int64_t tables = 1, rows = indices->rank ? indices->dims[0] : 1;

    for (int i = 0; i < indices->rank && i < lut->rank; i++)
        tables *= lut->dims[i];
    if (tables == 1)
        return !group || rows <= group;
    return group && lut->dims[0] == tables && rows == tables * group;
}

static void hold_table(const struct mil_function *f, const struct mil_op *op,
                       int64_t group, struct held *h)
{
    const struct mil_const *indices = mil_arg_const(f, op, 0);
    const struct mil_const *lut = mil_arg_const(f, op, 1);
    int bits = indices ? (int)mil_dtype_bits(indices->type.dtype) : 0;
    int64_t n = indices ? mil_type_elems(&indices->type) : 0;

    if (!bits || n < 1)
        return;
    if (!h->narrow || bits < h->narrow)
        h->narrow = bits;
    h->wide = bits > h->wide ? bits : h->wide;
    h->elems += n;
    if (lut && group_fits(&indices->type, &lut->type, group))
        h->fitting += n;
}

static void hold_integers(const struct mil_function *f, const struct mil_op *op,
                          struct held *h)
{
    const struct mil_const *data = mil_arg_const(f, op, 0);
    int bits = data ? (int)mil_dtype_bits(data->type.dtype) : 0;

    if (bits && (!h->linear || bits < h->linear))
        h->linear = bits;
}

static void look(const struct mil_program *p, int64_t group, struct held *h)
{
    memset(h, 0, sizeof(*h));
    for (size_t i = 0; i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        for (size_t k = 0; k < f->n_ops; k++) {
            if (f->ops[k].code == MIL_OP_constexpr_blockwise_shift_scale)
                hold_integers(f, &f->ops[k], h);
            else if (f->ops[k].code == MIL_OP_constexpr_lut_to_dense)
                hold_table(f, &f->ops[k], group, h);
        }
    }
}

static yaml_node_t *key_of(const struct lint *l, const char *fmt, int part)
{
    char key[64];

    snprintf(key, sizeof(key), fmt, parts[part]);
    return lint_meta_node(l, key);
}

static void check_bits(struct lint *l, const struct lint_model *m, int part,
                       const struct held *h)
{
    int said = l->meta.bits[part];
    bool mixed = key_of(l, "lut_%s_mixed", part) != NULL;

    if (said < 0)
        return;
    /* The narrowest of all chunks is named; one alone may have none of it, or
     * no tables at all. */
    if (said > 0 && (h->narrow > said || !h->narrow) && mixed)
        return;
    if (said != h->narrow)
        lint_add(l, LINT_ID_lut_bits, m->name,
                 "the narrowest table has %d bits, meta.yaml says %d (0: none)",
                 h->narrow, said);
    else if (h->wide != h->narrow && !mixed && !l->meta.whole)
        lint_add(l, LINT_ID_lut_bits, m->name,
                 "tables of %d to %d bits, and meta.yaml has no lut_%s_mixed",
                 h->narrow, h->wide, parts[part]);
}

/* "int8" or "int4,32": its bits; 0 for another text. */
static int linear_bits(const char *s)
{
    int64_t bits;

    return s && !strncmp(s, "int", 3) &&
                   num_parse_i64(s + 3, strcspn(s + 3, ","), &bits) &&
                   bits > 0 && bits <= 16
               ? (int)bits
               : 0;
}

/* `linear`: the narrowest of all files of the part. A part of several kinds is
 * named by its tables. */
static void check_linear(struct lint *l, int part, int linear)
{
    const yaml_node_t *key = key_of(l, "quant_%s", part);
    const char *s = lint_node_text(key);
    char where[64];

    if (!l->meta.params || (!key && key_of(l, "lut_%s_mixed", part)) ||
        (key ? linear_bits(s) : 0) == linear)
        return;
    snprintf(where, sizeof(where), "meta.yaml: quant_%s", parts[part]);
    lint_add(l, LINT_ID_quant_bits, where,
             "%.60s; the narrowest integers of the part have %d bits (0: none)",
             s ? s : "no such key", linear);
}

static void check_group(struct lint *l, const struct lint_model *m, int part,
                        int64_t group, const struct held *h)
{
    if (2 * h->fitting < h->elems && !key_of(l, "lut_%s_mixed", part))
        lint_add(l, LINT_ID_lut_group, m->name,
                 "%" PRId64 " of %" PRId64 " palettized elements have tables "
                 "of other groups than %" PRId64,
                 h->elems - h->fitting, h->elems, group);
}

static void check_weights(struct lint *l, const struct lint_model *m, int part,
                          int *linear)
{
    const yaml_node_t *key = l->meta.whole
                                 ? lint_meta_node(l, "lut_per_channel")
                                 : key_of(l, "lut_%s_per_channel", part);
    int64_t group = 0;
    bool known = lint_node_int(key, &group);
    struct held h;

    look(pkg_program(m->pkg), group, &h);
    check_bits(l, m, part, &h);
    if (known)
        check_group(l, m, part, group, &h);
    if (h.linear && (!*linear || h.linear < *linear))
        *linear = h.linear;
}

void lint_weights_check(struct lint *l)
{
    int linear[3] = { 0 }, at = 0;
    bool open[3] = { false };

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        int part = m == l->embeddings ? 0 : m == l->head ? 2 : 1;

        check_folder(l, m);
        check_shared(l, m);
        check_weights(l, m, part, &linear[part]);
        open[part] = true;
    }
    for (int part = 0; part < 3; part++)
        if (open[part])
            check_linear(l, part, linear[part]);
}
