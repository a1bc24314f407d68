/*
 * A whole conversion against its parts, in one run: the speed of clustering
 * alone, of writing files of the package's size alone, and of converting on one
 * thread and on two, without and with a cache.
 *
 *   bench_convert CHECKPOINT [DIR]        (works in DIR, /tmp)
 *
 * LUT6, context 512, no gate. The clock tells the truth on an idle machine
 * only. Processor time tells it on any: what the first thread of a conversion
 * does, no number of others can do for it, so its share of the whole bounds the
 * speed of two. It is a benchmark: nothing fails when a bar is missed.
 */
#define _XOPEN_SOURCE 700

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/cpu.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/converter.h"
#include "quant/quant.h"

#define BITS 6
#define ROWS 8
#define COLS 1024
#define GROUPS 128
#define RUNS 3

static double on_clock(clockid_t c)
{
    struct timespec t = { 0 };

    clock_gettime(c, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return on_clock(CLOCK_MONOTONIC);
}

static void need(int rc, const struct err *e)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_convert: %s\n", e->text);
    exit(1);
}

/* ---- clustering alone ---- */

static uint16_t values[GROUPS * ROWS * COLS];

/* The first values of the checkpoint's largest matrix in bfloat16. */
static void load_values(const struct cv_job *j)
{
    const struct st *st = j->ckpt.st;
    const struct st_tensor *best = NULL;
    struct err e = ERR_INIT;
    size_t i, n = sizeof(values) / sizeof(values[0]);

    for (i = 0; i < st_count(st); i++) {
        const struct st_tensor *t = st_at(st, i);

        if (t->dtype == ST_BF16 && t->elems >= n &&
            (!best || t->elems > best->elems))
            best = t;
    }
    need(best ? 0 : err_set(&e, ERR_INPUT, "no large matrix in bfloat16"), &e);
    need(st_read_bytes(st, best, 0, values, sizeof(values), &e), &e);
    num_order_le16(values, n);
}

/* Weights a second of one thread, by its processor time: the best run. */
static double cluster_rate(void)
{
    struct err e = ERR_INIT;
    struct qz_scratch *s = qz_scratch_new(&e);
    static uint8_t indices[ROWS * COLS], packed[ROWS * COLS];
    f16_t table[1 << BITS];
    struct qz_result r;
    double best = 1e9;
    size_t n = ROWS * COLS, run, g;

    need(s ? 0 : -1, &e);
    for (run = 0; run < RUNS; run++) {
        double t = on_clock(CLOCK_THREAD_CPUTIME_ID);

        for (g = 0; g < GROUPS; g++) {
            need(qz_cluster(s, values + g * n, n, QZ_BF16, 0, BITS, table,
                            indices, &r, &e),
                 &e);
            qz_pack(packed, indices, n, BITS);
        }
        t = on_clock(CLOCK_THREAD_CPUTIME_ID) - t;
        best = t < best ? t : best;
    }
    qz_scratch_free(s);
    return GROUPS * (double)n / best;
}

/* ---- writing alone ---- */

static double write_time(const char *path, uint64_t bytes)
{
    struct io_out o = IO_OUT_INIT;
    struct err e = ERR_INIT;
    double t = now();
    uint64_t at;

    need(io_out_open(&o, path, &e), &e);
    for (at = 0; at < bytes; at += sizeof(values))
        need(io_out_write(&o, values,
                          bytes - at < sizeof(values) ? (size_t)(bytes - at)
                                                      : sizeof(values),
                          &e),
             &e);
    need(io_out_finish(&o, &e), &e);
    t = now() - t;
    io_out_release(&o);
    need(io_remove_tree(path, &e), &e);
    return t;
}

/* ---- conversions ---- */

struct figures {
    double wall, cpu, first; /* processor time: of all, of the first thread */
    double peak;             /* bytes in memory */
    uint64_t weights, bytes;
};

static struct cv_options options(const char *model, const char *cache)
{
    struct cv_options o;

    cv_options_init(&o);
    o.model = model;
    o.cache = cache;
    o.lut_ffn = o.lut_head = (struct cv_lut){ BITS, 8, false };
    return o;
}

static void convert(const char *model, const char *output, const char *cache,
                    int threads, struct figures *f)
{
    struct cv_options o = options(model, cache);
    struct err e = ERR_INIT;
    struct cv_job j;

    o.output = output;
    o.par = par_new(threads, &e);
    need(o.par ? 0 : -1, &e);
    need(cv_job_open(&j, &o, false, &e), &e);
    need(cv_convert(&j, NULL, &e), &e);
    for (size_t i = 0; i < j.n_parts; i++) {
        f->weights += j.parts[i].weights;
        f->bytes += j.parts[i].written_weights;
    }
    cv_job_close(&j);
    par_free(o.par);
}

