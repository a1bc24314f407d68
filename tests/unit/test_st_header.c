/*
 * The header of a safetensors file: every rule of rejection with its message,
 * what is legal although it looks odd, and hostile sizes.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/num.h"
#include "safetensors/st.h"
#include "t_st.h"

TestSuite(st_header, .fini = t_st_clean);

/* The file must be refused with each of the texts (separated by '|'). */
static void expect_refused(const char *path, enum err_code code,
                           const char *texts)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(path, &e);
    char copy[512];

    cr_expect_null(s, "accepted, expected: %s", texts);
    st_close(s);
    cr_expect_eq((int)e.code, (int)code, "code %d for: %s", (int)e.code,
                 e.text);
    cr_expect_not_null(strstr(e.text, "x.safetensors"), "no file in: %s",
                       e.text);
    snprintf(copy, sizeof copy, "%s", texts);
    for (char *t = strtok(copy, "|"); t; t = strtok(NULL, "|"))
        cr_expect_not_null(strstr(e.text, t), "no '%s' in: %s", t, e.text);
}

static struct st *expect_opened(const char *path)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(path, &e);

    cr_assert_not_null(s, "%s", e.text);
    cr_expect_eq((int)e.code, (int)ERR_OK);
    return s;
}

struct reject {
    const char *header;
    uint64_t data;
    const char *texts;
};

static void expect_all_refused(const struct reject *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_refused(t_st_file("x.safetensors", r[i].header, r[i].data),
                       ERR_INPUT, r[i].texts);
}
#define REFUSE_ALL(table) \
    expect_all_refused(table, sizeof table / sizeof table[0])

/* Rule 1. */
Test(st_header, shorter_than_a_length)
{
    for (size_t n = 1; n < 8; n++)
        expect_refused(t_st_put("x.safetensors", "\1\0\0\0\0\0\0", n),
                       ERR_INPUT, "8|truncated|download it again");
}

/* Rule 2; the claim is judged before anything is allocated for it. */
Test(st_header, length_above_the_cap)
{
    unsigned char bytes[1024] = { 0 };
    clock_t start = clock();

    store_le64(bytes, 200000000);
    expect_refused(t_st_put("x.safetensors", bytes, sizeof bytes), ERR_INPUT,
                   "200000000|100000000");
    store_le64(bytes, 100000001);
    expect_refused(t_st_put("x.safetensors", bytes, sizeof bytes), ERR_INPUT,
                   "100000001|100000000");
    store_le64(bytes, UINT64_MAX);
    expect_refused(t_st_put("x.safetensors", bytes, sizeof bytes), ERR_INPUT,
                   "18446744073709551615|100000000");
    cr_expect_lt((double)(clock() - start) / CLOCKS_PER_SEC, 0.1);
}

/* Rule 3. */
Test(st_header, length_beyond_the_file)
{
    unsigned char bytes[1024] = { 0 };

    store_le64(bytes, 100000000);
    expect_refused(t_st_put("x.safetensors", bytes, sizeof bytes), ERR_INPUT,
                   "truncated|1024 of 100000008|download it again");
    store_le64(bytes, 1017);
    expect_refused(t_st_put("x.safetensors", bytes, sizeof bytes), ERR_INPUT,
                   "1024 of 1025|download it again");
    store_le64(bytes, UINT64_MAX - 4); /* plus 8 wraps */
    expect_refused(t_st_put("x.safetensors", bytes, sizeof bytes), ERR_INPUT,
                   "100000000");
}

/* Rule 4. */
Test(st_header, not_utf8)
{
    static const struct reject r[] = {
        { "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],"
          "\"data_offsets\":[0,1]}}",
          1, "UTF-8" },
        { "{\"\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[1],"
          "\"data_offsets\":[0,1]}}",
          1, "UTF-8" },
        { "{\"\xed\xa0\x80\":{\"dtype\":\"U8\",\"shape\":[1],"
          "\"data_offsets\":[0,1]}}",
          1, "UTF-8" },
        { "\xef\xbb\xbf{}", 0, "" }, /* a byte order mark */
    };
    REFUSE_ALL(r);
}

