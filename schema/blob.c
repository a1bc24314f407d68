/*
 * Writer and reader of MIL blob storage, version 2 (blob.h).
 *
 * The writer never holds a blob: bytes go through one buffer, are hashed on
 * the way and, where a blob of the same type, size and hash is already there,
 * compared with it and taken back. What is shared is therefore equal, not
 * merely equal in hash. With threads, a piece is hashed and written while the
 * source makes the next one, and what is written goes to the disk meanwhile.
 * Not done here: packing sub-byte elements (sources deliver packed bytes) and
 * choosing what becomes a blob (encode.c).
 */
#include "schema/blob.h"

#include <inttypes.h>
#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/num.h"
#include "converter/base/task.h"

#define RECORD_BYTES 64u
#define HEADER_BYTES 64u
#define SENTINEL 0xDEADBEEFu
#define STORAGE_VERSION 2u

/* Large enough that the cost of a call vanishes, small enough for any
 * machine. The first block of a blob also holds the gap and the record. */
#define CHUNK ((size_t)2 << 20)
#define COMPARE ((size_t)256 << 10)
/* Bytes between two syncs of a file that is being written. */
#define SYNC ((uint64_t)32 << 20)
#define HEAD_MAX (BLOB_ALIGN + RECORD_BYTES)

static const uint8_t codes[MIL_DTYPE_COUNT] = {
    [MIL_F16] = 1, [MIL_F32] = 2, [MIL_U8] = 3,  [MIL_I8] = 4,   [MIL_BF16] = 5,
    [MIL_I16] = 6, [MIL_U16] = 7, [MIL_I4] = 8,  [MIL_U1] = 9,   [MIL_U2] = 10,
    [MIL_U4] = 11, [MIL_U3] = 12, [MIL_U6] = 13, [MIL_I32] = 14, [MIL_U32] = 15,
};

uint32_t blob_code(enum mil_dtype d)
{
    return d >= 0 && d < MIL_DTYPE_COUNT ? codes[d] : 0;
}

enum mil_dtype blob_dtype(uint32_t code)
{
    int d;

    for (d = 0; code && d < MIL_DTYPE_COUNT; d++)
        if (codes[d] == code)
            return (enum mil_dtype)d;
    return MIL_INVALID;
}

/* ---- writing ---- */

struct content {
    struct hash128 hash;
    uint64_t elems, offset;
    uint32_t code; /* 0: free slot */
};
struct source {
    const struct mil_data *data; /* NULL: free slot */
    uint64_t offset;
};

/* A piece on its way into the file. */
struct piece {
    struct blob_writer *w;
    const uint8_t *p;
    size_t n;
    struct err err;
};

struct blob_writer {
    char *path;
    struct io_out out;
    bool opened;
    struct blob_options o;
    uint8_t *buf;    /* HEAD_MAX + CHUNK */
    uint8_t *second; /* CHUNK, with threads: filled while buf is written */
    uint8_t *other;  /* COMPARE */
    struct task *writer, *syncer; /* NULL: without threads */
    struct piece piece;           /* at work in `writer` */
    uint64_t synced;
    struct err sync_err;
    struct hash_state *hash, *identity;
    struct content *contents; /* open addressing */
    size_t n_contents, cap_contents;
    struct source *sources; /* open addressing */
    size_t n_sources, cap_sources;
    uint64_t shared, done;
    bool measuring; /* `size` grows instead of a file */
    uint64_t size;
};

static uint64_t mix(uint64_t v)
{
    v ^= v >> 33;
    v *= 0xff51afd7ed558ccdu;
    v ^= v >> 33;
    return v;
}

static int start_threads(struct blob_writer *w, struct err *e)
{
    w->second = mem_alloc_aligned(CHUNK, 1, e);
    if (!w->second)
        return -1;
    w->writer = task_new(e);
    w->syncer = w->writer ? task_new(e) : NULL;
    return w->syncer ? 0 : -1;
}

