/*
 * What palettization costs a model: perplexity and KL divergence on tokens
 * that it was not calibrated on, for every width and method.
 *
 *     bench_quality CHECKPOINT CALIB EVAL [WIDTH[=METHOD[,METHOD...]]...]
 *
 * CALIB and EVAL are files of token ids. Each package is converted into a
 * scratch folder; its weights are decoded from the files and run by the
 * float32 reference, so that the figures are of the weights alone. A WIDTH is
 * an argument of --lut for layers and LM head, or `budget:BITS`; a METHOD is
 * kmeans, calib or gptq (all three). `bits` counts layers and LM head, tables
 * included; `seconds` are those of all threads, spent by the conversion.
 *
 * All packages see the same windows, so their losses are compared window by
 * window: `loss` is the mean of log P(model) - log P(package) per token, in
 * thousandths, and `closed` the share of the loss of kmeans at this width that
 * a method takes away; behind +- is one standard error over the windows.
 */
#define _XOPEN_SOURCE 700 /* mkdtemp, getrusage */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/converter.h"
#include "converter/gate.h"
#include "converter/package_source.h"

#define CHUNK 64 /* tokens whose logits are at hand */

struct bench {
    struct ckpt ckpt;
    struct prompts eval;
    const char *model, *calib;
    struct par *par;
    struct oracle *oracle;    /* of the checkpoint */
    struct oracle_walk *walk; /* over the tokens, at its end */
    float *want, *have;       /* [CHUNK, vocab] */
    double *loss;             /* of each window, all its tokens */
    double *plain;            /* the same under kmeans, and at which width */
    char plain_width[32];
};
struct figures {
    double perplexity, kl, top1, loss, loss_err;
};

static void need(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_quality: %s\n", e->text);
    exit(1);
}

static struct oracle_walk *walk_all(struct bench *b, struct oracle *o)
{
    struct oracle_contexts c = { (const int32_t *const *)b->eval.ids,
                                 b->eval.lengths, b->eval.n };
    struct err e = ERR_INIT;
    struct oracle_walk *w = oracle_walk_new(o, &c, &e);

    need(w ? 0 : -1, &e);
    while (oracle_walk_at(w) <= b->ckpt.hp.layers)
        need(oracle_walk_step(w, NULL, &e), &e);
    return w;
}

static struct oracle *new_oracle(struct bench *b,
                                 const struct tensor_source *src)
{
    struct oracle_options oo = { .par = b->par, .max_positions = 1 };
    struct err e = ERR_INIT;
    struct oracle *o;

    for (size_t i = 0; i < b->eval.n; i++)
        if ((int64_t)b->eval.lengths[i] > oo.max_positions)
            oo.max_positions = (int64_t)b->eval.lengths[i];
    o = oracle_new(&b->ckpt.hp, src, &oo, &e);
    need(o ? 0 : -1, &e);
    return o;
}

/* log of the sum of exponentials. */
static double log_sum(const float *x, size_t n, size_t *best)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < n; i++)
        if ((double)x[i] > max) {
            max = (double)x[i];
            *best = i;
        }
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* One position; `next` is the token that follows, or -1. */
static void add_position(const float *want, const float *have, size_t n,
                         int32_t next, struct figures *f, double *loss)
{
    size_t bw = 0, bh = 0;
    double lw = log_sum(want, n, &bw), lh = log_sum(have, n, &bh), kl = 0;

    for (size_t i = 0; i < n; i++) {
        double p = (double)want[i] - lw, q = (double)have[i] - lh;

        kl += exp(p) * (p - q);
    }
    f->kl += kl;
    f->top1 += bw == bh;
    if (next >= 0) {
        f->perplexity += lh - (double)have[next];
        *loss += lh - (double)have[next] - (lw - (double)want[next]);
    }
}

/* The mean of a window's a - ratio * b per token, and its standard error over
 * the windows. */
