/*
 * Convolutions and products. All of them are sums over k in the order of
 * kern_priv.h: operands are brought to rows that are contiguous in k (copied
 * where they lie otherwise), or, for few rows, y is read as it lies.
 */
#include "mil/run/run_priv.h"

/* A conv's patches are packed in pieces of about this many floats. */
#define PATCH_FLOATS (INT64_C(1) << 20)
#define VECMAT_ROWS 4 /* with fewer rows y is not worth packing */
#define BLOCK_ROWS 32 /* rows of one piece of a product */
#define SERIAL_WORK 32768

/* ---- batched products ---- */

struct gemm_job {
    struct run_ctx *c;
    const struct gemm_batch *b;
    int64_t rows; /* of a block */
    int64_t blocks;
};

static void note_failure(struct run_failure *f, const struct err *e,
                         uint64_t at)
{
    if (f->err.code != ERR_OK && f->at <= at)
        return;
    f->err = *e;
    f->at = at;
}

/* Rows m0 .. m1 - 1 of the weight, read and multiplied: block `at`. */
static void streamed_rows(const struct gemm_job *j, struct kern_gemm *g,
                          int64_t m0, int64_t m1, int worker, uint64_t at)
{
    float *scratch = j->c->work + worker * j->c->work_floats;
    float *halves = scratch + kern_gemm_scratch(g->k);
    struct err e = ERR_INIT;

    if (run_stream_read(j->b->stream, j->b->first + m0 * g->k, (m1 - m0) * g->k,
                        halves, &e)) {
        note_failure(&j->c->failures[worker], &e, at);
        return;
    }
    g->wh = (const f16_t *)(void *)halves;
    g->out += m0 * g->om;
    if (g->bias)
        g->bias += m0;
    j->c->k->gemm(g, 0, m1 - m0, scratch);
}

static void gemm_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct gemm_job *j = arg;
    const struct gemm_batch *b = j->b;
    float *scratch = j->c->work + worker * j->c->work_floats;

    for (uint64_t i = begin; i < end; i++) {
        int64_t batch = (int64_t)i / j->blocks, rest = batch;
        int64_t m0 = (int64_t)i % j->blocks * j->rows;
        int64_t m1 = m0 + j->rows < b->m ? m0 + j->rows : b->m;
        struct kern_gemm g = b->g;

        for (int d = b->nb - 1; d >= 0; d--) {
            int64_t at = rest % b->bd[d];

            rest /= b->bd[d];
            if (g.wh)
                g.wh += at * b->ws[d];
            else if (g.w)
                g.w += at * b->ws[d];
            g.x += at * b->xs[d];
        }
        g.out += batch * b->out_stride;
        if (b->stream)
            streamed_rows(j, &g, m0, m1, worker, i);
        else
            j->c->k->gemm(&g, m0, m1, scratch);
    }
}

static int report_failure(const struct run_ctx *c, struct err *e)
{
    const struct run_failure *first = NULL;

    for (int i = 0; i < par_width(c->par); i++) {
        const struct run_failure *f = &c->failures[i];

        if (f->err.code != ERR_OK && (!first || f->at < first->at))
            first = f;
    }
    return first ? err_copy(e, &first->err) : 0;
}

void run_gemm(struct run_ctx *c, const struct gemm_batch *b)
{
    struct gemm_job j = { c, b,
                          b->stream ? run_stream_rows(b->g.k) : BLOCK_ROWS, 0 };
    int64_t pieces, cost = j.rows * (b->g.k + 1) * b->g.n;
    int64_t grain = cost > 0 ? 2 * SERIAL_WORK / cost : 1;

    j.blocks = (b->m + j.rows - 1) / j.rows;
    pieces = j.blocks * b->batches;
    if (b->m <= 0 || b->g.n <= 0 || pieces <= 0)
        return;
    if (pieces * cost < SERIAL_WORK)
        gemm_range(&j, 0, (uint64_t)pieces, 0);
    else
        par_for(c->par, (uint64_t)pieces, (uint64_t)(grain < 1 ? 1 : grain),
                gemm_range, &j);
}

