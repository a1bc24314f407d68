/*
 * The product's API: a checkpoint becomes a gated package.
 *
 *   cv_options_init -> options -> cv_job_open (checkpoint, plan)
 *   -> cv_convert (stage, parts, meta.yaml, assets, one rename) -> gate.h
 *
 * Nothing is written before cv_convert, and nothing is visible under the
 * output's name before everything is complete.
 */
#ifndef CONVERTER_CONVERTER_H
#define CONVERTER_CONVERTER_H

#include "converter/base/json.h"
#include "converter/base/log.h"
#include "converter/base/par.h"
#include "models/models.h"

/* How the matrices of one part are stored: palettized, or as integers. */
struct cv_lut {
    int bits;       /* 0: none (fp16) */
    uint64_t group; /* output channels per table; 0: one per tensor */
    bool linear;    /* integers and scales: group is input channels per scale,
                       0: one per tensor */
};
#define CV_ROW UINT64_MAX /* linear: one scale per output channel */
/* "int8", "int8,tensor", "int4,32", "none". ERR_USAGE naming the option. */
int cv_quant_parse(const char *option, const char *text, struct cv_lut *out,
                   struct err *e) ATTR_MUST_USE;
/* "int8", "int4,32": as it is parsed. */
void cv_quant_text(const struct cv_lut *l, char out[32]);
/* How tables and indices are found. */
enum cv_method {
    CV_KMEANS,     /* least squared error */
    CV_IMPORTANCE, /* least error by a file's importances */
    CV_CALIB,      /* least error by the mean squares of the inputs */
    CV_GPTQ,       /* least error in the output, by the inputs' moments */
};
const char *cv_method_name(enum cv_method m);
bool cv_method_by_name(const char *name, enum cv_method *out);
/* "6", "6,8", "6,0", "6,tensor", "none". ERR_USAGE naming the option. */
int cv_lut_parse(const char *option, const char *text, struct cv_lut *out,
                 struct err *e) ATTR_MUST_USE;

/* The forms in which each part is written. */
enum cv_emit {
    CV_EMIT_COMPILED = 1, /* .mlmodelc: what apps load */
    CV_EMIT_PACKAGE = 2,  /* .mlpackage: what Python loads */
    CV_EMIT_BOTH = 3,     /* the weights stored once, where links work */
};
/* "both", "mlmodelc", "mlpackage". ERR_USAGE else. */
int cv_emit_parse(const char *text, enum cv_emit *out,
                  struct err *e) ATTR_MUST_USE;
const char *cv_emit_name(enum cv_emit emit);

struct cv_options {
    const char *model;  /* checkpoint directory */
    const char *output; /* NULL: ./anemll-<name>-ctx<N> */
    const char *prefix; /* NULL: the family's */
    int64_t ctx, batch;
    struct cv_lut lut_embeddings, lut_ffn, lut_head;
    int chunks;           /* 0: auto */
    int64_t max_chunk_mb; /* for auto, in 10^6 bytes */
    int head_parts;       /* 0: the family's, adjusted to divide */
    enum cv_emit emit;
    bool strict; /* refuse fallbacks */
    bool force;  /* replace an existing package of ours; convert experts
                    above the limit */
    uint64_t expert_limit; /* bytes of experts, 8 GB: they are evaluated
                              densely */
    bool tie;              /* tie although the config does not */
    bool scale_given;      /* stream_exp counts; else it is measured */
    int stream_exp;        /* the residual stream times 2^stream_exp */
    const char *tokens; /* a further input file: never replaced. NULL: none */
    const char *calib;  /* token file; NULL: no calibration */
    double budget;      /* bits per weight of layers and head; 0: none */
    unsigned budget_widths; /* bit b: b bits may be used */
    bool gptq;              /* error feedback; needs calib */
    const char *importance; /* safetensors: what each weight counts for; NULL */
    const char *recipe;     /* YAML: rules for single matrices; NULL */
    const char *cache;      /* folder of finished matrices (cache.h); NULL */
    const struct log *log;
    struct par *par;
};
void cv_options_init(struct cv_options *o);
/* "auto", or a power of two from 2^-14 to 1 such as 0.125: sets scale_given and
 * stream_exp. ERR_USAGE else. */
int cv_scale_parse(const char *text, struct cv_options *o,
                   struct err *e) ATTR_MUST_USE;

