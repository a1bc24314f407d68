/*
 * Options, help, progress and signals of all tools.
 */
#include "tools/cli.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"

static volatile sig_atomic_t stop_asked;

static void on_signal(int sig)
{
    if (stop_asked)
        _exit(128 + sig); /* asked twice: at once; stages clean up later */
    stop_asked = 1;
}

/* ---- progress and log ---- */

struct cli_progress {
    struct cli *cli;
    bool tty, drawn;
    char stage[64];
    double started, last;
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wipe(struct cli_progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

static void sink_line(void *cookie, enum log_level level, const char *text)
{
    struct cli_progress *p = cookie;

    wipe(p);
    fprintf(stderr, "%s: %s%s\n", p->cli->tool,
            level == LOG_WARN ? "warning: " : "", text);
}

static void amount(char out[NUM_TEXT_MAX], uint64_t v, const char *unit)
{
    if (!strcmp(unit, "bytes"))
        num_bytes_text(out, v);
    else
        snprintf(out, NUM_TEXT_MAX, "%llu", (unsigned long long)v);
}

static void sink_progress(void *cookie, const char *stage, uint64_t done,
                          uint64_t total, const char *unit)
{
    struct cli_progress *p = cookie;
    char a[NUM_TEXT_MAX], b[NUM_TEXT_MAX];
    double t = now(), spent;

    if (strcmp(p->stage, stage)) {
        snprintf(p->stage, sizeof(p->stage), "%s", stage);
        p->started = p->last = t;
    }
    spent = t - p->started;
    if (t - p->last < (p->tty ? 0.2 : 10.0) || spent < 1.0)
        return;
    p->last = t;
    amount(a, done, unit);
    amount(b, total, unit);
    fprintf(stderr, "%s%s: %s of %s %s", p->tty ? "\r\033[K" : "", stage, a, b,
            strcmp(unit, "bytes") ? unit : "");
    if (done && total >= done)
        fprintf(stderr, ", %.0f s left",
                spent * (double)(total - done) / (double)done);
    if (!p->tty)
        fputc('\n', stderr);
    p->drawn = p->tty;
    fflush(stderr);
}

static int sink_cancelled(void *cookie)
{
    (void)cookie;
    return stop_asked;
}

/* ---- help ---- */

static const struct cli_option *common_options(struct cli *c)
{
    static struct cli_option o[8];

    o[0] = (struct cli_option){ NULL, NULL, CLI_HEADING,
                                NULL, NULL, "Common options:" };
    o[1] =
        (struct cli_option){ "--json", NULL,
                             CLI_FLAG, &c->json,
                             NULL,     "machine-readable results on stdout" };
    o[2] = (struct cli_option){ "--threads",
                                NULL,
                                CLI_INT,
                                &c->threads,
                                "N",
                                "threads (default: the cores; results do not "
                                "depend on it)" };
    o[3] =
        (struct cli_option){ "--cpu",  NULL,
                             CLI_TEXT, &c->cpu,
                             "LEVEL",  "scalar, avx2, avx512, neon or auto" };
    o[4] = (struct cli_option){ "--quiet", "-q", CLI_FLAG,
                                &c->quiet, NULL, "errors only" };
    o[5] = (struct cli_option){ "--verbose", "-v", CLI_FLAG,
                                &c->verbose, NULL, "more lines on stderr" };
    o[6] = (struct cli_option){ NULL, NULL, CLI_FLAG, NULL, NULL, NULL };
    return o;
}

static void help_options(const struct cli_option *o)
{
    for (; o->name || o->help; o++) {
        char left[64];

        if (o->kind == CLI_HEADING) {
            printf("\n%s\n", o->help);
            continue;
        }
        snprintf(left, sizeof(left), "%s%s%s%s%s", o->alias ? o->alias : "",
                 o->alias ? ", " : "", o->name, o->arg ? " " : "",
                 o->arg ? o->arg : "");
        printf("  %-26s %s\n", left, o->help);
    }
}

static void help(struct cli *c)
{
    printf("%s\n\nusage: %s %s\n", c->about, c->tool, c->usage);
    help_options(c->options);
    help_options(common_options(c));
    printf("  %-26s %s\n", "-h, --help", "this text");
    printf("  %-26s %s\n", "--version", "the version");
    if (c->after)
        printf("\n%s\n", c->after);
    printf("\nexit codes: 0 done, 1 a check failed, 2 usage, 3 bad or "
           "unsupported input,\n            4 system (files, memory, disk), 5 "
           "internal\n");
}

/* ---- parsing ---- */

int cli_usage(struct cli *c, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: ", c->tool);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\ntry '%s --help'\n", c->tool);
    return EXIT_USAGE;
}

static const struct cli_option *find(const struct cli_option *o,
                                     const char *name, size_t n)
{
    for (; o->name || o->help; o++) {
        if (o->kind == CLI_HEADING)
            continue;
        if ((strlen(o->name) == n && !memcmp(o->name, name, n)) ||
            (o->alias && strlen(o->alias) == n && !memcmp(o->alias, name, n)))
            return o;
    }
    return NULL;
}

static int take(struct cli *c, const struct cli_option *o, const char *value)
{
    uint64_t v;

    if (o->kind == CLI_FLAG) {
        if (value)
            return cli_usage(c, "option '%s' takes no value", o->name);
        *(bool *)o->target = true;
        return -1;
    }
    if (!value)
        return cli_usage(c, "option '%s' needs a value (%s)", o->name, o->arg);
    if (o->kind == CLI_TEXT) {
        *(const char **)o->target = value;
        return -1;
    }
    if (!num_parse_u64(value, strlen(value), &v) || v > (uint64_t)1 << 40)
        return cli_usage(c, "option '%s': '%s' is not a number", o->name,
                         value);
    *(int64_t *)o->target = (int64_t)v;
    return -1;
}

static int parse(struct cli *c, int argc, char **argv)
{
    bool only_positional = false;

    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *eq = strchr(a, '='), *value = NULL;
        const struct cli_option *o;
        size_t n = eq && a[0] == '-' ? (size_t)(eq - a) : strlen(a);
        int rc;

        if (only_positional || a[0] != '-' || !a[1]) {
            if (c->n_positional == c->max_positional)
                return cli_usage(c, "unexpected argument '%s'", a);
            c->positional[c->n_positional++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            only_positional = true;
            continue;
        }
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            help(c);
            return EXIT_DONE;
        }
        if (!strcmp(a, "--version")) {
            printf("%s %s\n", c->tool, ANEMLL_VERSION);
            return EXIT_DONE;
        }
        o = find(c->options, a, n);
        if (!o)
            o = find(common_options(c), a, n);
        if (!o)
            return cli_usage(c, "unknown option '%.*s'", (int)n, a);
        if (eq && a[0] == '-')
            value = eq + 1;
        else if (o->kind != CLI_FLAG && i + 1 < argc)
            value = argv[++i];
        rc = take(c, o, value);
        if (rc >= 0)
            return rc;
    }
    return -1;
}

