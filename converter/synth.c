/*
 * Synthetic checkpoints: a table of model shapes, and what writes one.
 *
 * A model is one row of `models`; a family is its config.json and its list of
 * tensors. Every weight is a function of (seed, tensor name, row, column)
 * alone, so no order of writing and no sharding changes it. Values come from
 * a table of Gaussian quantiles made without libm.
 */
#include "converter/synth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/dmath.h"
#include "converter/base/hash.h"
#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "safetensors/st.h"

#define SINGLE_MAX UINT64_C(2000000000)
#define SHARD_MAX UINT64_C(5000000000)

/* Ids of the tokenizer: the bytes, then these. */
enum { TOK_END_OF_TEXT = 256, TOK_IM_START, TOK_IM_END, TOK_COUNT };
static const char *const special_tokens[] = { "<|endoftext|>", "<|im_start|>",
                                              "<|im_end|>" };

static const char chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

struct model {
    const char *arch, *like;
    uint64_t hidden, inter, layers, heads, kv_heads, head_dim, vocab;
    uint64_t positions;
    double theta, eps;
    double rope_factor; /* llama3 scaling; 0 = none */
    bool tied;
    bool head_copy;      /* tied, yet lm_head.weight is in the file */
    bool no_head_dim;    /* config.json leaves head_dim out */
    const char *version; /* transformers_version */
};

/* What a family's `tensors` fills and the writer consumes. */
enum kind { KIND_MATRIX, KIND_NORM };
struct tensor {
    char name[96];
    char like[96]; /* the name whose weights it repeats, or "" */
    enum kind kind;
    int rank;
    uint64_t dims[2];
    double sigma;
    int shard;
};
struct plan {
    struct tensor *t;
    size_t n, cap;
    uint64_t bytes, parameters;
    int shards;
};

struct family {
    const char *arch;
    void (*config)(const struct model *m, struct js_writer *w);
    int (*tensors)(const struct model *m, struct plan *p, struct err *e);
};

static void config_qwen3(const struct model *m, struct js_writer *w);
static void config_llama(const struct model *m, struct js_writer *w);
static int tensors_dense(const struct model *m, struct plan *p, struct err *e);

static const struct family families[] = {
    { "qwen3", config_qwen3, tensors_dense },
    { "llama", config_llama, tensors_dense },
};
#define N_FAMILIES (sizeof families / sizeof families[0])

/* Columns: H, I, L, heads, kv heads, head_dim, V, positions, theta, eps. */
/* clang-format off */
static const struct model models[] = {
    { "qwen3", "tiny", 128, 320, 3, 4, 2, 32, 512, 40960, 1e6, 1e-6,
      .tied = true, .version = "4.51.0" },
    /* pairwise different widths, heads x head_dim unlike H, prime V */
    { "qwen3", "odd", 160, 352, 5, 6, 2, 32, 1009, 40960, 1e6, 1e-6,
      .version = "4.51.0" },
    { "qwen3", "qwen3-0.6b", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6,
      1e-6, .tied = true, .head_copy = true, .version = "4.51.0" },
    { "qwen3", "qwen3-1.7b", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6,
      1e-6, .tied = true, .head_copy = true, .version = "4.51.0" },
    { "qwen3", "qwen3-4b", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6,
      1e-6, .tied = true, .version = "4.51.0" },
    { "qwen3", "qwen3-8b", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6,
      1e-6, .version = "4.51.0" },
    { "qwen3", "qwen3-14b", 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e6,
      1e-6, .version = "4.51.0" },
    { "qwen3", "qwen3-32b", 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e6,
      1e-6, .version = "4.51.0" },
    { "llama", "tiny", 128, 288, 3, 4, 2, 32, 512, 131072, 5e5, 1e-5,
      .rope_factor = 32, .tied = true, .version = "4.45.0" },
    { "llama", "llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5,
      1e-5, .rope_factor = 32, .tied = true, .version = "4.45.0" },
    { "llama", "llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5,
      1e-5, .rope_factor = 32, .tied = true, .version = "4.45.0" },
    { "llama", "llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072,
      5e5, 1e-5, .rope_factor = 8, .no_head_dim = true, .version = "4.43.0" },
    { "llama", "smollm2-135m", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5, 1e-5,
      .tied = true, .no_head_dim = true, .version = "4.42.3" },
};
/* clang-format on */
#define N_MODELS (sizeof models / sizeof models[0])

