/*
 * Lint of the contract: the functions, inputs and outputs of each part, by
 * name, shape and type, as ANEMLL's runtimes call them.
 *
 *   embeddings  input_ids [1, 1] or [1, B] int32 -> hidden_states [1, T, H]
 *   chunk       infer (T = 1), prefill (T = B): hidden_states [1, T, H],
 *               position_ids [T], causal_mask [1, 1, T, C], current_pos [1]
 *               -> output_hidden_states [1, T, H], of the last chunk's
 *               prefill [1, 1, H]
 *   LM head     hidden_states [1, 1, H] -> logits1 ... logitsN [1, 1, V / N],
 *               or argmax_idx, argmax_val [N]
 *   whole       a chunk's functions with input_ids [1, T] in and logits out
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/lint_priv.h"

#define MAX_PARTS 4096 /* of an LM head */

/* A border value: dims of 0 are not compared. */
struct want {
    const char *name;
    enum mil_dtype dtype;
    int rank;
    int64_t dims[4];
};

static void want_text(const struct want *w, char out[MIL_TYPE_TEXT_MAX])
{
    size_t n = (size_t)snprintf(out, MIL_TYPE_TEXT_MAX, "%s [",
                                mil_dtype_name(w->dtype));

    for (int i = 0; i < w->rank; i++)
        n += (size_t)snprintf(out + n, MIL_TYPE_TEXT_MAX - n,
                              w->dims[i] ? "%s%" PRId64 : "%s?", i ? ", " : "",
                              w->dims[i]);
    snprintf(out + n, MIL_TYPE_TEXT_MAX - n, "]");
}

static bool fits(const struct mil_type *t, const struct want *w)
{
    if (t->dtype != w->dtype || t->rank != w->rank)
        return false;
    for (int i = 0; i < w->rank; i++)
        if (w->dims[i] && t->dims[i] != w->dims[i] &&
            t->dims[i] != MIL_DIM_UNKNOWN)
            return false;
    return true;
}

static void where_of(const struct lint_model *m, const struct mil_function *f,
                     char out[256])
{
    if (pkg_program(m->pkg)->n_functions > 1)
        snprintf(out, 256, "%.180s, %.60s", m->name, f->name);
    else
        snprintf(out, 256, "%.180s", m->name);
}

static void check_type(struct lint *l, enum lint_id id, const char *where,
                       const struct mil_value *v, const struct want *w)
{
    char is[MIL_TYPE_TEXT_MAX], text[MIL_TYPE_TEXT_MAX];

    mil_type_text(&v->type, is);
    want_text(w, text);
    if (!mil_type_is_static(&v->type) && v->type.dtype == w->dtype)
        lint_add(l, LINT_ID_shape_flexible, where, "'%s' is %s", v->name, is);
    else if (!fits(&v->type, w))
        lint_add(l, id, where, "'%s' is %s, %s is needed", v->name, is, text);
}

/* The width of hidden_states is compared apart from the rest of its shape. */
static void check_width(struct lint *l, const char *where,
                        const struct mil_value *v)
{
    if (v && v->type.rank == 3 && l->hidden && v->type.dims[2] != l->hidden)
        lint_add(l, LINT_ID_hidden_differs, where,
                 "'%s' is %" PRId64 " wide, the first chunk's %" PRId64,
                 v->name, v->type.dims[2], l->hidden);
}

/* ---- inputs ---- */

static void check_inputs(struct lint *l, const char *where,
                         const struct mil_function *f, const struct want *w,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct mil_value *v = lint_input(f, w[i].name);

        if (!v)
            lint_add(l, LINT_ID_input_missing, where, "no input '%s'",
                     w[i].name);
        else
            check_type(l, LINT_ID_input_type, where, v, &w[i]);
    }
    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);
        size_t k = 0;

        while (k < n && strcmp(w[k].name, v->name) != 0)
            k++;
        if (k == n && v->kind != MIL_V_STATE)
            lint_add(l, LINT_ID_input_unknown, where, "input '%s'", v->name);
    }
    check_width(l, where, lint_input(f, "hidden_states"));
}

