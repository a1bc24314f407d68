/*
 * Text edits of a JSON object's members, each on a fresh parse: positions of
 * one text say nothing about the next.
 */
#include "converter/splice.h"

#include <string.h>

int splice_begin(struct splice *s, const char *text, size_t len, struct err *e)
{
    struct buf empty = BUF_INIT;

    s->text = empty;
    buf_add(&s->text, text, len);
    return buf_ok(&s->text, e);
}

void splice_release(struct splice *s)
{
    buf_release(&s->text);
}

static struct js_doc *parse(const struct splice *s, struct err *e)
{
    struct js_doc *d = js_parse(buf_text(&s->text), s->text.len, e);

    if (d && js_kind(js_root(d)) != JS_OBJECT) {
        err_set(e, ERR_INPUT, "the JSON text is %s, an object is needed",
                js_kind_name(js_kind(js_root(d))));
        js_free(d);
        d = NULL;
    }
    return d;
}

/* Replaces bytes [begin, end) by `with`. */
static int replace(struct splice *s, size_t begin, size_t end, const char *with,
                   struct err *e)
{
    struct buf out = BUF_INIT;

    buf_add(&out, s->text.data, begin);
    buf_puts(&out, with);
    buf_add(&out, s->text.data + end, s->text.len - end);
    if (buf_ok(&out, e)) {
        buf_release(&out);
        return -1;
    }
    buf_release(&s->text);
    s->text = out;
    return 0;
}

static const struct js_node *last_member(const struct js_node *object)
{
    const struct js_node *last = NULL;

    for (const struct js_node *n = js_first(object); n; n = js_next(n))
        last = n;
    return last;
}

static int append(struct splice *s, const struct js_doc *d, const char *key,
                  const char *value, struct err *e)
{
    const struct js_node *last = last_member(js_root(d));
    const char *t = s->text.data;
    struct buf with = BUF_INIT;
    size_t open, end;
    int rc = -1;

    js_span(d, js_root(d), &open, &end);
    open++; /* behind the brace */
    end = open;
    if (last) {
        /* The space in front of the first key separates the others too. */
        size_t space = strcspn(t + open, "\""), begin;

        js_span(d, last, &begin, &end);
        buf_puts(&with, ",");
        buf_add(&with, t + open, space);
    }
    js_quote(&with, key, strlen(key));
    buf_printf(&with, ": %s", value);
    if (!buf_ok(&with, e))
        rc = replace(s, end, end, buf_text(&with), e);
    buf_release(&with);
    return rc;
}

int splice_set(struct splice *s, const char *key, const char *value,
               struct err *e)
{
    struct js_doc *d = parse(s, e);
    const struct js_node *n;
    size_t begin, end;
    int rc;

    if (!d)
        return -1;
    n = js_get(js_root(d), key);
    if (n) {
        js_span(d, n, &begin, &end);
        rc = replace(s, begin, end, value, e);
    } else {
        rc = append(s, d, key, value, e);
    }
    js_free(d);
    return rc;
}

/* Removes member `n` of `object` with the comma that it no longer needs: the
 * one in front, or for the first member the one behind. */
static int remove_member(struct splice *s, const struct js_doc *d,
                         const struct js_node *object, const struct js_node *n,
                         struct err *e)
{
    const struct js_node *before = NULL, *m;
    size_t begin, end, other;

    js_span(d, n, &begin, &end);
    for (m = js_first(object); m != n; m = js_next(m))
        before = m;
    if (before) {
        js_span(d, before, &other, &begin);
    } else {
        js_span(d, object, &begin, &other);
        begin++; /* behind the brace */
        if (js_next(n))
            end += strcspn(s->text.data + end, ",") + 1;
    }
    return replace(s, begin, end, "", e);
}

int splice_remove(struct splice *s, const char *key, struct err *e)
{
    struct js_doc *d = parse(s, e);
    const struct js_node *n;
    int rc = 0;

    if (!d)
        return -1;
    n = js_get(js_root(d), key);
    if (n)
        rc = remove_member(s, d, js_root(d), n, e);
    js_free(d);
    return rc;
}

static bool holds_members(const struct js_node *n)
{
    return js_kind(n) == JS_OBJECT || js_kind(n) == JS_ARRAY;
}

/* The first member picked, in the text's order, and the object around it.
 * The depth is bounded by the parser. */
static const struct js_node *find(const struct js_node *n, splice_rule rule,
                                  const struct js_node **object)
{
    for (const struct js_node *m = js_first(n); m; m = js_next(m)) {
        const struct js_node *hit;

        if (js_kind(n) == JS_OBJECT && rule(js_key(m), m)) {
            *object = n;
            return m;
        }
        hit = holds_members(m) ? find(m, rule, object) : NULL;
        if (hit)
            return hit;
    }
    return NULL;
}

int splice_remove_all(struct splice *s, splice_rule rule, size_t *removed,
                      struct err *e)
{
    *removed = 0;
    for (;;) {
        struct js_doc *d = parse(s, e);
        const struct js_node *object, *n;
        int rc;

        if (!d)
            return -1;
        n = find(js_root(d), rule, &object);
        rc = n ? remove_member(s, d, object, n, e) : 0;
        js_free(d);
        if (rc || !n)
            return rc;
        (*removed)++;
    }
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

/* Whether b is a without the members that `rule` picks. */
static bool equal_but(const struct js_node *a, const struct js_node *b,
                      splice_rule rule)
{
    const struct js_node *x, *y;

    if (!b || js_kind(a) != js_kind(b))
        return false;
    if (!rule || !holds_members(a))
        return js_equal(a, b);
    y = js_first(b);
    for (x = js_first(a); x; x = js_next(x)) {
        if (js_kind(a) == JS_OBJECT && rule(js_key(x), x))
            continue;
        if (!y ||
            (js_kind(a) == JS_OBJECT && strcmp(js_key(x), js_key(y)) != 0) ||
            !equal_but(x, y, rule))
            return false;
        y = js_next(y);
    }
    return !y;
}

int splice_verify(const struct splice *s, const struct js_doc *before,
                  const char *const *changed, splice_rule rule, struct err *e)
{
    struct js_doc *d = parse(s, e);
    const struct js_node *old, *now, *n;
    int rc = 0;

    if (!d)
        return -1;
    old = js_root(before);
    now = js_root(d);
    for (n = js_first(old); n && !rc; n = js_next(n)) {
        const struct js_node *m = js_get(now, js_key(n));
        bool gone = rule && rule(js_key(n), n);

        if (!listed(changed, js_key(n)) &&
            (gone ? m != NULL : !equal_but(n, m, rule)))
            rc = err_set(e, ERR_INPUT, "member '%s' changed by accident",
                         js_key(n));
    }
    for (n = js_first(now); n && !rc; n = js_next(n))
        if (!listed(changed, js_key(n)) && !js_get(old, js_key(n)))
            rc = err_set(e, ERR_INPUT, "member '%s' appeared by accident",
                         js_key(n));
    js_free(d);
    return rc;
}
