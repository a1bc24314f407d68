/*
 * Synthetic checkpoints: which models there are, and what makes one.
 */
#include "converter/synth.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/synth_priv.h"

#define SINGLE_MAX UINT64_C(2000000000)
#define SHARD_MAX UINT64_C(5000000000)
#define LAYERS_MAX 256
#define EXPERTS_MAX 1024

static const struct synth_family *const families[] = {
    &synth_gemma3, &synth_gemma4,  &synth_llama,
    &synth_qwen3,  &synth_qwen3_5, &synth_qwen3_5_moe,
};
#define N_FAMILIES (sizeof families / sizeof families[0])

/* Newton's square root: the same bits everywhere, without libm. */
double synth_root(double x)
{
    double r = x > 1 ? x : 1;

    if (!(x > 0))
        return 0;
    for (int i = 0; i < 64; i++)
        r = 0.5 * (r + x / r);
    return r;
}

int synth_add(struct synth_plan *p, const struct synth_tensor *t, struct err *e)
{
    if (mem_grow((void **)&p->t, &p->cap, p->n, sizeof *p->t, e))
        return -1;
    p->t[p->n++] = *t;
    p->bytes += (t->f32 ? 4 : 2) * synth_elems(t);
    if (!(t->share >= 1) && !t->spare)
        p->parameters += synth_elems(t);
    return 0;
}

void synth_under(struct synth_list *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(l->at, sizeof l->at, fmt, ap);
    va_end(ap);
}

void synth_put(struct synth_list *l, const char *name, struct synth_tensor t)
{
    snprintf(t.name, sizeof t.name, "%s%.47s", l->at, name);
    t.f32 = t.f32 || l->m->f32;
    t.spare = l->spare;
    if (!l->failed)
        l->failed = synth_add(l->p, &t, l->e) != 0;
}

void synth_matrix(struct synth_list *l, const char *name, uint64_t rows,
                  uint64_t cols, double gain)
{
    struct synth_tensor t = { .kind = SYNTH_MATRIX,
                              .rank = 2,
                              .dims = { rows, cols } };

    t.sigma = gain / synth_root((double)cols);
    synth_put(l, name, t);
}

void synth_vector(struct synth_list *l, const char *name, uint64_t n,
                  double centre)
{
    struct synth_tensor t = { .kind = SYNTH_VECTOR, .rank = 1, .dims = { n } };

    t.centre = centre;
    t.sigma = SYNTH_NORM_SIGMA;
    synth_put(l, name, t);
}

bool synth_model_at(size_t i, struct synth_info *out)
{
    struct err e = ERR_INIT;
    struct synth_plan p = { 0 };
    size_t f = 0;
    bool ok;

    while (f < N_FAMILIES && i >= families[f]->n_shapes)
        i -= families[f++]->n_shapes;
    if (f == N_FAMILIES)
        return false;
    ok = !families[f]->tensors(&families[f]->shapes[i], &p, &e);
    out->arch = families[f]->arch;
    out->like = families[f]->shapes[i].like;
    out->parameters = p.parameters;
    out->file_bytes = p.bytes;
    mem_free(p.t);
    return ok;
}

static const struct synth_family *find_family(const char *arch, struct err *e)
{
    struct buf list = BUF_INIT;

    for (size_t i = 0; i < N_FAMILIES; i++) {
        buf_printf(&list, "%s%s", i ? ", " : "", families[i]->arch);
        if (!strcmp(families[i]->arch, arch)) {
            buf_release(&list);
            return families[i];
        }
    }
    err_set(e, ERR_USAGE, "no architecture '%s', there are %s", arch,
            buf_text(&list));
    buf_release(&list);
    return NULL;
}

static const struct synth_shape *find_shape(const struct synth_family *f,
                                            const char *like, struct err *e)
{
    struct buf list = BUF_INIT;
    const struct synth_shape *found = NULL;

    for (size_t i = 0; i < f->n_shapes && !found; i++) {
        buf_printf(&list, "%s%s", i ? ", " : "", f->shapes[i].like);
        if (!strcmp(f->shapes[i].like, like))
            found = &f->shapes[i];
    }
    if (!found)
        err_set(e, ERR_USAGE, "no model '%s' of architecture %s, there are %s",
                like, f->arch, buf_text(&list));
    buf_release(&list);
    return found;
}

