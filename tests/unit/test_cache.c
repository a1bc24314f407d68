/*
 * The cache of finished matrices: what goes in comes out, and nothing that
 * was touched is taken. Conversions with it give the bytes of those without.
 */
#define _XOPEN_SOURCE 700 /* utimensat */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/cache.h"
#include "quant/linear.h"
#include "t_conv.h"
#include "t_dir.h"
#include "t_rand.h"

TestSuite(cache, .fini = t_conv_clean);

static const struct hash128 key = { 0x0123456789abcdef, 0x0f1e2d3c4b5a6978 };
#define NAME "0123456789abcdef0f1e2d3c4b5a6978" CACHE_SUFFIX

/* ---- what is told ---- */

static char told[4096];

static void tell(void *cookie, enum log_level level, const char *text)
{
    size_t n = strlen(told);

    (void)cookie;
    if (level == LOG_WARN || !strncmp(text, "cache '", 7))
        snprintf(told + n, sizeof told - n, "%s\n", text);
}

static const struct log quiet = { .level = LOG_DEBUG, .line = tell };

static struct cache *open_at(const char *name)
{
    struct err e = ERR_INIT;
    struct cache *c;
    static char dir[600];

    snprintf(dir, sizeof dir, "%s", t_conv_path(name));
    c = cache_open(dir, 0, &quiet, &e);
    cr_assert_not_null(c, "%s", e.text);
    told[0] = '\0';
    return c;
}

static struct cache_counts counts(const struct cache *c)
{
    struct cache_counts n;

    cache_counted(c, &n);
    return n;
}

/* ---- entries ---- */

static struct qz_stats figures(void)
{
    return (struct qz_stats){ 0.1, 2.5, 1e-9, 4e9, 5, 6, 7, UINT64_C(1) << 40 };
}

/* Bytes that no packing makes fewer. */
static void noise(uint8_t *p, size_t n)
{
    uint64_t seed = 1;

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(256 * t_uniform(&seed));
}

static void put(struct cache *c, const uint8_t *p, size_t n, size_t step)
{
    struct cache_fresh *f = cache_begin(c, key, n);
    struct qz_stats s = figures();

    cr_assert_not_null(f);
    for (size_t at = 0; at < n; at += step)
        cache_add(f, p + at, n - at < step ? n - at : step);
    cr_expect_eq(cache_added(f), n);
    cache_commit(f, &s);
}

static void expect_back(struct cache *c, const uint8_t *p, size_t n,
                        size_t step)
{
    struct cache_found *f = cache_find(c, key, n);
    uint8_t *got = malloc(n);
    struct qz_stats s, want = figures();
    struct err e = ERR_INIT;

    cr_assert_not_null(f, "%s", told);
    for (size_t at = 0; at < n; at += step)
        cr_assert_eq(cache_read(f, got + at, n - at < step ? n - at : step, &e),
                     0, "%s", e.text);
    cr_assert_eq(cache_read_end(f, &s, &e), 0, "%s", e.text);
    cr_expect(!memcmp(got, p, n));
    cr_expect(!memcmp(&s, &want, sizeof s));
    cache_found_free(f);
    free(got);
}

Test(cache, gives_back_what_was_put_in)
{
    static const size_t sizes[] = { 1,       100,           (1 << 20) - 1,
                                    1 << 20, (1 << 20) + 1, 3 << 20 };
    uint8_t *p = malloc(3 << 20);
    struct cache *c = open_at("c");

    noise(p, 3 << 20);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        put(c, p, sizes[i], 70000);
        expect_back(c, p, sizes[i], 30000);
        expect_back(c, p, sizes[i], sizes[i]);
    }
    cr_expect_eq(counts(c).added, 6);
    cr_expect_eq(counts(c).found, 12);
    cr_expect_str_eq(told, "");
    cr_expect_str_eq(t_conv_list("c"), NAME);
    free(p);
    cache_close(c);
}

