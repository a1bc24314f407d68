/*
 * Synthetic checkpoints: shapes and counts of the published models, the same
 * bytes on every run, files that a reader takes, weights in a sane range.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "converter/base/buf.h"
#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/synth.h"
#include "safetensors/st.h"
#include "t_st.h"

TestSuite(synth, .fini = t_st_clean);

static void make(const char *arch, const char *like, uint64_t seed,
                 const char *name)
{
    struct err e = ERR_INIT;

    cr_assert_eq(synth_checkpoint(arch, like, seed, t_st_path(name), NULL, &e),
                 0, "%s", e.text);
}

static struct st *open_ok(const char *name)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(t_st_path(name), &e);

    cr_assert_not_null(s, "%s", e.text);
    return s;
}

static uint64_t elements(const struct st *s)
{
    uint64_t n = 0;

    for (size_t i = 0; i < st_count(s); i++)
        n += st_at(s, i)->elems;
    return n;
}

static const struct {
    const char *arch, *like;
    uint64_t parameters;
} published[] = {
    { "qwen3", "qwen3-0.6b", 596049920 },
    { "qwen3", "qwen3-1.7b", 1720574976 },
    { "qwen3", "qwen3-4b", 4022468096 },
    { "qwen3", "qwen3-8b", 8190735360 },
    { "qwen3", "qwen3-14b", 14768307200 },
    { "qwen3", "qwen3-32b", 32762123264 },
    { "llama", "llama-3.2-1b", 1235814400 },
    { "llama", "llama-3.2-3b", 3212749824 },
    { "llama", "llama-3.1-8b", 8030261248 },
    { "llama", "smollm2-135m", 134515008 },
    { "qwen3_5", "qwen3.5-0.8b", 752393024 },
    { "qwen3_5", "qwen3.5-2b", 1881825088 },
    { "qwen3_5", "qwen3.5-4b", 4205751296 },
    { "qwen3_5", "qwen3.5-9b", 8953803264 },
    { "qwen3_5", "qwen3.5-27b", 26895998464 },
    { "qwen3_5_moe", "qwen3.5-35b-a3b", 34660610688 },
    { "qwen3_5_moe", "qwen3.5-122b-a10b", 122111526912 },
    { "qwen3_5_moe", "qwen3.5-397b-a17b", 396346350336 },
    { "gemma3", "gemma3-270m", 268098176 },
    { "gemma4", "gemma4-e2b", 4628569379 },
    { "gemma4", "gemma4-e4b", 7463013418 },
};

Test(synth, published_counts)
{
    size_t found = 0, tiny = 0;
    struct synth_info m;

    for (size_t i = 0; synth_model_at(i, &m); i++) {
        if (!strcmp(m.like, "tiny")) {
            cr_expect_lt(m.file_bytes, 2000000);
            tiny++;
        }
        for (size_t k = 0; k < sizeof published / sizeof published[0]; k++) {
            if (strcmp(published[k].like, m.like) != 0)
                continue;
            cr_expect_str_eq(m.arch, published[k].arch);
            cr_expect_eq(m.parameters, published[k].parameters, "%s: %llu",
                         m.like, (unsigned long long)m.parameters);
            found++;
        }
        /* the published file holds 2 x (model + a copy of the head) */
        if (!strcmp(m.like, "qwen3-0.6b"))
            cr_expect_eq(m.file_bytes, 1503264768);
    }
    cr_expect_eq(found, sizeof published / sizeof published[0]);
    cr_expect_eq(tiny, 6);
}

Test(synth, unknown_names)
{
    struct err e = ERR_INIT;

    cr_expect_eq(synth_checkpoint("qwen3", "qwen9", 1, t_st_path("x"), NULL,
                                  &e),
                 -1);
    cr_expect_eq((int)e.code, (int)ERR_USAGE);
    cr_expect(strstr(e.text, "'qwen9'") && strstr(e.text, "tiny, odd, ") &&
                  !strstr(e.text, "smollm2"),
              "%s", e.text);
    err_reset(&e);
    cr_expect_eq(synth_checkpoint("lama", "tiny", 1, t_st_path("x"), NULL, &e),
                 -1);
    cr_expect_eq((int)e.code, (int)ERR_USAGE);
    cr_expect(strstr(e.text, "'lama'") && strstr(e.text, "llama"), "%s",
              e.text);
    cr_expect(!io_exists(t_st_path("x")));
}

