/*
 * One part of a package as a program: built by the architecture, described
 * by metadata, palettized constant by constant.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/buf.h"
#include "converter/budget_priv.h"
#include "converter/converter.h"
#include "converter/matrix_priv.h"
#include "converter/program_priv.h"
#include "models/weights.h"
#include "schema/codec.h"
#include "schema/compiled.h"

/* ---- the pass ---- */

static enum mil_role stored_role(enum cv_kind kind)
{
    switch (kind) {
    case CV_EMBEDDINGS: return MIL_ROLE_EMBEDDING;
    case CV_CHUNK: return MIL_ROLE_PROJECTION;
    case CV_HEAD: return MIL_ROLE_HEAD;
    }
    return MIL_ROLE_NONE;
}

static int set_literal(struct mil_function *f, struct mil_op *op, int param,
                       const struct mil_data *d, struct err *e)
{
    struct mil_const c = { .type = d->type, .data = d };
    const struct mil_const *copy = mil_copy_const(f->program, &c, e);
    mil_ref v;

    if (!copy)
        return -1;
    v = mil_add_value(f, MIL_V_LITERAL, NULL, &d->type, e);
    if (!v)
        return -1;
    mil_value(f, v)->konst = copy;
    return mil_set_arg(f, op, param, &v, 1, e);
}

/* A const op becomes a constexpr_lut_to_dense with the same output. */
static int palettize_op(struct cv_job *j, struct cv_part *part,
                        struct cv_matrices *ms, struct mil_function *f,
                        struct mil_op *op, struct err *e)
{
    const struct mil_const *c;
    const struct mil_op_info *info;
    const char *name;
    struct cv_lut lut;
    struct cv_matrix *m;
    bool pinned;

    if (op->code != MIL_OP_const)
        return 0;
    c = mil_value(f, op->outs[0])->konst;
    name = mil_value(f, op->outs[0])->name;
    if (!c || !c->data || c->data->role != stored_role(part->kind))
        return 0;
    lut = cv_width(j, part, c->data->origin->tensor, &pinned);
    if (!lut.bits)
        return cv_matrix_keep(ms, c->data, pinned, e);
    m = cv_matrix_for(j, part, ms, name, c->data, &lut, e);
    if (!m)
        return -1;
    m->pinned = pinned;
    op->code = lut.linear ? MIL_OP_constexpr_blockwise_shift_scale
                          : MIL_OP_constexpr_lut_to_dense;
    info = mil_op_info(op->code);
    mil_value(f, op->outs[0])->konst = NULL;
    if (set_literal(f, op,
                    mil_param_index(info, lut.linear ? "data" : "indices"),
                    &m->indices, e))
        return -1;
    return set_literal(f, op,
                       mil_param_index(info, lut.linear ? "scale" : "lut"),
                       &m->tables, e);
}

static int palettize(struct cv_job *j, struct cv_part *part,
                     struct cv_program *out, struct err *e)
{
    struct mil_program *p = out->program;

    for (size_t i = 0; i < p->n_functions; i++)
        for (size_t k = 0; k < p->functions[i]->n_ops; k++)
            if (palettize_op(j, part, out->matrices, p->functions[i],
                             &p->functions[i]->ops[k], e))
                return -1;
    return 0;
}

/* ---- metadata ---- */

static int meta_int(struct mil_program *p, const char *key, int64_t v,
                    struct err *e)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRId64, v);
    return mil_program_set_metadata(p, key, text, e);
}

/* Row choice and folds, where there are any; see package_source.c. */
static void describe_folds(struct js_writer *w, const struct mil_origin *o)
{
    double factor = o->factor != 0 ? o->factor : 1;

    if (!o->block && !o->wide && o->add == 0 && factor == 1 && !o->neg_exp)
        return;
    js_w_uint(w, NULL, o->block);
    js_w_uint(w, NULL, o->take);
    js_w_uint(w, NULL, o->skip);
    js_w_uint(w, NULL, o->wide);
    js_w_double(w, NULL, o->add);
    js_w_double(w, NULL, factor);
    js_w_uint(w, NULL, o->neg_exp);
}

