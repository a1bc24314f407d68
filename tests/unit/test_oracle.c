/*
 * The reference's context on small models made up here, against a plain
 * forward pass in double: passes and blocks crossed, biases, results asked
 * for, errors, budgets, memory that runs out.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"
#include "models/oracle.h"

#define H 12
#define I 20
#define V 37
#define L 2
#define NQ 6
#define NKV 2
#define D 6
#define MAXN 1100

static struct err err;

/* ---- weights: a function of name, row and column ---- */

struct weights_fake {
    const char *scaled; /* tensor that is multiplied by `scale` */
    double scale;
    const char *broken; /* tensor whose rows from `bad_row` on fail */
    uint64_t bad_row;
    int calls, row_calls; /* of all tensors; of the embedding */
};

static double value(const struct weights_fake *f, const char *name,
                    uint64_t row, uint64_t col)
{
    uint64_t h = 14695981039346656037u ^ (row * 1000003 + col);
    double v;

    for (const char *s = name; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    v = (double)(h >> 40) / (1 << 24) - 0.5;
    if (strstr(name, "norm"))
        v = 1 + v;
    if (f->scaled && !strcmp(f->scaled, name))
        v *= f->scale;
    return (double)(float)v;
}

static uint64_t columns(const char *name)
{
    if (strstr(name, "q_norm") || strstr(name, "k_norm"))
        return D;
    if (strstr(name, "q_proj.bias"))
        return NQ * D;
    if (strstr(name, "k_proj.bias") || strstr(name, "v_proj.bias"))
        return NKV * D;
    if (strstr(name, "gate_proj.bias") || strstr(name, "up_proj.bias") ||
        strstr(name, "down_proj.weight"))
        return I;
    return strstr(name, "o_proj.weight") ? NQ * D : H;
}

static int fake_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                     float *dst, struct err *e)
{
    struct weights_fake *f = cookie;
    uint64_t cols = columns(name);

    f->calls++;
    f->row_calls += !strcmp(name, "embed_tokens.weight");
    if (f->broken && !strcmp(f->broken, name) && row + n > f->bad_row)
        return err_set(e, ERR_IO, "row %d of '%s' is unreadable",
                       (int)f->bad_row, name);
    for (uint64_t i = 0; i < n * cols; i++)
        dst[i] = (float)value(f, name, row + i / cols, i % cols);
    return 0;
}

static struct hparams model(const char *family, bool biases)
{
    return (struct hparams){ .arch = model_arch_by_type(family),
                             .model_type = "made up",
                             .vocab = V,
                             .hidden = H,
                             .intermediate = I,
                             .layers = L,
                             .heads = NQ,
                             .kv_heads = NKV,
                             .head_dim = D,
                             .rms_eps = 1e-3,
                             .attention_bias = biases,
                             .mlp_bias = biases,
                             .rope = { .type = ROPE_DEFAULT,
                                       .theta = 1000,
                                       .dim = D,
                                       .attention_scaling = 1.25 } };
}

static struct oracle *new_oracle(const struct hparams *hp,
                                 struct weights_fake *f, struct par *par,
                                 uint64_t keep, int64_t positions)
{
    struct tensor_source src = { fake_rows, f };
    struct oracle_options opt = { .par = par,
                                  .keep_bytes = keep,
                                  .max_positions = positions };
    struct oracle *o = oracle_new(hp, &src, &opt, &err);

    cr_assert_not_null(o, "%s", err.text);
    return o;
}

static const int32_t *some_tokens(void)
{
    static int32_t t[MAXN];

    for (int i = 0; i < MAXN; i++)
        t[i] = (i * i * 7 + 3 * i + 5) % V;
    return t;
}

/* ---- the same model in double, one token after the other ---- */

static double key[L][MAXN][NKV * D], val[L][MAXN][NKV * D];

static void times(const struct weights_fake *f, int layer, const char *stem,
                  size_t out, size_t in, bool bias, const double *x, double *y)
{
    char w[96], b[96];

    snprintf(w, sizeof(w), "layers.%d.%s.weight", layer, stem);
    snprintf(b, sizeof(b), "layers.%d.%s.bias", layer, stem);
    for (size_t o = 0; o < out; o++) {
        y[o] = bias ? value(f, b, 0, o) : 0;
        for (size_t i = 0; i < in; i++)
            y[o] += value(f, w, o, i) * x[i];
    }
}

