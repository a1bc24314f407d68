/*
 * IR to Model message.
 *
 * The message tree lives in an arena and holds only small things: constants
 * of at least ten elements whose type the weight file knows go there while
 * the tree is built, in the order of their first use. Entries of every map
 * are written in one fixed order: an operation's inputs in that of the op
 * table, all others by byte order of the key. Not done here: validation, and
 * the choice of names.
 */
#include "schema/codec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/num.h"
#include "schema/proto_priv.h"

#define SPEC_VERSION 9
#define BLOB_MIN_ELEMS 10
/* Protobuf readers refuse more. */
#define MODEL_MAX_BYTES ((size_t)INT32_MAX)

static const Pb__DataType dtypes[MIL_DTYPE_COUNT] = {
    [MIL_BOOL] = PB__DATA_TYPE__BOOL,   [MIL_STRING] = PB__DATA_TYPE__STRING,
    [MIL_F16] = PB__DATA_TYPE__FLOAT16, [MIL_F32] = PB__DATA_TYPE__FLOAT32,
    [MIL_F64] = PB__DATA_TYPE__FLOAT64, [MIL_BF16] = PB__DATA_TYPE__BFLOAT16,
    [MIL_I4] = PB__DATA_TYPE__INT4,     [MIL_I8] = PB__DATA_TYPE__INT8,
    [MIL_I16] = PB__DATA_TYPE__INT16,   [MIL_I32] = PB__DATA_TYPE__INT32,
    [MIL_I64] = PB__DATA_TYPE__INT64,   [MIL_U1] = PB__DATA_TYPE__UINT1,
    [MIL_U2] = PB__DATA_TYPE__UINT2,    [MIL_U3] = PB__DATA_TYPE__UINT3,
    [MIL_U4] = PB__DATA_TYPE__UINT4,    [MIL_U6] = PB__DATA_TYPE__UINT6,
    [MIL_U8] = PB__DATA_TYPE__UINT8,    [MIL_U16] = PB__DATA_TYPE__UINT16,
    [MIL_U32] = PB__DATA_TYPE__UINT32,  [MIL_U64] = PB__DATA_TYPE__UINT64,
};

Pb__DataType proto_of_dtype(enum mil_dtype d)
{
    return dtypes[d];
}

enum mil_dtype proto_to_dtype(Pb__DataType t)
{
    int d;

    for (d = MIL_INVALID + 1; d < MIL_DTYPE_COUNT; d++)
        if (dtypes[d] == t)
            return (enum mil_dtype)d;
    return MIL_INVALID;
}

void *proto_new(struct arena *a, const ProtobufCMessageDescriptor *d,
                struct err *e)
{
    ProtobufCMessage *m = arena_alloc(a, 1, d->sizeof_message, e);

    if (m)
        protobuf_c_message_init(d, m);
    return m;
}

struct enc {
    struct arena arena;
    struct blob_writer *blobs;
    struct err *e;
};

#define NEW(c, lower) proto_new(&(c)->arena, &pb__##lower##__descriptor, (c)->e)

/* Room for n pointers or numbers. */
static void *list(struct enc *c, size_t n, size_t size)
{
    return arena_alloc(&c->arena, n, size, c->e);
}

/* Strings of the program outlive the message; protobuf-c's structs are
 * shared with its parser and therefore not const. */
static char *text(const char *s)
{
    return (char *)s;
}

/* ---- types ---- */

static Pb__Dimension *dimension(struct enc *c, int64_t size)
{
    Pb__Dimension *d = NEW(c, dimension);

    if (!d)
        return NULL;
    if (size == MIL_DIM_UNKNOWN) {
        d->dimension_case = PB__DIMENSION__DIMENSION_UNKNOWN;
        d->unknown = NEW(c, dimension__unknown_dimension);
        return d->unknown ? d : NULL;
    }
    d->dimension_case = PB__DIMENSION__DIMENSION_CONSTANT;
    d->constant = NEW(c, dimension__constant_dimension);
    if (!d->constant)
        return NULL;
    d->constant->size = (uint64_t)size;
    return d;
}