/* All files of two directories are equal. */
static bool equal_dirs(const char *a, const char *b, bool expect_same)
{
    struct err e = ERR_INIT;
    char **names;
    size_t n;
    bool same = true;

    cr_assert_eq(io_list(t_st_path(a), &names, &n, &e), 0, "%s", e.text);
    cr_expect_geq(n, 5);
    for (size_t i = 0; i < n; i++) {
        struct buf x = BUF_INIT, y = BUF_INIT;
        char path[64];
        snprintf(path, sizeof path, "%s/%s", a, names[i]);
        cr_assert_eq(io_read_file(t_st_path(path), 1 << 28, &x, &e), 0, "%s",
                     e.text);
        snprintf(path, sizeof path, "%s/%s", b, names[i]);
        cr_assert_eq(io_read_file(t_st_path(path), 1 << 28, &y, &e), 0, "%s",
                     e.text);
        if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0) {
            same = false;
            cr_expect(!expect_same, "%s differs", names[i]);
        }
        buf_release(&x);
        buf_release(&y);
    }
    io_list_free(names, n);
    return same;
}

Test(synth, same_bytes_twice)
{
    make("qwen3", "tiny", 1, "a");
    make("qwen3", "tiny", 1, "b");
    make("qwen3", "tiny", 2, "c");
    equal_dirs("a", "b", true);
    cr_expect(!equal_dirs("a", "c", false));
}

/* The very bytes, so that a change of machine or compiler shows. */
Test(synth, known_values)
{
    struct err e = ERR_INIT;
    unsigned char got[16];
    struct st *s;

    make("qwen3", "tiny", 1, "a");
    s = open_ok("a");
    cr_assert_eq(st_read_bytes(s, st_find(s, "model.embed_tokens.weight"), 0,
                               got, 16, &e),
                 0);
    cr_expect_arr_eq(got,
                     ((unsigned char[]){ 0x6a, 0x3e, 0x5f, 0x3e, 0xdc, 0xbd,
                                         0x77, 0x3d, 0xfc, 0x3d, 0xea, 0x3d,
                                         0xf1, 0xbd, 0xc8, 0xbd }),
                     16);
    st_close(s);
}

static void first_bytes(const struct st *s, const char *name, void *dst,
                        size_t n)
{
    struct err e = ERR_INIT;

    cr_assert_not_null(st_find(s, name), "%s", name);
    cr_assert_eq(st_read_bytes(s, st_find(s, name), 0, dst, n, &e), 0);
}

/* Uniform values, float32, rows that share: the other ways to draw. */
Test(synth, known_hybrid_values)
{
    unsigned char got[8];
    struct st *s;

    make("qwen3_5", "tiny", 1, "a");
    s = open_ok("a");
    first_bytes(s, "model.language_model.layers.0.linear_attn.A_log", got, 8);
    cr_expect_arr_eq(got,
                     ((unsigned char[]){ 0x08, 0xb9, 0x30, 0x3f, 0x4d, 0x8b,
                                         0x54, 0x3f }),
                     8);
    first_bytes(s, "model.language_model.layers.0.input_layernorm.weight", got,
                8);
    cr_expect_arr_eq(got,
                     ((unsigned char[]){ 0xb9, 0x3b, 0x50, 0x3e, 0x8f, 0xbd,
                                         0x53, 0xbe }),
                     8);
    st_close(s);
    make("qwen3_5_moe", "odd", 1, "b");
    s = open_ok("b");
    first_bytes(s, "model.layers.0.mlp.experts.3.up_proj.weight", got, 8);
    cr_expect_arr_eq(got,
                     ((unsigned char[]){ 0x94, 0xf3, 0xa8, 0xbd, 0x66, 0x76,
                                         0x85, 0xbd }),
                     8);
    st_close(s);
}

/* The published layout: outer config, a few tensors in F32, others that a
 * text model skips; and the layout of text-only saves. */