/* Inputs of a decoder call over T tokens; returns how many. */
static size_t decoder_inputs(struct lint *l, const struct mil_function *f,
                             bool whole, bool prefill, struct want w[6])
{
    const struct lint_meta *m = &l->meta;
    int64_t T = prefill ? m->batch : 1, ple = 0;
    size_t n = 4;

    w[0] = whole ? (struct want){ "input_ids", MIL_I32, 2, { 1, T } }
                 : (struct want){ "hidden_states", MIL_F16, 3, { 1, T, 0 } };
    w[1] = (struct want){ "position_ids", MIL_I32, 1, { T } };
    w[2] = (struct want){ "causal_mask", MIL_F16, 4, { 1, 1, T, m->context } };
    w[3] = (struct want){ "current_pos", MIL_I32, 1, { 1 } };
    if (m->update_mask && prefill)
        w[n++] =
            (struct want){ "update_mask", MIL_F16, 4, { 1, 1, 0, m->batch } };
    if (!whole && lint_input(f, "per_layer_inputs") && l->embeddings &&
        l->embeddings->pkg &&
        lint_output(pkg_program(l->embeddings->pkg)->functions[0],
                    "per_layer_inputs")) {
        (void)lint_meta_int(l, "per_layer_inputs", &ple);
        w[n++] = (struct want){ "per_layer_inputs", MIL_F16, 3, { 1, T, ple } };
        l->extended = true;
    }
    return n;
}

/* ---- logits ---- */

static void check_sizes(struct lint *l, const char *where,
                        const int64_t *widths, size_t n)
{
    const yaml_node_t *list = lint_meta_node(l, "lm_head_chunk_sizes");
    size_t k = 0;

    if (!list || list->type != YAML_SEQUENCE_NODE)
        return;
    for (yaml_node_item_t *i = list->data.sequence.items.start;
         i < list->data.sequence.items.top; i++, k++) {
        int64_t v = 0;

        if (!lint_node_int(yaml_document_get_node(&l->meta.doc, *i), &v) ||
            k >= n || v != widths[k]) {
            lint_add(l, LINT_ID_head_sizes, where,
                     "entry %zu is %" PRId64 ", the output %" PRId64 " wide",
                     k + 1, v, k < n ? widths[k] : 0);
            return;
        }
    }
    if (k != n)
        lint_add(l, LINT_ID_head_sizes, where, "%zu entries, %zu outputs", k,
                 n);
}

static void check_widths(struct lint *l, const char *where,
                         const int64_t *widths, size_t n)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += widths[i];
        if (widths[i] != widths[0])
            lint_add(l, LINT_ID_head_uneven, where,
                     "'logits%zu' is %" PRId64 " wide, 'logits1' %" PRId64,
                     i + 1, widths[i], widths[0]);
    }
    if (l->meta.vocab && sum != l->meta.vocab)
        lint_add(l, LINT_ID_head_vocab, where,
                 "%" PRId64 " columns, vocab_size is %" PRId64, sum,
                 l->meta.vocab);
    check_sizes(l, where, widths, n);
}

static void check_count(struct lint *l, const char *where, int64_t n)
{
    int64_t split = l->meta.head_parts;

    if (l->meta.params && n != (split ? split : 8))
        lint_add(l, LINT_ID_head_parts, where,
                 "%" PRId64 " outputs, split_lm_head is %s%" PRId64, n,
                 split ? "" : "absent, which means ", split ? split : 8);
}

static void check_argmax(struct lint *l, const char *where,
                         const struct mil_function *f)
{
    const struct mil_value *v = lint_output(f, "argmax_idx");
    struct want w = { "argmax_idx", MIL_I32, 1, { 0 } };

    check_type(l, LINT_ID_output_type, where, v, &w);
    check_count(l, where, v->type.rank == 1 ? v->type.dims[0] : 0);
    v = lint_output(f, "argmax_val");
    w = (struct want){ "argmax_val", MIL_F16, 1, { 0 } };
    if (v)
        check_type(l, LINT_ID_output_type, where, v, &w);
    else
        lint_add(l, LINT_ID_output_missing, where, "no output 'argmax_val'");
}

static void check_logits(struct lint *l, const char *where,
                         const struct mil_function *f, bool argmax_here)
{
    int64_t widths[MAX_PARTS];
    size_t n = 0;
    bool argmax = lint_output(f, "argmax_idx") != NULL;

    if (argmax_here && l->meta.params && argmax != l->meta.argmax)
        lint_add(l, LINT_ID_meta_argmax, where,
                 argmax ? "it gives argmax_idx" : "it gives no argmax_idx");
    if (argmax) {
        check_argmax(l, where, f);
        return;
    }
    while (n < MAX_PARTS) {
        struct want w = { "logits", MIL_F16, 3, { 1, 1, 0 } };
        const struct mil_value *v;
        char name[32];

        snprintf(name, sizeof(name), "logits%zu", n + 1);
        v = lint_output(f, name);
        if (!v)
            break;
        check_type(l, LINT_ID_output_type, where, v, &w);
        widths[n++] = v->type.rank == 3 ? v->type.dims[2] : 0;
    }
    if (n < f->n_outputs || !n)
        lint_add(l, LINT_ID_output_missing, where,
                 "no output 'logits%zu' among %zu outputs", n + 1,
                 f->n_outputs);
    check_count(l, where, (int64_t)n);
    if (n)
        check_widths(l, where, widths, n);
}

