/*
 * Memory: every allocation of the project passes through raw_alloc() or
 * mem_realloc(), which know the failure counter of the tests. Blocks are
 * plain malloc blocks, aligned ones included, so that one mem_free serves.
 */
#include "converter/base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mem_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b != 0 && a > UINT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool mem_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

/* Allocations left before one fails; negative: none does. Atomic only so
 * that threads may allocate while no test counts. */
static atomic_long fail_after = -1;
static atomic_bool fail_sticky;

void mem_fail_at(long n, bool sticky)
{
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_after, n);
}

static bool must_fail(void)
{
    long n = atomic_load_explicit(&fail_after, memory_order_relaxed);

    if (n < 0)
        return false;
    if (n > 0) {
        atomic_store(&fail_after, n - 1);
        return false;
    }
    if (!atomic_load(&fail_sticky))
        atomic_store(&fail_after, -1);
    return true;
}

/* n * size in bytes, at least 1; false if no allocation can be that large. */
static bool total_bytes(size_t n, size_t size, size_t *out)
{
    if (size != 0 && n > (size_t)PTRDIFF_MAX / size)
        return false;
    *out = n * size == 0 ? 1 : n * size;
    return true;
}

static void *no_memory(size_t n, size_t size, struct err *e)
{
    if (size <= 1)
        err_set(e, ERR_NOMEM, "out of memory: %zu bytes are needed", n);
    else
        err_set(e, ERR_NOMEM, "out of memory: %zu x %zu bytes are needed", n,
                size);
    return NULL;
}

void *mem_alloc(size_t n, size_t size, struct err *e)
{
    size_t bytes;
    void *p = NULL;

    if (total_bytes(n, size, &bytes) && !must_fail())
        p = malloc(bytes);
    return p != NULL ? p : no_memory(n, size, e);
}

void *mem_zalloc(size_t n, size_t size, struct err *e)
{
    size_t bytes;
    void *p = NULL;

    if (total_bytes(n, size, &bytes) && !must_fail())
        p = calloc(1, bytes);
    return p != NULL ? p : no_memory(n, size, e);
}

void *mem_alloc_aligned(size_t n, size_t size, struct err *e)
{
    size_t bytes;
    void *p = NULL;

    if (total_bytes(n, size, &bytes) && !must_fail() &&
        posix_memalign(&p, 64, bytes) != 0)
        p = NULL;
    return p != NULL ? p : no_memory(n, size, e);
}

void *mem_realloc(void *p, size_t n, size_t size, struct err *e)
{
    size_t bytes;
    void *q = NULL;

    if (total_bytes(n, size, &bytes) && !must_fail())
        q = realloc(p, bytes);
    return q != NULL ? q : no_memory(n, size, e);
}

char *mem_strdup(const char *s, struct err *e)
{
    return mem_strndup(s, strlen(s), e);
}

