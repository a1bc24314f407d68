/*
 * Whether two open models are one: the same program, description and weights,
 * whatever their forms.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mil/text.h"
#include "schema/compiled_priv.h"
#include "schema/wire_priv.h"

#define CHUNK ((size_t)1 << 20)

/* ---- programs ---- */

static int print(const struct pkg *k, struct buf *out, struct err *e)
{
    struct text_options o = { .blob = pkg_blob,
                              .cookie = (void *)(uintptr_t)k,
                              .sorted = true };

    return text_print(k->program, &o, out, e);
}

/* Where the functions begin: what stands above says who wrote the text. */
static const char *functions(const struct buf *text)
{
    const char *p = strstr(buf_text(text), "\n{\n");

    return p ? p : "";
}

static int same_text(const char *a, const char *b, struct err *e)
{
    const char *line_a = a, *line_b = b;
    size_t i;

    for (i = 0; a[i] && a[i] == b[i]; i++)
        if (a[i] == '\n') {
            line_a = a + i + 1;
            line_b = b + i + 1;
        }
    if (!a[i] && !b[i])
        return 0;
    line_a += strspn(line_a, " ");
    line_b += strspn(line_b, " ");
    return err_set(e, ERR_MISMATCH, "their programs differ: '%.*s' and '%.*s'",
                   (int)strcspn(line_a, "\n;"), line_a,
                   (int)strcspn(line_b, "\n;"), line_b);
}

static int same_programs(const struct pkg *a, const struct pkg *b,
                         struct err *e)
{
    struct buf x = BUF_INIT, y = BUF_INIT;
    int rc = -1;

    if (a->program->spec_version != b->program->spec_version)
        return err_set(e, ERR_MISMATCH,
                       "they have specification versions %d and %d",
                       a->program->spec_version, b->program->spec_version);
    if (!print(a, &x, e) && !print(b, &y, e))
        rc = same_text(functions(&x), functions(&y), e);
    buf_release(&x);
    buf_release(&y);
    return rc;
}

/* ---- descriptions ---- */

static int by_key(const void *a, const void *b)
{
    const Pb__Metadata__UserDefinedEntry *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

/* The message with the entries of its map in order. */
static int in_order(const struct pkg *k, struct buf *out, struct err *e)
{
    const struct buf *m = &k->described.message;
    struct arena unpacked = ARENA_INIT;
    struct wire_memory mem = { &unpacked, e };
    ProtobufCAllocator alloc = wire_allocator(&mem);
    Pb__ModelDescription *d =
        pb__model_description__unpack(&alloc, m->len, (const uint8_t *)m->data);
    void *room = NULL;

    if (d) {
        if (d->metadata && d->metadata->n_userdefined)
            qsort(d->metadata->userdefined, d->metadata->n_userdefined,
                  sizeof(*d->metadata->userdefined), by_key);
        room = buf_extend(out, pb__model_description__get_packed_size(d));
        if (room)
            pb__model_description__pack(d, room);
    }
    arena_release(&unpacked);
    return room ? 0 : err_set(e, ERR_NOMEM, "no memory for the description");
}

static int same_descriptions(const struct pkg *a, const struct pkg *b,
                             struct err *e)
{
    struct buf x = BUF_INIT, y = BUF_INIT;
    int rc = -1;

    if (!in_order(a, &x, e) && !in_order(b, &y, e)) {
        rc = 0;
        if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0)
            rc = err_set(e, ERR_MISMATCH,
                         "the descriptions of their inputs, outputs or "
                         "metadata differ");
    }
    buf_release(&x);
    buf_release(&y);
    return rc;
}

/* ---- weights ---- */

/* What is said names the file as the programs do: the text may be kept. */
static int first_difference(const char *name, const uint8_t *x,
                            const uint8_t *y, uint64_t at, struct err *e)
{
    size_t i = 0;

    while (x[i] == y[i])
        i++;
    return err_set(e, ERR_MISMATCH,
                   "their weights in '%s' differ at byte %" PRIu64, name,
                   at + i);
}

static int same_bytes(const char *name, const struct io_file *a,
                      const struct io_file *b, struct err *e)
{
    uint8_t *room = mem_alloc(2, CHUNK, e);
    uint64_t at;
    int rc = room ? 0 : -1;
    size_t n;

    for (at = 0; rc == 0 && at < a->size; at += n) {
        n = a->size - at < CHUNK ? (size_t)(a->size - at) : CHUNK;
        if (io_pread(a, room, n, at, e) || io_pread(b, room + CHUNK, n, at, e))
            rc = -1;
        else if (memcmp(room, room + CHUNK, n) != 0)
            rc = first_difference(name, room, room + CHUNK, at, e);
    }
    mem_free(room);
    return rc;
}

/* One file under two names costs nothing to compare. */
static int same_file(const char *name, const struct io_file *a,
                     const struct io_file *b, struct err *e)
{
    if (a->dev == b->dev && a->ino == b->ino)
        return 0;
    if (a->size != b->size)
        return err_set(e, ERR_MISMATCH,
                       "their weights in '%s' have %" PRIu64 " and %" PRIu64
                       " bytes",
                       name, a->size, b->size);
    return same_bytes(name, a, b, e);
}

/* Both programs name the same files: their texts are equal. */
static int same_weights(const struct pkg *a, const struct pkg *b, struct err *e)
{
    size_t i, k;

    for (i = 0; i < a->weights.n; i++)
        for (k = 0; k < b->weights.n; k++)
            if (strcmp(a->weights.files[i]->name, b->weights.files[k]->name) ==
                    0 &&
                same_file(weight_files_relative(a->weights.files[i]->name),
                          &a->weights.files[i]->reader.file,
                          &b->weights.files[k]->reader.file, e))
                return -1;
    return 0;
}

int pkg_same(const struct pkg *a, const struct pkg *b, struct err *e)
{
    if (same_programs(a, b, e) || same_descriptions(a, b, e) ||
        same_weights(a, b, e))
        return err_in(e, "'%s' and '%s' are not one model",
                      io_basename(a->path), io_basename(b->path));
    return 0;
}