/* config.json, in the order and spelling of transformers 4. */

static void config_common(const struct model *m, struct js_writer *w,
                          const char *class)
{
    js_w_array(w, "architectures", false);
    js_w_string(w, NULL, class);
    js_w_end(w);
    js_w_bool(w, "attention_bias", false);
    js_w_double(w, "attention_dropout", 0);
    js_w_uint(w, "bos_token_id", TOK_END_OF_TEXT);
    js_w_uint(w, "eos_token_id", TOK_IM_END);
    if (!m->no_head_dim)
        js_w_uint(w, "head_dim", m->head_dim);
    js_w_string(w, "hidden_act", "silu");
    js_w_uint(w, "hidden_size", m->hidden);
    js_w_double(w, "initializer_range", 0.02);
    js_w_uint(w, "intermediate_size", m->inter);
    js_w_uint(w, "max_position_embeddings", m->positions);
}

static void config_tail(const struct model *m, struct js_writer *w)
{
    js_w_bool(w, "tie_word_embeddings", m->tied);
    js_w_string(w, "torch_dtype", "bfloat16");
    js_w_string(w, "transformers_version", m->version);
    js_w_bool(w, "use_cache", true);
}

static void config_qwen3(const struct model *m, struct js_writer *w)
{
    config_common(m, w, "Qwen3ForCausalLM");
    js_w_uint(w, "max_window_layers", m->layers);
    js_w_string(w, "model_type", "qwen3");
    js_w_uint(w, "num_attention_heads", m->heads);
    js_w_uint(w, "num_hidden_layers", m->layers);
    js_w_uint(w, "num_key_value_heads", m->kv_heads);
    js_w_double(w, "rms_norm_eps", m->eps);
    js_w_null(w, "rope_scaling");
    js_w_uint(w, "rope_theta", (uint64_t)m->theta);
    js_w_null(w, "sliding_window");
    config_tail(m, w);
    js_w_bool(w, "use_sliding_window", false);
    js_w_uint(w, "vocab_size", m->vocab);
}

static void config_llama(const struct model *m, struct js_writer *w)
{
    config_common(m, w, "LlamaForCausalLM");
    js_w_bool(w, "mlp_bias", false);
    js_w_string(w, "model_type", "llama");
    js_w_uint(w, "num_attention_heads", m->heads);
    js_w_uint(w, "num_hidden_layers", m->layers);
    js_w_uint(w, "num_key_value_heads", m->kv_heads);
    js_w_uint(w, "pretraining_tp", 1);
    js_w_double(w, "rms_norm_eps", m->eps);
    if (m->rope_factor > 0) {
        js_w_object(w, "rope_scaling");
        js_w_double(w, "factor", m->rope_factor);
        js_w_double(w, "high_freq_factor", 4);
        js_w_double(w, "low_freq_factor", 1);
        js_w_uint(w, "original_max_position_embeddings", 8192);
        js_w_string(w, "rope_type", "llama3");
        js_w_end(w);
    } else {
        js_w_null(w, "rope_scaling");
    }
    js_w_double(w, "rope_theta", m->theta);
    config_tail(m, w);
    js_w_uint(w, "vocab_size", m->vocab);
}

/* Lists of tensors. */

static int add_tensor(struct plan *p, struct err *e, struct tensor t)
{
    uint64_t elems = t.rank == 2 ? t.dims[0] * t.dims[1] : t.dims[0];

    if (mem_grow((void **)&p->t, &p->cap, p->n, sizeof *p->t, e))
        return -1;
    p->t[p->n++] = t;
    p->bytes += 2 * elems;
    if (!t.like[0])
        p->parameters += elems;
    return 0;
}

static int add_norm(struct plan *p, struct err *e, const char *prefix,
                    const char *name, uint64_t n)
{
    struct tensor t = { .kind = KIND_NORM, .rank = 1, .dims = { n, 0 } };

    t.sigma = 0.15;
    snprintf(t.name, sizeof t.name, "%s%s.weight", prefix, name);
    return add_tensor(p, e, t);
}

