/*
 * Fuzz target: the bytes of a model.mlmodel.
 *
 * Whatever the bytes, they are refused with a text or decoded. What decodes,
 * validates and encodes must decode again, be valid again and encode to the
 * same bytes. Blobs read as zeros of the declared size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "schema/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_BLOB ((int64_t)1 << 20)

static int read_zeros(void *cookie, uint64_t at, void *dst, size_t n,
                      struct err *e)
{
    (void)cookie;
    (void)at;
    (void)e;
    memset(dst, 0, n);
    return 0;
}

static const struct mil_data *get(void *cookie, struct mil_program *p,
                                  const char *file, uint64_t offset,
                                  const struct mil_type *type, struct err *e)
{
    struct mil_data *d;

    (void)cookie;
    (void)file;
    (void)offset;
    if (!blob_code(type->dtype) || mil_type_bytes(type) < 0 ||
        mil_type_bytes(type) > MAX_BLOB) {
        err_set(e, ERR_INPUT, "no such blob");
        return NULL;
    }
    d = arena_alloc(&p->arena, 1, sizeof(*d), e);
    if (!d)
        return NULL;
    d->type = *type;
    d->bytes = (uint64_t)mil_type_bytes(type);
    d->read = read_zeros;
    return d;
}

static void require(bool ok, const char *what, const struct err *e)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s\n", what, e->text);
    abort();
}

static struct mil_program *decode(const void *p, size_t n, bool raw,
                                  struct err *e)
{
    struct codec_options o = { { get, NULL }, raw };
    struct codec_described d = CODEC_DESCRIBED_INIT;
    struct mil_program *out = codec_decode(p, n, &o, &d, e);

    require((out != NULL) == (e->code == ERR_OK), "result and error", e);
    require(e->code == ERR_OK || e->text[0], "an error without a text", e);
    buf_release(&d.message);
    return out;
}

static int encode(const struct mil_program *p, struct buf *out, struct err *e)
{
    char path[64];
    struct err ignored = ERR_INIT;
    struct blob_totals t;
    struct blob_writer *w;
    int rc = -1;

    snprintf(path, sizeof(path), "/tmp/fuzz-package-%ld", (long)getpid());
    w = blob_writer_new(path, NULL, e);
    if (w) {
        rc = codec_encode(p, w, out, e) || blob_writer_finish(w, &t, e);
        blob_writer_free(w);
    }
    require(io_remove_tree(path, &ignored) == 0, "cannot clean up", &ignored);
    return rc;
}

static void one(const uint8_t *data, size_t size, bool raw)
{
    struct err e = ERR_INIT;
    struct mil_program *p = decode(data, size, raw, &e), *q;
    struct buf first = BUF_INIT, second = BUF_INIT;

    if (!p)
        return;
    if (mil_validate(p, &e) == 0 && encode(p, &first, &e) == 0) {
        q = decode(first.data, first.len, raw, &e);
        require(q != NULL, "what was encoded does not decode", &e);
        require(mil_validate(q, &e) == 0, "what was encoded is invalid", &e);
        require(encode(q, &second, &e) == 0, "does not encode again", &e);
        require(first.len == second.len &&
                    memcmp(first.data, second.data, first.len) == 0,
                "the second encoding differs", &e);
        mil_program_free(q);
    }
    buf_release(&first);
    buf_release(&second);
    mil_program_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    one(data, size, false);
    one(data, size, true);
    return 0;
}
