/*
 * Memory: checked sizes, allocation that reports, and an arena.
 *
 * No module calls malloc directly. Every allocation can be made to fail by
 * number (tests), so that each error path is walked.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

/* Checked unsigned arithmetic: false (and *out untouched) on overflow. */
bool mem_mul(uint64_t a, uint64_t b, uint64_t *out) ATTR_MUST_USE;
bool mem_add(uint64_t a, uint64_t b, uint64_t *out) ATTR_MUST_USE;

/* Allocation of n elements of `size` bytes. NULL with ERR_NOMEM that names
 * the number of bytes. n == 0 gives a valid pointer that mem_free takes. */
void *mem_alloc(size_t n, size_t size, struct err *e) ATTR_MUST_USE;
void *mem_zalloc(size_t n, size_t size, struct err *e) ATTR_MUST_USE;
/* 64-byte aligned, for kernels and direct file blocks. */
void *mem_alloc_aligned(size_t n, size_t size, struct err *e) ATTR_MUST_USE;
/* Grows or shrinks; on failure the old block stays valid. */
void *mem_realloc(void *p, size_t n, size_t size, struct err *e) ATTR_MUST_USE;
char *mem_strdup(const char *s, struct err *e) ATTR_MUST_USE;
char *mem_strndup(const char *s, size_t n, struct err *e) ATTR_MUST_USE;
/* printf into a fresh string. */
char *mem_printf(struct err *e, const char *fmt, ...)
    ATTR_PRINTF(2, 3) ATTR_MUST_USE;
/* Frees what any of the above returned; NULL is fine. */
void mem_free(void *p);

/* Makes capacity for one more element in a growing array: doubles. `*items`
 * and `*cap` are updated. Returns 0 or -1. */
int mem_grow(void **items, size_t *cap, size_t used, size_t size,
             struct err *e) ATTR_MUST_USE;

/* Tests: the allocation number n from now fails, and all later ones when
 * `sticky`; n < 0 switches it off. Process-wide, single-threaded use. */
void mem_fail_at(long n, bool sticky);

/* An arena: many small objects, one free. Memory is zeroed. */
struct arena {
    struct arena_block *head;
    size_t used_bytes; /* handed out, for statistics */
};
#define ARENA_INIT \
    {              \
        0, 0       \
    }

void *arena_alloc(struct arena *a, size_t n, size_t size,
                  struct err *e) ATTR_MUST_USE;
char *arena_strdup(struct arena *a, const char *s, struct err *e) ATTR_MUST_USE;
char *arena_strndup(struct arena *a, const char *s, size_t n,
                    struct err *e) ATTR_MUST_USE;
char *arena_printf(struct arena *a, struct err *e, const char *fmt, ...)
    ATTR_PRINTF(3, 4) ATTR_MUST_USE;
void *arena_memdup(struct arena *a, const void *p, size_t bytes,
                   struct err *e) ATTR_MUST_USE;
void arena_release(struct arena *a);

#endif
