/*
 * JSON, read as hostile text and written by ourselves.
 *
 * cJSON builds the tree; the wrapper owns the raw text and scans it first:
 * valid UTF-8, nothing but JSON white space around the value, no U+0000 in a
 * string, strict numbers, depth at most JS_MAX_DEPTH, no key twice in one
 * object. NaN, Infinity and -Infinity, which Python writes, become
 * non-finite numbers. Keys compare case-sensitively.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/buf.h"
#include "converter/base/compiler.h"
#include "converter/base/err.h"

#define JS_MAX_DEPTH 128

enum js_kind { JS_NULL, JS_BOOL, JS_NUMBER, JS_STRING, JS_ARRAY, JS_OBJECT };

struct js_doc;
struct js_node; /* lives as long as its document */

/* Copies the text. Errors say line and column. */
struct js_doc *js_parse(const char *text, size_t len,
                        struct err *e) ATTR_MUST_USE;
/* Reads a file through io_open_input; errors name it. max_bytes caps it. */
struct js_doc *js_read_file(const char *path, uint64_t max_bytes,
                            struct err *e) ATTR_MUST_USE;
/* The same, but arrays that are members called `key` (as it is spelled in the
 * text) count as empty. Their text is judged and kept; what they hold takes no
 * memory. Half a million merges of a tokenizer would take 170 MB. */
struct js_doc *js_read_file_hollow(const char *path, uint64_t max_bytes,
                                   const char *key,
                                   struct err *e) ATTR_MUST_USE;
void js_free(struct js_doc *d);
const struct js_node *js_root(const struct js_doc *d);
/* The raw text, unchanged. */
const char *js_text(const struct js_doc *d, size_t *len);

enum js_kind js_kind(const struct js_node *n);
const char *js_kind_name(enum js_kind k); /* "an object", "null", ... */
/* Member of an object; NULL if absent or if `n` is NULL or no object. Large
 * objects are hashed at parse time: a look-up never walks the list. */
const struct js_node *js_get(const struct js_node *n, const char *key);
/* Iteration in document order over an object or an array. */
const struct js_node *js_first(const struct js_node *n);
const struct js_node *js_next(const struct js_node *n);
const char *js_key(const struct js_node *n); /* of a member; else NULL */
size_t js_count(const struct js_node *n);

/* Values. False when the node is NULL or of another kind. */
bool js_bool(const struct js_node *n, bool *out);
bool js_string(const struct js_node *n, const char **out);
bool js_double(const struct js_node *n, double *out); /* may be non-finite */
/* An integer written as such (no point, no exponent), 0 .. 2^48-1. */
bool js_uint(const struct js_node *n, uint64_t *out);
/* An integral value in any spelling (8, 8.0, 1e6), -2^53 .. 2^53. */
bool js_integral(const struct js_node *n, int64_t *out);
/* Where the node stands in the raw text, for splicing a member: byte range
 * of the value. */
void js_span(const struct js_doc *d, const struct js_node *n, size_t *begin,
             size_t *end);
/* Deep comparison (numbers by raw text, members in any order). */
bool js_equal(const struct js_node *a, const struct js_node *b);

/* Writer: indented by 2, members in the order of the calls, a line end after
 * the outermost value. Non-finite numbers are written as null, and so is a
 * NULL string. `key` is NULL inside arrays. */
struct js_writer {
    struct buf *out;
    int depth;
    bool first[JS_MAX_DEPTH];
    bool flat[JS_MAX_DEPTH];  /* this level is written on one line */
    bool array[JS_MAX_DEPTH]; /* an array, not an object */
};
void js_w_init(struct js_writer *w, struct buf *out);
void js_w_object(struct js_writer *w, const char *key);
void js_w_array(struct js_writer *w, const char *key, bool flat);
void js_w_end(struct js_writer *w); /* closes the innermost */
void js_w_string(struct js_writer *w, const char *key, const char *v);
void js_w_double(struct js_writer *w, const char *key, double v);
void js_w_uint(struct js_writer *w, const char *key, uint64_t v);
void js_w_int(struct js_writer *w, const char *key, int64_t v);
void js_w_bool(struct js_writer *w, const char *key, bool v);
void js_w_null(struct js_writer *w, const char *key);
/* An array of the lines of a text, each as a string. */
void js_w_lines(struct js_writer *w, const char *key, const char *text);
/* A quoted and escaped JSON string. */
void js_quote(struct buf *out, const char *s, size_t len);

#endif
