/*
 * Helpers of the models suites: small checkpoints in a scratch directory,
 * whose config and tensors a test may bend before they are saved.
 */
#ifndef T_CKPT_H
#define T_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "safetensors/st.h"

#define T_CKPT_MAX 96

struct t_tensor {
    char name[256];
    enum st_dtype dtype;
    int rank;
    uint64_t dims[4];
    unsigned seed; /* of the content; equal seeds, equal bytes */
    bool ones;     /* BF16 and F32: every element is 1 instead */
};
struct t_ckpt {
    char config[4096];
    struct t_tensor t[T_CKPT_MAX];
    size_t n;
};

/* A sound model: H 8, I 12, V 16, 2 heads of 4 over 1, 3 layers, BF16;
 * names as published. qwen3 has per-head norms. */
void t_ckpt_llama(struct t_ckpt *c, bool tied);
void t_ckpt_qwen3(struct t_ckpt *c, bool tied);
void t_ckpt_add(struct t_ckpt *c, const char *name, int rank, uint64_t d0,
                uint64_t d1);
void t_ckpt_drop(struct t_ckpt *c, size_t i);
struct t_tensor *t_ckpt_find(struct t_ckpt *c, const char *name);
/* Replaces one piece of the config text, which must be there. */
void t_ckpt_config(struct t_ckpt *c, const char *from, const char *to);
/* Puts `head` in front of names that begin with "model." (which `keep`
 * keeps), and `outer` in front of the others. */
void t_ckpt_prefix(struct t_ckpt *c, const char *head, bool keep,
                   const char *outer);

/* A fresh directory of this test process; removed by t_ckpt_clean. */
const char *t_ckpt_dir(void);
void t_ckpt_clean(void);
/* Writes a text file into it, config.json, or model.safetensors with the
 * tensors [first, end). */
void t_ckpt_put(const char *name, const char *text);
void t_ckpt_save(const struct t_ckpt *c);
void t_ckpt_save_tensors(const struct t_ckpt *c, const char *file, size_t first,
                         size_t end);
/* The shared data directories; NULL where absent. */
const char *t_ckpt_shared(const char *name);

#endif
