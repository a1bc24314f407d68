/*
 * Normalisations, reductions, softmax, cumulative sums, top k: operations on
 * rows. Rows that do not lie contiguously are gathered into scratch, worked
 * on and scattered back. Sums are float32 in the order of kern_priv.h.
 */
#include "mil/run/run_priv.h"

/* ---- rows ---- */

/* Rows along the axes in `mask`. */
static void rows_init(struct rows *r, const struct mil_type *t, unsigned mask)
{
    int64_t strides[MIL_MAX_RANK], expect = 1;

    memset(r, 0, sizeof(*r));
    nd_strides(t, strides);
    r->count = r->len = 1;
    r->contiguous = true;
    for (int i = 0; i < t->rank; i++) {
        if (mask >> i & 1) {
            r->rd[r->nr] = t->dims[i];
            r->rs[r->nr++] = strides[i];
            r->len *= t->dims[i];
        } else {
            r->kd[r->nk] = t->dims[i];
            r->ks[r->nk++] = strides[i];
            r->count *= t->dims[i];
        }
    }
    for (int i = r->nr - 1; i >= 0; i--) {
        if (r->rd[i] != 1 && r->rs[i] != expect)
            r->contiguous = false;
        expect *= r->rd[i];
    }
}

static unsigned mask_of(const struct run_step *s, int param, int rank, bool *ok,
                        struct err *e)
{
    int64_t axes[MIL_MAX_RANK];
    unsigned mask = 0;
    int n;

    *ok = run_ints(s, param, MIL_MAX_RANK, axes, &n, e) == 0;
    if (n < 0)
        return (1u << rank) - 1;
    for (int i = 0; *ok && i < n; i++)
        mask |= 1u << (axes[i] < 0 ? axes[i] + rank : axes[i]);
    return mask;
}

static int64_t row_start(const struct rows *r, int64_t i)
{
    int64_t at = 0;

    for (int d = r->nk - 1; d >= 0; d--) {
        at += i % r->kd[d] * r->ks[d];
        i /= r->kd[d];
    }
    return at;
}

/* The row between its place and contiguous memory. */
static void row_move(const struct rows *r, int64_t at, void *place, void *row,
                     bool gather)
{
    struct nd nd = { .rank = r->nr };
    int64_t s = 1;

    for (int i = r->nr - 1; i >= 0; i--) {
        nd.d[i] = r->rd[i];
        nd.ss[i] = gather ? r->rs[i] : s;
        nd.ds[i] = gather ? s : r->rs[i];
        s *= r->rd[i];
    }
    if (gather)
        nd_copy(NULL, row, (uint32_t *)place + at, &nd);
    else
        nd_copy(NULL, (uint32_t *)place + at, row, &nd);
}

struct rows_job {
    struct run_ctx *c;
    const struct run_step *s;
    void *x, *y;
    const float *gamma, *beta;
    float *out;
    int32_t *iout;
};

/* Row i of x in contiguous memory; `spare` has room for it. */
static void *row_in(const struct rows_job *j, int64_t i, void *spare)
{
    const struct rows *r = &j->s->p.norm.r;
    int64_t at = row_start(r, i);

    if (r->contiguous)
        return (uint32_t *)j->x + at;
    row_move(r, at, j->x, spare, true);
    return spare;
}

/* Where row i of y may be written; row_done() puts it there. */
static void *row_out(const struct rows_job *j, int64_t i, void *spare)
{
    const struct rows *r = &j->s->p.norm.r;

    return r->contiguous ? (uint32_t *)j->y + row_start(r, i) : spare;
}

static void row_done(const struct rows_job *j, int64_t i, void *row)
{
    const struct rows *r = &j->s->p.norm.r;

    if (j->s->round)
        j->c->k->round(row, row, (size_t)r->len);
    if (!r->contiguous)
        row_move(r, row_start(r, i), j->y, row, false);
}