Test(cache, packs_what_gives_way)
{
    size_t n = (2 << 20) + 777;
    uint8_t *p = calloc(n, 1);
    struct cache *c = open_at("c");
    uint64_t seed = 2;

    for (size_t i = 0; i < n; i += 9)
        p[i] = (uint8_t)(256 * t_uniform(&seed));
    put(c, p, n, n);
    cr_expect_lt(t_conv_bytes("c"), n / 2);
    expect_back(c, p, n, 12345);
    free(p);
    cache_close(c);
}

Test(cache, skips_and_knows_its_place)
{
    uint8_t p[1000], two[2];
    struct cache *c = open_at("c");
    struct err e = ERR_INIT;
    struct cache_found *f;

    for (size_t i = 0; i < sizeof p; i++)
        p[i] = (uint8_t)(i * 7);
    put(c, p, sizeof p, 10);
    f = cache_find(c, key, sizeof p);
    cr_assert_eq(cache_read(f, NULL, 900, &e), 0);
    cr_expect_eq(cache_at(f), 900);
    cr_assert_eq(cache_read(f, two, 2, &e), 0);
    cr_expect(two[0] == p[900] && two[1] == p[901]);
    cache_found_free(f);
    cache_close(c);
}

/* ---- damage ---- */

static void expect_refused(struct cache *c, size_t bytes, const char *says)
{
    uint64_t before = counts(c).refused;

    told[0] = '\0';
    cr_expect_null(cache_find(c, key, bytes), "%s", says);
    cr_expect_eq(counts(c).refused, before + 1);
    cr_expect(strstr(told, NAME) && strstr(told, says), "'%s' lacks '%s'", told,
              says);
}

/* Overwrites one byte of the entry. */
static void poke(size_t at, uint8_t v)
{
    FILE *f = fopen(t_conv_path("c/" NAME), "r+b");

    cr_assert(f && !fseek(f, (long)at, SEEK_SET) && fputc(v, f) == v);
    fclose(f);
}

/* Makes the checksum right again. */
static void sum_up(void)
{
    struct err e = ERR_INIT;
    struct hash_state *h = hash_new(&e);
    size_t n;
    char *p = t_conv_text("c/" NAME, &n);
    struct hash128 sum;
    uint8_t b[16];

    hash_add(h, p + CACHE_HEADER, n - CACHE_HEADER);
    hash_add(h, p, 112);
    sum = hash_get(h);
    store_le64(b, sum.hi);
    store_le64(b + 8, sum.lo);
    for (size_t i = 0; i < 16; i++)
        poke(112 + i, b[i]);
    hash_free(h);
    mem_free(p);
}

Test(cache, takes_nothing_with_a_changed_bit)
{
    uint8_t p[300];
    struct cache *c = open_at("c");
    size_t n;
    char *all;

    noise(p, sizeof p);
    put(c, p, sizeof p, 300);
    all = t_conv_text("c/" NAME, &n);
    cr_assert_eq(n, CACHE_HEADER + 8 + sizeof p);
    for (size_t i = 0; i < n; i++) {
        poke(i, (uint8_t)(all[i] ^ (1 << i % 8)));
        expect_refused(c, sizeof p, "");
        poke(i, (uint8_t)all[i]);
    }
    expect_back(c, p, sizeof p, 300);
    mem_free(all);
    cache_close(c);
}

Test(cache, takes_nothing_that_is_cut_or_longer)
{
    uint8_t p[300];
    struct cache *c = open_at("c");
    const char *path = t_conv_path("c/" NAME);
    size_t n;
    char *all;

    noise(p, sizeof p);
    put(c, p, sizeof p, 300);
    all = t_conv_text("c/" NAME, &n);
    for (size_t i = 0; i < n; i++) {
        t_write(path, all, i);
        expect_refused(c, sizeof p, "");
    }
    all[n] = 0; /* the text's end */
    t_write(path, all, n + 1);
    expect_refused(c, sizeof p, "were written");
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0777), 0);
    expect_refused(c, sizeof p, "is a directory");
    mem_free(all);
    cache_close(c);
}

