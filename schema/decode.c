/*
 * Model message to IR.
 *
 * The bytes are hostile: wire.c judges them before protobuf-c unpacks them,
 * and everything read here is checked before it is used. Names are resolved
 * in the order of the operations, so nothing can refer forwards. What the
 * format allows and our writer does not use is read: inline values of
 * ordinary operations, parameters of constexpr operations in the attributes
 * or through named constants, unknown attributes of programs, functions and
 * blocks (skipped). Control flow is recognised and refused. Not done here:
 * type inference and the rules of operations (mil_validate).
 */
#include "schema/codec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/num.h"
#include "schema/older_priv.h"
#include "schema/proto_priv.h"
#include "schema/wire_priv.h"

/* Look-ups among them are linear; no real model comes near these. */
#define MAX_FUNCTIONS 256
#define MAX_PORTS 1024 /* inputs, and outputs, of a function */
#define MAX_ARGS 512
#define BUILD_INFO "buildInfo"
#define MAX_DIM ((uint64_t)1 << 48)

struct dec_name {
    const char *name; /* NULL: free slot */
    mil_ref ref;
};

struct dec {
    struct mil_program *p;
    struct mil_function *f;
    const struct codec_weights *weights; /* NULL: none */
    struct arena scratch;
    struct dec_name *names; /* of the function at hand; open addressing */
    size_t n_names, cap_names;
    const char *nothing; /* what an empty list of strings points to */
    struct err *e;
};

/* The arguments of an operation by name, in the scratch arena. */
struct args {
    struct mil_named_arg *list;
    uint32_t n;
};

/* ---- names of one function ---- */

static size_t name_home(const struct dec *c, const char *name)
{
    struct hash128 h = hash_bytes(name, strlen(name));

    return (size_t)h.lo & (c->cap_names - 1);
}

static struct dec_name *name_slot(const struct dec *c, const char *name)
{
    size_t i = name_home(c, name);

    while (c->names[i].name && strcmp(c->names[i].name, name) != 0)
        i = (i + 1) & (c->cap_names - 1);
    return &c->names[i];
}

static int names_reserve(struct dec *c)
{
    struct dec_name *old = c->names;
    size_t cap = c->cap_names, i;

    if (cap && c->n_names * 2 < cap)
        return 0;
    c->names = mem_zalloc(cap ? cap * 2 : 256, sizeof(*c->names), c->e);
    if (!c->names) {
        c->names = old;
        return -1;
    }
    c->cap_names = cap ? cap * 2 : 256;
    for (i = 0; i < cap; i++)
        if (old[i].name)
            *name_slot(c, old[i].name) = old[i];
    mem_free(old);
    return 0;
}

/* Notes a value's name, which must be new in its function. */
static int define(struct dec *c, mil_ref r)
{
    const char *name = mil_value(c->f, r)->name;
    struct dec_name *s;

    if (names_reserve(c))
        return -1;
    s = name_slot(c, name);
    if (s->name)
        return err_set(c->e, ERR_INPUT, "the name '%s' is defined twice", name);
    s->name = name;
    s->ref = r;
    c->n_names++;
    return 0;
}

static mil_ref resolve(struct dec *c, const char *name)
{
    const struct dec_name *s = c->cap_names ? name_slot(c, name) : NULL;

    if (s && s->name)
        return s->ref;
    err_set(c->e, ERR_INPUT, "nothing before it is called '%s'", name);
    return 0;
}

/* ---- types ---- */

static int dimension(struct dec *c, const Pb__Dimension *d, int64_t *out)
{
    switch (d->dimension_case) {
    case PB__DIMENSION__DIMENSION_CONSTANT:
        if (d->constant->size > MAX_DIM)
            return err_set(c->e, ERR_INPUT,
                           "a dimension of %" PRIu64 " elements",
                           d->constant->size);
        *out = (int64_t)d->constant->size;
        return 0;
    case PB__DIMENSION__DIMENSION_UNKNOWN:
        if (d->unknown->variadic)
            return err_set(c->e, ERR_UNSUPPORTED,
                           "a shape of any number of dimensions");
        *out = MIL_DIM_UNKNOWN;
        return 0;
    case PB__DIMENSION__DIMENSION__NOT_SET:
    default: return err_set(c->e, ERR_INPUT, "a dimension without a size");
    }
}

