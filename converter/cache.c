/*
 * The folder of finished matrices (cache.h).
 */
#include "converter/cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"

#define MAGIC "ANEMLLqz"
#define BLOCK ((size_t)1 << 20)
#define FIGURES 48
#define CHECKSUM 112
/* Files in the making that are older were left by a killed run. */
#define PART_SUFFIX ".part"
#define PART_SECONDS (24 * 60 * 60)
#define NAME_MAX_CHARS 96
/* Fast; higher ones gain nothing on packed indices. */
#define ZSTD_LEVEL 1

struct cache {
    const char *dir;
    uint64_t reserve;
    const struct log *log;
    char *made;  /* the topmost folder that was made; NULL: none */
    bool closed; /* to new entries */
    struct cache_counts counts;
};

/* ---- the folder ---- */

static void remove_old(const struct cache *c, const char *name)
{
    size_t n = strlen(name), end = strlen(PART_SUFFIX);
    struct err ignored = ERR_INIT;
    struct io_file f = IO_FILE_INIT;
    char *path;

    if (n <= end || strcmp(name + n - end, PART_SUFFIX) != 0 ||
        strspn(name, "0123456789abcdef") != 32)
        return;
    path = io_join(c->dir, name, &ignored);
    /* An empty one cannot be opened as an input, and takes no room. */
    if (path && !io_open_input(&f, path, &ignored) &&
        f.mtime_s < (int64_t)time(NULL) - PART_SECONDS)
        unlink(path);
    io_close(&f);
    mem_free(path);
    err_reset(&ignored);
}

static void remove_left(const struct cache *c)
{
    struct err ignored = ERR_INIT;
    char **names = NULL;
    size_t n = 0;

    if (io_list(c->dir, &names, &n, &ignored))
        err_reset(&ignored);
    for (size_t i = 0; i < n; i++)
        remove_old(c, names[i]);
    io_list_free(names, n);
}

/* A name that no other run uses: process numbers are used again, and mean
 * nothing across machines that share a folder. */
static char *part_name(const struct cache *c, const char *key, struct err *e)
{
    static _Atomic unsigned counter;
    struct timespec t = { 0 };

    clock_gettime(CLOCK_REALTIME, &t);
    return mem_printf(e, "%s/%s.%ld-%08lx-%u" PART_SUFFIX, c->dir, key,
                      (long)getpid(), (unsigned long)t.tv_nsec,
                      atomic_fetch_add(&counter, 1));
}

/* By doing it: permissions and read-only disks have many forms. A full disk
 * still serves what it has. */
static int try_to_make(const struct cache *c, struct err *e)
{
    char *path = part_name(c, "00000000000000000000000000000000", e);
    struct io_out o = IO_OUT_INIT;
    int rc = -1;

    if (path && !io_out_open(&o, path, e)) {
        unlink(path);
        rc = 0;
    }
    io_out_release(&o);
    mem_free(path);
    return rc;
}

struct cache *cache_open(const char *dir, uint64_t reserve,
                         const struct log *log, struct err *e)
{
    struct cache *c = mem_zalloc(1, sizeof(*c), e);

    if (!c)
        return NULL;
    c->dir = dir;
    c->reserve = reserve;
    c->log = log;
    if (io_make_dirs(dir, &c->made, e) || try_to_make(c, e)) {
        cache_close(c);
        if (e->code != ERR_NOMEM)
            e->code = ERR_USAGE;
        err_in(e, "--cache '%s'", dir);
        return NULL;
    }
    remove_left(c);
    return c;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    if (c->made)
        io_remove_empty(c->dir, c->made);
    mem_free(c->made);
    mem_free(c);
}

void cache_counted(const struct cache *c, struct cache_counts *out)
{
    *out = c->counts;
}

static void key_text(char out[33], struct hash128 key)
{
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, key.hi, key.lo);
}

static char *entry_path(const struct cache *c, struct hash128 key,
                        struct err *e)
{
    char hex[33];

    key_text(hex, key);
    return mem_printf(e, "%s/%s" CACHE_SUFFIX, c->dir, hex);
}

/* ---- the header ---- */

static void put_hash(uint8_t *p, struct hash128 h)
{
    store_le64(p, h.hi);
    store_le64(p + 8, h.lo);
}

static bool is_hash(const uint8_t *p, struct hash128 h)
{
    return load_le64(p) == h.hi && load_le64(p + 8) == h.lo;
}

static void put_stats(uint8_t *p, const struct qz_stats *s)
{
    const double v[] = { s->sse,         s->sum_sq, s->weighted,
                         s->weighted_sq, s->output, s->output_sq };
    uint64_t bits;

    for (size_t i = 0; i < 6; i++) {
        memcpy(&bits, &v[i], sizeof(bits));
        store_le64(p + 8 * i, bits);
    }
    store_le64(p + 48, s->groups);
    store_le64(p + 56, s->weights);
}

