/*
 * One part of a package as a program: built by the architecture, described
 * by metadata, palettized constant by constant.
 */
#include <stdio.h>
#include <string.h>

#include "converter/base/buf.h"
#include "converter/converter.h"
#include "converter/program_priv.h"
#include "models/weights.h"
#include "quant/quant.h"

/* A matrix and the two constants that replace it. */
struct cv_palette {
    const struct mil_data *source;
    struct qz_palette *palette;
    struct mil_data indices, tables;
};
struct cv_palettes {
    struct cv_palette **items;
    size_t n, cap;
};

/* ---- palettes ---- */

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    return weights_raw_rows(cookie, row, n, dst, e);
}

static int read_indices(void *cookie, uint64_t offset, void *dst, size_t n,
                        struct err *e)
{
    struct cv_palette *p = cookie;

    if (qz_palette_read_indices(p->palette, offset, dst, n, e))
        return err_in(e, "tensor '%s'", p->source->origin->tensor);
    return 0;
}

static int read_tables(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *e)
{
    struct cv_palette *p = cookie;

    if (qz_palette_read_tables(p->palette, offset, dst, n, e))
        return err_in(e, "tensor '%s'", p->source->origin->tensor);
    return 0;
}

static enum mil_dtype index_dtype(int bits)
{
    switch (bits) {
    case 1: return MIL_U1;
    case 2: return MIL_U2;
    case 3: return MIL_U3;
    case 4: return MIL_U4;
    case 6: return MIL_U6;
    default: return MIL_U8;
    }
}

static int group_rows(struct cv_job *j, struct cv_part *part,
                      const struct weight_raw *raw, uint64_t wanted,
                      uint64_t *group, struct err *e)
{
    *group = qz_fit_group(raw->rows, wanted);
    if (!wanted || *group == wanted)
        return 0;
    if (j->opt.strict)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%s': its %llu rows are not divisible by the "
                       "group of %llu output channels (the largest that "
                       "divides is %llu; --strict refuses the fallback)",
                       raw->tensor, (unsigned long long)raw->rows,
                       (unsigned long long)wanted, (unsigned long long)*group);
    part->fallback_tensors++;
    buf_printf(&j->notes,
               "tensor '%s': %llu rows are not divisible by a group of %llu, "
               "using %llu%s\n",
               raw->tensor, (unsigned long long)raw->rows,
               (unsigned long long)wanted, (unsigned long long)*group,
               *group < 4 ? " (small groups halve the speed of the Neural "
                            "Engine)"
                          : "");
    return 0;
}

static void describe_palette(struct cv_palette *p, const struct cv_lut *lut,
                             uint64_t groups)
{
    const struct mil_type *t = &p->source->type;
    struct mil_type *tt = &p->tables.type;

    p->indices = *p->source;
    p->indices.type.dtype = index_dtype(lut->bits);
    p->indices.bytes = (uint64_t)mil_type_bytes(&p->indices.type);
    p->indices.read = read_indices;
    p->indices.cookie = p;

    *tt = mil_type_make(MIL_F16, 0, NULL);
    tt->rank = t->rank + 2;
    for (int i = 0; i < tt->rank; i++)
        tt->dims[i] = 1;
    tt->dims[0] = (int64_t)groups;
    tt->dims[t->rank] = (int64_t)1 << lut->bits;
    p->tables.bytes = (uint64_t)mil_type_bytes(tt);
    p->tables.read = read_tables;
    p->tables.cookie = p;
}

