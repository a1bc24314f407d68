/*
 * Importances of weights from a file. Each tensor in use is a copy of the
 * checkpoint's need whose tensors are those of the same names in the file, so
 * that experts stored one by one are found as they are in the checkpoint.
 */
#include "converter/importance.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/mem.h"

struct used {
    const struct need *of; /* in the checkpoint */
    struct need need;      /* the same in the file */
};
struct importance {
    const struct ckpt *ckpt;
    const char *path;
    struct st *st;
    struct used *used;
    size_t n, cap;
};

struct importance *importance_open(const char *path, const struct ckpt *c,
                                   struct err *e)
{
    struct importance *im = mem_zalloc(1, sizeof(*im), e);

    if (!im)
        return NULL;
    im->ckpt = c;
    im->path = path;
    im->st = st_open(path, e);
    if (im->st)
        return im;
    err_in(e, "--importance");
    mem_free(im);
    return NULL;
}

void importance_close(struct importance *im)
{
    if (!im)
        return;
    for (size_t i = 0; i < im->n; i++)
        mem_free(im->used[i].need.parts);
    mem_free(im->used);
    st_close(im->st);
    mem_free(im);
}

static const struct used *find(const struct importance *im,
                               const struct need *of)
{
    for (size_t i = 0; i < im->n; i++)
        if (im->used[i].of == of)
            return &im->used[i];
    return NULL;
}

static const struct st_tensor *same_tensor(const struct importance *im,
                                           const struct st_tensor *like,
                                           struct err *e)
{
    const struct st_tensor *t = st_find(im->st, like->name);
    char want[128], have[128];

    if (!t) {
        err_set(e, ERR_INPUT,
                "--importance '%s' has no tensor '%s', which is to be "
                "palettized",
                im->path, like->name);
        return NULL;
    }
    if (t->rank == like->rank &&
        !memcmp(t->dims, like->dims, (size_t)t->rank * sizeof(t->dims[0])))
        return t;
    st_shape_text(like, want, sizeof(want));
    st_shape_text(t, have, sizeof(have));
    err_set(e, ERR_INPUT,
            "--importance '%s': tensor '%s' has shape %s, the weights %s",
            im->path, like->name, have, want);
    return NULL;
}

static int map_need(struct importance *im, struct used *u, struct err *e)
{
    const struct need *of = u->of;

    u->need = *of;
    u->need.parts = NULL;
    if (!of->tensor)
        return err_set(e, ERR_INPUT,
                       "tensor '%s' is planned from the config alone",
                       of->name);
    u->need.tensor = same_tensor(im, of->tensor, e);
    if (!u->need.tensor)
        return -1;
    if (!of->n_parts)
        return 0;
    u->need.parts = mem_alloc(of->n_parts, sizeof(*u->need.parts), e);
    for (size_t i = 0; u->need.parts && i < of->n_parts; i++)
        if (!(u->need.parts[i] = same_tensor(im, of->parts[i], e))) {
            mem_free(u->need.parts);
            return -1;
        }
    return u->need.parts ? 0 : -1;
}

int importance_check(struct importance *im, const struct mil_data *d,
                     struct err *e)
{
    struct used u = { .of = weights_need(d) };

    if (find(im, u.of))
        return 0;
    if (!im->ckpt->st) /* planned without weights: nothing to compare with */
        return 0;
    if (mem_grow((void **)&im->used, &im->cap, im->n, sizeof(*im->used), e) ||
        map_need(im, &u, e))
        return -1;
    im->used[im->n++] = u;
    return 0;
}

/* ---- values ---- */

#define PIECE 16384

static const struct st_tensor *part_of(const struct need *n, uint64_t at,
                                       uint64_t *within)
{
    uint64_t size = n->n_parts ? n->parts[0]->elems : n->tensor->elems;

    *within = at % size;
    return n->n_parts ? n->parts[at / size] : n->tensor;
}

static int bad_value(const struct importance *im, const struct need *n,
                     uint64_t at, float v, struct err *e)
{
    uint64_t within, cols;
    const struct st_tensor *t = part_of(n, at, &within);

    cols = t->rank ? t->dims[t->rank - 1] : 1;
    return err_set(e, ERR_INPUT,
                   "--importance '%s': tensor '%s', row %" PRIu64
                   ", column %" PRIu64 " is %g; importances are finite and not "
                   "negative",
                   im->path, t->name, within / cols, within % cols, (double)v);
}

static int scan_tensor(const struct importance *im, const struct need *n,
                       const struct log *log, struct err *e)
{
    uint64_t elems = 1;
    bool some = false;
    float x[PIECE];

    for (int i = 0; i < n->rank; i++)
        elems *= n->dims[i];
    for (uint64_t at = 0; at < elems; at += PIECE) {
        size_t m = elems - at < PIECE ? (size_t)(elems - at) : PIECE;

        if (log_cancelled(log))
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (need_read_f32(im->st, n, at, m, x, e))
            return err_in(e, "--importance '%s'", im->path);
        for (size_t i = 0; i < m; i++) {
            if (!(x[i] >= 0 && x[i] < INFINITY))
                return bad_value(im, n, at + i, x[i], e);
            some = some || x[i] > 0;
        }
    }
    return some ? 0
                : err_set(e, ERR_INPUT,
                          "--importance '%s': tensor '%s' is all zero",
                          im->path, n->tensor->name);
}

int importance_scan(struct importance *im, const struct log *log, struct err *e)
{
    for (size_t i = 0; i < im->n; i++) {
        log_progress(log, "importance", i, im->n, "tensors");
        if (scan_tensor(im, &im->used[i].need, log, e))
            return -1;
    }
    return 0;
}

int importance_rows(const struct importance *im, const struct mil_data *d,
                    uint64_t row, uint64_t n, float *dst, struct err *e)
{
    const struct used *u = find(im, weights_need(d));
    struct weight_raw raw;
    uint64_t el, end, run;

    if (!u || !weights_raw(d, &raw))
        BUG("importances of a tensor that was not checked");
    el = row * raw.cols;
    end = el + n * raw.cols;
    for (; el < end; el += run) {
        uint64_t at = weights_place(d, el, &run);

        run = run < end - el ? run : end - el;
        if (need_read_f32(im->st, &u->need, at, (size_t)run, dst, e))
            return err_in(e, "--importance '%s'", im->path);
        dst += run;
    }
    return 0;
}