/* A product with a weight that may be streamed, and may fail then. */
static int weight_gemm(struct run_ctx *c, const struct gemm_batch *b,
                       struct err *e)
{
    for (int i = 0; b->stream && i < par_width(c->par); i++)
        err_reset(&c->failures[i].err);
    run_gemm(c, b);
    return b->stream ? report_failure(c, e) : 0;
}

/* Rows of a weight for the product, from row `first` on: halves where they
 * were kept, pieces of the source where nothing is. */
static void weight_rows(struct gemm_batch *b, const struct run_slot *w,
                        int64_t first)
{
    int64_t at = first * b->g.k;

    if (w->konst && w->konst->half)
        b->g.wh = w->konst->half + at;
    else if (w->konst && w->konst->streamed)
        b->stream = w->konst;
    else
        b->g.w = (const float *)w->data + at;
    b->first = at;
}

/* Scratch of a worker for products with rows of k elements of a weight. */
static int64_t weight_scratch(const struct run_slot *w, int64_t k)
{
    int64_t n = kern_gemm_scratch(k);

    if (w->konst && w->konst->streamed)
        n += run_stream_floats(w->konst, run_stream_rows(k) * k);
    return n;
}

/* ---- conv ---- */

/* Padding before each spatial dim. */
static int conv_padding(struct run_step *s, struct conv_plan *p,
                        const struct mil_type *x, struct err *e)
{
    const char *type = run_text(s, P_conv_pad_type, "valid");
    int64_t pad[6] = { 0 };
    int n;

    if (run_ints(s, P_conv_pad, 6, pad, &n, e))
        return -1;
    for (int i = 0; i < p->s; i++) {
        int64_t keff = (p->kern[i] - 1) * p->dil[i] + 1;
        int64_t total = (p->out[i] - 1) * p->stride[i] + keff - x->dims[i + 2];

        if (total < 0)
            total = 0;
        p->before[i] = 0;
        if (strcmp(type, "custom") == 0)
            p->before[i] = pad[2 * i];
        else if (strcmp(type, "same") == 0)
            p->before[i] = total / 2;
        else if (strcmp(type, "same_lower") == 0)
            p->before[i] = total - total / 2;
    }
    return 0;
}

static int64_t prod(const int64_t *v, int n)
{
    int64_t p = 1;

    for (int i = 0; i < n; i++)
        p *= v[i];
    return p;
}

static void conv_kind(struct run_step *s, struct conv_plan *p)
{
    int last = p->s - 1;
    bool plain = true, line = p->cin == p->groups;

    for (int i = 0; i < p->s; i++) {
        plain &= p->kern[i] == 1 && p->stride[i] == 1 && p->before[i] == 0 &&
                 p->out[i] == p->in[i];
        if (i < last)
            line &= p->kern[i] == 1 && p->stride[i] == 1 && p->before[i] == 0 &&
                    p->out[i] == p->in[i];
    }
    p->pointwise = plain && p->groups == 1;
    p->line = line && p->stride[last] == 1 && !p->pointwise;
    if (p->pointwise) {
        p->chunk = p->out_elems;
        s->shared = p->in_elems == 1 ? 0 : p->in_elems * p->cin;
    } else if (p->line) {
        int64_t reach = (p->kern[last] - 1) * p->dil[last];

        s->per_work = p->out[last] + reach;
    } else {
        p->chunk = PATCH_FLOATS / p->ksize;
        p->chunk = p->chunk < 1 ? 1 : p->chunk;
        p->chunk = p->chunk > p->out_elems ? p->out_elems : p->chunk;
        s->shared = p->chunk * p->ksize;
    }
}