Test(synth, hybrid_files)
{
    static const struct {
        const char *arch, *like, *prefix;
        size_t f32, spare;
    } want[] = {
        { "qwen3_5", "tiny", "model.language_model.", 6, 22 },
        { "qwen3_5", "odd", "model.", SIZE_MAX, 0 },
        { "qwen3_5_moe", "tiny", "model.language_model.", 6, 26 },
        { "qwen3_5_moe", "odd", "model.", SIZE_MAX, 0 },
    };

    for (size_t k = 0; k < sizeof want / sizeof want[0]; k++) {
        size_t f32 = 0, spare = 0;
        char dir[64], name[96];
        struct st *s;

        snprintf(dir, sizeof dir, "%s-%s", want[k].arch, want[k].like);
        make(want[k].arch, want[k].like, 3, dir);
        s = open_ok(dir);
        snprintf(name, sizeof name, "%snorm.weight", want[k].prefix);
        cr_expect_not_null(st_find(s, name), "%s", name);
        for (size_t i = 0; i < st_count(s); i++) {
            f32 += st_at(s, i)->dtype == ST_F32;
            spare += !strncmp(st_at(s, i)->name, "mtp.", 4) ||
                     !strncmp(st_at(s, i)->name, "model.visual.", 13);
        }
        cr_expect_eq(f32, want[k].f32 == SIZE_MAX ? st_count(s) : want[k].f32,
                     "%s: %zu in F32", dir, f32);
        cr_expect_eq(spare, want[k].spare, "%s: %zu spare", dir, spare);
        st_close(s);
    }
}

/* Re-saved Gemma 4 lacks tensors that nobody reads and is else the same. */
Test(synth, gemma_saved_again)
{
    struct err e = ERR_INIT;
    size_t lacks = 0;
    struct st *all, *few;

    make("gemma4", "tiny", 2, "a");
    make("gemma4", "tiny-resaved", 2, "b");
    all = open_ok("a");
    few = open_ok("b");
    for (size_t i = 0; i < st_count(all); i++) {
        const struct st_tensor *t = st_at(all, i);
        const struct st_tensor *u = st_find(few, t->name);
        unsigned char x[64], y[64];
        size_t n = t->end - t->begin < 64 ? (size_t)(t->end - t->begin) : 64;

        if (!u) {
            cr_expect(strstr(t->name, ".self_attn.k_") ||
                          strstr(t->name, ".self_attn.v_"),
                      "%s", t->name);
            lacks++;
            continue;
        }
        cr_assert_eq(st_read_bytes(all, t, 0, x, n, &e), 0);
        cr_assert_eq(st_read_bytes(few, u, 0, y, n, &e), 0);
        cr_expect_arr_eq(x, y, n, "%s", t->name);
    }
    cr_expect_eq(lacks, 15);
    cr_expect_eq(st_count(all), st_count(few) + lacks);
    st_close(all);
    st_close(few);
}

Test(synth, other_depth_and_breadth)
{
    struct synth_options o = { .arch = "qwen3_5_moe",
                               .like = "tiny",
                               .seed = 1,
                               .layers = 7,
                               .experts = 5 };
    struct err e = ERR_INIT;
    const struct st_tensor *t;
    struct st *s;

    cr_assert_eq(synth_make(&o, t_st_path("x"), &e), 0, "%s", e.text);
    s = open_ok("x");
    t = st_find(s, "model.language_model.layers.6.mlp.experts.down_proj");
    cr_assert_not_null(t);
    cr_expect_eq(t->dims[0], 5);
    cr_expect_null(st_find(s, "model.language_model.layers.7.mlp.gate.weight"));
    st_close(s);
    o.layers = 3; /* one attention layer at least */
    cr_expect_eq(synth_make(&o, t_st_path("y"), &e), -1);
    cr_expect_eq((int)e.code, (int)ERR_USAGE);
    cr_expect(strstr(e.text, "between 4 and 256"), "%s", e.text);
    err_reset(&e);
    o.layers = 0;
    o.experts = 3;
    cr_expect_eq(synth_make(&o, t_st_path("y"), &e), -1);
    cr_expect(strstr(e.text, "3 experts: between the 4"), "%s", e.text);
    err_reset(&e);
    o.arch = "qwen3_5";
    cr_expect_eq(synth_make(&o, t_st_path("y"), &e), -1);
    cr_expect(strstr(e.text, "qwen3_5 has no experts"), "%s", e.text);
    cr_expect(!io_exists(t_st_path("y")));
}

