/*
 * Numbers as text: grammar, exact rounding, shortest output, locale.
 */
#include <criterion/criterion.h>
#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/buf.h"
#include "converter/base/num.h"

static bool parse(const char *s, double *v)
{
    return num_parse_double(s, strlen(s), v);
}

Test(text, unsigned_integers)
{
    static const char *const bad[] = { "",
                                       "-1",
                                       "-0",
                                       "12x",
                                       "x12",
                                       "1.0",
                                       "1e1",
                                       " 1",
                                       "1 ",
                                       "01",
                                       "00",
                                       "+",
                                       "++1",
                                       "0x10",
                                       "18446744073709551616",
                                       "99999999999999999999999" };
    uint64_t v;

    cr_assert(num_parse_u64("0", 1, &v) && v == 0);
    cr_assert(num_parse_u64("+17", 3, &v) && v == 17);
    cr_assert(num_parse_u64("18446744073709551615", 20, &v));
    cr_assert_eq(v, UINT64_MAX);
    cr_assert(num_parse_u64("123456", 3, &v) && v == 123);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert(!num_parse_u64(bad[i], strlen(bad[i]), &v), "'%s'", bad[i]);
    cr_assert(!num_parse_u64("1\0", 2, &v));
}

Test(text, signed_integers)
{
    int64_t v;

    cr_assert(num_parse_i64("-9223372036854775808", 20, &v));
    cr_assert_eq(v, INT64_MIN);
    cr_assert(num_parse_i64("9223372036854775807", 19, &v));
    cr_assert_eq(v, INT64_MAX);
    cr_assert(num_parse_i64("-0", 2, &v) && v == 0);
    cr_assert(num_parse_i64("+5", 2, &v) && v == 5);
    cr_assert(!num_parse_i64("9223372036854775808", 19, &v));
    cr_assert(!num_parse_i64("-9223372036854775809", 20, &v));
    cr_assert(!num_parse_i64("-", 1, &v));
    cr_assert(!num_parse_i64("-+1", 3, &v));
    cr_assert(!num_parse_i64("5.", 2, &v));
}

Test(text, doubles_of_the_grammar)
{
    static const char *const bad[] = {
        "",      "+",        "-",     ".5",     "5.",   "1e",   "1e+",
        "e5",    "01",       "-01",   "1.e5",   "0x10", "nan",  "inf",
        "NaN",   "Infinity", "1,5",   " 1",     "1 ",   "1.5f", "--1",
        "1e5.0", "1__0",     "1e400", "-1e400",
    };
    double v = 0;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert(!parse(bad[i], &v), "'%s'", bad[i]);
    cr_assert(parse("0", &v) && v == 0 && !signbit(v));
    cr_assert(parse("-0.0", &v) && v == 0 && signbit(v));
    cr_assert(parse("+1.5E+2", &v) && v == 150);
    cr_assert(parse("1e-400", &v) && v == 0);
    cr_assert(parse("0e999999999999999999999", &v) && v == 0);
    cr_assert(parse("1e-99999999999999999999", &v) && v == 0);
    cr_assert(!parse("1e99999999999999999999", &v));
    cr_assert(parse("1.7976931348623157e308", &v) && v == DBL_MAX);
    cr_assert(parse("1.7976931348623158e308", &v) && v == DBL_MAX);
    cr_assert(!parse("1.7976931348623159e308", &v));
    cr_assert(parse("5e-324", &v) && v == 0x1p-1074);
    cr_assert(parse("2.4e-324", &v) && v == 0);
    cr_assert(parse("2.5e-324", &v) && v == 0x1p-1074);
}

/* The digits of 5^n, NUL-terminated. */
static void power_of_five(char *out, int n)
{
    unsigned char digits[1000] = { 1 };
    int len = 1;

    for (int i = 0; i < n; i++) {
        int carry = 0;

        for (int k = 0; k < len; k++) {
            carry += digits[k] * 5;
            digits[k] = (unsigned char)(carry % 10);
            carry /= 10;
        }
        if (carry > 0)
            digits[len++] = (unsigned char)carry;
    }
    for (int k = len - 1; k >= 0; k--)
        *out++ = (char)('0' + digits[k]);
    *out = '\0';
}

