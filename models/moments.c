/*
 * Moments of the inputs of matrices. Matrices share one if they are seen one
 * right after the other with the same memory and the same bits in it. Should
 * two that shared come apart, the later one begins anew.
 */
#include "models/moments.h"

#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/mem.h"
#include "converter/base/sgemm.h"

#define PANEL SGEMM_PANEL /* rows of a moment that one thread works on */

/* One input. */
struct input {
    struct moment pub;
    double *sums;        /* pub.diag */
    struct hash128 last; /* of the rows that came last */
    uint64_t calls;
};
/* A matrix and its input. */
struct seen {
    char name[128];
    uint64_t row, rows;
    size_t input;
    uint64_t calls;
};
struct moments {
    struct par *par;
    uint64_t full_bytes, full_used;
    size_t without;
    struct input *inputs;
    size_t n_inputs, cap_inputs;
    struct seen *seen;
    size_t n_seen, cap_seen;
    const float *last_x; /* of the call before, and its input */
    size_t last_input;
    /* Of one call: x transposed and packed, sums of the threads. */
    float *t, *packed;
    size_t cap_t, cap_packed;
    double *c;
};

struct moments *moments_new(struct par *par, uint64_t full_bytes, struct err *e)
{
    struct moments *m = mem_zalloc(1, sizeof(*m), e);

    if (!m)
        return NULL;
    m->par = par;
    m->full_bytes = full_bytes;
    m->c = mem_alloc_aligned((size_t)par_width(par) * PANEL * SGEMM_BATCH,
                             sizeof(*m->c), e);
    if (m->c)
        return m;
    mem_free(m);
    return NULL;
}

void moments_free(struct moments *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_inputs; i++) {
        mem_free(m->inputs[i].sums);
        mem_free(m->inputs[i].pub.full);
    }
    mem_free(m->inputs);
    mem_free(m->seen);
    mem_free(m->t);
    mem_free(m->packed);
    mem_free(m->c);
    mem_free(m);
}

/* ---- which input ---- */

static struct seen *find_seen(const struct moments *m, const char *name,
                              uint64_t row)
{
    for (size_t i = m->n_seen; i-- > 0;)
        if (m->seen[i].row <= row && row - m->seen[i].row < m->seen[i].rows &&
            !strcmp(m->seen[i].name, name))
            return &m->seen[i];
    return NULL;
}

/* Room for the full moment, if there is any left. */
static int start_full(struct moments *m, struct input *in, struct err *e)
{
    uint64_t elems, bytes;

    if (!m->full_bytes)
        return 0;
    if (!mem_mul(in->pub.width + 1, in->pub.width, &elems) ||
        !mem_mul(elems, sizeof(float), &bytes) ||
        bytes > m->full_bytes - m->full_used) {
        m->without++;
        return 0;
    }
    in->pub.full = mem_zalloc((size_t)elems, sizeof(float), e);
    m->full_used += bytes;
    return in->pub.full ? 0 : -1;
}

static int add_input(struct moments *m, size_t width, struct err *e)
{
    struct input *in;

    if (m->n_inputs == m->cap_inputs &&
        mem_grow((void **)&m->inputs, &m->cap_inputs, m->n_inputs,
                 sizeof(*m->inputs), e))
        return -1;
    in = &m->inputs[m->n_inputs];
    memset(in, 0, sizeof(*in));
    in->pub.width = width;
    in->sums = mem_zalloc(width, sizeof(*in->sums), e);
    in->pub.diag = in->sums;
    if (!in->sums)
        return -1;
    m->n_inputs++;
    return start_full(m, in, e);
}

/* A matrix that is new: with the input that just came, or its own. */
static struct seen *add_seen(struct moments *m, const char *name, uint64_t row,
                             size_t out, size_t in, bool shared, struct err *e)
{
    struct seen *s;
    size_t at = shared ? m->last_input : m->n_inputs;

    if (at == m->n_inputs && add_input(m, in, e))
        return NULL;
    if (m->n_seen == m->cap_seen && mem_grow((void **)&m->seen, &m->cap_seen,
                                             m->n_seen, sizeof(*m->seen), e))
        return NULL;
    s = &m->seen[m->n_seen++];
    memset(s, 0, sizeof(*s));
    memcpy(s->name, name, strlen(name) + 1);
    s->row = row;
    s->rows = out;
    s->input = at;
    return s;
}

/* ---- sums ---- */

static void add_diag(double *sums, const float *x, size_t n, size_t width)
{
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < width; j++)
            sums[j] += (double)x[t * width + j] * (double)x[t * width + j];
}

static int room(float **p, size_t *cap, size_t elems, struct err *e)
{
    if (elems <= *cap)
        return 0;
    mem_free(*p);
    *cap = 0;
    *p = mem_alloc_aligned(elems, sizeof(**p), e);
    if (!*p)
        return -1;
    *cap = elems;
    return 0;
}

struct product {
    struct moments *m;
    float *full;
    size_t width, n; /* tokens: the inner axis */
    bool odd;        /* the part */
};

/* Of x_i x_j, j <= i. */
static size_t place_of(size_t width, size_t i, size_t j, bool odd)
{
    return odd ? j * width + i : (i + 1) * width + j;
}

/* c [rows of the panel, batch] of rows j .. and i .. of the transposed x. */
static void panel_batch(const struct product *p, size_t j, size_t mj, size_t i,
                        size_t ni, double *c)
{
    memset(c, 0, mj * ni * sizeof(*c));
    for (size_t at = 0; at < p->n; at += SGEMM_SLICE) {
        size_t len = p->n - at < SGEMM_SLICE ? p->n - at : SGEMM_SLICE;
        size_t ld = sgemm_pad(len);
        const float *x = p->m->packed + p->width * at;

        sgemm_slice(x + i * ld, ld, ni, x + j * ld, ld, mj, ld, c, ni);
    }
}