static struct cv_palette *palette_for(struct cv_job *j, struct cv_part *part,
                                      struct cv_palettes *ps,
                                      const struct mil_data *d, struct err *e)
{
    struct weight_raw raw;
    struct qz_source src = { 0 };
    struct cv_palette *p;
    uint64_t group;

    for (size_t i = 0; i < ps->n; i++)
        if (ps->items[i]->source == d)
            return ps->items[i];
    if (!weights_raw(d, &raw)) {
        err_set(e, ERR_INPUT,
                "a constant of the graph cannot be palettized: "
                "it is no matrix of the checkpoint");
        return NULL;
    }
    if (group_rows(j, part, &raw, part->lut.group, &group, e))
        return NULL;
    src.rows = raw.rows;
    src.cols = raw.cols;
    src.format = raw.is_bf16 ? QZ_BF16 : QZ_F16;
    src.scale_exp = raw.scale_exp;
    src.read_rows = read_rows;
    src.cookie = (void *)(uintptr_t)d;
    if (ps->n == ps->cap &&
        mem_grow((void **)&ps->items, &ps->cap, ps->n, sizeof(*ps->items), e))
        return NULL;
    p = mem_zalloc(1, sizeof(*p), e);
    if (!p)
        return NULL;
    p->source = d;
    p->palette = qz_palette_new(&src, part->lut.bits, group, j->opt.par, e);
    if (!p->palette) {
        mem_free(p);
        return NULL;
    }
    describe_palette(p, &part->lut, raw.rows / group);
    ps->items[ps->n++] = p;
    return p;
}

static void palettes_free(struct cv_palettes *ps)
{
    if (!ps)
        return;
    for (size_t i = 0; i < ps->n; i++) {
        qz_palette_free(ps->items[i]->palette);
        mem_free(ps->items[i]);
    }
    mem_free(ps->items);
    mem_free(ps);
}

/* ---- the pass ---- */

static bool part_palettizes(const struct cv_part *part, enum mil_role role)
{
    if (!part->lut.bits)
        return false;
    switch (part->kind) {
    case CV_EMBEDDINGS: return role == MIL_ROLE_EMBEDDING;
    case CV_CHUNK: return role == MIL_ROLE_PROJECTION;
    case CV_HEAD: return role == MIL_ROLE_HEAD;
    }
    return false;
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
                        struct cv_palettes *ps, struct mil_function *f,
                        struct mil_op *op, struct err *e)
{
    const struct mil_const *c;
    const struct mil_op_info *info;
    struct cv_palette *p;

    if (op->code != MIL_OP_const)
        return 0;
    c = mil_value(f, op->outs[0])->konst;
    if (!c || !c->data || !part_palettizes(part, c->data->role))
        return 0;
    p = palette_for(j, part, ps, c->data, e);
    if (!p)
        return -1;
    info = mil_op_info(MIL_OP_constexpr_lut_to_dense);
    op->code = MIL_OP_constexpr_lut_to_dense;
    mil_value(f, op->outs[0])->konst = NULL;
    if (set_literal(f, op, mil_param_index(info, "indices"), &p->indices, e))
        return -1;
    return set_literal(f, op, mil_param_index(info, "lut"), &p->tables, e);
}

static int palettize(struct cv_job *j, struct cv_part *part,
                     struct cv_program *out, struct err *e)
{
    struct mil_program *p = out->program;

    for (size_t i = 0; i < p->n_functions; i++)
        for (size_t k = 0; k < p->functions[i]->n_ops; k++)
            if (palettize_op(j, part, out->palettes, p->functions[i],
                             &p->functions[i]->ops[k], e))
                return -1;
    return 0;
}

/* ---- metadata ---- */

static int meta_int(struct mil_program *p, const char *key, int64_t v,
                    struct err *e)
{
    char text[32];

    snprintf(text, sizeof(text), "%lld", (long long)v);
    return mil_program_set_metadata(p, key, text, e);
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
        buf_printf(&b, "%s%lld", i ? "," : "", (long long)j->head_sizes[i]);
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
    char layers[64];

    snprintf(layers, sizeof(layers), "%lld-%lld", (long long)part->first_layer,
             (long long)(part->first_layer + part->n_layers - 1));
    if (meta_int(p, "com.anemll.num_chunks", j->chunks, e) ||
        meta_int(p, "com.anemll.chunk_no", part->chunk, e) ||
        meta_int(p, "com.anemll.batch_size", j->opt.batch, e) ||
        mil_program_set_metadata(p, "com.anemll.functions", "infer,prefill",
                                 e) ||
        mil_program_set_metadata(p, "com.anemll.layers", layers, e))
        return -1;
    return 0;
}

static int describe(const struct cv_job *j, const struct cv_part *part,
                    struct mil_program *p, struct err *e)
{
    static const char *const what[] = { "Embeddings",
                                        "Multifunction "
                                        "FFN+Prefill",
                                        "LM Head" };
    char text[96];

