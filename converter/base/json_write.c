/*
 * JSON writing: fixed layout, members in the order of the calls.
 */
#include <math.h>
#include <string.h>

#include "converter/base/json.h"
#include "converter/base/json_priv.h"

static void quote_char(struct buf *out, unsigned char c)
{
    switch (c) {
    case '"': buf_puts(out, "\\\""); return;
    case '\\': buf_puts(out, "\\\\"); return;
    case '\n': buf_puts(out, "\\n"); return;
    case '\r': buf_puts(out, "\\r"); return;
    case '\t': buf_puts(out, "\\t"); return;
    case '\b': buf_puts(out, "\\b"); return;
    case '\f': buf_puts(out, "\\f"); return;
    default: buf_printf(out, "\\u%04x", c); return;
    }
}

void js_quote(struct buf *out, const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0, plain = 0;

    buf_addc(out, '"');
    while (i < len) {
        size_t n = js_utf8_length(p + i, len - i);

        if (n != 0 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\') {
            i += n;
            continue;
        }
        buf_add(out, s + plain, i - plain);
        if (n == 0)
            buf_puts(out, "\xef\xbf\xbd"); /* U+FFFD for a broken byte */
        else
            quote_char(out, p[i]);
        plain = ++i;
    }
    buf_add(out, s + plain, len - plain);
    buf_addc(out, '"');
}

void js_w_init(struct js_writer *w, struct buf *out)
{
    memset(w, 0, sizeof *w);
    w->out = out;
}

static void new_line(struct js_writer *w)
{
    buf_addc(w->out, '\n');
    for (int i = 0; i < w->depth; i++)
        buf_puts(w->out, "  ");
}

/* What stands in front of a value: comma, line, key. */
static void lead(struct js_writer *w, const char *key)
{
    if (w->depth > 0) {
        bool flat = w->flat[w->depth - 1];

        if (!w->first[w->depth - 1])
            buf_puts(w->out, flat ? ", " : ",");
        if (!flat)
            new_line(w);
        w->first[w->depth - 1] = false;
    }
    if (key != NULL) {
        js_quote(w->out, key, strlen(key));
        buf_puts(w->out, ": ");
    }
}

static void open_level(struct js_writer *w, const char *key, char c, bool flat)
{
    BUG_UNLESS(w->depth < JS_MAX_DEPTH);
    lead(w, key);
    buf_addc(w->out, c);
    /* Inside one line everything stays on that line. */
    w->flat[w->depth] = flat || (w->depth > 0 && w->flat[w->depth - 1]);
    w->array[w->depth] = c == '[';
    w->first[w->depth] = true;
    w->depth++;
}

void js_w_object(struct js_writer *w, const char *key)
{
    open_level(w, key, '{', false);
}

void js_w_array(struct js_writer *w, const char *key, bool flat)
{
    open_level(w, key, '[', flat);
}

void js_w_end(struct js_writer *w)
{
    BUG_UNLESS(w->depth > 0);
    w->depth--;
    if (!w->first[w->depth] && !w->flat[w->depth])
        new_line(w);
    buf_addc(w->out, w->array[w->depth] ? ']' : '}');
    if (w->depth == 0)
        buf_addc(w->out, '\n');
}

void js_w_string(struct js_writer *w, const char *key, const char *v)
{
    lead(w, key);
    if (v != NULL)
        js_quote(w->out, v, strlen(v));
    else
        buf_puts(w->out, "null");
}

void js_w_double(struct js_writer *w, const char *key, double v)
{
    lead(w, key);
    if (isfinite(v))
        buf_double(w->out, v);
    else
        buf_puts(w->out, "null");
}

void js_w_uint(struct js_writer *w, const char *key, uint64_t v)
{
    lead(w, key);
    buf_printf(w->out, "%ju", (uintmax_t)v);
}

void js_w_int(struct js_writer *w, const char *key, int64_t v)
{
    lead(w, key);
    buf_printf(w->out, "%jd", (intmax_t)v);
}

void js_w_bool(struct js_writer *w, const char *key, bool v)
{
    lead(w, key);
    buf_puts(w->out, v ? "true" : "false");
}

void js_w_null(struct js_writer *w, const char *key)
{
    lead(w, key);
    buf_puts(w->out, "null");
}

void js_w_lines(struct js_writer *w, const char *key, const char *text)
{
    js_w_array(w, key, false);
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");

        lead(w, NULL);
        js_quote(w->out, text, n);
        text += n + (text[n] == '\n');
    }
    js_w_end(w);
}