/* Scratch of a worker: two rows. */
static float *spare_of(const struct rows_job *j, int worker)
{
    return j->c->work + worker * j->c->work_floats;
}

static void rows_prepare(struct run_step *s, unsigned mask)
{
    rows_init(&s->p.norm.r, &run_arg(s, 0)->type, mask);
    s->per_work = 2 * s->p.norm.r.len;
}

static void rows_run(struct run_ctx *c, const struct run_step *s, par_fn fn,
                     struct rows_job *j)
{
    j->c = c;
    j->s = s;
    j->x = run_arg(s, 0)->data;
    j->y = run_out(s, 0)->data;
    run_par(c, s->p.norm.r.count, 2 * s->p.norm.r.len, fn, j);
}

static unsigned axis_mask(const struct run_step *s, int param, int64_t fallback)
{
    int64_t a = run_int(s, param, fallback);

    return 1u << (a < 0 ? a + run_arg(s, 0)->type.rank : a);
}

/* ---- layer_norm, l2_norm, softmax ---- */

int prepare_layer_norm(struct run_ctx *c, struct run_step *s, struct err *e)
{
    bool ok;

    (void)c;
    rows_prepare(s, mask_of(s, P_layer_norm_axes, run_arg(s, 0)->type.rank, &ok,
                            e));
    s->p.norm.eps = run_float(s, P_layer_norm_epsilon, 1e-5f);
    return ok ? 0 : -1;
}

static void layer_norm_range(void *arg, uint64_t begin, uint64_t end,
                             int worker)
{
    const struct rows_job *j = arg;
    size_t n = (size_t)j->s->p.norm.r.len;
    float *spare = spare_of(j, worker);

    for (uint64_t i = begin; i < end; i++) {
        float *x = row_in(j, (int64_t)i, spare);
        float *y = row_out(j, (int64_t)i, spare + n);
        float mean = j->c->k->sum(x, n) / (float)n;
        float var = j->c->k->sum_sq(x, mean, n) / (float)n;

        j->c->k->normalize(y, x, mean, 1.0f / sqrtf(var + j->s->p.norm.eps),
                           j->gamma, j->beta, n);
        row_done(j, (int64_t)i, y);
    }
}

int run_layer_norm(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *gamma = run_arg(s, P_layer_norm_gamma);
    const struct run_slot *beta = run_arg(s, P_layer_norm_beta);
    struct rows_job j = { .gamma = gamma ? gamma->data : NULL,
                          .beta = beta ? beta->data : NULL };

    (void)e;
    rows_run(c, s, layer_norm_range, &j);
    return 0;
}

/* Over the last three dims together. */
int prepare_l2_norm(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    (void)e;
    rows_prepare(s, 7u << (run_arg(s, 0)->type.rank - 3));
    s->p.norm.eps = run_float(s, P_l2_norm_epsilon, 1e-6f);
    return 0;
}

static void l2_norm_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct rows_job *j = arg;
    size_t n = (size_t)j->s->p.norm.r.len;
    float *spare = spare_of(j, worker);

    for (uint64_t i = begin; i < end; i++) {
        float *x = row_in(j, (int64_t)i, spare);
        float *y = row_out(j, (int64_t)i, spare + n);
        float sum = j->c->k->sum_sq(x, 0.0f, n);

        j->c->k->normalize(y, x, 0.0f, 1.0f / sqrtf(sum + j->s->p.norm.eps),
                           NULL, NULL, n);
        row_done(j, (int64_t)i, y);
    }
}

int run_l2_norm(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    struct rows_job j = { 0 };

    (void)e;
    rows_run(c, s, l2_norm_range, &j);
    return 0;
}

int prepare_softmax(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    (void)e;
    rows_prepare(s, axis_mask(s, P_softmax_axis, -1));
    return 0;
}

