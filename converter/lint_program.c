/*
 * Lint of the programs: what the format demands, what the models' metadata
 * say, and whether the compiled form is the same program.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/device_plan.h"
#include "converter/lint_priv.h"

#define FUNCTIONS_VERSION 9 /* first with functions and states */

/* ---- the format ---- */

static bool has_foreign(const struct mil_program *p)
{
    for (size_t i = 0; i < p->n_functions; i++)
        for (size_t k = 0; k < p->functions[i]->n_ops; k++)
            if (p->functions[i]->ops[k].code == MIL_OP_INVALID)
                return true;
    return false;
}

static bool has_state(const struct mil_program *p)
{
    for (size_t i = 0; i < p->n_functions; i++)
        for (size_t k = 1; k < p->functions[i]->n_values; k++)
            if (p->functions[i]->values[k].kind == MIL_V_STATE)
                return true;
    return false;
}

/* The rules that all programs share come last: what a special one has told
 * of a file is not told again in general words. */
static void check_format(struct lint *l, const struct lint_model *m)
{
    const struct mil_program *p = pkg_program(m->pkg);
    struct err e = ERR_INIT;

    if (p->spec_version < FUNCTIONS_VERSION &&
        (p->n_functions > 1 || has_state(p)))
        lint_add(l, LINT_ID_program_version, m->name, "version %d",
                 p->spec_version);
    if (pkg_check_description(m->pkg, &e))
        lint_add_err(l, LINT_ID_program_description, m->name, &e);
    err_reset(&e);
    if (lint_has_error(l, m->name) || has_foreign(p) || !mil_validate(p, &e))
        return;
    lint_add_err(l,
                 e.code == ERR_UNSUPPORTED ? LINT_ID_program_op_unknown
                                           : LINT_ID_program_invalid,
                 m->name, &e);
}

/* ---- weights of the functions ---- */

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

static void widths(const struct mil_program *p, int *narrow, bool *linear)
{
    *narrow = 0;
    *linear = false;
    for (size_t i = 0; i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        for (size_t k = 0; k < f->n_ops; k++) {
            const struct mil_const *c;
            int bits;

            if (f->ops[k].code == MIL_OP_constexpr_blockwise_shift_scale)
                *linear = true;
            if (f->ops[k].code != MIL_OP_constexpr_lut_to_dense)
                continue;
            c = mil_arg_const(f, &f->ops[k], 0);
            bits = c ? (int)mil_dtype_bits(c->type.dtype) : 0;
            if (bits && (!*narrow || bits < *narrow))
                *narrow = bits;
        }
    }
}

static int part_of(const struct lint *l, const struct lint_model *m)
{
    return m == l->embeddings ? 0 : m == l->head ? 2 : 1;
}

static void check_bits(struct lint *l, const struct lint_model *m)
{
    static const char *const mixed[] = { "lut_embeddings_mixed",
                                         "lut_ffn_mixed", "lut_lmhead_mixed" };
    int part = part_of(l, m), said = l->meta.bits[part], is;
    bool linear;

    widths(pkg_program(m->pkg), &is, &linear);
    /* The narrowest of all chunks is named; one alone may have none of it, or
     * no tables at all. */
    if (said > 0 && (is > said || !is) && lint_meta_node(l, mixed[part]))
        return;
    if (said < 0 || said == is || (linear && l->meta.linear_weights))
        return;
    lint_add(l, LINT_ID_lut_bits, m->name,
             "the narrowest table has %d bits, meta.yaml says %d (0: none)", is,
             said);
}

/* ---- the device ---- */

/* Where `--plan` has more to say. Embeddings are looked up on the CPU. */
static void check_device(struct lint *l, const struct lint_model *m)
{
    const struct mil_program *p = pkg_program(m->pkg);

    for (size_t i = 0; m != l->embeddings && i < p->n_functions; i++) {
        struct dev_plan plan;
        char where[256];

        if (dev_plan(p->functions[i], &plan, l->e))
            return;
        snprintf(where, sizeof(where), "%.180s, %.60s", m->name,
                 p->functions[i]->name);
        if (plan.by_effect[DEV_REFUSED])
            lint_add(l, LINT_ID_ane_refused, where, "%zu of %zu operations",
                     plan.by_effect[DEV_REFUSED], plan.ops);
        if (plan.by_effect[DEV_WRONG])
            lint_add(l, LINT_ID_ane_wrong, where, "%zu of %zu operations",
                     plan.by_effect[DEV_WRONG], plan.ops);
        dev_plan_release(&plan);
    }
}