static Pb__ValueType *tensor_type(struct enc *c, const struct mil_type *t)
{
    Pb__ValueType *v = NEW(c, value_type);
    Pb__TensorType *tt = NEW(c, tensor_type);
    int i;

    if (!v || !tt)
        return NULL;
    v->type_case = PB__VALUE_TYPE__TYPE_TENSOR_TYPE;
    v->tensortype = tt;
    tt->datatype = proto_of_dtype(t->dtype);
    tt->rank = t->rank;
    tt->dimensions = list(c, (size_t)t->rank, sizeof(*tt->dimensions));
    if (!tt->dimensions)
        return NULL;
    for (i = 0; i < t->rank; i++) {
        tt->dimensions[i] = dimension(c, t->dims[i]);
        if (!tt->dimensions[i])
            return NULL;
    }
    tt->n_dimensions = (size_t)t->rank;
    return v;
}

static Pb__NamedValueType *named_type(struct enc *c, const struct mil_value *v)
{
    Pb__NamedValueType *n = NEW(c, named_value_type);
    Pb__ValueType *t = tensor_type(c, &v->type);

    if (!n || !t)
        return NULL;
    if (v->kind == MIL_V_STATE) {
        Pb__ValueType *outer = NEW(c, value_type);

        if (!outer)
            return NULL;
        outer->type_case = PB__VALUE_TYPE__TYPE_STATE_TYPE;
        outer->statetype = NEW(c, state_type);
        if (!outer->statetype)
            return NULL;
        outer->statetype->wrappedtype = t;
        t = outer;
    }
    n->name = text(v->name);
    n->type = t;
    return n;
}

/* ---- values ---- */

static bool wants_blob(const struct mil_type *t)
{
    if (!blob_code(t->dtype))
        return false;
    return t->dtype == MIL_BF16 || mil_type_elems(t) >= BLOB_MIN_ELEMS;
}

/* The bytes of a constant that is written inline. */
static const uint8_t *const_bytes(struct enc *c, const struct mil_const *k,
                                  size_t *n)
{
    int64_t bytes = mil_type_bytes(&k->type);
    uint8_t *room;

    if (bytes < 0 || (uint64_t)bytes > MODEL_MAX_BYTES) {
        err_set(c->e, ERR_UNSUPPORTED,
                "a constant of %" PRId64 " bytes cannot stand inside the model",
                bytes);
        return NULL;
    }
    *n = (size_t)bytes;
    if (k->bytes)
        return k->bytes;
    room = list(c, (size_t)bytes, 1);
    if (!room)
        return NULL;
    if (k->data && bytes &&
        k->data->read(k->data->cookie, 0, room, (size_t)bytes, c->e))
        return NULL;
    return room;
}

static int fill_ints(struct enc *c, Pb__TensorValue *v, enum mil_dtype d,
                     const uint8_t *p, size_t n)
{
    Pb__TensorValue__RepeatedInts *r = NEW(c, tensor_value__repeated_ints);
    int32_t *out = list(c, n, sizeof(*out));
    size_t i;

    if (!r || !out)
        return -1;
    for (i = 0; i < n; i++) {
        if (d == MIL_I32)
            out[i] = (int32_t)load_le32(p + 4 * i);
        else if (d == MIL_I16)
            out[i] = (int16_t)load_le16(p + 2 * i);
        else
            out[i] = load_le16(p + 2 * i);
    }
    r->n_values = n;
    r->values = out;
    v->value_case = PB__TENSOR_VALUE__VALUE_INTS;
    v->ints = r;
    return 0;
}

static int fill_longs(struct enc *c, Pb__TensorValue *v, const uint8_t *p,
                      size_t n)
{
    Pb__TensorValue__RepeatedLongInts *r =
        NEW(c, tensor_value__repeated_long_ints);
    int64_t *out = list(c, n, sizeof(*out));
    size_t i;

    if (!r || !out)
        return -1;
    for (i = 0; i < n; i++)
        out[i] = (int64_t)load_le64(p + 8 * i);
    r->n_values = n;
    r->values = out;
    v->value_case = PB__TENSOR_VALUE__VALUE_LONG_INTS;
    v->longints = r;
    return 0;
}

static int fill_floats(struct enc *c, Pb__TensorValue *v, const uint8_t *p,
                       size_t n)
{
    Pb__TensorValue__RepeatedFloats *r = NEW(c, tensor_value__repeated_floats);
    float *out = list(c, n, sizeof(*out));
    size_t i;

    if (!r || !out)
        return -1;
    for (i = 0; i < n; i++) {
        uint32_t bits = load_le32(p + 4 * i);

        memcpy(&out[i], &bits, 4);
    }
    r->n_values = n;
    r->values = out;
    v->value_case = PB__TENSOR_VALUE__VALUE_FLOATS;
    v->floats = r;
    return 0;
}

