/*
 * JSON reading: one case per leniency that is refused, one per thing that
 * Python writes, positions, look-ups at size, memory failures.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "t_dir.h"

static struct js_doc *must(const char *text)
{
    struct err e = ERR_INIT;
    struct js_doc *d = js_parse(text, strlen(text), &e);

    cr_assert_not_null(d, "'%s': %s", text, e.text);
    return d;
}

/* The text must be refused, and the message must hold `part`. */
static void refused(const char *text, size_t len, const char *part)
{
    struct err e = ERR_INIT;
    struct js_doc *d = js_parse(text, len, &e);

    cr_assert_null(d, "'%.*s' was taken", (int)len, text);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_not_null(strstr(e.text, part), "'%.*s': %s, not %s", (int)len,
                       text, e.text, part);
}

static const struct js_node *get(const struct js_doc *d, const char *key)
{
    const struct js_node *n = js_get(js_root(d), key);

    cr_assert_not_null(n, "no '%s'", key);
    return n;
}

Test(json, values_of_each_kind)
{
    struct js_doc *d = must(" {\"n\": null, \"t\": true, \"f\":false ,"
                            "\"i\": -12, \"d\": 1.5e3, \"s\": \"x\\ty\","
                            "\"a\": [1, [], {}], \"o\": {\"k\": 0}}\r\n\t ");
    const struct js_node *r = js_root(d), *m;
    static const char *const keys[] = {
        "n", "t", "f", "i", "d", "s", "a", "o"
    };
    static const enum js_kind kinds[] = { JS_NULL,   JS_BOOL,   JS_BOOL,
                                          JS_NUMBER, JS_NUMBER, JS_STRING,
                                          JS_ARRAY,  JS_OBJECT };
    const char *s;
    double v;
    bool b;
    int i = 0;

    cr_assert_eq(js_kind(r), JS_OBJECT);
    cr_assert_eq(js_count(r), 8);
    cr_assert_null(js_key(r));
    for (m = js_first(r); m != NULL; m = js_next(m), i++) {
        cr_assert_str_eq(js_key(m), keys[i]);
        cr_assert_eq(js_kind(m), kinds[i]);
        cr_assert_eq(js_get(r, keys[i]), m);
    }
    cr_assert_eq(i, 8);
    cr_assert(js_bool(get(d, "t"), &b) && b);
    cr_assert(js_bool(get(d, "f"), &b) && !b);
    cr_assert(js_double(get(d, "d"), &v) && v == 1500);
    cr_assert(js_string(get(d, "s"), &s));
    cr_assert_str_eq(s, "x\ty");
    m = js_first(get(d, "a"));
    cr_assert_null(js_key(m));
    m = js_next(m);
    cr_assert_eq(js_kind(m), JS_ARRAY);
    cr_assert_eq(js_count(m), 0);
    cr_assert_null(js_first(m));
    m = js_next(m);
    cr_assert_eq(js_kind(m), JS_OBJECT);
    cr_assert_null(js_next(m));
    js_free(d);
}

Test(json, a_wrong_kind_or_no_node_is_false)
{
    struct js_doc *d = must("[1, \"x\", null, {}]");
    const struct js_node *one = js_first(js_root(d)), *x = js_next(one);
    const char *s = "kept";
    uint64_t u = 7;
    int64_t i = 7;
    double v = 7;
    bool b = true;

    cr_assert(!js_string(one, &s) && !js_bool(one, &b));
    cr_assert(!js_double(x, &v) && !js_uint(x, &u) && !js_integral(x, &i));
    cr_assert(!js_string(NULL, &s) && !js_bool(NULL, &b));
    cr_assert(!js_double(NULL, &v) && !js_uint(NULL, &u));
    cr_assert(!js_integral(NULL, &i));
    cr_assert(u == 7 && i == 7 && v == 7 && b && strcmp(s, "kept") == 0);
    cr_assert_null(js_get(NULL, "k"));
    cr_assert_null(js_get(one, "k"));
    cr_assert_null(js_get(js_root(d), "k"));
    cr_assert_null(js_first(NULL));
    cr_assert_null(js_first(one));
    cr_assert_eq(js_count(NULL), 0);
    cr_assert_eq(js_count(x), 0);
    cr_assert_null(js_key(NULL));
    cr_assert_str_eq(js_kind_name(JS_OBJECT), "an object");
    js_free(d);
    js_free(NULL);
}

