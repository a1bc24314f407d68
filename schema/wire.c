/*
 * The pre-scan of protobuf bytes (wire_priv.h). It follows the descriptors
 * that protobuf-c generates, so it knows each field that the schema knows and
 * skips the others, as any protobuf reader does. It is stricter than the
 * format in one point: a singular field that occurs twice, which the format
 * would merge and no writer produces, is refused, since merging can be made
 * quadratic.
 */
#include "schema/wire_priv.h"

#include <inttypes.h>
#include <string.h>

enum wire_type {
    WIRE_VARINT,
    WIRE_64 = 1,
    WIRE_BYTES = 2,
    WIRE_GROUP = 3,
    WIRE_END_GROUP = 4,
    WIRE_32 = 5,
};

struct scan {
    const uint8_t *base;
    uint64_t fields, memory;
    struct err *e;
};

/* A field as it stands on the wire. */
struct item {
    const uint8_t *at; /* its tag */
    uint32_t number;
    enum wire_type type;
    const uint8_t *body; /* payload of WIRE_BYTES, else the value */
    size_t n;
};

static int bad(struct scan *s, const uint8_t *at, const char *what)
{
    err_set(s->e, ERR_INPUT, "byte %zu: %s", (size_t)(at - s->base), what);
    return -1;
}

/* Length of the varint at p (at most `max` bytes long) or 0. */
static size_t varint(const uint8_t *p, const uint8_t *end, size_t max,
                     uint64_t *out)
{
    uint64_t v = 0;
    size_t i;

    for (i = 0; i < max && p + i < end; i++) {
        v |= (uint64_t)(p[i] & 0x7f) << (7 * i);
        if (!(p[i] & 0x80)) {
            *out = v;
            return i + 1;
        }
    }
    return 0;
}

/* Reads one field and steps over it. */
static int next_item(struct scan *s, const uint8_t **pp, const uint8_t *end,
                     struct item *it)
{
    const uint8_t *p = *pp;
    uint64_t v;
    size_t k = varint(p, end, 5, &v);

    it->at = p;
    if (!k || v > UINT32_MAX || v >> 3 == 0)
        return bad(s, p, "no field starts here");
    p += k;
    it->number = (uint32_t)(v >> 3);
    it->type = (enum wire_type)(v & 7);
    it->body = p;
    switch (it->type) {
    case WIRE_VARINT:
        it->n = varint(p, end, 10, &v);
        if (!it->n)
            return bad(s, p, "a number is cut off or longer than 10 bytes");
        break;
    case WIRE_64: it->n = 8; break;
    case WIRE_32: it->n = 4; break;
    case WIRE_BYTES:
        k = varint(p, end, 5, &v);
        if (!k || v > (uint64_t)(end - p - (ptrdiff_t)k))
            return bad(s, it->at, "a length reaches beyond its parent");
        it->body = p + k;
        it->n = (size_t)v;
        break;
    case WIRE_GROUP:
    case WIRE_END_GROUP:
    default: return bad(s, it->at, "a field has an unsupported wire type");
    }
    if (it->n > (size_t)(end - it->body))
        return bad(s, it->at, "a number is cut off");
    *pp = it->body + it->n;
    return 0;
}

static bool is_utf8(const uint8_t *p, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint32_t c = p[i], min;
        unsigned more, k;

        i++;
        if (c == 0)
            return false;
        if (c < 0x80)
            continue;
        if (c >= 0xc2 && c <= 0xdf)
            more = 1, min = 0x80, c &= 0x1f;
        else if (c >= 0xe0 && c <= 0xef)
            more = 2, min = 0x800, c &= 0x0f;
        else if (c >= 0xf0 && c <= 0xf4)
            more = 3, min = 0x10000, c &= 0x07;
        else
            return false;
        for (k = 0; k < more; k++, i++) {
            if (i >= n || (p[i] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (p[i] & 0x3fu);
        }
        if (c < min || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
            return false;
    }
    return true;
}

/* Wire type of one element of a field, and its size in memory. */
static enum wire_type element(const ProtobufCFieldDescriptor *f, size_t *size)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT: *size = 4; return WIRE_32;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: *size = 8; return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: *size = sizeof(void *); return WIRE_BYTES;
    case PROTOBUF_C_TYPE_BYTES:
        *size = sizeof(ProtobufCBinaryData);
        return WIRE_BYTES;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_UINT64: *size = 8; return WIRE_VARINT;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_BOOL:
    default: *size = 4; return WIRE_VARINT;
    }
}

