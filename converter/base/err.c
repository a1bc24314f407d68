/*
 * Error objects: text with a fixed bound, first failure kept, context added
 * in front. Nothing here allocates, so that running out of memory can be
 * reported.
 */
#include "converter/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void err_tame(char *text)
{
    unsigned char *p = (unsigned char *)text;

    for (; *p != '\0'; p++) {
        if ((*p < 0x20 && *p != '\n' && *p != '\t') || *p == 0x7f)
            *p = '?';
        else if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
            p[0] = p[1] = '?';
    }
}

/* The largest prefix of s[0, n) that does not end inside a UTF-8 sequence. */
static size_t utf8_floor(const char *s, size_t n)
{
    size_t back = 0;

    while (back < 4 && back < n) {
        unsigned char c = (unsigned char)s[n - 1 - back];

        if (c < 0x80)
            return n - back;
        if (c >= 0xc0) { /* the lead byte: whole, or cut off */
            size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;

            return back + 1 >= need ? n : n - 1 - back;
        }
        back++;
    }
    return n;
}

static void mark_cut(char *text)
{
    size_t keep = utf8_floor(text, ERR_TEXT_MAX - 4);

    memcpy(text + keep, "...", 4);
}

static void set_text(struct err *e, const char *fmt, va_list ap)
{
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);

    if (n < 0)
        memcpy(e->text, "error text cannot be formatted", 31);
    else if ((size_t)n >= sizeof e->text)
        mark_cut(e->text);
    err_tame(e->text);
}

static void append_text(struct err *e, const char *tail)
{
    size_t have = strlen(e->text), n = strlen(tail);

    if (have + n < sizeof e->text) {
        memcpy(e->text + have, tail, n + 1);
        return;
    }
    memcpy(e->text + have, tail, sizeof e->text - 1 - have);
    e->text[sizeof e->text - 1] = '\0';
    mark_cut(e->text);
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    if (e->code != ERR_OK)
        return -1;
    va_start(ap, fmt);
    set_text(e, fmt, ap);
    va_end(ap);
    e->code = code;
    return -1;
}

static void errnum_text(char *out, size_t max, int errnum)
{
    char text[256];

    if (strerror_r(errnum, text, sizeof text) != 0)
        snprintf(text, sizeof text, "error %d", errnum);
    if (errnum == ENOSPC)
        snprintf(out, max, ": %s (the disk is full)", text);
    else if (errnum == EDQUOT)
        snprintf(out, max, ": %s (the disk is full for this user)", text);
    else
        snprintf(out, max, ": %s", text);
}

int err_sys(struct err *e, int errnum, const char *fmt, ...)
{
    char tail[320];
    va_list ap;

    if (e->code != ERR_OK)
        return -1;
    va_start(ap, fmt);
    set_text(e, fmt, ap);
    va_end(ap);
    errnum_text(tail, sizeof tail, errnum);
    append_text(e, tail);
    e->code = ERR_IO;
    return -1;
}

int err_in(struct err *e, const char *fmt, ...)
{
    char old[ERR_TEXT_MAX];
    va_list ap;

    if (e->code == ERR_OK || e->whole)
        return -1;
    memcpy(old, e->text, sizeof old);
    va_start(ap, fmt);
    set_text(e, fmt, ap);
    va_end(ap);
    append_text(e, ": ");
    append_text(e, old);
    return -1;
}

int err_whole(struct err *e)
{
    e->whole = e->code != ERR_OK;
    return -1;
}

int err_copy(struct err *e, const struct err *from)
{
    if (e->code == ERR_OK)
        *e = *from;
    return -1;
}

void err_reset(struct err *e)
{
    e->code = ERR_OK;
    e->whole = false;
    e->text[0] = '\0';
}

int err_exit_code(const struct err *e)
{
    switch (e->code) {
    case ERR_OK: return EXIT_DONE;
    case ERR_USAGE: return EXIT_USAGE;
    case ERR_INPUT: return EXIT_BAD_INPUT;
    case ERR_UNSUPPORTED: return EXIT_BAD_INPUT;
    case ERR_IO: return EXIT_SYSTEM;
    case ERR_NOMEM: return EXIT_SYSTEM;
    case ERR_MISMATCH: return EXIT_CHECK_FAILED;
    case ERR_CANCELLED: return EXIT_SYSTEM;
    }
    return EXIT_INTERNAL;
}

void bug_at(const char *file, int line, const char *msg)
{
    fprintf(stderr, "internal error at %s:%d: %s\n", file, line, msg);
    abort();
}