Test(json, scalars_alone)
{
    struct js_doc *d = must("  \"x\" ");
    const char *s;
    size_t b, e;

    cr_assert(js_string(js_root(d), &s));
    js_span(d, js_root(d), &b, &e);
    cr_assert(b == 2 && e == 5);
    js_free(d);
    js_free(must("0"));
    js_free(must("null"));
    js_free(must("[]"));
}

#define REFUSED(text, part) refused((text), sizeof(text) - 1, (part))

Test(json, leniencies_of_the_frame)
{
    REFUSED("", "line 1, column 1: the JSON text ends where a value");
    REFUSED("  \n ", "line 2, column 2: the JSON text ends");
    REFUSED("{} x", "line 1, column 4: 'x' where the end of the JSON text");
    REFUSED("{}{}", "column 3");
    REFUSED("1 2", "the end of the JSON text");
    REFUSED("{}\0", "byte 0x00 where the end of the JSON text");
    REFUSED("\xef\xbb\xbf{}", "byte order mark");
    REFUSED("{\"a\":1}\f", "byte 0x0C");
    REFUSED("\v1", "byte 0x0B where a value");
    REFUSED("{\"a\":1,}", "'}' where a key in double quotes");
    REFUSED("[1,]", "']' where a value");
    REFUSED("[,1]", "',' where a value");
    REFUSED("[1 2]", "'2' where ',' or ']'");
    REFUSED("{\"a\":1 \"b\":2}", "where ',' or '}'");
    REFUSED("{\"a\" 1}", "where ':'");
    REFUSED("{a:1}", "'a' where a key");
    REFUSED("{'a':1}", "where a key");
    REFUSED("{1:1}", "where a key");
    REFUSED("[1}", "'}' where ',' or ']'");
    REFUSED("{\"a\":1]", "']' where ',' or '}'");
    REFUSED("[", "the JSON text ends");
    REFUSED("{\"a\":", "the JSON text ends where a value");
    REFUSED("{\"a\"", "the JSON text ends where ':'");
    REFUSED("{", "the JSON text ends where a key");
    REFUSED("[1,", "the JSON text ends where a value");
    REFUSED("/* c */ 1", "'/' where a value");
    REFUSED("[1] // c", "'/' where the end");
    REFUSED("\xc2\xa0"
            "1",
            "byte 0xC2 where a value");
}

Test(json, words)
{
    REFUSED("True", "'T' where a value");
    REFUSED("nul", "where a value");
    REFUSED("nullx", "'x' where the end");
    REFUSED("nan", "where a value");
    REFUSED("+Infinity", "'+' where a value");
    REFUSED("[-NaN]", "where a digit");
    REFUSED("Infinit", "where a value");
    REFUSED("undefined", "'u' where a value");
}

