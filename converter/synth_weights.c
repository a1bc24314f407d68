/*
 * Synthetic checkpoints: the values of the weights and the files that hold
 * them.
 *
 * Every weight is a function of (seed, tensor name, row, column) alone, so no
 * order of writing and no sharding changes it. Values come from a table of
 * Gaussian quantiles made without libm.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/dmath.h"
#include "converter/base/hash.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/synth_priv.h"
#include "safetensors/st.h"

uint64_t synth_elems(const struct synth_tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

#define QUANTILE_BITS 14
#define QUANTILES (1 << QUANTILE_BITS)

static double density(double x)
{
    return 0.3989422804014327 * dm_exp(-0.5 * x * x);
}

/* q[k] = the point below which a share (k + 1/2) / QUANTILES of a Gaussian
 * lies. Marches outward from the middle, integrating by Simpson's rule and
 * correcting by Newton's. */
static void make_quantiles(float *q)
{
    double x = 0, p = 0.5;

    for (int k = QUANTILES / 2; k < QUANTILES; k++) {
        double want = (k + 0.5) / QUANTILES, from = x, reached = p;
        for (int i = 0; i < 4; i++) {
            x += (want - reached) / density(x);
            reached = p + (x - from) / 6 *
                              (density(from) + 4 * density((from + x) / 2) +
                               density(x));
        }
        p = reached;
        q[k] = (float)x;
        q[QUANTILES - 1 - k] = (float)-x;
    }
}

/* One row in 61 has heavy tails: one value in 64 there is six times larger. */
static void add_tails(float *dst, uint64_t n, uint64_t key)
{
    if (key % 61)
        return;
    for (uint64_t i = 0; i < n; i++)
        if (num_mix(key + i * NUM_GOLDEN) >> 58 == 0)
            dst[i] *= 6;
}

/* `scale` x a Gaussian each. */
static void draw(float *dst, uint64_t n, float scale, uint64_t *key,
                 const float *q)
{
    const uint64_t mask = QUANTILES - 1;
    uint64_t i = 0;

    for (; i + 4 <= n; i += 4) {
        uint64_t r = num_mix(*key += NUM_GOLDEN);
        dst[i] = scale * q[r & mask];
        dst[i + 1] = scale * q[r >> 16 & mask];
        dst[i + 2] = scale * q[r >> 32 & mask];
        dst[i + 3] = scale * q[r >> 48 & mask];
    }
    for (; i < n; i++)
        dst[i] = scale * q[num_mix(*key += NUM_GOLDEN) & mask];
}

static double unit(uint64_t key)
{
    return (double)(num_mix(key) >> 11) / 9007199254740992.0;
}

static void fill_row(float *dst, uint64_t n, const struct synth_tensor *t,
                     uint64_t key, const float *q)
{
    float centre = (float)t->centre, least = centre - 0.75f;

    if (t->kind == SYNTH_UNIFORM) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = (float)(t->centre +
                             t->sigma * (2 * unit(key += NUM_GOLDEN) - 1));
        return;
    }
    draw(dst, n, (float)(t->sigma * (0.75 + 0.5 * unit(key))), &key, q);
    if (t->kind == SYNTH_MATRIX) {
        add_tails(dst, n, key);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        dst[i] = centre + dst[i] < least ? least : centre + dst[i];
}

#define BLOCK_ELEMS UINT64_C(262144)

struct maker {
    const struct synth_plan *plan;
    uint64_t seed;
    const char *dir;
    const struct log *log;
    uint64_t done;
    float *quantiles;
    float *block;
    float *other; /* a row */
    bf16_t *half;
};

/* A block of values as the file holds them; `half` is room for BF16. */
static int put_block(struct maker *mk, struct st_writer *w, bool f32, size_t n,
                     struct err *e)
{
    size_t bytes = n * (f32 ? 4 : 2);

    if (f32)
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &mk->block[i], 4);
            store_le32(&mk->block[i], bits);
        }
    else {
        num_f32_to_bf16(mk->half, mk->block, n);
        for (size_t i = 0; i < n; i++)
            store_le16(&mk->half[i], mk->half[i]);
    }
    if (st_writer_write(w, f32 ? (const void *)mk->block : mk->half, bytes, e))
        return -1;
    mk->done += bytes;
    log_progress(mk->log, "weights", mk->done, mk->plan->bytes, "bytes");
    return 0;
}