static void softmax_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct rows_job *j = arg;
    size_t n = (size_t)j->s->p.norm.r.len;
    float *spare = spare_of(j, worker);

    for (uint64_t i = begin; i < end; i++) {
        float *x = row_in(j, (int64_t)i, spare);
        float *y = row_out(j, (int64_t)i, spare + n);

        j->c->k->softmax(y, x, n);
        row_done(j, (int64_t)i, y);
    }
}

int run_softmax(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    struct rows_job j = { 0 };

    (void)e;
    rows_run(c, s, softmax_range, &j);
    return 0;
}

/* ---- reductions ---- */

enum { R_SUM, R_MEAN, R_MAX, R_MIN, R_SUM_SQUARE, R_L2, R_LOG_SUM_EXP };

static float min_of(const float *x, size_t n)
{
    float m = INFINITY;

    for (size_t i = 0; i < n; i++)
        m = x[i] < m || !(x[i] == x[i]) ? x[i] : m;
    return m;
}

static float log_sum_exp(const struct kern *k, const float *x, float *spare,
                         size_t n)
{
    float m = k->max(x, n);

    if (!(fabsf(m) < INFINITY))
        m = m == m && m < 0.0f ? 0.0f : m;
    for (size_t i = 0; i < n; i++)
        spare[i] = x[i] - m;
    if (m == INFINITY)
        return m;
    k->exp(spare, spare, n);
    return logf(k->sum(spare, n)) + m;
}

static float reduce_f(const struct kern *k, int kind, const float *x,
                      float *spare, size_t n)
{
    switch (kind) {
    case R_SUM: return k->sum(x, n);
    case R_MEAN: return k->sum(x, n) / (float)n;
    case R_MAX: return k->max(x, n);
    case R_MIN: return min_of(x, n);
    case R_SUM_SQUARE: return k->sum_sq(x, 0.0f, n);
    case R_L2: return sqrtf(k->sum_sq(x, 0.0f, n));
    default: return log_sum_exp(k, x, spare, n);
    }
}

/* Integers: sums wrap; the rest goes through double and truncates. */
static int32_t reduce_i(int kind, const int32_t *x, int64_t n)
{
    uint32_t sum = 0;
    double d = 0.0, ex = 0.0;
    int32_t m = n ? x[0] : 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)x[i];

        sum += kind == R_SUM ? u : u * u;
        d += kind == R_MEAN ? (double)x[i] : (double)x[i] * x[i];
        m = kind == R_MAX && x[i] > m ? x[i] : m;
        m = kind == R_MIN && x[i] < m ? x[i] : m;
        ex += kind == R_LOG_SUM_EXP ? exp((double)x[i]) : 0.0;
    }
    switch (kind) {
    case R_SUM:
    case R_SUM_SQUARE: return (int32_t)sum;
    case R_MEAN: return n ? (int32_t)(d / (double)n) : 0;
    case R_L2: d = sqrt(d); return d < 2147483647.0 ? (int32_t)d : INT32_MAX;
    case R_LOG_SUM_EXP:
        ex = log(ex);
        return ex > -2147483647.0 && ex < 2147483647.0 ? (int32_t)ex : 0;
    default: return m;
    }
}

static void reduce_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct rows_job *j = arg;
    const struct rows *r = &j->s->p.norm.r;
    float *spare = spare_of(j, worker);
    bool flt = run_is_float(run_arg(j->s, 0));

    for (uint64_t i = begin; i < end; i++) {
        void *x = row_in(j, (int64_t)i, spare);

        if (flt)
            ((float *)j->y)[i] = reduce_f(j->c->k, j->s->p.norm.kind, x,
                                          spare + r->len, (size_t)r->len);
        else
            ((int32_t *)j->y)[i] = reduce_i(j->s->p.norm.kind, x, r->len);
    }
    if (j->s->round)
        j->c->k->round((float *)j->y + begin, (float *)j->y + begin,
                       (size_t)(end - begin));
}