Test(json, numbers_are_strict)
{
    static const char *const bad[] = { "01",  "-01", "1.",   ".5",   "+1",
                                       "1e",  "1e+", "-",    "1.e5", "0x10",
                                       "1_0", "--1", "1.5.", "00",   "1e5.",
                                       "- 1", "1 .5" };
    static const char *const good[] = { "0",   "-0",      "10",   "1.0",
                                        "0.5", "-1.5e10", "1E-5", "1e+05",
                                        "0e0", "-0.0" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(bad[i], strlen(bad[i]), "line 1, column");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        js_free(must(good[i]));
}

Test(json, strings_are_strict)
{
    REFUSED("\"abc", "a string does not end");
    REFUSED("\"a\nb\"", "the control character 0x0A");
    REFUSED("\"a\tb\"", "the control character 0x09");
    REFUSED("\"a\0b\"", "the control character 0x00");
    REFUSED("{\"a\x1f\":1}", "the control character 0x1F");
    REFUSED("\"\\x41\"", "an escape");
    REFUSED("\"\\", "the JSON text ends where an escape");
    REFUSED("\"\\\0\"", "an escape");
    REFUSED("\"\\u12g4\"", "'g' where a hexadecimal digit");
    REFUSED("\"\\u12", "hexadecimal digit");
    REFUSED("\"a\\u0000b\"", "U+0000");
    REFUSED("{\"a\\u0000b\": 1}", "U+0000");
    REFUSED("\"\\ud800\"", "half a surrogate pair (\\uD800)");
    REFUSED("\"\\udc00\"", "half a surrogate pair (\\uDC00)");
    REFUSED("\"\\ud800\\u0041\"", "without its second half");
    REFUSED("\"\\ud800\\ud800\"", "without its second half");
    REFUSED("\"\\ud800x\"", "half a surrogate pair");
}

Test(json, utf8_is_strict)
{
    REFUSED("\"\x80\"", "not valid UTF-8 (byte 0x80)");
    REFUSED("\"\xff\"", "not valid UTF-8");
    REFUSED("\"\xc0\x80\"", "not valid UTF-8");
    REFUSED("\"\xc1\xbf\"", "not valid UTF-8");
    REFUSED("\"\xe0\x9f\xbf\"", "not valid UTF-8");
    REFUSED("\"\xed\xa0\x80\"", "not valid UTF-8");
    REFUSED("\"\xf0\x8f\xbf\xbf\"", "not valid UTF-8");
    REFUSED("\"\xf4\x90\x80\x80\"", "not valid UTF-8");
    REFUSED("\"\xf5\x80\x80\x80\"", "not valid UTF-8");
    REFUSED("\"\xe2\x82\"", "not valid UTF-8");
    REFUSED("\"\xe2\x82", "not valid UTF-8");
    REFUSED("\"\xe2\"", "not valid UTF-8");
    REFUSED("{\"k\xc3\": 1}", "not valid UTF-8");
    js_free(must("\"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 "
                 "\xef\xbf\xbf \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf \x7f\""));
}

Test(json, escapes_decode)
{
    struct js_doc *d = must("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9"
                            "\\u20AC\\ud83d\\ude00\\uFFFF\"");
    const char *s;

    cr_assert(js_string(js_root(d), &s));
    cr_assert_str_eq(s, "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac"
                        "\xf0\x9f\x98\x80\xef\xbf\xbf");
    js_free(d);
}

Test(json, line_and_column_count_characters)
{
    REFUSED("{\n  \"a\": 1,\n  \"\xc3\xa9\xc3\xa9\": x\n}",
            "line 3, column 9: 'x'");
}

Test(json, what_python_writes)
{
    struct js_doc *d =
        must("{\"a\": NaN, \"b\": Infinity, \"c\": -Infinity,"
             "\"model_max_length\": 1000000000000000019884624838656}");
    const struct js_node *m;
    double v;
    uint64_t u;
    int64_t i;

    cr_assert(js_double(get(d, "a"), &v) && isnan(v));
    cr_assert(js_double(get(d, "b"), &v) && v == INFINITY);
    cr_assert(js_double(get(d, "c"), &v) && v == -INFINITY);
    for (m = js_first(js_root(d)); m != NULL; m = js_next(m)) {
        cr_assert_eq(js_kind(m), JS_NUMBER);
        cr_assert(!js_uint(m, &u));
        cr_assert(!js_integral(m, &i));
    }
    cr_assert(js_double(get(d, "model_max_length"), &v) && v == 1e30);
    js_free(d);
}

Test(json, numbers_of_any_length)
{
    static char text[3000];
    struct js_doc *d;
    const char *s;
    double v;

    strcpy(text, "[");
    memset(text + 1, '7', 1000);
    strcpy(text + 1001, ", 0.");
    memset(text + 1005, '3', 1000);
    strcpy(text + 2005, ", 1e400, -1e400, 1e-400, \"after\"]");
    d = must(text);
    cr_assert_eq(js_count(js_root(d)), 6);
    const struct js_node *n = js_first(js_root(d));
    cr_assert(js_double(n, &v) && v == INFINITY);
    n = js_next(n);
    cr_assert(js_double(n, &v) && v == 1.0 / 3);
    n = js_next(n);
    cr_assert(js_double(n, &v) && v == INFINITY);
    n = js_next(n);
    cr_assert(js_double(n, &v) && v == -INFINITY);
    n = js_next(n);
    cr_assert(js_double(n, &v) && v == 0);
    cr_assert(js_string(js_next(n), &s) && strcmp(s, "after") == 0);
    js_free(d);
}

Test(json, unsigned_integers_as_written)
{
    static const struct {
        const char *text;
        bool ok;
        uint64_t value;
    } t[] = {
        { "0", true, 0 },
        { "2147483648", true, UINT64_C(2147483648) },
        { "4294967296", true, UINT64_C(4294967296) },
        { "281474976710655", true, UINT64_C(281474976710655) },
        { "281474976710656", false, 0 },
        { "9007199254740993", false, 0 },
        { "18446744073709551616", false, 0 },
        { "4.5", false, 0 },
        { "4.0", false, 0 },
        { "1e1", false, 0 },
        { "-1", false, 0 },
        { "-0", false, 0 },
        { "NaN", false, 0 },
    };

    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct js_doc *d = must(t[i].text);
        uint64_t v = 0;

        cr_assert_eq(js_uint(js_root(d), &v), t[i].ok, "%s", t[i].text);
        cr_assert_eq(v, t[i].value, "%s", t[i].text);
        js_free(d);
    }
}