Test(cache, tells_what_is_wrong)
{
    uint8_t p[300];
    struct cache *c = open_at("c");

    noise(p, sizeof p);
    put(c, p, sizeof p, 300);
    expect_refused(c, sizeof p + 1, "the matrix has 301");
    poke(8, CACHE_VERSION + 1);
    sum_up();
    expect_refused(c, sizeof p, "has version 2.3, this program writes 1.3");
    poke(8, CACHE_VERSION);
    poke(12, QZ_RESULTS + 1);
    sum_up();
    expect_refused(c, sizeof p, "has version 1.4");
    put(c, p, sizeof p, 300); /* made anew over it */
    expect_back(c, p, sizeof p, 300);
    poke(16, 0xee);
    sum_up();
    expect_refused(c, sizeof p, "another matrix than its name says");
    put(c, p, sizeof p, 300);
    poke(CACHE_HEADER, 0);
    sum_up();
    expect_refused(c, sizeof p, "block of a wrong size");
    put(c, p, sizeof p, 300);
    poke(CACHE_HEADER + 8, p[0] ^ 1);
    expect_refused(c, sizeof p, "its checksum differs");
    t_write(t_conv_path("c/" NAME), "x", 1);
    expect_refused(c, sizeof p, "has 1 bytes, a header 128");
    cache_close(c);
}

Test(cache, notices_a_change_between_finding_and_reading)
{
    uint8_t p[300];
    struct cache *c = open_at("c");
    struct err e = ERR_INIT;
    struct qz_stats s;
    struct cache_found *f;

    noise(p, sizeof p);
    put(c, p, sizeof p, 300);
    f = cache_find(c, key, sizeof p);
    cr_assert_not_null(f);
    poke(CACHE_HEADER + 8 + 50, p[50] ^ 9);
    cr_assert_eq(cache_read(f, p, sizeof p, &e), 0);
    cr_expect_eq(cache_read_end(f, &s, &e), -1);
    cr_expect_eq((int)e.code, ERR_IO);
    cr_expect(strstr(e.text, "changed while it was read"), "%s", e.text);
    cache_found_free(f);
    cache_close(c);
}

/* ---- the folder ---- */

Test(cache, is_shared_by_several_writers)
{
    uint8_t p[2000] = { 1, 2, 3 };
    struct cache *a = open_at("c"), *b = open_at("c");
    struct cache_fresh *x = cache_begin(a, key, sizeof p);
    struct cache_fresh *y = cache_begin(b, key, sizeof p);
    struct qz_stats s = figures();

    cr_assert(x && y);
    cache_add(x, p, 1000);
    cache_add(y, p, 2000);
    cr_expect_null(cache_find(a, key, sizeof p), "half an entry is seen");
    cache_commit(y, &s);
    expect_back(a, p, sizeof p, 2000);
    cache_add(x, p + 1000, 1000);
    cache_commit(x, &s);
    expect_back(b, p, sizeof p, 2000);
    x = cache_begin(a, key, sizeof p);
    cache_add(x, p, 1);
    cache_drop(x);
    cr_expect_str_eq(t_conv_list("c"), NAME);
    cache_close(a);
    cache_close(b);
}