/* Elements of a packed field. */
static int packed(struct scan *s, const struct item *it, enum wire_type type,
                  size_t size)
{
    const uint8_t *p = it->body, *end = p + it->n;
    uint64_t v, count = 0;
    size_t k;

    if (type != WIRE_VARINT) {
        if (it->n % size)
            return bad(s, it->at, "a packed list has a broken last element");
        count = it->n / size;
    } else {
        for (; p < end; p += k, count++) {
            k = varint(p, end, 10, &v);
            if (!k)
                return bad(s, it->at,
                           "a packed list has a broken last element");
        }
    }
    s->memory += count * size + 16;
    return 0;
}

static int scan_message(struct scan *s, const ProtobufCMessageDescriptor *d,
                        const uint8_t *p, size_t n, int depth);

static int scan_known(struct scan *s, const ProtobufCFieldDescriptor *f,
                      const struct item *it, int depth)
{
    size_t size;
    enum wire_type want = element(f, &size);

    if (it->type != want) {
        if (f->label == PROTOBUF_C_LABEL_REPEATED && it->type == WIRE_BYTES)
            return packed(s, it, want, size);
        return err_set(s->e, ERR_INPUT,
                       "byte %zu: field '%s' has wire type %d, not %d",
                       (size_t)(it->at - s->base), f->name, (int)it->type,
                       (int)want);
    }
    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        s->memory += size;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        return scan_message(s, f->descriptor, it->body, it->n, depth + 1);
    if (f->type == PROTOBUF_C_TYPE_STRING && !is_utf8(it->body, it->n))
        return err_set(s->e, ERR_INPUT,
                       "byte %zu: field '%s' is not UTF-8 text",
                       (size_t)(it->at - s->base), f->name);
    if (want == WIRE_BYTES)
        s->memory += it->n + 32;
    return 0;
}

/* Two members of a oneof are one field set twice. */
static bool same_place(const ProtobufCFieldDescriptor *a,
                       const ProtobufCFieldDescriptor *b)
{
    return a == b || ((a->flags & b->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
                      a->quantifier_offset == b->quantifier_offset);
}

static int once(struct scan *s, const ProtobufCMessageDescriptor *d,
                const ProtobufCFieldDescriptor *f, const struct item *it,
                uint64_t *seen)
{
    unsigned i, self = (unsigned)(f - d->fields);

    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        return 0;
    BUG_UNLESS(d->n_fields <= 64);
    for (i = 0; i < d->n_fields; i++)
        if ((*seen >> i & 1) && same_place(f, &d->fields[i]))
            return err_set(s->e, ERR_INPUT,
                           "byte %zu: field '%s' is set a second time",
                           (size_t)(it->at - s->base), f->name);
    *seen |= (uint64_t)1 << self;
    return 0;
}

static int scan_message(struct scan *s, const ProtobufCMessageDescriptor *d,
                        const uint8_t *p, size_t n, int depth)
{
    const uint8_t *end = p + n;
    uint64_t seen = 0;

    if (depth > WIRE_MAX_DEPTH)
        return err_set(s->e, ERR_INPUT,
                       "byte %zu: messages are nested deeper than %d levels",
                       (size_t)(p - s->base), WIRE_MAX_DEPTH);
    s->memory += d->sizeof_message + 32;
    while (p < end) {
        const ProtobufCFieldDescriptor *f;
        struct item it;

        if (next_item(s, &p, end, &it))
            return -1;
        /* The parser's own note of each field, doubled as it grows. */
        s->memory += 96;
        if (++s->fields > WIRE_MAX_FIELDS)
            return err_set(s->e, ERR_INPUT, "more than %" PRIu64 " fields",
                           WIRE_MAX_FIELDS);
        f = protobuf_c_message_descriptor_get_field(d, it.number);
        if (!f) /* kept as an unknown field */
            s->memory += it.n + 32;
        else if (once(s, d, f, &it, &seen) || scan_known(s, f, &it, depth))
            return -1;
        if (s->memory > WIRE_MAX_MEMORY)
            return err_set(s->e, ERR_INPUT,
                           "would take more than %" PRIu64
                           " bytes of memory when unpacked",
                           WIRE_MAX_MEMORY);
    }
    return 0;
}

int wire_scan(const ProtobufCMessageDescriptor *d, const void *p, size_t n,
              struct err *e)
{
    struct scan s = { p, 0, 0, e };

    if (n > WIRE_MAX_BYTES)
        return err_set(e, ERR_INPUT, "%zu bytes, at most %" PRIu64 " are read",
                       n, WIRE_MAX_BYTES);
    return n ? scan_message(&s, d, p, n, 1) : 0;
}

static void *take(void *cookie, size_t n)
{
    struct wire_memory *m = cookie;

    return arena_alloc(m->arena, n, 1, m->e);
}

static void leave(void *cookie, void *p)
{
    (void)cookie; /* goes with the arena */
    (void)p;
}

ProtobufCAllocator wire_allocator(struct wire_memory *m)
{
    ProtobufCAllocator a = { take, leave, m };

    return a;
}