Test(json, integral_values_in_any_spelling)
{
    struct js_doc *d = must("[8, 8.0, 1e6, -3, 9007199254740993, 8.5]");
    static const int64_t want[] = { 8, 8, 1000000, -3 };
    const struct js_node *n = js_first(js_root(d));
    int64_t v;

    for (int i = 0; i < 4; i++, n = js_next(n))
        cr_assert(js_integral(n, &v) && v == want[i], "%d", i);
    cr_assert(!js_integral(n, &v));
    cr_assert(!js_integral(js_next(n), &v));
    js_free(d);
}

Test(json, depth)
{
    char text[2 * (JS_MAX_DEPTH + 1) + 1];
    size_t n = JS_MAX_DEPTH;
    struct js_doc *d;

    memset(text, '[', n);
    memset(text + n, ']', n);
    text[2 * n] = '\0';
    d = must(text);
    js_free(d);
    n++;
    memset(text, '[', n);
    memset(text + n, ']', n);
    refused(text, 2 * n, "column 129: nested deeper than 128 levels");
}

Test(json, bombs_of_brackets)
{
    size_t n = 4000000;
    char *text = malloc(n);

    memset(text, '[', n);
    refused(text, n, "nested deeper than 128 levels");
    for (size_t i = 0; i < n; i++)
        text[i] = "{\"a\":"[i % 5];
    refused(text, n, "nested deeper than 128 levels");
    free(text);
}

Test(json, keys_twice)
{
    struct js_doc *d = must("{\"W\": 1, \"w\": 2}");
    double v;

    cr_assert(js_double(get(d, "W"), &v) && v == 1);
    cr_assert(js_double(get(d, "w"), &v) && v == 2);
    js_free(d);
    js_free(must("[{\"a\":1},{\"a\":1}]"));
    REFUSED("{\"w\": 1,\n \"w\": 2}", "line 2, column 7: the key 'w' stands "
                                      "twice in one object");
    REFUSED("{\"a\": 1, \"\\u0061\": 2}", "the key 'a' stands twice");
    REFUSED("{\"o\": {\"x\": 1, \"y\": [], \"x\": 1}}", "the key 'x'");
    REFUSED("{\"\": 1, \"\": 2}", "the key ''");
}

/* "k0": 0 ... with `twice` also as the last key, if >= 0. */
static char *big_object(int members, int twice)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;

    buf_addc(&b, '{');
    for (int i = 0; i < members; i++)
        buf_printf(&b, "%s\"k%d\":%d", i > 0 ? "," : "", i, i);
    if (twice >= 0)
        buf_printf(&b, ",\"k%d\":1", twice);
    buf_addc(&b, '}');
    return buf_detach(&b, &e);
}