static int fill_doubles(struct enc *c, Pb__TensorValue *v, const uint8_t *p,
                        size_t n)
{
    Pb__TensorValue__RepeatedDoubles *r =
        NEW(c, tensor_value__repeated_doubles);
    double *out = list(c, n, sizeof(*out));
    size_t i;

    if (!r || !out)
        return -1;
    for (i = 0; i < n; i++) {
        uint64_t bits = load_le64(p + 8 * i);

        memcpy(&out[i], &bits, 8);
    }
    r->n_values = n;
    r->values = out;
    v->value_case = PB__TENSOR_VALUE__VALUE_DOUBLES;
    v->doubles = r;
    return 0;
}

static int fill_bools(struct enc *c, Pb__TensorValue *v, const uint8_t *p,
                      size_t n)
{
    Pb__TensorValue__RepeatedBools *r = NEW(c, tensor_value__repeated_bools);
    protobuf_c_boolean *out = list(c, n, sizeof(*out));
    size_t i;

    if (!r || !out)
        return -1;
    for (i = 0; i < n; i++)
        out[i] = p[i] != 0;
    r->n_values = n;
    r->values = out;
    v->value_case = PB__TENSOR_VALUE__VALUE_BOOLS;
    v->bools = r;
    return 0;
}

static int fill_strings(struct enc *c, Pb__TensorValue *v,
                        const struct mil_const *k)
{
    Pb__TensorValue__RepeatedStrings *r =
        NEW(c, tensor_value__repeated_strings);
    size_t i, n = (size_t)mil_type_elems(&k->type);
    char **out = list(c, n, sizeof(*out));

    if (!r || !out)
        return -1;
    for (i = 0; i < n; i++)
        out[i] = text(k->strings[i]);
    r->n_values = n;
    r->values = out;
    v->value_case = PB__TENSOR_VALUE__VALUE_STRINGS;
    v->strings = r;
    return 0;
}

/* Half floats, small integers, uint32 and packed sub-byte elements. */
static int fill_bytes(struct enc *c, Pb__TensorValue *v, const uint8_t *p,
                      size_t n)
{
    Pb__TensorValue__RepeatedBytes *r = NEW(c, tensor_value__repeated_bytes);

    if (!r)
        return -1;
    r->values.len = n;
    r->values.data = (uint8_t *)p;
    v->value_case = PB__TENSOR_VALUE__VALUE_BYTES;
    v->bytes = r;
    return 0;
}

static int fill(struct enc *c, Pb__TensorValue *v, const struct mil_const *k)
{
    size_t bytes = 0, n = (size_t)mil_type_elems(&k->type);
    const uint8_t *p;

    if (k->type.dtype == MIL_STRING)
        return fill_strings(c, v, k);
    p = const_bytes(c, k, &bytes);
    if (!p)
        return -1;
    switch (k->type.dtype) {
    case MIL_BOOL: return fill_bools(c, v, p, n);
    case MIL_F32: return fill_floats(c, v, p, n);
    case MIL_F64: return fill_doubles(c, v, p, n);
    case MIL_I16:
    case MIL_U16:
    case MIL_I32: return fill_ints(c, v, k->type.dtype, p, n);
    case MIL_I64:
    case MIL_U64: return fill_longs(c, v, p, n);
    case MIL_F16:
    case MIL_I8:
    case MIL_U8:
    case MIL_U32:
    case MIL_I4:
    case MIL_U1:
    case MIL_U2:
    case MIL_U3:
    case MIL_U4:
    case MIL_U6: return fill_bytes(c, v, p, bytes);
    case MIL_INVALID:
    case MIL_STRING:
    case MIL_BF16:
    case MIL_DTYPE_COUNT: break;
    }
    return err_set(c->e, ERR_UNSUPPORTED,
                   "a constant of type %s cannot stand inside the model",
                   mil_dtype_name(k->type.dtype));
}

static Pb__Value *blob_value(struct enc *c, Pb__Value *v,
                             const struct mil_const *k)
{
    Pb__Value__BlobFileValue *b = NEW(c, value__blob_file_value);
    int rc;

    if (!b)
        return NULL;
    if (k->data && (k->data->type.dtype != k->type.dtype ||
                    mil_type_elems(&k->data->type) != mil_type_elems(&k->type)))
        rc = err_set(c->e, ERR_INPUT,
                     "the constant and its data differ in type or size");
    else if (k->data)
        rc = blob_put(c->blobs, k->data, &b->offset, c->e);
    else
        rc = blob_put_bytes(c->blobs, &k->type, k->bytes, &b->offset, c->e);
    if (rc)
        return NULL;
    b->filename = text(CODEC_WEIGHT_FILE);
    v->value_case = PB__VALUE__VALUE_BLOB_FILE_VALUE;
    v->blobfilevalue = b;
    return v;
}