/* Newton's square root: the same bits everywhere, without libm. */
static double root(double x)
{
    double r = x > 1 ? x : 1;

    for (int i = 0; i < 64; i++)
        r = 0.5 * (r + x / r);
    return r;
}

/* `gain` is the standard deviation of an output for inputs of deviation 1. */
static int add_matrix(struct plan *p, struct err *e, const char *prefix,
                      const char *name, uint64_t rows, uint64_t cols,
                      double gain)
{
    struct tensor t = { .kind = KIND_MATRIX,
                        .rank = 2,
                        .dims = { rows, cols } };

    t.sigma = gain / root((double)cols);
    snprintf(t.name, sizeof t.name, "%s%s.weight", prefix, name);
    return add_tensor(p, e, t);
}

/* Logits of deviation 2.5: some positions are decided, some are close. */
#define LOGIT_GAIN 2.5

/* Pre-norm blocks of gated MLP and grouped attention; q and k norms for
 * qwen3. The branches add up to a residual of deviation about 2. */
static int tensors_dense(const struct model *m, struct plan *p, struct err *e)
{
    bool qk_norm = !strcmp(m->arch, "qwen3");
    double out_gain = root(6.0 / (double)m->layers);
    uint64_t h = m->hidden, q = m->heads * m->head_dim,
             kv = m->kv_heads * m->head_dim;
    struct tensor copy = { .kind = KIND_MATRIX,
                           .rank = 2,
                           .dims = { m->vocab, h },
                           .name = "lm_head.weight",
                           .like = "model.embed_tokens.weight" };

    copy.sigma = LOGIT_GAIN / root((double)h);
    if (add_matrix(p, e, "model.", "embed_tokens", m->vocab, h, LOGIT_GAIN))
        return -1;
    for (uint64_t i = 0; i < m->layers; i++) {
        char at[48];
        snprintf(at, sizeof at, "model.layers.%" PRIu64 ".", i);
        if (add_norm(p, e, at, "input_layernorm", h) ||
            add_matrix(p, e, at, "mlp.down_proj", h, m->inter, out_gain) ||
            add_matrix(p, e, at, "mlp.gate_proj", m->inter, h, 1) ||
            add_matrix(p, e, at, "mlp.up_proj", m->inter, h, 1) ||
            add_norm(p, e, at, "post_attention_layernorm", h) ||
            (qk_norm && add_norm(p, e, at, "self_attn.k_norm", m->head_dim)) ||
            add_matrix(p, e, at, "self_attn.k_proj", kv, h, 1) ||
            add_matrix(p, e, at, "self_attn.o_proj", h, q, out_gain) ||
            (qk_norm && add_norm(p, e, at, "self_attn.q_norm", m->head_dim)) ||
            add_matrix(p, e, at, "self_attn.q_proj", q, h, 1) ||
            add_matrix(p, e, at, "self_attn.v_proj", kv, h, 1))
            return -1;
    }
    if (add_norm(p, e, "model.", "norm", h))
        return -1;
    if (m->head_copy)
        return add_tensor(p, e, copy);
    return m->tied ? 0
                   : add_matrix(p, e, "", "lm_head", m->vocab, h, LOGIT_GAIN);
}

static const struct family *family_of(const char *arch)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (!strcmp(families[i].arch, arch))
            return &families[i];
    return NULL;
}

static int make_plan(struct plan *p, const struct model *m, struct err *e)
{
    memset(p, 0, sizeof *p);
    return family_of(m->arch)->tensors(m, p, e);
}

bool synth_model_at(size_t i, struct synth_info *out)
{
    struct err e = ERR_INIT;
    struct plan p;
    bool ok;

    if (i >= N_MODELS)
        return false;
    ok = !make_plan(&p, &models[i], &e);
    out->arch = models[i].arch;
    out->like = models[i].like;
    out->parameters = p.parameters;
    out->file_bytes = p.bytes;
    mem_free(p.t);
    return ok;
}