Test(cache, clears_what_killed_runs_left)
{
    static const char old[] = "c/00112233445566778899aabbccddeeff.1-2-3.part";
    static const char young[] = "c/00112233445566778899aabbccddeeff.4-5-6.part";
    struct timespec t[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
    struct cache *c = open_at("c");

    t_write_text(t_conv_path("c/mine.part"), "x");
    t_write_text(t_conv_path(old), "x");
    t_write_text(t_conv_path(young), "x");
    cr_assert_eq(utimensat(AT_FDCWD, t_conv_path(old), t, 0), 0);
    cr_assert_eq(utimensat(AT_FDCWD, t_conv_path("c/mine.part"), t, 0), 0);
    cache_close(c);
    c = open_at("c");
    cr_expect_str_eq(t_conv_list("c"),
                     "00112233445566778899aabbccddeeff.4-5-6.part mine.part");
    cache_close(c);
}

Test(cache, leaves_no_empty_folder)
{
    struct cache *c = open_at("x/y/c");

    cr_expect(io_is_dir(t_conv_path("x/y/c")));
    cache_close(c);
    cr_expect(!io_exists(t_conv_path("x")));
}

Test(cache, stops_where_nothing_can_be_written)
{
    struct rlimit small = { 100000, 100000 };
    size_t n = 3 << 20;
    uint8_t *p = malloc(n);
    struct cache *c = open_at("c");
    struct cache_fresh *f;
    struct qz_stats s = figures();

    noise(p, n);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    f = cache_begin(c, key, n);
    cr_assert_not_null(f);
    cache_add(f, p, n);
    cache_commit(f, &s);
    cr_expect(strstr(told, "nothing more is added to the cache"), "%s", told);
    cr_expect_str_eq(t_conv_list("c"), "");
    cr_expect_null(cache_begin(c, key, 10), "goes on");
    cr_expect_eq(counts(c).added, 0);
    free(p);
    cache_close(c);
}

Test(cache, leaves_the_package_its_room)
{
    struct err e = ERR_INIT;
    struct cache *c =
        cache_open(t_conv_path("c"), UINT64_C(1) << 60, &quiet, &e);

    cr_assert_not_null(c, "%s", e.text);
    told[0] = '\0';
    cr_expect_null(cache_begin(c, key, 10));
    cr_expect(strstr(told, "free, the matrix takes 10 B, the package "
                           "may need"),
              "%s", told);
    cache_close(c);
}

Test(cache, refuses_folders_that_cannot_be_used)
{
    struct err e = ERR_INIT;

    t_conv_put("file", "x");
    cr_expect_null(cache_open(t_conv_path("file"), 0, &quiet, &e));
    cr_expect_eq((int)e.code, ERR_USAGE);
    cr_expect(strstr(e.text, "is not a directory"), "%s", e.text);
    err_reset(&e);
    cr_expect_null(cache_open(t_conv_path("file/c"), 0, &quiet, &e));
    cr_expect_eq((int)e.code, ERR_USAGE, "%s", e.text);
    cr_expect_str_eq(t_conv_list(""), "file");
}

/* ---- the number of the results ---- */

enum { ROWS = 24, COLS = 40 };

struct sample {
    uint16_t values[ROWS * COLS];
    float importance[ROWS * COLS];
    struct qz_moment *moment;
};

static int sample_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                       struct err *e)
{
    const struct sample *s = cookie;

    (void)e;
    memcpy(dst, s->values + row * COLS, n * COLS * sizeof *dst);
    return 0;
}

static int sample_importance(void *cookie, uint64_t row, uint64_t n, float *dst,
                             struct err *e)
{
    const struct sample *s = cookie;

    (void)e;
    memcpy(dst, s->importance + row * COLS, n * COLS * sizeof *dst);
    return 0;
}

static int sample_moment(void *cookie, uint64_t row, uint64_t col, uint64_t *n,
                         const struct qz_moment **m, struct err *e)
{
    const struct sample *s = cookie;

    (void)row;
    (void)col;
    (void)e;
    *n = COLS;
    *m = s->moment;
    return 0;
}