/* Exact ties that one digit, hundreds or thousands of places on, decides. */
Test(text, ties_beyond_any_buffer)
{
    static char s[4000];
    size_t len;
    double v;

    /* 2^-1075 = 5^1075 / 10^1075, half of the least double: even is 0. */
    power_of_five(s, 1075);
    len = strlen(s);
    cr_assert_eq(len, 752);
    strcpy(s + len, "e-1075");
    cr_assert(parse(s, &v) && v == 0);
    memset(s + len, '0', 1000);
    strcpy(s + len + 1000, "e-2075");
    cr_assert(parse(s, &v) && v == 0);
    s[len + 999] = '1';
    cr_assert(parse(s, &v) && v == 0x1p-1074);
    s[len - 1]--; /* a little less */
    cr_assert(parse(s, &v) && v == 0);
    /* 9007199254740993 is between two doubles; even is ...992. */
    cr_assert(parse("9007199254740993", &v) && v == 9007199254740992.0);
    strcpy(s, "9007199254740993.");
    memset(s + 17, '0', 2000);
    s[2017] = '\0';
    cr_assert(parse(s, &v) && v == 9007199254740992.0);
    s[2016] = '1';
    cr_assert(parse(s, &v) && v == 9007199254740994.0);
    s[2016] = '0';
    strcpy(s + 2017, "e0");
    cr_assert(parse(s, &v) && v == 9007199254740992.0);
    /* Thousands of zeros in front, and an exponent that takes them back. */
    strcpy(s, "0.");
    memset(s + 2, '0', 3000);
    strcpy(s + 3002, "9007199254740993e3016");
    cr_assert(parse(s, &v) && v == 9007199254740992.0);
    strcpy(s + 3002, "90071992547409930000001e3016");
    cr_assert(parse(s, &v) && v == 9007199254740994.0);
    /* A long integer. */
    memset(s, '1', 300);
    s[300] = '\0';
    cr_assert(parse(s, &v) && v == 1.1111111111111111e299);
    memset(s, '1', 400);
    s[400] = '\0';
    cr_assert(!parse(s, &v));
}

Test(text, integral_in_any_spelling)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } t[] = {
        { "8", true, 8 },
        { "8.0", true, 8 },
        { "-8.00", true, -8 },
        { "1e6", true, 1000000 },
        { "1.5e1", true, 15 },
        { "120e-1", true, 12 },
        { "125e-1", false, 0 },
        { "0.0", true, 0 },
        { "-0", true, 0 },
        { "0e99", true, 0 },
        { "8.5", false, 0 },
        { "9007199254740992", true, INT64_C(9007199254740992) },
        { "-9007199254740992", true, -INT64_C(9007199254740992) },
        { "9007199254740993", false, 0 },
        { "9007199254740992.5", false, 0 },
        { "1e30", false, 0 },
        { "1e-30", false, 0 },
        { "1000000000000000019884624838656", false, 0 },
        { "0.00000000000000000000000000001e30", true, 10 },
        { "x", false, 0 },
        { "", false, 0 },
    };

    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        int64_t v = 0;
        bool ok = num_parse_integral(t[i].text, strlen(t[i].text),
                                     INT64_C(1) << 53, &v);

        cr_assert_eq(ok, t[i].ok, "'%s'", t[i].text);
        cr_assert_eq(v, t[i].value, "'%s'", t[i].text);
    }
}

Test(text, shortest_by_hand)
{
    static const struct {
        double v;
        const char *text;
    } t[] = {
        { 0, "0" },
        { -0.0, "-0" },
        { 1, "1" },
        { -1.5, "-1.5" },
        { 0.1, "0.1" },
        { 1.0 / 3, "0.3333333333333333" },
        { 2.0 / 3, "0.6666666666666666" },
        { 100, "100" },
        { 1e15, "1000000000000000" },
        { 1e16, "10000000000000000" },
        { 1e17, "1e17" },
        { 1e22, "1e22" },
        { 1e23, "1e23" },
        { 123456.789, "123456.789" },
        { 0.001, "0.001" },
        { 0.0001, "0.0001" },
        { 0.00001, "1e-5" },
        { 0.00012345, "0.00012345" },
        { 1e-6, "1e-6" },
        { 1.2345e-7, "1.2345e-7" },
        { 9007199254740992.0, "9007199254740992" },
        { 9007199254740993e1, "90071992547409940" },
        { 0x1p-44, "5.684341886080802e-14" },
        { 0x1p-1074, "5e-324" },
        { 0x1p-1022, "2.2250738585072014e-308" },
        { 0x0.fffffffffffffp-1022, "2.225073858507201e-308" },
        { DBL_MAX, "1.7976931348623157e308" },
        { 5e-5, "5e-5" },
        { 9.5367431640625e-07, "9.5367431640625e-7" },
        { 1e300 * 1e10, "inf" },
        { -1e300 * 1e10, "-inf" },
    };
    char text[NUM_TEXT_MAX];

    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        num_text(text, t[i].v);
        cr_assert_str_eq(text, t[i].text);
    }
    num_text(text, (double)NAN);
    cr_assert_str_eq(text, "nan");
    num_text(text, -(double)NAN);
    cr_assert_str_eq(text, "nan");
}