static int tensor_type(struct dec *c, const Pb__TensorType *t,
                       struct mil_type *out)
{
    int64_t dims[MIL_MAX_RANK];
    enum mil_dtype d = proto_to_dtype(t->datatype);
    size_t i;

    if (d == MIL_INVALID)
        return err_set(c->e, ERR_UNSUPPORTED, "data type %d is not supported",
                       (int)t->datatype);
    if (t->rank < 0)
        return err_set(c->e, ERR_UNSUPPORTED, "a tensor of unknown rank");
    if (t->rank > MIL_MAX_RANK)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "a tensor of rank %" PRId64 ", supported is %d", t->rank,
                       MIL_MAX_RANK);
    if ((uint64_t)t->rank != t->n_dimensions)
        return err_set(c->e, ERR_INPUT,
                       "a tensor of rank %" PRId64 " with %zu dimensions",
                       t->rank, t->n_dimensions);
    for (i = 0; i < t->n_dimensions; i++)
        if (dimension(c, t->dimensions[i], &dims[i]))
            return -1;
    *out = mil_type_make(d, (int)t->rank, dims);
    return 0;
}

static int value_type(struct dec *c, const Pb__ValueType *t,
                      struct mil_type *out)
{
    const char *what = "no type";

    if (t) {
        switch (t->type_case) {
        case PB__VALUE_TYPE__TYPE_TENSOR_TYPE:
            return tensor_type(c, t->tensortype, out);
        case PB__VALUE_TYPE__TYPE_LIST_TYPE: what = "a list type"; break;
        case PB__VALUE_TYPE__TYPE_TUPLE_TYPE: what = "a tuple type"; break;
        case PB__VALUE_TYPE__TYPE_DICTIONARY_TYPE:
            what = "a dictionary type";
            break;
        case PB__VALUE_TYPE__TYPE_STATE_TYPE: what = "a state type"; break;
        case PB__VALUE_TYPE__TYPE__NOT_SET:
        default: break;
        }
    }
    return err_set(c->e, ERR_UNSUPPORTED, "%s where a tensor is expected",
                   what);
}

/* ---- constants ---- */

static int wrong_field(struct dec *c, const struct mil_type *t)
{
    return err_set(c->e, ERR_INPUT,
                   "the elements of a %s constant stand in the wrong field",
                   mil_dtype_name(t->dtype));
}

static int check_count(struct dec *c, size_t got, int64_t want,
                       const char *unit)
{
    if (want >= 0 && got == (uint64_t)want)
        return 0;
    return err_set(c->e, ERR_INPUT,
                   "a constant has %zu %s, its type asks for %" PRId64, got,
                   unit, want);
}

