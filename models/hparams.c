/*
 * config.json to hyper-parameters: the part that all families share. Which
 * level holds the text settings, which family it is, the table reader, tying
 * and token ids. RoPE is in hp_rope.c; the tables are the families'.
 *
 * It does not look at weights and does not judge quantization.
 */
#include "models/hparams_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"

/* Integers beyond this mean "no limit" in files that Python writes. */
#define NO_LIMIT 9007199254740992.0

void hp_note(const struct hp_reader *r, const char *fmt, ...)
{
    va_list ap;

    if (!r->notes)
        return;
    va_start(ap, fmt);
    buf_vprintf(r->notes, fmt, ap);
    va_end(ap);
    buf_addc(r->notes, '\n');
}

int hp_type_error(const struct js_node *n, const char *key, const char *needed,
                  struct err *e)
{
    return err_set(e, ERR_INPUT, "'%s' is %s, %s is needed", key,
                   js_kind_name(js_kind(n)), needed);
}

const struct js_node *hp_value(const struct js_node *object, const char *key)
{
    const struct js_node *n = js_get(object, key);

    return n && js_kind(n) != JS_NULL ? n : NULL;
}

const char *hp_clean(char out[HP_CLEAN_MAX], const char *s)
{
    size_t n = 0;

    for (; *s && n < HP_CLEAN_MAX - 4; s++)
        out[n++] = (unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s;
    if (*s) {
        /* Do not leave half of a UTF-8 sequence behind. */
        while (n && ((unsigned char)out[n - 1] & 0xc0) == 0x80)
            n--;
        if (n && ((unsigned char)out[n - 1] & 0xc0) == 0xc0)
            n--;
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = 0;
    return out;
}

/* A number as text for messages. */
static const char *number_text(char out[NUM_TEXT_MAX], double v)
{
    if (fabs(v) < 1e15 && floor(v) == v)
        snprintf(out, NUM_TEXT_MAX, "%" PRId64, (int64_t)v);
    else
        num_text(out, v);
    return out;
}

static int range_error(const struct hp_row *row, double v, struct err *e)
{
    char a[NUM_TEXT_MAX], b[NUM_TEXT_MAX], c[NUM_TEXT_MAX];

    return err_set(e, ERR_INPUT, "'%s' is %s, allowed are %s to %s", row->key,
                   number_text(a, v), number_text(b, row->min),
                   number_text(c, row->max));
}

static int set_int(const struct hp_row *row, const struct js_node *n,
                   int64_t *dst, struct err *e)
{
    double d;
    int64_t v;

    if (!js_double(n, &d))
        return hp_type_error(n, row->key, "a whole number", e);
    if (!js_integral(n, &v)) {
        if (!(d >= NO_LIMIT && d <= 1.7976931348623157e308)) {
            char t[NUM_TEXT_MAX];
            return err_set(e, ERR_INPUT, "'%s' is %s, a whole number is needed",
                           row->key, number_text(t, d));
        }
        v = (int64_t)NO_LIMIT;
    }
    if ((double)v < row->min || (double)v > row->max)
        return range_error(row, d, e);
    *dst = v;
    return 0;
}

static int set_real(const struct hp_row *row, const struct js_node *n,
                    double *dst, struct err *e)
{
    double d;

    if (!js_double(n, &d))
        return hp_type_error(n, row->key, "a number", e);
    if (!isfinite(d))
        return err_set(e, ERR_INPUT, "'%s' is not a finite number", row->key);
    if (d < row->min || d > row->max)
        return range_error(row, d, e);
    *dst = d;
    return 0;
}

static int check_word(const struct hp_row *row, const struct js_node *n,
                      struct err *e)
{
    const char *s;
    char t[HP_CLEAN_MAX];

    if (!js_string(n, &s))
        return hp_type_error(n, row->key, "a string", e);
    if (strcmp(s, row->only))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s '%s' is not computed, only '%s' is", row->key,
                       hp_clean(t, s), row->only);
    return 0;
}

static void set_default(const struct hp_reader *r, const struct hp_row *row,
                        void *field)
{
    char t[NUM_TEXT_MAX];

    switch (row->kind) {
    case HP_INT: *(int64_t *)field = (int64_t)row->def; break;
    case HP_REAL: *(double *)field = row->def; break;
    case HP_FLAG: *(bool *)field = row->def != 0.0; return;
    case HP_WORD: return;
    }
    hp_note(r, "%s has no '%s': the class default %s is used", r->level,
            row->key, number_text(t, row->def));
}

static int read_row(const struct hp_reader *r, const struct hp_row *row,
                    struct hparams *hp, struct err *e)
{
    const struct js_node *n = js_get(r->text, row->key);
    void *field = (char *)hp + row->offset;

    if (!n || js_kind(n) == JS_NULL) {
        switch (n ? row->null : row->absent) {
        case HP_LEAVE: return 0;
        case HP_CLASS: set_default(r, row, field); return 0;
        case HP_ASK: break;
        }
        return err_set(e, ERR_INPUT, "'%s' is %s, a value is needed", row->key,
                       n ? "null" : "absent");
    }
    switch (row->kind) {
    case HP_INT: return set_int(row, n, field, e);
    case HP_REAL: return set_real(row, n, field, e);
    case HP_FLAG:
        return js_bool(n, field)
                   ? 0
                   : hp_type_error(n, row->key, "true or false", e);
    case HP_WORD: return check_word(row, n, e);
    }
    return 0;
}

int hp_read_rows(const struct hp_reader *r, const struct hp_row *rows, size_t n,
                 struct hparams *hp, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (read_row(r, &rows[i], hp, e))
            return -1;
    return 0;
}

/* -1 absent or null, else 0 or 1. */
static int tie_at(const struct js_node *level, int *out, struct err *e)
{
    const struct js_node *n = hp_value(level, "tie_word_embeddings");
    bool v;

    *out = -1;
    if (!n)
        return 0;
    if (!js_bool(n, &v))
        return hp_type_error(n, "tie_word_embeddings", "true or false", e);
    *out = v;
    return 0;
}

static int tie_forced(const struct hp_reader *r, struct hparams *hp,
                      struct err *e)
{
    if (hp->tied || !r->opt.force_tie)
        return 0;
    if (r->opt.head == HP_HEAD_PRESENT)
        return err_set(e, ERR_INPUT,
                       "--tie would drop the checkpoint's own lm_head.weight, "
                       "and 'tie_word_embeddings' is false (%s)",
                       hp->tied_by);
    hp->tied = true;
    hp->tied_by = "--tie";
    return 0;
}

int hp_read_tie(const struct hp_reader *r, struct hparams *hp,
                bool class_default, struct err *e)
{
    int outer, inner = -1;

    if (tie_at(r->outer, &outer, e) ||
        (r->nested && tie_at(r->text, &inner, e)))
        return -1;
    hp->tied = class_default;
    hp->tied_by = "class default";
    if (outer >= 0 && inner >= 0 && outer != inner) {
        /* Untied without a head cannot be meant, so one reading is left. */
        if (r->opt.head != HP_HEAD_ABSENT)
            return err_set(e, ERR_INPUT,
                           "'tie_word_embeddings' is %s at the outer level "
                           "and %s in text_config",
                           outer ? "true" : "false", inner ? "true" : "false");
        hp->tied = true;
        hp->tied_by = "the missing lm_head.weight";
        hp_note(r, "'tie_word_embeddings' differs between the levels of the "
                   "config; without an lm_head.weight only tied is possible");
    } else if (outer >= 0) {
        hp->tied = outer;
        hp->tied_by = "config";
    } else if (inner >= 0) {
        hp->tied = inner;
        hp->tied_by = "text_config";
    }
    return tie_forced(r, hp, e);
}

static int layer_kind(const struct js_node *n, size_t i,
                      const struct hparams *hp,
                      const struct hp_layer_word *words, size_t n_words,
                      uint8_t *kinds, struct err *e)
{
    char t[HP_CLEAN_MAX];
    const char *s;

    if (!js_string(n, &s))
        return err_set(e, ERR_INPUT,
                       "layer_types[%zu] is %s, a string is needed", i,
                       js_kind_name(js_kind(n)));
    for (size_t k = 0; k < n_words; k++)
        if (!strcmp(s, words[k].word)) {
            if (kinds)
                kinds[i] = words[k].kind;
            return 0;
        }
    if (n_words == 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "layer_types[%zu] is '%s'; %s is computed with %s only",
                       i, hp_clean(t, s), hp->arch->name, words[0].word);
    return err_set(e, ERR_UNSUPPORTED,
                   "layer_types[%zu] is '%s'; %s and %s are computed", i,
                   hp_clean(t, s), words[0].word, words[1].word);
}

int hp_read_layer_types(const struct hp_reader *r, const struct hparams *hp,
                        const struct hp_layer_word *words, size_t n,
                        uint8_t *kinds, struct err *e)
{
    const struct js_node *a = hp_value(r->text, "layer_types"), *v;
    size_t i = 0;

    if (!a)
        return 0;
    if (js_kind(a) != JS_ARRAY)
        return hp_type_error(a, "layer_types", "an array of strings", e);
    if (js_count(a) != (uint64_t)hp->layers)
        return err_set(e, ERR_INPUT,
                       "'layer_types' has %zu entries, num_hidden_layers is "
                       "%" PRId64,
                       js_count(a), hp->layers);
    for (v = js_first(a); v; v = js_next(v), i++)
        if (layer_kind(v, i, hp, words, n, kinds, e))
            return -1;
    return 1;
}

int hp_read_full_layers(const struct hp_reader *r, const struct hparams *hp,
                        struct err *e)
{
    static const struct hp_layer_word full = { "full_attention",
                                               HP_LAYER_FULL };

    return hp_read_layer_types(r, hp, &full, 1, NULL, e) < 0 ? -1 : 0;
}

int hp_check_heads(struct hparams *hp, struct err *e)
{
    if (!hp->kv_heads)
        hp->kv_heads = hp->heads;
    if (hp->heads % hp->kv_heads)
        return err_set(e, ERR_INPUT,
                       "num_attention_heads %" PRId64 " is not a multiple of "
                       "num_key_value_heads %" PRId64,
                       hp->heads, hp->kv_heads);
    if (!hp->head_dim) {
        if (hp->hidden % hp->heads)
            return err_set(e, ERR_INPUT,
                           "hidden_size %" PRId64 " is not a multiple of "
                           "num_attention_heads %" PRId64
                           ", and there is no head_dim",
                           hp->hidden, hp->heads);
        hp->head_dim = hp->hidden / hp->heads;
    }
    if (hp->heads * hp->head_dim > (1 << 22))
        return err_set(e, ERR_INPUT,
                       "num_attention_heads %" PRId64 " times head_dim %" PRId64
                       " is above %d",
                       hp->heads, hp->head_dim, 1 << 22);
    return 0;
}

/* "llama, qwen3": every model_type that some family takes. */
static void list_types(struct buf *b)
{
    for (size_t i = 0; model_archs[i]; i++)
        for (const char *const *t = model_archs[i]->model_types; *t; t++)
            buf_printf(b, "%s%s", b->len ? ", " : "", *t);
}

static int unknown_type(const char *type, struct err *e)
{
    struct buf b = BUF_INIT;
    char t[HP_CLEAN_MAX];

    list_types(&b);
    err_set(e, ERR_UNSUPPORTED,
            "model_type '%s' is not supported (supported: %s)",
            hp_clean(t, type), buf_text(&b));
    buf_release(&b);
    return -1;
}

/* model_type of a level; NULL when absent. */
static int type_at(const struct js_node *level, const char *key,
                   const char **out, struct err *e)
{
    const struct js_node *n = hp_value(level, key);

    *out = NULL;
    if (n && !js_string(n, out))
        return hp_type_error(n, key, "a string", e);
    return 0;
}

static int find_family(const struct hp_reader *r, struct hparams *hp,
                       struct err *e)
{
    const char *outer, *inner = NULL, *type;
    const struct model_arch *a;
    char t[HP_CLEAN_MAX], u[HP_CLEAN_MAX];

    if (type_at(r->outer, "model_type", &outer, e) ||
        (r->nested && type_at(r->text, "model_type", &inner, e)))
        return -1;
    if (!outer && !inner)
        return err_set(e, ERR_INPUT, "there is no 'model_type'");
    type = outer ? outer : inner;
    a = model_arch_by_type(type);
    if (!a)
        return unknown_type(type, e);
    if (inner && model_arch_by_type(inner) != a)
        return err_set(e, ERR_UNSUPPORTED,
                       "model_type '%s' with a text_config of model_type '%s' "
                       "is not supported",
                       hp_clean(t, type), hp_clean(u, inner));
    hp->arch = a;
    snprintf(hp->model_type, sizeof hp->model_type, "%s", inner ? inner : type);
    return 0;
}

static int check_class(const struct hparams *hp, const char *name,
                       struct err *e)
{
    struct buf b = BUF_INIT;
    char t[HP_CLEAN_MAX];

    for (const char *const *c = hp->arch->architectures; *c; c++) {
        if (!strcmp(*c, name)) {
            buf_release(&b);
            return 0;
        }
        buf_printf(&b, "%s%s", b.len ? ", " : "", *c);
    }
    err_set(e, ERR_UNSUPPORTED,
            "model_type is '%s' but 'architectures' names '%s', which is not "
            "that model (it would be: %s)",
            hp->model_type, hp_clean(t, name), buf_text(&b));
    buf_release(&b);
    return -1;
}

static int read_architectures(const struct hp_reader *r, struct hparams *hp,
                              struct err *e)
{
    const struct js_node *a = hp_value(r->outer, "architectures"), *n;
    const char *s;

    if (!a && r->nested)
        a = hp_value(r->text, "architectures");
    if (!a)
        return 0;
    if (js_kind(a) != JS_ARRAY)
        return hp_type_error(a, "architectures", "an array of strings", e);
    for (n = js_first(a); n; n = js_next(n)) {
        if (!js_string(n, &s))
            return hp_type_error(n, "architectures[...]", "a string", e);
        if (check_class(hp, s, e))
            return -1;
        if (!hp->architecture[0])
            snprintf(hp->architecture, sizeof hp->architecture, "%s", s);
    }
    return 0;
}

static int token_id(const struct js_node *n, const char *key,
                    const struct hparams *hp, int64_t *out, struct err *e)
{
    double d;

    if (!js_double(n, &d))
        return hp_type_error(n, key, "a token id", e);
    if (!js_integral(n, out) || *out < 0 || *out >= hp->vocab) {
        char t[NUM_TEXT_MAX];
        return err_set(e, ERR_INPUT,
                       "'%s' is %s, token ids are whole numbers below "
                       "vocab_size %" PRId64,
                       key, number_text(t, d), hp->vocab);
    }
    return 0;
}

/* The inner value wins; the outer one stands in where it is absent. */
static const struct js_node *either(const struct hp_reader *r, const char *key)
{
    const struct js_node *n = hp_value(r->text, key);

    return n ? n : hp_value(r->outer, key);
}

static int read_eos(const struct js_node *n, struct hparams *hp, struct err *e)
{
    if (js_kind(n) != JS_ARRAY) {
        hp->n_eos = 1;
        return token_id(n, "eos_token_id", hp, &hp->eos[0], e);
    }
    if (js_count(n) > HP_MAX_STOP)
        return err_set(e, ERR_INPUT,
                       "'eos_token_id' lists %zu ids, at most %d are taken",
                       js_count(n), HP_MAX_STOP);
    for (n = js_first(n); n; n = js_next(n))
        if (token_id(n, "eos_token_id", hp, &hp->eos[hp->n_eos++], e))
            return -1;
    return 0;
}

static int read_tokens(const struct hp_reader *r, struct hparams *hp,
                       struct err *e)
{
    const struct js_node *n = either(r, "bos_token_id");

    hp->bos = -1;
    if (n && token_id(n, "bos_token_id", hp, &hp->bos, e))
        return -1;
    n = either(r, "eos_token_id");
    return n ? read_eos(n, hp, e) : 0;
}

static int read_dtype(const struct hp_reader *r, struct hparams *hp,
                      struct err *e)
{
    const char *key = "dtype", *s;
    const struct js_node *n = either(r, key);

    if (!n)
        n = either(r, key = "torch_dtype");
    if (!n)
        return 0;
    if (!js_string(n, &s))
        return hp_type_error(n, key, "a string", e);
    /* Old files write "torch.bfloat16". */
    if (!strncmp(s, "torch.", 6))
        s += 6;
    snprintf(hp->dtype, sizeof hp->dtype, "%s", s);
    return 0;
}

static int open_reader(struct hp_reader *r, const struct js_doc *config,
                       struct err *e)
{
    const struct js_node *inner;

    r->outer = r->text = js_root(config);
    r->level = "config.json";
    if (js_kind(r->outer) != JS_OBJECT)
        return err_set(e, ERR_INPUT, "it holds %s, an object is needed",
                       js_kind_name(js_kind(r->outer)));
    inner = hp_value(r->outer, "text_config");
    if (!inner)
        return 0;
    if (js_kind(inner) != JS_OBJECT)
        return hp_type_error(inner, "text_config", "an object", e);
    r->text = inner;
    r->level = "text_config";
    r->nested = true;
    return 0;
}

int hparams_parse_with(const struct js_doc *config,
                       const struct hp_options *opt, struct hparams *hp,
                       struct buf *notes, struct err *e)
{
    struct hp_reader r = { .opt = *opt, .notes = notes };

    memset(hp, 0, sizeof *hp);
    if (open_reader(&r, config, e) || find_family(&r, hp, e) ||
        read_architectures(&r, hp, e) || hp->arch->parse(&r, hp, e) ||
        read_tokens(&r, hp, e) || read_dtype(&r, hp, e))
        return -1;
    return notes ? buf_ok(notes, e) : 0;
}

int hparams_parse(const struct js_doc *config, struct hparams *hp,
                  struct buf *notes, struct err *e)
{
    struct hp_options opt = { HP_HEAD_UNKNOWN, false };

    return hparams_parse_with(config, &opt, hp, notes, e);
}

/* Full layers of a model that has sliding ones too. */
static bool is_global(const struct hparams *hp, int64_t layer)
{
    return hp->window && hp->layer_kind[layer] == HP_LAYER_FULL;
}

int64_t hp_layer_head_dim(const struct hparams *hp, int64_t layer)
{
    return is_global(hp, layer) ? hp->global_head_dim : hp->head_dim;
}

int64_t hp_layer_kv_heads(const struct hparams *hp, int64_t layer)
{
    return is_global(hp, layer) ? hp->global_kv_heads : hp->kv_heads;
}

const struct rope_params *hp_layer_rope(const struct hparams *hp, int64_t layer)
{
    return hp->window && !is_global(hp, layer) ? &hp->rope_local : &hp->rope;
}

int64_t hp_layer_kv_source(const struct hparams *hp, int64_t layer)
{
    return hp->kv_shared_layers ? hp->kv_source[layer] : layer;
}

int64_t hp_layer_intermediate(const struct hparams *hp, int64_t layer)
{
    bool wide =
        hp->double_wide_mlp && layer >= hp->layers - hp->kv_shared_layers;

    return wide ? 2 * hp->intermediate : hp->intermediate;
}

uint64_t hparams_count(const struct hparams *hp)
{
    return hp->arch->count(hp);
}

static void print_real(struct buf *out, const char *key, double v)
{
    buf_printf(out, "%s ", key);
    buf_double(out, v);
    buf_addc(out, '\n');
}

/* Keys of sliding layers stand behind "sliding_". */
static void print_rope(const char *of, const struct rope_params *p,
                       const char *by, struct buf *out)
{
    buf_printf(out, "%srope_type %s\n", of, rope_type_name(p->type));
    buf_printf(out, "%srope_theta ", of);
    buf_double(out, p->theta);
    buf_printf(out, " (%s)\n", by);
    buf_printf(out, "%srope_dim %d\n", of, p->dim);
    if (p->type == ROPE_DEFAULT)
        return;
    buf_printf(out, "%srope_factor ", of);
    buf_double(out, p->factor);
    buf_addc(out, '\n');
    if (p->type == ROPE_PROPORTIONAL)
        buf_printf(out, "%srope_pairs_that_turn %d\n", of, p->live);
    if (p->type == ROPE_LLAMA3) {
        print_real(out, "rope_low_freq_factor", p->low_freq_factor);
        print_real(out, "rope_high_freq_factor", p->high_freq_factor);
    }
    if (p->type == ROPE_YARN) {
        print_real(out, "rope_beta_fast", p->beta_fast);
        print_real(out, "rope_beta_slow", p->beta_slow);
        buf_printf(out, "rope_truncate %s\n", p->truncate ? "true" : "false");
        print_real(out, "rope_attention_scaling", p->attention_scaling);
    }
    if (p->type == ROPE_LLAMA3 || p->type == ROPE_YARN)
        print_real(out, "rope_original_max_position_embeddings",
                   p->original_max);
}

/* Runs of equal layers: "layer_types 0-2 linear_attention". */
static void print_layers(const struct hparams *hp, struct buf *out)
{
    static const char *const kinds[] = { [HP_LAYER_FULL] = "full",
                                         [HP_LAYER_LINEAR] = "linear",
                                         [HP_LAYER_SLIDING] = "sliding" };

    for (int64_t i = 0, end; i < hp->layers; i = end) {
        for (end = i + 1;
             end < hp->layers && hp->layer_kind[end] == hp->layer_kind[i];
             end++)
            continue;
        buf_printf(out, "layer_types %" PRId64, i);
        if (end > i + 1)
            buf_printf(out, "-%" PRId64, end - 1);
        buf_printf(out, " %s_attention\n", kinds[hp->layer_kind[i]]);
    }
}

static void print_linear(const struct hparams *hp, struct buf *out)
{
    print_layers(hp, out);
    buf_printf(out, "linear_num_key_heads %" PRId64 "\n", hp->lin_key_heads);
    buf_printf(out, "linear_num_value_heads %" PRId64 "\n",
               hp->lin_value_heads);
    buf_printf(out, "linear_key_head_dim %" PRId64 "\n", hp->lin_key_dim);
    buf_printf(out, "linear_value_head_dim %" PRId64 "\n", hp->lin_value_dim);
    buf_printf(out, "linear_conv_kernel_dim %" PRId64 "\n", hp->conv_kernel);
}

static void print_experts(const struct hparams *hp, struct buf *out)
{
    buf_printf(out, "num_experts %" PRId64 "\n", hp->experts);
    buf_printf(out, "num_experts_per_tok %" PRId64 "\n", hp->experts_per_token);
    buf_printf(out, "moe_intermediate_size %" PRId64 "\n",
               hp->moe_intermediate);
    if (hp->shared_intermediate)
        buf_printf(out, "shared_expert_intermediate_size %" PRId64 "\n",
                   hp->shared_intermediate);
}

/* Runs of layers that read the same layer's keys and values. */
static void print_sources(const struct hparams *hp, struct buf *out)
{
    int64_t first = hp->layers - hp->kv_shared_layers;

    for (int64_t i = first, end; i < hp->layers; i = end) {
        for (end = i + 1;
             end < hp->layers && hp->kv_source[end] == hp->kv_source[i]; end++)
            continue;
        buf_printf(out, "kv_source %" PRId64, i);
        if (end > i + 1)
            buf_printf(out, "-%" PRId64, end - 1);
        buf_printf(out, " layer %d\n", hp->kv_source[i]);
    }
}

static void print_gemma(const struct hparams *hp, struct buf *out)
{
    print_layers(hp, out);
    buf_printf(out, "sliding_window %" PRId64 "\n", hp->window);
    buf_printf(out, "global_head_dim %" PRId64 "\n", hp->global_head_dim);
    buf_printf(out, "num_global_key_value_heads %" PRId64 "\n",
               hp->global_kv_heads);
    if (hp->query_pre_attn_scalar > 0)
        print_real(out, "query_pre_attn_scalar", hp->query_pre_attn_scalar);
    if (hp->k_eq_v)
        buf_puts(out, "attention_k_eq_v true\n");
    if (hp->double_wide_mlp)
        buf_puts(out, "use_double_wide_mlp true\n");
    if (hp->kv_shared_layers)
        buf_printf(out, "num_kv_shared_layers %" PRId64 "\n",
                   hp->kv_shared_layers);
    print_sources(hp, out);
    if (hp->ple_width) {
        buf_printf(out, "hidden_size_per_layer_input %" PRId64 "\n",
                   hp->ple_width);
        buf_printf(out, "vocab_size_per_layer_input %" PRId64 "\n",
                   hp->ple_vocab);
        print_real(out, "per_layer_embedding_scale", hp->ple_scale);
    }
    print_real(out, "embedding_scale", hp->embed_scale);
    if (hp->final_softcap > 0)
        print_real(out, "final_logit_softcapping", hp->final_softcap);
}

void hparams_print(const struct hparams *hp, struct buf *out)
{
    buf_printf(out, "model_type %s\n", hp->model_type);
    if (hp->architecture[0])
        buf_printf(out, "architecture %s\n", hp->architecture);
    buf_printf(out, "vocab_size %" PRId64 "\n", hp->vocab);
    buf_printf(out, "hidden_size %" PRId64 "\n", hp->hidden);
    if (hp->intermediate)
        buf_printf(out, "intermediate_size %" PRId64 "\n", hp->intermediate);
    buf_printf(out, "num_hidden_layers %" PRId64 "\n", hp->layers);
    buf_printf(out, "num_attention_heads %" PRId64 "\n", hp->heads);
    buf_printf(out, "num_key_value_heads %" PRId64 "\n", hp->kv_heads);
    buf_printf(out, "head_dim %" PRId64 "\n", hp->head_dim);
    if (hp->conv_kernel)
        print_linear(hp, out);
    if (hp->window)
        print_gemma(hp, out);
    if (hp->experts)
        print_experts(hp, out);
    buf_printf(out, "max_position_embeddings %" PRId64 "\n", hp->max_positions);
    print_real(out, "rms_norm_eps", hp->rms_eps);
    buf_printf(out, "tie_word_embeddings %s (%s)\n",
               hp->tied ? "true" : "false", hp->tied_by);
    if (hp->attention_bias)
        buf_puts(out, "attention_bias true\n");
    if (hp->mlp_bias)
        buf_puts(out, "mlp_bias true\n");
    print_rope("", &hp->rope, hp->rope_by, out);
    if (hp->window)
        print_rope("sliding_", &hp->rope_local, hp->rope_local_by, out);
    if (hp->dtype[0])
        buf_printf(out, "dtype %s\n", hp->dtype);
    if (hp->bos >= 0)
        buf_printf(out, "bos_token_id %" PRId64 "\n", hp->bos);
    for (int i = 0; i < hp->n_eos; i++)
        buf_printf(out, "eos_token_id %" PRId64 "\n", hp->eos[i]);
    buf_printf(out, "parameters %" PRIu64 "\n", hparams_count(hp));
}