int prepare_conv(struct run_ctx *c, struct run_step *s, struct err *e)
{
    struct conv_plan *p = &s->p.conv;
    const struct mil_type *x = &run_arg(s, P_conv_x)->type;
    const struct mil_type *w = &run_arg(s, P_conv_weight)->type;
    const struct mil_type *y = &run_out(s, 0)->type;
    int n;

    (void)c;
    memset(p, 0, sizeof(*p));
    p->s = x->rank - 2;
    p->n = x->dims[0];
    p->groups = run_int(s, P_conv_groups, 1);
    p->cin = x->dims[1];
    p->cout = w->dims[0];
    for (int i = 0; i < 3; i++)
        p->stride[i] = p->dil[i] = 1;
    if (run_ints(s, P_conv_strides, 3, p->stride, &n, e) ||
        run_ints(s, P_conv_dilations, 3, p->dil, &n, e))
        return -1;
    for (int i = 0; i < p->s; i++) {
        p->in[i] = x->dims[i + 2];
        p->out[i] = y->dims[i + 2];
        p->kern[i] = w->dims[i + 2];
    }
    if (conv_padding(s, p, x, e))
        return -1;
    p->in_elems = prod(p->in, p->s);
    p->out_elems = prod(p->out, p->s);
    p->ksize = p->cin / p->groups * prod(p->kern, p->s);
    if (p->ksize == 0 || p->in_elems == 0)
        return run_fail(s, e, "an empty convolution is not supported");
    conv_kind(s, p);
    s->per_work += weight_scratch(run_arg(s, P_conv_weight), p->ksize);
    return 0;
}

static int conv_pointwise(struct run_ctx *c, const struct run_step *s,
                          struct err *e)
{
    const struct conv_plan *p = &s->p.conv;
    const float *x = run_arg(s, P_conv_x)->data;
    const struct run_slot *bias = run_arg(s, P_conv_bias);
    struct run_slot *y = run_out(s, 0);
    struct gemm_batch b = { .m = p->cout, .batches = 1 };

    b.g.ldw = b.g.ldx = b.g.k = p->cin;
    weight_rows(&b, run_arg(s, P_conv_weight), 0);
    b.g.n = p->in_elems;
    b.g.bias = bias ? bias->data : NULL;
    b.g.om = p->in_elems;
    b.g.on = 1;
    b.g.half = run_rounds(c, y);
    for (int64_t i = 0; i < p->n; i++) {
        const float *xi = x + i * p->cin * p->in_elems;

        b.g.x = xi;
        if (p->in_elems > 1) {
            nd_transpose(c->par, c->shared, xi, p->cin, p->in_elems,
                         p->in_elems);
            b.g.x = c->shared;
        }
        b.g.out = (float *)y->data + i * p->cout * p->in_elems;
        if (weight_gemm(c, &b, e))
            return -1;
    }
    return 0;
}

int run_conv_calls(struct run_ctx *c, const struct run_step *s, int64_t n,
                   int64_t stride, struct err *e)
{
    const struct conv_plan *p = &s->p.conv;
    const struct run_slot *bias = run_arg(s, P_conv_bias);
    struct run_slot *y = run_out(s, 0);
    struct gemm_batch b = { .m = p->cout, .batches = 1 };

    b.g.ldw = b.g.k = p->cin;
    weight_rows(&b, run_arg(s, P_conv_weight), 0);
    b.g.x = run_arg(s, P_conv_x)->data;
    b.g.ldx = stride;
    b.g.n = n;
    b.g.bias = bias ? bias->data : NULL;
    b.g.out = y->data;
    b.g.om = 1;
    b.g.on = stride;
    b.g.half = run_rounds(c, y);
    return weight_gemm(c, &b, e);
}

/* Depthwise along the last dim: each output row is a few shifted input rows,
 * weighted. */
struct line_job {
    struct run_ctx *c;
    const struct conv_plan *p;
    const float *x, *w, *bias;
    float *y;
    bool half;
};

