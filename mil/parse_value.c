/*
 * Literals of MIL text: numbers, strings, nested lists, references to bytes
 * that lie elsewhere.
 */
#include <math.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/parse_priv.h"
#include "mil/text_priv.h"

/* ---- references that are not followed ---- */

struct unread {
    const char *file; /* NULL: none */
    uint64_t offset;
};

static int read_unread(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *e)
{
    const struct unread *u = cookie;

    (void)offset;
    (void)dst;
    (void)n;
    return err_set(e, ERR_UNSUPPORTED,
                   "the bytes of a constant in '%s' were not read with the "
                   "text",
                   u->file ? u->file : "no file");
}

bool text_unread(const struct mil_data *d, const char **file, uint64_t *offset)
{
    const struct unread *u;

    if (d->read != read_unread)
        return false;
    u = d->cookie;
    *file = u->file;
    *offset = u->offset;
    return true;
}

static const struct mil_data *make_unread(struct parse *c, const char *file,
                                          uint64_t offset,
                                          const struct mil_type *t)
{
    struct mil_data *d = arena_alloc(&c->p->arena, 1, sizeof *d, c->e);
    struct unread *u = arena_alloc(&c->p->arena, 1, sizeof *u, c->e);

    if (!d || !u)
        return NULL;
    *u = (struct unread){ file, offset };
    d->type = *t;
    d->bytes = (uint64_t)mil_type_bytes(t);
    d->read = read_unread;
    d->cookie = u;
    return d;
}

/* ---- numbers ---- */

/* The characters that any number or word of a literal consists of. */
static struct slice number_text(struct parse *c)
{
    size_t start;

