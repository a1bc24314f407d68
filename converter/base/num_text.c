/*
 * Numbers as text, independent of the locale: strict reading with correct
 * rounding, shortest writing. The C library does the arithmetic (strtod,
 * snprintf), but never sees or decides a decimal point.
 */
#include "converter/base/num.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits only, no leading zero but "0" itself. */
static bool parse_digits(const char *s, size_t len, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;

    if (len == 0 || (len > 1 && s[0] == '0'))
        return false;
    for (size_t i = 0; i < len; i++) {
        unsigned d = (unsigned)(s[i] - '0');

        if (!is_digit(s[i]) || v > (max - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

bool num_parse_u64(const char *s, size_t len, uint64_t *out)
{
    if (len > 0 && s[0] == '+') {
        s++;
        len--;
    }
    return parse_digits(s, len, UINT64_MAX, out);
}

bool num_parse_i64(const char *s, size_t len, int64_t *out)
{
    bool minus = len > 0 && s[0] == '-';
    uint64_t v, max = (uint64_t)INT64_MAX + (minus ? 1 : 0);

    if (len > 0 && (s[0] == '-' || s[0] == '+')) {
        s++;
        len--;
    }
    if (!parse_digits(s, len, max, &v))
        return false;
    if (!minus)
        *out = (int64_t)v;
    else
        *out = v > (uint64_t)INT64_MAX ? INT64_MIN : -(int64_t)v;
    return true;
}

/* A number taken apart: digits with the point at the far right, and the
 * power of ten that this leaves. */
#define DIGITS_MAX 800 /* 768 decide any double; the rest only breaks ties */
struct decimal {
    bool minus;
    int count; /* digits kept, without leading zeros; 0: the value is 0 */
    int64_t exp10;
    char digits[DIGITS_MAX + 1];
};

static void add_digit(struct decimal *d, char c, bool *dropped)
{
    if (c == '0' && d->count == 0)
        return;
    if (d->count < DIGITS_MAX) {
        d->digits[d->count++] = c;
        return;
    }
    d->exp10++;
    if (c != '0')
        *dropped = true;
}

/* [+-]?digits with '.'? 'e'?, all of it or false. */
static bool take_apart(const char *s, size_t len, struct decimal *d)
{
    bool dropped = false, negative_exp = false;
    size_t i = 0, start;
    int64_t exp = 0;

    d->minus = len > 0 && s[0] == '-';
    d->count = 0;
    d->exp10 = 0;
    if (len > 0 && (s[0] == '-' || s[0] == '+'))
        i++;
    start = i;
    for (; i < len && is_digit(s[i]); i++)
        add_digit(d, s[i], &dropped);
    if (i == start || (s[start] == '0' && i - start > 1))
        return false;
    if (i < len && s[i] == '.') {
        start = ++i;
        for (; i < len && is_digit(s[i]); i++) {
            add_digit(d, s[i], &dropped);
            d->exp10--;
        }
        if (i == start)
            return false;
    }
    if (i < len && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < len && (s[i] == '-' || s[i] == '+'))
            negative_exp = s[i++] == '-';
        start = i;
        for (; i < len && is_digit(s[i]); i++)
            if (exp < INT64_MAX / 100)
                exp = exp * 10 + (s[i] - '0');
        if (i == start)
            return false;
        d->exp10 += negative_exp ? -exp : exp;
    }
    if (dropped) { /* a little more than the digits kept: no tie */
        d->digits[d->count++] = '1';
        d->exp10--;
    }
    return i == len;
}

/* The value of d; infinite when out of range. */
static double decimal_value(const struct decimal *d)
{
    char text[DIGITS_MAX + 32];
    int64_t exp = d->exp10;
    double v;

    if (d->count == 0)
        return d->minus ? -0.0 : 0.0;
    if (exp > 1000)
        exp = 1000; /* beyond every double with even one digit */
    if (exp < -2000)
        exp = -2000; /* below every double with even 800 */
    snprintf(text, sizeof text, "%.*se%d", d->count, d->digits, (int)exp);
    v = strtod(text, NULL);
    return d->minus ? -v : v;
}

bool num_parse_double(const char *s, size_t len, double *out)
{
    struct decimal d;
    double v;

    if (!take_apart(s, len, &d))
        return false;
    v = decimal_value(&d);
    if (isinf(v))
        return false;
    *out = v;
    return true;
}

bool num_parse_integral(const char *s, size_t len, int64_t limit, int64_t *out)
{
    struct decimal d;
    int64_t v = 0;

    if (!take_apart(s, len, &d))
        return false;
    while (d.count > 0 && d.digits[d.count - 1] == '0') {
        d.count--;
        d.exp10++;
    }
    if (d.count > 0 && (d.exp10 < 0 || d.exp10 > 18 || d.count > 19))
        return false;
    for (int64_t i = 0; d.count > 0 && i < d.count + d.exp10; i++) {
        int digit = i < d.count ? d.digits[i] - '0' : 0;

        if (v > (limit - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *out = d.minus ? -v : v;
    return true;
}

/* v > 0 to `count` significant digits, value 0.d1d2d3... x 10^point. */
static void print_digits(double v, int count, char *digits, int *point)
{
    char text[64];
    const char *p = text;
    int got = 0;

    snprintf(text, sizeof text, "%.*e", count - 1, v);
    for (; *p != 'e'; p++)
        if (is_digit(*p) && got < count)
            digits[got++] = *p;
    *point = (int)strtol(p + 1, NULL, 10) + 1;
}

static bool digits_give(const char *digits, int count, int point, double v)
{
    char text[64];

    snprintf(text, sizeof text, "%.*se%d", count, digits, point - count);
    return strtod(text, NULL) == v;
}

/* The digits one unit of the last place away; false where that would need
 * a carry out of the front. */
static bool neighbour(char *digits, int count, int step)
{
    for (int i = count - 1; i >= 0; i--) {
        if (step > 0 && digits[i] == '9') {
            digits[i] = '0';
        } else if (step < 0 && digits[i] == '0') {
            digits[i] = '9';
        } else {
            digits[i] = (char)(digits[i] + step);
            return digits[0] != '0';
        }
    }
    return false;
}

/* Whether `count` digits can stand for v. The nearest decimal may miss where
 * its neighbour hits: at a power of two the interval of a double is wider
 * above than below. */
static bool try_count(double v, int count, char *digits, int *point)
{
    char near[20];

    print_digits(v, count, digits, point);
    if (digits_give(digits, count, *point, v))
        return true;
    for (int step = 1; step >= -1; step -= 2) {
        memcpy(near, digits, (size_t)count);
        if (neighbour(near, count, step) &&
            digits_give(near, count, *point, v)) {
            memcpy(digits, near, (size_t)count);
            return true;
        }
    }
    return false;
}

/* The fewest digits that read back to v > 0; returns their number. */
static int shortest_digits(double v, char *digits, int *point)
{
    /* 15 digits survive the way through a normal double, so that the zeros
     * at their end tell a shorter text; subnormals hold fewer. */
    int count = v < DBL_MIN ? 1 : DBL_DIG;

    while (count < DBL_DECIMAL_DIG && !try_count(v, count, digits, point))
        count++;
    if (count == DBL_DECIMAL_DIG)
        print_digits(v, count, digits, point);
    while (count > 1 && digits[count - 1] == '0')
        count--;
    return count;
}

/* "ddd", "ddd000", "d.ddd", "0.000ddd" or "d.ddde-30". */
static void lay_out(char *out, const char *digits, int count, int point)
{
    if (point > 17 || point < -3) {
        *out++ = digits[0];
        if (count > 1)
            *out++ = '.';
        for (int i = 1; i < count; i++)
            *out++ = digits[i];
        snprintf(out, 14, "e%d", point - 1);
        return;
    }
    if (point <= 0) {
        *out++ = '0';
        *out++ = '.';
        for (int i = point; i < 0; i++)
            *out++ = '0';
    }
    for (int i = 0; i < count || i < point; i++) {
        if (i == point && i > 0)
            *out++ = '.';
        *out++ = i < count ? digits[i] : '0';
    }
    *out = '\0';
}

void num_text(char out[NUM_TEXT_MAX], double v)
{
    char digits[20];
    int count, point;

    if (isnan(v)) {
        memcpy(out, "nan", 4);
        return;
    }
    if (signbit(v)) {
        *out++ = '-';
        v = -v;
    }
    if (isinf(v)) {
        memcpy(out, "inf", 4);
    } else if (v == 0) {
        memcpy(out, "0", 2);
    } else {
        count = shortest_digits(v, digits, &point);
        lay_out(out, digits, count, point);
    }
}

void num_bytes_text(char out[NUM_TEXT_MAX], uint64_t bytes)
{
    static const char *const units[] = {
        "B", "KB", "MB", "GB", "TB", "PB", "EB"
    };
    uint64_t scale = 1, whole, tenth;
    int u = 0;

    while (u < 6 && bytes / scale >= 1000) {
        scale *= 1000;
        u++;
    }
    whole = bytes / scale;
    tenth = scale == 1 ? 0 : bytes % scale / (scale / 10);
    if (whole < 100 && scale > 1)
        snprintf(out, NUM_TEXT_MAX, "%u.%u %s", (unsigned)whole,
                 (unsigned)tenth, units[u]);
    else
        snprintf(out, NUM_TEXT_MAX, "%u %s", (unsigned)whole, units[u]);
}