struct blob_writer *blob_writer_new(const char *path,
                                    const struct blob_options *o, struct err *e)
{
    static const struct io_out closed = IO_OUT_INIT;
    struct blob_writer *w = mem_zalloc(1, sizeof(*w), e);

    if (!w)
        return NULL;
    w->out = closed;
    if (o)
        w->o = *o;
    w->path = mem_strdup(path, e);
    w->buf = mem_alloc_aligned(HEAD_MAX + CHUNK, 1, e);
    w->other = mem_alloc_aligned(COMPARE, 1, e);
    w->hash = hash_new(e);
    w->identity = hash_new(e);
    if (!w->path || !w->buf || !w->other || !w->hash || !w->identity ||
        (w->o.threads && start_threads(w, e))) {
        blob_writer_free(w);
        return NULL;
    }
    return w;
}

struct blob_writer *blob_writer_measuring(struct err *e)
{
    struct blob_writer *w = mem_zalloc(1, sizeof(*w), e);
    static const struct io_out closed = IO_OUT_INIT;

    if (!w)
        return NULL;
    w->out = closed;
    w->measuring = true;
    w->identity = hash_new(e);
    if (w->identity)
        return w;
    blob_writer_free(w);
    return NULL;
}

void blob_writer_free(struct blob_writer *w)
{
    if (!w)
        return;
    task_free(w->writer);
    task_free(w->syncer);
    io_out_release(&w->out);
    mem_free(w->path);
    mem_free(w->buf);
    mem_free(w->second);
    mem_free(w->other);
    hash_free(w->hash);
    hash_free(w->identity);
    mem_free(w->contents);
    mem_free(w->sources);
    mem_free(w);
}

/* The slot that holds `d`, or the free one where it belongs. */
static struct source *source_slot(struct source *tab, size_t cap,
                                  const struct mil_data *d)
{
    size_t i = (size_t)mix((uint64_t)(uintptr_t)d) & (cap - 1);

    while (tab[i].data && tab[i].data != d)
        i = (i + 1) & (cap - 1);
    return &tab[i];
}

static int sources_reserve(struct blob_writer *w, struct err *e)
{
    size_t cap = w->cap_sources ? w->cap_sources * 2 : 64, i;
    struct source *tab;

    if (w->cap_sources && w->n_sources * 2 < w->cap_sources)
        return 0;
    tab = mem_zalloc(cap, sizeof(*tab), e);
    if (!tab)
        return -1;
    for (i = 0; i < w->cap_sources; i++)
        if (w->sources[i].data)
            *source_slot(tab, cap, w->sources[i].data) = w->sources[i];
    mem_free(w->sources);
    w->sources = tab;
    w->cap_sources = cap;
    return 0;
}

static size_t content_home(const struct content *c, size_t cap)
{
    return (size_t)mix(c->hash.lo ^ c->elems ^ c->code) & (cap - 1);
}

static void content_insert(struct content *tab, size_t cap,
                           const struct content *c)
{
    size_t i = content_home(c, cap);

    while (tab[i].code)
        i = (i + 1) & (cap - 1);
    tab[i] = *c;
}

static int contents_reserve(struct blob_writer *w, struct err *e)
{
    size_t cap = w->cap_contents ? w->cap_contents * 2 : 64, i;
    struct content *tab;

    if (w->cap_contents && w->n_contents * 2 < w->cap_contents)
        return 0;
    tab = mem_zalloc(cap, sizeof(*tab), e);
    if (!tab)
        return -1;
    for (i = 0; i < w->cap_contents; i++)
        if (w->contents[i].code)
            content_insert(tab, cap, &w->contents[i]);
    mem_free(w->contents);
    w->contents = tab;
    w->cap_contents = cap;
    return 0;
}

static int open_file(struct blob_writer *w, struct err *e)
{
    static const uint8_t zeros[HEADER_BYTES];

    if (w->opened)
        return 0;
    if (io_out_open(&w->out, w->path, e))
        return -1;
    w->opened = true;
    /* The count comes at the end: until then no reader takes the file. */
    return io_out_write(&w->out, zeros, sizeof(zeros), e);
}

/* What is being stored: a source, or bytes in memory. */
struct input {
    uint64_t bytes, elems;
    unsigned width; /* bits of an element */
    uint32_t code;
    const uint8_t *memory; /* NULL: read through data */
    const struct mil_data *data;
};

