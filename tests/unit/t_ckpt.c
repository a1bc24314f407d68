#include "t_ckpt.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"

static const char config_text[] = "{\n"
                                  "  \"architectures\": [\"%s\"],\n"
                                  "  \"model_type\": \"%s\",\n"
                                  "  \"vocab_size\": 16,\n"
                                  "  \"hidden_size\": 8,\n"
                                  "  \"intermediate_size\": 12,\n"
                                  "  \"num_hidden_layers\": 3,\n"
                                  "  \"num_attention_heads\": 2,\n"
                                  "  \"num_key_value_heads\": 1,\n"
                                  "  \"head_dim\": 4,\n"
                                  "  \"hidden_act\": \"silu\",\n"
                                  "  \"max_position_embeddings\": 64,\n"
                                  "  \"rms_norm_eps\": 1e-05,\n"
                                  "  \"tie_word_embeddings\": %s,\n"
                                  "  \"rope_theta\": 10000.0,\n"
                                  "  \"rope_scaling\": null,\n"
                                  "  \"torch_dtype\": \"bfloat16\",\n"
                                  "  \"bos_token_id\": 1,\n"
                                  "  \"eos_token_id\": [2, 3]\n"
                                  "}\n";

void t_ckpt_add(struct t_ckpt *c, const char *name, int rank, uint64_t d0,
                uint64_t d1)
{
    struct t_tensor *t = &c->t[c->n];

    cr_assert_lt(c->n, T_CKPT_MAX);
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->dtype = ST_BF16;
    t->rank = rank;
    t->dims[0] = d0;
    t->dims[1] = d1;
    t->seed = (unsigned)c->n + 1;
    c->n++;
}

static void add_layer(struct t_ckpt *c, int i, bool norms)
{
    static const struct {
        const char *name;
        int rank;
        uint64_t d0, d1;
        bool norm;
    } parts[] = {
        { "input_layernorm", 1, 8, 0, false },
        { "self_attn.q_proj", 2, 8, 8, false },
        { "self_attn.k_proj", 2, 4, 8, false },
        { "self_attn.v_proj", 2, 4, 8, false },
        { "self_attn.o_proj", 2, 8, 8, false },
        { "self_attn.q_norm", 1, 4, 0, true },
        { "self_attn.k_norm", 1, 4, 0, true },
        { "post_attention_layernorm", 1, 8, 0, false },
        { "mlp.gate_proj", 2, 12, 8, false },
        { "mlp.up_proj", 2, 12, 8, false },
        { "mlp.down_proj", 2, 8, 12, false },
    };
    char name[128];

    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        if (parts[k].norm && !norms)
            continue;
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", i,
                 parts[k].name);
        t_ckpt_add(c, name, parts[k].rank, parts[k].d0, parts[k].d1);
    }
}

static void make(struct t_ckpt *c, const char *cls, const char *type, bool tied,
                 bool norms)
{
    memset(c, 0, sizeof *c);
    snprintf(c->config, sizeof c->config, config_text, cls, type,
             tied ? "true" : "false");
    t_ckpt_add(c, "model.embed_tokens.weight", 2, 16, 8);
    for (int i = 0; i < 3; i++)
        add_layer(c, i, norms);
    t_ckpt_add(c, "model.norm.weight", 1, 8, 0);
    if (!tied)
        t_ckpt_add(c, "lm_head.weight", 2, 16, 8);
}

void t_ckpt_llama(struct t_ckpt *c, bool tied)
{
    make(c, "LlamaForCausalLM", "llama", tied, false);
}

void t_ckpt_qwen3(struct t_ckpt *c, bool tied)
{
    make(c, "Qwen3ForCausalLM", "qwen3", tied, true);
}

void t_ckpt_drop(struct t_ckpt *c, size_t i)
{
    cr_assert_lt(i, c->n);
    memmove(&c->t[i], &c->t[i + 1], (c->n - i - 1) * sizeof c->t[0]);
    c->n--;
}

struct t_tensor *t_ckpt_find(struct t_ckpt *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (!strcmp(c->t[i].name, name))
            return &c->t[i];
    cr_assert_fail("no tensor %s", name);
    return NULL;
}