static double mean_of(const struct bench *b, const double *x, double ratio,
                      const double *y, double *err)
{
    double sum = 0, tokens = 0, squares = 0, n = (double)b->eval.n;

    for (size_t i = 0; i < b->eval.n; i++) {
        sum += x[i] - ratio * y[i];
        tokens += (double)b->eval.lengths[i] - 1;
    }
    for (size_t i = 0; i < b->eval.n; i++) {
        double own = (double)b->eval.lengths[i] - 1;
        double d = x[i] - ratio * y[i] - sum / tokens * own;

        squares += d * d;
    }
    *err = n > 1 ? sqrt(squares * n / (n - 1)) / tokens : INFINITY;
    return sum / tokens;
}

static struct figures compare(struct bench *b, struct oracle_walk *w)
{
    size_t vocab = (size_t)b->ckpt.hp.vocab, all = oracle_walk_tokens(w);
    size_t context = 0, at = 0, followed = 0;
    struct figures f = { 0 };
    struct err e = ERR_INIT;

    memset(b->loss, 0, b->eval.n * sizeof(*b->loss));
    for (size_t done = 0; done < all; done += CHUNK) {
        size_t n = all - done < CHUNK ? all - done : CHUNK;

        need(oracle_walk_logits(b->walk, done, n, b->want, &e), &e);
        need(oracle_walk_logits(w, done, n, b->have, &e), &e);
        for (size_t i = 0; i < n; i++) {
            bool last = at + 1 == b->eval.lengths[context];

            add_position(b->want + i * vocab, b->have + i * vocab, vocab,
                         last ? -1 : b->eval.ids[context][at + 1], &f,
                         &b->loss[context]);
            followed += !last;
            at = last ? 0 : at + 1;
            context += last;
        }
    }
    f.perplexity = exp(f.perplexity / (double)followed);
    f.kl /= (double)all;
    f.top1 *= 100 / (double)all;
    f.loss = mean_of(b, b->loss, 0, b->loss, &f.loss_err);
    return f;
}

/* Bits per weight of layers and LM head, tables included. */
static double achieved(const struct cv_job *j)
{
    double bits = 0, weights = 0;

    for (size_t i = 1; i < j->n_parts; i++) {
        bits += (double)j->parts[i].stored_bits;
        weights += (double)j->parts[i].weights;
    }
    return weights > 0 ? bits / weights : 16;
}

