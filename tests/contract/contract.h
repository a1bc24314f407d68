/*
 * What ANEMLL's published runtimes do with a package, replayed: chat.py,
 * chat_full.py, the Swift package and prepare_hf.sh. Names, defaults, shapes
 * and the order of calls are theirs; nothing here asks our own readers of
 * meta.yaml or our own runner, so that a change of ours that would break a
 * runtime fails in these tests. Programs run on the bundled CPU runtime.
 */
#ifndef CONTRACT_H
#define CONTRACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mil/run/run.h"
#include "schema/package.h"

#define CT_MAX_CHUNKS 16
#define CT_MAX_PARTS 64

/* A package as a loader left it. */
struct ct {
    char why[600]; /* of a failure: what the runtime stops at */
    int64_t context, batch, parts, window; /* window 0: no rotation */
    int chunks;
    bool batched;  /* prompts go through prefill */
    bool rows_one; /* Swift: the last chunk's prefill has a one-row buffer */
    char embeddings[700], ffn[CT_MAX_CHUNKS][700], head[700]; /* paths */
    /* Open models: embeddings, chunks, head. */
    struct pkg *pkg[CT_MAX_CHUNKS + 2];
    struct run_model *run[CT_MAX_CHUNKS + 2];
    struct run_states *states;
    int64_t hidden, vocab;
    int64_t widths[CT_MAX_PARTS];
    float *stream, *mask;
};

/* Loads as the runtime does; false with `why`. */
bool ct_load_python(struct ct *c, const char *dir);      /* chat.py */
bool ct_load_python_full(struct ct *c, const char *dir); /* chat_full.py */
bool ct_load_swift(struct ct *c, const char *dir);
void ct_close(struct ct *c);

/* The prompt in the runtime's order, and the logits of its last token: full
 * batches, single tokens, then the last token once more. False with `why` at
 * the first call that Core ML would refuse. logits: [c->vocab] */
bool ct_prompt(struct ct *c, const int32_t *tokens, size_t n, float *logits);
/* The same, every position once: the prompt may not end with a batch. */
bool ct_prompt_once(struct ct *c, const int32_t *tokens, size_t n,
                    float *logits);
/* One more token at its position. */
bool ct_token(struct ct *c, int32_t token, int64_t position, float *logits);
/* The id that Swift takes for column `at` of the concatenated logits. */
int64_t ct_swift_id(const struct ct *c, int64_t at);

/* prepare_hf.sh: what it cuts out of meta.yaml, and the files it collects. */
bool ct_shell(const char *dir, char why[600]);
/* Swift's tokenizer: files, template and end tokens. */
bool ct_swift_assets(const char *dir, char why[600]);

/* ---- between the files of this folder ---- */

struct ct_yaml;
struct ct_yaml *ct_yaml_open(const char *dir);
void ct_yaml_close(struct ct_yaml *y);
/* A value below model_info.parameters (info: below model_info itself) as
 * text; NULL if absent. *plain: it stands without quotes. */
const char *ct_yaml_get(struct ct_yaml *y, bool info, const char *key,
                        bool *plain);
bool ct_exists(const char *path);
bool ct_fail(char why[600], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool ct_open_models(struct ct *c);

#endif