/* One file of the package, planned or written. */
enum cv_kind { CV_EMBEDDINGS, CV_CHUNK, CV_HEAD };
struct cv_part {
    enum cv_kind kind;
    int chunk; /* 1-based, for CV_CHUNK */
    int64_t first_layer, n_layers;
    char name[160];      /* "qwen_FFN_PF_lut6_chunk_01of02" */
    struct cv_lut asked; /* by the options */
    /* What names and meta.yaml say: the narrowest tables in use; where there
     * are none, the narrowest integers. */
    struct cv_lut lut;
    double mixed;         /* bits per weight, tables included, where matrices
                             are stored in several forms; else 0 */
    uint64_t stored_bits; /* of the matrices, tables included, fp16 too */
    uint64_t stored;      /* elements likewise */
    struct cv_lut tables, integers; /* the narrowest; bits 0: none */
    unsigned forms; /* in use: bit 0 fp16, bit b tables, bit 16 + b integers */
    uint64_t weight_bytes;   /* weight file, as it will be written */
    uint64_t model_bytes;    /* program message, likewise */
    uint64_t compiled_bytes; /* compiled form but for its weights; 0: none */
    uint64_t weights;        /* elements of the matrices to palettize */
    uint64_t guided;         /* of these, in matrices that calibration or
                                importances can change */
    uint64_t expert_bytes;   /* matrices of experts, their tables included */
    uint64_t report_bytes;   /* in report.json, about */
    uint64_t largest_blob;
    uint64_t largest_table; /* bytes of one matrix's tables */
    int64_t largest_axis;   /* of any constant */
    /* After conversion, read back from what was written: */
    uint64_t written_weights, written_model;
    uint64_t written_compiled; /* with copied weights */
    uint64_t copied_weights;   /* stored once more: no link was possible */
    double sse, sum_sq;        /* palettization error */
    uint64_t palettized;       /* elements with LUT */
    uint64_t fallback_tensors; /* group reduced */
};

/* A job: an open checkpoint and its plan. */
struct cv_job {
    struct cv_options opt;
    struct ckpt ckpt;
    struct cv_choices *choices; /* widths under a budget; NULL: none */
    struct recipe *recipe;      /* NULL: none */
    struct weights *weights;
    struct calib *calib;           /* NULL: none */
    struct importance *importance; /* NULL: weights count alike */
    struct cache *cache;           /* while it is converted; NULL: none */
    char *output;
    char *name; /* "anemll-Qwen3-0.6B-ctx512" */
    const char *prefix;
    struct cv_part *parts;
    size_t n_parts;
    int chunks;
    int head_parts;
    int64_t *head_sizes;
    struct state_desc states[MAX_STATES];
    int n_states;
    uint64_t state_bytes;
    int stream_exp; /* given, or chosen when conversion begins: cv_convert */
    int norm_exp;   /* by epsilon, and by the range once that is measured */
    uint64_t disk_bytes;   /* of the package, assets included */
    uint64_t memory_bytes; /* bound of the conversion's peak */
    /* Mixture of experts: all of their bytes; weights that a token reads, and
     * would read if experts were evaluated by routing. */
    uint64_t expert_bytes, dense_bytes, routed_bytes;
    struct buf notes; /* lines: fallbacks, warnings, lint */
};
/* plan_only: the config is enough. */
int cv_job_open(struct cv_job *j, const struct cv_options *o, bool plan_only,
                struct err *e) ATTR_MUST_USE;
void cv_job_close(struct cv_job *j);
void cv_plan_text(const struct cv_job *j, struct buf *out);
void cv_plan_json(const struct cv_job *j, struct js_writer *w, const char *key);

/* Judges the complete package in its staging folder, before it appears under
 * its name. *keep false: it is thrown away (and cv_convert returns 0). */
struct cv_verify {
    int (*run)(void *cookie, const char *dir, bool *keep, struct err *e);
    void *cookie;
};
/* Converts; the package is complete under j->output afterwards. `v` may be
 * NULL. */
int cv_convert(struct cv_job *j, const struct cv_verify *v,
               struct err *e) ATTR_MUST_USE;

/* Builds the program of one part, palettized as the options say. Matrices
 * and the program are owned by the result. */
struct cv_program {
    struct mil_program *program;
    struct cv_matrices *matrices;
};
int cv_build_part(struct cv_job *j, struct cv_part *part,
                  struct cv_program *out, struct err *e) ATTR_MUST_USE;
void cv_program_release(struct cv_program *p);

#endif