/* Bytes [at, at + n) of the input: in place, or read to `room`. */
static const uint8_t *fetch(const struct input *in, uint64_t at, uint8_t *room,
                            size_t n, struct err *e)
{
    if (in->memory)
        return in->memory + at;
    if (in->data->read(in->data->cookie, at, room, n, e))
        return NULL;
    return room;
}

/* The zeros up to the next multiple of 64 and the record, so that they end
 * at `end`. Returns their length. */
static size_t put_head(const struct blob_writer *w, const struct input *in,
                       uint8_t *end)
{
    size_t gap = (size_t)(-w->out.pos & (BLOB_ALIGN - 1));
    uint8_t *r = end - RECORD_BYTES;

    memset(r - gap, 0, gap + RECORD_BYTES);
    store_le32(r, SENTINEL);
    store_le32(r + 4, in->code);
    store_le64(r + 8, in->bytes);
    store_le64(r + 16, w->out.pos + gap + RECORD_BYTES);
    store_le64(r + 24, in->bytes * 8 - in->elems * in->width);
    return gap + RECORD_BYTES;
}

static int tell(struct blob_writer *w, uint64_t n, struct err *e)
{
    w->done += n;
    if (w->o.stage)
        log_progress(w->o.log, w->o.stage, w->o.progress_base + w->done,
                     w->o.progress_total, "bytes");
    if (log_cancelled(w->o.log))
        return err_set(e, ERR_CANCELLED, "interrupted while '%s' was written",
                       w->path);
    return 0;
}

/* 1 if `bytes` bytes at `a` and at `b` of the file are equal (the former in
 * memory at `p`, if given), 0 if not, -1 on error. Overwrites the buffer
 * unless `p` is given. */
static int equal_bytes(struct blob_writer *w, const uint8_t *p, uint64_t a,
                       uint64_t b, uint64_t bytes, struct err *e)
{
    uint64_t at, n;

    for (at = 0; at < bytes; at += n) {
        const uint8_t *left = p ? p + at : w->buf;

        n = bytes - at < COMPARE ? bytes - at : COMPARE;
        if (!p && io_out_read_at(&w->out, w->buf, (size_t)n, a + at, e))
            return -1;
        if (io_out_read_at(&w->out, w->other, (size_t)n, b + at, e))
            return -1;
        if (memcmp(left, w->other, (size_t)n) != 0)
            return 0;
    }
    return 1;
}

/* Looks for stored bytes that equal the input's (as in equal_bytes). */
static int find_equal(struct blob_writer *w, const struct input *in,
                      struct hash128 h, const uint8_t *p, uint64_t a,
                      uint64_t *offset, struct err *e)
{
    struct content key = { h, in->elems, 0, in->code };
    size_t i;

    if (!w->cap_contents)
        return 0;
    for (i = content_home(&key, w->cap_contents); w->contents[i].code;
         i = (i + 1) & (w->cap_contents - 1)) {
        const struct content *c = &w->contents[i];
        int same;

        if (c->code != in->code || c->elems != in->elems ||
            c->hash.lo != h.lo || c->hash.hi != h.hi)
            continue;
        same = equal_bytes(w, p, a, c->offset + RECORD_BYTES, in->bytes, e);
        if (same > 0)
            *offset = c->offset;
        if (same)
            return same;
    }
    return 0;
}

static int remember(struct blob_writer *w, const struct input *in,
                    struct hash128 h, uint64_t offset, struct err *e)
{
    struct content c = { h, in->elems, offset, in->code };
    uint8_t text[32];

    if (contents_reserve(w, e))
        return -1;
    content_insert(w->contents, w->cap_contents, &c);
    w->n_contents++;
    store_le64(text, h.hi);
    store_le64(text + 8, h.lo);
    store_le64(text + 16, in->elems);
    store_le64(text + 24, in->code);
    hash_add(w->identity, text, sizeof(text));
    return 0;
}