/* Rule 5. */
Test(st_header, not_one_object)
{
    static const struct reject r[] = {
        { "", 0, "header of 0 bytes" },
        { "[]", 0, "an array|an object" },
        { "null", 0, "null|an object" },
        { "{} x", 0, "header of 4 bytes" },
        { "{}{}", 0, "header of 4 bytes" },
        { "{", 0, "header of 1 bytes" },
        { "{\"a\":1}", 0, "'a'|a number|an object" },
        { "{\"a\":[]}", 0, "'a'|an array" },
        { "{\"a\":null}", 0, "'a'|null" },
        { "{\"a\":{}}", 0, "'a'|no 'dtype'" },
        { "{\"a\":{\"dtype\":\"U8\"}}", 0, "'a'|no 'shape'" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0,
          "'a'|no 'data_offsets'" },
        { "{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,1]}}", 1,
          "'a'|'dtype' is a number|a string" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1,
          "'a'|'shape' is a number|an array" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":1}}", 1,
          "'a'|'data_offsets' is a number|an array" },
        { "{\"a\":{\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
          "'a'|unknown dtype 'Q4'" },
        { "{\"a\":{\"dtype\":\"bf16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
          2, "'a'|unknown dtype 'bf16'" },
        { "{\"a\":{\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
          "'a'|no 'dtype'" },
    };
    REFUSE_ALL(r);
}

Test(st_header, not_an_integer)
{
    static const struct {
        const char *number, *text;
    } bad[] = {
        { "-1", "-1" },           { "4.0", "4.0" },
        { "4.5", "4.5" },         { "1e1", "1e1" },
        { "null", "null" },       { "\"4\"", "\"4\"" },
        { "true", "true" },       { "281474976710656", "281474976710656" },
        { "[4]", "[4]" },         { "NaN", "" },
        { "4294967296e0", "e0" }, { "99999999999999999999999999", "9999" },
    };
    char header[256], want[64];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,%s],"
                 "\"data_offsets\":[0,4]}}",
                 bad[i].number);
        snprintf(want, sizeof want, "'a'|shape[1]|%s|281474976710655",
                 bad[i].text);
        expect_refused(t_st_file("x.safetensors", header, 4), ERR_INPUT, want);
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],"
                 "\"data_offsets\":[0,%s]}}",
                 bad[i].number);
        snprintf(want, sizeof want, "'a'|data_offsets[1]|%s|281474976710655",
                 bad[i].text);
        expect_refused(t_st_file("x.safetensors", header, 4), ERR_INPUT, want);
    }
}

Test(st_header, offsets_are_two)
{
    static const struct reject r[] = {
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4]}}", 4,
          "'a'|data_offsets has 1 numbers, must have 2" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]}}",
          4, "'a'|3 numbers" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[]}}", 4,
          "'a'|0 numbers" },
    };
    REFUSE_ALL(r);
}

Test(st_header, json_leniencies_are_refused)
{
#define T "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]"
    static const struct reject r[] = {
        { "{\"a\":{" T "},}", 1, "header" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1,
          "header" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.],\"data_offsets\":[0,1]}}", 1,
          "header" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[+1],\"data_offsets\":[0,1]}}", 1,
          "header" },
        { "{\"a\tb\":{" T "}}", 1, "header" },
        { "{\"a\\u0000b\":{" T "}}", 1, "header" },
        { "{'a':{" T "}}", 1, "header" },
        { "{/* x */\"a\":{" T "}}", 1, "header" },
    };
    REFUSE_ALL(r);
#undef T
}

#define U8(name, n, b, e)                                                     \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #b \
    "," #e "]}"

/* Rule 6. */
Test(st_header, tensors_must_tile_the_data)
{
    static const struct reject r[] = {
        { "{" U8("a", 4, 1, 5) "}", 5, "'a'|first|byte 1|begin at 0" },
        { "{" U8("a", 4, 0, 4) "," U8("b", 4, 6, 10) "}", 10,
          "[4, 6)|'a'|'b'|belong to no tensor" },
        { "{" U8("b", 4, 3, 7) "," U8("a", 4, 0, 4) "}", 7,
          "'b'|[3, 7)|overlaps|'a'|[0, 4)" },
        { "{" U8("a", 4, 0, 4) "," U8("b", 4, 0, 4) "}", 4,
          "'b'|overlaps|'a'" }, /* an alias */
        { "{" U8("a", 4, 8, 4) "}", 8, "'a'|byte 4|before|8" },
        { "{" U8("a", 4, 0, 4) "," U8("z", 0, 2, 2) "}", 4,
          "'z'|[2, 2)|overlaps|'a'" },
    };
    REFUSE_ALL(r);
}