static const struct model *find_model(const char *arch, const char *like,
                                      struct err *e)
{
    struct buf list = BUF_INIT;
    const struct model *found = NULL;

    if (!family_of(arch)) {
        for (size_t i = 0; i < N_FAMILIES; i++)
            buf_printf(&list, "%s%s", i ? ", " : "", families[i].arch);
        err_set(e, ERR_USAGE, "no architecture '%s', there are %s", arch,
                buf_text(&list));
        buf_release(&list);
        return NULL;
    }
    for (size_t i = 0; i < N_MODELS && !found; i++) {
        if (strcmp(models[i].arch, arch) != 0)
            continue;
        buf_printf(&list, "%s%s", list.len ? ", " : "", models[i].like);
        if (!strcmp(models[i].like, like))
            found = &models[i];
    }
    if (!found)
        err_set(e, ERR_USAGE, "no model '%s' of architecture %s, there are %s",
                like, arch, buf_text(&list));
    buf_release(&list);
    return found;
}

/* Weights. */

/* SplitMix64's finaliser: a bijection that spreads every bit. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

#define QUANTILE_BITS 14
#define QUANTILES (1 << QUANTILE_BITS)

static double density(double x)
{
    return 0.3989422804014327 * dm_exp(-0.5 * x * x);
}

/* q[k] = the point below which a share (k + 1/2) / QUANTILES of a Gaussian
 * lies. Marches outward from the middle, integrating by Simpson's rule and
 * correcting by Newton's. */
static void make_quantiles(float *q)
{
    double x = 0, p = 0.5;

    for (int k = QUANTILES / 2; k < QUANTILES; k++) {
        double want = (k + 0.5) / QUANTILES, from = x, reached = p;
        for (int i = 0; i < 4; i++) {
            x += (want - reached) / density(x);
            reached = p + (x - from) / 6 *
                              (density(from) + 4 * density((from + x) / 2) +
                               density(x));
        }
        p = reached;
        q[k] = (float)x;
        q[QUANTILES - 1 - k] = (float)-x;
    }
}

/* One row in 61 has heavy tails: one value in 64 there is six times larger. */
static void add_tails(float *dst, uint64_t n, uint64_t key)
{
    if (key % 61)
        return;
    for (uint64_t i = 0; i < n; i++)
        if (mix(key + i * GOLDEN) >> 58 == 0)
            dst[i] *= 6;
}

static void fill_row(float *dst, uint64_t n, const struct tensor *t,
                     uint64_t key, const float *q)
{
    const uint64_t mask = QUANTILES - 1;
    double u = (double)(mix(key) >> 11) / 9007199254740992.0;
    float scale = (float)(t->sigma * (0.75 + 0.5 * u));
    uint64_t i = 0;

    for (; i + 4 <= n; i += 4) {
        uint64_t r = mix(key += GOLDEN);
        dst[i] = scale * q[r & mask];
        dst[i + 1] = scale * q[r >> 16 & mask];
        dst[i + 2] = scale * q[r >> 32 & mask];
        dst[i + 3] = scale * q[r >> 48 & mask];
    }
    for (; i < n; i++)
        dst[i] = scale * q[mix(key += GOLDEN) & mask];
    if (t->kind == KIND_MATRIX)
        add_tails(dst, n, key);
    else
        for (i = 0; i < n; i++)
            dst[i] = 1 + dst[i] < 0.25f ? 0.25f : 1 + dst[i];
}

#define BLOCK_ELEMS UINT64_C(262144)

struct maker {
    const struct model *m;
    struct plan plan;
    uint64_t seed;
    const char *dir;
    const struct log *log;
    uint64_t done;
    float *quantiles;
    float *block;
    bf16_t *half;
};