#define REDUCE(id, what)                                                     \
    int prepare_##id(struct run_ctx *c, struct run_step *s, struct err *e)   \
    {                                                                        \
        bool ok;                                                             \
                                                                             \
        (void)c;                                                             \
        rows_prepare(s, mask_of(s, P_##id##_axes, run_arg(s, 0)->type.rank,  \
                                &ok, e));                                    \
        s->p.norm.kind = (what);                                             \
        return ok ? 0 : -1;                                                  \
    }                                                                        \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
    {                                                                        \
        struct rows_job j = { 0 };                                           \
                                                                             \
        (void)e;                                                             \
        rows_run(c, s, reduce_range, &j);                                    \
        return 0;                                                            \
    }
REDUCE(reduce_sum, R_SUM)
REDUCE(reduce_mean, R_MEAN)
REDUCE(reduce_max, R_MAX)
REDUCE(reduce_min, R_MIN)
REDUCE(reduce_sum_square, R_SUM_SQUARE)
REDUCE(reduce_l2_norm, R_L2)
REDUCE(reduce_log_sum_exp, R_LOG_SUM_EXP)

/* ---- argmax, argmin ---- */

/* First of equals; the first NaN wins, as in numpy. */
static int32_t arg_of(const void *row, bool flt, bool max, int64_t n)
{
    const float *f = row;
    const int32_t *v = row;
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++) {
        if (flt) {
            if (!(f[best] == f[best]))
                break;
            if ((max ? f[i] > f[best] : f[i] < f[best]) || !(f[i] == f[i]))
                best = i;
        } else if (max ? v[i] > v[best] : v[i] < v[best]) {
            best = i;
        }
    }
    return (int32_t)best;
}

static void arg_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct rows_job *j = arg;
    float *spare = spare_of(j, worker);
    bool flt = run_is_float(run_arg(j->s, 0));

    for (uint64_t i = begin; i < end; i++)
        ((int32_t *)j->y)[i] = arg_of(row_in(j, (int64_t)i, spare), flt,
                                      j->s->p.norm.flag, j->s->p.norm.r.len);
}