static void conv_line_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct line_job *j = arg;
    const struct conv_plan *p = j->p;
    int last = p->s - 1;
    float *row = j->c->work + worker * j->c->work_floats;
    int64_t lines = p->out_elems / p->out[last], k = p->kern[last];
    int64_t len = p->out[last] + (k - 1) * p->dil[last], in = p->in[last];
    int64_t before = p->before[last];

    for (uint64_t i = begin; i < end; i++) {
        int64_t line = (int64_t)i % lines, oc = (int64_t)i / lines % p->cout;
        int64_t n = (int64_t)i / lines / p->cout;
        int64_t ic = oc / (p->cout / p->groups);
        const float *src = j->x + ((n * p->cin + ic) * lines + line) * in;

        for (int64_t t = 0; t < len; t++)
            row[t] = t < before || t - before >= in ? 0.0f : src[t - before];
        j->c->k->vecmat(j->w + oc * k, row, p->dil[last], k,
                        j->y + (int64_t)i * p->out[last], 0, p->out[last],
                        j->bias ? j->bias + oc : NULL, j->half);
    }
}

static void conv_line(struct run_ctx *c, const struct run_step *s)
{
    const struct conv_plan *p = &s->p.conv;
    const struct run_slot *bias = run_arg(s, P_conv_bias);
    struct run_slot *y = run_out(s, 0);
    struct line_job j = { c,
                          p,
                          run_arg(s, P_conv_x)->data,
                          run_arg(s, P_conv_weight)->data,
                          bias ? bias->data : NULL,
                          y->data,
                          run_rounds(c, y) };

    run_par(c, p->n * p->cout * (p->out_elems / p->out[p->s - 1]),
            p->out[p->s - 1] * (p->kern[p->s - 1] + 4), conv_line_range, &j);
}

/* The patch of one output position: channels of a group, then the kernel. */
static void conv_patch(const struct conv_plan *p, const float *x, int64_t pos,
                       float *patch)
{
    int64_t at[3] = { 0, 0, 0 }, channels = p->cin / p->groups, i = 0;
    int64_t in[3] = { 1, 1, 1 }, kern[3] = { 1, 1, 1 };

    for (int d = p->s - 1; d >= 0; d--) {
        at[d] = pos % p->out[d] * p->stride[d] - p->before[d];
        pos /= p->out[d];
        in[d] = p->in[d];
        kern[d] = p->kern[d];
    }
    for (int64_t ch = 0; ch < channels; ch++, x += p->in_elems)
        for (int64_t a = 0; a < kern[0]; a++)
            for (int64_t b = 0; b < kern[1]; b++)
                for (int64_t q = 0; q < kern[2]; q++) {
                    int64_t u = at[0] + a * p->dil[0];
                    int64_t v = at[1] + b * p->dil[1];
                    int64_t w = at[2] + q * p->dil[2];
                    bool in_x = u >= 0 && u < in[0] && v >= 0 && v < in[1] &&
                                w >= 0 && w < in[2];

                    patch[i++] = in_x ? x[(u * in[1] + v) * in[2] + w] : 0.0f;
                }
}

struct patch_job {
    const struct conv_plan *p;
    const float *x;
    int64_t first;
    float *dst;
};

static void patch_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct patch_job *j = arg;

    (void)worker;
    for (uint64_t i = begin; i < end; i++)
        conv_patch(j->p, j->x, j->first + (int64_t)i,
                   j->dst + (int64_t)i * j->p->ksize);
}

static int conv_group(struct run_ctx *c, const struct run_step *s, int64_t n,
                      int64_t group, struct err *e)
{
    const struct conv_plan *p = &s->p.conv;
    const struct run_slot *bias = run_arg(s, P_conv_bias);
    struct run_slot *y = run_out(s, 0);
    int64_t m = p->cout / p->groups, ch = p->cin / p->groups;
    struct gemm_batch b = { .m = m, .batches = 1 };
    struct patch_job j = { .p = p, .dst = c->shared };
    float *out = (float *)y->data + (n * p->cout + group * m) * p->out_elems;

    j.x = (const float *)run_arg(s, P_conv_x)->data +
          (n * p->cin + group * ch) * p->in_elems;
    b.g.ldw = b.g.ldx = b.g.k = p->ksize;
    weight_rows(&b, run_arg(s, P_conv_weight), group * m);
    b.g.x = c->shared;
    b.g.bias = bias ? (const float *)bias->data + group * m : NULL;
    b.g.om = p->out_elems;
    b.g.on = 1;
    b.g.half = run_rounds(c, y);
    for (int64_t t = 0; t < p->out_elems; t += p->chunk) {
        b.g.n = p->out_elems - t < p->chunk ? p->out_elems - t : p->chunk;
        j.first = t;
        run_par(c, b.g.n, p->ksize * 2, patch_range, &j);
        b.g.out = out + t;
        if (weight_gemm(c, &b, e))
            return -1;
    }
    return 0;
}