char *mem_strndup(const char *s, size_t n, struct err *e)
{
    const char *nul = memchr(s, '\0', n);
    size_t len = nul != NULL ? (size_t)(nul - s) : n;
    char *p = mem_alloc(len + 1, 1, e);

    if (p == NULL)
        return NULL;
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

static int printed_length(const char *fmt, va_list ap, struct err *e)
{
    int n = vsnprintf(NULL, 0, fmt, ap);

    if (n < 0)
        err_set(e, ERR_NOMEM, "text of format '%s' is too long", fmt);
    return n;
}

char *mem_printf(struct err *e, const char *fmt, ...)
{
    char *p = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = printed_length(fmt, ap, e);
    va_end(ap);
    if (n >= 0)
        p = mem_alloc((size_t)n + 1, 1, e);
    if (p == NULL)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void mem_free(void *p)
{
    free(p);
}

int mem_grow(void **items, size_t *cap, size_t used, size_t size, struct err *e)
{
    size_t want;
    void *p;

    if (used < *cap)
        return 0;
    want = *cap > SIZE_MAX / 2 ? SIZE_MAX : *cap * 2;
    if (want < 8)
        want = 8;
    if (want <= used)
        want = used + 1;
    p = mem_realloc(*items, want, size, e);
    if (p == NULL)
        return -1;
    *items = p;
    *cap = want;
    return 0;
}

/*
 * Arena blocks. The bytes are handed out from the front; under
 * AddressSanitizer a gap follows each object and everything not handed out
 * is poisoned.
 */
struct arena_block {
    struct arena_block *next;
    size_t used, cap; /* of the bytes behind the header */
};

#define ARENA_ALIGN 16
#define ARENA_MIN ((size_t)4 << 10)
#define ARENA_MAX ((size_t)1 << 20)
/* Header size, rounded so that the bytes behind it stay aligned. */
#define ARENA_HEAD \
    ((sizeof(struct arena_block) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN)

static char *block_bytes(struct arena_block *b)
{
    return (char *)b + ARENA_HEAD;
}

static struct arena_block *block_new(size_t cap, struct err *e)
{
    struct arena_block *b = mem_alloc(ARENA_HEAD + cap, 1, e);

    if (b == NULL)
        return NULL;
    b->next = NULL;
    b->used = 0;
    b->cap = cap;
    ASAN_POISON(block_bytes(b), cap);
    return b;
}

/* A block with room for `need`. A large object gets a block of its own,
 * which goes behind the head so that the head's rest stays in use. */
static struct arena_block *arena_room(struct arena *a, size_t need,
                                      struct err *e)
{
    struct arena_block *b = a->head;
    size_t cap = ARENA_MIN;

    if (b != NULL && b->cap - b->used >= need)
        return b;
    if (b != NULL)
        cap = b->cap * 2 > ARENA_MAX ? ARENA_MAX : b->cap * 2;
    if (cap < ARENA_MIN)
        cap = ARENA_MIN;
    if (b != NULL && need > cap / 4) {
        struct arena_block *own = block_new(need, e);

        if (own == NULL)
            return NULL;
        own->next = b->next;
        b->next = own;
        return own;
    }
    b = block_new(need > cap ? need : cap, e);
    if (b == NULL)
        return NULL;
    b->next = a->head;
    a->head = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t n, size_t size, struct err *e)
{
    struct arena_block *b;
    size_t bytes, need;
    char *p;

    if (!total_bytes(n, size, &bytes) || bytes > (size_t)PTRDIFF_MAX / 2)
        return no_memory(n, size, e);
    need = (bytes + ASAN_GAP + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    b = arena_room(a, need, e);
    if (b == NULL)
        return NULL;
    p = block_bytes(b) + b->used;
    b->used += need;
    a->used_bytes += bytes;
    ASAN_UNPOISON(p, bytes);
    memset(p, 0, bytes);
    return p;
}

void *arena_memdup(struct arena *a, const void *p, size_t bytes, struct err *e)
{
    void *q = arena_alloc(a, bytes, 1, e);

    if (q != NULL && bytes > 0)
        memcpy(q, p, bytes);
    return q;
}

char *arena_strdup(struct arena *a, const char *s, struct err *e)
{
    return arena_memdup(a, s, strlen(s) + 1, e);
}

char *arena_strndup(struct arena *a, const char *s, size_t n, struct err *e)
{
    const char *nul = memchr(s, '\0', n);
    size_t len = nul != NULL ? (size_t)(nul - s) : n;
    char *p = arena_alloc(a, len + 1, 1, e);

    if (p != NULL)
        memcpy(p, s, len);
    return p;
}

char *arena_printf(struct arena *a, struct err *e, const char *fmt, ...)
{
    char *p = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = printed_length(fmt, ap, e);
    va_end(ap);
    if (n >= 0)
        p = arena_alloc(a, (size_t)n + 1, 1, e);
    if (p == NULL)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void arena_release(struct arena *a)
{
    struct arena_block *b = a->head, *next;

    for (; b != NULL; b = next) {
        next = b->next;
        ASAN_UNPOISON(block_bytes(b), b->cap);
        mem_free(b);
    }
    a->head = NULL;
    a->used_bytes = 0;
}
