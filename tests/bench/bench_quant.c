/*
 * Palettization in figures: speed, error, and both beside other programs.
 *
 *     bench_quant [seconds per figure]
 *     bench_quant --dump BITS GROUP ROWS COLS bf16|f16 IN OUT
 *
 * The first form prints a line per figure, with its bar where it has one, on
 * synthetic weights. Times are the processor time of one thread, so that other
 * load counts for little, but where a line says "clock". With the environment
 * variable PEERS_PYTHON naming a Python that has tests/peers/requirements.txt
 * the same tensors go through kmeans1d and coremltools (about half a minute).
 *
 * The second reads ROWS x COLS raw little-endian values from IN and writes OUT:
 * all tables (fp16), then the packed indices, and prints the squared error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"
#include "quant/kmeans.h"
#include "quant/stages.h"

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)((seed >> 11) + 1) / 9007199254740993.0;
}

static double gauss(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static double student5(void)
{
    double s = 0;
    int i;

    for (i = 0; i < 5; i++) {
        double g = gauss();

        s += g * g;
    }
    return gauss() / sqrt(s / 5);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t = { 0 };

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of this thread alone: other load does not count. */
static double now(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static int die(const struct err *e)
{
    fprintf(stderr, "bench_quant: %s\n", e->text);
    return 1;
}

enum { POOL = 64, ROWS = 8, COLS = 1024, WIDE = 3072 };
static const char *const names[] = { "gauss", "t5" };
static const int widths[] = { 1, 2, 3, 4, 6, 8 };
enum { WIDTHS = sizeof widths / sizeof widths[0] };

/* Rows of bfloat16 weights, each with a scale of its own. */
static void weights(uint16_t *v, size_t rows, size_t cols, int tails)
{
    size_t i, row;

    for (row = 0; row < rows; row++) {
        double scale = 0.02 * exp(0.25 * gauss());

        for (i = 0; i < cols; i++)
            v[row * cols + i] =
                f32_to_bf16((float)(scale * (tails ? student5() : gauss())));
    }
}

/* ---- lines ---- */

enum bar { NONE, LEAST, MOST };
static int met, missed;

static void line(const char *what, double figure, const char *unit,
                 enum bar kind, double bar)
{
    bool good = kind == LEAST ? figure >= bar : figure <= bar;

    /* A ratio just above 1 needs its decimals. */
    printf("%-46s %11.*f %-9s", what,
           figure < 0.1   ? 6
           : figure < 1.5 ? 5
           : figure < 10  ? 2
                          : 1,
           figure, unit);
    if (kind != NONE) {
        printf(" %s %-7g %s", kind == LEAST ? ">=" : "<=", bar,
               good ? "met" : "MISSED");
        *(good ? &met : &missed) += 1;
    }
    putchar('\n');
    fflush(stdout);
}

static void lack(const char *what, const char *why)
{
    printf("%-46s not measured: %s\n", what, why);
    missed++;
}

/* ---- speed ---- */

struct times {
    double count, table, solve, assign, pack, all;
    double passes, distance, states;
};

/* One group from keys to packed indices. */
static int whole_path(struct qz_scratch *s, const uint16_t *v, const float *imp,
                      size_t n, int bits, double *spent, double *sse,
                      struct err *e)
{
    static uint8_t idx[ROWS * WIDE], packed[ROWS * WIDE];
    f16_t table[QZ_MAX_CLUSTERS];
    struct qz_result r;
    double t0 = now();
    size_t bad;

    if (qz_group(s, v, imp, n, QZ_BF16, 0, bits, table, idx, &r, &bad, e))
        return -1;
    qz_pack(packed, idx, n, bits);
    *spent += now() - t0;
    *sse += r.sse;
    return 0;
}

/* Seconds for `groups` groups, the best of as many rounds as fit. */
static int best_time(struct qz_scratch *s, const uint16_t *v, const float *imp,
                     size_t n, size_t groups, int bits, double seconds,
                     double *best, double *sse, struct err *e)
{
    double end = now() + seconds;
    size_t g;

    *best = INFINITY;
    do {
        double t = 0;

        *sse = 0;
        for (g = 0; g < groups; g++)
            if (whole_path(s, v + g * n, imp, n, bits, &t, sse, e))
                return -1;
        *best = t < *best ? t : *best;
    } while (now() < end);
    return 0;
}

static int speed(struct qz_scratch *s, const uint16_t *v, const float *imp,
                 double seconds, struct err *e)
{
    static const double bars[] = { 0, 0, 0, 100, 60, 45 };
    char what[80];
    int tails;
    size_t w;

    for (tails = 0; tails < 2; tails++) {
        const uint16_t *x = v + (size_t)tails * POOL * ROWS * COLS;

        for (w = 0; w < WIDTHS; w++) {
            double plain = INFINITY, heavy = INFINITY, t, sse, rate;
            int i;

            /* In turns: what else runs here strikes both. */
            for (i = 0; i < 4; i++) {
                if (best_time(s, x, NULL, ROWS * COLS, POOL, widths[w],
                              seconds / 8, &t, &sse, e))
                    return -1;
                plain = t < plain ? t : plain;
                if (best_time(s, x, imp, ROWS * COLS, POOL, widths[w],
                              seconds / 8, &t, &sse, e))
                    return -1;
                heavy = t < heavy ? t : heavy;
            }
            rate = 1e-6 * POOL * ROWS * COLS;
            snprintf(what, sizeof what, "%d x %d %s, LUT%d", ROWS, COLS,
                     names[tails], widths[w]);
            line(what, rate / plain, "M/s", bars[w] > 0 ? LEAST : NONE,
                 bars[w]);
            snprintf(what, sizeof what, "%d x %d %s, LUT%d, weighted", ROWS,
                     COLS, names[tails], widths[w]);
            line(what, rate / heavy, "M/s", NONE, 0);
            line("    of the unweighted speed", 100 * plain / heavy, "%", LEAST,
                 50);
        }
    }
    return 0;
}

/* The best one ran above. */
static int by_level(struct qz_scratch *s, const uint16_t *v, double seconds,
                    struct err *e)
{
    unsigned have = cpu_features();
    double t, sse;
    char what[80];
    size_t l, w;

    for (w = 3; w < WIDTHS; w++)
        for (l = 0; l < CPU_LEVELS; l++) {
            if ((cpu_levels[l].mask & ~have) != 0)
                continue;
            cpu_mask(cpu_levels[l].mask);
            if (best_time(s, v, NULL, ROWS * COLS, POOL, widths[w], seconds, &t,
                          &sse, e))
                return -1;
            snprintf(what, sizeof what, "%d x %d gauss, LUT%d, %s", ROWS, COLS,
                     widths[w], cpu_levels[l].name);
            line(what, 1e-6 * POOL * ROWS * COLS / t, "M/s", NONE, 0);
        }
    cpu_mask(have);
    return 0;
}

/* Each stage over the whole pool, the best of as many rounds as fit. A stage
 * alone meets data that it has just seen: the sum is less than the whole. */
static int stages(struct qz_scratch *s, const uint16_t *v, size_t n, int bits,
                  double seconds, struct times *best, struct err *e)
{
    static uint8_t idx[ROWS * WIDE], packed[ROWS * WIDE];
    uint32_t borders[QZ_MAX_CLUSTERS + 1];
    f16_t table[QZ_MAX_CLUSTERS];
    struct qz_solve_info info;
    struct qz_result r;
    double end = now() + seconds, t0, t1, sse;

    best->all = INFINITY;
    do {
        struct times one = { 0 };
        size_t g;

        for (g = 0; g < POOL; g++) {
            const uint16_t *w = v + g * n;
            struct qz_span span = QZ_SPAN_INIT;

            if (whole_path(s, w, NULL, n, bits, &one.all, &sse, e))
                return -1;
            qz_kmeans_info(s->km, &info);
            one.passes += info.passes;
            one.distance += info.distance;
            one.states += (double)info.states;
            t0 = now();
            if (s->m > (size_t)1 << bits &&
                qz_kmeans_solve(s->km, 1 << bits, QZ_AUTO, borders, e))
                return -1;
            t1 = now();
            one.solve += t1 - t0;
            qz_count(s->counts, &span, w, n);
            s->m = qz_compact(s->counts, &span, s->keys, s->w);
            t0 = now();
            one.count += t0 - t1;
            if (qz_table(s, &span, QZ_BF16, 0, bits, table, &r, e))
                return -1;
            t1 = now();
            one.table += t1 - t0;
            qz_nearest_set(s->nearest, table, bits, QZ_BF16, 0, &span);
            qz_nearest_map(s->nearest, idx, w, n);
            t0 = now();
            one.assign += t0 - t1;
            qz_pack(packed, idx, n, bits);
            one.pack += now() - t0;
        }
        if (one.all < best->all)
            *best = one;
    } while (now() < end);
    return 0;
}

static int profile(struct qz_scratch *s, double seconds, struct err *e)
{
    static uint16_t v[POOL * ROWS * WIDE];
    struct times t;
    size_t c, w;
    int tails;

    printf("\nwhere the time goes, us a group: whole, count, solve, rest of "
           "the table,\nassign, pack; passes, clusters off, states of the "
           "layers\n");
    for (c = COLS; c <= WIDE; c += WIDE - COLS)
        for (tails = 0; tails < 2; tails++) {
            weights(v, POOL * ROWS, c, tails);
            for (w = 0; w < WIDTHS; w++) {
                if (stages(s, v, ROWS * c, widths[w], seconds, &t, e))
                    return -1;
                printf("%d x %zu %-5s LUT%d  %6.1f %6.1f %6.1f %6.1f %6.1f "
                       "%6.1f   %.2f %.2f %.0f\n",
                       ROWS, c, names[tails], widths[w], 1e6 * t.all / POOL,
                       1e6 * t.count / POOL, 1e6 * t.solve / POOL,
                       1e6 * (t.table - t.solve) / POOL, 1e6 * t.assign / POOL,
                       1e6 * t.pack / POOL, t.passes / POOL, t.distance / POOL,
                       t.states / POOL);
                fflush(stdout);
            }
        }
    return 0;
}

/* ---- threads ---- */

enum { REPEATS = 4 }; /* of the pool: the start of a matrix is not its all */

struct memory {
    const uint16_t *v;
    double read; /* seconds */
};

/* The pool again and again. */
static int rows_in_memory(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                          struct err *e)
{
    struct memory *m = cookie;
    double t0 = now();

    (void)e;
    for (; n > 0; n--, row++, dst += COLS)
        memcpy(dst, m->v + row % (POOL * ROWS) * COLS, COLS * sizeof *dst);
    m->read += now() - t0;
    return 0;
}

struct spent {
    double clock, processor, read;
};

/* The least that the whole matrix took. */
static int palettize(const struct qz_source *src, int bits, struct par *par,
                     uint8_t *out, struct spent *best, struct err *e)
{
    double t0 = seconds_of(CLOCK_MONOTONIC);
    double p0 = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    struct memory *m = src->cookie;
    struct qz_palette *p = qz_palette_new(src, bits, ROWS, par, e);
    int rc = -1;

    m->read = 0;
    if (p != NULL)
        rc = qz_palette_read_indices(p, 0, out,
                                     (size_t)qz_palette_index_bytes(p), e);
    qz_palette_free(p);
    best->clock = fmin(best->clock, seconds_of(CLOCK_MONOTONIC) - t0);
    best->processor =
        fmin(best->processor, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - p0);
    best->read = fmin(best->read, m->read);
    return rc;
}

static int threads(const uint16_t *v, double seconds, struct err *e)
{
    struct memory m = { v, 0 };
    struct qz_source src = { 0 };
    uint8_t *out = mem_alloc(REPEATS * POOL * ROWS * COLS, 1, e);
    struct par *two = par_new(2, e);
    char what[80];
    int rc = out == NULL || two == NULL ? -1 : 0;
    size_t w;

    src.rows = REPEATS * POOL * ROWS;
    src.cols = COLS;
    src.read_rows = rows_in_memory;
    src.cookie = &m;
    for (w = 3; w < WIDTHS && rc == 0; w++) {
        double end = seconds_of(CLOCK_MONOTONIC) + 6 * seconds;
        struct spent one = { INFINITY, INFINITY, INFINITY }, both = one;

        do
            rc = palettize(&src, widths[w], NULL, out, &one, e) ||
                         palettize(&src, widths[w], two, out, &both, e)
                     ? -1
                     : 0;
        while (rc == 0 && seconds_of(CLOCK_MONOTONIC) < end);
        if (rc != 0)
            break;
        snprintf(what, sizeof what, "two threads against one, LUT%d (clock)",
                 widths[w]);
        if (cpu_count() < 2)
            lack(what, "this process may use one core");
        else
            line(what, one.clock / both.clock, "x", LEAST, 1.85);
        /* One reads, both do the rest; what threads cost each other counts. */
        line("    were nothing else running (processor time)",
             one.processor / (both.read + (both.processor - both.read) / 2),
             "x", NONE, 0);
    }
    mem_free(out);
    par_free(two);
    return rc;
}

/* ---- other programs ---- */

enum { PEER_GROUPS = 8, PEER_WEIGHTS = PEER_GROUPS * ROWS * COLS };

struct peers {
    double optimum[2][9], error[2][9], seconds[2][9]; /* by tensor and bits */
    char missing[200];
};

/* Lines of tests/peers/quant_bench.py. */
static void read_peers(FILE *in, struct peers *p)
{
    char text[256];
    double a, b;
    int tensor, bits;

    while (fgets(text, sizeof text, in) != NULL) {
        bool known =
            sscanf(text, "%*s %d %d %lg %lg", &tensor, &bits, &a, &b) >= 3 &&
            tensor >= 0 && tensor < 2 && bits >= 1 && bits <= 8;

        if (known && strncmp(text, "kmeans1d ", 9) == 0) {
            p->optimum[tensor][bits] = a;
        } else if (known && strncmp(text, "coremltools ", 12) == 0) {
            p->error[tensor][bits] = a;
            p->seconds[tensor][bits] = b;
        } else if (strncmp(text, "missing ", 8) == 0) {
            text[strcspn(text, "\n")] = '\0';
            snprintf(p->missing, sizeof p->missing, "%.190s", text + 8);
        }
    }
}

/* Hands the tensors over in a file and takes the figures. */
static void ask_peers(const uint16_t *v, struct peers *p)
{
    const char *python = getenv("PEERS_PYTHON");
    char path[] = "/tmp/bench_quant.XXXXXX", command[1024];
    FILE *f;
    int fd;

    memset(p, 0, sizeof *p);
    if (python == NULL || *python == '\0') {
        snprintf(p->missing, sizeof p->missing, "PEERS_PYTHON is not set");
        return;
    }
    snprintf(p->missing, sizeof p->missing, "%.150s did not answer", python);
    fd = mkstemp(path);
    f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (f == NULL) {
        snprintf(p->missing, sizeof p->missing, "no temporary file");
        return;
    }
    if (fwrite(v, 2 * PEER_WEIGHTS, 2, f) == 2 && fflush(f) == 0) {
        FILE *in;

        snprintf(command, sizeof command, "'%s' '%s/tests/peers/%s' %s %d %d",
                 python, ANEMLL_SOURCE_DIR, "quant_bench.py", path, ROWS, COLS);
        in = popen(command, "r");
        if (in != NULL) {
            read_peers(in, p);
            pclose(in);
        }
    }
    fclose(f);
    unlink(path);
}

/* Values that bfloat16 and fp16 both hold. */
static void common_values(uint16_t *v, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        v[i] = f32_to_bf16(f16_to_f32(f32_to_f16(bf16_to_f32(v[i]))));
}

static int against_peers(struct qz_scratch *s, double seconds, struct err *e)
{
    static uint16_t v[2 * PEER_WEIGHTS];
    static struct peers p;
    char what[80];
    int tensor;
    size_t w;

    for (tensor = 0; tensor < 2; tensor++)
        weights(v + tensor * PEER_WEIGHTS, PEER_GROUPS * ROWS, COLS, tensor);
    common_values(v, 2 * PEER_WEIGHTS);
    ask_peers(v, &p);
    for (tensor = 0; tensor < 2; tensor++)
        for (w = 0; w < WIDTHS; w++) {
            int bits = widths[w];
            double t, sse, theirs = p.error[tensor][bits];

            if (best_time(s, v + tensor * PEER_WEIGHTS, NULL, ROWS * COLS,
                          PEER_GROUPS, bits, seconds, &t, &sse, e))
                return -1;
            snprintf(what, sizeof what, "%s LUT%d, error / kmeans1d's optimum",
                     names[tensor], bits);
            if (p.optimum[tensor][bits] > 0)
                line(what, sse / p.optimum[tensor][bits], "", MOST,
                     bits <= 6 ? 1.0005 : 1.003);
            else
                lack(what, p.missing);
            if (bits < 4)
                continue;
            snprintf(what, sizeof what, "%s LUT%d, error / coremltools'",
                     names[tensor], bits);
            if (!(theirs > 0)) {
                lack(what, p.missing);
                continue;
            }
            line(what, sse / theirs, "", MOST, 1);
            snprintf(what, sizeof what, "%s LUT%d, speed / coremltools'",
                     names[tensor], bits);
            line(what, p.seconds[tensor][bits] / t, "x",
                 bits > 4 ? LEAST : NONE, bits == 8 ? 200 : 80);
        }
    return 0;
}

/* ---- all of it ---- */

static void machine(void)
{
    unsigned have = cpu_features();
    double load = -1;
    FILE *f = fopen("/proc/loadavg", "r");
    size_t l;

    if (f != NULL) {
        if (fscanf(f, "%lf", &load) != 1)
            load = -1;
        fclose(f);
    }
    for (l = CPU_LEVELS - 1; l > 0 && (cpu_levels[l].mask & ~have) != 0; l--)
        ;
    printf("instruction set %s, %d cores", cpu_levels[l].name, cpu_count());
    if (load >= 0)
        printf(", %.1f processes wanted to run in the last minute", load);
    printf("\n\n");
}

static int bench(double seconds, struct err *e)
{
    static uint16_t v[2 * POOL * ROWS * COLS];
    static float imp[ROWS * COLS];
    struct qz_scratch *s = qz_scratch_new(e);
    int i, rc;

    if (s == NULL)
        return -1;
    weights(v, POOL * ROWS, COLS, 0);
    weights(v + POOL * ROWS * COLS, POOL * ROWS, COLS, 1);
    /* Of a layer's inputs, the same in each row. */
    for (i = 0; i < COLS; i++)
        imp[i] = (float)exp(gauss());
    for (; i < ROWS * COLS; i++)
        imp[i] = imp[i - COLS];
    machine();
    rc = speed(s, v, imp, seconds, e) || by_level(s, v, seconds, e) ||
                 threads(v, seconds, e) || against_peers(s, seconds, e)
             ? -1
             : 0;
    if (rc == 0) {
        printf("\n%d bars met, %d missed or not measured\n", met, missed);
        rc = profile(s, seconds / 4, e);
    }
    qz_scratch_free(s);
    return rc;
}

struct file {
    FILE *in;
    uint64_t cols;
};

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    struct file *f = cookie;
    size_t want = (size_t)(n * f->cols);

    if (fseek(f->in, (long)(row * f->cols * 2), SEEK_SET) != 0 ||
        fread(dst, 2, want, f->in) != want)
        return err_set(e, ERR_IO, "input too short");
    return 0;
}