static void store(uint8_t *p, unsigned bytes, uint64_t v)
{
    unsigned i;

    for (i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

/* Integers of any width that stand in `ints`. */
static int from_ints(struct dec *c, const Pb__TensorValue__RepeatedInts *r,
                     const struct mil_type *t, uint8_t *out)
{
    unsigned bytes = mil_dtype_bits(t->dtype) / 8;
    int32_t lo = t->dtype == MIL_I16   ? INT16_MIN
                 : t->dtype == MIL_U16 ? 0
                                       : INT32_MIN;
    int32_t hi = t->dtype == MIL_I16   ? INT16_MAX
                 : t->dtype == MIL_U16 ? UINT16_MAX
                                       : INT32_MAX;
    size_t i;

    if (check_count(c, r->n_values, mil_type_elems(t), "elements"))
        return -1;
    for (i = 0; i < r->n_values; i++) {
        if (r->values[i] < lo || r->values[i] > hi)
            return err_set(c->e, ERR_INPUT, "%" PRId32 " is no %s value",
                           r->values[i], mil_dtype_name(t->dtype));
        store(out + i * bytes, bytes, (uint64_t)(int64_t)r->values[i]);
    }
    return 0;
}

static int from_tensor(struct dec *c, const Pb__TensorValue *v,
                       const struct mil_type *t, uint8_t *out)
{
    int64_t n = mil_type_elems(t);
    size_t i;

    switch (t->dtype) {
    case MIL_BOOL:
        if (v->value_case != PB__TENSOR_VALUE__VALUE_BOOLS)
            return wrong_field(c, t);
        if (check_count(c, v->bools->n_values, n, "elements"))
            return -1;
        for (i = 0; i < v->bools->n_values; i++)
            out[i] = v->bools->values[i] != 0;
        return 0;
    case MIL_F32:
        if (v->value_case != PB__TENSOR_VALUE__VALUE_FLOATS)
            return wrong_field(c, t);
        if (check_count(c, v->floats->n_values, n, "elements"))
            return -1;
        for (i = 0; i < v->floats->n_values; i++) {
            uint32_t bits;

            memcpy(&bits, &v->floats->values[i], 4);
            store_le32(out + 4 * i, bits);
        }
        return 0;
    case MIL_F64:
        if (v->value_case != PB__TENSOR_VALUE__VALUE_DOUBLES)
            return wrong_field(c, t);
        if (check_count(c, v->doubles->n_values, n, "elements"))
            return -1;
        for (i = 0; i < v->doubles->n_values; i++) {
            uint64_t bits;

            memcpy(&bits, &v->doubles->values[i], 8);
            store_le64(out + 8 * i, bits);
        }
        return 0;
    case MIL_I16:
    case MIL_U16:
    case MIL_I32:
        if (v->value_case != PB__TENSOR_VALUE__VALUE_INTS)
            return wrong_field(c, t);
        return from_ints(c, v->ints, t, out);
    case MIL_I64:
    case MIL_U64:
        if (v->value_case != PB__TENSOR_VALUE__VALUE_LONG_INTS)
            return wrong_field(c, t);
        if (check_count(c, v->longints->n_values, n, "elements"))
            return -1;
        for (i = 0; i < v->longints->n_values; i++)
            store_le64(out + 8 * i, (uint64_t)v->longints->values[i]);
        return 0;
    case MIL_F16:
    case MIL_BF16:
    case MIL_I8:
    case MIL_U8:
    case MIL_U32:
    case MIL_I4:
    case MIL_U1:
    case MIL_U2:
    case MIL_U3:
    case MIL_U4:
    case MIL_U6:
        if (v->value_case != PB__TENSOR_VALUE__VALUE_BYTES)
            return wrong_field(c, t);
        if (check_count(c, v->bytes->values.len, mil_type_bytes(t), "bytes"))
            return -1;
        if (v->bytes->values.len)
            memcpy(out, v->bytes->values.data, v->bytes->values.len);
        return 0;
    case MIL_INVALID:
    case MIL_STRING:
    case MIL_DTYPE_COUNT:
    default: return wrong_field(c, t);
    }
}

/* Bytes in memory that the fields of the value can at most fill: a claim in
 * the type alone must not allocate. */
static uint64_t value_bytes(const Pb__TensorValue *v)
{
    switch (v->value_case) {
    case PB__TENSOR_VALUE__VALUE_FLOATS: return 4 * v->floats->n_values;
    case PB__TENSOR_VALUE__VALUE_INTS: return 4 * v->ints->n_values;
    case PB__TENSOR_VALUE__VALUE_BOOLS: return v->bools->n_values;
    case PB__TENSOR_VALUE__VALUE_LONG_INTS: return 8 * v->longints->n_values;
    case PB__TENSOR_VALUE__VALUE_DOUBLES: return 8 * v->doubles->n_values;
    case PB__TENSOR_VALUE__VALUE_BYTES: return v->bytes->values.len;
    case PB__TENSOR_VALUE__VALUE_STRINGS:
    case PB__TENSOR_VALUE__VALUE__NOT_SET:
    default: return 0;
    }
}

static int immediate(struct dec *c, const Pb__Value__ImmediateValue *im,
                     struct mil_const *k)
{
    const Pb__TensorValue *v = im->tensor;
    int64_t bytes = mil_type_bytes(&k->type);
    uint8_t *room;

    if (im->value_case != PB__VALUE__IMMEDIATE_VALUE__VALUE_TENSOR)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "a constant that is no tensor is not supported");
    if (k->type.dtype == MIL_STRING) {
        if (v->value_case != PB__TENSOR_VALUE__VALUE_STRINGS)
            return wrong_field(c, &k->type);
        k->strings = (const char *const *)v->strings->values;
        if (check_count(c, v->strings->n_values, mil_type_elems(&k->type),
                        "elements"))
            return -1;
        if (!k->strings)
            k->strings = (const char *const *)&c->nothing;
        return 0;
    }
    if (bytes < 0 || (uint64_t)bytes > value_bytes(v))
        return err_set(c->e, ERR_INPUT,
                       "a constant has %" PRIu64
                       " bytes, its type asks for %" PRId64,
                       value_bytes(v), bytes);
    room = arena_alloc(&c->scratch, (size_t)bytes, 1, c->e);
    if (!room || from_tensor(c, v, &k->type, room))
        return -1;
    k->bytes = room;
    return 0;
}

static int blob(struct dec *c, const Pb__Value__BlobFileValue *b,
                struct mil_const *k)
{
    if (!c->weights)
        return err_set(c->e, ERR_INPUT,
                       "a constant lies in '%s', but there are no weights",
                       b->filename);
    k->data = c->weights->get(c->weights->cookie, c->p, b->filename, b->offset,
                              &k->type, c->e);
    return k->data ? 0 : -1;
}

/* The constant in a message. */
static const struct mil_const *value(struct dec *c, const Pb__Value *v)
{
    struct mil_const k;
    int rc;

    memset(&k, 0, sizeof(k));
    if (!v) {
        err_set(c->e, ERR_INPUT, "a constant without a value");
        return NULL;
    }
    if (value_type(c, v->type, &k.type))
        return NULL;
    if (!mil_type_is_static(&k.type) || mil_type_bytes(&k.type) < 0) {
        err_set(c->e, ERR_INPUT, "a constant without a fixed size");
        return NULL;
    }
    switch (v->value_case) {
    case PB__VALUE__VALUE_IMMEDIATE_VALUE:
        rc = immediate(c, v->immediatevalue, &k);
        break;
    case PB__VALUE__VALUE_BLOB_FILE_VALUE:
        rc = blob(c, v->blobfilevalue, &k);
        break;
    case PB__VALUE__VALUE__NOT_SET:
    default: rc = err_set(c->e, ERR_INPUT, "a constant without a value"); break;
    }
    return rc ? NULL : mil_copy_const(c->p, &k, c->e);
}

/* A literal value that holds it; 0 on error. */
static mil_ref literal(struct dec *c, const Pb__Value *v)
{
    const struct mil_const *k = value(c, v);
    mil_ref r;

    if (!k)
        return 0;
    r = mil_add_value(c->f, MIL_V_LITERAL, NULL, &k->type, c->e);
    if (r)
        mil_value(c->f, r)->konst = k;
    return r;
}

/* ---- operations ---- */

/* The values bound to one parameter, in the scratch arena. */
static int bindings(struct dec *c, const Pb__Argument *a, struct mil_arg *out)
{
    mil_ref *refs;
    size_t i;

    if (!a || a->n_arguments == 0)
        return err_set(c->e, ERR_INPUT, "nothing is bound to it");
    if (a->n_arguments > UINT32_MAX)
        return err_set(c->e, ERR_INPUT, "%zu values", a->n_arguments);
    refs = arena_alloc(&c->scratch, a->n_arguments, sizeof(*refs), c->e);
    if (!refs)
        return -1;
    for (i = 0; i < a->n_arguments; i++) {
        const Pb__Argument__Binding *b = a->arguments[i];

        if (b->binding_case == PB__ARGUMENT__BINDING__BINDING_NAME)
            refs[i] = resolve(c, b->name);
        else if (b->binding_case == PB__ARGUMENT__BINDING__BINDING_VALUE)
            refs[i] = literal(c, b->value);
        else
            return err_set(c->e, ERR_INPUT, "an empty binding");
        if (!refs[i])
            return -1;
    }
    out->refs = refs;
    out->n = (uint32_t)a->n_arguments;
    return 0;
}

static int new_arg(struct dec *c, struct args *a, const char *name,
                   bool attribute)
{
    uint32_t i;

    if (a->n == MAX_ARGS)
        return err_set(c->e, ERR_UNSUPPORTED, "more than %d parameters",
                       MAX_ARGS);
    for (i = 0; i < a->n; i++)
        if (strcmp(a->list[i].name, name) == 0)
            return err_set(c->e, ERR_INPUT, "parameter '%s' is given twice",
                           name);
    a->list[a->n].name = name;
    a->list[a->n].attribute = attribute;
    return 0;
}

/* Inputs, then attributes. */
static int read_args(struct dec *c, const Pb__Operation *o, struct args *a)
{
    size_t i, n = o->n_inputs + o->n_attributes;

    a->n = 0;
    a->list = arena_alloc(&c->scratch, n, sizeof(*a->list), c->e);
    if (!a->list)
        return -1;
    for (i = 0; i < o->n_inputs; i++) {
        if (new_arg(c, a, o->inputs[i]->key, false))
            return -1;
        if (bindings(c, o->inputs[i]->value, &a->list[a->n].arg))
            return err_in(c->e, "parameter '%s'", o->inputs[i]->key);
        a->n++;
    }
    for (i = 0; i < o->n_attributes; i++) {
        const char *key = o->attributes[i]->key;
        mil_ref *ref;

        if (strcmp(key, "name") == 0)
            continue;
        ref = arena_alloc(&c->scratch, 1, sizeof(*ref), c->e);
        if (!ref || new_arg(c, a, key, true))
            return -1;
        *ref = literal(c, o->attributes[i]->value);
        if (!*ref)
            return err_in(c->e, "attribute '%s'", key);
        a->list[a->n].arg.refs = ref;
        a->list[a->n++].arg.n = 1;
    }
    return 0;
}

static Pb__Value *attribute(const Pb__Operation *o, const char *key)
{
    size_t i;

    for (i = 0; i < o->n_attributes; i++)
        if (strcmp(o->attributes[i]->key, key) == 0)
            return o->attributes[i]->value;
    return NULL;
}

/* The one string in a value; NULL if it holds anything else. */
static const char *plain_string(const Pb__Value *v)
{
    const Pb__TensorValue *t;

    if (!v || v->value_case != PB__VALUE__VALUE_IMMEDIATE_VALUE ||
        v->immediatevalue->value_case !=
            PB__VALUE__IMMEDIATE_VALUE__VALUE_TENSOR)
        return NULL;
    t = v->immediatevalue->tensor;
    if (t->value_case != PB__TENSOR_VALUE__VALUE_STRINGS ||
        t->strings->n_values != 1)
        return NULL;
    return t->strings->values[0];
}

/* The label of an operation; "" if it has none that is a string. */
static const char *label(const Pb__Operation *o)
{
    const char *s = plain_string(attribute(o, "name"));

    return s ? s : "";
}

static int add_outputs(struct dec *c, const Pb__Operation *o, struct mil_op *op)
{
    size_t i;

    for (i = 0; i < o->n_outputs; i++) {
        struct mil_type t;
        mil_ref r;

        if (value_type(c, o->outputs[i]->type, &t))
            return err_in(c->e, "output '%s'", o->outputs[i]->name);
        r = mil_add_output(c->f, op, o->outputs[i]->name, &t, c->e);
        if (!r || define(c, r))
            return -1;
    }
    return 0;
}

static int constant(struct dec *c, const Pb__Operation *o, struct mil_op *op)
{
    const struct mil_const *k;
    size_t i;

    if (o->n_inputs || o->n_outputs != 1)
        return err_set(c->e, ERR_INPUT,
                       "a const has %zu inputs and %zu outputs, not 0 and 1",
                       o->n_inputs, o->n_outputs);
    for (i = 0; i < o->n_attributes; i++)
        if (strcmp(o->attributes[i]->key, "name") != 0 &&
            strcmp(o->attributes[i]->key, "val") != 0)
            return err_set(c->e, ERR_UNSUPPORTED,
                           "a const has an attribute '%s'",
                           o->attributes[i]->key);
    k = value(c, attribute(o, "val"));
    if (!k || add_outputs(c, o, op))
        return -1;
    mil_value(c->f, op->outs[0])->konst = k;
    return 0;
}

/* Does the table describe this operation with these arguments? Older opsets
 * have operations of the same name with other parameters. */
static bool known(const struct mil_op_info *info, const struct args *a)
{
    uint32_t i;

    for (i = 0; info && i < a->n; i++) {
        int p = mil_param_index(info, a->list[i].name);

        if (p < 0 || a->list[i].attribute ||
            (a->list[i].arg.n != 1 && !(info->params[p].flags & MIL_P_LIST)))
            return false;
    }
    return info != NULL;
}

static int blocks_refused(struct dec *c, const Pb__Operation *o)
{
    const struct mil_op_info *info = mil_op_by_name(o->type);

    if (o->n_blocks || (info && (info->flags & MIL_O_BLOCKS)))
        return err_set(c->e, ERR_UNSUPPORTED,
                       "control flow ('%s') is not supported", o->type);
    return 0;
}

static int other_op(struct dec *c, const Pb__Operation *o)
{
    const struct mil_op_info *info = mil_op_by_name(o->type);
    struct mil_foreign f = { .type = o->type };
    struct mil_op *op;
    struct args a;
    uint32_t i;

    if (read_args(c, o, &a))
        return -1;
    if (!known(info, &a))
        info = NULL;
    op = mil_add_op(c->f, info ? info->code : MIL_OP_INVALID, label(o), c->e);
    if (!op)
        return -1;
    f.args = a.list;
    f.n_args = a.n;
    if (!info && mil_set_foreign(c->f, op, &f, c->e))
        return -1;
    for (i = 0; info && i < a.n; i++)
        if (mil_set_arg(c->f, op, mil_param_index(info, a.list[i].name),
                        a.list[i].arg.refs, a.list[i].arg.n, c->e))
            return -1;
    return add_outputs(c, o, op);
}

static int operation(struct dec *c, const Pb__Operation *o)
{
    const char *name = label(o);
    struct mil_op *op;
    int rc = -1;

    if (!*name && o->n_outputs)
        name = o->outputs[0]->name;
    if (blocks_refused(c, o))
        rc = -1;
    else if (strcmp(o->type, "const") != 0)
        rc = other_op(c, o);
    else if ((op = mil_add_op(c->f, MIL_OP_const, label(o), c->e)) != NULL)
        rc = constant(c, o, op);
    if (rc)
        return err_in(c->e, "op '%s' (%s)", name, o->type);
    return 0;
}

/* ---- functions ---- */

static int add_input(struct dec *c, const Pb__NamedValueType *in)
{
    const Pb__ValueType *t = in->type;
    enum mil_value_kind kind = MIL_V_INPUT;
    struct mil_type type;
    mil_ref r;

    if (t && t->type_case == PB__VALUE_TYPE__TYPE_STATE_TYPE) {
        kind = MIL_V_STATE;
        t = t->statetype->wrappedtype;
    }
    if (value_type(c, t, &type))
        return err_in(c->e, "input '%s'", in->name);
    r = mil_add_value(c->f, kind, in->name, &type, c->e);
    return r ? define(c, r) : -1;
}

static const Pb__Block *body_of(struct dec *c, const Pb__Function *f)
{
    size_t i;

    for (i = 0; i < f->n_block_specializations; i++)
        if (strcmp(f->block_specializations[i]->key, f->opset) == 0 &&
            f->block_specializations[i]->value)
            return f->block_specializations[i]->value;
    err_set(c->e, ERR_INPUT, "it has no block for its opset '%s'", f->opset);
    return NULL;
}

static int fill_function(struct dec *c, const Pb__Function *f)
{
    const Pb__Block *b = body_of(c, f);
    size_t i;

    if (!b)
        return -1;
    if (f->n_inputs > MAX_PORTS || b->n_outputs > MAX_PORTS)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "%zu inputs and %zu outputs, at most %d are read",
                       f->n_inputs, b->n_outputs, MAX_PORTS);
    if (b->n_inputs)
        return err_set(c->e, ERR_INPUT, "its block has inputs of its own");
    for (i = 0; i < f->n_inputs; i++)
        if (add_input(c, f->inputs[i]))
            return -1;
    for (i = 0; i < b->n_operations; i++)
        if (operation(c, b->operations[i]))
            return -1;
    for (i = 0; i < b->n_outputs; i++) {
        mil_ref r = resolve(c, b->outputs[i]);

        if (!r)
            return err_in(c->e, "output '%s'", b->outputs[i]);
        if (mil_add_function_output(c->f, r, c->e))
            return -1;
    }
    return 0;
}