static void rms(const struct weights_fake *f, const char *name, size_t n,
                double eps, const double *x, double *y)
{
    double s = 0;

    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = sqrt(s / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / s * value(f, name, 0, i);
}

static void layer_rms(const struct weights_fake *f, int layer, const char *stem,
                      size_t n, double eps, const double *x, double *y)
{
    char name[96];

    snprintf(name, sizeof(name), "layers.%d.%s.weight", layer, stem);
    rms(f, name, n, eps, x, y);
}

static void rotate(const struct hparams *hp, double *head, int pos)
{
    for (int i = 0; i < D / 2; i++) {
        double a = pos * pow(hp->rope.theta, -2.0 * i / D);
        double c = cos(a) * hp->rope.attention_scaling;
        double s = sin(a) * hp->rope.attention_scaling;
        double x = head[i], y = head[i + D / 2];

        head[i] = x * c - y * s;
        head[i + D / 2] = y * c + x * s;
    }
}

static void attend(const double *q, int layer, int pos, double *mix)
{
    static double p[MAXN];

    for (int h = 0; h < NQ; h++) {
        int g = h / (NQ / NKV);
        double sum = 0;

        for (int j = 0; j <= pos; j++) {
            p[j] = 0;
            for (int d = 0; d < D; d++)
                p[j] += q[h * D + d] * key[layer][j][g * D + d];
            p[j] = exp(p[j] / sqrt(D));
            sum += p[j];
        }
        for (int d = 0; d < D; d++) {
            mix[h * D + d] = 0;
            for (int j = 0; j <= pos; j++)
                mix[h * D + d] += p[j] / sum * val[layer][j][g * D + d];
        }
    }
}

static void plain_layer(const struct hparams *hp, const struct weights_fake *f,
                        bool qwen3, int layer, int pos, double *x)
{
    bool ab = hp->attention_bias, mb = hp->mlp_bias && !qwen3;
    double h[H], q[NQ * D], mix[NQ * D], gate[I], up[I];
    double *k = key[layer][pos], *v = val[layer][pos];

    layer_rms(f, layer, "input_layernorm", H, hp->rms_eps, x, h);
    times(f, layer, "self_attn.q_proj", NQ * D, H, ab, h, q);
    times(f, layer, "self_attn.k_proj", NKV * D, H, ab, h, k);
    times(f, layer, "self_attn.v_proj", NKV * D, H, ab, h, v);
    for (int i = 0; i < NQ + NKV; i++) {
        double *head = i < NQ ? q + i * D : k + (i - NQ) * D;

        if (qwen3)
            layer_rms(f, layer,
                      i < NQ ? "self_attn.q_norm" : "self_attn.k_norm", D,
                      hp->rms_eps, head, head);
        rotate(hp, head, pos);
    }
    attend(q, layer, pos, mix);
    times(f, layer, "self_attn.o_proj", H, NQ * D, ab, mix, h);
    for (int i = 0; i < H; i++)
        x[i] += h[i];
    layer_rms(f, layer, "post_attention_layernorm", H, hp->rms_eps, x, h);
    times(f, layer, "mlp.gate_proj", I, H, mb, h, gate);
    times(f, layer, "mlp.up_proj", I, H, mb, h, up);
    for (int i = 0; i < I; i++)
        gate[i] *= up[i] / (1 + exp(-gate[i]));
    times(f, layer, "mlp.down_proj", H, I, mb, gate, h);
    for (int i = 0; i < H; i++)
        x[i] += h[i];
}

/* hidden [L + 1][n][H] and logits [n][V], as the reference lays them out. */
static void plain_forward(const struct hparams *hp,
                          const struct weights_fake *f, bool qwen3,
                          const int32_t *tokens, int n, double *hidden,
                          double *logits)
{
    for (int t = 0; t < n; t++) {
        double x[H];

        for (int i = 0; i < H; i++)
            x[i] = value(f, "embed_tokens.weight", (uint64_t)tokens[t],
                         (uint64_t)i);
        memcpy(hidden + t * H, x, sizeof(x));
        for (int l = 0; l < L; l++) {
            plain_layer(hp, f, qwen3, l, t, x);
            if (l == L - 1)
                rms(f, "norm.weight", H, hp->rms_eps, x, x);
            memcpy(hidden + ((l + 1) * n + t) * H, x, sizeof(x));
        }
        for (int v = 0; v < V; v++) {
            logits[t * V + v] = 0;
            for (int i = 0; i < H; i++)
                logits[t * V + v] +=
                    value(f, "lm_head.weight", (uint64_t)v, (uint64_t)i) * x[i];
        }
    }
}

static void close_to(const float *got, const double *want, size_t n,
                     const char *what)
{
    double size = 0;

    for (size_t i = 0; i < n; i++)
        size = fmax(size, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert(fabs((double)got[i] - want[i]) <= 4e-6 * size,
                  "%s %zu: %.9g, not %.9g", what, i, (double)got[i], want[i]);
}

static void check_model(const char *family, bool biases, int n)
{
    static double hidden[(L + 1) * MAXN * H], logits[MAXN * V];
    static float got_hidden[(L + 1) * MAXN * H], got[MAXN * V];
    struct hparams hp = model(family, biases);
    struct weights_fake f = { 0 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 0, MAXN);
    struct oracle_out out = { .logits = got, .hidden = got_hidden };

    plain_forward(&hp, &f, !strcmp(family, "qwen3"), some_tokens(), n, hidden,
                  logits);
    cr_assert_eq(oracle_feed(o, some_tokens(), (size_t)n, &out, &err), 0, "%s",
                 err.text);
    close_to(got_hidden, hidden, (size_t)((L + 1) * n * H), "hidden");
    close_to(got, logits, (size_t)(n * V), "logit");
    oracle_free(o);
}

Test(oracle, llama_is_right)
{
    check_model("llama", false, 20);
}

Test(oracle, llama_with_biases_is_right)
{
    check_model("llama", true, 20);
}

Test(oracle, qwen3_is_right)
{
    check_model("qwen3", false, 20);
}

Test(oracle, qwen3_biases_are_in_the_attention_only)
{
    check_model("qwen3", true, 20);
}

/* Three passes of the feed, five blocks of the cache. */
Test(oracle, long_prompts_are_right)
{
    check_model("qwen3", false, 1100);
}

/* ---- splits, threads, results asked for ---- */

static void feed_or_fail(struct oracle *o, const int32_t *t, size_t n,
                         const struct oracle_out *out)
{
    cr_assert_eq(oracle_feed(o, t, n, out, &err), 0, "%s", err.text);
}

Test(oracle, splits_across_blocks_and_passes_change_nothing)
{
    static const size_t cuts[] = { 1, 254, 255, 256, 257, 511, 512, 513, 700 };
    static float whole[MAXN * V], parts[MAXN * V];
    struct hparams hp = model("qwen3", true);
    struct weights_fake f = { 0 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 1 << 20, MAXN);
    struct par *par = par_new(3, &err);
    struct oracle *threaded = new_oracle(&hp, &f, par, 1 << 20, MAXN);
    const int32_t *t = some_tokens();
    size_t n = 800;

    feed_or_fail(o, t, n, &(struct oracle_out){ .logits = whole });
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        size_t c = cuts[i];

        cr_assert_eq(oracle_reset(threaded, &err), 0);
        feed_or_fail(threaded, t, c, &(struct oracle_out){ .logits = parts });
        feed_or_fail(threaded, t + c, n - c,
                     &(struct oracle_out){ .logits = parts + c * V });
        cr_assert_eq(memcmp(whole, parts, n * V * sizeof(*whole)), 0,
                     "cut at %zu", c);
    }
    oracle_free(threaded);
    oracle_free(o);
    par_free(par);
}

Test(oracle, results_asked_for_apart_are_the_same)
{
    static float logits[600 * V], hidden[(L + 1) * 600 * H], last[V], alone[V];
    struct hparams hp = model("llama", false);
    struct weights_fake f = { 0 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 1 << 20, 601);
    const int32_t *t = some_tokens();

    feed_or_fail(o, t, 600,
                 &(struct oracle_out){
                     .logits = logits, .last_logits = last, .hidden = hidden });
    cr_assert_eq(memcmp(last, logits + 599 * V, sizeof(last)), 0);
    cr_assert_eq(oracle_reset(o, &err), 0);
    cr_assert_eq(oracle_positions(o), 0);
    feed_or_fail(o, t, 600, &(struct oracle_out){ .last_logits = alone });
    cr_assert_eq(memcmp(last, alone, sizeof(last)), 0);
    /* without results: the context moves on all the same */
    cr_assert_eq(oracle_reset(o, &err), 0);
    feed_or_fail(o, t, 599, NULL);
    feed_or_fail(o, t, 0, NULL);
    cr_assert_eq(oracle_positions(o), 599);
    feed_or_fail(o, t + 599, 1, &(struct oracle_out){ .last_logits = alone });
    cr_assert_eq(memcmp(last, alone, sizeof(last)), 0);
    oracle_free(o);
}

Test(oracle, reset_forgets_everything)
{
    float fresh[V], again[V];
    struct hparams hp = model("qwen3", false);
    struct weights_fake f = { 0 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 0, 300);
    const int32_t *t = some_tokens();

    feed_or_fail(o, t, 5, &(struct oracle_out){ .last_logits = fresh });
    cr_assert_eq(oracle_reset(o, &err), 0);
    feed_or_fail(o, t + 100, 300, NULL);
    cr_assert_eq(oracle_reset(o, &err), 0);
    feed_or_fail(o, t, 5, &(struct oracle_out){ .last_logits = again });
    cr_assert_eq(memcmp(fresh, again, sizeof(fresh)), 0);
    oracle_free(o);
}

/* ---- every tensor counts ---- */

static void with_scaled(const char *family, const char *name, float *last)
{
    struct hparams hp = model(family, true);
    struct weights_fake f = { .scaled = name, .scale = 1.01 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 0, 8);

    feed_or_fail(o, some_tokens(), 8,
                 &(struct oracle_out){ .last_logits = last });
    oracle_free(o);
}

Test(oracle, each_tensor_times_1_01_moves_the_logits)
{
    static const char *const stems[] = {
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.q_proj.bias",
        "self_attn.k_proj.weight",
        "self_attn.k_proj.bias",
        "self_attn.v_proj.weight",
        "self_attn.v_proj.bias",
        "self_attn.o_proj.weight",
        "self_attn.o_proj.bias",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
        "embed_tokens.weight",
        "norm.weight",
        "lm_head.weight",
    };
    float base[V], moved[V];

    with_scaled("qwen3", NULL, base);
    for (size_t i = 0; i < sizeof(stems) / sizeof(stems[0]); i++) {
        bool global = i >= 15;
        char name[96];
        double d = 0;

        snprintf(name, sizeof(name), "%s%s", global ? "" : "layers.1.",
                 stems[i]);
        with_scaled("qwen3", name, moved);
        for (int v = 0; v < V; v++)
            d = fmax(d, fabs((double)moved[v] - (double)base[v]));
        cr_expect(d > 1e-5, "%s moves the logits by %g", name, d);
    }
}

/* ---- errors ---- */

Test(oracle, bad_tokens_are_refused_and_change_nothing)
{
    static const int32_t low[2] = { 1, -1 }, high[2] = { 1, V };
    float want[V], got[V];
    struct hparams hp = model("llama", false);
    struct weights_fake f = { 0 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 0, 4);
    const int32_t *t = some_tokens();

    feed_or_fail(o, t, 3, &(struct oracle_out){ .last_logits = want });
    cr_assert_eq(oracle_reset(o, &err), 0);
    feed_or_fail(o, t, 2, NULL);
    cr_assert_eq(oracle_feed(o, low, 2, NULL, &err), -1);
    cr_assert_eq(err.code, ERR_INPUT);
    cr_assert_str_eq(err.text,
                     "token -1 at position 3 is outside the vocabulary of 37");
    err_reset(&err);
    cr_assert_eq(oracle_feed(o, high, 2, NULL, &err), -1);
    cr_assert_str_eq(err.text,
                     "token 37 at position 3 is outside the vocabulary of 37");
    err_reset(&err);
    cr_assert_eq(oracle_feed(o, t, 3, NULL, &err), -1);
    cr_assert_str_eq(err.text,
                     "3 tokens after position 2 exceed the context of 4");
    err_reset(&err);
    cr_assert_eq(oracle_positions(o), 2);
    feed_or_fail(o, t + 2, 1, &(struct oracle_out){ .last_logits = got });
    cr_assert_eq(memcmp(want, got, sizeof(want)), 0);
    oracle_free(o);
}

static void refuse(struct hparams hp, int64_t positions, enum err_code code,
                   const char *text)
{
    struct weights_fake f = { 0 };
    struct tensor_source src = { fake_rows, &f };
    struct oracle_options opt = { .max_positions = positions };

    err_reset(&err);
    cr_assert_null(oracle_new(&hp, &src, &opt, &err));
    cr_expect_eq(err.code, code);
    cr_expect_str_eq(err.text, text);
}

Test(oracle, impossible_models_are_refused)
{
    struct hparams hp = model("llama", false);

    refuse(hp, 0, ERR_INPUT,
           "the number of positions is 0, expected 1 to 2147483647");
    hp.kv_heads = 4;
    refuse(hp, 1, ERR_INPUT, "6 query heads cannot share 4 key/value heads");
    hp = model("llama", false);
    hp.rope.dim = 5;
    refuse(hp, 1, ERR_INPUT,
           "rotation of 5 of the 6 elements of a head, expected an even part");
    hp = model("llama", false);
    hp.vocab = 0;
    refuse(hp, 1, ERR_INPUT, "vocab_size is 0, expected 1 to 2147483647");
    hp = model("llama", false);
    hp.intermediate = 0;
    refuse(hp, 1, ERR_INPUT,
           "intermediate_size is 0, expected 1 to 2147483647");
    hp = model("llama", false);
    hp.arch = NULL;
    refuse(hp, 1, ERR_UNSUPPORTED,
           "model_type 'made up' has no float32 reference");
}

/* The lowest row's error wins, whichever thread met which first; afterwards
 * the context must be reset, and is then as good as new. */
Test(oracle, unreadable_weights)
{
    struct hparams hp = model("llama", false);
    struct weights_fake f = { .broken = "lm_head.weight", .bad_row = 30 };
    struct par *par = par_new(3, &err);
    struct oracle *o = new_oracle(&hp, &f, par, 1 << 20, 8);
    const int32_t *t = some_tokens();
    float want[V], got[V];

    cr_assert_eq(oracle_feed(o, t, 4,
                             &(struct oracle_out){ .last_logits = got }, &err),
                 -1);
    cr_assert_eq(err.code, ERR_IO);
    cr_assert_str_eq(err.text, "row 30 of 'lm_head.weight' is unreadable");
    err_reset(&err);
    f.broken = NULL;
    cr_assert_eq(oracle_feed(o, t, 4, NULL, &err), -1);
    cr_assert_str_eq(err.text, "the context is incomplete after an earlier "
                               "failure and must be reset");
    err_reset(&err);
    cr_assert_eq(oracle_reset(o, &err), 0);
    feed_or_fail(o, t, 4, &(struct oracle_out){ .last_logits = got });
    oracle_free(o);
    o = new_oracle(&hp, &f, NULL, 0, 8);
    feed_or_fail(o, t, 4, &(struct oracle_out){ .last_logits = want });
    cr_assert_eq(memcmp(want, got, sizeof(want)), 0);
    f.broken = "layers.1.mlp.up_proj.weight";
    f.bad_row = 0;
    cr_assert_eq(oracle_feed(o, t, 1, NULL, &err), -1);
    cr_assert_str_eq(err.text, "layer 1 of the reference: row 0 of "
                               "'layers.1.mlp.up_proj.weight' is unreadable");
    err_reset(&err);
    oracle_free(o);
    f.broken = "embed_tokens.weight";
    o = new_oracle(&hp, &f, NULL, 0, 8);
    cr_assert_eq(oracle_feed(o, t, 1, NULL, &err), -1);
    cr_assert_str_eq(err.text, "row 0 of 'embed_tokens.weight' is unreadable");
    oracle_free(o);
    par_free(par);
}

Test(oracle, not_a_number_reaches_the_logits)
{
    struct hparams hp = model("llama", false);
    struct weights_fake f = { .scaled = "layers.0.mlp.down_proj.weight",
                              .scale = NAN };
    struct oracle *o = new_oracle(&hp, &f, NULL, 0, 8);
    float last[V];

    feed_or_fail(o, some_tokens(), 2,
                 &(struct oracle_out){ .last_logits = last });
    for (int i = 0; i < V; i++)
        cr_assert(isnan(last[i]));
    oracle_free(o);
}

/* ---- budget ---- */

Test(oracle, kept_weights_are_read_once)
{
    enum { MATRICES = 7 * L + 1, VECTORS = 2 * L + 1 };
    struct hparams hp = model("llama", false);
    struct weights_fake f = { 0 };
    struct oracle *o = new_oracle(&hp, &f, NULL, 1 << 20, 8);
    struct oracle_out out;
    float last[V];
    int blocks;

    out = (struct oracle_out){ .last_logits = last };
    feed_or_fail(o, some_tokens(), 1, &out);
    blocks = f.calls - VECTORS - 1;
    cr_assert_geq(blocks, MATRICES);
    f.calls = f.row_calls = 0;
    feed_or_fail(o, some_tokens(), 1, &out);
    cr_assert_eq(f.calls, 1);
    cr_assert_eq(f.row_calls, 1);
    oracle_free(o);
    /* nothing kept but vectors: every block again */
    f.calls = 0;
    o = new_oracle(&hp, &f, NULL, 0, 8);
    feed_or_fail(o, some_tokens(), 1, &out);
    feed_or_fail(o, some_tokens(), 1, &out);
    cr_assert_eq(f.calls, 2 * (blocks + 1) + VECTORS);
    oracle_free(o);
    /* the first matrix (q_proj of layer 0) and the vectors before it fit */
    f.calls = 0;
    o = new_oracle(&hp, &f, NULL, (NQ * D * H + H) * sizeof(float), 8);
    feed_or_fail(o, some_tokens(), 1, &out);
    f.calls = 0;
    feed_or_fail(o, some_tokens(), 1, &out);
    cr_assert_eq(f.calls, blocks - 1 + 1); /* and one row to embed */
    oracle_free(o);
}

/* Every allocation fails once: an error each time, or the same result. */
Test(oracle, memory_runs_out)
{
    struct hparams hp = model("qwen3", true);
    struct weights_fake f = { 0 };
    struct tensor_source src = { fake_rows, &f };
    struct oracle_options opt = { .keep_bytes = 1 << 20, .max_positions = 300 };
    float want[V], got[V];
    long n = 0, failed = 0;
    struct oracle *o = new_oracle(&hp, &f, NULL, 0, 300);

    feed_or_fail(o, some_tokens(), 300,
                 &(struct oracle_out){ .last_logits = want });
    oracle_free(o);
    for (;; n++) {
        struct err e = ERR_INIT;
        int rc = -1;

        mem_fail_at(n, false);
        o = oracle_new(&hp, &src, &opt, &e);
        if (o)
            rc = oracle_feed(o, some_tokens(), 300,
                             &(struct oracle_out){ .last_logits = got }, &e);
        mem_fail_at(-1, false);
        if (rc) {
            cr_assert_eq(e.code, ERR_NOMEM, "allocation %ld: %s", n, e.text);
            failed = n;
        }
        if (o && rc) { /* the memory is back */
            cr_assert_eq(oracle_reset(o, &err), 0);
            feed_or_fail(o, some_tokens(), 300,
                         &(struct oracle_out){ .last_logits = got });
        }
        if (o)
            cr_assert_eq(memcmp(want, got, sizeof(want)), 0);
        oracle_free(o);
        if (!rc && n > failed + 60)
            break; /* kept weights that find no memory are streamed */
    }
    cr_assert_geq(failed, 40);
}
