/*
 * How families read config.json: a reader over the level that holds the text
 * settings, and tables of keys with three columns (absent, null, value).
 * Private to models/.
 */
#ifndef MODELS_HPARAMS_PRIV_H
#define MODELS_HPARAMS_PRIV_H

#include <stddef.h>

#include "models/models.h"

/* What is known of the tensors while the config is read. */
enum hp_head { HP_HEAD_UNKNOWN, HP_HEAD_ABSENT, HP_HEAD_PRESENT };
struct hp_options {
    enum hp_head head; /* is there an lm_head.weight? */
    bool force_tie;    /* the user ties what the config leaves untied */
};

struct hp_reader {
    const struct js_node *outer, *text; /* equal when the file is flat */
    const char *level;                  /* of `text`, for messages */
    bool nested;
    struct hp_options opt;
    struct buf *notes; /* may be NULL */
};

/* hparams_parse with what the tensors say. */
int hparams_parse_with(const struct js_doc *config,
                       const struct hp_options *opt, struct hparams *hp,
                       struct buf *notes, struct err *e) ATTR_MUST_USE;

enum hp_kind {
    HP_INT,  /* int64_t; 8 and 8.0, never 8.5 */
    HP_REAL, /* double, finite */
    HP_FLAG, /* bool */
    HP_WORD, /* a string that must equal `only`; stored nowhere */
};
enum hp_when {
    HP_ASK,   /* an error: the value is needed */
    HP_CLASS, /* `def`, the class default */
    HP_LEAVE, /* the field stays as it is; the family derives it */
};
struct hp_row {
    const char *key;
    enum hp_kind kind;
    size_t offset; /* in struct hparams */
    enum hp_when absent, null;
    double def, min, max;
    const char *only;
};
int hp_read_rows(const struct hp_reader *r, const struct hp_row *rows, size_t n,
                 struct hparams *hp, struct err *e) ATTR_MUST_USE;

/* A line for the user. */
void hp_note(const struct hp_reader *r, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* "'key' is a string, a number is needed" */
int hp_type_error(const struct js_node *n, const char *key, const char *needed,
                  struct err *e);
/* Member of an object, with null read as absent. */
const struct js_node *hp_value(const struct js_node *object, const char *key);
/* Text from a file, made fit for a message: one line, cut. */
#define HP_CLEAN_MAX 96
const char *hp_clean(char out[HP_CLEAN_MAX], const char *s);

/* tie_word_embeddings from whichever level carries it. */
int hp_read_tie(const struct hp_reader *r, struct hparams *hp,
                bool class_default, struct err *e) ATTR_MUST_USE;
/* layer_types as kinds (`layers` of them; NULL: only checked): each is one of
 * n words. 1: read, 0: there are none, -1: an error. */
struct hp_layer_word {
    const char *word;
    uint8_t kind;
};
int hp_read_layer_types(const struct hp_reader *r, const struct hparams *hp,
                        const struct hp_layer_word *words, size_t n,
                        uint8_t *kinds, struct err *e) ATTR_MUST_USE;
/* layer_types, where present, must be `layers` times full_attention. */
int hp_read_full_layers(const struct hp_reader *r, const struct hparams *hp,
                        struct err *e) ATTR_MUST_USE;
/* Derives what is open (0) and checks counts against each other. */
int hp_check_heads(struct hparams *hp, struct err *e) ATTR_MUST_USE;

/* RoPE of full_attention layers, from every spelling. */
int hp_read_rope(const struct hp_reader *r, struct hparams *hp,
                 double class_theta, struct err *e) ATTR_MUST_USE;
/* The same where only a part of each head may be rotated. */
int hp_read_partial_rope(const struct hp_reader *r, struct hparams *hp,
                         double class_theta, double class_part,
                         struct err *e) ATTR_MUST_USE;

/* Where a family rotates each kind of layer in its own way. */
struct hp_layer_rope {
    const char *layer_type; /* key within rope_parameters */
    double theta;           /* class default */
    const char *theta_key; /* beside rope_parameters, in older files, or NULL */
    const char *type;      /* class default if not "default", or NULL */
    double part;           /* class default of partial_rotary_factor */
    bool old_scaling;      /* rope_scaling of older files means this kind */
};
/* RoPE of layers with heads of `head_dim`; *by: where theta stood. */
int hp_read_layer_rope(const struct hp_reader *r, const struct hp_layer_rope *d,
                       int64_t head_dim, struct rope_params *p, const char **by,
                       struct err *e) ATTR_MUST_USE;

#endif
