/*
 * Growing byte buffer with a sticky failure.
 */
#include "converter/base/buf.h"

#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/base/num.h"

/* Apart from reserve(): an error object is 4 KB to clear. */
static bool grow(struct buf *b, size_t want)
{
    struct err ignored = ERR_INIT;
    char *p = mem_realloc(b->data, want, 1, &ignored);

    if (p == NULL) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = want;
    b->data[b->len] = '\0';
    return true;
}

/* Room for n more bytes and the NUL behind them. */
static bool reserve(struct buf *b, size_t n)
{
    size_t want;

    if (b->failed)
        return false;
    if (n > SIZE_MAX / 2 || b->len > SIZE_MAX / 2 - n) {
        b->failed = true;
        return false;
    }
    if (b->limit != 0 && b->len + n > b->limit) {
        b->failed = b->over = true;
        return false;
    }
    if (b->len + n + 1 <= b->cap)
        return true;
    want = b->cap < 64 ? 64 : b->cap + b->cap / 2;
    if (want < b->len + n + 1)
        want = b->len + n + 1;
    return grow(b, want);
}

void *buf_extend(struct buf *b, size_t n)
{
    char *p;

    if (!reserve(b, n))
        return NULL;
    p = b->data + b->len;
    b->len += n;
    b->data[b->len] = '\0';
    return p;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    void *dst = buf_extend(b, n);

    if (dst != NULL && n > 0)
        memcpy(dst, p, n);
}

void buf_addc(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_puts(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    char small[256];
    va_list again;
    char *dst;
    int n;

    va_copy(again, ap);
    n = vsnprintf(small, sizeof small, fmt, ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        buf_add(b, small, (size_t)n);
    } else {
        dst = buf_extend(b, (size_t)n);
        if (dst != NULL)
            vsnprintf(dst, (size_t)n + 1, fmt, again);
    }
    va_end(again);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void buf_uint(struct buf *b, uint64_t v)
{
    char digits[20], *p = digits + sizeof digits;

    do
        *--p = (char)('0' + v % 10);
    while ((v /= 10) != 0);
    buf_add(b, p, (size_t)(digits + sizeof digits - p));
}

void buf_int(struct buf *b, int64_t v)
{
    if (v < 0)
        buf_addc(b, '-');
    buf_uint(b, v < 0 ? -(uint64_t)v : (uint64_t)v);
}

void buf_double(struct buf *b, double v)
{
    char text[NUM_TEXT_MAX];

    num_text(text, v);
    buf_puts(b, text);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = b->over = false;
    if (b->data != NULL)
        b->data[0] = '\0';
}

int buf_ok(const struct buf *b, struct err *e)
{
    if (!b->failed)
        return 0;
    if (b->over)
        return err_set(e, ERR_NOMEM,
                       "a buffer of at most %zu bytes is full at %zu", b->limit,
                       b->len);
    return err_set(e, ERR_NOMEM,
                   "out of memory: a buffer cannot grow beyond "
                   "%zu bytes",
                   b->cap);
}

const char *buf_text(const struct buf *b)
{
    return b->data != NULL ? b->data : "";
}

char *buf_detach(struct buf *b, struct err *e)
{
    char *p;

    if (buf_ok(b, e) != 0)
        return NULL;
    p = b->data != NULL ? b->data : mem_strdup("", e);
    if (p == NULL)
        return NULL;
    b->data = NULL;
    b->len = b->cap = 0;
    return p;
}

void buf_release(struct buf *b)
{
    mem_free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
    b->failed = b->over = false;
}
