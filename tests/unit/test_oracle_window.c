/*
 * What a token of the reference sees. All attention but that of one layer is
 * silenced, so that positions meet in this layer only; then another token at
 * one position must change the logits of exactly those that see it, wherever
 * the borders of blocks and passes lie.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "models/models.h"
#include "t_conv.h"

TestSuite(oracle_window, .fini = t_conv_clean);

#define TOKENS 620 /* more than a pass and several blocks */

/* Weights of a checkpoint, attention's last norms 0 but in one layer. */
struct quiet {
    struct ckpt ckpt;
    int64_t layer;
};

static int quiet_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                      float *dst, struct err *e)
{
    const struct quiet *q = cookie;
    struct tensor_source src = ckpt_source(&q->ckpt);
    char keep[96];

    if (src.rows(src.cookie, name, row, n, dst, e))
        return -1;
    snprintf(keep, sizeof keep, "layers.%d.post_attention_layernorm.weight",
             (int)q->layer);
    if (strstr(name, "post_attention_layernorm") && strcmp(name, keep))
        for (int64_t i = 0; i < q->ckpt.hp.hidden; i++)
            dst[i] = q->ckpt.hp.zero_centered_norms ? -1.0f : 0.0f;
    return 0;
}

static float *logits_of(struct quiet *q, const int32_t *ids)
{
    struct err e = ERR_INIT;
    struct tensor_source src = { quiet_rows, q };
    struct par *par = par_new(2, &e);
    struct oracle_options opt = { .par = par,
                                  .keep_bytes = 1 << 28,
                                  .max_positions = TOKENS };
    float *logits =
        mem_alloc((size_t)q->ckpt.hp.vocab * TOKENS, sizeof *logits, &e);
    struct oracle_out out = { .logits = logits };
    struct oracle *o = oracle_new(&q->ckpt.hp, &src, &opt, &e);

    cr_assert(logits && o && !oracle_feed(o, ids, TOKENS, &out, &e), "%s",
              e.text);
    oracle_free(o);
    par_free(par);
    return logits;
}

/* Tokens that see position p: those from p on, within the window if there is
 * one. */
static void check(struct quiet *q, int64_t window, const float *base,
                  const int32_t *ids, int64_t p)
{
    size_t vocab = (size_t)q->ckpt.hp.vocab;
    int32_t other[TOKENS];
    float *now;

    memcpy(other, ids, sizeof other);
    other[p] = (ids[p] + 1) % (int32_t)vocab;
    now = logits_of(q, other);
    for (int64_t t = 0; t < TOKENS; t++) {
        size_t at = (size_t)t * vocab;
        bool differs = memcmp(base + at, now + at, vocab * sizeof *now) != 0;
        bool sees = t >= p && (!window || t - p < window);

        cr_expect_eq(differs, sees, "layer %d, window %d: token %d %s %d",
                     (int)q->layer, (int)window, (int)t,
                     differs ? "sees" : "does not see", (int)p);
    }
    mem_free(now);
}

static void check_layer(const char *arch, int64_t layer, int64_t window)
{
    static const int64_t places[] = { 0, 1, 127, 200, 256, 511, 512, 590 };
    struct quiet q = { .layer = layer };
    struct err e = ERR_INIT;
    int32_t ids[TOKENS];
    bool full;
    float *base;

    t_conv_synth(arch, "tiny", "model");
    cr_assert_eq(ckpt_open(&q.ckpt, t_conv_path("model"), 0, &e), 0, "%s",
                 e.text);
    q.ckpt.hp.window = window;
    full = q.ckpt.hp.layer_kind[layer] == HP_LAYER_FULL;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * i + 7 * i) % (int32_t)q.ckpt.hp.vocab;
    base = logits_of(&q, ids);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        check(&q, full ? 0 : window, base, ids, places[i]);
    mem_free(base);
    ckpt_close(&q.ckpt);
    t_conv_clean();
}

Test(oracle_window, sliding_layers_of_gemma3)
{
    check_layer("gemma3", 0, 1);
    check_layer("gemma3", 6, 24);
    check_layer("gemma3", 2, 300); /* longer than a block */
}

Test(oracle_window, full_layers)
{
    check_layer("gemma3", 5, 24);
    check_layer("gemma4", 4, 32);
}

Test(oracle_window, layers_of_gemma4_that_share)
{
    check_layer("gemma4", 5, 32); /* reads layer 3 */
    check_layer("gemma4", 9, 32); /* reads layer 4, which sees everything */
}