Test(synth, tiny_files)
{
    static const char *const like[] = { "tiny", "odd" };
    struct err e = ERR_INIT;

    for (int k = 0; k < 2; k++) {
        struct synth_info m = { 0, 0, 0, 0 };
        const struct js_node *root, *tmpl;
        const char *text = "";
        char path[64];
        struct js_doc *doc;
        struct st *s;
        make("qwen3", like[k], 7, like[k]);
        for (size_t i = 0; synth_model_at(i, &m); i++)
            if (!strcmp(m.arch, "qwen3") && !strcmp(m.like, like[k]))
                break;
        s = open_ok(like[k]);
        cr_expect_eq(elements(s), m.parameters);
        cr_expect_eq(st_data_bytes(s), m.file_bytes);
        cr_expect_eq(st_find(s, "lm_head.weight") != NULL, k == 1);
        st_close(s);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", like[k]);
        doc = js_read_file(t_st_path(path), 1 << 20, &e);
        cr_assert_not_null(doc, "%s", e.text);
        tmpl = js_get(js_root(doc), "chat_template");
        cr_expect(js_string(tmpl, &text) && strstr(text, "<|im_start|>"));
        js_free(doc);
        snprintf(path, sizeof path, "%s/tokenizer.json", like[k]);
        doc = js_read_file(t_st_path(path), 1 << 20, &e);
        cr_assert_not_null(doc, "%s", e.text);
        root = js_root(doc);
        cr_expect_eq(js_count(js_get(js_get(root, "model"), "vocab")), 256);
        cr_expect_eq(js_count(js_get(root, "added_tokens")), 3);
        js_free(doc);
    }
}

static void check_weights(const struct st *s, const char *name, double mean,
                          double sigma)
{
    const struct st_tensor *t = st_find(s, name);
    struct err e = ERR_INIT;
    double sum = 0, square = 0, top = 0, n;
    float *f;

    cr_assert_not_null(t, "%s", name);
    n = (double)t->elems;
    f = malloc((size_t)t->elems * sizeof *f);
    cr_assert_eq(st_read_f32(s, t, 0, (size_t)t->elems, f, &e), 0);
    for (size_t i = 0; i < t->elems; i++) {
        double d = (double)f[i] - mean;
        sum += d;
        square += d * d;
        top = fabs(d) > top ? fabs(d) : top;
    }
    cr_expect_lt(fabs(sum / n), 5 * sigma / sqrt(n) + 1e-3, "%s: mean %g", name,
                 sum / n);
    cr_expect(sqrt(square / n) > 0.8 * sigma && sqrt(square / n) < 1.3 * sigma,
              "%s: deviation %g, want %g", name, sqrt(square / n), sigma);
    cr_expect_lt(top, 40 * sigma);
    free(f);
}

Test(synth, sane_weights)
{
    struct st *s;

    make("llama", "smollm2-135m", 3, "m");
    s = open_ok("m");
    cr_expect_eq(st_shard_count(s), 1);
    cr_expect_eq(elements(s), 134515008);
    cr_expect_eq(st_count(s), 272);
    check_weights(s, "model.embed_tokens.weight", 0, 2.5 / sqrt(576));
    check_weights(s, "model.layers.0.mlp.gate_proj.weight", 0, 1 / sqrt(576));
    check_weights(s, "model.layers.29.mlp.down_proj.weight", 0,
                  sqrt(6.0 / 30) / sqrt(1536));
    check_weights(s, "model.norm.weight", 1, 0.15);
    st_close(s);
}

/* Values of a hybrid model as trained ones have them. */
Test(synth, sane_hybrid_weights)
{
    static const char at[] = "model.language_model.layers.0.";
    static const struct {
        const char *name;
        double mean, sigma;
    } want[] = {
        { "input_layernorm.weight", 0, 0.15 },
        { "linear_attn.in_proj_qkv.weight", 0, 0.088 },
        { "linear_attn.conv1d.weight", 0, 0.5 },
        { "mlp.experts.gate_up_proj", 0, 0.102 },
        { "mlp.gate.weight", 0, 0.816 },
    };
    struct st *s;
    char name[96];

    make("qwen3_5", "tiny", 3, "a");
    make("qwen3_5_moe", "tiny", 3, "b");
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        s = open_ok(i < 3 ? "a" : "b");
        snprintf(name, sizeof name, "%s%s", at, want[i].name);
        check_weights(s, name, want[i].mean, want[i].sigma);
        st_close(s);
    }
}

/* Of a norm's weights, whose deviation is at most 1.25 x 0.15. */
static void check_mean(const struct st *s, const char *name, double want)
{
    const struct st_tensor *t = st_find(s, name);
    struct err e = ERR_INIT;
    double sum = 0;
    float *f;

    cr_assert(t && t->rank == 1, "%s", name);
    f = malloc((size_t)t->elems * sizeof *f);
    cr_assert_eq(st_read_f32(s, t, 0, (size_t)t->elems, f, &e), 0);
    for (size_t i = 0; i < t->elems; i++)
        sum += (double)f[i];
    cr_expect_float_eq(sum / (double)t->elems, want, 0.1, "%s: mean %g", name,
                       sum / (double)t->elems);
    free(f);
}

