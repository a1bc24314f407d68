#define _XOPEN_SOURCE 700 /* mkdtemp */
#define _DEFAULT_SOURCE   /* wait4 */

#include "t_conv.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "converter/base/hash.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/synth.h"

static char dir[64];

const char *t_conv_dir(void)
{
    if (!dir[0]) {
        strcpy(dir, "/tmp/anemll-conv-XXXXXX");
        cr_assert_not_null(mkdtemp(dir));
    }
    return dir;
}

void t_conv_clean(void)
{
    struct err e = ERR_INIT;

    if (dir[0])
        cr_expect_eq(io_remove_tree(dir, &e), 0, "%s", e.text);
    dir[0] = 0;
}

const char *t_conv_path(const char *name)
{
    static char ring[32][600];
    static unsigned at;
    char *p;

    if (name[0] == '/')
        return name;
    p = ring[at++ % 32];
    snprintf(p, sizeof ring[0], "%s/%.500s", t_conv_dir(), name);
    return p;
}

static void make_parents(const char *path)
{
    char copy[600];

    snprintf(copy, sizeof copy, "%s", path);
    for (char *p = copy + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(copy, 0777);
        *p = '/';
    }
}

void t_conv_put(const char *name, const char *text)
{
    const char *path = t_conv_path(name);
    FILE *f;

    make_parents(path);
    f = fopen(path, "wb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_geq(fputs(text, f), 0);
    cr_assert_eq(fclose(f), 0);
}

char *t_conv_text(const char *name, size_t *len)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;
    char *text;

    cr_assert_eq(io_read_file(t_conv_path(name), 1u << 30, &b, &e), 0, "%s",
                 e.text);
    if (len)
        *len = b.len;
    text = buf_detach(&b, &e);
    cr_assert_not_null(text);
    return text;
}

/* ---- checkpoints ---- */

struct t_model t_model_tiny(const char *arch)
{
    struct t_model m = { .arch = arch,
                         .vocab = 64,
                         .hidden = 32,
                         .inter = 48,
                         .layers = 2,
                         .heads = 4,
                         .kv = 2,
                         .head_dim = 16,
                         .tied = true,
                         .dtype = ST_BF16,
                         .prefix = "model.",
                         .outer = "" };
    return m;
}

static const char *truth(bool b)
{
    return b ? "true" : "false";
}

static void write_config(const struct t_model *m, const char *name)
{
    char text[2048], file[300];

    snprintf(text, sizeof text,
             "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n"
             "  \"attention_bias\": %s,\n%s"
             "  \"vocab_size\": %" PRIu64 ",\n  \"hidden_size\": %" PRIu64
             ",\n  \"intermediate_size\": %" PRIu64
             ",\n  \"num_hidden_layers\": %" PRIu64
             ",\n  \"num_attention_heads\": %" PRIu64
             ",\n  \"num_key_value_heads\": %" PRIu64
             ",\n  \"head_dim\": %" PRIu64 ",\n  \"hidden_act\": \"silu\",\n"
             "  \"max_position_embeddings\": 128,\n"
             "  \"rms_norm_eps\": 1e-05,\n  \"tie_word_embeddings\": %s,\n"
             "  \"rope_theta\": 10000.0,\n  \"bos_token_id\": 1,\n"
             "  \"eos_token_id\": 2\n}\n",
             strcmp(m->arch, "llama") ? "Qwen3ForCausalLM" : "LlamaForCausalLM",
             m->arch, truth(m->attention_bias),
             strcmp(m->arch, "llama") ? ""
             : m->mlp_bias            ? "  \"mlp_bias\": true,\n"
                                      : "  \"mlp_bias\": false,\n",
             m->vocab, m->hidden, m->inter, m->layers, m->heads, m->kv,
             m->head_dim, truth(m->tied));
    snprintf(file, sizeof file, "%s/config.json", name);
    t_conv_put(file, text);
}

struct tensor {
    char name[200];
    int rank;
    uint64_t dims[2];
    float scale, base;
};
struct tensors {
    struct tensor t[256];
    size_t n;
};