int run_conv(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct conv_plan *p = &s->p.conv;

    if (p->pointwise)
        return conv_pointwise(c, s, e);
    if (p->line)
        conv_line(c, s);
    for (int64_t n = 0; n < p->n && !p->line; n++)
        for (int64_t g = 0; g < p->groups; g++)
            if (conv_group(c, s, n, g, e))
                return -1;
    return 0;
}

/* ---- linear ---- */

/* Integer products wrap, as two's complement does. */
static int32_t int_dot(const int32_t *a, int64_t as, const int32_t *b,
                       int64_t bs, int64_t k)
{
    uint32_t sum = 0;

    for (int64_t i = 0; i < k; i++)
        sum += (uint32_t)a[i * as] * (uint32_t)b[i * bs];
    return (int32_t)sum;
}

int prepare_linear(struct run_ctx *c, struct run_step *s, struct err *e)
{
    const struct run_slot *w = run_arg(s, P_linear_weight);

    (void)c;
    if (run_is_float(run_arg(s, P_linear_x)) != run_is_float(w))
        return run_fail(s, e, "x and weight must both be floats or integers");
    s->per_work = weight_scratch(w, w->type.dims[1]);
    return 0;
}

int run_linear(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_linear_x);
    const struct run_slot *w = run_arg(s, P_linear_weight);
    const struct run_slot *bias = run_arg(s, P_linear_bias);
    struct run_slot *y = run_out(s, 0);
    int64_t m = w->type.dims[0], k = w->type.dims[1];
    int64_t n = m ? y->elems / m : 0;
    struct gemm_batch b = { .m = m, .batches = 1 };

    if (!run_is_float(x)) {
        int32_t *out = y->data;
        const int32_t *xi = x->data, *wi = w->data;

        for (int64_t i = 0; i < n * m; i++) {
            int32_t v = int_dot(xi + i / m * k, 1, wi + i % m * k, 1, k);

            if (bias)
                v = (int32_t)((uint32_t)v +
                              (uint32_t)((int32_t *)bias->data)[i % m]);
            out[i] = v;
        }
        return 0;
    }
    b.g.ldw = b.g.ldx = b.g.k = k;
    weight_rows(&b, w, 0);
    b.g.x = x->data;
    b.g.n = n;
    b.g.bias = bias ? bias->data : NULL;
    b.g.out = y->data;
    b.g.om = 1;
    b.g.on = m;
    b.g.half = run_rounds(c, y);
    return weight_gemm(c, &b, e);
}

/* ---- matmul ---- */

/* Batch strides of one operand, in matrices, over the result's batch dims. */
static int64_t batch_strides(const struct mil_type *t, int nb,
                             const int64_t *bd, int64_t mat, int64_t *strides)
{
    int own = t->rank > 2 ? t->rank - 2 : 0;
    int64_t count = 1;

    for (int i = nb - 1; i >= 0; i--) {
        int j = i - (nb - own);
        int64_t d = j < 0 ? 1 : t->dims[j];

        strides[i] = d == 1 && bd[i] != 1 ? 0 : count * mat;
        count *= d;
    }
    return count;
}

/* How operands must lie; shapes are in p. */
static void matmul_layout(struct run_step *s, struct matmul_plan *p)
{
    bool y_rows = p->ty || p->n == 1;

    p->pack_x = p->tx && p->m != 1 && p->k != 1;
    p->vecmat = !y_rows && p->m < VECMAT_ROWS;
    p->pack_y = !y_rows && !p->vecmat && p->k != 1;
    s->shared = (p->pack_x ? p->x_mats * p->m * p->k : 0) +
                (p->pack_y ? p->y_mats * p->n * p->k : 0);
    s->per_work = kern_gemm_scratch(p->k);
}