static double seconds(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* Of the loss that plain k-means leaves at this width. */
static void print_closed(struct bench *b, const char *width, const char *method,
                         const struct figures *f)
{
    size_t bytes = b->eval.n * sizeof(*b->loss);
    double err, plain = 0;

    if (!strcmp(method, "kmeans")) {
        memcpy(b->plain, b->loss, bytes);
        snprintf(b->plain_width, sizeof(b->plain_width), "%s", width);
    } else if (!strcmp(b->plain_width, width) &&
               (plain = mean_of(b, b->plain, 0, b->plain, &err)) > 0) {
        mean_of(b, b->loss, f->loss / plain, b->plain, &err);
        printf("  %5.1f +- %-5.1f", 100 * (1 - f->loss / plain),
               100 * err / plain);
    }
}

static void measure(struct bench *b, const char *width, const char *method)
{
    char dir[] = "/tmp/anemll-quality-XXXXXX", out[64];
    struct run_options ro = { RUN_F32, b->par };
    struct err e = ERR_INIT;
    struct cv_options o;
    struct cv_job j;
    struct package *p;
    struct package_source *s;
    struct tensor_source src;
    struct oracle *oracle;
    struct oracle_walk *w;
    struct figures f;
    double start = seconds(), spent;

    cv_options_init(&o);
    o.model = b->model;
    o.par = b->par;
    need(mkdtemp(dir) ? 0 : -1, &e);
    snprintf(out, sizeof(out), "%s/p", dir);
    o.output = out;
    if (!strncmp(width, "budget:", 7))
        need(num_parse_double(width + 7, strlen(width + 7), &o.budget)
                 ? 0
                 : err_set(&e, ERR_USAGE, "'%s' is no budget", width),
             &e);
    else
        need(cv_lut_parse("width", width, &o.lut_ffn, &e), &e);
    o.lut_head = o.lut_ffn;
    o.calib = strcmp(method, "kmeans") ? b->calib : NULL;
    o.gptq = !strcmp(method, "gptq");
    need(cv_job_open(&j, &o, false, &e), &e);
    need(cv_convert(&j, NULL, &e), &e);
    spent = seconds() - start;
    p = package_open(out, &ro, &e);
    need(p ? 0 : -1, &e);
    s = package_source_open(p, &b->ckpt, &e);
    need(s ? 0 : -1, &e);
    src = package_source_tensors(s);
    oracle = new_oracle(b, &src);
    w = walk_all(b, oracle);
    f = compare(b, w);
    printf("%-10s %-8s %6.3f %8.1f  %9.4f  %8.5f  %6.2f  %7.2f +- %-5.2f",
           width, method, achieved(&j), spent, f.perplexity, f.kl, f.top1,
           1000 * f.loss, 1000 * f.loss_err);
    print_closed(b, width, method, &f);
    printf("\n");
    fflush(stdout);
    oracle_walk_free(w);
    oracle_free(oracle);
    package_source_close(s);
    package_close(p);
    cv_job_close(&j);
    need(io_remove_tree(dir, &e), &e);
}

/* `WIDTH=METHOD,METHOD`, or a width alone for every method. */
static void measure_width(struct bench *b, const char *arg)
{
    static const char *const methods[] = { "kmeans", "calib", "gptq" };
    const char *list = strchr(arg, '=');
    size_t len = list ? (size_t)(list - arg) : strlen(arg);
    char width[32];

    if (len >= sizeof(width)) {
        fprintf(stderr, "bench_quality: '%s' is no width\n", arg);
        exit(2);
    }
    snprintf(width, sizeof(width), "%.*s", (int)len, arg);
    for (size_t m = 0; m < 3; m++)
        if (!list || strstr(list, methods[m]))
            measure(b, width, methods[m]);
}

int main(int argc, char **argv)
{
    static const char *const widths[] = { "8", "6", "4", "3", "2" };
    struct bench b = { 0 };
    struct err e = ERR_INIT;
    struct tensor_source src;
    size_t vocab;

    if (argc < 4) {
        fprintf(stderr, "usage: bench_quality CHECKPOINT CALIB EVAL "
                        "[WIDTH[=METHOD[,METHOD...]]...]\n");
        return 2;
    }
    b.model = argv[1];
    b.calib = argv[2];
    b.par = par_new(0, &e);
    need(b.par ? 0 : -1, &e);
    need(ckpt_open(&b.ckpt, b.model, 0, &e), &e);
    need(prompts_read(&b.eval, argv[3], b.ckpt.hp.vocab, &e), &e);
    vocab = (size_t)b.ckpt.hp.vocab;
    b.want = mem_alloc(CHUNK * vocab, sizeof(float), &e);
    b.have = mem_alloc(CHUNK * vocab, sizeof(float), &e);
    b.loss = mem_alloc(b.eval.n, sizeof(*b.loss), &e);
    b.plain = mem_alloc(b.eval.n, sizeof(*b.plain), &e);
    need(b.want && b.have && b.loss && b.plain ? 0 : -1, &e);
    src = ckpt_source(&b.ckpt);
    b.oracle = new_oracle(&b, &src);
    b.walk = walk_all(&b, b.oracle);
    printf("%s, %zu tokens in %zu windows\n%-10s %-8s %6s %8s  %9s  %8s  %6s  "
           "%-16s  %s\n",
           io_basename(b.model), oracle_walk_tokens(b.walk), b.eval.n, "width",
           "method", "bits", "seconds", "perplex.", "KL", "top-1", "   loss",
           "closed %");
    printf("%-10s %-8s %6.3f %8s  %9.4f\n", "-", "-", 16.0, "",
           compare(&b, b.walk).perplexity);
    for (int i = 4; i < argc; i++)
        measure_width(&b, argv[i]);
    if (argc == 4)
        measure(&b, "none", "kmeans");
    for (size_t i = 0; argc == 4 && i < sizeof(widths) / sizeof(*widths); i++)
        measure_width(&b, widths[i]);
    oracle_walk_free(b.walk);
    oracle_free(b.oracle);
    prompts_release(&b.eval);
    ckpt_close(&b.ckpt);
    mem_free(b.want);
    mem_free(b.have);
    mem_free(b.loss);
    mem_free(b.plain);
    par_free(b.par);
    return 0;
}