/* ---- parts ---- */

/* The rows of the token table, by the gathers that read it. */
static void check_rows(struct lint *l, const struct lint_model *m,
                       const struct mil_function *f)
{
    int64_t rows = 0;

    for (size_t i = 0; i < f->n_ops; i++) {
        const struct mil_op *op = &f->ops[i];
        const struct mil_type *t;

        if (op->code != MIL_OP_gather || !mil_arg(op, 0))
            continue;
        t = &mil_value(f, mil_arg(op, 0))->type;
        if (t->rank == 2 && t->dims[0] > rows)
            rows = t->dims[0];
    }
    if (rows && l->meta.vocab && rows < l->meta.vocab)
        lint_add(l, LINT_ID_embeddings_rows, m->name,
                 "%" PRId64 " rows, vocab_size is %" PRId64, rows,
                 l->meta.vocab);
}

static bool takes(const struct mil_value *v, int64_t T)
{
    struct mil_type t =
        mil_type_make(v->type.dtype, 2, (const int64_t[]){ 1, T });

    if (mil_type_is_static(&v->type))
        return mil_type_equal(&v->type, &t);
    return v->shapes && mil_shapes_take(v->shapes, &t);
}

static void check_ids(struct lint *l, const char *where,
                      const struct mil_value *v)
{
    struct want w = { "input_ids", MIL_I32, 2, { 1, 0 } };
    char text[MIL_TYPE_TEXT_MAX];

    mil_type_text(&v->type, text);
    if (!fits(&v->type, &w))
        lint_add(l, LINT_ID_input_type, where, "'input_ids' is %s", text);
    else if (!takes(v, 1) || (l->meta.batch && !takes(v, l->meta.batch)))
        lint_add(l, LINT_ID_embeddings_shapes, where,
                 "%s does not take both [1, 1] and [1, %" PRId64 "]", text,
                 l->meta.batch);
    else if (v->shapes && v->shapes->first.dims[1] != 1)
        lint_add(l, LINT_ID_embeddings_shapes, where,
                 "the default is [1, %" PRId64 "]", v->shapes->first.dims[1]);
}

static void check_embeddings(struct lint *l, const struct lint_model *m)
{
    const struct mil_function *f = pkg_program(m->pkg)->functions[0];
    const struct mil_value *in = lint_input(f, "input_ids");
    const struct mil_value *out = lint_output(f, "hidden_states");
    struct want w = { "hidden_states", MIL_F16, 3, { 1, 0, 0 } };

    if (in)
        check_ids(l, m->name, in);
    else
        lint_add(l, LINT_ID_input_missing, m->name, "no input 'input_ids'");
    for (size_t i = 0; i < f->n_inputs; i++)
        if (mil_value(f, f->inputs[i]) != in)
            lint_add(l, LINT_ID_input_unknown, m->name, "input '%s'",
                     mil_value(f, f->inputs[i])->name);
    if (!out)
        lint_add(l, LINT_ID_output_missing, m->name,
                 "no output 'hidden_states'");
    else if (!fits(&out->type, &w))
        check_type(l, LINT_ID_output_type, m->name, out, &w);
    check_width(l, m->name, out);
    check_rows(l, m, f);
}

static void check_head(struct lint *l, const struct lint_model *m)
{
    const struct mil_function *f = pkg_program(m->pkg)->functions[0];
    struct want w = { "hidden_states", MIL_F16, 3, { 1, 1, 0 } };

    check_inputs(l, m->name, f, &w, 1);
    check_logits(l, m->name, f, true);
}

