/*
 * JSON: what parses can be walked, every value lies inside the text, and
 * parsing the text again gives an equal tree.
 */
#include "converter/base/json.h"
#include "tests/fuzz/target.h"

static size_t walk(const struct js_doc *d, const struct js_node *n, size_t size)
{
    size_t begin, end, count = 1, members = 0;

    js_span(d, n, &begin, &end);
    FUZZ_CHECK(begin < end && end <= size);
    for (const struct js_node *c = js_first(n); c; c = js_next(c)) {
        count += walk(d, c, size);
        members++;
        if (js_kind(n) == JS_OBJECT)
            FUZZ_CHECK(js_get(n, js_key(c)) == c);
    }
    FUZZ_CHECK(members == js_count(n));
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct js_doc *d = js_parse((const char *)data, size, &e), *again;

    if (!d) {
        FUZZ_CHECK(e.code == ERR_INPUT && e.text[0]);
        return 0;
    }
    walk(d, js_root(d), size);
    again = js_parse((const char *)data, size, &e);
    FUZZ_CHECK(again && js_equal(js_root(d), js_root(again)));
    js_free(again);
    js_free(d);
    return 0;
}
