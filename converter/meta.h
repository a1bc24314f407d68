/*
 * meta.yaml: written with libyaml in exactly the shape that ANEMLL's readers
 * take (keys at 2 and 4 spaces, flow lists, no quotes around numbers), and
 * read back from any ANEMLL package.
 */
#ifndef CONVERTER_META_H
#define CONVERTER_META_H

#include "converter/assets.h"
#include "converter/converter.h"

/* The text of meta.yaml for a job whose parts are written. */
int meta_text(const struct cv_job *j, const struct assets *a, struct buf *out,
              struct err *e) ATTR_MUST_USE;

/* Whether YAML 1.1 and 1.2 both read the unquoted word as this very string. */
bool meta_plain(const char *s);

/* What a runtime needs to know of a package. */
struct meta {
    char name[160], architecture[64], version[32], prefix[64];
    int64_t context_length, batch_size, num_chunks, split_lm_head;
    int64_t vocab_size, hidden_size, num_layers; /* 0: absent */
    /* From this position on, chunks that have the functions are called by
     * infer_rotate and prefill_rotate; ANEMLL's default where absent. */
    int64_t sliding_window;
    int64_t local_cache_length; /* of a window that shifts; 0: none does */
    int lut_embeddings, lut_ffn, lut_lmhead; /* 0: none */
    bool prefill_last_token_output, recurrent_state;
    char embeddings[192], ffn[192], lm_head[192]; /* file names as written */
    bool ours; /* meta_text wrote it: its last line says so */
};
/* Reads DIR/meta.yaml; hostile input. Missing required keys are errors. Keys
 * are looked for once each: aliases and cycles cost nothing. */
int meta_read(const char *dir, struct meta *m, struct err *e) ATTR_MUST_USE;
/* Path of a part in DIR, there or not: kind, 1-based chunk, and form. By the
 * keys of meta.yaml, whose extensions mean nothing (runtimes choose their
 * own), else the one part whose name fits. */
enum meta_form { META_COMPILED, META_PACKAGE };
char *meta_part_path(const char *dir, const struct meta *m, enum cv_kind kind,
                     int chunk, enum meta_form form,
                     struct err *e) ATTR_MUST_USE;

#endif