static uint64_t state = 88172645463325252u;

static double random_double(void)
{
    uint64_t u;
    double v;

    do {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u = state;
        if (u % 5 == 0)
            u &= UINT64_C(0xfff0000000000000); /* powers of two */
        if (u % 7 == 0)
            u &= UINT64_C(0x800fffffffffffff); /* subnormals */
        memcpy(&v, &u, sizeof v);
        if (u % 3 == 0)
            v = (double)(int64_t)(state % 2000001) / 1000;
    } while (!isfinite(v) || v == 0);
    return v;
}

static int count_digits(const char *s)
{
    int n = 0, zeros = 0;

    for (; *s != '\0' && *s != 'e'; s++) {
        if (*s < '0' || *s > '9' || (n == 0 && *s == '0'))
            continue;
        n++;
        zeros = *s == '0' ? zeros + 1 : 0;
    }
    return n - zeros;
}

Test(text, shortest_reads_back)
{
    char text[NUM_TEXT_MAX], other[64];

    for (int i = 0; i < 200000; i++) {
        double v = random_double(), back = 0;
        int digits;

        num_text(text, v);
        cr_assert(parse(text, &back), "%s", text);
        cr_assert_eq(memcmp(&v, &back, sizeof v), 0, "%a: %s", v, text);
        cr_assert_eq(strtod(text, NULL), v);
        /* No printf with fewer digits reads back. */
        digits = count_digits(text);
        cr_assert_leq(digits, 17);
        if (digits > 1) {
            snprintf(other, sizeof other, "%.*g", digits - 1, v);
            cr_assert_neq(strtod(other, NULL), v, "%s against %s", text, other);
        }
    }
}

Test(text, parsing_agrees_with_the_c_library)
{
    char s[64];

    for (int i = 0; i < 200000; i++) {
        double v = random_double(), a = 0;

        snprintf(s, sizeof s, "%.*e", (int)(state % 25), v);
        if (!isfinite(strtod(s, NULL))) {
            cr_assert(!parse(s, &a));
            continue;
        }
        cr_assert(parse(s, &a), "%s", s);
        cr_assert_eq(a, strtod(s, NULL), "%s", s);
    }
}

Test(text, a_comma_locale_changes_nothing)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE",
                                         "fr_FR.UTF-8", "ru_RU.UTF-8" };
    struct buf b = BUF_INIT;
    bool found = false;
    double v = 0;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && !found; i++)
        found = setlocale(LC_ALL, names[i]) != NULL &&
                strcmp(localeconv()->decimal_point, ",") == 0;
    if (!found)
        cr_skip_test("no locale with a decimal comma is installed");
    buf_double(&b, 1234.5678);
    cr_assert_str_eq(b.data, "1234.5678");
    buf_clear(&b);
    buf_double(&b, 1.5e-30);
    cr_assert_str_eq(b.data, "1.5e-30");
    cr_assert(parse("1234.5678", &v) && v == 1234.5678);
    cr_assert(!parse("1234,5678", &v));
    buf_release(&b);
}

Test(text, integers_as_printf_has_them)
{
    static const int64_t v[] = { 0, 7, -1, 10, -123456, INT64_MAX, INT64_MIN };
    struct buf b = BUF_INIT;
    char want[32];

    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        buf_clear(&b);
        buf_int(&b, v[i]);
        snprintf(want, sizeof want, "%" PRId64, v[i]);
        cr_expect_str_eq(buf_text(&b), want);
    }
    buf_clear(&b);
    buf_uint(&b, UINT64_MAX);
    cr_expect_str_eq(buf_text(&b), "18446744073709551615");
    buf_release(&b);
}

Test(text, bytes_for_people)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } t[] = {
        { 0, "0 B" },         { 999, "999 B" },
        { 1000, "1.0 KB" },   { 1500000000, "1.5 GB" },
        { 12345, "12.3 KB" }, { 312400, "312 KB" },
        { 999999, "999 KB" }, { UINT64_MAX, "18.4 EB" },
    };
    char text[NUM_TEXT_MAX];

    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        num_bytes_text(text, t[i].bytes);
        cr_assert_str_eq(text, t[i].text);
    }
}