static void get_stats(const uint8_t *p, struct qz_stats *s)
{
    double *const v[] = { &s->sse,         &s->sum_sq, &s->weighted,
                          &s->weighted_sq, &s->output, &s->output_sq };

    for (size_t i = 0; i < 6; i++) {
        uint64_t bits = load_le64(p + 8 * i);

        memcpy(v[i], &bits, sizeof(bits));
    }
    s->groups = load_le64(p + 48);
    s->weights = load_le64(p + 56);
}

/* ---- reading ---- */

struct cache_found {
    struct io_file file;
    uint8_t header[CACHE_HEADER];
    struct hash128 key;
    uint64_t bytes;          /* of the content */
    uint64_t next, at;       /* block to come in the file; content in blocks */
    size_t size, taken;      /* of the block in `block` */
    uint8_t *block, *stored; /* BLOCK each */
    ZSTD_DCtx *zstd;
    struct hash_state *hash;
};

void cache_found_free(struct cache_found *f)
{
    if (!f)
        return;
    io_close(&f->file);
    mem_free(f->block);
    mem_free(f->stored);
    ZSTD_freeDCtx(f->zstd);
    hash_free(f->hash);
    mem_free(f);
}

static int damaged(const struct cache_found *f, const char *what, struct err *e)
{
    return err_set(e, ERR_INPUT, "'%s' %s", f->file.path, what);
}

static void rewind_found(struct cache_found *f)
{
    f->next = CACHE_HEADER;
    f->at = 0;
    f->size = f->taken = 0;
    hash_reset(f->hash);
}

static int check_header(const struct cache_found *f, struct err *e)
{
    const uint8_t *h = f->header;

    if (memcmp(h, MAGIC, 8) != 0)
        return damaged(f, "is no cached matrix", e);
    if (load_le32(h + 8) != CACHE_VERSION || load_le32(h + 12) != QZ_RESULTS)
        return err_set(e, ERR_INPUT,
                       "'%s' has version %" PRIu32 ".%" PRIu32
                       ", this program writes %d.%d",
                       f->file.path, load_le32(h + 8), load_le32(h + 12),
                       CACHE_VERSION, QZ_RESULTS);
    if (!is_hash(h + 16, f->key))
        return damaged(f, "holds another matrix than its name says", e);
    if (load_le64(h + 40) != f->file.size - CACHE_HEADER)
        return err_set(e, ERR_INPUT,
                       "'%s' has %" PRIu64 " bytes of blocks, %" PRIu64
                       " were written",
                       f->file.path, f->file.size - CACHE_HEADER,
                       load_le64(h + 40));
    if (load_le64(h + 32) != f->bytes)
        return err_set(e, ERR_INPUT,
                       "'%s' holds %" PRIu64 " bytes, the matrix has %" PRIu64,
                       f->file.path, load_le64(h + 32), f->bytes);
    return 0;
}

/* The next block into `block`. */
static int next_block(struct cache_found *f, struct err *e)
{
    uint64_t left = f->bytes - f->at, want = left < BLOCK ? left : BLOCK;
    uint64_t size = f->file.size;
    uint8_t head[8];
    uint32_t stored;

    if (size - f->next < sizeof(head))
        return damaged(f, "ends within its blocks", e);
    if (io_pread(&f->file, head, sizeof(head), f->next, e))
        return -1;
    stored = load_le32(head + 4);
    f->next += sizeof(head);
    if (load_le32(head) != want || !stored || stored > want ||
        stored > size - f->next)
        return damaged(f, "has a block of a wrong size", e);
    if (io_pread(&f->file, stored < want ? f->stored : f->block, stored,
                 f->next, e))
        return -1;
    hash_add(f->hash, head, sizeof(head));
    hash_add(f->hash, stored < want ? f->stored : f->block, stored);
    if (stored < want) {
        if (!f->zstd && !(f->zstd = ZSTD_createDCtx()))
            return err_set(e, ERR_NOMEM, "no memory for zstd");
        if (ZSTD_decompressDCtx(f->zstd, f->block, (size_t)want, f->stored,
                                stored) != want)
            return damaged(f, "has a block that cannot be unpacked", e);
    }
    f->next += stored;
    f->at += want;
    f->size = (size_t)want;
    f->taken = 0;
    return 0;
}

/* Behind the last block. */
static int check_end(struct cache_found *f, struct err *e)
{
    if (f->next != f->file.size)
        return damaged(f, "has bytes behind its blocks", e);
    hash_add(f->hash, f->header, CHECKSUM);
    if (!is_hash(f->header + CHECKSUM, hash_get(f->hash)))
        return damaged(f, "is not what was written: its checksum differs", e);
    return 0;
}