/* An input that fits the buffer: compared before a byte is written. */
static int put_small(struct blob_writer *w, const struct input *in,
                     uint64_t *offset, struct err *e)
{
    size_t n = (size_t)in->bytes, head;
    uint8_t *room = w->buf + HEAD_MAX;
    const uint8_t *p = fetch(in, 0, room, n, e);
    struct hash128 h;
    int same;

    if (!p)
        return -1;
    h = hash_bytes(p, n);
    same = find_equal(w, in, h, p, 0, offset, e);
    if (same < 0)
        return -1;
    if (same) {
        w->shared++;
        return tell(w, n, e);
    }
    if (p != room)
        memcpy(room, p, n);
    head = put_head(w, in, room);
    *offset = w->out.pos + head - RECORD_BYTES;
    if (io_out_write(&w->out, room - head, head + n, e) ||
        remember(w, in, h, *offset, e))
        return -1;
    return tell(w, n, e);
}

static void write_piece(void *arg)
{
    struct piece *k = arg;

    if (!io_out_write(&k->w->out, k->p, k->n, &k->err))
        hash_add(k->w->hash, k->p, k->n);
}

/* Waits for the piece at work. */
static int end_piece(struct blob_writer *w, struct err *e)
{
    task_wait(w->writer);
    return w->piece.err.code ? err_copy(e, &w->piece.err) : 0;
}

static void sync_file(void *arg)
{
    struct blob_writer *w = arg;

    if (io_out_sync(&w->out, &w->sync_err))
        w->synced = UINT64_MAX; /* once is enough */
}

/* So that little is left to wait for at the end. A failure is told there: the
 * system tells it once. */
static void sync_some(struct blob_writer *w)
{
    if (!w->syncer || task_busy(w->syncer) || w->synced == UINT64_MAX ||
        w->out.pos - w->synced < SYNC)
        return;
    w->synced = w->out.pos;
    task_start(w->syncer, sync_file, w);
}

/* All bytes, behind each other. */
static int put_pieces(struct blob_writer *w, const struct input *in,
                      struct err *e)
{
    uint8_t *room = w->buf;
    uint64_t at;
    size_t n;

    err_reset(&w->piece.err);
    for (at = 0; at < in->bytes; at += n) {
        const uint8_t *p;

        n = in->bytes - at < CHUNK ? (size_t)(in->bytes - at) : CHUNK;
        p = fetch(in, at, room, n, e);
        if (end_piece(w, e) || !p)
            return -1;
        sync_some(w);
        w->piece = (struct piece){ w, p, n, ERR_INIT };
        task_start(w->writer, write_piece, &w->piece);
        if (tell(w, n, e)) {
            task_wait(w->writer);
            return -1;
        }
        if (w->second)
            room = room == w->buf ? w->second : w->buf;
    }
    return end_piece(w, e);
}

/* Any other: written first, and taken back if it was there already. */
static int put_large(struct blob_writer *w, const struct input *in,
                     uint64_t *offset, struct err *e)
{
    uint64_t before = w->out.pos, data;
    size_t head = put_head(w, in, w->buf + HEAD_MAX);
    struct hash128 h;
    int same;

    data = before + head;
    hash_reset(w->hash);
    if (io_out_write(&w->out, w->buf + HEAD_MAX - head, head, e) ||
        put_pieces(w, in, e))
        return -1;
    h = hash_get(w->hash);
    same = find_equal(w, in, h, NULL, data, offset, e);
    if (same < 0)
        return -1;
    if (same) {
        w->shared++;
        w->synced = w->synced < before ? w->synced : before;
        return io_out_truncate(&w->out, before, e);
    }
    *offset = data - RECORD_BYTES;
    return remember(w, in, h, *offset, e);
}

/* Fills what the type says; `bytes` is what the source claims. */
static int make_input(struct input *in, const struct mil_type *t,
                      uint64_t bytes, struct err *e)
{
    int64_t want = mil_type_bytes(t), elems = mil_type_elems(t);
    char text[MIL_TYPE_TEXT_MAX];

    in->code = blob_code(t->dtype);
    if (in->code && want >= 0 && (uint64_t)want == bytes) {
        in->bytes = bytes;
        in->elems = (uint64_t)elems;
        in->width = mil_dtype_bits(t->dtype);
        return 0;
    }
    mil_type_text(t, text);
    return err_set(e, ERR_INPUT,
                   "a constant of type %s and %" PRIu64
                   " bytes cannot be stored in a weight file",
                   text, bytes);
}

