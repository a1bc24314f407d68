/*
 * Errors: a caller-owned object with a code and the text that a user reads.
 *
 * Functions that can fail return 0 or -1 (or NULL) and take `struct err *`
 * as their last argument. The lowest level says what was found and what was
 * allowed (err_set); each level above adds where, once (err_in). The first
 * failure is kept: err_set on an err that already holds one does nothing.
 * Wording: lower case, no full stop, the subject in single quotes, both
 * numbers.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

#include "converter/base/compiler.h"

enum err_code {
    ERR_OK = 0,
    ERR_USAGE,       /* the command line or an option's value */
    ERR_INPUT,       /* a file that is broken, hostile or contradictory */
    ERR_UNSUPPORTED, /* a sound file of a kind that we do not take */
    ERR_IO,          /* the system: files, disk, threads */
    ERR_NOMEM,
    ERR_MISMATCH,  /* a check failed: gate, lint, diff */
    ERR_CANCELLED, /* the user interrupted */
};

/* Process exit codes, the same for every tool. */
enum err_exit {
    EXIT_DONE = 0,
    EXIT_CHECK_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_BAD_INPUT = 3,
    EXIT_SYSTEM = 4,
    EXIT_INTERNAL = 5,
};

#define ERR_TEXT_MAX 4096

struct err {
    enum err_code code;
    char text[ERR_TEXT_MAX]; /* always terminated; a cut text ends in "..." */
    bool whole;              /* nothing is put in front any more */
};

#define ERR_INIT          \
    {                     \
        ERR_OK, "", false \
    }

/* Sets code and text unless `e` already holds an error. Returns -1. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...)
    ATTR_PRINTF(3, 4);
/* As err_set(ERR_IO), with ": <strerror(errnum)>" appended; ENOSPC and EDQUOT
 * name a full disk. Returns -1. */
int err_sys(struct err *e, int errnum, const char *fmt, ...) ATTR_PRINTF(3, 4);
/* Puts context in front of the text: "<context>: <text>". Returns -1. */
int err_in(struct err *e, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* The text names its origin: what the subject was read for is no part of it,
 * and err_in adds nothing more. Returns -1. */
int err_whole(struct err *e);
/* All that another error holds, unless `e` already holds one. Returns -1. */
int err_copy(struct err *e, const struct err *from);
void err_reset(struct err *e);
/* Replaces control characters, C1 ones in UTF-8 too, by '?': names in files
 * are not trusted with a terminal. Line ends and tabs stay. */
void err_tame(char *text);
/* The exit code that a tool returns for this error. */
int err_exit_code(const struct err *e);

/* A broken internal rule; unreachable from any input. Prints file, line and
 * message to stderr and aborts (exit status by SIGABRT). */
void bug_at(const char *file, int line, const char *msg) ATTR_NORETURN;
#define BUG(msg) bug_at(__FILE__, __LINE__, msg)
#define BUG_UNLESS(cond) \
    do {                 \
        if (!(cond))     \
            BUG(#cond);  \
    } while (0)

#endif
