/*
 * The scan of raw JSON text: the grammar of RFC 8259, plus the bare words
 * NaN, Infinity and -Infinity as Python writes them, without recursion. It
 * judges everything that cJSON lets pass (control characters, UTF-8,
 * numbers such as 01, text behind the value) and records where each value
 * stands. It decodes nothing.
 */
#include "converter/base/json_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct frame {
    uint32_t node; /* the open container */
    uint32_t last; /* its newest member, 0: none */
    bool object;
};

struct scanner {
    struct js_scan *out;
    const char *text;
    size_t len, pos;
    int depth;
    int hollow; /* depth of the open array that keeps no members, 0: none */
    size_t key; /* where the text of the newest key begins */
    struct frame stack[JS_MAX_DEPTH];
    struct err *e;
};

int js_error_at(const char *text, size_t pos, struct err *e, const char *fmt,
                ...)
{
    char what[512];
    size_t line = 1, column = 1;
    va_list ap;

    for (size_t i = 0; i < pos; i++) {
        if (text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_INPUT, "line %zu, column %zu: %s", line, column,
                   what);
}

/* "found X, expected Y" at the current position. */
static int unexpected(struct scanner *s, const char *expected)
{
    unsigned char c;

    if (s->pos >= s->len)
        return js_error_at(s->text, s->pos, s->e,
                           "the JSON text ends where %s is expected", expected);
    c = (unsigned char)s->text[s->pos];
    if (c > 0x20 && c < 0x7f)
        return js_error_at(s->text, s->pos, s->e, "'%c' where %s is expected",
                           c, expected);
    return js_error_at(s->text, s->pos, s->e,
                       "byte 0x%02X where %s is expected", c, expected);
}

static bool more(const struct scanner *s)
{
    return s->pos < s->len;
}

static bool at(const struct scanner *s, char c)
{
    return s->pos < s->len && s->text[s->pos] == c;
}

static bool at_digit(const struct scanner *s)
{
    return s->pos < s->len && s->text[s->pos] >= '0' && s->text[s->pos] <= '9';
}

static void skip_space(struct scanner *s)
{
    while (at(s, ' ') || at(s, '\n') || at(s, '\t') || at(s, '\r'))
        s->pos++;
}

size_t js_utf8_length(const unsigned char *p, size_t left)
{
    unsigned lo = 0x80, hi = 0xbf;
    size_t n;

    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        n = 2;
    else if ((p[0] & 0xf0) == 0xe0)
        n = 3;
    else if (p[0] >= 0xf0 && p[0] <= 0xf4)
        n = 4;
    else
        return 0;
    if (p[0] == 0xe0)
        lo = 0xa0;
    else if (p[0] == 0xed)
        hi = 0x9f;
    else if (p[0] == 0xf0)
        lo = 0x90;
    else if (p[0] == 0xf4)
        hi = 0x8f;
    if (left < n || p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

/* Four hexadecimal digits, or -1. */
static long hex4(struct scanner *s)
{
    long v = 0;

    for (int i = 0; i < 4; i++, s->pos++) {
        char c = more(s) ? s->text[s->pos] : '\0';

        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v * 16 + (c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            v = v * 16 + (c - 'A' + 10);
        else
            return -1;
    }
    return v;
}

/* Behind "\u". */
static int scan_unicode_escape(struct scanner *s)
{
    size_t start = s->pos - 2;
    long v = hex4(s);

    if (v < 0)
        return unexpected(s, "a hexadecimal digit of a \\u escape");
    if (v == 0)
        return js_error_at(s->text, start, s->e,
                           "a string holds U+0000, which no name or text may");
    if (v >= 0xd800 && v <= 0xdbff) {
        if (!at(s, '\\') || s->pos + 1 >= s->len || s->text[s->pos + 1] != 'u')
            return js_error_at(s->text, start, s->e,
                               "half a surrogate pair (\\u%04lX)",
                               (unsigned long)v);
        s->pos += 2;
        v = hex4(s);
        if (v < 0xdc00 || v > 0xdfff)
            return js_error_at(s->text, start, s->e,
                               "a surrogate pair without its second half");
    } else if (v >= 0xdc00 && v <= 0xdfff) {
        return js_error_at(s->text, start, s->e,
                           "half a surrogate pair (\\u%04lX)",
                           (unsigned long)v);
    }
    return 0;
}

static int scan_escape(struct scanner *s)
{
    s->pos++;
    if (at(s, 'u')) {
        s->pos++;
        return scan_unicode_escape(s);
    }
    if (more(s) && s->text[s->pos] != '\0' &&
        strchr("\"\\/bfnrt", s->text[s->pos]) != NULL) {
        s->pos++;
        return 0;
    }
    return unexpected(s, "an escape (one of \"\\/bfnrtu)");
}

/* From the opening quote to behind the closing one. */
static int scan_string(struct scanner *s)
{
    const unsigned char *t = (const unsigned char *)s->text;
    size_t start = s->pos++, n;

    while (more(s)) {
        unsigned char c = t[s->pos];

        if (c == '"') {
            s->pos++;
            return 0;
        }
        if (c == '\\') {
            if (scan_escape(s))
                return -1;
        } else if (c < 0x20) {
            return js_error_at(s->text, s->pos, s->e,
                               "a string holds the control character 0x%02X",
                               c);
        } else if (c < 0x80) {
            s->pos++;
        } else {
            n = js_utf8_length(t + s->pos, s->len - s->pos);
            if (n == 0)
                return js_error_at(s->text, s->pos, s->e,
                                   "a string is not valid UTF-8 (byte 0x%02X)",
                                   c);
            s->pos += n;
        }
    }
    return js_error_at(s->text, start, s->e, "a string does not end");
}

static int scan_digits(struct scanner *s)
{
    if (!at_digit(s))
        return unexpected(s, "a digit");
    while (at_digit(s))
        s->pos++;
    return 0;
}

static bool take_word(struct scanner *s, const char *word)
{
    size_t n = strlen(word);

    if (s->len - s->pos < n || memcmp(s->text + s->pos, word, n) != 0)
        return false;
    s->pos += n;
    return true;
}

static int scan_number(struct scanner *s)
{
    size_t start = s->pos;

    if (at(s, '-'))
        s->pos++;
    if (take_word(s, "Infinity"))
        return 0;
    if (at(s, '0')) {
        s->pos++;
        if (at_digit(s))
            return js_error_at(s->text, start, s->e,
                               "a number with a leading zero");
    } else if (scan_digits(s)) {
        return -1;
    }
    if (at(s, '.')) {
        s->pos++;
        if (scan_digits(s))
            return -1;
    }
    if (at(s, 'e') || at(s, 'E')) {
        s->pos++;
        if (at(s, '+') || at(s, '-'))
            s->pos++;
        if (scan_digits(s))
            return -1;
    }
    return 0;
}

/* A new node at the current position, tied to its parent. Inside of an array
 * that keeps no members: element 0. */
static struct js_node *add_node(struct scanner *s, enum js_kind kind)
{
    struct js_scan *o = s->out;
    void *items = o->nodes;
    struct js_node *n;
    uint32_t self = (uint32_t)o->count;

    if (s->hollow)
        return o->nodes;
    if (mem_grow(&items, &o->cap, o->count, sizeof *n, s->e))
        return NULL;
    o->nodes = items;
    n = &o->nodes[o->count++];
    memset(n, 0, sizeof *n);
    n->begin = (uint32_t)s->pos;
    n->self = self;
    n->info = (uint32_t)kind;
    if (s->depth > 0) {
        struct frame *f = &s->stack[s->depth - 1];

        o->nodes[f->node].count++;
        if (f->last != 0)
            o->nodes[f->last].next = self;
        f->last = self;
    }
    return n;
}

static int scan_scalar(struct scanner *s)
{
    size_t index = s->hollow ? 0 : s->out->count;
    char c = s->text[s->pos];
    enum js_kind kind = JS_NUMBER;
    int rc = 0;

    if (c == '"')
        kind = JS_STRING;
    else if (c == 't' || c == 'f')
        kind = JS_BOOL;
    else if (c == 'n')
        kind = JS_NULL;
    if (add_node(s, kind) == NULL)
        return -1;
    if (kind == JS_STRING)
        rc = scan_string(s);
    else if (c == '-' || at_digit(s))
        rc = scan_number(s);
    else if (!take_word(s, "true") && !take_word(s, "false") &&
             !take_word(s, "null") && !take_word(s, "NaN") &&
             !take_word(s, "Infinity"))
        rc = unexpected(s, "a value");
    s->out->nodes[index].end = (uint32_t)s->pos;
    return rc;
}

/* Whether the array that begins here is to keep no members. */
static bool is_hollow(const struct scanner *s)
{
    const char *key = s->out->hollow;
    size_t n = key ? strlen(key) : 0;

    return key && s->depth && s->stack[s->depth - 1].object && !s->hollow &&
           !strncmp(s->text + s->key, key, n) && s->text[s->key + n] == '"';
}

static int open_container(struct scanner *s, bool object)
{
    struct js_node *n;
    bool hollow = !object && is_hollow(s);

    if (s->depth == JS_MAX_DEPTH)
        return js_error_at(s->text, s->pos, s->e,
                           "nested deeper than %d levels", JS_MAX_DEPTH);
    n = add_node(s, object ? JS_OBJECT : JS_ARRAY);
    if (n == NULL)
        return -1;
    s->stack[s->depth++] = (struct frame){ n->self, 0, object };
    if (hollow) {
        n->info |= JS_INFO_HOLLOW;
        s->hollow = s->depth;
    }
    s->pos++;
    return 0;
}

static void close_container(struct scanner *s)
{
    s->pos++;
    if (s->depth == s->hollow)
        s->hollow = 0;
    s->out->nodes[s->stack[--s->depth].node].end = (uint32_t)s->pos;
}

static char closer(const struct scanner *s)
{
    return s->stack[s->depth - 1].object ? '}' : ']';
}

/* `"key" :` of a member; nothing in an array. */
static int scan_key(struct scanner *s)
{
    if (!s->stack[s->depth - 1].object)
        return 0;
    skip_space(s);
    if (!at(s, '"'))
        return unexpected(s, "a key in double quotes");
    s->key = s->pos + 1;
    if (scan_string(s))
        return -1;
    skip_space(s);
    if (!at(s, ':'))
        return unexpected(s, "':'");
    s->pos++;
    return 0;
}

/* After a value: closes what ends here and reads up to the next value.
 * Returns 1 if one follows, 0 at the end, -1 on an error. */
static int scan_after_value(struct scanner *s)
{
    while (s->depth > 0) {
        skip_space(s);
        if (at(s, closer(s))) {
            close_container(s);
            continue;
        }
        if (!at(s, ','))
            return unexpected(s,
                              closer(s) == '}' ? "',' or '}'" : "',' or ']'");
        s->pos++;
        return scan_key(s) ? -1 : 1;
    }
    return 0;
}

static int scan_values(struct scanner *s)
{
    int rc;

    for (;;) {
        skip_space(s);
        if (!more(s))
            return unexpected(s, "a value");
        if (at(s, '{') || at(s, '[')) {
            if (open_container(s, at(s, '{')))
                return -1;
            skip_space(s);
            if (!at(s, closer(s))) {
                if (scan_key(s))
                    return -1;
                continue;
            }
            close_container(s);
        } else if (scan_scalar(s)) {
            return -1;
        }
        rc = scan_after_value(s);
        if (rc <= 0)
            return rc;
    }
}

int js_scan_text(struct js_scan *out, struct err *e)
{
    struct scanner s = {
        .out = out, .text = out->text, .len = out->len, .e = e
    };
    void *items = NULL;

    if (out->len > JS_TEXT_MAX)
        return err_set(e, ERR_INPUT,
                       "a JSON text of %zu bytes; at most %" PRIu32
                       " are taken",
                       out->len, (uint32_t)JS_TEXT_MAX);
    if (mem_grow(&items, &out->cap, 0, sizeof *out->nodes, e))
        return -1;
    out->nodes = items;
    memset(out->nodes, 0, sizeof *out->nodes);
    out->count = 1;
    if (out->len >= 3 && memcmp(out->text, "\xef\xbb\xbf", 3) == 0)
        return js_error_at(out->text, 0, e,
                           "the text starts with a byte order mark");
    if (scan_values(&s))
        return -1;
    skip_space(&s);
    if (more(&s))
        return unexpected(&s, "the end of the JSON text");
    return 0;
}
