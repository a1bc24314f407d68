/*
 * Writing one safetensors file: tensors are declared, the header is written,
 * then the data follows in the order of declaration.
 *
 * The header is compact JSON padded with spaces to a multiple of 8, so that
 * the data section is aligned; `__metadata__` says {"format": "pt"}, which
 * loaders of PyTorch checkpoints ask for. Nothing depends on time or place.
 */
#include "safetensors/st_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/json.h"

struct st_writer {
    struct arena arena; /* names */
    struct st_tensor *tensors;
    size_t n, cap;
    uint64_t data_bytes; /* declared */
    uint64_t written;
    struct io_out out; /* beside the target, renamed at the end */
    char *target;
    bool open;
};

struct st_writer *st_writer_new(struct err *e)
{
    static const struct io_out closed = IO_OUT_INIT;
    struct st_writer *w = mem_zalloc(1, sizeof *w, e);

    if (w)
        w->out = closed;
    return w;
}

/* Bytes of a tensor, checked. */
static int size_of(struct st_tensor *t, uint64_t *bytes, struct err *e)
{
    uint64_t bits;

    t->elems = 1;
    for (int i = 0; i < t->rank; i++)
        if (!mem_mul(t->elems, t->dims[i], &t->elems))
            return err_set(e, ERR_INPUT, "too many elements");
    if (!mem_mul(t->elems, st_dtype_bits(t->dtype), &bits) ||
        bits / 8 > ST_MAX_INTEGER)
        return err_set(e, ERR_INPUT, "%" PRIu64 " elements are too many",
                       t->elems);
    if (bits % 8)
        return err_set(e, ERR_INPUT,
                       "%" PRIu64 " elements of %s are no whole number of "
                       "bytes",
                       t->elems, st_dtype_name(t->dtype));
    *bytes = bits / 8;
    return 0;
}

int st_writer_add(struct st_writer *w, const char *name, enum st_dtype dtype,
                  int rank, const uint64_t *dims, struct err *e)
{
    struct st_tensor *t;
    uint64_t bytes = 0;

    BUG_UNLESS(!w->open && rank >= 0 && rank <= ST_MAX_RANK);
    if (!strcmp(name, "__metadata__"))
        return err_set(e, ERR_INPUT,
                       "'__metadata__' cannot be the name of a tensor");
    if (mem_grow((void **)&w->tensors, &w->cap, w->n, sizeof *w->tensors, e))
        return -1;
    t = &w->tensors[w->n];
    memset(t, 0, sizeof *t);
    t->dtype = dtype;
    t->rank = rank;
    for (int i = 0; i < rank; i++)
        t->dims[i] = dims[i];
    if (size_of(t, &bytes, e))
        return err_in(e, "tensor " ST_NAME, name);
    t->begin = w->data_bytes;
    if (!mem_add(t->begin, bytes, &t->end) || t->end > ST_MAX_INTEGER)
        return err_set(e, ERR_INPUT,
                       "tensor " ST_NAME " ends beyond byte %" PRIu64, name,
                       ST_MAX_INTEGER);
    t->name = arena_strdup(&w->arena, name, e);
    if (!t->name)
        return -1;
    w->data_bytes = t->end;
    w->n++;
    return 0;
}

static int by_text(const void *pa, const void *pb)
{
    const char *const *a = pa, *const *b = pb;

    return strcmp(*a, *b);
}

static int check_names(const struct st_writer *w, struct err *e)
{
    const char **names = mem_alloc(w->n, sizeof *names, e);
    int rc = 0;

    if (!names)
        return -1;
    for (size_t i = 0; i < w->n; i++)
        names[i] = w->tensors[i].name;
    if (w->n)
        qsort(names, w->n, sizeof *names, by_text);
    for (size_t i = 1; i < w->n && !rc; i++)
        if (!strcmp(names[i - 1], names[i]))
            rc = err_set(e, ERR_INPUT, "tensor " ST_NAME " declared twice",
                         names[i]);
    mem_free(names);
    return rc;
}

