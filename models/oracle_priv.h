/*
 * What a family's reference is made of. One file oracle_<family>.c each
 * exports one `struct oracle_ops`; it states the family's conventions (norm
 * form, pairing of the rotation, order of heads, scales) in its own words
 * and calls the blocks below, which assume none.
 *
 * Activations are dense float32, [tokens, width]. A pass is at most
 * ORACLE_PASS tokens; longer input is cut into passes, and since every value
 * depends on its own token and the state alone, the cut does not show.
 */
#ifndef MODELS_ORACLE_PRIV_H
#define MODELS_ORACLE_PRIV_H

#include <stdbool.h>

#include "models/oracle.h"
#include "models/oracle_math.h"
#include "converter/base/sgemm.h"

#define ORACLE_PASS 512
#define ORACLE_ROPES 2 /* distinct rotations in one model */
/* Scratch: families number theirs from 0, shared blocks have the last. */
enum {
    ORACLE_TMP_GATE = 16,
    ORACLE_TMP_UP,
    ORACLE_TMP_ROWS,
    ORACLE_TMP_DOWN,
    ORACLE_TMPS
};

struct oracle_ops {
    const char *name;
    /* Called once: checks hp, makes caches (oracle_kv_init), rotations
     * (oracle_rope_init) and `o->priv`. close also after a failed open. */
    int (*open)(struct oracle *o, struct err *e);
    void (*close)(struct oracle *o); /* may be NULL */
    /* Forgets the state in `priv`; may be NULL. Caches are not its task. */
    void (*reset)(struct oracle *o);
    /* See oracle.h; NULL where no layer is recurrent. */
    bool (*memory)(const struct oracle *o, int64_t layer,
                   struct oracle_memory *out);
    /* Tokens of the pass to x [n, hidden]. */
    int (*embed)(struct oracle *o, float *x, struct err *e);
    /* One layer, in place. */
    int (*layer)(struct oracle *o, int64_t layer, float *x, struct err *e);
    /* The norm behind the last layer, in place. */
    int (*norm)(struct oracle *o, float *x, struct err *e);
    /* Normed rows x [n, hidden] to logits [n, vocab]. */
    int (*head)(struct oracle *o, const float *x, size_t n, float *logits,
                struct err *e);
};

/* Keys and values of one layer in blocks of SGEMM_SLICE positions: keys
 * [heads, positions, padded], values [heads, dim, positions], so that scores
 * and read-out are both products of rows. */
struct kv_cache {
    size_t heads, dim, padded;
    size_t n_blocks, cap_blocks;
    float **keys, **values;
};

struct rope_table {
    struct rope_params params;
    float *freq;
    float *cos, *sin; /* [ORACLE_PASS, dim / 2], of this pass's positions */
};

/* A tensor in memory. */
struct held {
    char *name; /* NULL: free slot */
    uint64_t row, rows, cols;
    float *data;
};
struct held_set {
    struct held *slots;
    size_t n, cap; /* cap is a power of two */
    uint64_t bytes;
};

/* Memory that only grows. */
struct grown {
    void *p;
    size_t bytes;
};

/* Working memory of one thread. */
struct oracle_worker {
    struct sgemm_scratch gemm;
    struct grown rows; /* of the weight that is being streamed */
    struct grown heads, packed, scores, mix, sum; /* attention */
    float top_score;
    struct err err; /* of the lowest piece that failed */
    uint64_t err_at;
};

struct oracle {
    const struct oracle_ops *ops;
    struct hparams hp;
    struct tensor_source src;
    struct par *par;
    uint64_t keep_bytes;
    int64_t max_positions, pos;
    bool half_rope;
    bool broken; /* a pass failed half-way */
    /* The pass. */
    const int32_t *tokens;
    size_t n;

    int64_t at_layer;           /* that is computed; -1: the embedding */
    struct range_report *range; /* notes peaks, or NULL */