static int add_function(struct dec *c, const Pb__Program__FunctionsEntry *fe)
{
    int rc;

    if (!fe->value)
        return err_set(c->e, ERR_INPUT, "function '%s' is empty", fe->key);
    c->f = mil_program_add(c->p, fe->key, c->e);
    if (!c->f)
        return -1;
    c->f->opset = arena_strdup(&c->p->arena, fe->value->opset, c->e);
    if (!c->f->opset)
        return -1;
    c->n_names = 0;
    if (c->cap_names)
        memset(c->names, 0, c->cap_names * sizeof(*c->names));
    rc = fill_function(c, fe->value);
    return rc ? err_in(c->e, "function '%s'", fe->key) : 0;
}

/* Place of a function: the default first, then as described, then others. */
struct place {
    size_t rank;
    const Pb__Program__FunctionsEntry *entry;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return strcmp(x->entry->key, y->entry->key);
}

static size_t rank_of(const Pb__ModelDescription *d, const char *name)
{
    size_t i;

    if (d && strcmp(d->defaultfunctionname, name) == 0)
        return 0;
    for (i = 0; d && i < d->n_functions && i < MAX_FUNCTIONS; i++)
        if (strcmp(d->functions[i]->name, name) == 0)
            return i + 1;
    return SIZE_MAX;
}