    snprintf(text, sizeof(text), "Anemll Model: %s", what[part->kind]);
    p->description = arena_strdup(&p->arena, text, e);
    p->version = "0.3.5";
    if (!p->description ||
        mil_program_set_metadata(p, "com.anemll.info",
                                 "Converted with anemll-convert "
                                 "v" ANEMLL_VERSION,
                                 e) ||
        meta_int(p, "com.anemll.context_length", j->opt.ctx, e))
        return -1;
    if (part->lut.bits && meta_int(p, "com.anemll.lut_bits", part->lut.bits, e))
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
    struct mil_enumerated *en = arena_alloc(&p->arena, 1, sizeof(*en), e);

    if (!en)
        return -1;
    en->shapes = arena_alloc(&p->arena, 2, sizeof(*en->shapes), e);
    if (!en->shapes)
        return -1;
    en->input = "input_ids";
    en->n_shapes = j->opt.batch > 1 ? 2 : 1;
    en->shapes[0] = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, 1 });
    en->shapes[1] = mil_type_make(MIL_I32, 2, (int64_t[]){ 1, j->opt.batch });
    p->enumerated = en;
    p->n_enumerated = 1;
    return 0;
}

static int build_functions(struct cv_job *j, const struct cv_part *part,
                           struct mil_program *p, struct err *e)
{
    const struct model_arch *a = j->ckpt.hp.arch;
    struct graph g = { .tokens = 1 };

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
    if (build_function(j, p, "infer", &g, a->chunk, e))
        return -1;
    g.tokens = j->opt.batch;
    return build_function(j, p, "prefill", &g, a->chunk, e);
}

int cv_build_part(struct cv_job *j, struct cv_part *part,
                  struct cv_program *out, struct err *e)
{
    memset(out, 0, sizeof(*out));
    part->fallback_tensors = 0;
    out->palettes = mem_zalloc(1, sizeof(*out->palettes), e);
    out->program = out->palettes ? mil_program_new(e) : NULL;
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
    palettes_free(p->palettes);
    memset(p, 0, sizeof(*p));
}

void cv_program_error(const struct cv_program *p, struct cv_part *part)
{
    part->sse = part->sum_sq = 0;
    part->palettized = 0;
    for (size_t i = 0; i < p->palettes->n; i++) {
        struct qz_stats s;

        qz_palette_stats(p->palettes->items[i]->palette, &s);
        part->sse += s.sse;
        part->sum_sq += s.sum_sq;
        part->palettized += s.weights;
    }
}

/* ---- sizes ---- */

struct seen {
    const struct mil_data **d;
    size_t n, cap;
};

static int seen_before(struct seen *s, const struct mil_data *d, struct err *e)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->d[i] == d)
            return 1;
    if (s->n == s->cap &&
        mem_grow((void **)&s->d, &s->cap, s->n, sizeof(*s->d), e))
        return -1;
    s->d[s->n++] = d;
    return 0;
}

/* A blob takes a 64-byte record, its bytes, and zeros up to the next
 * multiple of 64 (the last blob of a file lacks these). */
static int add_const(struct seen *s, struct cv_part *part,
                     const struct mil_value *v, struct err *e)
{
    const struct mil_data *d = v->konst ? v->konst->data : NULL;
    int known;

    if (!d || mil_type_elems(&d->type) < 10)
        return 0;
    known = seen_before(s, d, e);
    if (known)
        return known < 0 ? -1 : 0;
    part->weight_bytes += 64 + (d->bytes + 63) / 64 * 64;
    if (d->bytes > part->largest_blob)
        part->largest_blob = d->bytes;
    if (v->kind == MIL_V_RESULT || d->type.dtype != MIL_F16)
        part->weights += (uint64_t)mil_type_elems(&d->type);
    return 0;
}

int cv_program_sizes(const struct cv_program *p, struct cv_part *part,
                     struct err *e)
{
    struct seen s = { 0 };
    int rc = 0;

    part->weight_bytes = 64;
    part->weights = part->largest_blob = 0;
    for (size_t i = 0; !rc && i < p->program->n_functions; i++) {
        const struct mil_function *f = p->program->functions[i];

        for (size_t k = 1; !rc && k < f->n_values; k++)
            rc = add_const(&s, part, &f->values[k], e);
    }
    mem_free(s.d);
    return rc;
}