Test(json, objects_of_every_size)
{
    for (int n = 0; n < 80; n++) {
        char *text = big_object(n, -1), key[40];
        struct js_doc *d = must(text);
        uint64_t v;

        for (int i = 0; i < n; i++) {
            snprintf(key, sizeof key, "k%d", i);
            cr_assert(js_uint(get(d, key), &v) && v == (uint64_t)i);
        }
        cr_assert_null(js_get(js_root(d), "k"));
        snprintf(key, sizeof key, "k%d", n);
        cr_assert_null(js_get(js_root(d), key));
        js_free(d);
        mem_free(text);
        for (int i = 0; i < n; i += 7) {
            text = big_object(n, i);
            snprintf(key, sizeof key, "'k%d' stands", i);
            refused(text, strlen(text), key);
            mem_free(text);
        }
    }
}

Test(json, a_vocabulary_opens_in_a_second)
{
    const int n = 262144;
    char *text = big_object(n, -1), key[40];
    struct timespec a, b;
    struct js_doc *d;
    uint64_t v;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    d = must(text);
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "k%d", i);
        cr_assert(js_uint(get(d, key), &v) && v == (uint64_t)i);
    }
    js_free(d);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
#if !defined(HAVE_ASAN)
    cr_assert_lt((double)(b.tv_sec - a.tv_sec) +
                     (double)(b.tv_nsec - a.tv_nsec) * 1e-9,
                 1.0);
#endif
    mem_free(text);
    text = big_object(n, 77777);
    refused(text, strlen(text), "'k77777' stands twice");
    mem_free(text);
}

Test(json, spans_cut_out_the_text)
{
    static const char text[] = "{ \"a\" : [1, -2.50e+1 , \"x\\\"y\"] ,"
                               "\"b\":{ \"c\" :null } }";
    struct js_doc *d = must(text);
    const struct js_node *n;
    size_t b, e, len;

    cr_assert_str_eq(js_text(d, &len), text);
    cr_assert_eq(len, sizeof text - 1);
    js_span(d, js_root(d), &b, &e);
    cr_assert(b == 0 && e == len);
    n = get(d, "a");
    js_span(d, n, &b, &e);
    cr_assert_eq(strncmp(text + b, "[1, -2.50e+1 , \"x\\\"y\"]", e - b), 0);
    n = js_next(js_first(n));
    js_span(d, n, &b, &e);
    cr_assert_eq(e - b, 8);
    cr_assert_eq(strncmp(text + b, "-2.50e+1", 8), 0);
    js_span(d, js_next(n), &b, &e);
    cr_assert_eq(strncmp(text + b, "\"x\\\"y\"", e - b), 0);
    js_span(d, get(d, "b"), &b, &e);
    cr_assert_eq(strncmp(text + b, "{ \"c\" :null }", e - b), 0);
    js_span(d, js_get(get(d, "b"), "c"), &b, &e);
    cr_assert_eq(strncmp(text + b, "null", e - b), 0);
    js_free(d);
}

static bool equal(const char *x, const char *y)
{
    struct js_doc *a = must(x), *b = must(y);
    bool same = js_equal(js_root(a), js_root(b));

    cr_assert_eq(js_equal(js_root(b), js_root(a)), same);
    js_free(a);
    js_free(b);
    return same;
}

Test(json, deep_comparison)
{
    cr_assert(equal("{\"a\":1,\"b\":[true,null]}",
                    " { \"b\" : [ true , null ] , \"a\" : 1 } "));
    cr_assert(equal("\"\\u0041\"", "\"A\""));
    cr_assert(equal("NaN", "NaN"));
    cr_assert(!equal("1", "1.0"));
    cr_assert(!equal("10", "1e1"));
    cr_assert(!equal("true", "false"));
    cr_assert(!equal("null", "false"));
    cr_assert(!equal("[1,2]", "[2,1]"));
    cr_assert(!equal("[1]", "[1,1]"));
    cr_assert(!equal("{\"a\":1}", "{\"b\":1}"));
    cr_assert(!equal("{\"a\":1,\"b\":2}", "{\"b\":1,\"a\":2}"));
    cr_assert(!equal("{\"a\":1}", "{\"A\":1}"));
    cr_assert(!equal("{}", "[]"));
    cr_assert(!equal("1000000000000000000001", "1000000000000000000002"));
    cr_assert(js_equal(NULL, NULL));
}

