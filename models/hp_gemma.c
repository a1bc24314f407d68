/*
 * Gemma 3 and Gemma 4: what their configs may say. Class defaults are
 * transformers'. What is asked for and not computed is refused by key and
 * value.
 *
 * Gemma 4 speaks two dialects of layers that differ: published files give
 * full layers their `global_head_dim` and `num_global_key_value_heads`, files
 * saved by newer transformers list overrides in `per_layer_config`. Both are
 * resolved layer by layer and must agree within a kind of layer.
 */
#include "models/hp_gemma_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"

#define FIELD(member) offsetof(struct hparams, member)
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Far above any model, and small enough that no product overflows; of the
 * window also what readers of meta.yaml take (meta_read.c, lint_meta.c). */
#define MAX_VOCAB (1 << 28)
#define MAX_WIDTH (1 << 20)
#define MAX_INNER (1 << 24)
#define MAX_HEADS (1 << 16)
#define MAX_EXPERTS (1 << 16)
#define MAX_WINDOW (1 << 24)
#define MAX_POSITIONS 9007199254740992.0

/* Absent: the class default; null: an error in transformers too. */
#define SIZE(key, member, def, max)                                  \
    {                                                                \
        key, HP_INT, FIELD(member), HP_CLASS, HP_ASK, def, 1, max, 0 \
    }
/* Absent: the class default; null: none. */
#define SIZE_OR_NONE(key, member, def, max)                            \
    {                                                                  \
        key, HP_INT, FIELD(member), HP_CLASS, HP_LEAVE, def, 0, max, 0 \
    }
#define NEEDED(key, member, max)                                 \
    {                                                            \
        key, HP_INT, FIELD(member), HP_ASK, HP_ASK, 0, 1, max, 0 \
    }
#define EPS(def)                                                               \
    {                                                                          \
        "rms_norm_eps", HP_REAL, FIELD(rms_eps), HP_CLASS, HP_ASK, def, 1e-30, \
            1, 0                                                               \
    }
#define FLAG(key, member)                                         \
    {                                                             \
        key, HP_FLAG, FIELD(member), HP_CLASS, HP_ASK, 0, 0, 0, 0 \
    }
/* A cap that fp16 does not hold would be an infinity, the logits NaN. */
#define SOFTCAP                                                             \
    {                                                                       \
        "final_logit_softcapping", HP_REAL, FIELD(final_softcap), HP_LEAVE, \
            HP_LEAVE, 0, 1e-3, 65504, 0                                     \
    }
#define GELU                                                        \
    {                                                               \
        "hidden_activation", HP_WORD, 0, HP_CLASS, HP_ASK, 0, 0, 0, \
            "gelu_pytorch_tanh"                                     \
    }

static const struct hp_row gemma3_rows[] = {
    SIZE("vocab_size", vocab, 262208, MAX_VOCAB),
    SIZE("hidden_size", hidden, 2304, MAX_WIDTH),
    SIZE("intermediate_size", intermediate, 9216, MAX_INNER),
    SIZE("num_hidden_layers", layers, 26, HP_MAX_LAYERS),
    SIZE("num_attention_heads", heads, 8, MAX_HEADS),
    SIZE("num_key_value_heads", kv_heads, 4, MAX_HEADS),
    SIZE("head_dim", head_dim, 256, MAX_HEADS),
    SIZE("max_position_embeddings", max_positions, 131072, MAX_POSITIONS),
    SIZE("sliding_window", window, 4096, MAX_WINDOW),
    EPS(1e-6),
    GELU,
    SOFTCAP,
    { "query_pre_attn_scalar", HP_REAL, FIELD(query_pre_attn_scalar), HP_CLASS,
      HP_ASK, 256, 1e-3, 1e9, 0 },
};

#define GEMMA4_COMMON                                                         \
    SIZE("vocab_size", vocab, 262144, MAX_VOCAB),                             \
        SIZE("hidden_size", hidden, 2304, MAX_WIDTH),                         \
        SIZE("intermediate_size", intermediate, 9216, MAX_INNER),             \
        SIZE("num_hidden_layers", layers, 30, HP_MAX_LAYERS),                 \
        SIZE("num_attention_heads", heads, 8, MAX_HEADS),                     \
        SIZE("num_key_value_heads", kv_heads, 4, MAX_HEADS),                  \
        SIZE("head_dim", head_dim, 256, MAX_HEADS), EPS(1e-6), GELU, SOFTCAP, \
        FLAG("attention_k_eq_v", k_eq_v),                                     \
        FLAG("use_double_wide_mlp", double_wide_mlp),                         \
    {                                                                         \
        "num_kv_shared_layers", HP_INT, FIELD(kv_shared_layers), HP_CLASS,    \
            HP_ASK, 0, 0, HP_MAX_LAYERS, 0                                    \
    }