/* Which checkpoint rows each constant holds, for the gate. */
static int describe_sources(struct mil_program *p, struct err *e)
{
    const struct mil_function *f = p->functions[0];
    struct buf b = BUF_INIT;
    struct js_writer w;
    int rc = -1;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    for (size_t k = 0; k < f->n_ops; k++) {
        const struct mil_value *v =
            f->ops[k].n_outs ? mil_value(f, f->ops[k].outs[0]) : NULL;
        const struct mil_origin *o =
            v && v->konst && v->konst->data ? v->konst->data->origin : NULL;

        if (!o)
            continue;
        js_w_array(&w, v->name, true);
        js_w_string(&w, NULL, o->tensor);
        js_w_uint(&w, NULL, o->row);
        js_w_uint(&w, NULL, o->rows);
        js_w_uint(&w, NULL, o->total_rows);
        js_w_int(&w, NULL, o->scale_exp);
        describe_folds(&w, o);
        js_w_end(&w);
    }
    js_w_end(&w);
    if (!buf_ok(&b, e))
        rc = mil_program_set_metadata(p, CV_SOURCES_KEY, buf_text(&b), e);
    buf_release(&b);
    return rc;
}

static int describe_head(const struct cv_job *j, struct mil_program *p,
                         struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = -1;

    for (int i = 0; i < j->head_parts; i++)
        buf_printf(&b, "%s%" PRId64, i ? "," : "", j->head_sizes[i]);
    if (!buf_ok(&b, e) &&
        !mil_program_set_metadata(p, "com.anemll.lm_head_chunk_sizes",
                                  buf_text(&b), e) &&
        !meta_int(p, "com.anemll.vocab_size", j->ckpt.hp.vocab, e))
        rc = 0;
    buf_release(&b);
    return rc;
}

static int describe_chunk(const struct cv_job *j, const struct cv_part *part,
                          struct mil_program *p, struct err *e)
{
    char layers[64], functions[96] = "";

    for (size_t i = 0; i < p->n_functions; i++) {
        size_t n = strlen(functions);

        snprintf(functions + n, sizeof(functions) - n, "%s%s", i ? "," : "",
                 p->functions[i]->name);
    }
    snprintf(layers, sizeof(layers), "%" PRId64 "-%" PRId64, part->first_layer,
             part->first_layer + part->n_layers - 1);
    if (meta_int(p, "com.anemll.num_chunks", j->chunks, e) ||
        meta_int(p, "com.anemll.chunk_no", part->chunk, e) ||
        meta_int(p, "com.anemll.batch_size", j->opt.batch, e) ||
        mil_program_set_metadata(p, "com.anemll.functions", functions, e) ||
        mil_program_set_metadata(p, "com.anemll.layers", layers, e))
        return -1;
    return 0;
}

static int describe_lut(const struct cv_job *j, const struct cv_part *part,
                        struct mil_program *p, struct err *e)
{
    enum cv_method m = cv_method_for(j, stored_role(part->kind));

    if (!part->lut.bits)
        return 0;
    if (!part->lut.linear &&
        meta_int(p, "com.anemll.lut_bits", part->lut.bits, e))
        return -1;
    return m == CV_KMEANS ? 0
                          : mil_program_set_metadata(p, CV_METHOD_KEY,
                                                     cv_method_name(m), e);
}

static int describe(const struct cv_job *j, const struct cv_part *part,
                    struct mil_program *p, struct err *e)
{
    static const char *const what[] = { "Embeddings",
                                        "Multifunction FFN+Prefill",
                                        "LM Head" };
    char text[96];