void t_ckpt_config(struct t_ckpt *c, const char *from, const char *to)
{
    char out[sizeof c->config];
    char *p = strstr(c->config, from);

    cr_assert_not_null(p, "'%s' is not in the config", from);
    snprintf(out, sizeof out, "%.*s%s%s", (int)(p - c->config), c->config, to,
             p + strlen(from));
    memcpy(c->config, out, sizeof out);
}

void t_ckpt_prefix(struct t_ckpt *c, const char *head, bool keep,
                   const char *outer)
{
    for (size_t i = 0; i < c->n; i++) {
        char old[sizeof c->t[i].name];
        memcpy(old, c->t[i].name, sizeof old);
        if (!strncmp(old, "model.", 6))
            snprintf(c->t[i].name, sizeof c->t[i].name, "%s%.200s", head,
                     keep ? old : old + 6);
        else
            snprintf(c->t[i].name, sizeof c->t[i].name, "%s%.200s", outer, old);
    }
}

static char dir[128];

const char *t_ckpt_dir(void)
{
    if (!dir[0]) {
        strcpy(dir, "/tmp/anemll-ckpt-XXXXXX");
        cr_assert_not_null(mkdtemp(dir));
    }
    return dir;
}

void t_ckpt_clean(void)
{
    struct err e = ERR_INIT;

    if (dir[0])
        cr_expect_eq(io_remove_tree(dir, &e), 0, "%s", e.text);
    dir[0] = 0;
}

static const char *path_of(const char *name)
{
    static char path[400];

    snprintf(path, sizeof path, "%s/%s", t_ckpt_dir(), name);
    return path;
}

void t_ckpt_put(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "wb");

    cr_assert_not_null(f);
    cr_assert_geq(fputs(text, f), 0);
    cr_assert_eq(fclose(f), 0);
}

/* Small halves: sign and the upper exponent bits stay clear, so that each
 * dtype reads as finite numbers. */
static void fill(unsigned char *p, size_t n, unsigned seed)
{
    uint32_t x = seed * 2654435761u + 12345u;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (unsigned char)((x >> 24) & 0x3f);
    }
}

/* The upper half of a 1 is the same in both. */
static void fill_ones(unsigned char *p, size_t n, enum st_dtype dtype)
{
    size_t size = dtype == ST_F32 ? 4 : 2;

    memset(p, 0, n);
    for (size_t i = size; i <= n; i += size) {
        p[i - 1] = 0x3f;
        p[i - 2] = 0x80;
    }
}

void t_ckpt_save_tensors(const struct t_ckpt *c, const char *file, size_t first,
                         size_t end)
{
    struct err e = ERR_INIT;
    struct st_writer *w = st_writer_new(&e);
    const char *path = path_of(file);
    static unsigned char bytes[65536];

    unlink(path);
    cr_assert_not_null(w);
    for (size_t i = first; i < end; i++)
        cr_assert_eq(st_writer_add(w, c->t[i].name, c->t[i].dtype, c->t[i].rank,
                                   c->t[i].dims, &e),
                     0, "%s", e.text);
    cr_assert_eq(st_writer_begin(w, path, &e), 0, "%s", e.text);
    for (size_t i = first; i < end; i++) {
        uint64_t n = st_dtype_bits(c->t[i].dtype) / 8;
        for (int k = 0; k < c->t[i].rank; k++)
            n *= c->t[i].dims[k];
        cr_assert_leq(n, sizeof bytes);
        if (c->t[i].ones)
            fill_ones(bytes, (size_t)n, c->t[i].dtype);
        else
            fill(bytes, (size_t)n, c->t[i].seed);
        cr_assert_eq(st_writer_write(w, bytes, (size_t)n, &e), 0);
    }
    cr_assert_eq(st_writer_finish(w, &e), 0, "%s", e.text);
    st_writer_free(w);
}

void t_ckpt_save(const struct t_ckpt *c)
{
    t_ckpt_put("config.json", c->config);
    t_ckpt_save_tensors(c, "model.safetensors", 0, c->n);
}

const char *t_ckpt_shared(const char *name)
{
    static char path[1024];
    const char *fixtures = getenv("ANEMLL_FIXTURES");

    if (fixtures && *fixtures)
        snprintf(path, sizeof path, "%s/../%s", fixtures, name);
    else
        snprintf(path, sizeof path, "%s/../shared/%s", ANEMLL_SOURCE_DIR, name);
    return io_is_dir(path) ? path : NULL;
}