static int dump_all(struct qz_palette *p, FILE *out, struct err *e)
{
    size_t bytes = (size_t)qz_palette_index_bytes(p);
    size_t elems = (size_t)qz_palette_table_elems(p);
    uint8_t *packed = mem_alloc(bytes, 1, e), *tables = mem_alloc(elems, 2, e);
    struct qz_stats st;
    int rc = -1;

    if (packed != NULL && tables != NULL &&
        qz_palette_read_indices(p, 0, packed, bytes, e) == 0 &&
        qz_palette_read_tables(p, 0, tables, 2 * elems, e) == 0) {
        rc = 0;
        if (fwrite(tables, 2, elems, out) != elems ||
            fwrite(packed, 1, bytes, out) != bytes)
            rc = err_set(e, ERR_IO, "cannot write");
        qz_palette_stats(p, &st);
        printf("%.17g\n", st.sse);
    }
    mem_free(packed);
    mem_free(tables);
    return rc;
}

static int dump(char **arg, struct err *e)
{
    struct qz_source src = { 0 };
    struct file f;
    struct qz_palette *p;
    FILE *out;
    int bits = (int)strtol(arg[0], NULL, 10), rc;

    src.rows = strtoull(arg[2], NULL, 10);
    src.cols = f.cols = strtoull(arg[3], NULL, 10);
    src.format = strcmp(arg[4], "bf16") == 0 ? QZ_BF16 : QZ_F16;
    src.read_rows = read_rows;
    src.cookie = &f;
    f.in = fopen(arg[5], "rb");
    out = fopen(arg[6], "wb");
    if (f.in == NULL || out == NULL) {
        if (f.in != NULL)
            fclose(f.in);
        if (out != NULL)
            fclose(out);
        return err_set(e, ERR_IO, "cannot open the files");
    }
    p = qz_palette_new(&src, bits, strtoull(arg[1], NULL, 10), NULL, e);
    rc = p == NULL ? -1 : dump_all(p, out, e);
    qz_palette_free(p);
    fclose(f.in);
    if (fclose(out) != 0 && rc == 0)
        rc = err_set(e, ERR_IO, "cannot write");
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;

    if (argc == 9 && strcmp(argv[1], "--dump") == 0)
        return dump(argv + 2, &e) ? die(&e) : 0;
    if (argc > 2) {
        fprintf(stderr, "usage: bench_quant [seconds] | --dump BITS GROUP "
                        "ROWS COLS bf16|f16 IN OUT\n");
        return 2;
    }
    return bench(argc == 2 ? strtod(argv[1], NULL) : 0.3, &e) ? die(&e) : 0;
}
