/*
 * The architectures. One file arch_<family>.c each exports one `struct
 * model_arch`; the build lists the files, dropping one in is the
 * registration. Blocks that two or more families share are in parts.c.
 */
#ifndef MODELS_MODELS_H
#define MODELS_MODELS_H

#include "mil/build.h"
#include "models/checkpoint.h"
#include "models/hparams.h"
#include "models/oracle.h"

/* What the graph functions are told. */
struct graph {
    const struct hparams *hp;
    struct weights *weights;       /* weights.h: names to constants */
    int64_t ctx;                   /* context length */
    int64_t batch;                 /* tokens per prefill call */
    int64_t tokens;                /* of the function being built: 1 or batch */
    bool rotate;                   /* it is one of the *_rotate */
    int64_t first_layer, n_layers; /* of the chunk */
    bool last_chunk;
    const int64_t *head_sizes; /* rows of each LM-head part */
    int n_head_parts;
    /*
     * The residual stream that the graph computes is the model's times
     * 2^stream_exp (0: as it is), so that it stays inside fp16: see
     * fp16_range.h. Folded exactly: into the embedding's rows, into what ends
     * each branch (a post-norm's weight, else the last matrix), out of
     * matrices that read the stream without a norm; a norm of the stream has
     * epsilon range_norm_eps(rms_eps, stream_exp). Only families that say
     * so (model_arch.scales_stream) are given another exponent than 0.
     */
    int stream_exp;
    /* What a norm reads straight from a matrix is 2^norm_exp times the
     * model's, folded into the matrix, and the norm's epsilon rms_eps times
     * the square of it, so that fp16 holds it well: range_norm_exp(). Only of
     * families that norm the ends of branches (model_arch.norms_branches). */
    int norm_exp;
};

/* A Core ML state that every chunk declares. */
struct state_desc {
    char name[64];
    int rank;
    int64_t dims[5];
    int64_t *layers; /* layers that use it, for meta.yaml; NULL: all */
    int64_t n_layers;
};
#define MAX_STATES 4

/* Keys of a family's hyper-parameters: see hparams.c. */
struct hp_reader;

struct model_arch {
    const char *name;                 /* "qwen3" */
    const char *const *model_types;   /* exact, NULL-terminated */
    const char *const *architectures; /* classes that it computes */
    const char *prefix;               /* of file names: "qwen" */
    const char *tokenizer_class;      /* one that Swift readers know */
    int head_parts;                   /* default split of the LM head */
    /* config.json to hparams. */
    int (*parse)(struct hp_reader *r, struct hparams *hp, struct err *e);
    /* Every tensor that the family consumes. */
    int (*needs)(const struct hparams *hp, struct ledger *l, struct err *e);
    /* Tensors that are skipped: patterns on the canonical name, see
     * checkpoint.c; NULL-terminated. */
    const char *const *ignore;
    /* The rule by which a tensor of this canonical name, which is not needed,
     * is skipped, or NULL; may be NULL. For what names alone do not tell. */
    const char *(*spare)(const struct hparams *hp, const char *name);
    /* Judges how the tensors were written, by shapes and values, where names
     * do not tell; before shapes are complained of. May be NULL. */
    int (*layout)(struct ckpt *c, struct err *e);
    uint64_t (*count)(const struct hparams *hp); /* parameters, by formula */
    bool scales_stream;  /* the graph computes with graph.stream_exp */
    bool norms_branches; /* a branch's end is normed before it is added */
    int (*states)(const struct hparams *hp, int64_t ctx, int64_t batch,
                  struct state_desc out[MAX_STATES]); /* how many */
    /* Whether chunks have the functions infer_rotate and prefill_rotate, for
     * calls from position `window` on. NULL: no. */
    bool (*rotates)(const struct hparams *hp, int64_t ctx);
    /* The three kinds of model; builders report through mb's sticky error. */
    void (*embeddings)(struct mb *b, const struct graph *g);
    void (*chunk)(struct mb *b, const struct graph *g);
    void (*head)(struct mb *b, const struct graph *g);
    /* The reference forward pass. */
    const struct oracle_ops *oracle;
};

/* All architectures, NULL-terminated, sorted by name. */
extern const struct model_arch *const model_archs[];
const struct model_arch *model_arch_by_type(const char *model_type);

#endif