static int add_functions(struct dec *c, const Pb__Model *m)
{
    const Pb__Program *p = m->mlprogram;
    struct place *order;
    size_t i;

    if (p->version != 1)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "program version %" PRId64 ", supported is 1",
                       p->version);
    if (p->n_functions == 0 || p->n_functions > MAX_FUNCTIONS)
        return err_set(c->e, p->n_functions ? ERR_UNSUPPORTED : ERR_INPUT,
                       "a program of %zu functions, 1 to %d are read",
                       p->n_functions, MAX_FUNCTIONS);
    order = arena_alloc(&c->scratch, p->n_functions, sizeof(*order), c->e);
    if (!order)
        return -1;
    for (i = 0; i < p->n_functions; i++) {
        order[i].entry = p->functions[i];
        order[i].rank = rank_of(m->description, p->functions[i]->key);
    }
    qsort(order, p->n_functions, sizeof(*order), by_place);
    for (i = 0; i < p->n_functions; i++)
        if (add_function(c, order[i].entry))
            return -1;
    return 0;
}

/* ---- the program attribute buildInfo: a dictionary of strings ---- */

static int build_info(struct dec *c, const Pb__Program *p)
{
    const Pb__DictionaryValue *d = NULL;
    size_t i;

    for (i = 0; i < p->n_attributes; i++) {
        const Pb__Value *v = p->attributes[i]->value;

        if (strcmp(p->attributes[i]->key, BUILD_INFO) == 0 && v &&
            v->value_case == PB__VALUE__VALUE_IMMEDIATE_VALUE &&
            v->immediatevalue->value_case ==
                PB__VALUE__IMMEDIATE_VALUE__VALUE_DICTIONARY)
            d = v->immediatevalue->dictionary;
    }
    for (i = 0; d && i < d->n_values && i < MAX_PORTS; i++) {
        const char *key = plain_string(d->values[i]->key);
        const char *value = plain_string(d->values[i]->value);

        if (key && value && mil_program_set_build_info(c->p, key, value, c->e))
            return -1;
    }
    return 0;
}

