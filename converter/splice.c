/*
 * Text edits of a JSON object's members, each on a fresh parse.
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

static int append(struct splice *s, const struct js_doc *d, const char *key,
                  const char *value, struct err *e)
{
    const struct js_node *last = NULL;
    struct buf with = BUF_INIT;
    size_t begin, end;
    int rc = -1;

    for (const struct js_node *n = js_first(js_root(d)); n; n = js_next(n))
        last = n;
    if (last) {
        js_span(d, last, &begin, &end);
        buf_puts(&with, ",\n  ");
    } else {
        js_span(d, js_root(d), &begin, &end);
        end = begin + 1; /* behind the brace */
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
    struct js_doc *d = js_parse(s->text.data, s->text.len, e);
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

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* From behind the previous member (or the brace) to this value's end, or to
 * the comma behind it when it is the first. */
static void member_span(const char *t, size_t value_begin, size_t *begin,
                        size_t *end)
{
    size_t b = value_begin, q;

    while (t[--b] != ':')
        ;
    while (t[--b] != '"') /* the key's closing quote */
        ;
    for (q = b; q > 0;) { /* its opening quote: not behind a backslash */
        q--;
        if (t[q] == '"' && (q == 0 || t[q - 1] != '\\'))
            break;
    }
    b = q;
    while (b > 0 && is_space(t[b - 1]))
        b--;
    if (b > 0 && t[b - 1] == ',') {
        *begin = b - 1;
        return;
    }
    *begin = b;
    while (is_space(t[*end]))
        (*end)++;
    if (t[*end] == ',')
        (*end)++;
}

int splice_remove(struct splice *s, const char *key, struct err *e)
{
    struct js_doc *d = js_parse(s->text.data, s->text.len, e);
    const struct js_node *n;
    size_t value, begin, end;
    int rc = 0;

    if (!d)
        return -1;
    n = js_get(js_root(d), key);
    if (n) {
        js_span(d, n, &value, &end);
        member_span(s->text.data, value, &begin, &end);
        rc = replace(s, begin, end, "", e);
    }
    js_free(d);
    return rc;
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

int splice_verify(const struct splice *s, const struct js_doc *before,
                  const char *const *changed, struct err *e)
{
    struct js_doc *d = js_parse(s->text.data, s->text.len, e);
    int rc = 0;

    if (!d)
        return -1;
    for (const struct js_node *n = js_first(js_root(before)); n && !rc;
         n = js_next(n))
        if (!listed(changed, js_key(n)) &&
            !js_equal(n, js_get(js_root(d), js_key(n))))
            rc = err_set(e, ERR_INPUT, "member '%s' changed by accident",
                         js_key(n));
    js_free(d);
    return rc;
}