/* ---- metadata of the models ---- */

static bool number(const char *s, int64_t *out)
{
    return num_parse_i64(s, strlen(s), out);
}

/* A value that Python turns into an integer; false if there is none. */
static bool meta_number(struct lint *l, const struct lint_model *m,
                        const char *name, int64_t *out)
{
    char key[64];
    const char *s;

    snprintf(key, sizeof(key), "com.anemll.%s", name);
    s = mil_program_metadata(pkg_program(m->pkg), key);
    if (!s)
        return false;
    if (number(s, out))
        return true;
    lint_add(l, LINT_ID_metadata_number, m->name, "%s is '%.60s'", key, s);
    return false;
}

static void check_number(struct lint *l, const struct lint_model *m,
                         const char *name, int64_t said)
{
    int64_t v;

    if (meta_number(l, m, name, &v) && said && v != said)
        lint_add(l, LINT_ID_metadata_differs, m->name,
                 "com.anemll.%s is %" PRId64 ", meta.yaml says %" PRId64, name,
                 v, said);
}

static void check_list(struct lint *l, const struct lint_model *m)
{
    const char *s = mil_program_metadata(pkg_program(m->pkg),
                                         "com.anemll.lm_head_chunk_sizes");

    for (const char *p = s; p && *p;) {
        size_t n = strcspn(p, ",");
        int64_t v;

        if (!num_parse_i64(p, n, &v)) {
            lint_add(l, LINT_ID_metadata_number, m->name,
                     "com.anemll.lm_head_chunk_sizes is '%.60s'", s);
            return;
        }
        p += n + (p[n] == ',');
    }
}

static void check_metadata(struct lint *l, const struct lint_model *m)
{
    int64_t v;

    check_number(l, m, "context_length", l->meta.context);
    check_number(l, m, "batch_size", l->meta.batch);
    check_number(l, m, "vocab_size", l->meta.vocab);
    check_number(l, m, "state_length", 0);
    check_number(l, m, "lut_bits", 0);
    check_list(l, m);
    if (m->kind != LK_CHUNK)
        return;
    check_number(l, m, "num_chunks", l->meta.chunks);
    if (meta_number(l, m, "chunk_no", &v) && v != m->chunk)
        lint_add(l, LINT_ID_metadata_chunk, m->name,
                 "com.anemll.chunk_no is %" PRId64, v);
}

/* "FIRST-LAST", as our writer has it; others are left alone. */
static bool layer_range(const struct lint_model *m, int64_t *first,
                        int64_t *last)
{
    const char *s =
        mil_program_metadata(pkg_program(m->pkg), "com.anemll.layers");
    size_t n = s ? strcspn(s, "-") : 0;

    return s && s[n] == '-' && num_parse_i64(s, n, first) &&
           number(s + n + 1, last);
}

static void check_layers(struct lint *l)
{
    int64_t next = 0, first, last;

    for (int i = 0; i < l->n_chunks; i++) {
        const struct lint_model *m = l->chunk[i];

        if (!m || !m->pkg || !layer_range(m, &first, &last))
            return;
        if (first != next) {
            lint_add(l, LINT_ID_metadata_layers, m->name,
                     "layers %" PRId64 " to %" PRId64 ", %" PRId64
                     " is the next",
                     first, last, next);
            return;
        }
        next = last + 1;
    }
    if (l->n_chunks && l->meta.layers && next != l->meta.layers)
        lint_add(l, LINT_ID_metadata_layers, "meta.yaml: num_layers",
                 "%" PRId64 ", the chunks hold %" PRId64, l->meta.layers, next);
}

/* ---- compiled models ---- */

static bool there(struct lint *l, const char *dir, const char *name)
{
    char *path = mem_printf(l->e, "%s/%s/%s", l->dir, dir, name);
    bool yes = path && io_exists(path);

    mem_free(path);
    return yes;
}