static void add_palette(struct hash_state *h, const struct qz_source *src,
                        int bits, uint64_t group)
{
    struct err e = ERR_INIT;
    struct qz_palette *p = qz_palette_new(src, bits, group, NULL, &e);
    uint8_t room[ROWS * COLS + ROWS * 512];
    size_t n, m;

    cr_assert_not_null(p, "%s", e.text);
    n = (size_t)qz_palette_index_bytes(p);
    m = 2 * (size_t)qz_palette_table_elems(p);
    cr_assert(!qz_palette_read_indices(p, 0, room, n, &e) &&
              !qz_palette_read_tables(p, 0, room + n, m, &e));
    hash_add(h, room, n + m);
    qz_palette_free(p);
}

static void add_linear(struct hash_state *h, const struct qz_source *src,
                       int bits, uint64_t block)
{
    struct err e = ERR_INIT;
    struct qz_linear *l = qz_linear_new(src, bits, block, NULL, &e);
    uint8_t room[ROWS * COLS * 3];
    size_t n, m;

    cr_assert_not_null(l, "%s", e.text);
    n = (size_t)qz_linear_value_bytes(l);
    m = 2 * (size_t)qz_linear_scales(l);
    cr_assert(!qz_linear_read_values(l, 0, room, n, &e) &&
              !qz_linear_read_scales(l, 0, room + n, m, &e));
    hash_add(h, room, n + m);
    qz_linear_free(l);
}

static void make_sample(struct sample *s)
{
    float *h = mem_alloc(COLS * COLS, sizeof *h, &(struct err)ERR_INIT);
    float *rest = mem_alloc(COLS * COLS, sizeof *h, &(struct err)ERR_INIT);
    uint64_t seed = 5;

    for (size_t i = 0; i < ROWS * COLS; i++) {
        s->values[i] = f32_to_bf16((float)(0.05 * t_gauss(&seed)));
        s->importance[i] = (float)(0.1 + t_uniform(&seed));
    }
    for (size_t i = 0; i < COLS; i++)
        for (size_t k = 0; k < COLS; k++)
            h[i * COLS + k] =
                i == k ? 2 + (float)(i % 7) : 1.0f / (float)(i + k + 2);
    for (size_t i = 0; i < COLS; i++)
        for (size_t k = 0; k < COLS; k++)
            rest[i * COLS + k] =
                i == k ? 1 + (float)(i % 5) : -0.5f / (float)(i + k + 2);
    s->moment = qz_moment_new(h, rest, COLS, NULL, &(struct err)ERR_INIT);
    cr_assert_not_null(s->moment);
}

/* Entries outlive this program. Whoever changes what is computed from the same
 * source raises QZ_RESULTS, and notes the new hash here. */
Test(cache, results_have_a_number)
{
    static const int widths[] = { 1, 2, 3, 4, 6, 8 };
    static struct sample s;
    struct err e = ERR_INIT;
    struct hash_state *h = hash_new(&e);
    struct qz_source src = { .rows = ROWS,
                             .cols = COLS,
                             .format = QZ_BF16,
                             .read_rows = sample_rows,
                             .cookie = &s };
    struct hash128 sum;

    make_sample(&s);
    for (int guided = 0; guided < 3; guided++) {
        src.read_importance = guided ? sample_importance : NULL;
        src.moment = guided == 2 ? sample_moment : NULL;
        for (size_t w = 0; w < 6; w++) {
            add_palette(h, &src, widths[w], 8);
            add_palette(h, &src, widths[w], ROWS);
        }
        for (int bits = 4; bits <= 8; bits += 4) {
            add_linear(h, &src, bits, 0);
            add_linear(h, &src, bits, 10);
            add_linear(h, &src, bits, COLS);
        }
    }
    sum = hash_get(h);
    cr_expect(QZ_RESULTS == 3 && sum.hi == 0xa2986ac8e03fe69b &&
                  sum.lo == 0xe77f4b5af7fd22f4,
              "QZ_RESULTS %d has the hash %016" PRIx64 " %016" PRIx64,
              QZ_RESULTS, sum.hi, sum.lo);
    qz_moment_free(s.moment);
    hash_free(h);
}

