/*
 * A folder of finished matrices: tables and packed indices, or integers and
 * scales, named by what they were made of and how (the key). Paths, contexts
 * and numbers of threads are no part of a key, so any conversion of the same
 * values finds them.
 *
 * An entry is used only if all of its bytes are what was written: a file that
 * is cut, damaged, foreign or of another version is told by name, left out and
 * replaced. Entries appear by a rename, so several conversions may share a
 * folder. Where one cannot be written, the folder is left alone from then on:
 * a cache saves time and fails nothing. All of it may be deleted at any time.
 *
 * A checksum is no defence against somebody who may write to the folder.
 *
 *   0    "ANEMLLqz"
 *   8    version of this form (4), QZ_RESULTS (4)
 *   16   key (16)
 *   32   bytes of the content (8), of the blocks behind the header (8)
 *   48   six doubles and two counts of struct qz_stats (64)
 *   112  XXH3-128 of the blocks, then of bytes 0 .. 111 (16)
 *   128  blocks: bytes of content (4), at most 1 MiB; bytes stored (4); these,
 *        which are a zstd frame if they are fewer
 *
 * Little-endian; hashes with the high half first. All but the last block hold
 * 1 MiB.
 */
#ifndef CONVERTER_CACHE_H
#define CONVERTER_CACHE_H

#include "converter/base/hash.h"
#include "converter/base/log.h"
#include "quant/quant.h"

#define CACHE_VERSION 1
#define CACHE_HEADER 128
#define CACHE_SUFFIX ".matrix"

struct cache;
struct cache_counts {
    uint64_t found, added; /* entries */
    uint64_t refused;      /* damaged ones */
    uint64_t found_bytes;  /* content of those found */
};
/* Makes the folder (parents too), proves that files can be made there and
 * removes what killed runs left. `reserve`: bytes that have to stay free on
 * its disk. `dir` and `log` must outlive the cache. ERR_USAGE: the folder
 * cannot be used. */
struct cache *cache_open(const char *dir, uint64_t reserve,
                         const struct log *log, struct err *e) ATTR_MUST_USE;
/* Removes the folder again if open made it and it is still empty. */
void cache_close(struct cache *c);
void cache_counted(const struct cache *c, struct cache_counts *out);

/* The entry of a key, read and compared with its checksum; NULL if there is
 * none to use. `bytes`: of the content, as the caller knows it. */
struct cache_found;
struct cache_found *cache_find(struct cache *c, struct hash128 key,
                               uint64_t bytes);
/* The next n bytes of the content (dst NULL: passed over). ERR_IO: the file
 * was changed since it was found. */
int cache_read(struct cache_found *f, void *dst, size_t n,
               struct err *e) ATTR_MUST_USE;
uint64_t cache_at(const struct cache_found *f); /* bytes read so far */
/* After the last byte: whether all of them were as found, and the figures. */
int cache_read_end(struct cache_found *f, struct qz_stats *out,
                   struct err *e) ATTR_MUST_USE;
void cache_found_free(struct cache_found *f);

/* A new entry, byte by byte; NULL if it is not to be written. */
struct cache_fresh;
struct cache_fresh *cache_begin(struct cache *c, struct hash128 key,
                                uint64_t bytes);
void cache_add(struct cache_fresh *f, const void *p, size_t n);
uint64_t cache_added(const struct cache_fresh *f); /* bytes so far */
/* Makes it visible and frees it. */
void cache_commit(struct cache_fresh *f, const struct qz_stats *stats);
void cache_drop(struct cache_fresh *f); /* frees it without a trace */

#endif
