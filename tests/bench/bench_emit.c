/*
 * What the second form of a package costs, and how fast MIL text is printed
 * and parsed.
 *
 *   bench_emit [DIR] [RUNS]
 *
 * A checkpoint of Qwen3-0.6B's shape, 28 layers, is converted to fp16, which
 * leaves little but writing, to .mlpackage alone and to both forms in turn:
 * processor time (user and system) and the clock, the best of RUNS (4) each,
 * everything synced to the disk. Weights are linked, so what the second form
 * takes does not depend on them: it is measured once more, with less noise, on
 * 28 layers of a small width, as a share of the large model's conversion. Then
 * the gate's opening of that package: one
 * form, both over the same weights, both with copied weights. Then text of a
 * program of more than 10,000 operations, scaled to 10,000. DIR (/tmp) needs
 * 5 GB. Bars are those of the design; nothing fails when one is missed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/converter.h"
#include "converter/package_run.h"
#include "converter/synth.h"
#include "mil/text.h"

#define OPS 10000
#define LAYERS 28
#define BAR_PERCENT 3.0
#define BAR_MS 50.0

struct cost {
    double cpu, wall;
};

static struct cost now(void)
{
    struct timespec t = { 0 };
    struct rusage u = { 0 };

    clock_gettime(CLOCK_MONOTONIC, &t);
    getrusage(RUSAGE_SELF, &u);
    return (struct cost){
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
            (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6,
        (double)t.tv_sec + (double)t.tv_nsec * 1e-9
    };
}

static struct cost since(struct cost t)
{
    struct cost n = now();

    return (struct cost){ n.cpu - t.cpu, n.wall - t.wall };
}

static void keep_least(struct cost *best, struct cost c)
{
    best->cpu = c.cpu < best->cpu ? c.cpu : best->cpu;
    best->wall = c.wall < best->wall ? c.wall : best->wall;
}

static void need(int rc, const struct err *e)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_emit: %s\n", e->text);
    exit(1);
}

static const struct cost none = { 1e9, 1e9 };

/* ---- both forms against one ---- */

static char from[600], to[600], copied[600];

static struct cost convert(enum cv_emit emit)
{
    struct cv_options o;
    struct err e = ERR_INIT;
    struct cv_job j;
    struct cost t;

    need(io_remove_tree(to, &e), &e);
    cv_options_init(&o);
    o.model = from;
    o.output = to;
    o.emit = emit;
    o.scale_given = true; /* no measuring of ranges: writing alone */
    o.lut_ffn.bits = o.lut_head.bits = 0;
    t = now();
    need(cv_job_open(&j, &o, false, &e), &e);
    need(cv_convert(&j, NULL, &e), &e);
    t = since(t);
    cv_job_close(&j);
    return t;
}

static void judge(const char *what, double one, double both)
{
    double more = 100 * (both / one - 1);

    printf("%-34s one form %.3f s, both %.3f s: %+.2f %% (bar %+.0f %%) %s\n",
           what, one, both, more, BAR_PERCENT,
           more <= BAR_PERCENT ? "met" : "missed");
}

static void compare(int runs, struct cost *one, struct cost *both)
{
    *one = *both = none;
    for (int i = 0; i < runs; i++) {
        if (i % 2) { /* either goes first as often */
            keep_least(both, convert(CV_EMIT_BOTH));
            keep_least(one, convert(CV_EMIT_PACKAGE));
        } else {
            keep_least(one, convert(CV_EMIT_PACKAGE));
            keep_least(both, convert(CV_EMIT_BOTH));
        }
    }
}

static void model(const char *like, uint64_t layers)
{
    const struct synth_options s = {
        .arch = "qwen3", .like = like, .seed = 1, .layers = layers
    };
    struct err e = ERR_INIT;

    need(io_remove_tree(from, &e), &e);
    need(synth_make(&s, from, &e), &e);
}

static void second_form(const struct cost *large, int runs)
{
    struct cost one, both;
    double more;

    model("tiny", LAYERS);
    compare(8 * runs, &one, &both);
    more = 100 * (both.cpu - one.cpu) / large->cpu;
    printf("%-34s %.3f s of %.3f s: %+.2f %% (bar %+.0f %%) %s\n",
           "the second form alone, processor:", both.cpu - one.cpu, large->cpu,
           more, BAR_PERCENT, more <= BAR_PERCENT ? "met" : "missed");
}