Test(json, files)
{
    const char *dir = t_dir_new(), *path = t_path(dir, "c.json");
    struct err e = ERR_INIT;
    struct js_doc *d;

    t_write_text(path, "{\"a\": [1,\n2}");
    cr_assert_null(js_read_file(path, 100, &e));
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_not_null(strstr(e.text, "/c.json': line 2, column 2: '}' where"));
    err_reset(&e);
    cr_assert_null(js_read_file(path, 5, &e));
    cr_assert_not_null(strstr(e.text, "12 bytes; at most 5 are taken"), "%s",
                       e.text);
    err_reset(&e);
    cr_assert_null(js_read_file(t_path(dir, "none.json"), 5, &e));
    cr_assert_not_null(strstr(e.text, "does not exist"));
    err_reset(&e);
    t_write_text(path, "{\"a\": 1}\n");
    d = js_read_file(path, 9, &e);
    cr_assert_not_null(d);
    js_free(d);
    t_dir_drop(dir);
}

static struct js_doc *read_hollow(const char *dir, const char *text,
                                  struct err *e)
{
    const char *path = t_path(dir, "h.json");

    remove(path);
    t_write_text(path, text);
    return js_read_file_hollow(path, 200, "m", e);
}

Test(json, hollow_arrays)
{
    const char *dir = t_dir_new();
    struct err e = ERR_INIT;
    struct js_doc *d = read_hollow(dir,
                                   "{\"m\": [[\"a\", {\"x\": [1, 2], \"x\": "
                                   "3}], \"b\", 4, []], \"n\": [5, 6],"
                                   " \"o\": {\"m\": [ ], \"mm\": [7]}, \"p\": "
                                   "[\"m\", [8]], \"q\": {\"m\": 9}}",
                                   &e);
    const struct js_node *root = js_root(d), *m = js_get(root, "m");
    size_t begin, end;

    cr_assert(d, "%s", e.text);
    cr_expect_eq(js_kind(m), JS_ARRAY);
    cr_expect(js_count(m) == 0 && !js_first(m));
    js_span(d, m, &begin, &end);
    cr_expect_eq(end - begin, 42);
    cr_expect_eq(js_count(root), 5);
    cr_expect_eq(js_count(js_get(root, "n")), 2);
    cr_expect_eq(js_count(js_get(js_get(root, "o"), "m")), 0);
    cr_expect_eq(js_count(js_get(js_get(root, "o"), "mm")), 1);
    cr_expect_eq(js_count(js_next(js_first(js_get(root, "p")))), 1);
    cr_expect_eq(js_kind(js_get(js_get(root, "q"), "m")), JS_NUMBER);
    js_free(d);
    cr_expect_null(read_hollow(dir, "{\"m\": [[1, 2}], \"n\": 3}", &e));
    cr_expect_not_null(strstr(e.text, "line 1, column 13: '}' where"), "%s",
                       e.text);
    t_dir_drop(dir);
}

/* Each allocation in turn fails: an error, no crash, nothing lost. */
Test(json, memory_failures)
{
    char *text = big_object(50, -1);
    const char *more = "[{\"a\": \"text\", \"b\": [1, 2, 3]}, {}]";

    for (int k = 0; k < 2; k++) {
        const char *t = k == 0 ? text : more;
        struct js_doc *d = NULL;
        long n = 0;

        for (; d == NULL; n++) {
            struct err e = ERR_INIT;

            mem_fail_at(n, k == 1);
            d = js_parse(t, strlen(t), &e);
            mem_fail_at(-1, false);
            if (d == NULL)
                cr_assert_eq(e.code, ERR_NOMEM, "%ld: %s", n, e.text);
        }
        cr_assert_gt(n, 4);
        js_free(d);
    }
    mem_free(text);
}

