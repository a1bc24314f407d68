/*
 * What every tool shares: one option table that yields parsing and --help,
 * the common options, the log sink with progress, signals, exit codes.
 *
 * stdout carries results, stderr everything else.
 */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "converter/base/buf.h"
#include "converter/base/log.h"
#include "converter/base/par.h"

enum cli_kind {
    CLI_FLAG,   /* bool * */
    CLI_TEXT,   /* const char ** */
    CLI_INT,    /* int64_t *, strict, >= 0 */
    CLI_HEADING /* a line in --help */
};
struct cli_option {
    const char *name;  /* "--ctx" */
    const char *alias; /* "-o", or NULL */
    enum cli_kind kind;
    void *target;
    const char *arg; /* "N" */
    const char *help;
};

struct cli {
    const char *tool;                 /* "anemll-convert" */
    const char *usage;                /* behind the tool's name */
    const char *about;                /* first lines of --help */
    const char *after;                /* last lines of --help, or NULL */
    const struct cli_option *options; /* ends with a NULL name and help */
    int max_positional;
    /* Results: */
    const char *positional[8];
    int n_positional;
    bool json, quiet, verbose;
    int64_t threads;
    const char *cpu;
    struct log log;
    struct par *par;
    struct cli_progress *progress;
};

/* Parses argv. Returns -1 to go on, else the exit code (--help, --version and
 * usage errors have been printed). Starts threads and the log. */
int cli_begin(struct cli *c, int argc, char **argv);
/* Ends progress, frees what cli_begin made, flushes stdout; returns `code`,
 * or EXIT_SYSTEM if stdout could not be written. */
int cli_end(struct cli *c, int code);
/* Prints "tool: text" and returns the exit code of the error. */
int cli_fail(struct cli *c, const struct err *e);
/* A usage error: prints "tool: text" and points to --help. */
int cli_usage(struct cli *c, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* Writes a buffer to stdout; in text, control characters become '?'. */
void cli_print(const struct cli *c, struct buf *b);

#endif