static int write_tensor(struct maker *mk, struct st_writer *w,
                        const struct tensor *t, struct err *e)
{
    const char *name = t->like[0] ? t->like : t->name;
    uint64_t key = mix(mk->seed ^ hash_bytes(name, strlen(name)).lo);
    uint64_t rows = t->rank == 2 ? t->dims[0] : 1;
    uint64_t cols = t->dims[t->rank - 1];
    uint64_t per_block = cols < BLOCK_ELEMS ? BLOCK_ELEMS / cols : 1;

    for (uint64_t row = 0; row < rows; row += per_block) {
        uint64_t n = rows - row < per_block ? rows - row : per_block;
        if (log_cancelled(mk->log))
            return err_set(e, ERR_CANCELLED, "cancelled");
        for (uint64_t i = 0; i < n; i++)
            fill_row(mk->block + i * cols, cols, t,
                     mix(key + (row + i) * GOLDEN), mk->quantiles);
        num_f32_to_bf16(mk->half, mk->block, (size_t)(n * cols));
        for (uint64_t i = 0; i < n * cols; i++)
            store_le16(&mk->half[i], mk->half[i]);
        if (st_writer_write(w, mk->half, (size_t)(n * cols) * 2, e))
            return -1;
        mk->done += n * cols * 2;
        log_progress(mk->log, "weights", mk->done, mk->plan.bytes, "bytes");
    }
    return 0;
}

static void shard_name(char *out, size_t cap, int shard, int shards)
{
    if (shards)
        snprintf(out, cap, "model-%05d-of-%05d.safetensors", shard + 1, shards);
    else
        snprintf(out, cap, "model.safetensors");
}

static int write_shard(struct maker *mk, int shard, struct err *e)
{
    const struct plan *p = &mk->plan;
    struct st_writer *w = st_writer_new(e);
    char name[64];
    char *path;
    int rc = w ? 0 : -1;

    shard_name(name, sizeof name, shard, p->shards);
    path = io_join(mk->dir, name, e);
    if (!path)
        rc = -1;
    for (size_t i = 0; i < p->n && !rc; i++)
        if (p->t[i].shard == shard)
            rc = st_writer_add(w, p->t[i].name, ST_BF16, p->t[i].rank,
                               p->t[i].dims, e);
    if (!rc)
        rc = st_writer_begin(w, path, e);
    for (size_t i = 0; i < p->n && !rc; i++)
        if (p->t[i].shard == shard)
            rc = write_tensor(mk, w, &p->t[i], e);
    if (!rc)
        rc = st_writer_finish(w, e);
    st_writer_free(w);
    mem_free(path);
    return rc;
}

/* Fills shards in the order of the model, as transformers does. */
static void assign_shards(struct plan *p, uint64_t single_max,
                          uint64_t shard_max)
{
    uint64_t used = 0;
    int shard = 0;

    if (p->bytes <= single_max)
        return;
    for (size_t i = 0; i < p->n; i++) {
        const struct tensor *t = &p->t[i];
        uint64_t bytes = 2 * t->dims[0] * (t->rank == 2 ? t->dims[1] : 1);
        if (used && bytes > shard_max - used) {
            shard++;
            used = 0;
        }
        used = bytes < shard_max ? used + bytes : shard_max;
        p->t[i].shard = shard;
    }
    p->shards = shard + 1;
}

static int by_name(const void *pa, const void *pb)
{
    const struct tensor *a = pa, *b = pb;

    return strcmp(a->name, b->name);
}

/* Files beside the weights. */

static int save(const struct maker *mk, const char *name, struct buf *b,
                struct err *e)
{
    char *path = io_join(mk->dir, name, e);
    int rc = -1;

    if (path && !buf_ok(b, e))
        rc = io_write_file(path, b->data, b->len, e);
    mem_free(path);
    buf_release(b);
    return rc;
}

static int write_index(const struct maker *mk, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;
    char file[64];

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_object(&w, "metadata");
    js_w_uint(&w, "total_size", mk->plan.bytes);
    js_w_end(&w);
    js_w_object(&w, "weight_map");
    for (size_t i = 0; i < mk->plan.n; i++) {
        shard_name(file, sizeof file, mk->plan.t[i].shard, mk->plan.shards);
        js_w_string(&w, mk->plan.t[i].name, file);
    }
    js_w_end(&w);
    js_w_end(&w);
    return save(mk, "model.safetensors.index.json", &b, e);
}

static int write_config(const struct maker *mk, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    family_of(mk->m->arch)->config(mk->m, &w);
    js_w_end(&w);
    return save(mk, "config.json", &b, e);
}

