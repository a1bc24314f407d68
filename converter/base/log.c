/*
 * Log lines and progress, handed to the caller's sink.
 */
#include "converter/base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "converter/base/buf.h"
#include "converter/base/err.h"

void log_at(const struct log *l, enum log_level level, const char *fmt, ...)
{
    struct buf text = BUF_INIT;
    va_list ap;

    if (l == NULL || l->line == NULL || level > l->level)
        return;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    if (text.data != NULL)
        err_tame(text.data);
    l->line(l->cookie, level,
            text.failed ? "(a message was lost: out of memory)"
                        : buf_text(&text));
    buf_release(&text);
}

void log_progress(const struct log *l, const char *stage, uint64_t done,
                  uint64_t total, const char *unit)
{
    if (l != NULL && l->progress != NULL)
        l->progress(l->cookie, stage, done, total, unit);
}

int log_cancelled(const struct log *l)
{
    if (l == NULL || l->cancelled == NULL)
        return 0;
    return l->cancelled(l->cookie) != 0;
}