static int check_all(struct cache_found *f, struct err *e)
{
    if (f->file.size < CACHE_HEADER)
        return err_set(e, ERR_INPUT, "'%s' has %" PRIu64 " bytes, a header %d",
                       f->file.path, f->file.size, CACHE_HEADER);
    if (io_pread(&f->file, f->header, CACHE_HEADER, 0, e) || check_header(f, e))
        return -1;
    rewind_found(f);
    while (f->at < f->bytes)
        if (next_block(f, e))
            return -1;
    return check_end(f, e);
}

struct cache_found *cache_find(struct cache *c, struct hash128 key,
                               uint64_t bytes)
{
    struct err e = ERR_INIT;
    char *path = entry_path(c, key, &e);
    struct cache_found *f = NULL;

    if (!path || !io_exists(path))
        goto out;
    if (!(f = mem_zalloc(1, sizeof(*f), &e)))
        goto out;
    f->file.fd = -1;
    f->key = key;
    f->bytes = bytes;
    if (!(f->block = mem_alloc(BLOCK, 1, &e)) ||
        !(f->stored = mem_alloc(BLOCK, 1, &e)) || !(f->hash = hash_new(&e)) ||
        io_open_input(&f->file, path, &e) || check_all(f, &e)) {
        cache_found_free(f);
        f = NULL;
        c->counts.refused++;
        goto out;
    }
    rewind_found(f);
    c->counts.found++;
    c->counts.found_bytes += bytes;
out:
    if (e.code)
        log_warn(c->log, "left out of the cache and made anew: %s", e.text);
    err_reset(&e);
    mem_free(path);
    return f;
}

/* What was whole a moment ago is not any more, and some of it is used. */
static int changed(struct err *e)
{
    e->code = ERR_IO;
    return err_in(e, "changed while it was read");
}

int cache_read(struct cache_found *f, void *dst, size_t n, struct err *e)
{
    uint8_t *out = dst;
    size_t m;

    BUG_UNLESS(n <= f->bytes - cache_at(f));
    for (; n; n -= m) {
        if (f->taken == f->size && next_block(f, e))
            return changed(e);
        m = f->size - f->taken < n ? f->size - f->taken : n;
        if (out) {
            memcpy(out, f->block + f->taken, m);
            out += m;
        }
        f->taken += m;
    }
    return 0;
}

uint64_t cache_at(const struct cache_found *f)
{
    return f->at - (f->size - f->taken);
}

int cache_read_end(struct cache_found *f, struct qz_stats *out, struct err *e)
{
    BUG_UNLESS(cache_at(f) == f->bytes);
    get_stats(f->header + FIGURES, out);
    return check_end(f, e) ? changed(e) : 0;
}

/* ---- writing ---- */

enum packing { PACK_TRY, PACK_ALL, PACK_NONE };

struct cache_fresh {
    struct cache *c;
    struct io_out out;
    struct hash128 key;
    uint64_t bytes, done;
    size_t filled;           /* of `block` */
    uint8_t *block, *stored; /* BLOCK each */
    enum packing packing;
    ZSTD_CCtx *zstd;
    struct hash_state *hash;
    bool failed;
};

void cache_drop(struct cache_fresh *f)
{
    if (!f)
        return;
    if (f->out.path)
        unlink(f->out.path);
    io_out_release(&f->out);
    mem_free(f->block);
    mem_free(f->stored);
    ZSTD_freeCCtx(f->zstd);
    hash_free(f->hash);
    mem_free(f);
}

/* One warning is enough: what stopped this entry stops the next. */
static void give_up(struct cache_fresh *f, struct err *e)
{
    if (!f->c->closed)
        log_warn(f->c->log, "nothing more is added to the cache: %s", e->text);
    f->c->closed = true;
    f->failed = true;
    err_reset(e);
}

static int check_room(const struct cache *c, uint64_t bytes, struct err *e)
{
    char have[NUM_TEXT_MAX], need[NUM_TEXT_MAX], size[NUM_TEXT_MAX];
    uint64_t room;

    if (io_free_bytes(c->dir, &room, e))
        return -1;
    if (room >= c->reserve && room - c->reserve >= bytes)
        return 0;
    num_bytes_text(have, room);
    num_bytes_text(need, c->reserve);
    num_bytes_text(size, bytes);
    return err_set(e, ERR_IO,
                   "the disk of '%s' has %s free, the matrix takes %s, the "
                   "package may need %s",
                   c->dir, have, size, need);
}