static int write_generation(const struct maker *mk, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_uint(&w, "bos_token_id", TOK_END_OF_TEXT);
    js_w_bool(&w, "do_sample", true);
    js_w_array(&w, "eos_token_id", false);
    js_w_uint(&w, NULL, TOK_IM_END);
    js_w_uint(&w, NULL, TOK_END_OF_TEXT);
    js_w_end(&w);
    js_w_uint(&w, "pad_token_id", TOK_END_OF_TEXT);
    js_w_double(&w, "temperature", 0.6);
    js_w_uint(&w, "top_k", 20);
    js_w_double(&w, "top_p", 0.95);
    js_w_string(&w, "transformers_version", mk->m->version);
    js_w_end(&w);
    return save(mk, "generation_config.json", &b, e);
}

/* The printable stand-in that byte-level tokenizers use for a byte: itself
 * where it prints, else the next of U+0100, U+0101, ... */
static void byte_text(char out[4], unsigned byte)
{
    unsigned c = byte, next = 0x100;

    for (unsigned b = 0; b <= byte; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) ||
                      (b >= 0xae && b <= 0xff);
        if (b == byte)
            c = prints ? b : next;
        else if (!prints)
            next++;
    }
    if (c < 0x80) {
        snprintf(out, 4, "%c", (int)c);
    } else {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        out[2] = 0;
    }
}

static void special_object(struct js_writer *w, const char *key, int i)
{
    js_w_object(w, key);
    if (!key)
        js_w_uint(w, "id", (uint64_t)(TOK_END_OF_TEXT + i));
    js_w_string(w, "content", special_tokens[i]);
    js_w_bool(w, "single_word", false);
    js_w_bool(w, "lstrip", false);
    js_w_bool(w, "rstrip", false);
    js_w_bool(w, "normalized", false);
    js_w_bool(w, "special", true);
    js_w_end(w);
}

static void byte_level(struct js_writer *w, const char *key)
{
    js_w_object(w, key);
    js_w_string(w, "type", "ByteLevel");
    js_w_bool(w, "add_prefix_space", false);
    js_w_bool(w, "trim_offsets", false);
    js_w_bool(w, "use_regex", false);
    js_w_end(w);
}

static void pre_tokenizer(struct js_writer *w)
{
    js_w_object(w, "pre_tokenizer");
    js_w_string(w, "type", "Sequence");
    js_w_array(w, "pretokenizers", false);
    js_w_object(w, NULL);
    js_w_string(w, "type", "Split");
    js_w_object(w, "pattern");
    js_w_string(w, "Regex",
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                "\\s+(?!\\S)|\\s+");
    js_w_end(w);
    js_w_string(w, "behavior", "Isolated");
    js_w_bool(w, "invert", false);
    js_w_end(w);
    byte_level(w, NULL);
    js_w_end(w);
    js_w_end(w);
}

static void bpe_model(struct js_writer *w)
{
    char text[4];

    js_w_object(w, "model");
    js_w_string(w, "type", "BPE");
    js_w_null(w, "dropout");
    js_w_null(w, "unk_token");
    js_w_string(w, "continuing_subword_prefix", "");
    js_w_string(w, "end_of_word_suffix", "");
    js_w_bool(w, "fuse_unk", false);
    js_w_bool(w, "byte_fallback", false);
    js_w_bool(w, "ignore_merges", false);
    js_w_object(w, "vocab");
    for (unsigned b = 0; b < 256; b++) {
        byte_text(text, b);
        js_w_uint(w, text, b);
    }
    js_w_end(w);
    js_w_array(w, "merges", false);
    js_w_end(w);
    js_w_end(w);
}

static int write_tokenizer(const struct maker *mk, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_string(&w, "version", "1.0");
    js_w_null(&w, "truncation");
    js_w_null(&w, "padding");
    js_w_array(&w, "added_tokens", false);
    for (int i = 0; i < TOK_COUNT - TOK_END_OF_TEXT; i++)
        special_object(&w, NULL, i);
    js_w_end(&w);
    js_w_object(&w, "normalizer");
    js_w_string(&w, "type", "NFC");
    js_w_end(&w);
    pre_tokenizer(&w);
    byte_level(&w, "post_processor");
    byte_level(&w, "decoder");
    bpe_model(&w);
    js_w_end(&w);
    return save(mk, "tokenizer.json", &b, e);
}