    snprintf(text, sizeof(text), "Anemll Model: %s", what[part->kind]);
    p->description = arena_strdup(&p->arena, text, e);
    p->version = "0.3.5";
    p->author = "Converted with anemll-convert v" ANEMLL_VERSION;
    if (!p->description ||
        mil_program_set_metadata(p, "com.anemll.info",
                                 "Converted with anemll-convert "
                                 "v" ANEMLL_VERSION,
                                 e) ||
        meta_int(p, "com.anemll.context_length", j->opt.ctx, e))
        return -1;
    if (describe_lut(j, part, p, e))
        return -1;
    if (part->kind == CV_HEAD && describe_head(j, p, e))
        return -1;
    if (part->kind == CV_CHUNK && describe_chunk(j, part, p, e))
        return -1;
    return describe_sources(p, e);
}

/* ---- building ---- */

static int build_function(struct cv_job *j, struct mil_program *p,
                          const char *name, struct graph *g,
                          void (*build)(struct mb *, const struct graph *),
                          struct err *e)
{
    struct mb b;

    g->hp = &j->ckpt.hp;
    g->weights = j->weights;
    g->ctx = j->opt.ctx;
    g->batch = j->opt.batch;
    mb_begin(&b, p, name);
    build(&b, g);
    if (mb_end(&b, e))
        return err_in(e, "function '%s' of the %s graph", name,
                      j->ckpt.hp.arch->name);
    return 0;
}

/* input_ids takes [1, 1] (default) and [1, batch]. */
static int enumerate_ids(struct cv_job *j, struct mil_program *p, struct err *e)
{
    struct mil_type shapes[] = {
        mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 1 }),
        mil_type_make(MIL_I32, 2, (int64_t[]){ 1, j->opt.batch }),
    };

    return mil_program_set_enumerated(p, "input_ids", j->opt.batch > 1 ? 2 : 1,
                                      shapes, e);
}

/* The order of ANEMLL's files; the first is the default. */
static int build_chunk(struct cv_job *j, struct mil_program *p, struct graph *g,
                       struct err *e)
{
    static const struct {
        const char *name;
        bool batch, rotate;
    } functions[] = { { "infer", false, false },
                      { "infer_rotate", false, true },
                      { "prefill", true, false },
                      { "prefill_rotate", true, true } };
    const struct model_arch *a = j->ckpt.hp.arch;
    bool rotates = a->rotates && a->rotates(&j->ckpt.hp, j->opt.ctx);

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (functions[i].rotate && !rotates)
            continue;
        g->tokens = functions[i].batch ? j->opt.batch : 1;
        g->rotate = functions[i].rotate;
        if (build_function(j, p, functions[i].name, g, a->chunk, e))
            return -1;
    }
    return 0;
}

static int build_functions(struct cv_job *j, const struct cv_part *part,
                           struct mil_program *p, struct err *e)
{
    const struct model_arch *a = j->ckpt.hp.arch;
    struct graph g = { .tokens = 1,
                       .stream_exp = j->stream_exp,
                       .norm_exp = j->norm_exp };

    switch (part->kind) {
    case CV_EMBEDDINGS:
        if (build_function(j, p, "main", &g, a->embeddings, e))
            return -1;
        return enumerate_ids(j, p, e);
    case CV_HEAD:
        g.head_sizes = j->head_sizes;
        g.n_head_parts = j->head_parts;
        return build_function(j, p, "main", &g, a->head, e);
    case CV_CHUNK: break;
    }
    g.first_layer = part->first_layer;
    g.n_layers = part->n_layers;
    g.last_chunk = part->first_layer + part->n_layers == j->ckpt.hp.layers;
    return build_chunk(j, p, &g, e);
}

int cv_build_part(struct cv_job *j, struct cv_part *part,
                  struct cv_program *out, struct err *e)
{
    memset(out, 0, sizeof(*out));
    part->fallback_tensors = 0;
    out->matrices = mem_zalloc(1, sizeof(*out->matrices), e);
    out->program = out->matrices ? mil_program_new(e) : NULL;
    if (!out->program || build_functions(j, part, out->program, e) ||
        describe(j, part, out->program, e) || palettize(j, part, out, e)) {
        cv_program_release(out);
        return err_in(e, "part '%s'", part->name);
    }
    return 0;
}