int prepare_matmul(struct run_ctx *c, struct run_step *s, struct err *e)
{
    struct matmul_plan *p = &s->p.matmul;
    const struct run_slot *x = run_arg(s, P_matmul_x);
    const struct run_slot *y = run_arg(s, P_matmul_y);
    const struct mil_type *o = &run_out(s, 0)->type;
    int xr = x->type.rank, yr = y->type.rank;

    (void)c;
    memset(p, 0, sizeof(*p));
    if (run_is_float(x) != run_is_float(y))
        return run_fail(s, e, "x and y must both be floats or integers");
    p->tx = run_bool(s, P_matmul_transpose_x, false);
    p->ty = run_bool(s, P_matmul_transpose_y, false);
    p->m = xr == 1 ? 1 : x->type.dims[p->tx ? xr - 1 : xr - 2];
    p->k = xr == 1 ? x->type.dims[0] : x->type.dims[p->tx ? xr - 2 : xr - 1];
    p->n = yr == 1 ? 1 : y->type.dims[p->ty ? yr - 2 : yr - 1];
    p->nb = o->rank - (xr > 1) - (yr > 1);
    p->batches = 1;
    for (int i = 0; i < p->nb; i++) {
        p->bd[i] = o->dims[i];
        p->batches *= o->dims[i];
    }
    p->x_mats = batch_strides(&x->type, p->nb, p->bd, p->m * p->k, p->xs);
    p->y_mats = batch_strides(&y->type, p->nb, p->bd, p->n * p->k, p->ys);
    p->half = p->ty && y->konst && y->konst->half;
    matmul_layout(s, p);
    return 0;
}

static void matmul_ints(const struct run_step *s)
{
    const struct matmul_plan *p = &s->p.matmul;
    const int32_t *x = run_arg(s, P_matmul_x)->data;
    const int32_t *y = run_arg(s, P_matmul_y)->data;
    int32_t *out = run_out(s, 0)->data;

    for (int64_t b = 0; b < p->batches; b++) {
        int64_t rest = b, xo = 0, yo = 0;

        for (int d = p->nb - 1; d >= 0; d--) {
            xo += rest % p->bd[d] * p->xs[d];
            yo += rest % p->bd[d] * p->ys[d];
            rest /= p->bd[d];
        }
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                *out++ =
                    int_dot(x + xo + (p->tx ? i : i * p->k), p->tx ? p->m : 1,
                            y + yo + (p->ty ? j * p->k : j), p->ty ? 1 : p->n,
                            p->k);
    }
}

struct vecmat_job {
    struct run_ctx *c;
    const struct matmul_plan *p;
    const float *x, *y;
    float *out;
    bool half;
};

static void vecmat_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct vecmat_job *j = arg;
    const struct matmul_plan *p = j->p;

    (void)worker;
    for (uint64_t i = begin; i < end; i++) {
        int64_t row = (int64_t)i % p->m, batch = (int64_t)i / p->m;
        const float *x = j->x + row * p->k, *y = j->y;

        for (int d = p->nb - 1; d >= 0; d--) {
            x += batch % p->bd[d] * p->xs[d];
            y += batch % p->bd[d] * p->ys[d];
            batch /= p->bd[d];
        }
        j->c->k->vecmat(x, y, p->n, p->k, j->out + (int64_t)i * p->n, 0, p->n,
                        NULL, j->half);
    }
}

/* Matrices [rows, cols] transposed one by one. */
static void pack(struct run_ctx *c, float *dst, const float *src, int64_t mats,
                 int64_t rows, int64_t cols)
{
    struct nd nd = { .rank = 3,
                     .d = { mats, cols, rows },
                     .ss = { rows * cols, 1, cols },
                     .ds = { rows * cols, rows, 1 } };

    nd_copy(c->par, dst, src, &nd);
}

