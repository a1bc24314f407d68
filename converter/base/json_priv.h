/*
 * Inside of the JSON reader: the node array that the scan fills and that
 * json.c ties to cJSON's tree.
 */
#ifndef BASE_JSON_PRIV_H
#define BASE_JSON_PRIV_H

#include <cjson/cJSON.h>

#include "converter/base/json.h"
#include "converter/base/mem.h"

/* Nodes stand in document order, a container before its members, so that
 * the first member of node i is node i + 1. Offsets and numbers have 32
 * bits: a vocabulary makes millions of nodes. Element 0 is no node but
 * leads back to the document. */
struct js_node {
    union {
        cJSON *item;        /* elements 1 ..: strings and keys */
        struct js_doc *doc; /* element 0 */
    } u;
    uint32_t begin, end; /* bytes of the value in the text */
    uint32_t self;       /* own index */
    uint32_t next;       /* index of the next sibling, 0: none */
    uint32_t count;      /* members of a container */
    uint32_t info;       /* kind in 3 bits, index table behind */
};

#define JS_TEXT_MAX (UINT32_MAX - 1)
#define JS_INFO_KIND 7u
#define JS_INFO_SHIFT 3
/* Behind the kind of an array: its members were left out. */
#define JS_INFO_HOLLOW (1u << JS_INFO_SHIFT)

struct js_scan {
    const char *text;
    size_t len;
    const char *hollow; /* see js_read_file_hollow(); NULL: none */
    struct js_node *nodes;
    size_t count, cap; /* count: element 0 included */
};

/* Validates the whole text and fills nodes (mem_free). */
int js_scan_text(struct js_scan *s, struct err *e) ATTR_MUST_USE;
/* Length of the valid UTF-8 sequence at p, 0 if there is none: no overlong
 * forms, no surrogates, nothing above U+10FFFF. left > 0. */
size_t js_utf8_length(const unsigned char *p, size_t left);
/* An error at a byte of the text: "line L, column C: what". */
int js_error_at(const char *text, size_t pos, struct err *e, const char *fmt,
                ...) ATTR_PRINTF(4, 5);

#endif