void cv_program_release(struct cv_program *p)
{
    mil_program_free(p->program);
    cv_matrices_free(p->matrices);
    memset(p, 0, sizeof(*p));
}

void cv_program_error(const struct cv_program *p, struct cv_part *part)
{
    part->sse = part->sum_sq = 0;
    part->palettized = 0;
    for (size_t i = 0; i < p->matrices->n; i++) {
        const struct qz_stats *s = &p->matrices->items[i]->stats;

        part->sse += s->sse;
        part->sum_sq += s->sum_sq;
        part->palettized += s->weights;
    }
}

/* ---- sizes ---- */

/* By the names that checkpoints give them: "layers.0.mlp.experts.down_proj". */
static bool is_expert(const struct mil_data *d)
{
    return d->origin && strstr(d->origin->tensor, ".experts.");
}

/* Bytes of a row of the report beside its names, and of a part's sums. */
#define REPORT_ROW 400
#define REPORT_SUMS 780

/* first: of the first function, with which others share their constants. */
static void see_const(struct cv_part *part, const struct mil_value *v,
                      const char *name, bool first)
{
    const struct mil_data *d = v->konst ? v->konst->data : NULL;

    if (!d)
        return;
    if (first && d->origin)
        part->report_bytes += REPORT_ROW + 3 * strlen(name);
    if (d->bytes > part->largest_blob)
        part->largest_blob = d->bytes;
    for (int i = 0; i < d->type.rank; i++)
        if (d->type.dims[i] > part->largest_axis)
            part->largest_axis = d->type.dims[i];
}

/* Constants stand behind ops and, literally, in their arguments. */
static void see_op(struct cv_part *part, const struct mil_function *f,
                   const struct mil_op *op, bool first)
{
    int n = mil_op_info(op->code)->n_params;
    const char *name = op->n_outs ? mil_value(f, op->outs[0])->name : "";

    for (int i = 0; i < n; i++)
        for (uint32_t k = 0; k < op->args[i].n; k++)
            if (mil_value(f, op->args[i].refs[k])->kind == MIL_V_LITERAL)
                see_const(part, mil_value(f, op->args[i].refs[k]), name, first);
    for (uint32_t i = 0; i < op->n_outs; i++) {
        const struct mil_value *v = mil_value(f, op->outs[i]);

        see_const(part, v, name, first);
        if (first && v->konst && v->konst->data && is_expert(v->konst->data))
            part->expert_bytes += v->konst->data->bytes;
    }
}

static int measure_compiled(struct cv_part *part, const struct buf *message,
                            struct err *e)
{
    struct compiled_written w;

    if (compiled_measure(message->data, message->len, part->name, &w, e))
        return -1;
    part->compiled_bytes = w.text_bytes + w.other_bytes;
    return 0;
}

/* By the very encoder, without a file and without a matrix. */
static int measure_message(const struct cv_program *p, struct cv_part *part,
                           enum cv_emit emit, struct err *e)
{
    struct blob_writer *w = blob_writer_measuring(e);
    struct buf message = BUF_INIT;
    struct blob_totals totals;
    int rc = -1;

    for (size_t i = 0; i < p->matrices->n; i++)
        p->matrices->items[i]->measuring = true;
    if (w && !codec_encode(p->program, w, &message, e) &&
        !blob_writer_finish(w, &totals, e)) {
        part->weight_bytes = totals.bytes;
        part->model_bytes = message.len;
        part->compiled_bytes = 0;
        rc = emit & CV_EMIT_COMPILED ? measure_compiled(part, &message, e) : 0;
    }
    for (size_t i = 0; i < p->matrices->n; i++)
        p->matrices->items[i]->measuring = false;
    buf_release(&message);
    blob_writer_free(w);
    return rc;
}

void cv_keep_narrowest(struct cv_lut *least, const struct cv_lut *l)
{
    if (l->bits && (!least->bits || l->bits < least->bits))
        *least = *l;
}

/* One scale for a whole matrix is given by its largest value, and integers
 * without error feedback are the nearest: nothing is left to weigh. */
