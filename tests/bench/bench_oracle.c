/*
 * Speed of the float32 reference.
 *
 *   bench_oracle                     matrix products, then as "noise"
 *   bench_oracle noise [TOKENS [KEEP]]  a model in the shape
 *                                    of Qwen3-0.6B over random bf16 weights in
 *                                    a temporary file
 *   bench_oracle DIR [TOKENS [KEEP]] a checkpoint: prefill of TOKENS (128) in
 *                                    one pass, then 8 single tokens; KEEP MB
 *                                    of weights stay in memory (0)
 *
 * Prints one line per figure: name, size, best time, rate. Page cache warm
 * after the first round.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "models/models.h"
#include "converter/base/sgemm.h"

static struct err err;

static void die(void)
{
    fprintf(stderr, "bench_oracle: %s\n", err.text);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t rng = 1;

static float noise(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(rng >> 40) / (1 << 24) - 0.5);
}

static void bench_sgemm(struct par *par, size_t n, size_t m, size_t k)
{
    float *x = mem_alloc(n * k, sizeof(*x), &err);
    float *w = mem_alloc(m * k, sizeof(*w), &err);
    float *y = mem_alloc(n * m, sizeof(*y), &err);
    double best = 1e30;

    if (!x || !w || !y)
        die();
    for (size_t i = 0; i < n * k; i++)
        x[i] = noise();
    for (size_t i = 0; i < m * k; i++)
        w[i] = noise();
    for (int round = 0; round < 5; round++) {
        double t = now();

        if (sgemm(par, n, m, k, x, w, y, &err))
            die();
        t = now() - t;
        best = t < best ? t : best;
    }
    printf("sgemm %5zu x %5zu x %5zu  %8.2f ms  %7.1f GFLOP/s  %6.1f GB/s of "
           "weights\n",
           n, m, k, best * 1e3, 2e-9 * (double)n * (double)m * (double)k / best,
           4e-9 * (double)m * (double)k / best);
    mem_free(y);
    mem_free(w);
    mem_free(x);
}

/* Random bf16 weights in an unlinked file; a tensor lies where its name
 * hashes to. */
struct noise_file {
    int fd;
    uint64_t elems;
    const struct hparams *hp;
};

static uint64_t name_hash(const char *s)
{
    uint64_t h = 14695981039346656037u;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}

static uint64_t columns(const struct hparams *hp, const char *name)
{
    if (strstr(name, "q_norm") || strstr(name, "k_norm"))
        return (uint64_t)hp->head_dim;
    if (strstr(name, "o_proj"))
        return (uint64_t)(hp->heads * hp->head_dim);
    if (strstr(name, "down_proj"))
        return (uint64_t)hp->intermediate;
    return (uint64_t)hp->hidden;
}

static int noise_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                      float *dst, struct err *e)
{
    const struct noise_file *f = cookie;
    uint64_t cols = columns(f->hp, name), count = n * cols;
    uint64_t at = (name_hash(name) % 1024 * 65536 + row * cols) % f->elems;
    unsigned char *raw = mem_alloc(count, 2, e);

    if (!raw)
        return -1;
    if (at + count > f->elems)
        at = 0;
    if (pread(f->fd, raw, count * 2, (off_t)(at * 2)) != (ssize_t)(count * 2)) {
        mem_free(raw);
        return err_set(e, ERR_IO, "short read of the noise file");
    }
    num_bf16_to_f32(dst, raw, count);
    mem_free(raw);
    return 0;
}

static void noise_open(struct noise_file *f, uint64_t elems)
{
    char path[] = "/tmp/bench_oracle.bin";
    bf16_t block[8192];

    f->elems = elems / 8192 * 8192;
    f->fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (f->fd < 0 || unlink(path)) {
        perror(path);
        exit(1);
    }
    for (uint64_t i = 0; i < f->elems; i += 8192) {
        for (size_t k = 0; k < 8192; k++)
            block[k] = f32_to_bf16(0.06f * noise());
        if (write(f->fd, block, sizeof(block)) != sizeof(block)) {
            perror(path);
            exit(1);
        }
    }
}

static void bench_model(const char *what, const struct hparams *hp,
                        const struct tensor_source *src, struct par *par,
                        size_t n, uint64_t keep)
{
    struct oracle_options opt = { .par = par,
                                  .keep_bytes = keep,
                                  .max_positions = (int64_t)n + 8 };
    struct oracle *o = oracle_new(hp, src, &opt, &err);
    int32_t *tokens = mem_alloc(n, sizeof(*tokens), &err);
    float *logits = mem_alloc(n * (size_t)hp->vocab, sizeof(*logits), &err);
    struct oracle_out all = { .logits = logits };
    struct oracle_out last = { .last_logits = logits };

    if (!o || !tokens || !logits)
        die();
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 7919 % (size_t)hp->vocab);
    for (int round = 0; round < 2; round++) {
        double t = now();

        if (oracle_reset(o, &err) || oracle_feed(o, tokens, n, &all, &err))
            die();
        t = now() - t;
        printf("%s: %zu tokens, all logits, round %d: %.2f s\n", what, n, round,
               t);
        t = now();
        for (int i = 0; i < 8; i++) {
            if (oracle_feed(o, tokens, 1, &last, &err))
                die();
        }
        printf("%s: token by token: %.3f s each\n", what, (now() - t) / 8);
    }
    mem_free(logits);
    mem_free(tokens);
    oracle_free(o);
}

static void print_rss(void)
{
    struct rusage u;

    if (!getrusage(RUSAGE_SELF, &u))
        printf("peak RSS %ld MB\n", u.ru_maxrss / 1024);
}

static void bench_noise(struct par *par, size_t n, uint64_t keep)
{
    struct hparams hp = { .arch = model_arch_by_type("qwen3"),
                          .model_type = "qwen3",
                          .vocab = 151936,
                          .hidden = 1024,
                          .intermediate = 3072,
                          .layers = 28,
                          .heads = 16,
                          .kv_heads = 8,
                          .head_dim = 128,
                          .rms_eps = 1e-6,
                          .rope = { .type = ROPE_DEFAULT,
                                    .theta = 1e6,
                                    .dim = 128,
                                    .factor = 1,
                                    .attention_scaling = 1 } };
    struct noise_file f = { .hp = &hp };
    struct tensor_source src = { noise_rows, &f };

    noise_open(&f, 596049920);
    bench_model("shape of Qwen3-0.6B", &hp, &src, par, n, keep);
    close(f.fd);
}

int main(int argc, char **argv)
{
    struct par *par = par_new(0, &err);
    size_t n = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 128;
    uint64_t keep = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0;

    if (!par || n < 1)
        die();
    printf("%d threads\n", par_width(par));
    if (argc > 1 && strcmp(argv[1], "noise") != 0) {
        struct ckpt c;
        struct tensor_source src;

        if (ckpt_open(&c, argv[1], 0, &err))
            die();
        src = ckpt_source(&c);
        bench_model(argv[1], &c.hp, &src, par, n, keep);
        ckpt_close(&c);
    } else {
        if (argc < 2) {
            bench_sgemm(par, 1, 3072, 1024);
            bench_sgemm(par, 128, 3072, 1024);
            bench_sgemm(par, 128, 1024, 3072);
            bench_sgemm(par, 512, 4096, 4096);
        }
        bench_noise(par, n, keep);
    }
    print_rss();
    par_free(par);
    return 0;
}