static bool check_metadata_json(struct lint *l, const char *compiled)
{
    size_t before = l->report->n;
    char *path = mem_printf(l->e, "%s/%s/metadata.json", l->dir, compiled);
    struct err e = ERR_INIT;
    struct js_doc *d = path ? js_read_file(path, 100000000, &e) : NULL;

    if (path && !d)
        lint_add_err(l, LINT_ID_compiled_metadata, compiled, &e);
    else if (d && (js_kind(js_root(d)) != JS_ARRAY || !js_count(js_root(d))))
        lint_add(l, LINT_ID_compiled_metadata, compiled,
                 "metadata.json is no list of models");
    js_free(d);
    mem_free(path);
    return l->report->n == before;
}

static bool same_values(const struct mil_function *a, const mil_ref *ra,
                        size_t na, const struct mil_function *b,
                        const mil_ref *rb, size_t nb, const char **name)
{
    *name = "(their number)";
    if (na != nb)
        return false;
    for (size_t i = 0; i < na; i++) {
        const struct mil_value *v = mil_value(a, ra[i]);
        const struct mil_value *w = mil_value_among(b, rb, nb, v->name);

        *name = v->name;
        if (!w || w->kind != v->kind || !mil_type_equal(&v->type, &w->type))
            return false;
    }
    return true;
}

static size_t count_ops(const struct mil_function *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_ops; i++)
        n += f->ops[i].code != MIL_OP_const;
    return n;
}

static void compare_functions(struct lint *l, const char *where,
                              const struct mil_function *a,
                              const struct mil_function *b)
{
    const char *name;

    if (!same_values(a, a->inputs, a->n_inputs, b, b->inputs, b->n_inputs,
                     &name))
        lint_add(l, LINT_ID_compiled_differs, where,
                 "function '%s', input '%s'", a->name, name);
    else if (!same_values(a, a->outputs, a->n_outputs, b, b->outputs,
                          b->n_outputs, &name))
        lint_add(l, LINT_ID_compiled_differs, where,
                 "function '%s', output '%s'", a->name, name);
    else if (count_ops(a) != count_ops(b))
        lint_add(l, LINT_ID_compiled_differs, where,
                 "function '%s' has %zu operations, compiled %zu", a->name,
                 count_ops(a), count_ops(b));
}

static void compare_forms(struct lint *l, const char *where,
                          const struct mil_program *a,
                          const struct mil_program *b)
{
    if (a->n_functions != b->n_functions)
        lint_add(l, LINT_ID_compiled_differs, where,
                 "%zu functions, compiled %zu", a->n_functions, b->n_functions);
    for (size_t i = 0; i < a->n_functions; i++) {
        const struct mil_function *f = a->functions[i];
        const struct mil_function *g = mil_program_find(b, f->name);

        if (!g)
            lint_add(l, LINT_ID_compiled_differs, where,
                     "no function '%s' in the compiled form", f->name);
        else
            compare_functions(l, where, f, g);
    }
}

static void open_compiled(struct lint *l, const struct lint_model *m,
                          const char *compiled)
{
    char *path = io_join(l->dir, compiled, l->e);
    struct err e = ERR_INIT;
    struct pkg *p = path ? pkg_open(path, &e) : NULL;

    if (p && m->pkg)
        compare_forms(l, compiled, pkg_program(m->pkg), pkg_program(p));
    else if (!p && path && e.code != ERR_UNSUPPORTED)
        lint_add_err(l, LINT_ID_program_unreadable, compiled, &e);
    pkg_close(p);
    mem_free(path);
}

static void check_compiled(struct lint *l, const struct lint_model *m)
{
    static const char *const needed[] = { "coremldata.bin", "model.mil" };
    char *name = mem_printf(l->e, "%s.mlmodelc", m->stem);
    bool whole = name != NULL;

    for (size_t i = 0; name && i < 2; i++)
        if (!there(l, name, needed[i])) {
            lint_add(l, LINT_ID_compiled_incomplete, name, "no %s", needed[i]);
            whole = false;
        }
    if (whole && check_metadata_json(l, name) && m->source)
        open_compiled(l, m, name);
    mem_free(name);
}

void lint_program_check(struct lint *l)
{
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        check_metadata(l, m);
        check_bits(l, m);
        check_shared(l, m);
        check_device(l, m);
    }
    check_layers(l);
    at = 0;
    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;)
        check_format(l, m);
    for (size_t i = 0; i < l->n_models; i++)
        if (l->models[i].member && l->models[i].compiled)
            check_compiled(l, &l->models[i]);
}
