/*
 * Single members of JSON texts: set, added, removed; the rest to the byte.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "converter/splice.h"

static void start(struct splice *s, const char *text)
{
    struct err e = ERR_INIT;

    cr_assert_eq(splice_begin(s, text, strlen(text), &e), 0, "%s", e.text);
}

static void expect_set(const char *text, const char *key, const char *value,
                       const char *want)
{
    struct err e = ERR_INIT;
    struct splice s;

    start(&s, text);
    cr_assert_eq(splice_set(&s, key, value, &e), 0, "%s: %s", text, e.text);
    cr_expect_str_eq(buf_text(&s.text), want);
    splice_release(&s);
}

static void expect_remove(const char *text, const char *key, const char *want)
{
    struct err e = ERR_INIT;
    struct splice s;

    start(&s, text);
    cr_assert_eq(splice_remove(&s, key, &e), 0, "%s: %s", text, e.text);
    cr_expect_str_eq(buf_text(&s.text), want);
    splice_release(&s);
}

Test(splice, replaces_in_place)
{
    expect_set("{\"a\":1}", "a", "22", "{\"a\":22}");
    expect_set("{ \"a\" \t:\r\n 1 , \"b\":2}", "a", "[1, 2]",
               "{ \"a\" \t:\r\n [1, 2] , \"b\":2}");
    expect_set("{\"b\":{\"a\":1},\"a\": {\"x\":[1,{}]} }\n", "a", "null",
               "{\"b\":{\"a\":1},\"a\": null }\n");
    /* the text of strings is no structure */
    expect_set("{\"x\":\"\\\"a\\\": 1, }\",\"a\":1}", "a", "2",
               "{\"x\":\"\\\"a\\\": 1, }\",\"a\":2}");
}

Test(splice, finds_escaped_keys)
{
    expect_set("{\"\\u0061b\": 1, \"c\": 2}", "ab", "3",
               "{\"\\u0061b\": 3, \"c\": 2}");
    expect_set("{\"q\\\"\\\\\": 1}", "q\"\\", "3", "{\"q\\\"\\\\\": 3}");
    expect_remove("{\"q\\\"\\\\\": 1, \"c\": 2}", "q\"\\", "{ \"c\": 2}");
    expect_remove("{\"c\": 2, \"q\\\\\\\"\" :1}", "q\\\"", "{\"c\": 2}");
    expect_set("{\"\xc3\xa9\": 1}", "\xc3\xa9", "2", "{\"\xc3\xa9\": 2}");
    expect_set("{\"\\ud83d\\ude00\": 1}", "\xf0\x9f\x98\x80", "2",
               "{\"\\ud83d\\ude00\": 2}");
}

Test(splice, appends_with_the_space_of_the_others)
{
    expect_set("{}", "a", "1", "{\"a\": 1}");
    expect_set("{ \n }", "a", "1", "{\"a\": 1 \n }");
    expect_set("{\"x\":1}", "a", "2", "{\"x\":1,\"a\": 2}");
    expect_set("{\n    \"x\": 1,\n    \"y\": 2\n}\n", "a", "3",
               "{\n    \"x\": 1,\n    \"y\": 2,\n    \"a\": 3\n}\n");
    expect_set("{ \"x\": [1, 2]\n}", "a b\n", "3",
               "{ \"x\": [1, 2], \"a b\\n\": 3\n}");
    expect_set(" \n{\"x\": 1 }", "a", "2", " \n{\"x\": 1,\"a\": 2 }");
}

Test(splice, removes_first_middle_last_and_only)
{
    const char *t = "{\n  \"a\": 1,\n  \"b\": {\"c\": \",\"},\n  \"d\": 4\n}\n";

    expect_remove(t, "a", "{\n  \"b\": {\"c\": \",\"},\n  \"d\": 4\n}\n");
    expect_remove(t, "b", "{\n  \"a\": 1,\n  \"d\": 4\n}\n");
    expect_remove(t, "d", "{\n  \"a\": 1,\n  \"b\": {\"c\": \",\"}\n}\n");
    expect_remove(t, "c", t);
    expect_remove("{\"a\":1}", "a", "{}");
    expect_remove("{ \"a\" : \"}\" \n}", "a", "{ \n}");
    expect_remove("{\"a\":1 \n , \"b\" :2}", "a", "{ \"b\" :2}");
    expect_remove("{\"a\":1 \n , \"b\" :2}", "b", "{\"a\":1}");
    expect_remove("{}", "a", "{}");
}