/* ---- conversions ---- */

static const char *convert(struct cv_options o, const char *output,
                           const char *cache)
{
    char dir[600];

    snprintf(dir, sizeof dir, "%s", t_conv_path("cache"));
    o.cache = cache ? dir : NULL;
    o.log = &quiet;
    told[0] = '\0';
    t_conv_run(&o, output);
    return told;
}

static void expect_counts(const char *line, unsigned found, unsigned added)
{
    unsigned f = 0, a = 0, r = 0;
    const char *p = strstr(line, "': ");

    cr_assert_not_null(p, "%s", line);
    cr_assert_eq(sscanf(p, "': %u matrices found", &f), 1);
    p = strstr(p, "), ");
    cr_assert(p && sscanf(p, "), %u added, %u refused", &a, &r) == 2);
    cr_expect(f == found && a == added && r == 0, "%s: %u and %u expected",
              line, found, added);
}

static void expect_same(const char *a, const char *b)
{
    const char *d = t_conv_differ(a, b, NULL);

    cr_expect(!d[0], "%s and %s differ in %s", a, b, d);
}

static void model(void)
{
    struct t_model m = t_model_tiny("qwen3");

    t_model_write(&m, "m");
}

static char tokens_path[600];

static const char *tokens(const char *text)
{
    t_conv_put("tokens", text);
    snprintf(tokens_path, sizeof tokens_path, "%s", t_conv_path("tokens"));
    return tokens_path;
}

#define TOKENS "1 5 9 3 60 2 33 41\n8 7 6 5 4 3 2 1\n"

/* 2 layers of 7 matrices, and the head in 16 parts. */
#define LAYERS 14u
#define HEAD 16u

/* All ways to make a matrix, each with a number. */
static struct cv_options way(int i)
{
    struct cv_options o = t_conv_options("m");

    switch (i) {
    case 0: break;
    case 1: o.lut_ffn = o.lut_head = (struct cv_lut){ 6, 8, false }; break;
    case 2: o.lut_ffn = o.lut_head = (struct cv_lut){ 4, 0, false }; break;
    case 3: o.lut_ffn = o.lut_head = (struct cv_lut){ 8, CV_ROW, true }; break;
    case 4: o.lut_ffn = o.lut_head = (struct cv_lut){ 4, 16, true }; break;
    case 5: o.calib = tokens(TOKENS); break;
    case 6:
        o.calib = tokens(TOKENS);
        o.gptq = true;
        break;
    case 7: o.calib = tokens("1 5 9 3 60 2 33 41\n8 7 6 5 4 3 2 2\n"); break;
    case 8:
        o.scale_given = true;
        o.stream_exp = -2;
        break;
    default: cr_assert_fail("way %d", i);
    }
    return o;
}
#define WAYS 9

Test(cache, conversions_give_the_same_bytes)
{
    model();
    for (int i = 0; i < WAYS; i++) {
        char a[16], b[16], c[16];
        unsigned found;

        snprintf(a, sizeof a, "plain%d", i);
        snprintf(b, sizeof b, "first%d", i);
        snprintf(c, sizeof c, "second%d", i);
        convert(way(i), a, NULL);
        /* Parts of the head have fewer rows than a group; a scaled stream
         * changes two matrices of each layer. */
        found = i == 2 ? HEAD : i == 8 ? LAYERS + HEAD - 4 : 0;
        expect_counts(convert(way(i), b, "cache"), found,
                      LAYERS + HEAD - found);
        expect_same(a, b);
        expect_counts(convert(way(i), c, "cache"), LAYERS + HEAD, 0);
        expect_same(a, c);
    }
}