/* ---- what the program does not keep ---- */

/* Coremltools writes none of these. */
static void note_lost(const Pb__Program *p, struct err *lost)
{
    size_t i, k;

    for (i = 0; i < p->n_attributes; i++)
        if (strcmp(p->attributes[i]->key, BUILD_INFO) != 0)
            err_set(lost, ERR_UNSUPPORTED,
                    "the program has an attribute '%s', which is not supported",
                    p->attributes[i]->key);
    for (i = 0; i < p->n_functions; i++) {
        const Pb__Function *f = p->functions[i]->value;
        size_t n = f ? f->n_attributes : 0;

        for (k = 0; f && k < f->n_block_specializations; k++)
            if (f->block_specializations[k]->value)
                n += f->block_specializations[k]->value->n_attributes;
        if (n)
            err_set(lost, ERR_UNSUPPORTED,
                    "function '%s' has attributes, which are not supported",
                    p->functions[i]->key);
    }
}

/* ---- the model ---- */

static int check_kind(const Pb__Model *m, struct err *e)
{
    const char *kind;

    switch (m->type_case) {
    case PB__MODEL__TYPE_ML_PROGRAM: return 0;
    case PB__MODEL__TYPE_PIPELINE:
    case PB__MODEL__TYPE_PIPELINE_CLASSIFIER:
    case PB__MODEL__TYPE_PIPELINE_REGRESSOR: kind = "a pipeline"; break;
    case PB__MODEL__TYPE_NEURAL_NETWORK:
    case PB__MODEL__TYPE_NEURAL_NETWORK_CLASSIFIER:
    case PB__MODEL__TYPE_NEURAL_NETWORK_REGRESSOR:
        kind = "a neural network of the older kind";
        break;
    case PB__MODEL__TYPE__NOT_SET:
    default: kind = "no ML Program"; break;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "the model is %s; only ML Programs are "
                   "supported",
                   kind);
}

