/*
 * Parts of the decoder that decode.c and older.c share.
 */
#ifndef SCHEMA_DECODE_PRIV_H
#define SCHEMA_DECODE_PRIV_H

#include "schema/codec.h"
#include "schema/model.pb-c.h"

#define DEC_OPSET "CoreML8"
/* Its operations take the same parameters there, weight decompression apart:
 * read as CoreML8. */
#define DEC_OPSET_BEFORE "CoreML7"

struct dec_name {
    const char *name; /* NULL: free slot */
    mil_ref ref;
};

struct dec {
    struct mil_program *p;
    struct mil_function *f;
    const struct codec_weights *weights; /* NULL: none */
    bool raw;
    struct arena scratch;
    struct dec_name *names; /* of the function at hand; open addressing */
    size_t n_names, cap_names;
    const char *nothing; /* what an empty list of strings points to */
    struct err *e;
};

/* An operation on its way into the IR. */
struct dec_op {
    const char *type;
    const Pb__Operation *message;
    struct mil_named_arg *args; /* in the scratch arena */
    uint32_t n_args;
};

/* The constant in a message; `as` is another type for the same bytes. */
const struct mil_const *dec_value(struct dec *c, const Pb__Value *v,
                                  const struct mil_type *as);
/* A literal value that holds it; 0 on error. */
mil_ref dec_literal(struct dec *c, const struct mil_const *k);

/* older.c: operations of older opsets whose meaning CoreML8 expresses with
 * the same bytes. */
bool dec_is_older(const Pb__Operation *o);
/* Fills the op, all but its outputs. */
int dec_older(struct dec *c, const Pb__Operation *o,
              struct mil_op *op) ATTR_MUST_USE;

#endif