static int open_fresh(struct cache_fresh *f, struct err *e)
{
    static const uint8_t zeros[CACHE_HEADER];
    char hex[33], *path;
    int rc = -1;

    if (!(f->block = mem_alloc(BLOCK, 1, e)) ||
        !(f->stored = mem_alloc(BLOCK, 1, e)) || !(f->hash = hash_new(e)) ||
        check_room(f->c, f->bytes, e))
        return -1;
    key_text(hex, f->key);
    path = part_name(f->c, hex, e);
    if (path && !io_out_open(&f->out, path, e))
        rc = io_out_write(&f->out, zeros, sizeof(zeros), e);
    mem_free(path);
    return rc;
}

struct cache_fresh *cache_begin(struct cache *c, struct hash128 key,
                                uint64_t bytes)
{
    static const struct io_out none = IO_OUT_INIT;
    struct err e = ERR_INIT;
    struct cache_fresh *f;

    if (c->closed || !(f = mem_zalloc(1, sizeof(*f), &e)))
        return NULL;
    f->c = c;
    f->out = none;
    f->key = key;
    f->bytes = bytes;
    if (!open_fresh(f, &e))
        return f;
    give_up(f, &e);
    cache_drop(f);
    return NULL;
}

/* Bytes of the block as a zstd frame in `stored`; 0 if that saves too little.
 * The first block of an entry decides: packed indices of common weights give
 * way by a few percent. */
static size_t packed_size(struct cache_fresh *f)
{
    size_t n;

    if (f->packing == PACK_NONE || (!f->zstd && !(f->zstd = ZSTD_createCCtx())))
        return 0;
    n = ZSTD_compressCCtx(f->zstd, f->stored, f->filled, f->block, f->filled,
                          ZSTD_LEVEL);
    if (f->packing == PACK_TRY)
        f->packing = !ZSTD_isError(n) && n <= f->filled - f->filled / 8
                         ? PACK_ALL
                         : PACK_NONE;
    return f->packing == PACK_ALL && !ZSTD_isError(n) && n < f->filled ? n : 0;
}

static int put_block(struct cache_fresh *f, struct err *e)
{
    size_t packed = packed_size(f), stored = packed ? packed : f->filled;
    const uint8_t *p = packed ? f->stored : f->block;
    uint8_t head[8];

    store_le32(head, (uint32_t)f->filled);
    store_le32(head + 4, (uint32_t)stored);
    hash_add(f->hash, head, sizeof(head));
    hash_add(f->hash, p, stored);
    f->filled = 0;
    if (io_out_write(&f->out, head, sizeof(head), e))
        return -1;
    return io_out_write(&f->out, p, stored, e);
}

void cache_add(struct cache_fresh *f, const void *p, size_t n)
{
    const uint8_t *src = p;
    struct err e = ERR_INIT;
    size_t m;

    BUG_UNLESS(n <= f->bytes - f->done);
    f->done += n;
    for (; n && !f->failed; n -= m, src += m) {
        m = BLOCK - f->filled < n ? BLOCK - f->filled : n;
        memcpy(f->block + f->filled, src, m);
        f->filled += m;
        if (f->filled == BLOCK && put_block(f, &e))
            give_up(f, &e);
    }
}

uint64_t cache_added(const struct cache_fresh *f)
{
    return f->done;
}

static int put_header(struct cache_fresh *f, const struct qz_stats *stats,
                      struct err *e)
{
    uint8_t h[CACHE_HEADER];

    memcpy(h, MAGIC, 8);
    store_le32(h + 8, CACHE_VERSION);
    store_le32(h + 12, QZ_RESULTS);
    put_hash(h + 16, f->key);
    store_le64(h + 32, f->bytes);
    store_le64(h + 40, f->out.pos - CACHE_HEADER);
    put_stats(h + FIGURES, stats);
    hash_add(f->hash, h, CHECKSUM);
    put_hash(h + CHECKSUM, hash_get(f->hash));
    return io_out_write_at(&f->out, h, sizeof(h), 0, e);
}

/* Not synced: what a crash of the machine cuts is found by its checksum. */
static int finish(struct cache_fresh *f, const struct qz_stats *stats,
                  struct err *e)
{
    char *path = NULL;
    int rc = -1;

    if ((f->filled && put_block(f, e)) || put_header(f, stats, e) ||
        !(path = entry_path(f->c, f->key, e)))
        return -1;
    if (rename(f->out.path, path) == 0) {
        mem_free(f->out.path);
        f->out.path = NULL;
        rc = 0;
    } else {
        err_sys(e, errno, "cannot move '%s' to '%s'", f->out.path, path);
    }
    mem_free(path);
    return rc;
}

void cache_commit(struct cache_fresh *f, const struct qz_stats *stats)
{
    struct err e = ERR_INIT;

    BUG_UNLESS(f->done == f->bytes);
    if (!f->failed && finish(f, stats, &e))
        give_up(f, &e);
    else if (!f->failed)
        f->c->counts.added++;
    cache_drop(f);
}