static bool is_guided(const struct cv_matrix *m)
{
    return m->method == CV_GPTQ ||
           (m->method != CV_KMEANS && !(m->lut.linear && !m->lut.group));
}

int cv_program_sizes(const struct cv_program *p, struct cv_part *part,
                     enum cv_emit emit, struct err *e)
{
    part->weights = part->guided = part->largest_blob = part->largest_table = 0;
    part->largest_axis = 0;
    part->expert_bytes = 0;
    part->report_bytes = REPORT_SUMS;
    part->stored_bits = part->stored = 0;
    part->tables = part->integers = (struct cv_lut){ 0 };
    part->forms = 0;
    for (size_t i = 0; i < p->program->n_functions; i++) {
        const struct mil_function *f = p->program->functions[i];

        for (size_t k = 0; k < f->n_ops; k++)
            see_op(part, f, &f->ops[k], i == 0);
    }
    for (size_t i = 0; i < p->matrices->n; i++) {
        const struct cv_matrix *q = p->matrices->items[i];

        part->weights += (uint64_t)mil_type_elems(&q->indices.type);
        if (is_guided(q))
            part->guided += (uint64_t)mil_type_elems(&q->indices.type);
        part->stored_bits += 8 * (q->indices.bytes + q->tables.bytes);
        part->forms |= 1u << (q->lut.linear ? 16 + q->lut.bits : q->lut.bits);
        cv_keep_narrowest(q->lut.linear ? &part->integers : &part->tables,
                          &q->asked);
        if (is_expert(q->source))
            part->expert_bytes += q->indices.bytes + q->tables.bytes;
        if (q->tables.bytes > part->largest_table)
            part->largest_table = q->tables.bytes;
    }
    part->stored = part->weights;
    for (size_t i = 0; i < p->matrices->n_kept; i++) {
        const struct mil_data *d = p->matrices->kept[i].source;

        part->stored += d->bytes / 2;
        part->stored_bits += 8 * d->bytes;
        part->forms |= 1;
    }
    return measure_message(p, part, emit, e);
}

/* ---- what was written ---- */

/* Bits of a palettized constant, and its weights. Constants of equal bytes
 * share a blob, so they are counted by name, not by place. */
static int count_written(const struct mil_function *f, const struct mil_op *op,
                         const struct cv_program *planned, uint64_t *weights,
                         struct err *e)
{
    int bits = 0;

    const struct mil_const *c = mil_arg_const(f, op, 0);
    const char *name = mil_value(f, op->outs[0])->name;

    if (!c || !c->data)
        return err_set(e, ERR_MISMATCH, "'%s' has no indices in the file",
                       name);
    for (size_t i = 0; i < planned->matrices->n; i++)
        if (!strcmp(planned->matrices->items[i]->name, name))
            bits = planned->matrices->items[i]->lut.bits;
    if ((int)mil_dtype_bits(c->type.dtype) != bits)
        return err_set(e, ERR_MISMATCH, "'%s' has %d bits, %d were asked for",
                       name, (int)mil_dtype_bits(c->type.dtype), bits);
    *weights += (uint64_t)mil_type_elems(&c->type);
    return 0;
}

int cv_program_check(const struct mil_program *p, const struct cv_part *part,
                     const struct cv_program *planned, struct err *e)
{
    uint64_t weights = 0;
    int rc = 0;

    for (size_t i = 0; !rc && i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        weights = 0; /* each function holds all of them */
        for (size_t n = 0; !rc && n < f->n_ops; n++)
            if (f->ops[n].code == MIL_OP_constexpr_lut_to_dense ||
                f->ops[n].code == MIL_OP_constexpr_blockwise_shift_scale)
                rc = count_written(f, &f->ops[n], planned, &weights, e);
    }
    if (!rc && weights != part->weights)
        rc = err_set(e, ERR_MISMATCH,
                     "%" PRIu64 " weights are palettized in the file, %" PRIu64
                     " were planned",
                     weights, part->weights);
    return rc;
}
