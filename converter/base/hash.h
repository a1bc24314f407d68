/*
 * Content hash: XXH3, 128 bits (libxxhash). For identity of equal bytes and
 * for stable identifiers; not a defence against an adversary.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

struct hash128 {
    uint64_t hi, lo;
};

struct hash_state;
struct hash_state *hash_new(struct err *e) ATTR_MUST_USE;
void hash_reset(struct hash_state *h);
void hash_add(struct hash_state *h, const void *p, size_t n);
struct hash128 hash_get(const struct hash_state *h);
void hash_free(struct hash_state *h);

struct hash128 hash_bytes(const void *p, size_t n);
/* 64 bits for hash tables in memory, never for what is stored. */
uint64_t hash_short(const void *p, size_t n, uint64_t seed);
/* Upper-case UUID text of a hash (36 characters and NUL), with the version
 * and variant bits of a custom UUID laid over it. */
#define HASH_UUID_MAX 37
void hash_uuid(char out[HASH_UUID_MAX], struct hash128 h);

#endif
