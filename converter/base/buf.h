/*
 * A growing byte buffer. Errors stick: after the first failure every append
 * does nothing, and buf_ok() or buf_finish() reports it, so that a long
 * sequence of appends is checked once. `data` is always NUL-terminated
 * beyond `len` when it is not NULL.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

struct buf {
    char *data;
    size_t len, cap;
    size_t limit; /* 0 = none; growing beyond is an error */
    bool failed;
    bool over; /* failed because of the limit */
};
#define BUF_INIT         \
    {                    \
        0, 0, 0, 0, 0, 0 \
    }

void buf_add(struct buf *b, const void *p, size_t n);
void buf_addc(struct buf *b, char c);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) ATTR_PRINTF(2, 3);
void buf_vprintf(struct buf *b, const char *fmt, va_list ap);
/* Decimal digits; what printf does, in a tenth of the time. */
void buf_int(struct buf *b, int64_t v);
void buf_uint(struct buf *b, uint64_t v);
/* A double as the shortest text that reads back to the same value, with a
 * point whatever the locale; "nan", "inf", "-inf" for the others. */
void buf_double(struct buf *b, double v);
/* Reserves n bytes at the end and returns them, or NULL once failed. */
void *buf_extend(struct buf *b, size_t n);
void buf_clear(struct buf *b); /* keeps the memory and resets the failure */
/* 0, or -1 with ERR_NOMEM if an append failed. */
int buf_ok(const struct buf *b, struct err *e) ATTR_MUST_USE;
/* The text as "" when nothing was appended. Valid until the next append. */
const char *buf_text(const struct buf *b);
/* Hands over the bytes (mem_free); the buffer is empty afterwards. */
char *buf_detach(struct buf *b, struct err *e) ATTR_MUST_USE;
void buf_release(struct buf *b);

#endif