    const struct oracle_watch *watch; /* of the step of a walk, or NULL */
    struct kv_cache *kv;              /* one per layer; unused ones are empty */
    struct rope_table rope[ORACLE_ROPES];
    struct held_set held;
    struct oracle_worker *workers;
    struct grown packed; /* the operand of the current product */
    struct grown x;      /* the stream */
    struct grown tmp[ORACLE_TMPS];
    void *priv; /* the family's */
};

/* Scratch [elems] number `slot`, valid until the slot is asked for again. */
float *oracle_tmp(struct oracle *o, int slot, size_t rows, size_t width,
                  struct err *e) ATTR_MUST_USE;
/* Makes room for n elements of `size` bytes; old content may be lost. */
int oracle_grow(struct grown *g, size_t n, size_t size,
                struct err *e) ATTR_MUST_USE;

/* oracle_weights.c */

/* Rows [row, row + out) of a matrix with `in` columns. */
struct oracle_mat {
    char name[128], bias[128]; /* bias "" = none */
    uint64_t row;
    size_t out, in;
};
/* "layers.<layer>.<stem>.weight", and ".bias" if it has one. */
struct oracle_mat oracle_layer_mat(int64_t layer, const char *stem, size_t out,
                                   size_t in, bool bias);
/* y [n, out] = x [n, in] times the matrix, streamed in blocks of rows or
 * kept if the budget allows. */
int oracle_linear(struct oracle *o, const struct oracle_mat *m, const float *x,
                  size_t n, float *y, struct err *e) ATTR_MUST_USE;
/* A vector of n values; loaded once and kept. */
const float *oracle_vector(struct oracle *o, size_t n, struct err *e,
                           const char *fmt, ...)
    ATTR_PRINTF(4, 5) ATTR_MUST_USE;
/* The same of a small matrix. */
const float *oracle_matrix(struct oracle *o, size_t rows, size_t cols,
                           struct err *e, const char *fmt, ...)
    ATTR_PRINTF(5, 6) ATTR_MUST_USE;
/* Row tokens[i] of a table for every token of the pass, to y [n, cols]. */
int oracle_lookup(struct oracle *o, const char *name, size_t cols, float *y,
                  struct err *e) ATTR_MUST_USE;
void held_release(struct held_set *h);

/* oracle_blocks.c: over all rows, threaded. y == x is allowed. */
void oracle_norm(struct oracle *o, enum norm_form form, const float *x,
                 const float *w, size_t rows, size_t width, double eps,
                 float *y);
/* The pass's queries or keys [n, heads, d] under "layers.L.self_attn.NAME". */
int oracle_head_norm(struct oracle *o, enum norm_form form, int64_t layer,
                     const char *name, float *x, size_t heads, size_t d,
                     struct err *e) ATTR_MUST_USE;
void oracle_add(struct oracle *o, float *x, const float *y, size_t rows,
                size_t width);
void oracle_gate(struct oracle *o, enum oracle_act act, float *g,
                 const float *u, size_t rows, size_t width); /* g = act(g) u */

/* x = cap tanh(x / cap) */
void oracle_softcap(struct oracle *o, float *x, size_t rows, size_t width,
                    double cap);

/* Three matrices as they lie in the checkpoint. */
struct oracle_gated {
    struct oracle_mat gate, up, down;
    enum oracle_act act;
};
/* y [n, width] = down(act(gate x) * up x); y == x is allowed. */
int oracle_gated_mlp(struct oracle *o, const struct oracle_gated *g,
                     const float *x, size_t n, float *y,
                     struct err *e) ATTR_MUST_USE;