static const struct hp_row gemma4_rows[] = {
    GEMMA4_COMMON,
    SIZE("max_position_embeddings", max_positions, 131072, MAX_POSITIONS),
    SIZE("sliding_window", window, 512, MAX_WINDOW),
    SIZE_OR_NONE("hidden_size_per_layer_input", ple_width, 256, MAX_HEADS),
    SIZE_OR_NONE("vocab_size_per_layer_input", ple_vocab, 262144, MAX_VOCAB),
};

static const struct hp_row unified_rows[] = {
    GEMMA4_COMMON,
    SIZE("max_position_embeddings", max_positions, 262144, MAX_POSITIONS),
    SIZE("sliding_window", window, 1024, MAX_WINDOW),
};

static const struct hp_row moe_rows[] = {
    NEEDED("num_experts", experts, MAX_EXPERTS),
    NEEDED("top_k_experts", experts_per_token, MAX_EXPERTS),
    NEEDED("moe_intermediate_size", moe_intermediate, MAX_INNER),
};

/* ---- what is not computed ---- */

/* A key that must be absent, null or false. */
static int refuse_flag(const struct hp_reader *r, const struct hparams *hp,
                       const char *key, struct err *e)
{
    const struct js_node *n = hp_value(r->text, key);
    bool v;

    if (!n)
        return 0;
    if (!js_bool(n, &v))
        return hp_type_error(n, key, "true or false", e);
    if (v)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' is true; %s is computed with false only", key,
                       hp->model_type);
    return 0;
}

static int refuse_value(const struct hp_reader *r, const struct hparams *hp,
                        const char *key, struct err *e)
{
    const struct js_node *n = hp_value(r->text, key);
    char t[NUM_TEXT_MAX];
    double d;

    if (!n)
        return 0;
    if (!js_double(n, &d))
        return hp_type_error(n, key, "a number or null", e);
    num_text(t, d);
    return err_set(e, ERR_UNSUPPORTED,
                   "'%s' is %s; %s is computed with null only", key, t,
                   hp->model_type);
}

/* Gemma 3: true or false; Gemma 4: null, "vision", "all", in some files
 * false. Vision concerns tokens of images only, and there are none. */
static int refuse_bidirectional(const struct hp_reader *r,
                                const struct hparams *hp, struct err *e)
{
    const char *key = "use_bidirectional_attention", *s;
    const struct js_node *n = hp_value(r->text, key);
    char t[HP_CLEAN_MAX];

    if (!n || !js_string(n, &s))
        return refuse_flag(r, hp, key, e);
    if (strcmp(s, "vision"))
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' is '%s'; %s is computed with causal attention "
                       "only",
                       key, hp_clean(t, s), hp->model_type);
    return 0;
}

/* ---- kinds of layers ---- */

static const struct hp_layer_word kinds[] = {
    { "full_attention", HP_LAYER_FULL },
    { "sliding_attention", HP_LAYER_SLIDING },
};

/* Every `pattern`-th layer is full. */
static void set_pattern(struct hparams *hp, int64_t pattern)
{
    for (int64_t i = 0; i < hp->layers; i++)
        hp->layer_kind[i] =
            (i + 1) % pattern ? HP_LAYER_SLIDING : HP_LAYER_FULL;
}

/* The older spelling, with or without an underscore; 6 if there is none. */
static int read_pattern(const struct hp_reader *r, struct hparams *hp,
                        struct err *e)
{
    struct hp_row row = { "sliding_window_pattern",
                          HP_INT,
                          FIELD(layers),
                          HP_CLASS,
                          HP_CLASS,
                          6,
                          1,
                          HP_MAX_LAYERS,
                          0 };
    struct hparams t = { 0 }; /* t.layers: the pattern */

    if (!hp_value(r->text, row.key) &&
        hp_value(r->text, "_sliding_window_pattern"))
        row.key = "_sliding_window_pattern";
    if (hp_read_rows(r, &row, 1, &t, e))
        return -1;
    set_pattern(hp, t.layers);
    return 0;
}

/* The caches of a package presume both kinds. */
static int check_kinds(const struct hparams *hp, struct err *e)
{
    int64_t sliding = 0;

    for (int64_t i = 0; i < hp->layers; i++)
        sliding += hp->layer_kind[i] == HP_LAYER_SLIDING;
    if (!sliding || sliding == hp->layers)
        return err_set(e, ERR_UNSUPPORTED,
                       "all %" PRId64 " layers are %s_attention; %s is "
                       "computed with layers of both kinds",
                       hp->layers, sliding ? "sliding" : "full",
                       hp->model_type);
    return 0;
}