static Pb__Value *value(struct enc *c, const struct mil_const *k, bool may_blob)
{
    Pb__Value *v = NEW(c, value);
    Pb__Value__ImmediateValue *im;

    if (!v)
        return NULL;
    if (mil_type_elems(&k->type) < 0) {
        err_set(c->e, ERR_INPUT, "a constant without a fixed size");
        return NULL;
    }
    v->type = tensor_type(c, &k->type);
    if (!v->type)
        return NULL;
    if (may_blob && wants_blob(&k->type))
        return blob_value(c, v, k);
    im = NEW(c, value__immediate_value);
    if (!im)
        return NULL;
    im->value_case = PB__VALUE__IMMEDIATE_VALUE__VALUE_TENSOR;
    im->tensor = NEW(c, tensor_value);
    if (!im->tensor || fill(c, im->tensor, k))
        return NULL;
    v->value_case = PB__VALUE__VALUE_IMMEDIATE_VALUE;
    v->immediatevalue = im;
    return v;
}

static Pb__Value *string_value(struct enc *c, const char *s)
{
    const char **room = list(c, 1, sizeof(*room));
    struct mil_const k;

    if (!room)
        return NULL;
    room[0] = s;
    memset(&k, 0, sizeof(k));
    k.type = mil_scalar(MIL_STRING);
    k.strings = room;
    return value(c, &k, false);
}

/* ---- operations ---- */

static Pb__Argument *argument(struct enc *c, const struct mil_function *f,
                              const struct mil_op_info *info,
                              const struct mil_arg *arg)
{
    Pb__Argument *a = NEW(c, argument);
    uint32_t i;

    if (!a)
        return NULL;
    a->arguments = list(c, arg->n, sizeof(*a->arguments));
    if (!a->arguments)
        return NULL;
    for (i = 0; i < arg->n; i++) {
        const struct mil_value *v = mil_value(f, arg->refs[i]);
        Pb__Argument__Binding *b = NEW(c, argument__binding);

        if (!b)
            return NULL;
        if (v->kind == MIL_V_LITERAL) {
            /* Ordinary operations take no blob inline. */
            b->binding_case = PB__ARGUMENT__BINDING__BINDING_VALUE;
            b->value = value(c, v->konst,
                             info ? (info->flags & MIL_O_CONSTEXPR) != 0
                                  : v->konst->data != NULL);
            if (!b->value)
                return NULL;
        } else {
            b->binding_case = PB__ARGUMENT__BINDING__BINDING_NAME;
            b->name = text(v->name);
        }
        a->arguments[i] = b;
    }
    a->n_arguments = arg->n;
    return a;
}

static int add_attribute(struct enc *c, Pb__Operation *o, const char *key,
                         Pb__Value *v)
{
    Pb__Operation__AttributesEntry *a = NEW(c, operation__attributes_entry);

    if (!v || !a)
        return -1;
    a->key = text(key);
    a->value = v;
    o->attributes[o->n_attributes++] = a;
    return 0;
}

static int add_input(struct enc *c, Pb__Operation *o,
                     const struct mil_function *f,
                     const struct mil_op_info *info, const char *name,
                     const struct mil_arg *arg)
{
    Pb__Operation__InputsEntry *in = NEW(c, operation__inputs_entry);

    if (!in)
        return -1;
    in->key = text(name);
    in->value = argument(c, f, info, arg);
    if (!in->value)
        return err_in(c->e, "parameter '%s'", name);
    o->inputs[o->n_inputs++] = in;
    return 0;
}

static int table_args(struct enc *c, Pb__Operation *o,
                      const struct mil_function *f, const struct mil_op *op)
{
    const struct mil_op_info *info = mil_op_info(op->code);
    int i;

    o->inputs = list(c, (size_t)info->n_params, sizeof(*o->inputs));
    if (!o->inputs)
        return -1;
    for (i = 0; i < info->n_params; i++)
        if (op->args[i].n &&
            add_input(c, o, f, info, info->params[i].name, &op->args[i]))
            return -1;
    return 0;
}