/* oracle_experts.c: experts of one layer, stacked in two tensors. */
struct oracle_experts {
    char gate_up[128]; /* [experts, 2 inner, hidden], the gate's rows first */
    char down[128];    /* [experts, hidden, inner] */
    size_t n, inner;
    enum oracle_act act;
    size_t k;                        /* of a token */
    const struct oracle_pick *picks; /* [tokens, k] */
};
/* Adds to sum [n, hidden] what the chosen experts make of h [n, hidden]. */
int oracle_run_experts(struct oracle *o, const struct oracle_experts *x,
                       const float *h, float *sum, struct err *e) ATTR_MUST_USE;

/* Rotation number `which`; its tables are refilled for each pass. */
int oracle_rope_init(struct oracle *o, int which, const struct rope_params *r,
                     struct err *e) ATTR_MUST_USE;
/* Rotates x [n, heads, dim] in place, token i as position pos + i. */
void oracle_rope(struct oracle *o, int which, enum rope_pairing pairing,
                 float *x, size_t heads, size_t dim);

/* oracle_attn.c */

int oracle_kv_init(struct oracle *o, int64_t layer, size_t heads, size_t dim,
                   struct err *e) ATTR_MUST_USE;
void kv_release(struct kv_cache *c);
void kv_clear(struct kv_cache *c); /* forgets the content */
/* Room for positions [0, positions) in one cache, or in every one. */
int oracle_kv_reserve_layer(struct oracle *o, int64_t layer, int64_t positions,
                            struct err *e) ATTR_MUST_USE;
int oracle_kv_reserve(struct oracle *o, int64_t positions,
                      struct err *e) ATTR_MUST_USE;
/* Rotations of the positions of the pass. */
void oracle_rope_refill(struct oracle *o);
/* Stores k, v [n, kv heads, dim] of the pass at its positions. */
void oracle_kv_put(struct oracle *o, int64_t layer, const float *k,
                   const float *v);

struct oracle_attn {
    int64_t layer; /* whose cache is read */
    size_t heads;  /* of the queries; consecutive ones share a cached head */
    double scale;  /* of the scores */
    size_t window; /* a token sees so many positions, its own included; 0: all
                      up to its own */
};
/* Causal softmax attention of q [n, heads, dim] over the cache, which holds
 * the pass already; y [n, heads, dim]. */
int oracle_attention(struct oracle *o, const struct oracle_attn *a,
                     const float *q, float *y, struct err *e) ATTR_MUST_USE;

/* oracle_range.c: what was just computed, if somebody measures. A stream is
 * told by its address. */
void oracle_range_stream(struct oracle *o, const float *x);
void oracle_range_matrix(struct oracle *o, const char *name, const float *y,
                         size_t n);
void oracle_range_product(struct oracle *o, const float *x, size_t n);
void oracle_range_score(struct oracle *o, double value);

/* oracle_plain.c: the pre-norm transformer with gated MLP. Each family states
 * every convention in a table of its own. */
struct oracle_plain {
    enum norm_form norm; /* of the residual stream */
    bool head_norms;     /* q_norm and k_norm on every head, before rotation */
    enum norm_form head_norm;
    enum rope_pairing pairing;
    /* the scale of the scores is head_dim to this power */
    double scale_power;
    bool qkv_bias, o_bias; /* if hp->attention_bias */
    bool mlp_bias;         /* if hp->mlp_bias */
};
/* Checks hp, makes the caches and rotation 0. */
int plain_open(struct oracle *o, struct err *e) ATTR_MUST_USE;
int plain_embed(struct oracle *o, float *x, struct err *e) ATTR_MUST_USE;
int plain_layer(struct oracle *o, const struct oracle_plain *p, int64_t layer,
                float *x, struct err *e) ATTR_MUST_USE;
int plain_norm(struct oracle *o, enum norm_form form, float *x,
               struct err *e) ATTR_MUST_USE;
/* Capped where hp says so. */
int plain_head(struct oracle *o, const float *x, size_t n, float *logits,
               struct err *e) ATTR_MUST_USE;

extern const struct oracle_ops oracle_llama, oracle_qwen3, oracle_qwen3_5,
    oracle_gemma3, oracle_gemma4;

#endif