static void add(struct tensors *ts, const char *prefix, const char *name,
                uint64_t rows, uint64_t cols, float scale, float base)
{
    struct tensor *t = &ts->t[ts->n++];

    cr_assert_lt(ts->n, 256);
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    t->rank = cols ? 2 : 1;
    t->dims[0] = rows;
    t->dims[1] = cols;
    t->scale = scale;
    t->base = base;
}

static void add_projection(struct tensors *ts, const char *prefix,
                           const char *name, uint64_t rows, uint64_t cols,
                           bool bias)
{
    char full[80];

    snprintf(full, sizeof full, "%s.weight", name);
    add(ts, prefix, full, rows, cols, 1.7f / sqrtf((float)cols), 0);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias)
        add(ts, prefix, full, rows, 0, 0.4f, 0);
}

static void add_layer(struct tensors *ts, const struct t_model *m, uint64_t i)
{
    uint64_t h = m->hidden, q = m->heads * m->head_dim,
             kv = m->kv * m->head_dim;
    bool ab = m->attention_bias, mb = m->mlp_bias;
    char p[150];

    snprintf(p, sizeof p, "%slayers.%" PRIu64 ".", m->prefix, i);
    add(ts, p, "input_layernorm.weight", h, 0, 0.2f, 1);
    add_projection(ts, p, "self_attn.q_proj", q, h, ab);
    add_projection(ts, p, "self_attn.k_proj", kv, h, ab);
    add_projection(ts, p, "self_attn.v_proj", kv, h, ab);
    add_projection(ts, p, "self_attn.o_proj", h, q, ab);
    if (strcmp(m->arch, "llama") != 0) {
        add(ts, p, "self_attn.q_norm.weight", m->head_dim, 0, 0.2f, 1);
        add(ts, p, "self_attn.k_norm.weight", m->head_dim, 0, 0.2f, 1);
    }
    add(ts, p, "post_attention_layernorm.weight", h, 0, 0.2f, 1);
    add_projection(ts, p, "mlp.gate_proj", m->inter, h, mb);
    add_projection(ts, p, "mlp.up_proj", m->inter, h, mb);
    add_projection(ts, p, "mlp.down_proj", h, m->inter, mb);
}

/* A value of (place in the model, element) alone, whatever the names and the
 * dtype: in (-1, 1), on a grid that all dtypes hold exactly. */
static float value_at(size_t tensor, uint64_t elem)
{
    uint64_t x = (tensor + 1) * UINT64_C(0x9e3779b97f4a7c15) + elem + 1;

    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (float)((int)(x % 255) - 127) / 128.0f;
}

static void put_value(unsigned char *p, enum st_dtype dtype, float v)
{
    uint32_t bits;

    if (dtype == ST_BF16) {
        store_le16(p, f32_to_bf16(v));
    } else if (dtype == ST_F16) {
        store_le16(p, f32_to_f16(v));
    } else {
        memcpy(&bits, &v, 4);
        store_le32(p, bits);
    }
}

static void write_values(const struct t_model *m, struct st_writer *w,
                         const struct tensor *t, size_t index)
{
    uint64_t n = t->dims[0] * (t->rank == 2 ? t->dims[1] : 1);
    unsigned size = st_dtype_bits(m->dtype) / 8;
    struct err e = ERR_INIT;
    unsigned char *bytes = mem_alloc((size_t)n, size, &e);

    cr_assert_not_null(bytes);
    /* Rounded once to bf16, then exact in every dtype. */
    for (uint64_t i = 0; i < n; i++)
        put_value(bytes + i * size, m->dtype,
                  bf16_to_f32(
                      f32_to_bf16(t->base + t->scale * value_at(index, i))));
    cr_assert_eq(st_writer_write(w, bytes, (size_t)n * size, &e), 0, "%s",
                 e.text);
    mem_free(bytes);
}

