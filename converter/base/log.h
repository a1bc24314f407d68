/*
 * Log sink and progress. Libraries never print: they are handed a
 * `struct log *`, NULL is silent. The tools' sink writes to stderr.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdint.h>

#include "converter/base/compiler.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

struct log {
    enum log_level level; /* messages above are dropped */
    void (*line)(void *cookie, enum log_level level, const char *text);
    /* Progress of one stage: done of total in `unit` ("bytes", "positions").
     * Called often; the sink decides when to draw. total 0: unknown. */
    void (*progress)(void *cookie, const char *stage, uint64_t done,
                     uint64_t total, const char *unit);
    void *cookie;
    /* Asked between units of work; nonzero asks to stop. May be NULL. */
    int (*cancelled)(void *cookie);
};

void log_at(const struct log *l, enum log_level level, const char *fmt, ...)
    ATTR_PRINTF(3, 4);
#define log_warn(l, ...) log_at((l), LOG_WARN, __VA_ARGS__)
#define log_info(l, ...) log_at((l), LOG_INFO, __VA_ARGS__)
#define log_debug(l, ...) log_at((l), LOG_DEBUG, __VA_ARGS__)
void log_progress(const struct log *l, const char *stage, uint64_t done,
                  uint64_t total, const char *unit);
/* 1 if the user asked to stop. */
int log_cancelled(const struct log *l);

#endif
