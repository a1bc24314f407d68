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

/* Both forms are read in one way; the weights too, where they are two files. */
static void compare_forms(struct lint *l, const struct lint_model *m,
                          const char *compiled)
{
    char *path = io_join(l->dir, compiled, l->e);
    struct err e = ERR_INIT;
    struct pkg *p = NULL;

    if (path)
        p = m->raw ? pkg_open_raw(path, &e) : pkg_open(path, &e);
    if (path && !p)
        lint_add_err(l, LINT_ID_program_unreadable, compiled, &e);
    else if (p && m->pkg && pkg_same(m->pkg, p, &e))
        lint_add_err(l,
                     e.code == ERR_MISMATCH ? LINT_ID_compiled_differs
                                            : LINT_ID_program_unreadable,
                     compiled, &e);
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
        compare_forms(l, m, name);
    mem_free(name);
}

void lint_program_check(struct lint *l)
{
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        check_metadata(l, m);
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