/* ---- what both share ---- */

/* Widths of heads against each other, for one kind of layer. */
static int check_heads_of(const struct hparams *hp, const char *kind,
                          int64_t kv_heads, int64_t head_dim, struct err *e)
{
    if (hp->heads % kv_heads)
        return err_set(e, ERR_INPUT,
                       "num_attention_heads %" PRId64 " is not a multiple of "
                       "the %" PRId64 " key/value heads of %s layers",
                       hp->heads, kv_heads, kind);
    if (hp->heads * head_dim > (1 << 22))
        return err_set(e, ERR_INPUT,
                       "num_attention_heads %" PRId64 " times the head_dim "
                       "%" PRId64 " of %s layers is above %d",
                       hp->heads, head_dim, kind, 1 << 22);
    return 0;
}

static int check_heads(const struct hparams *hp, struct err *e)
{
    return check_heads_of(hp, "sliding", hp->kv_heads, hp->head_dim, e) ||
                   check_heads_of(hp, "full", hp->global_kv_heads,
                                  hp->global_head_dim, e)
               ? -1
               : 0;
}

/* As float32, which it is before it meets the table. */
static double root_of(int64_t n)
{
    return (double)(float)sqrt((double)n);
}

static int read_ropes(const struct hp_reader *r, struct hparams *hp,
                      const struct hp_layer_rope *full, struct err *e)
{
    static const struct hp_layer_rope sliding = {
        .layer_type = "sliding_attention",
        .theta = 1e4,
        .theta_key = "rope_local_base_freq",
        .part = 1,
    };

    if (hp_read_layer_rope(r, full, hp->global_head_dim, &hp->rope,
                           &hp->rope_by, e))
        return -1;
    return hp_read_layer_rope(r, &sliding, hp->head_dim, &hp->rope_local,
                              &hp->rope_local_by, e);
}

static int finish(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    if (check_heads(hp, e) || refuse_flag(r, hp, "attention_bias", e) ||
        refuse_bidirectional(r, hp, e) || hp_read_tie(r, hp, true, e))
        return -1;
    hp->qk_norm = true;
    hp->embed_scale = root_of(hp->hidden);
    hp->ple_scale = hp->ple_width ? root_of(hp->ple_width) : 0;
    return 0;
}

/* ---- Gemma 3 ---- */

int hp_parse_gemma3(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    static const struct hp_layer_rope full = {
        .layer_type = "full_attention",
        .theta = 1e6,
        .theta_key = "rope_theta",
        .part = 1,
        .old_scaling = true,
    };
    int listed;

    if (hp_read_rows(r, gemma3_rows, COUNT(gemma3_rows), hp, e) ||
        refuse_value(r, hp, "attn_logit_softcapping", e))
        return -1;
    listed = hp_read_layer_types(r, hp, kinds, COUNT(kinds), hp->layer_kind, e);
    if (listed < 0 || (!listed && read_pattern(r, hp, e)) || check_kinds(hp, e))
        return -1;
    hp->global_head_dim = hp->head_dim;
    hp->global_kv_heads = hp->kv_heads;
    hp->zero_centered_norms = true;
    return finish(r, hp, e) || read_ropes(r, hp, &full, e) ? -1 : 0;
}

/* ---- Gemma 4 ---- */

static bool is_unified(const struct hparams *hp)
{
    return strstr(hp->model_type, "_unified") != NULL;
}

/* "gemma4" around "gemma4_unified_text" is no model. */
static int check_names(const struct hp_reader *r, const struct hparams *hp,
                       struct err *e)
{
    const char *outer;

    if (js_string(hp_value(r->outer, "model_type"), &outer) &&
        (strstr(outer, "_unified") != NULL) != is_unified(hp))
        return err_set(e, ERR_UNSUPPORTED,
                       "model_type '%s' with a text_config of model_type '%s' "
                       "is not supported",
                       outer, hp->model_type);
    return 0;
}

/* transformers forces the last layer to see everything. */
static int read_kinds(const struct hp_reader *r, struct hparams *hp,
                      struct err *e)
{
    int listed =
        hp_read_layer_types(r, hp, kinds, COUNT(kinds), hp->layer_kind, e);