void t_model_write(const struct t_model *m, const char *name)
{
    static struct tensors ts;
    struct err e = ERR_INIT;
    struct st_writer *w = st_writer_new(&e);
    char file[300];

    ts.n = 0;
    add(&ts, m->prefix, "embed_tokens.weight", m->vocab, m->hidden, 1.7f, 0);
    for (uint64_t i = 0; i < m->layers; i++)
        add_layer(&ts, m, i);
    add(&ts, m->prefix, "norm.weight", m->hidden, 0, 0.2f, 1);
    if (m->head || !m->tied)
        add(&ts, m->outer, "lm_head.weight", m->vocab, m->hidden,
            m->tied ? 1.7f : 0.6f, 0);
    write_config(m, name);
    snprintf(file, sizeof file, "%s/model.safetensors", name);
    cr_assert_not_null(w);
    for (size_t i = 0; i < ts.n; i++)
        cr_assert_eq(st_writer_add(w, ts.t[i].name, m->dtype, ts.t[i].rank,
                                   ts.t[i].dims, &e),
                     0, "%s", e.text);
    unlink(t_conv_path(file));
    cr_assert_eq(st_writer_begin(w, t_conv_path(file), &e), 0, "%s", e.text);
    for (size_t i = 0; i < ts.n; i++) /* a tied head repeats the embedding */
        write_values(m, w, &ts.t[i],
                     m->tied && i + 1 == ts.n && m->head ? 0 : i);
    cr_assert_eq(st_writer_finish(w, &e), 0, "%s", e.text);
    st_writer_free(w);
}

void t_model_poke(const char *name, const char *tensor, uint64_t elem,
                  float value)
{
    char file[300];
    struct err e = ERR_INIT;
    unsigned char head[8], bytes[4];
    const struct st_tensor *t;
    struct st *s;
    unsigned size;
    int fd;

    snprintf(file, sizeof file, "%s/model.safetensors", name);
    s = st_open(t_conv_path(file), &e);
    cr_assert_not_null(s, "%s", e.text);
    t = st_find(s, tensor);
    cr_assert_not_null(t, "%s", tensor);
    size = st_dtype_bits(t->dtype) / 8;
    put_value(bytes, t->dtype, value);
    fd = open(t_conv_path(file), O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, head, 8, 0), 8);
    cr_assert_eq(pwrite(fd, bytes, size,
                        (off_t)(8 + load_le64(head) + t->begin + elem * size)),
                 (ssize_t)size);
    close(fd);
    st_close(s);
}

void t_conv_synth(const char *arch, const char *like, const char *name)
{
    struct err e = ERR_INIT;

    cr_assert_eq(synth_checkpoint(arch, like, 1, t_conv_path(name), NULL, &e),
                 0, "%s", e.text);
}

/* ---- conversions ---- */

struct cv_options t_conv_options(const char *model)
{
    static char kept[64][600]; /* paths that outlive the ring's */
    static unsigned at;
    struct cv_options o;
    char *path = kept[at++ % 64];

    snprintf(path, sizeof kept[0], "%s", t_conv_path(model));
    cv_options_init(&o);
    o.model = path;
    o.ctx = 64;
    o.batch = 16;
    o.lut_ffn = o.lut_head = (struct cv_lut){ 4, 8 };
    return o;
}

int t_conv_try(const struct cv_options *o, const char *output, struct err *e)
{
    struct cv_options own = *o;
    struct cv_job j;
    int rc;

    own.output = t_conv_path(output);
    if (cv_job_open(&j, &own, false, e))
        return -1;
    rc = cv_convert(&j, NULL, e);
    cv_job_close(&j);
    return rc;
}

void t_conv_run(const struct cv_options *o, const char *output)
{
    struct err e = ERR_INIT;

    cr_assert_eq(t_conv_try(o, output, &e), 0, "%s", e.text);
}

/* ---- folders ---- */

#define MAX_LINKED 64

struct listing {
    struct buf text;
    const char *but;
    uint64_t bytes;
    ino_t linked[MAX_LINKED]; /* files of several names that were counted */
    size_t n_linked;
};

