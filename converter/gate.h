/*
 * The gate: re-opens a finished package from disk and compares it, position
 * by position, with the float32 oracle.
 *
 * Two questions are answered apart. "bytes": are the written bytes right?
 * The oracle runs on the weights decoded from the package itself, and the
 * bars of an uncompressed package apply. "loss": what did compression cost?
 * The oracle runs on the checkpoint's weights, and limits per bit width
 * apply. Without compression both are the same comparison.
 *
 * Where parts are there in both forms, the compiled one is run and the other
 * held against it: they must be one model to the bit, else the verdict is FAIL
 * and nothing is run.
 *
 * A verdict is PASS only if every check passed and the prompts crossed a
 * batch border and reached the last position of the context; a value that is
 * NaN fails (checks are written so).
 */
#ifndef CONVERTER_GATE_H
#define CONVERTER_GATE_H

#include "converter/base/json.h"
#include "converter/base/log.h"
#include "converter/base/par.h"
#include "mil/run/run.h"
#include "models/checkpoint.h"

struct gate_options {
    const char *package;     /* directory */
    const struct ckpt *ckpt; /* NULL: UNVERIFIED, structure only */
    enum run_profile profile;
    const char *tokens; /* prompts file, or NULL for the default ones */
    const char *logits; /* where to write oracle.N and package.N */
    const struct log *log;
    struct par *par;
    /* Decoded weights that may stay in memory, the package's and the oracle's;
     * others are read again where they are used. 0: GATE_KEEP_BYTES. Results
     * do not depend on it. */
    uint64_t keep_bytes;
};
#define GATE_KEEP_BYTES 24000000

enum gate_verdict { GATE_PASS, GATE_FAIL, GATE_UNVERIFIED };

struct gate_check {
    char name[64];
    double value, limit;
    bool at_least; /* value must be >= limit, else <= */
    bool pass;
};
struct gate_divergence {
    int64_t prompt, position, oracle_token, package_token;
    double margin;
};
struct gate_compare { /* package against one oracle */
    double cosine_min, cosine_mean, psnr_min, kl_mean, kl_max;
    double top1_agreement, top1_agreement_decided, max_abs_diff;
    uint64_t positions, decided;
    double perplexity_oracle, perplexity_package;
    bool finite;
    bool diverged;
    struct gate_divergence first;
};
/* The package's constants against the checkpoint; see gate_weights.h. */
struct gate_weights {
    uint64_t elems;     /* compared */
    uint64_t missing;   /* rows that no constant holds */
    uint64_t differ;    /* plain elements that are not the rounded value */
    uint64_t misplaced; /* palettized: the table has a nearer entry */
    double excess;      /* error feedback: greatest squared error of a constant
                           over that of the nearest entries */
    double gain_error;  /* largest |<w, q> / <q, q> - 1| of a table */
    char first[256];    /* where the first fault lies */
};
/* A state of a recurrent package: see gate_states.h. */
struct gate_state {
    char name[64];
    double prefill_infer; /* distance between both calls' contents */
    double oracle;        /* from the oracle's, if `known` */
    bool known;
};
#define GATE_MAX_STATES 8
/* What the model itself makes of rounding: see gate_noise.h. */
struct gate_noise {
    int draws; /* 0: not measured */
    double cosine_min, cosine_mean, kl_mean, psnr_min, top1_agreement_decided;
    double relative_diff; /* largest difference over the largest logit */
    double state;         /* largest distance between states */
};
/* Along the prompt that reaches the end of the context: the median of the
 * distances |package - oracle| / |oracle| of the logits in each quarter. */
#define GATE_QUARTERS 4
struct gate_drift {
    double error[GATE_QUARTERS];
    uint64_t positions; /* of all quarters; 0: not measured */
};
/* Entries are means but for their rounding to fp16. */
#define GATE_GAIN_ERROR 0.002
/* Feedback pays with larger errors of single weights, up to a point. */
#define GATE_EXCESS 16
#define GATE_MAX_CHECKS 32
struct gate_result {
    enum gate_verdict verdict;
    enum run_profile profile;
    uint64_t prompts, positions;
    struct gate_compare bytes, loss;
    struct gate_weights weights;
    unsigned forms;         /* PACKAGE_*: that all parts have */
    char forms_differ[400]; /* how, if they are not one model */
    bool compressed;        /* bytes and loss are two comparisons */
    bool sourced;           /* the package says what its constants hold */
    double prefill_infer_max_diff, max_abs_logit;
    bool crossed_batch, reached_end;
    double embeddings;     /* distance from the oracle's: see gate_embed.h */
    bool judged;           /* there was an oracle */
    bool recurrent;        /* the states cannot be rewound */
    bool experts;          /* of which the model chooses */
    int bits;              /* of the narrowest weights; 16: none compressed */
    int64_t ctx, batch;    /* of the package */
    uint64_t decode_steps; /* longest run of single tokens */
    struct gate_drift drift;
    struct gate_state states[GATE_MAX_STATES];
    int n_states;
    struct gate_noise noise; /* where limits had to know it */
    uint64_t f32_positions;  /* of the run in f32 beside another profile */
    struct gate_check checks[GATE_MAX_CHECKS];
    int n_checks;
    char reason[512]; /* of a FAIL or UNVERIFIED, for people */
};

int gate_run(const struct gate_options *o, struct gate_result *r,
             struct err *e) ATTR_MUST_USE;
/* The JSON document (schema version inside). */
void gate_json(const struct gate_result *r, struct js_writer *w,
               const char *key);
/* The same into an object that is open and gets members of others too. */
void gate_json_members(const struct gate_result *r, struct js_writer *w);
const char *gate_verdict_name(enum gate_verdict v);
/* gate.json of the package, replaced in one rename. */
int gate_write(const char *package, const struct gate_result *r,
               struct err *e) ATTR_MUST_USE;
/* A few lines for people. */
void gate_text(const struct gate_result *r, struct buf *out);

/* Prompts: a safetensors file with int32 tensors tokens.N, or text with one
 * prompt of ids a line. */
struct prompts {
    int32_t **ids;
    size_t *lengths, n;
};
int prompts_read(struct prompts *p, const char *path, int64_t vocab,
                 struct err *e) ATTR_MUST_USE;
/* Appends a prompt; on success `ids` (mem_free) belongs to `p`. */
int prompts_add(struct prompts *p, int32_t *ids, size_t n,
                struct err *e) ATTR_MUST_USE;
void prompts_release(struct prompts *p);

/* Runs the oracle of a checkpoint on prompts and writes oracle.N [T, V]. */
int gate_oracle_logits(const struct ckpt *c, const struct prompts *p,
                       const char *path, struct par *par, const struct log *log,
                       struct err *e) ATTR_MUST_USE;

#endif
