/*
 * Shared by the two halves of the MIL text reader.
 */
#ifndef MIL_PARSE_PRIV_H
#define MIL_PARSE_PRIV_H

#include <stdarg.h>
#include <stdio.h>

#include "mil/mil.h"
#include "mil/name_map_priv.h"
#include "mil/text.h"

#define PARSE_NAME_MAX 1000
#define MAX_TYPE_DEPTH 16
/* Of things that are looked up one by one. */
#define MAX_LISTED 512

struct slice {
    const char *p;
    size_t n;
};
bool slice_is(struct slice s, const char *text);

/* One `key = value` of a statement: a range of parse.refs. */
struct arg_slot {
    struct slice name;
    size_t pos, first, n;
    bool attribute;
};
struct out_slot {
    struct mil_type type;
    struct slice name;
    size_t pos;
};
struct statement {
    size_t pos;
    const char *type, *name;
    bool is_const;
    const struct mil_const *konst;
};

struct parse {
    const char *s;
    size_t len, pos;
    const struct text_parse_options *o;
    struct mil_program *p;
    struct mil_function *f;
    struct name_map names; /* values of f */
    /* The statement being read. */
    struct arg_slot *args;
    size_t n_args, cap_args;
    struct out_slot *outs;
    size_t n_outs, cap_outs;
    mil_ref *refs;
    size_t n_refs, cap_refs;
    struct err *e;
};

/* Sets an error with the line and column of a position. Returns -1. */
int parse_fail_at(struct parse *c, size_t pos, const char *fmt, ...)
    ATTR_PRINTF(3, 4);
/* The next byte that is no white space, -1 at the end. */
int parse_peek(struct parse *c);
bool parse_accept(struct parse *c, char want);
int parse_expect(struct parse *c, char want) ATTR_MUST_USE;
int parse_ident(struct parse *c, const char *what,
                struct slice *out) ATTR_MUST_USE;
int parse_word(struct parse *c, const char *word) ATTR_MUST_USE;
/* `state` NULL: states are not allowed here. */
int parse_type(struct parse *c, struct mil_type *t, bool *state) ATTR_MUST_USE;

int parse_int(struct parse *c, int64_t min, int64_t max,
              int64_t *out) ATTR_MUST_USE;
/* A quoted string, unescaped, in the program's arena. */
int parse_string(struct parse *c, const char **out) ATTR_MUST_USE;
/* TYPE(payload); lives in the program's arena. */
const struct mil_const *parse_value(struct parse *c) ATTR_MUST_USE;

#endif