/* The description as it is written elsewhere, and how it fits. */
static int describe(struct mil_program *p, Pb__ModelDescription *d,
                    struct codec_described *out, struct err *e)
{
    Pb__Metadata none = PB__METADATA__INIT;
    size_t n;
    void *room;

    if (d && describe_read(p, d, e))
        return -1;
    if (!out)
        return 0;
    if (describe_check(p, d, &out->difference) &&
        out->difference.code == ERR_OK)
        BUG("a difference without a text");
    if (!d)
        return 0;
    if (!d->metadata)
        d->metadata = &none;
    n = pb__model_description__get_packed_size(d);
    room = buf_extend(&out->message, n);
    if (room && pb__model_description__pack(d, room) != n)
        BUG("packed size differs from the computed one");
    return buf_ok(&out->message, e);
}

static int decode(struct dec *c, const Pb__Model *m, bool raw,
                  struct codec_described *out)
{
    if (check_kind(m, c->e))
        return -1;
    c->p = mil_program_new(c->e);
    if (!c->p)
        return -1;
    c->p->spec_version = m->specificationversion;
    if (add_functions(c, m) || build_info(c, m->mlprogram))
        return -1;
    if (!raw && older_raise(c->p, c->e))
        return -1;
    if (out)
        note_lost(m->mlprogram, &out->lost);
    return describe(c->p, m->description, out, c->e);
}