/* In a process of its own, for its peak. */
static struct figures measure(const char *model, const char *output,
                              const char *cache, int threads)
{
    struct figures f = { 0 };
    struct err e = ERR_INIT;
    struct rusage used;
    int ends[2], status = -1;
    pid_t pid;

    need(pipe(ends) ? err_set(&e, ERR_IO, "no pipe") : 0, &e);
    fflush(stdout);
    pid = fork();
    need(pid < 0 ? err_set(&e, ERR_IO, "no process") : 0, &e);
    if (!pid) {
        f.wall = now();
        convert(model, output, cache, threads, &f);
        f.wall = now() - f.wall;
        f.cpu = on_clock(CLOCK_PROCESS_CPUTIME_ID);
        f.first = on_clock(CLOCK_THREAD_CPUTIME_ID);
        getrusage(RUSAGE_SELF, &used);
        f.peak = (double)used.ru_maxrss * 1024;
        _exit(write(ends[1], &f, sizeof(f)) == (ssize_t)sizeof(f) ? 0 : 1);
    }
    close(ends[1]);
    if (read(ends[0], &f, sizeof(f)) != (ssize_t)sizeof(f))
        f.wall = 0;
    close(ends[0]);
    waitpid(pid, &status, 0);
    if (status)
        exit(1); /* it has told why */
    need(io_remove_tree(output, &e), &e);
    return f;
}

static void line(const char *what, const struct figures *f)
{
    printf("%-22s %6.2f s by the clock, %6.2f s of processors, of these %6.2f "
           "in the first thread; peak %.0f MB\n",
           what, f->wall, f->cpu, f->first, f->peak / 1e6);
}

static void bar(const char *what, double value, const char *relation,
                double limit)
{
    bool met = relation[0] == '<' ? value <= limit : value >= limit;

    printf("%-46s %6.2f  (%s %.2f: %s)\n", what, value, relation, limit,
           met ? "met" : "MISSED");
}

static void report(const struct figures *one, const struct figures *two,
                   double rate, double written)
{
    double cores = cpu_count() < 2 ? 1 : 2;
    double alone = (double)two->weights / rate / cores;

    bar("two threads, by the clock: seconds", two->wall,
        "<=", 1.3 * alone + written);
    bar("two threads, first one's processor time: seconds", two->first,
        "<=", 1.3 * alone + written);
    printf("one thread over two, by the clock              %6.2f\n",
           one->wall / two->wall);
    printf("the same by processor time                     %6.2f\n",
           one->cpu / two->first);
    bar("peak of memory, MB", two->peak / 1e6, "<=", 256);
}

int main(int argc, char **argv)
{
    const char *dir = argc > 2 ? argv[2] : "/tmp";
    struct figures one, two, first, second;
    struct err e = ERR_INIT;
    char *output, *cache, *file;
    struct cv_options o;
    struct cv_job j;
    double rate, written;

    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: bench_convert CHECKPOINT [DIR]\n"), 2;
    output = mem_printf(&e, "%s/bench-convert", dir);
    cache = mem_printf(&e, "%s/bench-cache", dir);
    file = mem_printf(&e, "%s/bench-file", dir);
    need(output && cache && file ? 0 : -1, &e);
    need(io_remove_tree(output, &e) || io_remove_tree(cache, &e), &e);
    o = options(argv[1], NULL);
    o.output = output;
    need(cv_job_open(&j, &o, false, &e), &e);
    load_values(&j);
    cv_job_close(&j);
    rate = cluster_rate();
    one = measure(argv[1], output, NULL, 1);
    two = measure(argv[1], output, NULL, 2);
    written = write_time(file, two.bytes);
    first = measure(argv[1], output, cache, 2);
    second = measure(argv[1], output, cache, 2);
    need(io_remove_tree(cache, &e), &e);
    printf("%.0f million weights at %d bits, %.0f MB of files\n",
           (double)two.weights / 1e6, BITS, (double)two.bytes / 1e6);
    printf("clustering alone       %6.1f million weights/s on one thread, "
           "%.2f s for all\n",
           rate / 1e6, (double)two.weights / rate);
    printf("writing alone          %6.2f s by the clock\n", written);
    line("one thread", &one);
    line("two threads", &two);
    line("two, into a cache", &first);
    line("two, out of the cache", &second);
    report(&one, &two, rate, written);
    mem_free(output);
    mem_free(cache);
    mem_free(file);
    return 0;
}