#define ARG(id, is_max)                                                      \
    int prepare_##id(struct run_ctx *c, struct run_step *s, struct err *e)   \
    {                                                                        \
        (void)c;                                                             \
        (void)e;                                                             \
        rows_prepare(s, axis_mask(s, P_##id##_axis, -1));                    \
        s->p.norm.flag = (is_max);                                           \
        return 0;                                                            \
    }                                                                        \
    int run_##id(struct run_ctx *c, const struct run_step *s, struct err *e) \
    {                                                                        \
        struct rows_job j = { 0 };                                           \
                                                                             \
        (void)e;                                                             \
        rows_run(c, s, arg_range, &j);                                       \
        return 0;                                                            \
    }
ARG(reduce_argmax, true)
ARG(reduce_argmin, false)

/* ---- cumsum ---- */

int prepare_cumsum(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    if (run_arg(s, P_cumsum_x)->type.rank < 1)
        return run_fail(s, e, "x must have rank 1 or more");
    rows_prepare(s, axis_mask(s, P_cumsum_axis, 0));
    s->p.norm.flag = run_bool(s, P_cumsum_exclusive, false);
    s->p.norm.reverse = run_bool(s, P_cumsum_reverse, false);
    return 0;
}

static void cumsum_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct rows_job *j = arg;
    int64_t n = j->s->p.norm.r.len;
    float *spare = spare_of(j, worker);
    bool flt = run_is_float(run_arg(j->s, 0));
    bool excl = j->s->p.norm.flag;

    for (uint64_t i = begin; i < end; i++) {
        void *x = row_in(j, (int64_t)i, spare);
        void *y = row_out(j, (int64_t)i, spare + n);
        const int32_t *xi = x;
        const float *xf = x;
        uint32_t u = 0;
        float f = 0.0f;

        for (int64_t t = 0; t < n; t++) {
            int64_t p = j->s->p.norm.reverse ? n - 1 - t : t;
            float before = f;
            uint32_t ubefore = u;

            if (flt) {
                f += xf[p];
                ((float *)y)[p] = excl ? before : f;
            } else {
                u += (uint32_t)xi[p];
                ((int32_t *)y)[p] = (int32_t)(excl ? ubefore : u);
            }
        }
        row_done(j, (int64_t)i, y);
    }
}

int run_cumsum(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    struct rows_job j = { 0 };

    (void)e;
    rows_run(c, s, cumsum_range, &j);
    return 0;
}

/* ---- topk ---- */

int prepare_topk(struct run_ctx *c, struct run_step *s, struct err *e)
{
    (void)c;
    (void)e;
    rows_prepare(s, axis_mask(s, P_topk_axis, -1));
    s->p.norm.k = run_int(s, P_topk_k, 1);
    s->p.norm.flag = run_bool(s, P_topk_ascending, false);
    return 0;
}

/* Whether element a of a row comes before b: by value, ties by index. */
static bool topk_before(const void *row, bool flt, bool ascending, int32_t a,
                        int32_t b)
{
    if (flt) {
        float x = ((const float *)row)[a], y = ((const float *)row)[b];

        if (x != y)
            return ascending ? x < y : x > y;
    } else {
        int32_t x = ((const int32_t *)row)[a], y = ((const int32_t *)row)[b];

        if (x != y)
            return ascending ? x < y : x > y;
    }
    return a < b;
}

static void sift(const void *row, bool flt, bool asc, int32_t *heap, int64_t n,
                 int64_t i)
{
    for (;;) {
        int64_t big = i, l = 2 * i + 1;
        int32_t t;

        /* the last in order sits on top */
        for (int64_t ch = l; ch < l + 2 && ch < n; ch++)
            if (topk_before(row, flt, asc, heap[big], heap[ch]))
                big = ch;
        if (big == i)
            return;
        t = heap[i];
        heap[i] = heap[big];
        heap[big] = t;
        i = big;
    }
}

/* Indices of the first k in order, sorted: a heap of the best so far. */
static void topk_row(const void *row, bool flt, bool asc, int64_t n, int64_t k,
                     int32_t *heap)
{
    for (int64_t i = 0; i < k; i++)
        heap[i] = (int32_t)i;
    for (int64_t i = k / 2 - 1; i >= 0; i--)
        sift(row, flt, asc, heap, k, i);
    for (int64_t i = k; i < n; i++)
        if (topk_before(row, flt, asc, (int32_t)i, heap[0])) {
            heap[0] = (int32_t)i;
            sift(row, flt, asc, heap, k, 0);
        }
    for (int64_t end = k - 1; end > 0; end--) {
        int32_t t = heap[0];

        heap[0] = heap[end];
        heap[end] = t;
        sift(row, flt, asc, heap, end, 0);
    }
}

int run_topk(struct run_ctx *c, const struct run_step *s, struct err *e)
{
    const struct run_slot *x = run_arg(s, P_topk_x);
    const struct rows *r = &s->p.norm.r;
    struct rows_job j = { .c = c, .s = s, .x = x->data };
    int64_t k = s->p.norm.k, inner = r->rs[0];
    float *spare = c->work;
    int32_t *heap = (int32_t *)(c->work + r->len);
    uint32_t *values = run_out(s, 0)->data;
    uint32_t *indices = s->op->n_outs > 1 ? run_out(s, 1)->data : NULL;

    (void)e;
    for (int64_t i = 0; i < r->count; i++) {
        const uint32_t *row = row_in(&j, i, spare);
        int64_t at = i / inner * inner * k + i % inner;

        topk_row(row, run_is_float(x), s->p.norm.flag, r->len, k, heap);
        for (int64_t t = 0; t < k; t++) {
            values[at + t * inner] = row[heap[t]];
            if (indices)
                indices[at + t * inner] = (uint32_t)heap[t];
        }
    }
    return 0;
}