/* The residual stream behind a chunk. */
static void check_stream(struct lint *l, const char *where,
                         const struct mil_function *f, bool prefill, bool last)
{
    const struct mil_value *v = lint_output(f, "output_hidden_states");
    int64_t T = prefill ? l->meta.batch : 1, rows;
    struct want w = { "output_hidden_states", MIL_F16, 3, { 1, T, 0 } };

    if (!v) {
        lint_add(l, LINT_ID_output_missing, where,
                 "no output 'output_hidden_states'");
        return;
    }
    rows = v->type.rank == 3 ? v->type.dims[1] : 0;
    check_width(l, where, v);
    if (!prefill || !last || T == 1 || (rows != 1 && rows != T)) {
        check_type(l, LINT_ID_output_type, where, v, &w);
        return;
    }
    w.dims[1] = rows;
    check_type(l, LINT_ID_output_type, where, v, &w);
    if (rows == 1)
        return;
    if (l->meta.last_token)
        lint_add(l, LINT_ID_meta_last_token, where, "%" PRId64 " rows", rows);
    else
        lint_add(l, LINT_ID_prefill_rows, where, "%" PRId64 " rows", rows);
}

static void check_function(struct lint *l, const struct lint_model *m,
                           const char *name, bool required)
{
    const struct mil_function *f = mil_program_find(pkg_program(m->pkg), name);
    bool prefill = !strncmp(name, "prefill", 7);
    bool whole = m->kind == LK_WHOLE;
    struct want w[6];
    char where[256];

    if (!f) {
        if (required)
            lint_add(l, LINT_ID_function_missing, m->name, "no function '%s'",
                     name);
        return;
    }
    where_of(m, f, where);
    check_inputs(l, where, f, w, decoder_inputs(l, f, whole, prefill, w));
    if (whole)
        check_logits(l, where, f, !prefill);
    else
        check_stream(l, where, f, prefill, m->chunk == l->n_chunks);
}

static void check_decoder(struct lint *l, const struct lint_model *m)
{
    static const char *const names[] = { "infer", "prefill", "infer_rotate",
                                         "prefill_rotate" };
    const struct mil_program *p = pkg_program(m->pkg);
    bool rotate =
        mil_program_find(p, names[2]) || mil_program_find(p, names[3]);

    for (int i = 0; i < 4; i++)
        check_function(l, m, names[i], i < 2 || rotate);
    for (size_t i = 0; i < p->n_functions; i++) {
        int k = 0;

        while (k < 4 && strcmp(names[k], p->functions[i]->name) != 0)
            k++;
        if (k == 4)
            lint_add(l, LINT_ID_function_unknown, m->name, "function '%s'",
                     p->functions[i]->name);
    }
    if (strcmp(p->functions[0]->name, "infer") != 0)
        lint_add(l, LINT_ID_function_default, m->name, "it is '%s'",
                 p->functions[0]->name);
}

/* ---- the whole package ---- */

/* As Swift does: of the first chunk's infer. */
static int64_t hidden_of(const struct lint *l)
{
    const struct lint_model *m = l->n_chunks ? l->chunk[0] : NULL;
    const struct mil_function *f = NULL;
    const struct mil_value *v;

    if (m && m->pkg)
        f = mil_program_find(pkg_program(m->pkg), "infer");
    v = f ? lint_input(f, "hidden_states") : NULL;
    return v && v->type.rank == 3 && v->type.dims[2] > 0 ? v->type.dims[2] : 0;
}

/* The sign by which runtimes take a package for one with a window. */
static void check_gemma3(struct lint *l)
{
    const struct lint_model *m = l->n_chunks ? l->chunk[0] : l->whole;
    int64_t window = l->meta.window ? l->meta.window : 512;

    if (!l->meta.prefix || strncmp(l->meta.prefix, "gemma3", 6) != 0 || !m ||
        !m->pkg || l->meta.context <= window ||
        mil_program_find(pkg_program(m->pkg), "infer_rotate"))
        return;
    lint_add(l, LINT_ID_meta_prefix_gemma3, "meta.yaml: model_prefix",
             "'%.60s', a context of %" PRId64 " and no function "
             "'infer_rotate'",
             l->meta.prefix, l->meta.context);
}

void lint_contract_check(struct lint *l)
{
    int at = 0;

    l->hidden = hidden_of(l);
    if (l->hidden && l->meta.hidden && l->hidden != l->meta.hidden)
        lint_add(l, LINT_ID_meta_hidden_size, "meta.yaml: hidden_size",
                 "%" PRId64 ", the chunks' is %" PRId64, l->meta.hidden,
                 l->hidden);
    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        if (!pkg_program(m->pkg)->n_functions)
            continue;
        if (m == l->embeddings)
            check_embeddings(l, m);
        else if (m == l->head)
            check_head(l, m);
        else
            check_decoder(l, m);
    }
    check_gemma3(l);
    if (l->extended || l->meta.recurrent)
        lint_add(l, LINT_ID_runtime_extended, ".", "%s",
                 l->meta.recurrent ? "recurrent_state" : "per_layer_inputs");
}