    if (listed < 0)
        return -1;
    if (!listed)
        set_pattern(hp, 6);
    if (hp->layer_kind[hp->layers - 1] != HP_LAYER_FULL) {
        hp->layer_kind[hp->layers - 1] = HP_LAYER_FULL;
        hp_note(r,
                "warning: the last layer, %" PRId64 ", is sliding_attention "
                "in %s; it is computed as full_attention, as transformers "
                "does",
                hp->layers - 1, listed ? "layer_types" : "the pattern of 6");
    }
    return check_kinds(hp, e);
}

/* Unified models have no such block; a value would be read by nobody. */
static int refuse_unified(const struct hp_reader *r, const struct hparams *hp,
                          struct err *e)
{
    const struct js_node *n = hp_value(r->text, "hidden_size_per_layer_input");
    int64_t v;

    if (n && !js_integral(n, &v))
        return hp_type_error(n, "hidden_size_per_layer_input",
                             "a whole number or null", e);
    if (n && v)
        return err_set(e, ERR_UNSUPPORTED,
                       "'hidden_size_per_layer_input' is %" PRId64
                       "; %s has no per-layer inputs",
                       v, hp->model_type);
    return refuse_flag(r, hp, "enable_moe_block", e);
}

static int read_experts(const struct hp_reader *r, struct hparams *hp,
                        struct err *e)
{
    const struct js_node *n = hp_value(r->text, "enable_moe_block");
    bool on = false;

    if (n && !js_bool(n, &on))
        return hp_type_error(n, "enable_moe_block", "true or false", e);
    if (!on)
        return 0;
    if (hp_read_rows(r, moe_rows, COUNT(moe_rows), hp, e))
        return -1;
    if (hp->experts_per_token > hp->experts)
        return err_set(e, ERR_INPUT,
                       "top_k_experts %" PRId64 " is more than the %" PRId64
                       " of num_experts",
                       hp->experts_per_token, hp->experts);
    return 0;
}

/* Token ids select rows of both tables. */
static int check_ple(struct hparams *hp, struct err *e)
{
    if (!hp->ple_width)
        hp->ple_vocab = 0;
    else if (hp->ple_vocab < hp->vocab)
        return err_set(e, ERR_INPUT,
                       "vocab_size_per_layer_input is %" PRId64
                       ", below the %" PRId64 " of vocab_size",
                       hp->ple_vocab, hp->vocab);
    return 0;
}

/* What per_layer_config may override. */
struct heads {
    int64_t head_dim, kv_heads;
};

static int override(const struct js_node *n, size_t layer, struct heads *h,
                    struct err *e)
{
    char key[96];
    int64_t v;

    for (n = js_first(n); n; n = js_next(n)) {
        bool dim = !strcmp(js_key(n), "head_dim");

        snprintf(key, sizeof key, "per_layer_config.%zu.%.48s", layer,
                 js_key(n));
        if (!dim && strcmp(js_key(n), "num_key_value_heads"))
            return err_set(e, ERR_UNSUPPORTED,
                           "'%s': of single layers, head_dim and "
                           "num_key_value_heads are read",
                           key);
        if (!js_integral(n, &v))
            return hp_type_error(n, key, "a whole number", e);
        if (v < 1 || v > MAX_HEADS)
            return err_set(e, ERR_INPUT,
                           "'%s' is %" PRId64 ", allowed are 1 to %d", key, v,
                           MAX_HEADS);
        *(dim ? &h->head_dim : &h->kv_heads) = v;
    }
    return 0;
}

static int read_overrides(const struct js_node *all, const struct hparams *hp,
                          struct heads *h, struct err *e)
{
    char t[HP_CLEAN_MAX];

    if (js_kind(all) != JS_OBJECT)
        return hp_type_error(all, "per_layer_config", "an object", e);
    for (const struct js_node *n = js_first(all); n; n = js_next(n)) {
        const char *key = js_key(n);
        uint64_t i;

        if (!num_parse_u64(key, strlen(key), &i) || i >= (uint64_t)hp->layers)
            return err_set(e, ERR_INPUT,
                           "'per_layer_config' names layer '%s', there are 0 "
                           "to %" PRId64,
                           hp_clean(t, key), hp->layers - 1);
        if (js_kind(n) != JS_OBJECT)
            return hp_type_error(n, "per_layer_config[...]", "an object", e);
        if (override(n, (size_t)i, &h[i], e))
            return -1;
    }
    return 0;
}

/* The older dialect: what full layers have. Their own number of key/value
 * heads counts only with attention_k_eq_v, as in transformers. */