/* A file of several names takes its room once. */
static bool counted(struct listing *l, const struct stat *st)
{
    for (size_t i = 0; i < l->n_linked; i++)
        if (l->linked[i] == st->st_ino)
            return true;
    if (st->st_nlink > 1) {
        cr_assert_lt(l->n_linked, MAX_LINKED);
        l->linked[l->n_linked++] = st->st_ino;
    }
    return false;
}

static void walk(struct listing *l, const char *path, const char *shown)
{
    struct err e = ERR_INIT;
    char **names;
    size_t n;

    cr_assert_eq(io_list(path, &names, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        char child[900], name[700];
        struct stat st;

        snprintf(child, sizeof child, "%.600s/%.250s", path, names[i]);
        snprintf(name, sizeof name, "%.400s%s%.250s", shown,
                 shown[0] ? "/" : "", names[i]);
        cr_assert_eq(lstat(child, &st), 0);
        if (l->but && !strcmp(name, l->but))
            continue;
        if (S_ISDIR(st.st_mode)) {
            buf_printf(&l->text, "%s/\n", name);
            walk(l, child, name);
        } else {
            size_t len;
            char *text;
            struct hash128 h;

            cr_assert(S_ISREG(st.st_mode), "%s is no regular file", child);
            if (st.st_size == 0) {
                buf_printf(&l->text, "%s empty\n", name);
                continue;
            }
            text = t_conv_text(child, &len);
            h = hash_bytes(text, len);
            buf_printf(&l->text, "%s %016" PRIx64 "%016" PRIx64 "\n", name,
                       h.hi, h.lo);
            l->bytes += counted(l, &st) ? 0 : len;
            mem_free(text);
        }
    }
    io_list_free(names, n);
}

static char *listing_of(const char *name, const char *but, uint64_t *bytes)
{
    struct listing l = { .text = BUF_INIT, .but = but };
    struct err e = ERR_INIT;
    char *text;

    buf_puts(&l.text, "");
    walk(&l, t_conv_path(name), "");
    if (bytes)
        *bytes = l.bytes;
    text = buf_detach(&l.text, &e);
    cr_assert_not_null(text);
    return text;
}

const char *t_conv_hash(const char *name)
{
    static char ring[4][20000];
    static unsigned at;
    char *p = ring[at++ % 4], *text = listing_of(name, NULL, NULL);

    snprintf(p, sizeof ring[0], "%s", text);
    mem_free(text);
    return p;
}

uint64_t t_conv_bytes(const char *name)
{
    uint64_t bytes;

    mem_free(listing_of(name, NULL, &bytes));
    return bytes;
}

const char *t_conv_differ(const char *a, const char *b, const char *but)
{
    static char line[700];
    char *ta = listing_of(a, but, NULL), *tb = listing_of(b, but, NULL);
    size_t i = 0;

    line[0] = '\0';
    while (ta[i] && ta[i] == tb[i])
        i++;
    if (ta[i] || tb[i]) {
        while (i && ta[i - 1] != '\n')
            i--;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(ta + i, " \n"),
                 ta + i);
        if (!line[0])
            snprintf(line, sizeof line, "(end)");
    }
    mem_free(ta);
    mem_free(tb);
    return line;
}

const char *t_conv_list(const char *name)
{
    static char text[4096];
    struct err e = ERR_INIT;
    char **names;
    size_t n, len = 0;

    cr_assert_eq(io_list(t_conv_path(name), &names, &n, &e), 0, "%s", e.text);
    text[0] = '\0';
    for (size_t i = 0; i < n && len < sizeof text; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s",
                                i ? " " : "", names[i]);
    io_list_free(names, n);
    return text;
}

uint64_t t_conv_peak(int (*work)(const void *arg), const void *arg)
{
    struct rusage used;
    int status = -1;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (!pid) {
#if defined(__GLIBC__)
        /* Else the size from which blocks are given back grows with the
         * first large one, and what is measured depends on what was freed
         * before. */
        mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
        _exit(work(arg) ? 1 : 0);
    }
    cr_assert_eq(wait4(pid, &status, 0, &used), pid);
    cr_assert_eq(status, 0, "the work failed: %d", status);
    return (uint64_t)used.ru_maxrss * 1024;
}
