/*
 * Test helper: checkpoints with sane weights of any small shape, conversions,
 * and comparisons of whole folders.
 */
#ifndef T_CONV_H
#define T_CONV_H

#include "converter/converter.h"
#include "safetensors/st.h"

/* A scratch folder of this test process, and paths in it (a ring of 32). */
const char *t_conv_dir(void);
void t_conv_clean(void);
const char *t_conv_path(const char *name);
void t_conv_put(const char *name, const char *text);
/* The whole of a file, NUL-terminated; mem_free. */
char *t_conv_text(const char *name, size_t *len);

struct t_model {
    const char *arch; /* "qwen3", "llama" */
    uint64_t vocab, hidden, inter, layers, heads, kv, head_dim;
    bool tied;
    bool attention_bias, mlp_bias;
    bool head; /* lm_head.weight is in the file */
    enum st_dtype dtype;
    const char *prefix; /* in front of the text model's names: "model." */
    const char *outer;  /* in front of lm_head: "" */
};
/* H 32, I 48, 2 layers, 4 heads of 16 over 2, V 64; tied; BF16. */
struct t_model t_model_tiny(const char *arch);
/* Writes config.json and model.safetensors into a folder of t_conv_dir. */
void t_model_write(const struct t_model *m, const char *name);
/* Overwrites one value of a tensor in NAME/model.safetensors. */
void t_model_poke(const char *name, const char *tensor, uint64_t elem,
                  float value);
/* A seeded published shape. */
void t_conv_synth(const char *arch, const char *like, const char *name);

/* Options for a model folder: context 64, batch 16, LUT 4, nothing logged. */
struct cv_options t_conv_options(const char *model);
/* Converts `o->model` to `output` (both names in t_conv_dir); 0 or -1. */
int t_conv_try(const struct cv_options *o, const char *output, struct err *e);
/* The same; failure fails the test. */
void t_conv_run(const struct cv_options *o, const char *output);
/* "" if two folders hold the same files with the same bytes, else the first
 * name that differs. `but` (may be NULL) is not compared. */
const char *t_conv_differ(const char *a, const char *b, const char *but);
/* Every file's name and bytes, as text. */
const char *t_conv_hash(const char *name);
/* Names in a folder, hidden ones too, sorted, joined by ' '. */
const char *t_conv_list(const char *name);
/* Peak memory of a process that does `work` and nothing else; it fails the test
 * by a non-zero result. */
uint64_t t_conv_peak(int (*work)(const void *arg), const void *arg);
/* Bytes of all regular files below; fails on anything but files and
 * folders. */
uint64_t t_conv_bytes(const char *name);

#endif