static void print_tensor(struct buf *b, const struct st_tensor *t)
{
    buf_addc(b, ',');
    js_quote(b, t->name, strlen(t->name));
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        buf_printf(b, "%s%" PRIu64, i ? "," : "", t->dims[i]);
    buf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin,
               t->end);
}

/* A reader sees the old file or the whole new one, never a part. */
static int open_part(struct st_writer *w, const char *path, struct err *e)
{
    char *part = mem_printf(e, "%s.%ld.part", path, (long)getpid());
    int rc = -1;

    if (part && io_is_dir(path))
        err_set(e, ERR_INPUT, "'%s' is a directory", path);
    else if (part && (w->target = mem_strdup(path, e)) != NULL)
        rc = io_out_open(&w->out, part, e);
    w->open = rc == 0;
    mem_free(part);
    return rc;
}

int st_writer_begin(struct st_writer *w, const char *path, struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = -1;

    BUG_UNLESS(!w->open);
    if (check_names(w, e))
        return err_in(e, "cannot write '%s'", path);
    buf_add(&b, "\0\0\0\0\0\0\0\0", 8); /* the length, below */
    buf_puts(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < w->n; i++)
        print_tensor(&b, &w->tensors[i]);
    buf_addc(&b, '}');
    while (b.len % 8 && !b.failed)
        buf_addc(&b, ' ');
    if (buf_ok(&b, e))
        goto out;
    if (b.len - 8 > ST_MAX_HEADER) {
        err_set(e, ERR_INPUT,
                "cannot write '%s': %zu tensors take a header of %zu bytes, "
                "at most %u are allowed",
                path, w->n, b.len - 8, ST_MAX_HEADER);
        goto out;
    }
    store_le64(b.data, b.len - 8);
    if (open_part(w, path, e))
        goto out;
    rc = io_out_write(&w->out, b.data, b.len, e);
out:
    buf_release(&b);
    return rc;
}

int st_writer_write(struct st_writer *w, const void *bytes, size_t n,
                    struct err *e)
{
    BUG_UNLESS(w->open);
    if (n > w->data_bytes - w->written)
        return err_set(e, ERR_INPUT,
                       "'%s': %" PRIu64 " bytes of data declared, %zu more "
                       "given after %" PRIu64,
                       w->target, w->data_bytes, n, w->written);
    if (io_out_write(&w->out, bytes, n, e))
        return -1;
    w->written += n;
    return 0;
}

static int finish_part(struct st_writer *w, struct err *e)
{
    struct err ignored = ERR_INIT;
    char *part = mem_strdup(w->out.path, e);
    int rc = -1;

    if (!part)
        return -1;
    w->open = false;
    if (!io_out_finish(&w->out, e))
        rc = rename(part, w->target)
                 ? err_sys(e, errno, "cannot rename '%s' to '%s'", part,
                           w->target)
                 : 0;
    if (rc && io_remove_tree(part, &ignored))
        err_reset(&ignored); /* nothing better to do than leave it */
    mem_free(part);
    return rc;
}

int st_writer_finish(struct st_writer *w, struct err *e)
{
    BUG_UNLESS(w->open);
    if (w->written != w->data_bytes)
        return err_set(e, ERR_INPUT,
                       "'%s': %" PRIu64 " bytes of data written, %" PRIu64
                       " declared",
                       w->target, w->written, w->data_bytes);
    return finish_part(w, e);
}

void st_writer_free(struct st_writer *w)
{
    struct err ignored = ERR_INIT;
    char *path;

    if (!w)
        return;
    if (w->open) {
        path = mem_strdup(w->out.path, &ignored);
        io_out_release(&w->out);
        if (!path || io_remove_tree(path, &ignored))
            err_reset(&ignored); /* nothing better to do than leave it */
        mem_free(path);
    }
    mem_free(w->target);
    mem_free(w->tensors);
    arena_release(&w->arena);
    mem_free(w);
}