static int start_log(struct cli *c, struct err *e)
{
    c->progress = mem_zalloc(1, sizeof(*c->progress), e);
    if (!c->progress)
        return -1;
    c->progress->cli = c;
    c->progress->tty = isatty(STDERR_FILENO) == 1;
    c->log.level = c->quiet ? LOG_ERROR : c->verbose ? LOG_DEBUG : LOG_INFO;
    c->log.line = sink_line;
    c->log.progress = c->quiet ? NULL : sink_progress;
    c->log.cookie = c->progress;
    c->log.cancelled = sink_cancelled;
    return 0;
}

int cli_begin(struct cli *c, int argc, char **argv)
{
    struct sigaction sa, old;
    struct err e = ERR_INIT;
    int rc = parse(c, argc, argv);

    if (rc >= 0)
        return cli_end(c, rc);
    if (c->cpu && cpu_mask_by_name(c->cpu, &e))
        return cli_usage(c, "%s", e.text);
    if (c->threads > 1024)
        return cli_usage(c, "option '--threads': at most 1024");
    if (start_log(c, &e))
        return cli_fail(c, &e);
    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = on_signal;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (!sigaction(SIGHUP, NULL, &old) && old.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &sa, NULL); /* nohup is respected */
    /* A closed pipe or a file beyond the limit is an error like any other
     * while there is work, so that what was staged is removed. */
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
    sigaction(SIGXFSZ, &sa, NULL);
    c->par = par_new((int)c->threads, &e);
    return c->par ? -1 : cli_fail(c, &e);
}

int cli_end(struct cli *c, int code)
{
    if (c->progress)
        wipe(c->progress);
    par_free(c->par);
    mem_free(c->progress);
    c->par = NULL;
    c->progress = NULL;
    if ((fflush(stdout) || ferror(stdout)) && code == EXIT_DONE) {
        fprintf(stderr, "%s: cannot write the result to stdout\n", c->tool);
        return EXIT_SYSTEM;
    }
    return code;
}

int cli_fail(struct cli *c, const struct err *e)
{
    if (c->progress)
        wipe(c->progress);
    fprintf(stderr, "%s: %s\n", c->tool, e->text);
    return err_exit_code(e);
}

/* Results come when the work is done: a reader that has gone away, as in
 * "anemll-inspect X | head", then ends the tool in silence. */
void cli_print(const struct cli *c, struct buf *b)
{
    signal(SIGPIPE, SIG_DFL);
    if (b->len && !c->json) /* JSON escapes them */
        err_tame(b->data);
    if (b->len)
        fwrite(b->data, 1, b->len, stdout);
}
