/*
 * Between the files of the lint: what they know of a package while they look
 * at it. Everything that a damaged package leaves unknown is 0, NULL or -1,
 * and checks that need it are left out.
 */
#ifndef CONVERTER_LINT_PRIV_H
#define CONVERTER_LINT_PRIV_H

#include "converter/lint.h"
#include "converter/yaml_doc_priv.h"
#include "schema/package.h"

#define LINT_MAX_CHUNKS 99
#define LINT_MAX_STATES 64

enum lint_kind { LK_EMBEDDINGS, LK_CHUNK, LK_HEAD, LK_WHOLE, LK_OTHER };

/* A model of the folder: one stem in one or both forms. */
struct lint_model {
    char *stem; /* "qwen_FFN_PF_lut6_chunk_01of02" */
    char *name; /* with the ending of the form that is looked at */
    enum lint_kind kind;
    int chunk, total;      /* by the name; 0: it has none */
    bool source, compiled; /* .mlpackage, .mlmodelc */
    bool member;           /* of the package; others are strays */
    struct pkg *pkg;       /* NULL: unreadable */
    bool raw;              /* with what is not known here */
};

/* meta.yaml; numbers are 0 where unknown. */
struct lint_meta {
    struct buf text;
    bool read, loaded; /* the text; the document */
    bool placed;       /* the keys stand where they belong */
    yaml_document_t doc;
    yaml_node_t *info, *params; /* params: where the keys stand */
    int64_t context, batch, chunks, head_parts, vocab, hidden, layers;
    int64_t window;
    int bits[3]; /* embeddings, ffn, lmhead; -1: unknown, 0: none */
    const char *prefix, *version, *architecture;
    const char *file[3]; /* embeddings, ffn, lm_head keys, or NULL */
    bool whole;          /* monolithic */
    bool argmax, last_token, recurrent, full_batches, update_mask;
};

struct lint {
    const char *dir;
    struct lint_report *report;
    struct err *e; /* of the system; sticky */
    struct lint_meta meta;
    char **names; /* of the folder */
    size_t n_names;
    struct lint_model *models;
    size_t n_models;
    struct lint_model *embeddings, *head, *whole;
    struct lint_model *chunk[LINT_MAX_CHUNKS]; /* NULL: missing */
    int n_chunks;
    int64_t hidden; /* of the first chunk's infer, as runtimes take it */
    bool extended;  /* asks more than ANEMLL's runtimes do */
};

void lint_add(struct lint *l, enum lint_id id, const char *where,
              const char *fmt, ...) ATTR_PRINTF(4, 5);
/* What an error of some reader says; a lack of memory is the lint's own. */
void lint_add_err(struct lint *l, enum lint_id id, const char *where,
                  const struct err *found);
/* Findings of severity error whose place begins with `where`. */
bool lint_has_error(const struct lint *l, const char *where);

/* The stages, in order. Each fails only with a system error, in l->e. */
int lint_meta_read(struct lint *l);
int lint_files_find(struct lint *l);
int lint_models_open(struct lint *l);
void lint_meta_check(struct lint *l);
int lint_files_check(struct lint *l);
void lint_contract_check(struct lint *l);
void lint_states_check(struct lint *l);
void lint_layers_check(struct lint *l);
void lint_weights_check(struct lint *l);
void lint_program_check(struct lint *l);
int lint_assets_check(struct lint *l);

/* Whether a line holds a place on somebody's machine; its beginning. */
const char *lint_find_place(const char *text);

/* Values of meta.yaml's parameters; false if absent or of another kind. */
bool lint_meta_int(const struct lint *l, const char *key, int64_t *out);
/* A node of the parameters, NULL if absent. */
yaml_node_t *lint_meta_node(const struct lint *l, const char *key);
/* A node of a mapping, NULL if absent. */
yaml_node_t *lint_node_member(const struct lint *l, const yaml_node_t *map,
                              const char *key);
/* A plain scalar as an integer. */
bool lint_node_int(const yaml_node_t *n, int64_t *out);
const char *lint_node_text(const yaml_node_t *n); /* NULL: no scalar */

/* Every open part of the package: embeddings, chunks, head, whole; NULL ends
 * the walk that begins with *at = 0. */
struct lint_model *lint_next_part(struct lint *l, int *at);
const struct mil_value *lint_input(const struct mil_function *f,
                                   const char *name);
const struct mil_value *lint_output(const struct mil_function *f,
                                    const char *name);

#endif