static int read_global(const struct hp_reader *r, const struct hparams *hp,
                       struct heads *full, struct err *e)
{
    static const struct hp_row rows[] = {
        SIZE("global_head_dim", global_head_dim, 512, MAX_HEADS),
        { "num_global_key_value_heads", HP_INT, FIELD(global_kv_heads),
          HP_LEAVE, HP_LEAVE, 0, 1, MAX_HEADS, 0 },
    };
    struct hparams t = { 0 };

    if (hp_read_rows(r, rows, COUNT(rows), &t, e))
        return -1;
    full->head_dim = t.global_head_dim;
    if (t.global_kv_heads && hp->k_eq_v)
        full->kv_heads = t.global_kv_heads;
    return 0;
}

/* All layers of a kind must agree: caches have one shape per kind. */
static int agree(const struct hparams *hp, const struct heads *h, int kind,
                 struct heads *out, struct err *e)
{
    int64_t first = -1;

    for (int64_t i = 0; i < hp->layers; i++) {
        if (hp->layer_kind[i] != kind)
            continue;
        if (first < 0)
            first = i;
        if (h[i].head_dim != h[first].head_dim ||
            h[i].kv_heads != h[first].kv_heads)
            return err_set(e, ERR_UNSUPPORTED,
                           "layers %" PRId64 " and %" PRId64 " are both "
                           "%s_attention and have %" PRId64 " key/value heads "
                           "of %" PRId64 " and %" PRId64 " of %" PRId64
                           "; layers of one kind are computed with the same "
                           "heads only",
                           first, i, kind == HP_LAYER_FULL ? "full" : "sliding",
                           h[first].kv_heads, h[first].head_dim, h[i].kv_heads,
                           h[i].head_dim);
    }
    *out = h[first];
    return 0;
}

static int read_heads(const struct hp_reader *r, struct hparams *hp,
                      struct err *e)
{
    const struct js_node *all = hp_value(r->text, "per_layer_config");
    struct heads h[HP_MAX_LAYERS], base = { hp->head_dim, hp->kv_heads };
    struct heads full = base, sliding;

    if (!all && read_global(r, hp, &full, e))
        return -1;
    for (int64_t i = 0; i < hp->layers; i++)
        h[i] = hp->layer_kind[i] == HP_LAYER_FULL ? full : base;
    if (all && read_overrides(all, hp, h, e))
        return -1;
    if (agree(hp, h, HP_LAYER_FULL, &full, e) ||
        agree(hp, h, HP_LAYER_SLIDING, &sliding, e))
        return -1;
    hp->head_dim = sliding.head_dim;
    hp->kv_heads = sliding.kv_heads;
    hp->global_head_dim = full.head_dim;
    hp->global_kv_heads = full.kv_heads;
    return 0;
}

/* Layers from `layers - kv_shared_layers` on read the last layer of their
 * kind before. */
static int read_sources(struct hparams *hp, struct err *e)
{
    int64_t first = hp->layers - hp->kv_shared_layers;
    int64_t last[HP_LAYER_SLIDING + 1] = { -1, -1, -1 };

    if (first < 1)
        return err_set(e, ERR_INPUT,
                       "num_kv_shared_layers is %" PRId64 " of %" PRId64
                       " layers: none is left to compute keys and values",
                       hp->kv_shared_layers, hp->layers);
    for (int64_t i = 0; i < hp->layers; i++) {
        int kind = hp->layer_kind[i];

        if (i < first)
            last[kind] = i;
        if (last[kind] < 0)
            return err_set(e, ERR_INPUT,
                           "num_kv_shared_layers is %" PRId64 ": layer %" PRId64
                           " is %s_attention, and none of "
                           "the layers before %" PRId64 ", which compute keys "
                           "and values, is",
                           hp->kv_shared_layers, i,
                           kind == HP_LAYER_FULL ? "full" : "sliding", first);
        hp->kv_source[i] = (uint8_t)last[kind];
    }
    return 0;
}

int hp_parse_gemma4(struct hp_reader *r, struct hparams *hp, struct err *e)
{
    static const struct hp_layer_rope full = {
        .layer_type = "full_attention",
        .theta = 1e6,
        .type = "proportional",
        .part = 0.25,
    };
    bool unified = is_unified(hp);

    if (check_names(r, hp, e) ||
        hp_read_rows(r, unified ? unified_rows : gemma4_rows,
                     unified ? COUNT(unified_rows) : COUNT(gemma4_rows), hp,
                     e) ||
        (unified ? refuse_unified(r, hp, e) : read_experts(r, hp, e)) ||
        check_ple(hp, e) || read_kinds(r, hp, e) || read_heads(r, hp, e) ||
        read_sources(hp, e) || finish(r, hp, e))
        return -1;
    return read_ropes(r, hp, &full, e);
}
