/*
 * What the encoder and the decoder share: the generated messages, dtype maps
 * and the two directions of the model description.
 */
#ifndef SCHEMA_PROTO_PRIV_H
#define SCHEMA_PROTO_PRIV_H

#include "mil/mil.h"
#include "schema/model.pb-c.h"

/* MIL's data types. PB..UNUSED_TYPE / MIL_INVALID where there is none. */
Pb__DataType proto_of_dtype(enum mil_dtype d);
enum mil_dtype proto_to_dtype(Pb__DataType d);

/* An initialised message in the arena. */
void *proto_new(struct arena *a, const ProtobufCMessageDescriptor *d,
                struct err *e) ATTR_MUST_USE;

/* describe.c: the description that mirrors the program; what the description
 * alone knows (metadata, shapes of flexible inputs) into the program; and
 * the comparison of the two. */
Pb__ModelDescription *describe_make(struct arena *a,
                                    const struct mil_program *p,
                                    struct err *e) ATTR_MUST_USE;
int describe_read(struct mil_program *p, const Pb__ModelDescription *d,
                  struct err *e) ATTR_MUST_USE;
/* Puts the inputs of each function in the order of the description, states
 * last, as writers of programs do. */
void describe_order(struct mil_program *p, const Pb__ModelDescription *d);
int describe_check(const struct mil_program *p, const Pb__ModelDescription *d,
                   struct err *e) ATTR_MUST_USE;

/* The features of one function, whichever message they stand in. */
struct describe_lists {
    size_t n_in, n_out, n_state;
    Pb__FeatureDescription **in, **out, **state;
};
/* False if the description has no function of that name; one without
 * functions describes any. */
bool describe_find(const Pb__ModelDescription *d, const char *function,
                   struct describe_lists *out);

#endif