/* An operation that the table does not describe: as it was read. */
static int foreign_args(struct enc *c, Pb__Operation *o,
                        const struct mil_function *f, const struct mil_op *op)
{
    const struct mil_foreign *fo = op->foreign;
    uint32_t i;

    o->inputs = list(c, fo->n_args, sizeof(*o->inputs));
    if (!o->inputs)
        return -1;
    for (i = 0; i < fo->n_args; i++) {
        const struct mil_named_arg *a = &fo->args[i];
        int rc;

        if (a->attribute)
            rc = add_attribute(c, o, a->name,
                               value(c, mil_value(f, a->arg.refs[0])->konst,
                                     true));
        else
            rc = add_input(c, o, f, NULL, a->name, &a->arg);
        if (rc)
            return -1;
    }
    return 0;
}

static int op_args(struct enc *c, Pb__Operation *o,
                   const struct mil_function *f, const struct mil_op *op)
{
    if (op->foreign)
        return foreign_args(c, o, f, op);
    if (op->code != MIL_OP_const)
        return table_args(c, o, f, op);
    return add_attribute(c, o, "val",
                         value(c, mil_value(f, op->outs[0])->konst, true));
}

static int by_attribute(const void *a, const void *b)
{
    const Pb__Operation__AttributesEntry *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

static Pb__Operation *operation(struct enc *c, const struct mil_function *f,
                                const struct mil_op *op)
{
    Pb__Operation *o = NEW(c, operation);
    uint32_t i, n_attributes = 2 + (op->foreign ? op->foreign->n_args : 0);

    if (!o)
        return NULL;
    o->type = text(mil_op_type(op));
    o->attributes = list(c, n_attributes, sizeof(*o->attributes));
    o->outputs = list(c, op->n_outs, sizeof(*o->outputs));
    if (!o->attributes || !o->outputs)
        return NULL;
    if (op->name && *op->name &&
        add_attribute(c, o, "name", string_value(c, op->name)))
        return NULL;
    if (op_args(c, o, f, op))
        return NULL;
    qsort(o->attributes, o->n_attributes, sizeof(*o->attributes), by_attribute);
    for (i = 0; i < op->n_outs; i++) {
        o->outputs[i] = named_type(c, mil_value(f, op->outs[i]));
        if (!o->outputs[i])
            return NULL;
    }
    o->n_outputs = op->n_outs;
    return o;
}

static Pb__Block *block(struct enc *c, const struct mil_function *f)
{
    Pb__Block *b = NEW(c, block);
    size_t i;

    if (!b)
        return NULL;
    b->outputs = list(c, f->n_outputs, sizeof(*b->outputs));
    b->operations = list(c, f->n_ops, sizeof(*b->operations));
    if (!b->outputs || !b->operations)
        return NULL;
    for (i = 0; i < f->n_outputs; i++)
        b->outputs[i] = text(mil_value(f, f->outputs[i])->name);
    for (i = 0; i < f->n_ops; i++) {
        b->operations[i] = operation(c, f, &f->ops[i]);
        if (!b->operations[i]) {
            err_in(c->e, "op '%s' (%s)", f->ops[i].name ? f->ops[i].name : "",
                   mil_op_type(&f->ops[i]));
            return NULL;
        }
    }
    b->n_outputs = f->n_outputs;
    b->n_operations = f->n_ops;
    return b;
}

static Pb__Function *function(struct enc *c, const struct mil_function *f)
{
    Pb__Function *out = NEW(c, function);
    Pb__Function__BlockSpecializationsEntry *body =
        NEW(c, function__block_specializations_entry);
    size_t i;

    if (!out || !body)
        return NULL;
    out->inputs = list(c, f->n_inputs, sizeof(*out->inputs));
    out->block_specializations = list(c, 1, sizeof(body));
    if (!out->inputs || !out->block_specializations)
        return NULL;
    for (i = 0; i < f->n_inputs; i++) {
        out->inputs[i] = named_type(c, mil_value(f, f->inputs[i]));
        if (!out->inputs[i])
            return NULL;
    }
    out->n_inputs = f->n_inputs;
    out->opset = text(f->opset);
    body->key = text(f->opset);
    body->value = block(c, f);
    if (!body->value)
        return NULL;
    out->block_specializations[0] = body;
    out->n_block_specializations = 1;
    return out;
}

/* The one program attribute that readers know: a dictionary of strings. */
static int build_info(struct enc *c, Pb__Program *out,
                      const struct mil_program *p)
{
    const struct mil_type string = mil_scalar(MIL_STRING);
    Pb__Program__AttributesEntry *a = NEW(c, program__attributes_entry);
    Pb__Value *v = NEW(c, value);
    Pb__Value__ImmediateValue *im = NEW(c, value__immediate_value);
    Pb__DictionaryValue *d = NEW(c, dictionary_value);
    Pb__ValueType *t = NEW(c, value_type);
    size_t i;

    if (!a || !v || !im || !d || !t)
        return -1;
    t->type_case = PB__VALUE_TYPE__TYPE_DICTIONARY_TYPE;
    t->dictionarytype = NEW(c, dictionary_type);
    d->values = list(c, p->n_build_info, sizeof(*d->values));
    out->attributes = list(c, 1, sizeof(a));
    if (!t->dictionarytype || !d->values || !out->attributes)
        return -1;
    t->dictionarytype->keytype = tensor_type(c, &string);
    t->dictionarytype->valuetype = tensor_type(c, &string);
    for (i = 0; i < p->n_build_info; i++) {
        Pb__DictionaryValue__KeyValuePair *kv =
            NEW(c, dictionary_value__key_value_pair);

        if (!kv || !(kv->key = string_value(c, p->build_info[i].key)) ||
            !(kv->value = string_value(c, p->build_info[i].value)))
            return -1;
        d->values[d->n_values++] = kv;
    }
    v->type = t;
    im->value_case = PB__VALUE__IMMEDIATE_VALUE__VALUE_DICTIONARY;
    im->dictionary = d;
    v->value_case = PB__VALUE__VALUE_IMMEDIATE_VALUE;
    v->immediatevalue = im;
    a->key = text("buildInfo");
    a->value = v;
    out->attributes[out->n_attributes++] = a;
    return t->dictionarytype->keytype && t->dictionarytype->valuetype ? 0 : -1;
}

static int by_key(const void *a, const void *b)
{
    const Pb__Program__FunctionsEntry *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

static Pb__Program *program(struct enc *c, const struct mil_program *p)
{
    Pb__Program *out = NEW(c, program);
    size_t i;

    if (!out)
        return NULL;
    out->version = 1;
    out->functions = list(c, p->n_functions, sizeof(*out->functions));
    if (!out->functions)
        return NULL;
    for (i = 0; i < p->n_functions; i++) {
        Pb__Program__FunctionsEntry *f = NEW(c, program__functions_entry);

        if (!f)
            return NULL;
        f->key = text(p->functions[i]->name);
        f->value = function(c, p->functions[i]);
        if (!f->value) {
            err_in(c->e, "function '%s'", p->functions[i]->name);
            return NULL;
        }
        out->functions[i] = f;
    }
    out->n_functions = p->n_functions;
    if (p->n_build_info && build_info(c, out, p))
        return NULL;
    /* After the weights were placed in program order. */
    if (p->n_functions)
        qsort(out->functions, p->n_functions, sizeof(*out->functions), by_key);
    return out;
}

static int pack(const Pb__Model *m, struct buf *out, struct err *e)
{
    size_t n = pb__model__get_packed_size(m);
    void *room;

    if (n > MODEL_MAX_BYTES)
        return err_set(e, ERR_UNSUPPORTED,
                       "the model takes %zu bytes without its weights, "
                       "readers take at most %zu",
                       n, MODEL_MAX_BYTES);
    room = buf_extend(out, n);
    if (!room)
        return buf_ok(out, e);
    if (pb__model__pack(m, room) != n)
        BUG("packed size differs from the computed one");
    return 0;
}

int codec_encode(const struct mil_program *p, struct blob_writer *w,
                 struct buf *out, struct err *e)
{
    struct enc c = { ARENA_INIT, w, e };
    Pb__Model *m = NEW(&c, model);
    int rc = -1;

    if (!m)
        goto out;
    m->specificationversion =
        p->spec_version > SPEC_VERSION ? p->spec_version : SPEC_VERSION;
    m->description = describe_make(&c.arena, p, e);
    if (!m->description)
        goto out;
    m->type_case = PB__MODEL__TYPE_ML_PROGRAM;
    m->mlprogram = program(&c, p);
    if (m->mlprogram)
        rc = pack(m, out, e);
out:
    arena_release(&c.arena);
    return rc;
}