static int write_tokenizer_config(const struct maker *mk, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;
    char id[16];

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_bool(&w, "add_bos_token", false);
    js_w_bool(&w, "add_prefix_space", false);
    js_w_object(&w, "added_tokens_decoder");
    for (int i = 0; i < TOK_COUNT - TOK_END_OF_TEXT; i++) {
        snprintf(id, sizeof id, "%d", TOK_END_OF_TEXT + i);
        special_object(&w, id, i);
    }
    js_w_end(&w);
    js_w_null(&w, "bos_token");
    js_w_string(&w, "chat_template", chat_template);
    js_w_bool(&w, "clean_up_tokenization_spaces", false);
    js_w_string(&w, "eos_token", "<|im_end|>");
    js_w_uint(&w, "model_max_length", mk->m->positions);
    js_w_string(&w, "pad_token", "<|endoftext|>");
    js_w_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    js_w_null(&w, "unk_token");
    js_w_end(&w);
    return save(mk, "tokenizer_config.json", &b, e);
}

static int check_space(const struct maker *mk, struct err *e)
{
    char need[NUM_TEXT_MAX], have[NUM_TEXT_MAX];
    uint64_t bytes;

    if (io_free_bytes(mk->dir, &bytes, e))
        return -1;
    if (bytes > mk->plan.bytes)
        return 0;
    num_bytes_text(need, mk->plan.bytes);
    num_bytes_text(have, bytes);
    return err_set(e, ERR_IO, "%s %s needs %s of disk, %s are free",
                   mk->m->arch, mk->m->like, need, have);
}

static int make_all(struct maker *mk, struct err *e)
{
    const struct plan *p = &mk->plan;
    uint64_t widest = BLOCK_ELEMS;

    for (size_t i = 0; i < p->n; i++)
        if (p->t[i].dims[p->t[i].rank - 1] > widest)
            widest = p->t[i].dims[p->t[i].rank - 1];
    mk->quantiles = mem_alloc(QUANTILES, sizeof *mk->quantiles, e);
    mk->block = mem_alloc((size_t)widest, sizeof *mk->block, e);
    mk->half = mem_alloc((size_t)widest, sizeof *mk->half, e);
    if (!mk->quantiles || !mk->block || !mk->half || check_space(mk, e))
        return -1;
    make_quantiles(mk->quantiles);
    if (write_config(mk, e) || write_generation(mk, e) ||
        write_tokenizer(mk, e) || write_tokenizer_config(mk, e) ||
        (p->shards && write_index(mk, e)))
        return -1;
    for (int i = 0; i < (p->shards ? p->shards : 1); i++)
        if (write_shard(mk, i, e))
            return -1;
    return 0;
}

int synth_checkpoint_sharded(const char *arch, const char *like, uint64_t seed,
                             const char *dir, uint64_t single_max,
                             uint64_t shard_max, const struct log *log,
                             struct err *e)
{
    struct io_stage stage = IO_STAGE_INIT;
    struct maker mk = { .seed = seed, .log = log };
    int rc = -1;

    mk.m = find_model(arch, like, e);
    if (!mk.m)
        return -1;
    if (make_plan(&mk.plan, mk.m, e))
        goto out;
    assign_shards(&mk.plan, single_max, shard_max);
    qsort(mk.plan.t, mk.plan.n, sizeof *mk.plan.t, by_name);
    if (io_stage_begin(&stage, dir, false, e))
        goto out;
    mk.dir = stage.dir;
    if (!make_all(&mk, e))
        rc = io_stage_commit(&stage, e);
out:
    io_stage_release(&stage);
    mem_free(mk.plan.t);
    mem_free(mk.quantiles);
    mem_free(mk.block);
    mem_free(mk.half);
    return rc;
}

int synth_checkpoint(const char *arch, const char *like, uint64_t seed,
                     const char *dir, const struct log *log, struct err *e)
{
    return synth_checkpoint_sharded(arch, like, seed, dir, SINGLE_MAX,
                                    SHARD_MAX, log, e);
}