Test(cache, context_threads_and_names_are_no_part_of_a_key)
{
    struct err e = ERR_INIT;
    struct cv_options o;

    model();
    expect_counts(convert(way(0), "a", "cache"), 0, LAYERS + HEAD);
    o = way(0);
    o.ctx = 128;
    o.prefix = "other";
    o.par = par_new(3, &e);
    expect_counts(convert(o, "b", "cache"), LAYERS + HEAD, 0);
    par_free(o.par);
    cr_assert_eq(rename(t_conv_path("m"), t_conv_path("m2")), 0);
    o = t_conv_options("m2");
    o.lut_head.bits = 6;
    expect_counts(convert(o, "c", "cache"), LAYERS, HEAD);
}

Test(cache, one_changed_weight_makes_one_matrix_anew)
{
    model();
    expect_counts(convert(way(0), "a", "cache"), 0, LAYERS + HEAD);
    t_model_poke("m", "model.layers.1.mlp.up_proj.weight", 77, 0.03125f);
    expect_counts(convert(way(0), "b", "cache"), LAYERS + HEAD - 1, 1);
    convert(way(0), "plain", NULL);
    expect_same("b", "plain");
}

/* Two tokens whose embeddings differ in signs alone: the squares of the first
 * layer's inputs are the same, their products are not. */
Test(cache, moments_count_beside_their_diagonals)
{
    static const char *const text[] = { "7 7 7 7 7 7 7 7\n",
                                        "9 9 9 9 9 9 9 9\n" };
    struct t_model m = t_model_tiny("qwen3");
    struct cv_options o;

    t_model_write(&m, "m");
    for (uint64_t i = 0; i < m.hidden; i++) {
        float v = 0.125f * (float)(1 + i % 5);

        t_model_poke("m", "model.embed_tokens.weight", 7 * m.hidden + i, v);
        t_model_poke("m", "model.embed_tokens.weight", 9 * m.hidden + i,
                     i % 2 ? -v : v);
    }
    o = t_conv_options("m");
    /* By squares alone q, k and v of the first layer are the same. */
    o.calib = tokens(text[0]);
    expect_counts(convert(o, "a", "cache"), 0, LAYERS + HEAD);
    o.calib = tokens(text[1]);
    expect_counts(convert(o, "b", "cache"), 3, LAYERS + HEAD - 3);
    o.gptq = true;
    o.calib = tokens(text[0]);
    expect_counts(convert(o, "c", "cache"), 0, LAYERS + HEAD);
    o.calib = tokens(text[1]);
    expect_counts(convert(o, "d", "cache"), 0, LAYERS + HEAD);
    convert(o, "plain", NULL);
    expect_same("d", "plain");
}

Test(cache, damaged_entries_are_made_anew)
{
    struct err e = ERR_INIT;
    char **names, path[700], *text;
    size_t n, len;

    model();
    convert(way(0), "a", "cache");
    cr_assert_eq(io_list(t_conv_path("cache"), &names, &n, &e), 0);
    for (size_t i = 0; i < n; i += 3) {
        snprintf(path, sizeof path, "cache/%s", names[i]);
        text = t_conv_text(path, &len);
        text[len - 1] ^= 4;
        t_write(t_conv_path(path), text, i % 2 ? len / 2 : len);
        mem_free(text);
    }
    convert(way(0), "b", "cache");
    cr_expect(strstr(told, "20 matrices found") &&
                  strstr(told, "10 added, 10 refused") &&
                  strstr(told, names[0]) && strstr(told, names[27]),
              "%s", told);
    expect_same("a", "b");
    expect_counts(convert(way(0), "c", "cache"), LAYERS + HEAD, 0);
    expect_same("a", "c");
    io_list_free(names, n);
}

Test(cache, budgets_find_every_width_that_was_tried)
{
    struct cv_options o;

    model();
    o = way(0);
    o.budget = 5;
    convert(o, "plain", NULL);
    convert(o, "a", "cache");
    expect_same("plain", "a");
    /* three widths each, and the chosen ones once more */
    expect_counts(convert(o, "b", "cache"), 4 * (LAYERS + HEAD), 0);
    expect_same("plain", "b");
}