/* Rule 7. */
Test(st_header, products_overflow)
{
    static const struct reject r[] = {
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[281474976710655,65538],"
          "\"data_offsets\":[0,4]}}",
          4, "'a'|[281474976710655, 65538]|overflows" },
        { "{\"a\":{\"dtype\":\"F64\",\"shape\":[281474976710655,65536],"
          "\"data_offsets\":[0,4]}}",
          4, "'a'|[281474976710655, 65536] of F64|overflows" },
        /* 2^64 elements of which none remains after wrapping */
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],"
          "\"data_offsets\":[0,0]}}",
          0, "'a'|overflows" },
        /* 2^64 bits wrap to none */
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,134217728],"
          "\"data_offsets\":[0,0]}}",
          0, "'a'|overflows" },
    };
    REFUSE_ALL(r);
}

/* Rule 8. */
Test(st_header, broken_bytes)
{
    static const struct reject r[] = {
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
          "'a'|[3] of F4|12 bits|multiple of 8" },
        { "{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],"
          "\"data_offsets\":[0,2]}}",
          2, "'a'|12 bits" },
    };
    REFUSE_ALL(r);
}

/* Rule 9. */
Test(st_header, range_against_shape)
{
    static const struct reject r[] = {
        { "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,10]}"
          "}",
          10, "'a'|10|[2, 3] of BF16|12" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,8]}}", 8,
          "'a'|8|[] of F32|4" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]}}", 4,
          "'a'|4|[0] of F32|0" },
    };
    REFUSE_ALL(r);
}

/* Rule 10. */
Test(st_header, data_too_short_or_too_long)
{
    static const struct reject r[] = {
        { "{" U8("a", 4, 0, 4) "}", 3,
          "truncated|64 of 65 bytes|download it again" },
        { "{" U8("a", 4, 0, 4) "}", 9, "70 bytes|65|last 5" },
        { "{}", 1, "11 bytes|10|last 1" },
    };
    REFUSE_ALL(r);
}

/* Rule 11. */
Test(st_header, a_name_twice)
{
    static const struct reject r[] = {
        { "{" U8("w", 4, 0, 4) "," U8("w", 4, 4, 8) "}", 8, "w|twice" },
        { "{" U8("w", 4, 0, 4) "," U8("w", 4, 0, 4) "}", 4, "w|twice" },
        { "{" U8("w", 4, 0, 4) "," U8("\\u0077", 4, 4, 8) "}", 8, "w|twice" },
        { "{\"w\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],"
          "\"data_offsets\":[0,1]}}",
          1, "dtype|twice" },
    };
    REFUSE_ALL(r);
}

/* Rule 12. */
Test(st_header, metadata_is_text)
{
    static const struct reject r[] = {
        { "{\"__metadata__\":{\"n\":1}}", 0, "__metadata__|'n'|a number" },
        { "{\"__metadata__\":{\"n\":{\"a\":\"b\"}}}", 0,
          "__metadata__|'n'|an object" },
        { "{\"__metadata__\":{\"n\":null}}", 0, "__metadata__|'n'|null" },
        { "{\"__metadata__\":[]}", 0, "__metadata__|an array|an object" },
        { "{\"__metadata__\":\"x\"}", 0, "__metadata__|a string|an object" },
    };
    REFUSE_ALL(r);
}

Test(st_header, rank_has_a_limit_that_is_said)
{
    char header[256] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1";

    for (int i = 0; i < 16; i++)
        strcat(header, ",1");
    strcat(header, "],\"data_offsets\":[0,1]}}");
    expect_refused(t_st_file("x.safetensors", header, 1), ERR_UNSUPPORTED,
                   "'a'|17 dimensions|16");
}