/* What makes Gemma's weights differ from others'. */
Test(synth, sane_gemma_weights)
{
    struct st *s;

    make("gemma4", "tiny", 3, "a");
    s = open_ok("a");
    check_weights(s, "model.language_model.embed_tokens.weight", 0, 0.0125);
    check_weights(s, "model.language_model.embed_tokens_per_layer.weight", 0,
                  0.25);
    check_mean(s, "model.language_model.norm.weight", 25);
    st_close(s);
    make("gemma3", "tiny", 3, "b");
    s = open_ok("b");
    check_mean(s, "model.layers.0.input_layernorm.weight", 0);
    check_mean(s, "model.norm.weight", 24);
    st_close(s);
}

Test(synth, shards)
{
    struct synth_options o = { .arch = "qwen3",
                               .like = "odd",
                               .seed = 5,
                               .single_max = 1000,
                               .shard_max = 700000 };
    struct err e = ERR_INIT;
    struct st *one, *many;

    make("qwen3", "odd", 5, "one");
    cr_assert_eq(synth_make(&o, t_st_path("many"), &e), 0, "%s", e.text);
    one = open_ok("one");
    many = open_ok("many");
    cr_expect_gt(st_shard_count(many), 3);
    cr_expect_eq(st_count(one), st_count(many));
    cr_expect_eq(st_note_count(many), 0);
    cr_expect_eq(st_missing_count(many), 0);
    for (size_t i = 0; i < st_count(one); i++) {
        const struct st_tensor *a = st_at(one, i), *b = st_at(many, i);
        size_t n = (size_t)(a->end - a->begin);
        unsigned char *x = malloc(n), *y = malloc(n);
        cr_assert_str_eq(a->name, b->name);
        cr_assert_eq(n, b->end - b->begin);
        cr_assert_eq(st_read_bytes(one, a, 0, x, n, &e), 0);
        cr_assert_eq(st_read_bytes(many, b, 0, y, n, &e), 0);
        cr_expect(!memcmp(x, y, n), "%s", a->name);
        free(x);
        free(y);
    }
    for (size_t i = 0; i < st_shard_count(many); i++) {
        struct stat st;
        cr_assert_eq(stat(st_shard_path(many, (int)i), &st), 0);
        cr_expect_lt(st.st_size, 710000);
    }
    st_close(one);
    st_close(many);
}

static int cancel(void *cookie)
{
    return ++*(int *)cookie > 3;
}

Test(synth, cancelled_leaves_nothing)
{
    struct err e = ERR_INIT;
    int asked = 0;
    struct log log = { .level = LOG_ERROR,
                       .cookie = &asked,
                       .cancelled = cancel };
    char **names;
    size_t n;

    cr_expect_eq(synth_checkpoint("llama", "tiny", 1, t_st_path("x"), &log, &e),
                 -1);
    cr_expect_eq((int)e.code, (int)ERR_CANCELLED);
    err_reset(&e);
    cr_assert_eq(io_list(t_st_dir(), &names, &n, &e), 0);
    cr_expect_eq(n, 0);
    io_list_free(names, n);
}

Test(synth, never_over_a_directory)
{
    struct err e = ERR_INIT;

    make("llama", "tiny", 1, "x");
    cr_expect_eq(synth_checkpoint("llama", "tiny", 1, t_st_path("x"), NULL, &e),
                 -1);
    cr_expect_not_null(strstr(e.text, "exist"), "%s", e.text);
}

/* Allocations on the way fail: an error, nothing left behind. */
Test(synth, allocation_failures)
{
    struct err e = ERR_INIT;
    int ok = 0;

    for (long n = 0; n < 3000 && !ok; n += 1 + n / 4) {
        err_reset(&e);
        mem_fail_at(n, false);
        ok = !synth_checkpoint("llama", "tiny", 1, t_st_path("x"), NULL, &e);
        mem_fail_at(-1, false);
        cr_assert(ok || e.code == ERR_NOMEM, "%ld: %s", n, e.text);
        cr_assert_eq(io_exists(t_st_path("x")), ok, "%ld", n);
    }
    cr_expect(ok);
}