Test(splice, refuses_other_texts)
{
    static const char *const bad[] = { "[1]", "7", "", "{\"a\":1}{",
                                       "{\"a\":1,\"a\":2}" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = ERR_INIT;
        struct splice s;

        start(&s, bad[i]);
        cr_expect_eq(splice_set(&s, "a", "1", &e), -1, "%s", bad[i]);
        cr_expect_eq((int)e.code, (int)ERR_INPUT);
        err_reset(&e);
        cr_expect_eq(splice_remove(&s, "a", &e), -1, "%s", bad[i]);
        cr_expect_str_eq(buf_text(&s.text), bad[i]);
        splice_release(&s);
    }
}

static bool is_p(const char *key, const struct js_node *value)
{
    const char *s;

    return !strcmp(key, "p") && js_string(value, &s);
}

Test(splice, removes_by_rule_at_any_depth)
{
    const char *text = "{\"p\": \"x\", \"a\": [{\"p\": \"y\"}, {\"b\": 1, "
                       "\"p\": \"z\"}, \"p\"], \"c\": {\"p\": 1, \"d\": "
                       "{\"p\": \"\", \"e\": 2}}, \"p2\": 1}";
    const char *want = "{ \"a\": [{}, {\"b\": 1}, \"p\"], \"c\": {\"p\": 1, "
                       "\"d\": { \"e\": 2}}, \"p2\": 1}";
    const char *const none[] = { NULL };
    struct err e = ERR_INIT;
    struct js_doc *before = js_parse(text, strlen(text), &e);
    struct splice s;
    size_t removed;

    cr_assert_not_null(before, "%s", e.text);
    start(&s, text);
    cr_assert_eq(splice_remove_all(&s, is_p, &removed, &e), 0, "%s", e.text);
    cr_expect_eq(removed, 4);
    cr_expect_str_eq(buf_text(&s.text), want);
    cr_expect_eq(splice_verify(&s, before, none, is_p, &e), 0, "%s", e.text);
    /* without the rule the same result is a loss */
    cr_expect_eq(splice_verify(&s, before, none, NULL, &e), -1);
    splice_release(&s);
    js_free(before);
}

static void expect_verify(const char *before, const char *after,
                          const char *changed, splice_rule rule,
                          const char *says)
{
    const char *const names[] = { changed, NULL };
    struct err e = ERR_INIT;
    struct js_doc *d = js_parse(before, strlen(before), &e);
    struct splice s;
    int rc;

    cr_assert_not_null(d, "%s", e.text);
    start(&s, after);
    rc = splice_verify(&s, d, names, rule, &e);
    if (says)
        cr_expect(rc == -1 && strstr(e.text, says), "%s -> %s: '%s'", before,
                  after, e.text);
    else
        cr_expect_eq(rc, 0, "%s -> %s: %s", before, after, e.text);
    splice_release(&s);
    js_free(d);
}

Test(splice, verify_sees_every_change)
{
    const char *b = "{\"a\":1,\"b\":[1e30,{\"c\":null}],\"p\":\"x\"}";

    expect_verify(b, b, "", NULL, NULL);
    expect_verify(b, "{\"p\":\"x\", \"b\":[1e30, {\"c\":null}], \"a\":2}", "a",
                  NULL, NULL);
    expect_verify(b, "{\"a\":1,\"b\":[1e30,{\"c\":null}]}", "", is_p, NULL);
    expect_verify(b, "{\"a\":2,\"b\":[1e30,{\"c\":null}],\"p\":\"x\"}", "",
                  NULL, "'a' changed");
    expect_verify(b, "{\"a\":1,\"b\":[1e+30,{\"c\":null}],\"p\":\"x\"}", "",
                  NULL, "'b' changed");
    expect_verify(b, "{\"a\":1,\"b\":[1e30,{}],\"p\":\"x\"}", "", NULL,
                  "'b' changed");
    expect_verify(b, "{\"a\":1,\"p\":\"x\"}", "", NULL, "'b' changed");
    expect_verify(b, "{\"a\":1,\"b\":[1e30,{\"c\":null}],\"p\":\"x\"}", "",
                  is_p, "'p' changed");
    expect_verify(b, "{\"a\":1,\"b\":[1e30,{\"c\":null}],\"p\":\"x\",\"z\":1}",
                  "", NULL, "'z' appeared");
    expect_verify(b, "{\"a\":1,", "", NULL, "line 1");
}

/* Members that a parser would change: long integers, bare words, escapes. */
Test(splice, keeps_what_a_writer_would_change)
{
    const char *t = "{\"n\":1000000000000000019884624838656,\"x\":NaN,\"y\":"
                    "-Infinity, \"z\":1.50,\"u\":\"\\u00e9\\/\", \"a\":0}";
    const char *w = "{\"n\":1000000000000000019884624838656,\"x\":NaN,\"y\":"
                    "-Infinity, \"z\":1.50,\"u\":\"\\u00e9\\/\", \"a\":[1]}";

    expect_set(t, "a", "[1]", w);
}