/* Every prefix and every single-byte change of a text is taken or refused,
 * and what is taken can be walked. */
static size_t walk(const struct js_node *n)
{
    const struct js_node *m;
    size_t count = 1;
    const char *s;
    double v;

    if (js_string(n, &s))
        count += strlen(s);
    (void)js_double(n, &v);
    for (m = js_first(n); m != NULL; m = js_next(m))
        count += walk(m);
    return count;
}

Test(json, mutations)
{
    static const char text[] = "{\"a\\n\": [1, -2.5e3, NaN, true, null, "
                               "\"\\ud83d\\ude00\xc3\xa9\"], \"b\": {\"c\": "
                               "[[], {}]}, \"d\": -Infinity}";
    size_t len = sizeof text - 1, taken = 0;
    char copy[sizeof text];

    for (size_t n = 0; n < len; n++)
        refused(text, n, "line 1");
    for (size_t at = 0; at < len; at++)
        for (int c = 0; c < 256; c++) {
            struct err e = ERR_INIT;
            struct js_doc *d;

            memcpy(copy, text, sizeof text);
            copy[at] = (char)c;
            d = js_parse(copy, len, &e);
            cr_assert(d != NULL || e.code == ERR_INPUT);
            if (d != NULL)
                taken += walk(js_root(d)) > 0;
            js_free(d);
        }
    cr_assert_gt(taken, len);
}

/* Writer */

Test(writer, layout)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_string(&w, "name", "a\"b");
    js_w_uint(&w, "big", UINT64_MAX);
    js_w_int(&w, "low", INT64_MIN);
    js_w_double(&w, "x", 0.1);
    js_w_double(&w, "bad", (double)NAN);
    js_w_bool(&w, "yes", true);
    js_w_null(&w, "none");
    js_w_string(&w, "nil", NULL);
    js_w_array(&w, "shape", true);
    js_w_uint(&w, NULL, 1);
    js_w_array(&w, NULL, false);
    js_w_int(&w, NULL, -2);
    js_w_end(&w);
    js_w_end(&w);
    js_w_array(&w, "list", false);
    js_w_object(&w, NULL);
    js_w_bool(&w, "k", false);
    js_w_end(&w);
    js_w_uint(&w, NULL, 3);
    js_w_end(&w);
    js_w_object(&w, "empty");
    js_w_end(&w);
    js_w_array(&w, "void", false);
    js_w_end(&w);
    js_w_end(&w);
    cr_assert_str_eq(buf_text(&b), "{\n"
                                   "  \"name\": \"a\\\"b\",\n"
                                   "  \"big\": 18446744073709551615,\n"
                                   "  \"low\": -9223372036854775808,\n"
                                   "  \"x\": 0.1,\n"
                                   "  \"bad\": null,\n"
                                   "  \"yes\": true,\n"
                                   "  \"none\": null,\n"
                                   "  \"nil\": null,\n"
                                   "  \"shape\": [1, [-2]],\n"
                                   "  \"list\": [\n"
                                   "    {\n"
                                   "      \"k\": false\n"
                                   "    },\n"
                                   "    3\n"
                                   "  ],\n"
                                   "  \"empty\": {},\n"
                                   "  \"void\": []\n"
                                   "}\n");
    js_free(must(b.data));
    buf_release(&b);
}

Test(writer, quoting_reads_back)
{
    struct buf b = BUF_INIT;
    char raw[256];
    struct js_doc *d;
    const char *s;

    for (int i = 1; i < 128; i++)
        raw[i - 1] = (char)i;
    strcpy(raw + 127, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    js_quote(&b, raw, strlen(raw));
    d = must(buf_text(&b));
    cr_assert(js_string(js_root(d), &s));
    cr_assert_str_eq(s, raw);
    js_free(d);
    buf_clear(&b);
    js_quote(&b,
             "a\xff"
             "b\xe2\x82",
             5);
    cr_assert_str_eq(b.data, "\"a\xef\xbf\xbd"
                             "b\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_release(&b);
}