/* Products of rows: the operand with more rows takes the weights' side. */
static void matmul_rows(struct run_ctx *c, const struct matmul_plan *p,
                        const float *x, const float *y, const f16_t *yh,
                        float *out, bool half)
{
    struct gemm_batch b = { .nb = p->nb,
                            .batches = p->batches,
                            .out_stride = p->m * p->n };
    bool y_first = yh || p->n >= p->m;

    for (int i = 0; i < p->nb; i++) {
        b.bd[i] = p->bd[i];
        b.ws[i] = y_first ? p->ys[i] : p->xs[i];
        b.xs[i] = y_first ? p->xs[i] : p->ys[i];
    }
    b.m = y_first ? p->n : p->m;
    b.g.n = y_first ? p->m : p->n;
    b.g.wh = yh;
    b.g.w = y_first ? y : x;
    b.g.x = y_first ? x : y;
    b.g.ldw = b.g.ldx = b.g.k = p->k;
    b.g.om = y_first ? 1 : p->n;
    b.g.on = y_first ? p->n : 1;
    b.g.out = out;
    b.g.half = half;
    run_gemm(c, &b);
}

static void matmul_floats(struct run_ctx *c, const struct matmul_plan *p,
                          const float *x, const float *y, const f16_t *yh,
                          float *out, bool half, float *scratch)
{
    if (p->pack_x) {
        pack(c, scratch, x, p->x_mats, p->k, p->m);
        x = scratch;
        scratch += p->x_mats * p->m * p->k;
    }
    if (p->pack_y) {
        pack(c, scratch, y, p->y_mats, p->k, p->n);
        y = scratch;
    }
    if (p->vecmat) {
        struct vecmat_job j = { c, p, x, y, out, half };

        run_par(c, p->batches * p->m, p->k * p->n, vecmat_range, &j);
    } else {
        matmul_rows(c, p, x, y, yh, out, half);
    }
}

int run_matmul(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_matmul_x);
    const struct run_slot *y = run_arg(s, P_matmul_y);
    struct run_slot *out = run_out(s, 0);

    (void)e;
    if (run_is_float(out))
        matmul_floats(c, &s->p.matmul, x->data, y->data,
                      s->p.matmul.half ? y->konst->half : NULL, out->data,
                      run_rounds(c, out), c->shared);
    else
        matmul_ints(s);
    return 0;
}

/* ---- einsum ---- */

/* out[b,c,h,u] = sum_w x[b,c,h,w] * y[b,w,h,u]; b and h may be 1 on one
 * side. */
int run_einsum(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_item(s, P_einsum_values, 0);
    const struct run_slot *y = run_item(s, P_einsum_values, 1);
    struct run_slot *out = run_out(s, 0);
    int o = x->type.rank - 3;
    const int64_t *xd = x->type.dims + o, *yd = y->type.dims + o;
    const int64_t *od = out->type.dims + o;
    int64_t batches = o ? out->type.dims[0] : 1;
    int64_t xb = o && x->type.dims[0] > 1 ? xd[0] * xd[1] * xd[2] : 0;
    int64_t yb = o && y->type.dims[0] > 1 ? yd[0] * yd[1] * yd[2] : 0;

    (void)e;
    for (int64_t i = 0; i < batches * od[0] * od[1]; i++) {
        int64_t h = i % od[1], ch = i / od[1] % od[0];
        int64_t b = i / od[1] / od[0];
        const float *xr = (const float *)x->data + b * xb +
                          (ch * xd[1] + (xd[1] > 1 ? h : 0)) * xd[2];
        const float *yr =
            (const float *)y->data + b * yb + (yd[1] > 1 ? h : 0) * yd[2];

        c->k->vecmat(xr, yr, yd[1] * yd[2], xd[2],
                     (float *)out->data + i * od[2], 0, od[2], NULL,
                     run_rounds(c, out));
    }
    return 0;
}

/* ---- attention ---- */

/* The two products of attention as matmul plans. */
static void sdpa_plans(const struct run_step *s, struct matmul_plan *qk,
                       struct matmul_plan *pv)
{
    const struct mil_type *q =
        &run_arg(s, P_scaled_dot_product_attention_query)->type;
    const struct mil_type *v =
        &run_arg(s, P_scaled_dot_product_attention_value)->type;
    int r = q->rank;
    struct run_step unused = { 0 };