Test(st_header, legal_oddities)
{
    static const struct {
        const char *header;
        uint64_t data;
        size_t count;
    } ok[] = {
        { "{}", 0, 0 },
        { " \t\r\n{}\n\n ", 0, 0 },
        { "{\"__metadata__\":null}", 0, 0 },
        { "{\"__metadata__\":{}}", 0, 0 },
        { "{\"__metadata__\":{\"format\":\"pt\"}," U8("a", 4, 0, 4) "}", 4, 1 },
        { "{\"a\":{\"x\":[1,2],\"dtype\":\"U8\",\"shape\":[1],"
          "\"data_offsets\":[0,1]}}",
          1, 1 }, /* further members */
        { "{" U8("b", 4, 4, 8) "," U8("a", 4, 0, 4) "}", 8, 2 },
        { "{" U8("a", 4, 0, 4) "," U8("A", 4, 4, 8) "}", 8, 2 },
        { "{" U8("", 1, 0, 1) "}", 1, 1 },
        { "{" U8("\xe2\x82\xac \\\" \\n", 1, 0, 1) "}", 1, 1 },
        /* an empty tensor before, between and behind */
        { "{" U8("a", 4, 0, 4) "," U8("z", 0, 0, 0) "}", 4, 2 },
        { "{" U8("a", 4, 0, 4) "," U8("z", 0, 4, 4) "," U8("b", 2, 4, 6) "}", 6,
          3 },
        { "{" U8("a", 4, 0, 4) "," U8("y", 0, 4, 4) "," U8("z", 0, 4, 4) "}", 4,
          3 },
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}",
          3, 1 },
        { "{\"a\":{\"dtype\":\"C64\",\"shape\":[0,281474976710655],"
          "\"data_offsets\":[0,0]}}",
          0, 1 },
    };

    for (size_t i = 0; i < sizeof ok / sizeof ok[0]; i++) {
        struct st *s =
            expect_opened(t_st_file("x.safetensors", ok[i].header, ok[i].data));
        cr_expect_eq(st_count(s), ok[i].count, "%s", ok[i].header);
        cr_expect_eq(st_data_bytes(s), ok[i].data);
        cr_expect_eq(st_note_count(s), 0);
        st_close(s);
    }
}

Test(st_header, names_that_differ_in_case)
{
    struct st *s = expect_opened(
        t_st_file("x.safetensors",
                  "{" U8("w", 4, 0, 4) "," U8("W", 2, 4, 6) "}", 6));

    cr_expect_eq(st_find(s, "w")->elems, 4);
    cr_expect_eq(st_find(s, "W")->elems, 2);
    cr_expect_null(st_find(s, "v"));
    cr_expect_str_eq(st_at(s, 0)->name, "W");
    cr_expect_null(st_at(s, 2));
    st_close(s);
}

Test(st_header, every_dtype)
{
    char header[128];

    for (int d = 0; d < ST_DTYPE_COUNT; d++) {
        enum st_dtype back;
        unsigned bits = st_dtype_bits((enum st_dtype)d);
        const char *name = st_dtype_name((enum st_dtype)d);
        struct st *s;
        cr_assert(st_dtype_by_name(name, &back));
        cr_expect_eq((int)back, d);
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[4],"
                 "\"data_offsets\":[0,%u]}}",
                 name, bits / 2);
        s = expect_opened(t_st_file("x.safetensors", header, bits / 2));
        cr_expect_eq((int)st_at(s, 0)->dtype, d);
        st_close(s);
    }
    cr_expect(st_dtype_is_plain(ST_BF16) && st_dtype_is_plain(ST_F16) &&
              st_dtype_is_plain(ST_F32));
    cr_expect(!st_dtype_is_plain(ST_F64) && !st_dtype_is_plain(ST_U8));
}

Test(st_header, shape_text)
{
    struct st_tensor t = { .rank = 2, .dims = { 2, 3 } };
    char out[16];

    st_shape_text(&t, out, sizeof out);
    cr_expect_str_eq(out, "[2, 3]");
    t.rank = 0;
    st_shape_text(&t, out, sizeof out);
    cr_expect_str_eq(out, "[]");
    t.rank = 1;
    st_shape_text(&t, out, sizeof out);
    cr_expect_str_eq(out, "[2]");
    t.rank = 16;
    st_shape_text(&t, out, sizeof out);
    cr_expect_str_eq(out, "[2, 3, 0, 0,...");
    st_shape_text(&t, out, 1);
    cr_expect_str_eq(out, "");
}

/* A name of a megabyte still leaves room for the message. */
Test(st_header, long_name_in_message)
{
    size_t n = 1000000;
    char *header = malloc(n + 100);

    header[0] = '{';
    header[1] = '"';
    memset(header + 2, 'n', n);
    strcpy(header + 2 + n, "\":{\"dtype\":\"Q4\"}}");
    expect_refused(t_st_file("x.safetensors", header, 1), ERR_INPUT,
                   "nnn|unknown dtype 'Q4'");
    free(header);
}

