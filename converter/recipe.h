/*
 * A recipe: how single matrices are stored, by rules in a YAML file.
 *
 *   rules:
 *     - part: lmhead
 *       lut: 6
 *     - tensor: "*.mlp.down_proj.weight"
 *       layers: 0-3
 *       lut: 8,16
 *     - tensor: layers.5.self_attn.v_proj.weight
 *       lut: none
 *
 * A rule selects by what it names (all of it must fit): `tensor`, a pattern
 * for the whole name, in which '*' stands for any characters and '?' for one;
 * `part`, one of embeddings, ffn and lmhead; `layers`, N or FIRST-LAST. It
 * says how: `lut` or `quant`, as the options of the same names. The last rule
 * that fits a matrix counts.
 *
 * The file is hostile input. Errors name file and line, what was found and
 * what is allowed.
 */
#ifndef CONVERTER_RECIPE_H
#define CONVERTER_RECIPE_H

#include "converter/converter.h"

#define RECIPE_MAX_BYTES 1000000u
#define RECIPE_MAX_RULES 1000u
#define RECIPE_MAX_PATTERN 200u

struct recipe_rule {
    char *tensor;        /* pattern; NULL: any */
    int part;            /* enum cv_kind; -1: any */
    int64_t first, last; /* layers; -1: any */
    struct cv_lut lut;
    size_t line;   /* in the file, from 1 */
    size_t fitted; /* matrices that it was found to fit */
};
struct recipe {
    char *path; /* for messages */
    struct recipe_rule *rules;
    size_t n, cap;
};

struct recipe *recipe_read(const char *path, struct err *e) ATTR_MUST_USE;
/* The same from text; `path` is for messages. */
struct recipe *recipe_parse(const char *path, const char *text, size_t len,
                            struct err *e) ATTR_MUST_USE;
void recipe_free(struct recipe *r);

/* '*' any characters, none too; '?' one; all others themselves. */
bool recipe_glob(const char *pattern, const char *name);

/* Layer ranges lie within the model: ERR_INPUT. */
int recipe_check_layers(const struct recipe *r, int64_t layers,
                        struct err *e) ATTR_MUST_USE;
/* What the rules make of a matrix of a part: the last one that fits; NULL if
 * none does. `tensor`: canonical name; it and its name in the checkpoint
 * (whichever is there, and for experts stored one by one all of theirs) are
 * what patterns are for. */
const struct cv_lut *recipe_find(struct recipe *r, const struct ckpt *c,
                                 enum cv_kind part, const char *tensor);
/* Each rule has fitted a matrix: ERR_INPUT that tells what it fits instead. */
int recipe_check_used(const struct recipe *r, const struct ckpt *c,
                      struct err *e) ATTR_MUST_USE;

#endif
