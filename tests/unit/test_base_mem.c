/*
 * Memory and buffers: checked sizes, failure by number, arenas, appending.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/buf.h"
#include "converter/base/mem.h"

Test(mem, checked_arithmetic)
{
    uint64_t v = 77;

    cr_assert(mem_mul(UINT32_MAX, UINT32_MAX, &v));
    cr_assert_eq(v, UINT64_C(0xfffffffe00000001));
    v = 77;
    cr_assert(!mem_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &v));
    cr_assert(!mem_mul(UINT64_MAX, 2, &v));
    cr_assert(!mem_add(UINT64_MAX, 1, &v));
    cr_assert_eq(v, 77, "an overflow must leave the result alone");
    cr_assert(mem_mul(UINT64_MAX, 1, &v) && v == UINT64_MAX);
    cr_assert(mem_mul(0, UINT64_MAX, &v) && v == 0);
    cr_assert(mem_mul(UINT64_MAX, 0, &v) && v == 0);
    cr_assert(mem_add(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
}

Test(mem, sizes_that_cannot_be)
{
    struct err e = ERR_INIT;

    cr_assert_null(mem_alloc(SIZE_MAX, 16, &e));
    cr_assert_eq(e.code, ERR_NOMEM);
    cr_assert_not_null(strstr(e.text, "18446744073709551615 x 16 bytes"));
    err_reset(&e);
    cr_assert_null(mem_alloc((size_t)PTRDIFF_MAX + 1, 1, &e));
    cr_assert_eq(e.code, ERR_NOMEM);
    err_reset(&e);
    cr_assert_null(mem_zalloc(SIZE_MAX / 2, 3, &e));
    err_reset(&e);
    cr_assert_null(mem_alloc_aligned(SIZE_MAX / 2, 3, &e));
}

Test(mem, zero_elements_are_fine)
{
    struct err e = ERR_INIT;
    void *p[3] = { mem_alloc(0, 8, &e), mem_zalloc(0, 0, &e),
                   mem_alloc_aligned(0, 1, &e) };

    for (int i = 0; i < 3; i++) {
        cr_assert_not_null(p[i]);
        mem_free(p[i]);
    }
    mem_free(NULL);
}

Test(mem, aligned_blocks)
{
    struct err e = ERR_INIT;

    for (size_t n = 1; n < 300; n += 7) {
        char *p = mem_alloc_aligned(n, 1, &e);

        cr_assert_eq((uintptr_t)p % 64, 0);
        memset(p, 1, n);
        mem_free(p);
    }
}

Test(mem, strings)
{
    struct err e = ERR_INIT;
    char *a = mem_strdup("abc", &e), *b = mem_strndup("abcdef", 4, &e);
    char *c = mem_strndup("ab\0cd", 5, &e);
    char *d = mem_printf(&e, "%s-%0500d", "x", 7);

    cr_assert_str_eq(a, "abc");
    cr_assert_str_eq(b, "abcd");
    cr_assert_str_eq(c, "ab");
    cr_assert_eq(strlen(d), 502);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    mem_free(d);
}

Test(mem, growing_keeps_contents)
{
    struct err e = ERR_INIT;
    void *items = NULL;
    size_t cap = 0;

    for (size_t i = 0; i < 1000; i++) {
        cr_assert_eq(mem_grow(&items, &cap, i, sizeof(size_t), &e), 0);
        cr_assert_gt(cap, i);
        ((size_t *)items)[i] = i;
    }
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(((size_t *)items)[i], i);
    mem_free(items);
}

Test(mem, failing_by_number)
{
    struct err e = ERR_INIT;
    void *p[4];

    mem_fail_at(2, false);
    for (int i = 0; i < 4; i++) {
        err_reset(&e);
        p[i] = mem_alloc(8, 1, &e);
        cr_assert_eq(p[i] == NULL, i == 2, "allocation %d", i);
        cr_assert_eq(e.code, i == 2 ? ERR_NOMEM : ERR_OK);
    }
    for (int i = 0; i < 4; i++)
        mem_free(p[i]);
    mem_fail_at(1, true);
    p[0] = mem_alloc(8, 1, &e);
    cr_assert_not_null(p[0]);
    cr_assert_null(mem_realloc(p[0], 16, 1, &e));
    cr_assert_null(mem_zalloc(8, 1, &e));
    cr_assert_null(mem_alloc_aligned(8, 1, &e));
    mem_fail_at(-1, false);
    p[0] = mem_realloc(p[0], 16, 1, &e);
    cr_assert_not_null(p[0]);
    mem_free(p[0]);
}

Test(arena, objects_are_zeroed_aligned_and_apart)
{
    struct arena a = ARENA_INIT;
    struct err e = ERR_INIT;
    unsigned char *p[500];
    size_t sum = 0;

    for (size_t i = 0; i < 500; i++) {
        size_t n = i % 7 == 6 ? 9000 : 1 + i % 50;

        p[i] = arena_alloc(&a, n, 1, &e);
        cr_assert_eq((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            cr_assert_eq(p[i][k], 0);
        memset(p[i], (int)(i & 0xff), n);
        sum += n;
    }
    for (size_t i = 0; i < 500; i++) {
        size_t n = i % 7 == 6 ? 9000 : 1 + i % 50;

        for (size_t k = 0; k < n; k++)
            cr_assert_eq(p[i][k], i & 0xff, "object %zu was written over", i);
    }
    cr_assert_eq(a.used_bytes, sum);
    arena_release(&a);
    cr_assert_null(a.head);
    arena_release(&a);
}

Test(arena, one_huge_object)
{
    struct arena a = ARENA_INIT;
    struct err e = ERR_INIT;
    char *small = arena_strdup(&a, "before", &e);
    char *big = arena_alloc(&a, 5000000, 1, &e);
    char *after = arena_strndup(&a, "afterwards", 5, &e);

    big[4999999] = 1;
    cr_assert_str_eq(small, "before");
    cr_assert_str_eq(after, "after");
    cr_assert_str_eq(arena_printf(&a, &e, "%d.%s", 12, "x"), "12.x");
    cr_assert_eq(memcmp(arena_memdup(&a, "\0\1\2", 3, &e), "\0\1\2", 3), 0);
    cr_assert_not_null(arena_memdup(&a, NULL, 0, &e));
    cr_assert_null(arena_alloc(&a, SIZE_MAX, 4, &e));
    cr_assert_eq(e.code, ERR_NOMEM);
    arena_release(&a);
}

#if defined(HAVE_ASAN)
Test(arena, red_zones_catch_an_overrun)
{
    struct arena a = ARENA_INIT;
    struct err e = ERR_INIT;
    char *p = arena_alloc(&a, 10, 1, &e);

    cr_assert(!__asan_address_is_poisoned(p + 9));
    cr_assert(__asan_address_is_poisoned(p + 10));
    cr_assert(__asan_address_is_poisoned(p + 40));
    arena_release(&a);
}
#endif

Test(buf, appends)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;

    cr_assert_str_eq(buf_text(&b), "");
    buf_puts(&b, "abc");
    buf_addc(&b, '-');
    buf_printf(&b, "%d", 42);
    buf_add(&b, "\0x", 2);
    buf_double(&b, 0.5);
    cr_assert_eq(b.len, 11);
    cr_assert_eq(memcmp(b.data, "abc-42\0x0.5", 12), 0);
    buf_clear(&b);
    buf_printf(&b, "%01000d|%s", 1, "end");
    cr_assert_eq(b.len, 1004);
    cr_assert_str_eq(b.data + 998, "01|end");
    cr_assert_eq(buf_ok(&b, &e), 0);
    buf_release(&b);
    cr_assert_null(b.data);
}

Test(buf, extend_and_detach)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;
    char *p = buf_extend(&b, 3);

    memcpy(p, "xyz", 3);
    p = buf_detach(&b, &e);
    cr_assert_str_eq(p, "xyz");
    cr_assert_eq(b.len, 0);
    mem_free(p);
    p = buf_detach(&b, &e);
    cr_assert_str_eq(p, "");
    mem_free(p);
}

Test(buf, failures_stick)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;

    buf_puts(&b, "kept");
    mem_fail_at(0, false);
    for (int i = 0; i < 100; i++)
        buf_puts(&b, "more");
    mem_fail_at(-1, false);
    buf_puts(&b, "and more");
    cr_assert(b.failed);
    cr_assert_eq(strncmp(b.data, "keptmore", 8), 0);
    cr_assert_eq(buf_ok(&b, &e), -1);
    cr_assert_eq(e.code, ERR_NOMEM);
    cr_assert_null(buf_detach(&b, &e));
    cr_assert_null(buf_extend(&b, 1));
    buf_clear(&b);
    buf_puts(&b, "again");
    err_reset(&e);
    cr_assert_eq(buf_ok(&b, &e), 0);
    cr_assert_str_eq(b.data, "again");
    buf_release(&b);
}

Test(buf, a_limit_holds)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;

    b.limit = 10;
    buf_puts(&b, "0123456789");
    cr_assert_eq(buf_ok(&b, &e), 0);
    buf_addc(&b, 'x');
    cr_assert_eq(buf_ok(&b, &e), -1);
    cr_assert_str_eq(e.text, "a buffer of at most 10 bytes is full at 10");
    cr_assert_eq(b.len, 10);
    buf_release(&b);
    cr_assert_null(buf_extend(&(struct buf)BUF_INIT, SIZE_MAX));
}