/* ---- opening for the gate ---- */

static struct cost open_package(const char *dir)
{
    const struct run_options o = { RUN_FP16, NULL, 16000000 };
    struct err e = ERR_INIT;
    struct cost t = now();
    struct package *p = package_open(dir, &o, &e);

    need(p ? 0 : -1, &e);
    t = since(t);
    package_close(p);
    return t;
}

static void copy_tree(const char *a, const char *b)
{
    struct err e = ERR_INIT;
    char **names;
    size_t n;

    need(io_mkdir(b, &e), &e);
    need(io_list(a, &names, &n, &e), &e);
    for (size_t i = 0; i < n; i++) {
        char *x = io_join(a, names[i], &e), *y = io_join(b, names[i], &e);

        need(x && y ? 0 : -1, &e);
        if (io_is_dir(x))
            copy_tree(x, y);
        else
            need(io_copy_file(x, y, &e), &e);
        mem_free(x);
        mem_free(y);
    }
    io_list_free(names, n);
}

static void opening(int runs)
{
    struct cost one = none, both = none, copies = none;
    struct err e = ERR_INIT;

    need(io_remove_tree(copied, &e), &e);
    convert(CV_EMIT_BOTH);
    copy_tree(to, copied);
    for (int i = 0; i < runs; i++) {
        keep_least(&both, open_package(to));
        keep_least(&copies, open_package(copied));
    }
    convert(CV_EMIT_PACKAGE);
    for (int i = 0; i < runs; i++)
        keep_least(&one, open_package(to));
    printf("gate opens it, processor:          one form %.3f s, both %.3f s, "
           "with copied weights %.3f s\n",
           one.cpu, both.cpu, copies.cpu);
}

/* ---- text ---- */

static size_t count_ops(const struct mil_program *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n_functions; i++)
        n += p->functions[i]->n_ops;
    return n;
}

static struct pkg *large_program(void)
{
    char part[700];
    struct err e = ERR_INIT;
    struct pkg *k;

    model("tiny", 64);
    convert(CV_EMIT_PACKAGE);
    snprintf(part, sizeof(part), "%s/qwen_FFN_PF_chunk_01of01.mlpackage", to);
    k = pkg_open_raw(part, &e);
    need(k ? 0 : -1, &e);
    return k;
}

static void text(int runs)
{
    struct pkg *k = large_program();
    const struct mil_program *p = pkg_program(k);
    const struct text_options o = {
        .blob = pkg_blob, .cookie = k, .sorted = true, .strict = true
    };
    const struct text_parse_options back = { NULL, NULL, true };
    struct cost print = none, parse = none;
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;
    double per = 1e3 * OPS / (double)count_ops(p);

    for (int i = 0; i < 5 * runs; i++) {
        struct cost t = now();
        struct mil_program *q;

        buf_release(&b);
        need(text_print(p, &o, &b, &e), &e);
        keep_least(&print, since(t));
        t = now();
        q = text_parse(buf_text(&b), b.len, &back, &e);
        need(q ? 0 : -1, &e);
        keep_least(&parse, since(t));
        mil_program_free(q);
    }
    printf("text of %zu operations, %.1f MB; for %d: printed in %.1f ms "
           "(bar %.0f ms) %s, parsed in %.1f ms\n",
           count_ops(p), (double)b.len / 1e6, OPS, per * print.cpu, BAR_MS,
           per * print.cpu < BAR_MS ? "met" : "missed", per * parse.cpu);
    buf_release(&b);
    pkg_close(k);
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "/tmp";
    int runs = argc > 2 ? atoi(argv[2]) : 4;
    struct cost one, both;
    struct err e = ERR_INIT;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    snprintf(from, sizeof(from), "%.500s/bench-emit-model", dir);
    snprintf(to, sizeof(to), "%.500s/bench-emit-package", dir);
    snprintf(copied, sizeof(copied), "%.500s/bench-emit-copied", dir);
    model("qwen3-0.6b", LAYERS);
    compare(runs, &one, &both);
    judge("Qwen3-0.6B to fp16, processor:", one.cpu, both.cpu);
    judge("Qwen3-0.6B to fp16, clock:", one.wall, both.wall);
    opening(runs);
    second_form(&one, runs);
    text(runs);
    need(io_remove_tree(from, &e) || io_remove_tree(to, &e) ||
             io_remove_tree(copied, &e),
         &e);
    return 0;
}