    memset(qk, 0, sizeof(*qk));
    qk->nb = 1;
    qk->batches = prod(q->dims, r - 2);
    qk->bd[0] = qk->x_mats = qk->y_mats = qk->batches;
    qk->m = q->dims[r - 2];
    *pv = *qk;
    qk->k = q->dims[r - 1];
    qk->n = pv->k = v->dims[r - 2];
    pv->n = v->dims[r - 1];
    qk->ty = true;
    qk->xs[0] = qk->m * qk->k;
    qk->ys[0] = qk->n * qk->k;
    pv->xs[0] = pv->m * pv->k;
    pv->ys[0] = pv->k * pv->n;
    matmul_layout(&unused, qk);
    matmul_layout(&unused, pv);
}

int prepare_scaled_dot_product_attention(struct run_ctx *c, struct run_step *s,
                                         struct err *e)
{
    struct matmul_plan qk, pv;

    (void)c;
    sdpa_plans(s, &qk, &pv);
    if (qk.n > 0 && qk.batches * qk.m > ((int64_t)1 << 40) / qk.n)
        return run_fail(s, e, "the scores are too large");
    s->shared = qk.batches * qk.m * qk.n + pv.y_mats * pv.k * pv.n;
    s->per_work = kern_gemm_scratch(qk.k > pv.k ? qk.k : pv.k);
    return 0;
}

struct scores_job {
    struct run_ctx *c;
    const struct run_step *s;
    const struct run_slot *mask;
    const struct mil_type *q;
    int64_t n;
    float scale;
};

/* Scales, masks and normalises rows of scores in place. */
static void scores_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct scores_job *j = arg;

    (void)worker;
    for (uint64_t i = begin; i < end; i++) {
        float *row = j->c->shared + (int64_t)i * j->n;
        int64_t rest = (int64_t)i, at = 0, stride = j->n;

        for (int64_t t = 0; t < j->n; t++)
            row[t] *= j->scale;
        if (j->mask) {
            const struct mil_type *mt = &j->mask->type;

            for (int d = j->q->rank - 2; d >= 0; d--) {
                int md = d - (j->q->rank - mt->rank);
                int64_t idx = rest % j->q->dims[d];

                rest /= j->q->dims[d];
                if (md >= 0 && mt->dims[md] > 1)
                    at += idx * stride;
                if (md >= 0)
                    stride *= mt->dims[md];
            }
            for (int64_t t = 0; t < j->n; t++) {
                if (run_is_float(j->mask))
                    row[t] += ((const float *)j->mask->data)[at + t];
                else if (!((const int32_t *)j->mask->data)[at + t])
                    row[t] = -INFINITY;
            }
        }
        j->c->k->softmax(row, row, (size_t)j->n);
    }
}

int run_scaled_dot_product_attention(struct run_ctx *c,
                                     const struct run_step *s, struct err *e)
{
    const struct run_slot *q = run_arg(s, P_scaled_dot_product_attention_query);
    const struct run_slot *k = run_arg(s, P_scaled_dot_product_attention_key);
    const struct run_slot *v = run_arg(s, P_scaled_dot_product_attention_value);
    struct run_slot *out = run_out(s, 0);
    struct matmul_plan qk, pv;
    struct scores_job j = {
        .c = c,
        .s = s,
        .mask = run_arg(s, P_scaled_dot_product_attention_attn_mask),
        .q = &q->type
    };

    (void)e;
    sdpa_plans(s, &qk, &pv);
    j.n = qk.n;
    j.scale = 1.0f / sqrtf((float)qk.k);
    matmul_floats(c, &qk, q->data, k->data, NULL, c->shared, false, NULL);
    run_par(c, qk.batches * qk.m, 4 * qk.n, scores_range, &j);
    matmul_floats(c, &pv, c->shared, v->data, NULL, out->data,
                  run_rounds(c, out), c->shared + qk.batches * qk.m * qk.n);
    return 0;
}