/* Another depth or breadth of the model; widths stay. */
static int change_shape(struct synth_shape *m, const struct synth_family *f,
                        const struct synth_options *o, struct err *e)
{
    uint64_t least = m->interval ? m->interval : 1;

    if (o->layers && (o->layers < least || o->layers > LAYERS_MAX))
        return err_set(e, ERR_USAGE,
                       "%" PRIu64 " layers: between %" PRIu64 " and %d are "
                       "possible with %s",
                       o->layers, least, LAYERS_MAX, f->arch);
    if (o->experts && !m->experts)
        return err_set(e, ERR_USAGE, "%s has no experts", f->arch);
    if (o->experts && (o->experts < m->top || o->experts > EXPERTS_MAX))
        return err_set(e, ERR_USAGE,
                       "%" PRIu64 " experts: between the %" PRIu64 " of a "
                       "token and %d are possible",
                       o->experts, m->top, EXPERTS_MAX);
    m->layers = o->layers ? o->layers : m->layers;
    m->experts = o->experts ? o->experts : m->experts;
    return 0;
}

/* Fills shards in the order of the model, as transformers does. */
static void assign_shards(struct synth_plan *p, uint64_t single_max,
                          uint64_t shard_max)
{
    uint64_t used = 0;
    int shard = 0;

    if (p->bytes <= single_max)
        return;
    for (size_t i = 0; i < p->n; i++) {
        uint64_t bytes = (p->t[i].f32 ? 4 : 2) * synth_elems(&p->t[i]);

        if (used && bytes > shard_max - used) {
            shard++;
            used = 0;
        }
        used = bytes < shard_max ? used + bytes : shard_max;
        p->t[i].shard = shard;
    }
    p->shards = shard + 1;
}

static int by_name(const void *pa, const void *pb)
{
    const struct synth_tensor *a = pa, *b = pb;

    return strcmp(a->name, b->name);
}

static int write_index(const struct synth_plan *p, const char *dir,
                       struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;
    char file[64];

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_object(&w, "metadata");
    js_w_uint(&w, "total_size", p->bytes);
    js_w_end(&w);
    js_w_object(&w, "weight_map");
    for (size_t i = 0; i < p->n; i++) {
        synth_shard_name(file, sizeof file, p->t[i].shard, p->shards);
        js_w_string(&w, p->t[i].name, file);
    }
    js_w_end(&w);
    js_w_end(&w);
    return synth_save(dir, "model.safetensors.index.json", &b, e);
}

static int write_config(const struct synth_family *f,
                        const struct synth_shape *m, const char *dir,
                        struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    f->config(m, &w);
    js_w_end(&w);
    return synth_save(dir, "config.json", &b, e);
}

static int check_space(const struct synth_plan *p, const struct synth_shape *m,
                       const char *dir, struct err *e)
{
    char need[NUM_TEXT_MAX], have[NUM_TEXT_MAX];
    uint64_t bytes;

    if (io_free_bytes(dir, &bytes, e))
        return -1;
    if (bytes > p->bytes)
        return 0;
    num_bytes_text(need, p->bytes);
    num_bytes_text(have, bytes);
    return err_set(e, ERR_IO, "%s needs %s of disk, %s are free", m->like, need,
                   have);
}

static int write_all(const struct synth_family *f, const struct synth_shape *m,
                     const struct synth_plan *p, const struct synth_options *o,
                     const char *dir, struct err *e)
{
    if (check_space(p, m, dir, e) || write_config(f, m, dir, e) ||
        synth_write_assets(m, dir, e) ||
        (p->shards && write_index(p, dir, e)) ||
        synth_write_weights(p, o->seed, dir, o->log, e))
        return -1;
    return 0;
}

int synth_make(const struct synth_options *o, const char *dir, struct err *e)
{
    const struct synth_family *f = find_family(o->arch, e);
    const struct synth_shape *found = f ? find_shape(f, o->like, e) : NULL;
    struct io_stage stage = IO_STAGE_INIT;
    struct synth_plan p = { 0 };
    struct synth_shape m;
    int rc = -1;

    if (!found)
        return -1;
    m = *found;
    if (change_shape(&m, f, o, e) || f->tensors(&m, &p, e))
        goto out;
    assign_shards(&p, o->single_max ? o->single_max : SINGLE_MAX,
                  o->shard_max ? o->shard_max : SHARD_MAX);
    qsort(p.t, p.n, sizeof *p.t, by_name);
    if (io_stage_begin(&stage, dir, false, e))
        goto out;
    if (!write_all(f, &m, &p, o, stage.dir, e))
        rc = io_stage_commit(&stage, e);
out:
    io_stage_release(&stage);
    mem_free(p.t);
    return rc;
}

int synth_checkpoint(const char *arch, const char *like, uint64_t seed,
                     const char *dir, const struct log *log, struct err *e)
{
    struct synth_options o = {
        .arch = arch, .like = like, .seed = seed, .log = log
    };

    return synth_make(&o, dir, e);
}