static uint64_t key_of(const struct maker *mk, const char *name)
{
    return num_mix(mk->seed ^ hash_bytes(name, strlen(name)).lo);
}

static void make_row(struct maker *mk, float *dst, uint64_t row, uint64_t cols,
                     const struct synth_tensor *t)
{
    uint64_t end = t->end ? t->end : UINT64_MAX;
    float share = (float)t->share;
    float own = (float)synth_root(1 - t->share * t->share);

    fill_row(dst, cols, t, num_mix(key_of(mk, t->name) + row * NUM_GOLDEN),
             mk->quantiles);
    if (!(t->share > 0) || row < t->first || row >= end)
        return;
    fill_row(mk->other, cols, t,
             num_mix(key_of(mk, t->like[0] ? t->like : t->name) +
                     (t->period ? row % t->period : row) * NUM_GOLDEN),
             mk->quantiles);
    for (uint64_t i = 0; i < cols; i++)
        dst[i] = share * mk->other[i] + own * dst[i];
}

static int write_tensor(struct maker *mk, struct st_writer *w,
                        const struct synth_tensor *t, struct err *e)
{
    uint64_t cols = t->dims[t->rank - 1], rows = synth_elems(t) / cols;
    uint64_t per_block = cols < BLOCK_ELEMS ? BLOCK_ELEMS / cols : 1;

    for (uint64_t row = 0; row < rows; row += per_block) {
        uint64_t n = rows - row < per_block ? rows - row : per_block;
        if (log_cancelled(mk->log))
            return err_set(e, ERR_CANCELLED, "cancelled");
        for (uint64_t i = 0; i < n; i++)
            make_row(mk, mk->block + i * cols, row + i, cols, t);
        if (put_block(mk, w, t->f32, (size_t)(n * cols), e))
            return -1;
    }
    return 0;
}

void synth_shard_name(char *out, size_t cap, int shard, int shards)
{
    if (shards)
        snprintf(out, cap, "model-%05d-of-%05d.safetensors", shard + 1, shards);
    else
        snprintf(out, cap, "model.safetensors");
}

static int write_shard(struct maker *mk, int shard, struct err *e)
{
    const struct synth_plan *p = mk->plan;
    struct st_writer *w = st_writer_new(e);
    char name[64];
    char *path;
    int rc = w ? 0 : -1;

    synth_shard_name(name, sizeof name, shard, p->shards);
    path = io_join(mk->dir, name, e);
    if (!path)
        rc = -1;
    for (size_t i = 0; i < p->n && !rc; i++)
        if (p->t[i].shard == shard)
            rc = st_writer_add(w, p->t[i].name, p->t[i].f32 ? ST_F32 : ST_BF16,
                               p->t[i].rank, p->t[i].dims, e);
    if (!rc)
        rc = st_writer_begin(w, path, e);
    for (size_t i = 0; i < p->n && !rc; i++)
        if (p->t[i].shard == shard)
            rc = write_tensor(mk, w, &p->t[i], e);
    if (!rc)
        rc = st_writer_finish(w, e);
    st_writer_free(w);
    mem_free(path);
    return rc;
}

int synth_write_weights(const struct synth_plan *p, uint64_t seed,
                        const char *dir, const struct log *log, struct err *e)
{
    struct maker mk = { .plan = p, .seed = seed, .dir = dir, .log = log };
    uint64_t widest = BLOCK_ELEMS;
    int rc = -1;

    for (size_t i = 0; i < p->n; i++)
        if (p->t[i].dims[p->t[i].rank - 1] > widest)
            widest = p->t[i].dims[p->t[i].rank - 1];
    mk.quantiles = mem_alloc(QUANTILES, sizeof *mk.quantiles, e);
    mk.block = mem_alloc((size_t)widest, sizeof *mk.block, e);
    mk.other = mem_alloc((size_t)widest, sizeof *mk.other, e);
    mk.half = mem_alloc((size_t)widest, sizeof *mk.half, e);
    if (mk.quantiles && mk.block && mk.other && mk.half) {
        make_quantiles(mk.quantiles);
        rc = 0;
    }
    for (int i = 0; i < (p->shards ? p->shards : 1) && !rc; i++)
        rc = write_shard(&mk, i, e);
    mem_free(mk.quantiles);
    mem_free(mk.block);
    mem_free(mk.other);
    mem_free(mk.half);
    return rc;
}