    parse_peek(c);
    start = c->pos;
    while (c->pos < c->len) {
        char ch = c->s[c->pos];

        if (!((ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') ||
              (ch >= 'A' && ch <= 'Z') || ch == '.' || ch == '+' || ch == '-'))
            break;
        c->pos++;
    }
    return (struct slice){ c->s + start, c->pos - start };
}

static int bad_number(struct parse *c, struct slice s, const char *what)
{
    return parse_fail_at(c, (size_t)(s.p - c->s), "'%.*s' is no %s",
                         s.n < 64 ? (int)s.n : 64, s.p, what);
}

int parse_int(struct parse *c, int64_t min, int64_t max, int64_t *out)
{
    struct slice s = number_text(c);

    if (!num_parse_i64(s.p, s.n, out))
        return bad_number(c, s, "integer");
    if (*out < min || *out > max)
        return parse_fail_at(c, (size_t)(s.p - c->s),
                             "%lld is out of range, allowed: %lld to %lld",
                             (long long)*out, (long long)min, (long long)max);
    return 0;
}

static int hex_digit(char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    if (ch >= 'a' && ch <= 'f')
        return ch - 'a' + 10;
    if (ch >= 'A' && ch <= 'F')
        return ch - 'A' + 10;
    return -1;
}

/* 0x1.8p+3 without its sign. At most 16 digits, so that none is lost before
 * the one rounding to double. */
static bool parse_hex(struct slice s, double *out)
{
    uint64_t mantissa = 0;
    int64_t exponent;
    int digits = 0, after = 0;
    size_t i = 2;
    bool point = false;

    if (s.n < 4 || s.p[0] != '0' || s.p[1] != 'x')
        return false;
    for (; i < s.n && s.p[i] != 'p'; i++) {
        int d = hex_digit(s.p[i]);

        if (s.p[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (d < 0 || ++digits > 16)
            return false;
        mantissa = mantissa << 4 | (unsigned)d;
        after += point ? 4 : 0;
    }
    if (digits == 0 || i + 1 >= s.n)
        return false;
    i += s.p[i + 1] == '+' ? 2 : 1;
    if (!num_parse_i64(s.p + i, s.n - i, &exponent) || exponent < -5000 ||
        exponent > 5000)
        return false;
    *out = ldexp((double)mantissa, (int)exponent - after);
    return true;
}

static int parse_float(struct parse *c, double *out)
{
    struct slice s = number_text(c), t = s;
    bool minus = s.n && s.p[0] == '-';

    if (minus) {
        t.p++;
        t.n--;
    }
    if (slice_is(t, "inf"))
        *out = INFINITY;
    else if (slice_is(t, "nan"))
        *out = NAN;
    else if (!parse_hex(t, out) && !(t.n && t.p[0] >= '0' && t.p[0] <= '9' &&
                                     num_parse_double(t.p, t.n, out)))
        return bad_number(c, s, "number");
    if (minus && !isnan(*out))
        *out = -*out;
    return 0;
}

/* ---- strings ---- */

/* One character behind a backslash; -1 if it is none. */
static int parse_escape(struct parse *c)
{
    int hi, lo;

    if (c->pos >= c->len)
        return -1;
    switch (c->s[c->pos++]) {
    case '"': return '"';
    case '\\': return '\\';
    case '/': return '/';
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'x':
        if (c->len - c->pos < 2)
            return -1;
        hi = hex_digit(c->s[c->pos]);
        lo = hex_digit(c->s[c->pos + 1]);
        c->pos += 2;
        /* NUL would cut the string. */
        return hi < 0 || lo < 0 || hi + lo == 0 ? -1 : hi * 16 + lo;
    default: return -1;
    }
}

/* The byte length from the opening quote to the closing one. */
static int string_length(struct parse *c, size_t *n)
{
    for (size_t i = c->pos; i < c->len; i++) {
        if (c->s[i] == '"') {
            *n = i - c->pos;
            return 0;
        }
        if (c->s[i] == '\\')
            i++;
        else if (c->s[i] == '\0')
            return parse_fail_at(c, i, "a zero byte in a string");
    }
    return parse_fail_at(c, c->pos, "a string without an end");
}

int parse_string(struct parse *c, const char **out)
{
    size_t n = 0, used = 0, end;
    char *text;

    if (parse_expect(c, '"') || string_length(c, &n))
        return -1;
    end = c->pos + n;
    text = arena_alloc(&c->p->arena, n + 1, 1, c->e);
    if (!text)
        return -1;
    while (c->pos < end) {
        size_t pos = c->pos;
        int ch = (unsigned char)c->s[c->pos++];

        if (ch == '\\')
            ch = parse_escape(c);
        if (ch < 0)
            return parse_fail_at(c, pos, "no such escape in a string");
        text[used++] = (char)ch;
    }
    if (c->pos != end)
        return parse_fail_at(c, end, "no such escape in a string");
    c->pos = end + 1;
    *out = text;
    return 0;
}

/* ---- elements ---- */

/* Limits of an integer type that fits int64. */
static void int_limits(enum mil_dtype d, int64_t *min, int64_t *max)
{
    unsigned bits = mil_dtype_bits(d);
    bool is_signed = d == MIL_I4 || d == MIL_I8 || d == MIL_I16 ||
                     d == MIL_I32 || d == MIL_I64;

    *min = 0;
    *max = INT64_MAX;
    if (is_signed) {
        *max = bits == 64 ? INT64_MAX : ((int64_t)1 << (bits - 1)) - 1;
        *min = -*max - 1;
    } else if (bits < 63) {
        *max = ((int64_t)1 << bits) - 1;
    }
}

static int int_bits(struct parse *c, enum mil_dtype d, uint64_t *out)
{
    int64_t v, min, max;

    if (d == MIL_U64) {
        struct slice s = number_text(c);

        return num_parse_u64(s.p, s.n, out)
                   ? 0
                   : bad_number(c, s, "unsigned integer");
    }
    int_limits(d, &min, &max);
    if (parse_int(c, min, max, &v))
        return -1;
    *out = (uint64_t)v;
    return 0;
}

static int float_bits(struct parse *c, enum mil_dtype d, uint64_t *out)
{
    double v;
    float f;
    uint32_t bits;

    if (parse_float(c, &v))
        return -1;
    f = (float)v;
    switch (d) {
    case MIL_F16: *out = f64_to_f16(v); break;
    case MIL_BF16: *out = f32_to_bf16(f); break;
    case MIL_F32:
        memcpy(&bits, &f, sizeof bits);
        *out = bits;
        break;
    default: memcpy(out, &v, sizeof v); break;
    }
    return 0;
}

static int bool_bits(struct parse *c, uint64_t *out)
{
    struct slice s = number_text(c);

    if (!slice_is(s, "true") && !slice_is(s, "false"))
        return bad_number(c, s, "bool");
    *out = slice_is(s, "true");
    return 0;
}

static void store_bits(unsigned char *bytes, unsigned width, int64_t i,
                       uint64_t v)
{
    uint64_t at = (uint64_t)i * width;

    if (width >= 8) {
        for (unsigned k = 0; k < width / 8; k++)
            bytes[at / 8 + k] = (unsigned char)(v >> (8 * k));
        return;
    }
    for (unsigned k = 0; k < width; k++, at++)
        bytes[at / 8] |= (unsigned char)((v >> k & 1) << (at % 8));
}

struct elements {
    const struct mil_type *type;
    unsigned char *bytes;
    const char **strings;
    int64_t next;
};

static int parse_element(struct parse *c, struct elements *x)
{
    enum mil_dtype d = x->type->dtype;
    uint64_t bits = 0;
    int rc;

    if (d == MIL_STRING)
        return parse_string(c, &x->strings[x->next++]);
    if (d == MIL_BOOL)
        rc = bool_bits(c, &bits);
    else if (mil_dtype_is_float(d))
        rc = float_bits(c, d, &bits);
    else
        rc = int_bits(c, d, &bits);
    if (rc == 0)
        store_bits(x->bytes, mil_dtype_bits(d), x->next++, bits);
    return rc;
}

static int parse_nest(struct parse *c, struct elements *x, int axis)
{
    if (axis == x->type->rank)
        return parse_element(c, x);
    if (parse_expect(c, '['))
        return -1;
    for (int64_t i = 0; i < x->type->dims[axis]; i++) {
        if ((i && parse_expect(c, ',')) || parse_nest(c, x, axis + 1))
            return -1;
    }
    return parse_expect(c, ']');
}

static int parse_elements(struct parse *c, struct mil_const *k)
{
    int64_t n = mil_type_elems(&k->type), bytes = mil_type_bytes(&k->type);
    struct elements x = { .type = &k->type };

    /* Each element takes a character at least. */
    if (n < 0 || bytes < 0 || (uint64_t)n > c->len - c->pos)
        return parse_fail_at(c, c->pos, "fewer elements than the type has");
    if (k->type.dtype == MIL_STRING) {
        x.strings =
            arena_alloc(&c->p->arena, (size_t)n, sizeof *x.strings, c->e);
        k->strings = x.strings;
        if (!x.strings)
            return -1;
    } else {
        x.bytes = arena_alloc(&c->p->arena, (size_t)bytes, 1, c->e);
        k->bytes = x.bytes;
        if (!x.bytes)
            return -1;
    }
    /* Empty tensors of any shape may be written as one pair of brackets: the
     * shape alone could ask for any number of them. */
    if (n == 0) {
        size_t pos = c->pos;

        if (parse_accept(c, '[') && parse_accept(c, ']'))
            return 0;
        c->pos = pos;
    }
    return parse_nest(c, &x, 0);
}

/* ---- values ---- */

/* key = TYPE(uint64) or TYPE(string), in either spelling of scalars. */
static int parse_place_field(struct parse *c, const char *key,
                             enum mil_dtype dtype, uint64_t *u, const char **s)
{
    struct mil_type t;
    size_t pos;

    if (parse_word(c, key) || parse_expect(c, '='))
        return -1;
    parse_peek(c);
    pos = c->pos;
    if (parse_type(c, &t, NULL))
        return -1;
    if (t.dtype != dtype || t.rank != 0)
        return parse_fail_at(c, pos, "'%s' must be of type %s", key,
                             mil_dtype_name(dtype));
    if (parse_expect(c, '(') ||
        (s ? parse_string(c, s) : int_bits(c, MIL_U64, u)))
        return -1;
    return parse_expect(c, ')');
}

static int parse_blob(struct parse *c, struct mil_const *k)
{
    const char *file;
    uint64_t offset;

    if (parse_expect(c, '(') ||
        parse_place_field(c, "path", MIL_STRING, NULL, &file) ||
        parse_expect(c, ',') ||
        parse_place_field(c, "offset", MIL_U64, &offset, NULL) ||
        parse_expect(c, ')'))
        return -1;
    if (c->o && c->o->blob)
        k->data = c->o->blob(c->o->cookie, c->p, file, offset, &k->type, c->e);
    else
        k->data = make_unread(c, file, offset, &k->type);
    return k->data ? 0 : -1;
}

static int parse_sized(struct parse *c, struct mil_const *k)
{
    size_t pos = c->pos;
    uint64_t bytes;

    if (parse_expect(c, '(') ||
        parse_place_field(c, "bytes", MIL_U64, &bytes, NULL) ||
        parse_expect(c, ')'))
        return -1;
    if (bytes != (uint64_t)mil_type_bytes(&k->type))
        return parse_fail_at(c, pos, "%llu bytes, the type has %lld",
                             (unsigned long long)bytes,
                             (long long)mil_type_bytes(&k->type));
    k->data = make_unread(c, NULL, 0, &k->type);
    return k->data ? 0 : -1;
}

static int parse_payload(struct parse *c, struct mil_const *k)
{
    struct slice s;
    size_t pos;
    int ch = parse_peek(c);

    if (ch == 'B' || ch == 'D') {
        pos = c->pos;
        if (parse_ident(c, "a value", &s))
            return -1;
        if (mil_type_bytes(&k->type) < 0 || k->type.dtype == MIL_STRING)
            return parse_fail_at(c, pos, "no such type lies outside");
        if (slice_is(s, "BLOBFILE"))
            return parse_blob(c, k);
        if (slice_is(s, "DATA"))
            return parse_sized(c, k);
        return parse_fail_at(c, pos, "'%.*s' is no value",
                             s.n < 64 ? (int)s.n : 64, s.p);
    }
    return parse_elements(c, k);
}

const struct mil_const *parse_value(struct parse *c)
{
    struct mil_const *k = arena_alloc(&c->p->arena, 1, sizeof *k, c->e);
    size_t pos;

    if (!k)
        return NULL;
    parse_peek(c);
    pos = c->pos;
    if (parse_type(c, &k->type, NULL) || parse_expect(c, '('))
        return NULL;
    if (!mil_type_is_static(&k->type)) {
        parse_fail_at(c, pos, "a value of unknown shape");
        return NULL;
    }
    if (parse_payload(c, k) || parse_expect(c, ')'))
        return NULL;
    return k;
}