Test(st_header, stand_ins)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17"
        "e2393\nsize 12345\n";

    expect_refused(t_st_text("x.safetensors", pointer), ERR_INPUT,
                   "git-lfs|12345");
    expect_refused(t_st_text("x.safetensors", ""), ERR_INPUT, "empty");
    cr_assert_eq(unlink(t_st_path("x.safetensors")), 0);
    expect_refused(t_st_path("x.safetensors"), ERR_INPUT, "");
    cr_assert_eq(symlink("gone-target", t_st_path("x.safetensors")), 0);
    expect_refused(t_st_path("x.safetensors"), ERR_INPUT, "gone-target");
}

/* 100,000 tensors: nothing may be quadratic. */
Test(st_header, many_tensors)
{
    enum { N = 100000 };
    char *header = malloc(N * 96);
    size_t at = 0;
    char name[32];
    clock_t start;
    struct st *s;

    at += (size_t)sprintf(header, "{");
    for (int i = 0; i < N; i++)
        at += (size_t)sprintf(header + at,
                              "%s\"tensor.%d\":{\"dtype\":\"U8\",\"shape\":[1,"
                              "2],\"data_offsets\":[%d,%d]}",
                              i ? "," : "", i, 2 * i, 2 * i + 2);
    sprintf(header + at, "}");
    t_st_file("x.safetensors", header, 2 * N);
    free(header);
    start = clock();
    s = expect_opened(t_st_path("x.safetensors"));
    cr_expect_eq(st_count(s), N);
    for (int i = 0; i < N; i++) {
        sprintf(name, "tensor.%d", i);
        cr_assert_eq(st_find(s, name)->begin, 2 * (uint64_t)i);
    }
    cr_expect_lt((double)(clock() - start) / CLOCKS_PER_SEC, 5.0);
    st_close(s);
}

/* Random damage: refused, or sound by every rule; never a crash. */
static void check_sound(const struct st *s, uint64_t size)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < st_count(s); i++) {
        const struct st_tensor *t = st_at(s, i);
        struct err e = ERR_INIT;
        unsigned char byte;
        cr_assert_leq(t->begin, t->end);
        cr_assert_leq(t->end, size);
        cr_assert_eq(t->elems * st_dtype_bits(t->dtype) / 8, t->end - t->begin);
        sum += t->end - t->begin;
        if (t->end > t->begin)
            cr_assert_eq(st_read_bytes(s, t, t->end - t->begin - 1, &byte, 1,
                                       &e),
                         0, "%s", e.text);
    }
    cr_assert_eq(sum, st_data_bytes(s));
}

Test(st_header, damaged_at_random)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"model.a\":{\"dtype\":\"BF16\",\"shape\":[2,3],"
        "\"data_offsets\":[0,12]},"
        "\"model.b\":{\"dtype\":\"F32\",\"shape\":[4],"
        "\"data_offsets\":[12,28]},"
        "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[28,28]}}  ";
    static const char alphabet[] = "0123456789{}[]\",:.-eE\\ \xff";
    unsigned char bytes[8 + sizeof header + 28];
    uint64_t seed = 12345;
    size_t opened = 0;

    for (int round = 0; round < 4000; round++) {
        size_t size = sizeof bytes - 1;
        struct err e = ERR_INIT;
        struct st *s;
        store_le64(bytes, sizeof header - 1);
        memcpy(bytes + 8, header, sizeof header - 1);
        memset(bytes + 8 + sizeof header - 1, 7, 28);
        for (int k = 0; k < 1 + round % 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % size] =
                (unsigned char)alphabet[(seed >> 20) % (sizeof alphabet - 1)];
        }
        if (round % 7 == 0)
            size = (seed >> 40) % size + 1;
        s = st_open(t_st_put("x.safetensors", bytes, size), &e);
        if (s) {
            opened++;
            check_sound(s, size);
        } else {
            cr_assert_neq((int)e.code, (int)ERR_OK);
            cr_assert_neq(e.text[0], 0);
        }
        st_close(s);
    }
    cr_expect_gt(opened, 100); /* damage to data and names is no fault */
}