struct mil_program *codec_decode(const void *bytes, size_t n,
                                 const struct codec_options *o,
                                 struct codec_described *described,
                                 struct err *e)
{
    struct dec c;
    struct arena unpacked = ARENA_INIT;
    struct wire_memory mem = { &unpacked, e };
    ProtobufCAllocator alloc = wire_allocator(&mem);
    const Pb__Model *m;
    int rc = -1;

    memset(&c, 0, sizeof(c));
    c.e = e;
    c.weights = o && o->weights.get ? &o->weights : NULL;
    if (wire_scan(&pb__model__descriptor, bytes, n, e))
        goto out;
    m = pb__model__unpack(&alloc, n, bytes);
    if (m)
        rc = decode(&c, m, o && o->raw, described);
    else
        err_set(e, ERR_INPUT, "these bytes are no protobuf message");
out:
    if (rc) {
        mil_program_free(c.p);
        c.p = NULL;
    }
    mem_free(c.names);
    arena_release(&c.scratch);
    arena_release(&unpacked);
    return c.p;
}

/* ---- programs from elsewhere ---- */

/* Place of a function in the program. */
struct seat {
    size_t rank;
    struct mil_function *f;
};

static int by_seat(const void *a, const void *b)
{
    const struct seat *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return strcmp(x->f->name, y->f->name);
}

static int order_functions(struct mil_program *p, const Pb__ModelDescription *d,
                           struct err *e)
{
    struct seat *seats = mem_alloc(p->n_functions, sizeof(*seats), e);
    size_t i;

    if (!seats)
        return -1;
    for (i = 0; i < p->n_functions; i++) {
        seats[i].f = p->functions[i];
        seats[i].rank = rank_of(d, p->functions[i]->name);
    }
    if (p->n_functions)
        qsort(seats, p->n_functions, sizeof(*seats), by_seat);
    for (i = 0; i < p->n_functions; i++)
        p->functions[i] = seats[i].f;
    mem_free(seats);
    return 0;
}

int codec_describe(struct mil_program *p, const void *message, size_t n,
                   struct codec_described *described, struct err *e)
{
    struct arena unpacked = ARENA_INIT;
    struct wire_memory mem = { &unpacked, e };
    ProtobufCAllocator alloc = wire_allocator(&mem);
    Pb__ModelDescription *d = NULL;
    int rc = -1;

    if (wire_scan(&pb__model_description__descriptor, message, n, e) == 0) {
        d = pb__model_description__unpack(&alloc, n, message);
        if (!d)
            err_set(e, ERR_INPUT, "these bytes are no protobuf message");
    }
    if (d && !order_functions(p, d, e)) {
        describe_order(p, d);
        rc = describe(p, d, described, e);
    }
    arena_release(&unpacked);
    return rc ? err_in(e, "the model's description") : 0;
}