/* Lower triangle: columns up to the panel's last row. */
static void panels(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct product *p = arg;
    double *c = p->m->c + (size_t)worker * PANEL * SGEMM_BATCH;

    for (uint64_t q = begin; q < end; q++) {
        size_t j = (size_t)q * PANEL;
        size_t mj = p->width - j < PANEL ? p->width - j : PANEL;

        for (size_t i = 0; i < j + mj; i += SGEMM_BATCH) {
            size_t ni = j + mj - i < SGEMM_BATCH ? j + mj - i : SGEMM_BATCH;

            panel_batch(p, j, mj, i, ni, c);
            for (size_t a = 0; a < mj; a++)
                for (size_t b = 0; b < ni && i + b <= j + a; b++)
                    p->full[place_of(p->width, j + a, i + b, p->odd)] +=
                        (float)c[a * ni + b];
        }
    }
}

static int add_full(struct moments *m, struct input *in, const float *x,
                    size_t n, struct err *e)
{
    struct product p = { m, in->pub.full, in->pub.width, n,
                         in->calls % 2 == 0 };
    size_t width = in->pub.width;

    if (room(&m->t, &m->cap_t, width * n, e) ||
        room(&m->packed, &m->cap_packed, width * sgemm_pad(n), e))
        return -1;
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < width; j++)
            m->t[j * n + t] = x[t * width + j];
    sgemm_pack(m->packed, m->t, n, width, n);
    par_for(m->par, (width + PANEL - 1) / PANEL, 1, panels, &p);
    return 0;
}

/* Whether the call before had this very input. */
static bool is_last(const struct moments *m, const float *x, size_t width,
                    struct hash128 hash)
{
    const struct input *in = m->n_inputs ? &m->inputs[m->last_input] : NULL;

    return in && m->last_x == x && in->pub.width == width &&
           in->last.hi == hash.hi && in->last.lo == hash.lo;
}

static int gather(struct moments *m, struct input *in, const float *x, size_t n,
                  struct hash128 hash, struct err *e)
{
    in->last = hash;
    in->pub.tokens += n;
    in->calls++;
    add_diag(in->sums, x, n, in->pub.width);
    return in->pub.full ? add_full(m, in, x, n, e) : 0;
}

static int see(void *cookie, const char *name, uint64_t row, size_t out,
               size_t in, const float *x, size_t n, struct err *e)
{
    struct moments *m = cookie;
    struct hash128 hash = hash_bytes(x, n * in * sizeof(*x));
    struct seen *s = find_seen(m, name, row);
    bool last = is_last(m, x, in, hash), fresh = !s;

    if (!s && !(s = add_seen(m, name, row, out, in, last, e)))
        return -1;
    if (last && s->input == m->last_input) {
        s->calls = m->inputs[s->input].calls;
        return 0;
    }
    if (!fresh && s->calls < m->inputs[s->input].calls) {
        /* It shared an input that has gone on without it. */
        s->input = m->n_inputs;
        if (add_input(m, in, e))
            return -1;
    }
    m->last_x = x;
    m->last_input = s->input;
    if (gather(m, &m->inputs[s->input], x, n, hash, e))
        return -1;
    s->calls = m->inputs[s->input].calls;
    return 0;
}

struct oracle_watch moments_watch(struct moments *m)
{
    return (struct oracle_watch){ see, m };
}

/* ---- results ---- */

static void finish_full(float *full, size_t width, float per)
{
    for (size_t i = 0; i < (width + 1) * width; i++)
        full[i] *= per;
}

void moments_finish(struct moments *m)
{
    for (size_t i = 0; i < m->n_inputs; i++) {
        struct input *in = &m->inputs[i];
        double per = in->pub.tokens ? 1 / (double)in->pub.tokens : 0;

        for (size_t j = 0; j < in->pub.width; j++)
            in->sums[j] *= per;
        if (in->pub.full)
            finish_full(in->pub.full, in->pub.width, (float)per);
    }
}

const struct moment *moments_find(const struct moments *m, const char *tensor,
                                  uint64_t row)
{
    const struct seen *s = find_seen(m, tensor, row);

    return s && m->inputs[s->input].pub.tokens ? &m->inputs[s->input].pub
                                               : NULL;
}

static float *part_of(const struct moment *of, bool odd, struct err *e)
{
    size_t w = of->width;
    float *part = mem_alloc(w * w, sizeof(*part), e);

    for (size_t i = 0; part && i < w; i++)
        for (size_t j = 0; j <= i; j++)
            part[i * w + j] = part[j * w + i] =
                of->full[place_of(w, i, j, odd)];
    return part;
}

int moments_take_full(struct moments *m, const struct moment *of,
                      float *part[2], struct err *e)
{
    part[0] = part[1] = NULL;
    if (!of->full)
        return 0;
    part[0] = part_of(of, false, e);
    part[1] = part_of(of, true, e);
    if (!part[0] || !part[1]) {
        mem_free(part[0]);
        mem_free(part[1]);
        part[0] = part[1] = NULL;
        return -1;
    }
    for (size_t i = 0; i < m->n_inputs; i++)
        if (&m->inputs[i].pub == of) {
            mem_free(m->inputs[i].pub.full);
            m->inputs[i].pub.full = NULL;
        }
    return 0;
}

void moments_count(const struct moments *m, size_t *full, size_t *without)
{
    *full = 0;
    for (size_t i = 0; i < m->n_inputs; i++)
        *full += m->inputs[i].pub.full != NULL;
    *without = m->without;
}