/* What stands in memory may be there already; sources are taken as unlike all
 * others. */
static int measure(struct blob_writer *w, const struct input *in,
                   uint64_t *offset, struct err *e)
{
    struct content key = { { 0, 0 }, in->elems, 0, in->code };
    size_t i;

    if (in->memory) {
        key.hash = hash_bytes(in->memory, (size_t)in->bytes);
        i = w->cap_contents ? content_home(&key, w->cap_contents) : 0;
        for (; w->cap_contents && w->contents[i].code;
             i = (i + 1) & (w->cap_contents - 1)) {
            const struct content *c = &w->contents[i];

            if (c->code != key.code || c->elems != key.elems ||
                c->hash.lo != key.hash.lo || c->hash.hi != key.hash.hi)
                continue;
            *offset = c->offset;
            w->shared++;
            return 0;
        }
    }
    w->size = w->size ? w->size : HEADER_BYTES;
    *offset = (w->size + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
    w->size = *offset + RECORD_BYTES + in->bytes;
    return remember(w, in, key.hash, *offset, e);
}

static int put(struct blob_writer *w, const struct input *in, uint64_t *offset,
               struct err *e)
{
    if (w->measuring)
        return measure(w, in, offset, e);
    if (open_file(w, e))
        return -1;
    return in->bytes <= CHUNK ? put_small(w, in, offset, e)
                              : put_large(w, in, offset, e);
}

int blob_put(struct blob_writer *w, const struct mil_data *d, uint64_t *offset,
             struct err *e)
{
    struct input in = { .data = d };
    struct source *s;

    if (d->read == mil_data_read_memory)
        in.memory = d->cookie;
    if (sources_reserve(w, e))
        return -1;
    s = source_slot(w->sources, w->cap_sources, d);
    if (s->data) {
        w->shared++;
        *offset = s->offset;
        return 0;
    }
    if (make_input(&in, &d->type, d->bytes, e) || put(w, &in, offset, e))
        return -1;
    s->data = d;
    s->offset = *offset;
    w->n_sources++;
    return 0;
}

int blob_put_bytes(struct blob_writer *w, const struct mil_type *t,
                   const void *bytes, uint64_t *offset, struct err *e)
{
    struct input in = { .memory = bytes };

    if (make_input(&in, t, (uint64_t)mil_type_bytes(t), e))
        return -1;
    return put(w, &in, offset, e);
}

int blob_writer_finish(struct blob_writer *w, struct blob_totals *out,
                       struct err *e)
{
    uint8_t header[8];

    memset(out, 0, sizeof(*out));
    out->blobs = w->n_contents;
    out->shared = w->shared;
    hash_uuid(out->identity, hash_get(w->identity));
    out->bytes = w->size;
    if (!w->opened)
        return 0;
    if (w->n_contents > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "%zu constants, a weight file counts at most %" PRIu32,
                       w->n_contents, UINT32_MAX);
    out->bytes = w->out.pos;
    store_le32(header, (uint32_t)w->n_contents);
    store_le32(header + 4, STORAGE_VERSION);
    task_wait(w->syncer);
    if (w->sync_err.code)
        return err_copy(e, &w->sync_err);
    if (io_out_write_at(&w->out, header, sizeof(header), 0, e))
        return -1;
    return io_out_finish(&w->out, e);
}

/* ---- reading ---- */

int blob_open(struct blob_reader *r, const char *path, struct err *e)
{
    uint8_t h[HEADER_BYTES];
    uint32_t version;

    if (io_open_input(&r->file, path, e))
        return -1;
    if (r->file.size < HEADER_BYTES) {
        err_set(e, ERR_INPUT,
                "'%s' has %" PRIu64
                " bytes, the header of a weight file alone has %u",
                path, r->file.size, HEADER_BYTES);
        goto fail;
    }
    if (io_pread(&r->file, h, sizeof(h), 0, e))
        goto fail;
    version = load_le32(h + 4);
    if (version != STORAGE_VERSION) {
        err_set(e, ERR_INPUT,
                "'%s' is no weight file: storage version %" PRIu32
                ", supported is %u",
                path, version, STORAGE_VERSION);
        goto fail;
    }
    r->count = load_le32(h);
    return 0;
fail:
    blob_close(r);
    return -1;
}

void blob_close(struct blob_reader *r)
{
    io_close(&r->file);
}

/* Reads and checks the record at out->offset. */
static int read_record(const struct blob_reader *r, struct blob_record *out,
                       struct err *e)
{
    uint8_t h[RECORD_BYTES];
    uint64_t at = out->offset, size = r->file.size, pad, bits;
    const char *path = r->file.path;
    unsigned width;

    if (at < HEADER_BYTES || at % BLOB_ALIGN || size < RECORD_BYTES ||
        at > size - RECORD_BYTES)
        return err_set(e, ERR_INPUT,
                       "no blob can start at byte %" PRIu64 " of '%s' (%" PRIu64
                       " bytes)",
                       at, path, size);
    if (io_pread(&r->file, h, sizeof(h), at, e))
        return -1;
    if (load_le32(h) != SENTINEL)
        return err_set(e, ERR_INPUT,
                       "byte %" PRIu64 " of '%s' is not the start of a blob",
                       at, path);
    out->dtype = blob_dtype(load_le32(h + 4));
    out->bytes = load_le64(h + 8);
    out->data = load_le64(h + 16);
    pad = load_le64(h + 24);
    if (out->dtype == MIL_INVALID)
        return err_set(e, ERR_UNSUPPORTED,
                       "the blob at byte %" PRIu64
                       " of '%s' has unknown type code %" PRIu32,
                       at, path, load_le32(h + 4));
    if (out->data < HEADER_BYTES || out->data > size ||
        out->bytes > size - out->data)
        return err_set(e, ERR_INPUT,
                       "the blob at byte %" PRIu64
                       " of '%s' spans bytes %" PRIu64 " to %" PRIu64
                       " + %" PRIu64 " of a %" PRIu64 "-byte file",
                       at, path, out->data, out->data, out->bytes, size);
    width = mil_dtype_bits(out->dtype);
    if (pad > 7 || (width >= 8 && pad) || (pad && !out->bytes) ||
        !mem_mul(out->bytes, 8, &bits) || (bits - pad) % width)
        return err_set(e, ERR_INPUT,
                       "the blob at byte %" PRIu64 " of '%s' has %" PRIu64
                       " bytes and %" PRIu64
                       " unused bits, no whole number of %s elements",
                       at, path, out->bytes, pad, mil_dtype_name(out->dtype));
    out->elems = (bits - pad) / width;
    return 0;
}

int blob_find(const struct blob_reader *r, uint64_t offset,
              const struct mil_type *t, uint64_t *data, struct err *e)
{
    struct blob_record rec = { .offset = offset };
    int64_t elems = mil_type_elems(t);

    if (read_record(r, &rec, e))
        return -1;
    if (rec.dtype != t->dtype)
        return err_set(e, ERR_INPUT,
                       "the blob at byte %" PRIu64
                       " of '%s' holds %s, the program declares %s",
                       offset, r->file.path, mil_dtype_name(rec.dtype),
                       mil_dtype_name(t->dtype));
    if (elems < 0 || (uint64_t)elems != rec.elems)
        return err_set(e, ERR_INPUT,
                       "the blob at byte %" PRIu64 " of '%s' holds %" PRIu64
                       " elements, the program declares %" PRId64,
                       offset, r->file.path, rec.elems, elems);
    *data = rec.data;
    return 0;
}

int blob_next(const struct blob_reader *r, uint64_t *next,
              struct blob_record *out, struct err *e)
{
    uint64_t size = r->file.size, end, at = *next ? *next : HEADER_BYTES;

    /* The file ends right behind the last byte of data. */
    if (at >= size)
        return 0;
    out->offset = at;
    if (read_record(r, out, e))
        return -1;
    if (out->data != at + RECORD_BYTES)
        return err_set(e, ERR_INPUT,
                       "the data of the blob at byte %" PRIu64
                       " of '%s' lies at byte %" PRIu64 ", not behind it",
                       at, r->file.path, out->data);
    end = out->data + out->bytes;
    *next = end + (-end & (BLOB_ALIGN - 1));
    return 1;
}
