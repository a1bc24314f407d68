/*
 * Programs as protobuf bytes: exact encodings, every dtype, forms that only
 * others write, and bytes that are no model.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/num.h"
#include "schema/codec.h"
#include "schema/model.pb-c.h"
#include "t_dir.h"
#include "t_schema.h"

static const char *dir;

static void setup(void)
{
    dir = t_dir_new();
}

static void drop(void)
{
    t_dir_drop(dir);
}

TestSuite(codec, .init = setup, .fini = drop);

/* ---- the encoder's values ---- */

static struct mil_program *with_const(const struct mil_type *t,
                                      const void *bytes,
                                      const char *const *strings)
{
    struct err e = ERR_INIT;
    struct mil_program *p = mil_program_new(&e);
    struct mil_function *f = mil_program_add(p, "main", &e);
    struct mil_type x = mil_type_make(MIL_F16, 1, (const int64_t[]){ 4 });
    mil_ref in = mil_add_value(f, MIL_V_INPUT, "x", &x, &e), y;

    if (strings)
        ts_strings(f, "k", t, strings);
    else
        ts_const(f, "k", t, bytes);
    y = ts_op(f, MIL_OP_relu, "y", &x, "x", in, (char *)NULL);
    cr_assert_eq(mil_add_function_output(f, y, &e), 0);
    return p;
}

static void encode(const struct mil_program *p, struct buf *out)
{
    struct err e = ERR_INIT;
    struct blob_writer *w =
        blob_writer_new(t_path(dir, "weight.bin"), NULL, &e);
    struct blob_totals t;

    cr_assert_eq(codec_encode(p, w, out, &e), 0, "%s", e.text);
    cr_assert_eq(blob_writer_finish(w, &t, &e), 0, "%s", e.text);
    blob_writer_free(w);
}

static bool contains(const struct buf *b, const void *p, size_t n)
{
    size_t i;

    for (i = 0; n <= b->len && i <= b->len - n; i++)
        if (memcmp(b->data + i, p, n) == 0)
            return true;
    return false;
}

/* The Value of a constant is written as these hex digits. */
static void expect_value(const struct mil_type *t, const void *bytes,
                         const char *const *strings, const char *hex)
{
    struct mil_program *p = with_const(t, bytes, strings);
    struct buf out = BUF_INIT;
    uint8_t want[256];
    size_t n = 0;

    for (; *hex; hex += hex[2] ? 3 : 2) {
        unsigned v;

        cr_assert_eq(sscanf(hex, "%2x", &v), 1);
        want[n++] = (uint8_t)v;
    }
    encode(p, &out);
    cr_assert(contains(&out, want, n));
    buf_release(&out);
    mil_program_free(p);
}

Test(codec, known_values)
{
    static const uint8_t no = 0, one[] = { 0x00, 0x3c };
    static const char *const valid = "valid";
    static const int32_t ints[] = { 0, 1, -1, 300 };
    struct mil_type b = mil_scalar(MIL_BOOL), h = mil_scalar(MIL_F16),
                    s = mil_scalar(MIL_STRING),
                    i = mil_type_make(MIL_I32, 1, (const int64_t[]){ 4 });

    expect_value(&b, &no, NULL, "12 04 0a 02 08 01 1a 07 0a 05 1a 03 0a 01 00");
    t_dir_drop(dir);
    dir = t_dir_new();
    expect_value(&h, one, NULL,
                 "12 04 0a 02 08 0a 1a 08 0a 06 3a 04 0a 02 00 3c");
    t_dir_drop(dir);
    dir = t_dir_new();
    expect_value(&s, NULL, &valid,
                 "12 04 0a 02 08 02 1a 0b 0a 09 22 07 0a 05 76 61 6c 69 64");
    t_dir_drop(dir);
    dir = t_dir_new();
    expect_value(&i, ints, NULL,
                 "12 0c 0a 0a 08 17 10 01 1a 04 0a 02 08 04 1a 14 0a 12 12 10 "
                 "0a 0e 00 01 ff ff ff ff ff ff ff ff ff 01 ac 02");
}

/* Blobs of a decoded file are read from the weight file of this test. */
static struct blob_reader reader;

static int read_blob(void *cookie, uint64_t at, void *dst, size_t n,
                     struct err *e)
{
    return io_pread(&reader.file, dst, n, (uint64_t)(uintptr_t)cookie + at, e);
}

static const struct mil_data *get_blob(void *cookie, struct mil_program *p,
                                       const char *file, uint64_t offset,
                                       const struct mil_type *type,
                                       struct err *e)
{
    struct mil_data *d = arena_alloc(&p->arena, 1, sizeof(*d), e);
    uint64_t data;

    (void)cookie;
    if (strcmp(file, "@model_path/weights/weight.bin") != 0)
        err_set(e, ERR_INPUT, "another weight file");
    if (!d || e->code || blob_find(&reader, offset, type, &data, e))
        return NULL;
    d->type = *type;
    d->bytes = (uint64_t)mil_type_bytes(type);
    d->read = read_blob;
    d->cookie = (void *)(uintptr_t)data;
    return d;
}

static struct mil_program *decode(const struct buf *b, bool raw, struct err *e)
{
    struct codec_options o = { { get_blob, NULL }, raw };

    return codec_decode(buf_text(b), b->len, &o, NULL, e);
}

/* Every dtype, few elements (inline) and many (blob), with bytes that use all
 * bits, come back as they were; and are encoded to the same bytes. */
Test(codec, every_dtype)
{
    static const int64_t counts[] = { 0, 1, 2, 7, 9, 10, 11, 33 };
    uint64_t seed = 3;
    size_t c;
    int d;

    for (d = 1; d < MIL_DTYPE_COUNT; d++)
        for (c = 0; c < 8; c++) {
            struct mil_type t = mil_type_make((enum mil_dtype)d, 1, &counts[c]);
            struct mil_program *p, *q;
            const struct mil_const *k;
            struct buf one = BUF_INIT, two = BUF_INIT;
            struct err e = ERR_INIT;
            uint8_t bytes[33 * 8], got[33 * 8];
            size_t n, i;
            bool blob = blob_code((enum mil_dtype)d) &&
                        (counts[c] >= 10 || d == MIL_BF16);

            if (d == MIL_STRING)
                continue;
            n = (size_t)mil_type_bytes(&t);
            for (i = 0; i < n; i++)
                bytes[i] = (uint8_t)ts_random(&seed);
            for (i = 0; d == MIL_BOOL && i < n; i++)
                bytes[i] &= 1;
            if (n && counts[c] * mil_dtype_bits(t.dtype) % 8)
                bytes[n - 1] &=
                    (uint8_t)((1 << counts[c] * mil_dtype_bits(t.dtype) % 8) -
                              1);
            p = with_const(&t, bytes, NULL);
            encode(p, &one);
            cr_assert_eq(io_exists(t_path(dir, "weight.bin")), blob);
            if (blob)
                cr_assert_eq(blob_open(&reader, t_path(dir, "weight.bin"), &e),
                             0);
            q = decode(&one, false, &e);
            cr_assert_not_null(q, "%s", e.text);
            k = mil_value(q->functions[0], q->functions[0]->ops[0].outs[0])
                    ->konst;
            cr_assert(mil_type_equal(&k->type, &t));
            cr_assert_eq((k->bytes != NULL) + (k->data != NULL), 1);
            if (k->data)
                cr_assert_eq(k->data->read(k->data->cookie, 0, got, n, &e), 0);
            else if (n)
                memcpy(got, k->bytes, n);
            cr_assert_eq(memcmp(got, bytes, n), 0, "%s",
                         mil_dtype_name(t.dtype));
            cr_assert_eq(io_remove_tree(t_path(dir, "weight.bin"), &e), 0);
            encode(q, &two);
            cr_assert_eq(one.len, two.len);
            cr_assert_eq(memcmp(one.data, two.data, one.len), 0);
            cr_assert_eq(io_remove_tree(t_path(dir, "weight.bin"), &e), 0);
            if (blob)
                blob_close(&reader);
            buf_release(&one);
            buf_release(&two);
            mil_program_free(p);
            mil_program_free(q);
        }
}

Test(codec, small_vectors_of_integers_are_read_at_once)
{
    int32_t v[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -11 };
    struct mil_type t = mil_type_make(MIL_I32, 1, (const int64_t[]){ 12 });
    struct mil_program *p = with_const(&t, v, NULL), *q;
    const struct mil_const *k;
    struct buf out = BUF_INIT;
    struct err e = ERR_INIT;

    encode(p, &out);
    cr_assert_eq(blob_open(&reader, t_path(dir, "weight.bin"), &e), 0);
    q = decode(&out, false, &e);
    k = mil_value(q->functions[0], q->functions[0]->ops[0].outs[0])->konst;
    cr_assert_not_null(k->bytes);
    cr_assert_eq(mil_const_int(k, 11), -11);
    blob_close(&reader);
    buf_release(&out);
    mil_program_free(p);
    mil_program_free(q);
}

/* A large source of few elements, or of a type that has no blob, is inline. */
static int read_ones(void *cookie, uint64_t at, void *dst, size_t n,
                     struct err *e)
{
    (void)cookie;
    (void)at;
    (void)e;
    memset(dst, 1, n);
    return 0;
}

Test(codec, sources_that_stay_inline)
{
    static const struct {
        enum mil_dtype d;
        int64_t n;
    } all[] = { { MIL_F16, 9 }, { MIL_BOOL, 5000 }, { MIL_I64, 20 } };
    size_t i;

    for (i = 0; i < 3; i++) {
        struct mil_data d;
        struct mil_program *p, *q;
        const struct mil_const *k;
        struct buf out = BUF_INIT;
        struct err e = ERR_INIT;

        memset(&d, 0, sizeof(d));
        d.type = mil_type_make(all[i].d, 1, &all[i].n);
        d.bytes = (uint64_t)mil_type_bytes(&d.type);
        d.read = read_ones;
        p = with_const(&d.type, (uint8_t[40000]){ 0 }, NULL);
        ((struct mil_const *)mil_value(p->functions[0],
                                       p->functions[0]->ops[0].outs[0])
             ->konst)
            ->bytes = NULL;
        ((struct mil_const *)mil_value(p->functions[0],
                                       p->functions[0]->ops[0].outs[0])
             ->konst)
            ->data = &d;
        encode(p, &out);
        cr_assert_not(io_exists(t_path(dir, "weight.bin")));
        q = decode(&out, false, &e);
        cr_assert_not_null(q, "%s", e.text);
        k = mil_value(q->functions[0], q->functions[0]->ops[0].outs[0])->konst;
        cr_assert_eq(((const uint8_t *)k->bytes)[d.bytes - 1], 1);
        buf_release(&out);
        mil_program_free(p);
        mil_program_free(q);
    }
}

/* ---- messages of others, built by hand ---- */

struct made {
    struct arena a;
    Pb__Model *m;
    Pb__Function *f;
    Pb__Block *b;
};

#define MAKE(mk, lower) make((mk), &pb__##lower##__descriptor)

static void *make(struct made *mk, const ProtobufCMessageDescriptor *d)
{
    struct err e = ERR_INIT;
    void *m = arena_alloc(&mk->a, 1, d->sizeof_message, &e);

    protobuf_c_message_init(d, m);
    return m;
}

static void *room(struct made *mk, size_t n)
{
    struct err e = ERR_INIT;

    return arena_alloc(&mk->a, n, 1, &e);
}

static Pb__ValueType *type_of(struct made *mk, Pb__DataType d, int rank,
                              int64_t dim)
{
    Pb__ValueType *v = MAKE(mk, value_type);
    Pb__TensorType *t = MAKE(mk, tensor_type);
    int i;

    v->type_case = PB__VALUE_TYPE__TYPE_TENSOR_TYPE;
    v->tensortype = t;
    t->datatype = d;
    t->rank = rank;
    t->n_dimensions = (size_t)rank;
    t->dimensions = room(mk, 8 * (size_t)rank + 8);
    for (i = 0; i < rank; i++) {
        Pb__Dimension *x = MAKE(mk, dimension);

        x->dimension_case = PB__DIMENSION__DIMENSION_CONSTANT;
        x->constant = MAKE(mk, dimension__constant_dimension);
        x->constant->size = (uint64_t)dim;
        t->dimensions[i] = x;
    }
    return v;
}

static Pb__NamedValueType *named(struct made *mk, const char *name,
                                 Pb__ValueType *t)
{
    Pb__NamedValueType *n = MAKE(mk, named_value_type);

    n->name = (char *)name;
    n->type = t;
    return n;
}

static Pb__Value *value(struct made *mk, Pb__ValueType *t, Pb__TensorValue *v)
{
    Pb__Value *out = MAKE(mk, value);

    out->type = t;
    out->value_case = PB__VALUE__VALUE_IMMEDIATE_VALUE;
    out->immediatevalue = MAKE(mk, value__immediate_value);
    out->immediatevalue->value_case = PB__VALUE__IMMEDIATE_VALUE__VALUE_TENSOR;
    out->immediatevalue->tensor = v;
    return out;
}

static Pb__Value *string_value(struct made *mk, const char *s)
{
    Pb__TensorValue *v = MAKE(mk, tensor_value);

    v->value_case = PB__TENSOR_VALUE__VALUE_STRINGS;
    v->strings = MAKE(mk, tensor_value__repeated_strings);
    v->strings->n_values = 1;
    v->strings->values = room(mk, 8);
    v->strings->values[0] = (char *)s;
    return value(mk, type_of(mk, PB__DATA_TYPE__STRING, 0, 0), v);
}

static Pb__Value *bytes_value(struct made *mk, Pb__DataType d, int rank,
                              int64_t dim, const void *bytes, size_t n)
{
    Pb__TensorValue *v = MAKE(mk, tensor_value);

    v->value_case = PB__TENSOR_VALUE__VALUE_BYTES;
    v->bytes = MAKE(mk, tensor_value__repeated_bytes);
    v->bytes->values.data = (uint8_t *)bytes;
    v->bytes->values.len = n;
    return value(mk, type_of(mk, d, rank, dim), v);
}

static Pb__Operation *op_of(struct made *mk, const char *type, const char *name,
                            const char *out)
{
    Pb__Operation *o = MAKE(mk, operation);
    Pb__Operation__AttributesEntry *a = MAKE(mk, operation__attributes_entry);

    o->type = (char *)type;
    a->key = (char *)"name";
    a->value = string_value(mk, name);
    o->attributes = room(mk, 64);
    o->attributes[o->n_attributes++] = a;
    o->inputs = room(mk, 64);
    o->outputs = room(mk, 64);
    if (out)
        o->outputs[o->n_outputs++] =
            named(mk, out, type_of(mk, PB__DATA_TYPE__FLOAT16, 1, 4));
    mk->b->operations[mk->b->n_operations++] = o;
    return o;
}

static Pb__Argument__Binding *bind(struct made *mk, Pb__Operation *o,
                                   const char *param)
{
    Pb__Operation__InputsEntry *in = MAKE(mk, operation__inputs_entry);
    Pb__Argument__Binding *b = MAKE(mk, argument__binding);

    in->key = (char *)param;
    in->value = MAKE(mk, argument);
    in->value->n_arguments = 1;
    in->value->arguments = room(mk, 8);
    in->value->arguments[0] = b;
    o->inputs[o->n_inputs++] = in;
    return b;
}

static void bind_name(struct made *mk, Pb__Operation *o, const char *param,
                      const char *name)
{
    Pb__Argument__Binding *b = bind(mk, o, param);

    b->binding_case = PB__ARGUMENT__BINDING__BINDING_NAME;
    b->name = (char *)name;
}

static void bind_value(struct made *mk, Pb__Operation *o, const char *param,
                       Pb__Value *v)
{
    Pb__Argument__Binding *b = bind(mk, o, param);

    b->binding_case = PB__ARGUMENT__BINDING__BINDING_VALUE;
    b->value = v;
}

static void set_attribute(struct made *mk, Pb__Operation *o, const char *key,
                          Pb__Value *v)
{
    Pb__Operation__AttributesEntry *a = MAKE(mk, operation__attributes_entry);

    a->key = (char *)key;
    a->value = v;
    o->attributes[o->n_attributes++] = a;
}

/* A model with input x [4] of fp16 and output y, no operations yet. */
static void begin(struct made *mk)
{
    Pb__Program__FunctionsEntry *fe;
    Pb__Function__BlockSpecializationsEntry *be;

    memset(mk, 0, sizeof(*mk));
    mk->m = MAKE(mk, model);
    mk->m->specificationversion = 9;
    mk->m->type_case = PB__MODEL__TYPE_ML_PROGRAM;
    mk->m->mlprogram = MAKE(mk, program);
    mk->m->mlprogram->version = 1;
    mk->m->mlprogram->n_functions = 1;
    mk->m->mlprogram->functions = room(mk, 64);
    fe = MAKE(mk, program__functions_entry);
    mk->m->mlprogram->functions[0] = fe;
    fe->key = (char *)"main";
    fe->value = mk->f = MAKE(mk, function);
    mk->f->opset = (char *)"CoreML8";
    mk->f->n_inputs = 1;
    mk->f->inputs = room(mk, 64);
    mk->f->inputs[0] =
        named(mk, "x", type_of(mk, PB__DATA_TYPE__FLOAT16, 1, 4));
    mk->f->n_block_specializations = 1;
    mk->f->block_specializations = room(mk, 64);
    be = MAKE(mk, function__block_specializations_entry);
    be->key = (char *)"CoreML8";
    be->value = mk->b = MAKE(mk, block);
    mk->f->block_specializations[0] = be;
    mk->b->n_outputs = 1;
    mk->b->outputs = room(mk, 64);
    mk->b->outputs[0] = (char *)"y";
    mk->b->operations = room(mk, 1024);
}

static struct mil_program *finish_raw(struct made *mk, bool raw, struct err *e)
{
    struct codec_options o = { { NULL, NULL }, raw };
    size_t n = pb__model__get_packed_size(mk->m);
    uint8_t *bytes = room(mk, n);
    struct mil_program *p;

    pb__model__pack(mk->m, bytes);
    p = codec_decode(bytes, n, &o, NULL, e);
    arena_release(&mk->a);
    return p;
}

static void refuse(struct made *mk, const char *text)
{
    struct err e = ERR_INIT;

    cr_assert_null(finish_raw(mk, false, &e), "%s", text);
    cr_assert_not_null(strstr(e.text, text), "got: %s", e.text);
}

static const uint8_t half4[8] = { 0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44 };

Test(codec, inline_values)
{
    struct made mk;
    struct err e = ERR_INIT;
    struct mil_program *p;
    const struct mil_function *f;
    Pb__Operation *o;

    begin(&mk);
    o = op_of(&mk, "add", "", "y");
    bind_value(&mk, o, "y",
               bytes_value(&mk, PB__DATA_TYPE__FLOAT16, 1, 4, half4, 8));
    bind_name(&mk, o, "x", "x");
    p = finish_raw(&mk, false, &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(mil_validate(p, &e), 0, "%s", e.text);
    f = p->functions[0];
    cr_assert_eq(mil_value(f, f->ops[0].args[1].refs[0])->kind, MIL_V_LITERAL);
    cr_assert_eq(mil_const_double(mil_arg_const(f, &f->ops[0], 1), 3), 4.0);
    mil_program_free(p);
}

/* Parameters of a constexpr operation as attributes, and as named consts. */
Test(codec, constexpr_parameters)
{
    static const uint8_t scale[] = { 0, 0x38 };
    struct made mk;
    struct err e = ERR_INIT;
    struct mil_program *p;
    const struct mil_function *f;
    Pb__Operation *o, *k;

    begin(&mk);
    k = op_of(&mk, "const", "d", NULL);
    k->outputs[k->n_outputs++] =
        named(&mk, "d", type_of(&mk, PB__DATA_TYPE__INT8, 1, 4));
    set_attribute(&mk, k, "val",
                  bytes_value(&mk, PB__DATA_TYPE__INT8, 1, 4, "\1\2\3\4", 4));
    o = op_of(&mk, "constexpr_blockwise_shift_scale", "w", "w");
    bind_name(&mk, o, "data", "d");
    set_attribute(&mk, o, "scale",
                  bytes_value(&mk, PB__DATA_TYPE__FLOAT16, 1, 1, scale, 2));
    o = op_of(&mk, "add", "y", "y");
    bind_name(&mk, o, "x", "x");
    bind_name(&mk, o, "y", "w");
    p = finish_raw(&mk, false, &e);
    cr_assert_not_null(p, "%s", e.text);
    f = p->functions[0];
    cr_assert_eq(f->ops[1].args[0].n, 1);
    cr_assert_eq(mil_const_double(mil_arg_const(f, &f->ops[1], 1), 0), 0.5);
    cr_assert_eq(mil_validate(p, &e), 0, "%s", e.text);
    mil_program_free(p);
}

/* A model of the CoreML7 opset: affine dequantization with one zero for four
 * scales on axis -1, and a 2-bit table. */
Test(codec, older_forms)
{
    struct err e = ERR_INIT;
    struct buf b = BUF_INIT;
    struct mil_program *p;
    const struct mil_function *f;
    struct mil_type scale =
        mil_type_make(MIL_F16, 2, (const int64_t[]){ 1, 4 });
    struct mil_type idx = mil_type_make(MIL_U2, 2, (const int64_t[]){ 2, 4 });
    struct mil_type lut =
        mil_type_make(MIL_F16, 4, (const int64_t[]){ 1, 1, 4, 1 });
    const struct mil_const *zero;
    int64_t i;

    ts_read(&b, ANEMLL_SOURCE_DIR "/tests/fuzz/corpus/fuzz_package/"
                                  "older_forms");
    p = decode(&b, false, &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(mil_validate(p, &e), 0, "%s", e.text);
    f = p->functions[0];
    cr_assert_str_eq(f->opset, "CoreML8");
    cr_assert_eq(f->ops[0].code, MIL_OP_constexpr_blockwise_shift_scale);
    cr_assert(mil_type_equal(&mil_arg_const(f, &f->ops[0], 1)->type, &scale));
    zero = mil_arg_const(f, &f->ops[0], 2);
    cr_assert_eq(zero->type.dtype, MIL_I8);
    cr_assert_eq(mil_type_elems(&zero->type), 4);
    for (i = 0; i < 4; i++)
        cr_assert_eq(mil_const_int(zero, i), 'a');
    cr_assert_eq(f->ops[1].code, MIL_OP_constexpr_lut_to_dense);
    cr_assert(mil_type_equal(&mil_arg_const(f, &f->ops[1], 0)->type, &idx));
    cr_assert(mil_type_equal(&mil_arg_const(f, &f->ops[1], 1)->type, &lut));
    mil_program_free(p);
    p = decode(&b, true, &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_assert_str_eq(p->functions[0]->opset, "CoreML7");
    cr_assert_str_eq(mil_op_type(&p->functions[0]->ops[0]),
                     "constexpr_affine_dequantize");
    cr_assert(p->functions[0]->ops[0].foreign->args[0].attribute);
    mil_program_free(p);
    buf_release(&b);
}

static void relu(struct made *mk)
{
    bind_name(mk, op_of(mk, "relu", "y", "y"), "x", "x");
}

Test(codec, unknown_fields_and_attributes_are_skipped)
{
    struct made mk;
    struct err e = ERR_INIT;
    ProtobufCMessageUnknownField u = { 999,
                                       PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, 3,
                                       (uint8_t *)"\2ab" };
    struct mil_program *p;
    Pb__Program__AttributesEntry *a;

    begin(&mk);
    relu(&mk);
    mk.m->base.n_unknown_fields = 1;
    mk.m->base.unknown_fields = &u;
    mk.b->base = mk.b->base;
    a = MAKE(&mk, program__attributes_entry);
    a->key = (char *)"other";
    a->value = string_value(&mk, "v");
    mk.m->mlprogram->attributes = room(&mk, 8);
    mk.m->mlprogram->attributes[0] = a;
    mk.m->mlprogram->n_attributes = 1;
    mk.m->mlprogram->docstring = (char *)"text";
    p = finish_raw(&mk, false, &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(p->n_build_info, 0);
    mil_program_free(p);
}

Test(codec, operations_that_are_refused)
{
    struct made mk;
    Pb__Operation *o;

    begin(&mk);
    o = op_of(&mk, "lstm", "cell", "y");
    bind_name(&mk, o, "x", "x");
    refuse(&mk, "function 'main': op 'cell' (lstm): unknown op 'lstm' "
                "('cell') of opset 'CoreML8'");

    begin(&mk);
    op_of(&mk, "while_loop", "loop", "y");
    refuse(&mk, "op 'loop' (while_loop): control flow ('while_loop') is not "
                "supported");
    begin(&mk);
    op_of(&mk, "cond", "", "y");
    refuse(&mk, "op 'y' (cond): control flow ('cond')");
    begin(&mk);
    o = op_of(&mk, "add", "s", "y");
    o->n_blocks = 1;
    o->blocks = room(&mk, 8);
    o->blocks[0] = MAKE(&mk, block);
    refuse(&mk, "control flow ('add')");
}

Test(codec, arguments_that_are_refused)
{
    struct made mk;
    Pb__Operation *o;

    begin(&mk);
    bind_name(&mk, op_of(&mk, "relu", "y", "y"), "x", "later");
    refuse(&mk, "op 'y' (relu): parameter 'x': nothing before it is called "
                "'later'");
    begin(&mk);
    bind_name(&mk, op_of(&mk, "relu", "y", "y"), "x", "y");
    refuse(&mk, "nothing before it is called 'y'");
    begin(&mk);
    relu(&mk);
    relu(&mk);
    refuse(&mk, "the name 'y' is defined twice");
    begin(&mk);
    relu(&mk);
    mk.b->outputs[0] = (char *)"z";
    refuse(&mk, "output 'z': nothing before it is called 'z'");
    begin(&mk);
    bind_name(&mk, op_of(&mk, "relu", "y", "y"), "X", "x");
    refuse(&mk, "it has no parameter 'X'");
    begin(&mk);
    o = op_of(&mk, "relu", "y", "y");
    bind_name(&mk, o, "x", "x");
    bind_name(&mk, o, "x", "x");
    refuse(&mk, "parameter 'x' is given twice");
    begin(&mk);
    o = op_of(&mk, "relu", "y", "y");
    set_attribute(&mk, o, "x", string_value(&mk, "x"));
    refuse(&mk, "it has no attribute 'x'");
    begin(&mk);
    o = op_of(&mk, "relu", "y", "y");
    bind_name(&mk, o, "x", "x");
    o->inputs[0]->value->n_arguments = 0;
    refuse(&mk, "parameter 'x': nothing is bound to it");
    begin(&mk);
    o = op_of(&mk, "relu", "y", "y");
    bind(&mk, o, "x");
    refuse(&mk, "parameter 'x': an empty binding");
}

Test(codec, models_that_are_refused)
{
    struct made mk;
    Pb__NamedValueType *nv;

    begin(&mk);
    relu(&mk);
    mk.f->opset = (char *)"CoreML9";
    refuse(&mk, "function 'main': it has no block for its opset 'CoreML9'");
    begin(&mk);
    relu(&mk);
    mk.m->mlprogram->version = 2;
    refuse(&mk, "program version 2, supported is 1");
    begin(&mk);
    relu(&mk);
    mk.m->mlprogram->n_functions = 0;
    refuse(&mk, "a program of 0 functions");
    begin(&mk);
    relu(&mk);
    mk.m->mlprogram->functions[1] = mk.m->mlprogram->functions[0];
    mk.m->mlprogram->n_functions = 2;
    refuse(&mk, "function 'main' is defined twice");
    begin(&mk);
    relu(&mk);
    mk.m->mlprogram->functions[0]->value = NULL;
    refuse(&mk, "function 'main' is empty");
    begin(&mk);
    mk.m->type_case = PB__MODEL__TYPE_NEURAL_NETWORK;
    mk.m->neuralnetwork.len = 0;
    refuse(&mk, "the model is a neural network of the older kind; only ML "
                "Programs are supported");
    begin(&mk);
    mk.m->type_case = PB__MODEL__TYPE_PIPELINE;
    mk.m->pipeline.len = 0;
    refuse(&mk, "the model is a pipeline");
    begin(&mk);
    mk.m->type_case = PB__MODEL__TYPE__NOT_SET;
    refuse(&mk, "the model is no ML Program");
    begin(&mk);
    relu(&mk);
    mk.b->n_inputs = 1;
    mk.b->inputs = &nv;
    nv = named(&mk, "z", type_of(&mk, PB__DATA_TYPE__FLOAT16, 0, 0));
    refuse(&mk, "its block has inputs of its own");
}

/* The type of input x is bent. */
static Pb__TensorType *bent(struct made *mk)
{
    begin(mk);
    relu(mk);
    return mk->f->inputs[0]->type->tensortype;
}

Test(codec, types_that_are_refused)
{
    struct made mk;
    Pb__TensorType *t;

    t = bent(&mk);
    t->rank = 2;
    refuse(&mk, "input 'x': a tensor of rank 2 with 1 dimensions");
    t = bent(&mk);
    t->rank = -1;
    refuse(&mk, "a tensor of unknown rank");
    t = bent(&mk);
    t->rank = 9;
    refuse(&mk, "a tensor of rank 9, supported is 8");
    t = bent(&mk);
    t->datatype = PB__DATA_TYPE__FLOAT8E4M3FN;
    refuse(&mk, "data type 40 is not supported");
    t = bent(&mk);
    t->dimensions[0]->constant->size = UINT64_MAX;
    refuse(&mk, "a dimension of 18446744073709551615 elements");
    t = bent(&mk);
    t->dimensions[0]->dimension_case = PB__DIMENSION__DIMENSION__NOT_SET;
    refuse(&mk, "a dimension without a size");
    t = bent(&mk);
    t->dimensions[0]->dimension_case = PB__DIMENSION__DIMENSION_UNKNOWN;
    t->dimensions[0]->unknown = MAKE(&mk, dimension__unknown_dimension);
    t->dimensions[0]->unknown->variadic = 1;
    refuse(&mk, "a shape of any number of dimensions");
    bent(&mk);
    mk.f->inputs[0]->type->type_case = PB__VALUE_TYPE__TYPE_LIST_TYPE;
    mk.f->inputs[0]->type->listtype = MAKE(&mk, list_type);
    refuse(&mk, "input 'x': a list type where a tensor is expected");
    bent(&mk);
    mk.f->inputs[0]->type = NULL;
    refuse(&mk, "no type where a tensor is expected");
    bent(&mk);
    mk.b->operations[0]->outputs[0]->type->tensortype->rank = 3;
    refuse(&mk, "op 'y' (relu): output 'y': a tensor of rank 3 with 1");
}

static Pb__Value *bent_const(struct made *mk, Pb__DataType d, int64_t n,
                             size_t bytes)
{
    Pb__Operation *k;

    begin(mk);
    k = op_of(mk, "const", "k", "k");
    set_attribute(mk, k, "val", bytes_value(mk, d, 1, n, half4, bytes));
    relu(mk);
    return k->attributes[1]->value;
}

Test(codec, constants_that_are_refused)
{
    struct made mk;
    Pb__Value *v;

    bent_const(&mk, PB__DATA_TYPE__FLOAT16, 4, 7);
    refuse(&mk, "op 'k' (const): a constant has 7 bytes, its type asks for 8");
    bent_const(&mk, PB__DATA_TYPE__FLOAT16, 3, 8);
    refuse(&mk, "a constant has 8 bytes, its type asks for 6");
    /* A claim alone allocates nothing. */
    bent_const(&mk, PB__DATA_TYPE__FLOAT16, (int64_t)1 << 47, 8);
    refuse(&mk, "a constant has 8 bytes, its type asks for 281474976710656");
    bent_const(&mk, PB__DATA_TYPE__INT32, 1, 4);
    refuse(&mk, "the elements of a int32 constant stand in the wrong field");
    v = bent_const(&mk, PB__DATA_TYPE__FLOAT16, 4, 8);
    v->value_case = PB__VALUE__VALUE__NOT_SET;
    refuse(&mk, "a constant without a value");
    v = bent_const(&mk, PB__DATA_TYPE__FLOAT16, 4, 8);
    v->value_case = PB__VALUE__VALUE_BLOB_FILE_VALUE;
    v->blobfilevalue = MAKE(&mk, value__blob_file_value);
    v->blobfilevalue->filename = (char *)"f";
    refuse(&mk, "a constant lies in 'f', but there are no weights");
    v = bent_const(&mk, PB__DATA_TYPE__FLOAT16, 4, 8);
    v->type->tensortype->dimensions[0]->dimension_case =
        PB__DIMENSION__DIMENSION_UNKNOWN;
    v->type->tensortype->dimensions[0]->unknown =
        MAKE(&mk, dimension__unknown_dimension);
    refuse(&mk, "a constant without a fixed size");
    v = bent_const(&mk, PB__DATA_TYPE__INT16, 1, 2);
    v->immediatevalue->tensor->value_case = PB__TENSOR_VALUE__VALUE_INTS;
    v->immediatevalue->tensor->ints = MAKE(&mk, tensor_value__repeated_ints);
    v->immediatevalue->tensor->ints->n_values = 1;
    v->immediatevalue->tensor->ints->values = room(&mk, 4);
    v->immediatevalue->tensor->ints->values[0] = 40000;
    refuse(&mk, "40000 is no int16 value");
    begin(&mk);
    op_of(&mk, "const", "k", "k");
    refuse(&mk, "a constant without a value");
}

/* Kept raw, an unknown operation survives to the byte. */
Test(codec, foreign_operations)
{
    struct made mk;
    struct err e = ERR_INIT;
    struct mil_program *p, *q;
    struct buf one = BUF_INIT, two = BUF_INIT;
    Pb__Operation *o;

    begin(&mk);
    o = op_of(&mk, "lstm", "cell", "y");
    bind_name(&mk, o, "x", "x");
    bind_value(&mk, o, "direction", string_value(&mk, "forward"));
    set_attribute(&mk, o, "activation", string_value(&mk, "tanh"));
    p = finish_raw(&mk, true, &e);
    cr_assert_not_null(p, "%s", e.text);
    cr_assert_eq(p->functions[0]->ops[0].code, MIL_OP_INVALID);
    cr_assert_str_eq(mil_op_type(&p->functions[0]->ops[0]), "lstm");
    cr_assert_eq(mil_validate(p, &e), -1);
    err_reset(&e);
    encode(p, &one);
    q = decode(&one, true, &e);
    cr_assert_not_null(q, "%s", e.text);
    cr_assert_eq(q->functions[0]->ops[0].foreign->n_args, 3);
    encode(q, &two);
    cr_assert_eq(one.len, two.len);
    cr_assert_eq(memcmp(one.data, two.data, one.len), 0);
    buf_release(&one);
    buf_release(&two);
    mil_program_free(p);
    mil_program_free(q);
}

/* ---- the description against the program ---- */

static void describe(struct made *mk, Pb__ArrayDataType d, size_t rank,
                     int64_t dim)
{
    static const char *const names[] = { "x", "y" };
    Pb__ModelDescription *md = MAKE(mk, model_description);
    int i;

    mk->m->description = md;
    md->input = room(mk, 64);
    md->output = room(mk, 64);
    for (i = 0; i < 2; i++) {
        Pb__FeatureDescription *f = MAKE(mk, feature_description);
        Pb__ArrayFeatureType *a = MAKE(mk, array_feature_type);

        f->name = (char *)names[i];
        f->type = MAKE(mk, feature_type);
        f->type->type_case = PB__FEATURE_TYPE__TYPE_MULTI_ARRAY_TYPE;
        f->type->multiarraytype = a;
        a->datatype = d;
        a->n_shape = rank;
        a->shape = room(mk, 64);
        a->shape[0] = dim;
        if (i)
            md->output[md->n_output++] = f;
        else
            md->input[md->n_input++] = f;
    }
}

static void differs(struct made *mk, const char *text)
{
    size_t n = pb__model__get_packed_size(mk->m);
    uint8_t *bytes = room(mk, n);
    struct codec_described d = CODEC_DESCRIBED_INIT;
    struct err e = ERR_INIT;
    struct mil_program *p;

    pb__model__pack(mk->m, bytes);
    p = codec_decode(bytes, n, NULL, &d, &e);
    cr_assert_not_null(p, "%s", e.text);
    if (text)
        cr_assert_not_null(strstr(d.difference.text, text), "got: %s",
                           d.difference.text);
    else
        cr_assert_eq(d.difference.code, ERR_OK, "%s", d.difference.text);
    cr_assert_eq(d.message.len > 0, mk->m->description != NULL);
    buf_release(&d.message);
    arena_release(&mk->a);
    mil_program_free(p);
}

static Pb__ModelDescription *described(struct made *mk, Pb__ArrayDataType d,
                                       size_t rank, int64_t dim)
{
    begin(mk);
    relu(mk);
    describe(mk, d, rank, dim);
    return mk->m->description;
}

#define HALF PB__ARRAY_DATA_TYPE__ARRAY_FLOAT16

Test(codec, descriptions)
{
    struct made mk;
    Pb__ModelDescription *d;

    described(&mk, HALF, 1, 4);
    differs(&mk, NULL);
    described(&mk, PB__ARRAY_DATA_TYPE__ARRAY_FLOAT32, 1, 4);
    differs(&mk, "function 'main': input 'x': described as fp32, the program "
                 "has tensor<fp16, [4]>");
    described(&mk, 7, 1, 4);
    differs(&mk, "described with unknown type 7");
    described(&mk, HALF, 1, 5);
    differs(&mk, "input 'x': described with another shape");
    described(&mk, HALF, 2, 4);
    differs(&mk, "described with another shape");
    described(&mk, HALF, 0, 4);
    differs(&mk, "described with another shape");
    d = described(&mk, HALF, 1, 4);
    d->output[0]->type->multiarraytype->n_shape = 0;
    differs(&mk, NULL);
    d = described(&mk, HALF, 1, 4);
    d->output[0]->name = (char *)"z";
    differs(&mk, "output 'y' is not described");
    d = described(&mk, HALF, 1, 4);
    d->n_input = 0;
    differs(&mk, "input 'x' is not described");
    d = described(&mk, HALF, 1, 4);
    d->input[d->n_input++] = d->output[0];
    differs(&mk, "input 'y' is described, the program has none");
    d = described(&mk, HALF, 1, 4);
    d->input[d->n_input++] = d->input[0];
    differs(&mk, "an input is described twice");
    d = described(&mk, HALF, 1, 4);
    d->state = d->output;
    d->n_state = 1;
    differs(&mk, "state 'y' is described, the program has none");
    d = described(&mk, HALF, 1, 4);
    d->input[0]->type = NULL;
    differs(&mk, "input 'x': described without a type");
    d = described(&mk, HALF, 1, 4);
    d->input[0]->type->type_case = PB__FEATURE_TYPE__TYPE_INT64_TYPE;
    d->input[0]->type->int64type.len = 0;
    differs(&mk, "described as no array");
    d = described(&mk, HALF, 1, 4);
    d->input[0]->type->multiarraytype->shape_flexibility_case =
        PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_SHAPE_RANGE;
    d->input[0]->type->multiarraytype->shaperange =
        MAKE(&mk, array_feature_type__shape_range);
    differs(&mk, "described with a flexible shape");
    d = described(&mk, HALF, 1, 4);
    d->defaultfunctionname = (char *)"main";
    differs(&mk, "functions are described beside inputs");
    d = described(&mk, HALF, 1, 4);
    d->n_input = d->n_output = 0;
    d->defaultfunctionname = (char *)"other";
    differs(&mk, "the default function 'other' is not in the program");
    d = described(&mk, HALF, 1, 4);
    d->n_input = d->n_output = 0;
    d->defaultfunctionname = (char *)"main";
    differs(&mk, "0 functions are described, the program has 1");
    begin(&mk);
    relu(&mk);
    differs(&mk, "the model has no description");
}

static Pb__ArrayFeatureType *array(const Pb__ModelDescription *d)
{
    return d->input[0]->type->multiarraytype;
}

/* x of the program and of the description is open. */
static Pb__ModelDescription *described_open(struct made *mk)
{
    Pb__ModelDescription *d = described(mk, HALF, 1, 4);
    Pb__Dimension *x[2];
    int i;

    x[0] = mk->f->inputs[0]->type->tensortype->dimensions[0];
    x[1] = mk->b->operations[0]->outputs[0]->type->tensortype->dimensions[0];
    for (i = 0; i < 2; i++) {
        x[i]->dimension_case = PB__DIMENSION__DIMENSION_UNKNOWN;
        x[i]->unknown = MAKE(mk, dimension__unknown_dimension);
    }
    d->output[0]->type->multiarraytype->n_shape = 0;
    return d;
}

static void enumerate(struct made *mk, Pb__ArrayFeatureType *a, size_t n,
                      size_t rank)
{
    size_t i;

    a->shape_flexibility_case =
        PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_ENUMERATED_SHAPES;
    a->enumeratedshapes = MAKE(mk, array_feature_type__enumerated_shapes);
    a->enumeratedshapes->shapes = room(mk, 8 * n);
    a->enumeratedshapes->n_shapes = n;
    for (i = 0; i < n; i++) {
        Pb__ArrayFeatureType__Shape *s = MAKE(mk, array_feature_type__shape);

        s->n_shape = rank;
        s->shape = room(mk, 64);
        s->shape[0] = (int64_t)i + 1;
        a->enumeratedshapes->shapes[i] = s;
    }
}

static void range(struct made *mk, Pb__ArrayFeatureType *a, uint64_t low,
                  int64_t high)
{
    Pb__SizeRange *r = MAKE(mk, size_range);

    a->shape_flexibility_case =
        PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_SHAPE_RANGE;
    a->shaperange = MAKE(mk, array_feature_type__shape_range);
    a->shaperange->n_sizeranges = 1;
    a->shaperange->sizeranges = room(mk, 8);
    a->shaperange->sizeranges[0] = r;
    r->lowerbound = low;
    r->upperbound = high;
}

static const struct mil_shapes *accepted(const struct mil_program *p)
{
    const struct mil_function *f = p->functions[0];

    cr_assert_not_null(mil_value(f, f->inputs[0])->shapes);
    return mil_value(f, f->inputs[0])->shapes;
}

Test(codec, flexible_descriptions)
{
    const struct mil_shapes *s;
    struct made mk;
    Pb__ModelDescription *d;
    struct err e = ERR_INIT;
    struct mil_program *p;

    described_open(&mk);
    differs(&mk, "input 'x': described with a fixed shape, the program has "
                 "tensor<fp16, [?]>");
    d = described_open(&mk);
    enumerate(&mk, array(d), 0, 1);
    differs(&mk, "described with an empty list of shapes");
    d = described_open(&mk);
    enumerate(&mk, array(d), 3, 2);
    differs(&mk, "described with a shape that does not fit");
    d = described_open(&mk);
    enumerate(&mk, array(d), 3, 1);
    differs(&mk, NULL);
    d = described_open(&mk);
    range(&mk, array(d), 1, -1);
    differs(&mk, NULL);
    d = described_open(&mk);
    range(&mk, array(d), 1, -1);
    array(d)->shaperange->n_sizeranges = 0;
    differs(&mk, "described with ranges of another rank");
    d = described(&mk, HALF, 1, 4);
    range(&mk, array(d), 4, 5);
    differs(&mk, "described with a flexible shape");
    d = described(&mk, HALF, 0, 4);
    range(&mk, array(d), 4, 5);
    differs(&mk, "described with a range in a fixed dimension");
    d = described(&mk, HALF, 1, 4);
    d->input[0]->type->type_case = PB__FEATURE_TYPE__TYPE_IMAGE_TYPE;
    d->input[0]->type->imagetype = MAKE(&mk, image_feature_type);
    differs(&mk, "described as an image, which has rank 4");
    /* As listed; more than the limit are refused. */
    d = described_open(&mk);
    enumerate(&mk, array(d), 5, 1);
    p = finish_raw(&mk, false, &e);
    cr_assert_not_null(p, "%s", e.text);
    s = accepted(p);
    cr_assert_eq(s->n, 5);
    cr_assert_eq(s->first.dims[0], 4);
    cr_assert_eq(s->list[0].dims[0], 1);
    cr_assert_eq(s->list[3].dims[0], 4);
    mil_program_free(p);
    d = described_open(&mk);
    range(&mk, array(d), 2, -1);
    p = finish_raw(&mk, false, &e);
    cr_assert_not_null(p, "%s", e.text);
    s = accepted(p);
    cr_assert_eq(s->n, 0);
    cr_assert_eq(s->first.dims[0], 4);
    cr_assert_eq(s->low[0], 2);
    cr_assert_eq(s->high[0], -1);
    mil_program_free(p);
    d = described_open(&mk);
    enumerate(&mk, array(d), 129, 1);
    refuse(&mk, "more than 128 accepted shapes are described");
}

/* Two functions in the program, described as bent. */
static Pb__ModelDescription *described_twice(struct made *mk)
{
    Pb__ModelDescription *d = described(mk, HALF, 1, 4);
    Pb__Program *p = mk->m->mlprogram;
    int i;

    p->functions[1] = MAKE(mk, program__functions_entry);
    p->functions[1]->key = (char *)"other";
    p->functions[1]->value = p->functions[0]->value;
    p->n_functions = 2;
    d->functions = room(mk, 64);
    for (i = 0; i < 2; i++) {
        Pb__FunctionDescription *f = MAKE(mk, function_description);

        f->name = p->functions[i]->key;
        f->input = d->input;
        f->n_input = 1;
        f->output = d->output;
        f->n_output = 1;
        d->functions[d->n_functions++] = f;
    }
    d->n_input = d->n_output = 0;
    d->defaultfunctionname = (char *)"other";
    return d;
}

Test(codec, descriptions_of_several_functions)
{
    struct made mk;
    Pb__ModelDescription *d;

    described_twice(&mk);
    differs(&mk, NULL);
    d = described_twice(&mk);
    d->functions[1]->n_output = 0;
    differs(&mk, "function 'other': output 'y' is not described");
    d = described_twice(&mk);
    d->functions[1]->name = (char *)"third";
    differs(&mk, "function 'third' is described, the program has none");
    d = described_twice(&mk);
    d->functions[1]->name = (char *)"main";
    differs(&mk, "function 'other': it is not described");
    d = described_twice(&mk);
    d->defaultfunctionname = (char *)"";
    differs(&mk, "the default function '' is not in the program");
    d = described_twice(&mk);
    d->n_functions = 0;
    d->defaultfunctionname = (char *)"";
    differs(&mk, "one function 'main' is described, the program has 2");
}

/* ---- bytes that are no model ---- */

static void no_model(const void *bytes, size_t n, const char *text)
{
    struct err e = ERR_INIT;

    cr_assert_null(codec_decode(bytes, n, NULL, NULL, &e));
    cr_assert_not_null(strstr(e.text, text), "got: %s", e.text);
    cr_assert_neq(e.code, ERR_OK);
}

/* `levels` messages, each the only content of the one around it. */
static uint8_t *nest(size_t levels, size_t *n)
{
    /* Block inside Operation inside Block: fields 3 and 4. */
    size_t cap = levels * 6 + 64, len = 0, i;
    uint8_t *end = malloc(cap), *p = end + cap;

    for (i = 0; i < levels; i++) {
        size_t v = len;
        uint8_t head[6];
        size_t h = 0;

        head[h++] = (levels - i) % 2 ? 0x1a : 0x22;
        do {
            head[h++] = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
            v >>= 7;
        } while (v);
        p -= h;
        memcpy(p, head, h);
        len += h;
    }
    memmove(end, p, len);
    *n = len;
    return end;
}

/* The bytes as a field; `p` may be `to`. */
static size_t wrap(uint8_t *to, uint32_t field, const uint8_t *p, size_t n)
{
    uint8_t head[16];
    size_t h = 0, v = (size_t)field << 3 | 2;

    for (; v > 127; v >>= 7)
        head[h++] = (uint8_t)(v | 128);
    head[h++] = (uint8_t)v;
    for (v = n; v > 127; v >>= 7)
        head[h++] = (uint8_t)(v | 128);
    head[h++] = (uint8_t)v;
    memmove(to + h, p, n);
    memcpy(to, head, h);
    return h + n;
}

/* A block as the body of function main. */
static size_t in_model(const uint8_t *block, size_t n, uint8_t *out)
{
    n = wrap(out, 2, block, n); /* value of the specialization */
    n = wrap(out, 3, out, n);   /* Function.block_specializations */
    n = wrap(out, 2, out, n);   /* value of the function */
    n = wrap(out, 2, out, n);   /* Program.functions */
    return wrap(out, 502, out, n);
}

Test(codec, deep_nesting)
{
    static const size_t levels[] = { 57, 58, 59, 200, 20000 };
    size_t i;

    for (i = 0; i < 5; i++) {
        size_t n;
        uint8_t *block = nest(levels[i], &n), *all = malloc(n + 64);

        n = in_model(block, n, all);
        no_model(all, n,
                 i < 2 ? "program version 0"
                       : "messages are nested deeper than 64 levels");
        free(block);
        free(all);
    }
}

Test(codec, broken_wire)
{
    uint8_t many[4096];
    size_t i;

    no_model("", 0, "the model is no ML Program");
    no_model("\0", 1, "byte 0: no field starts here");
    no_model("\x07", 1, "no field starts here");
    no_model("\x08", 1, "a number is cut off");
    no_model("\x08\x80", 2, "a number is cut off");
    no_model("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12,
             "longer than 10 bytes");
    no_model("\x0d\0\0", 3, "a number is cut off");
    no_model("\x0b\x0c", 2, "an unsupported wire type");
    no_model("\x0f\0", 2, "an unsupported wire type");
    no_model("\x12\x05\x0a", 3, "byte 0: a length reaches beyond its parent");
    no_model("\x12\xff\xff\xff\xff\x0f", 6, "reaches beyond its parent");
    no_model("\x12\x80\x80\x80\x80\x80\x01", 7, "reaches beyond its parent");
    no_model("\x12\x02\x0a\x01", 4, "byte 2: a length reaches beyond");
    no_model("\x0d\0\0\0\0", 5,
             "field 'specificationVersion' has wire type 5, "
             "not 0");
    no_model("\x10\x01", 2, "field 'description' has wire type 0, not 2");
    no_model("\x08\x09\x08\x09", 4,
             "byte 2: field 'specificationVersion' is "
             "set a second time");
    /* Two members of the oneof: pipeline, neuralNetwork. */
    no_model("\xd2\x0c\x00\xa2\x1f\x00", 6,
             "field 'neuralNetwork' is set a "
             "second time");
    no_model("\x12\x04\x5a\x02\xc0\x80", 6,
             "field 'predictedFeatureName' is "
             "not UTF-8 text");
    no_model("\x12\x04\x5a\x02\x41\x00", 6, "is not UTF-8 text");
    no_model("\x12\x05\x5a\x03\xed\xa0\x80", 7, "is not UTF-8 text");
    no_model("\x12\x06\x5a\x04\xf4\x90\x80\x80", 8, "is not UTF-8 text");
    /* A packed list with half a number at its end: description.input.type
     * .multiArrayType.shape. */
    no_model("\x12\x0b\x0a\x09\x1a\x07\x2a\x05\x0a\x03\x01\x02\x80", 13,
             "a packed list has a broken last element");
    /* Empty messages cost much memory per byte; few are fine. */
    for (i = 0; i < sizeof(many); i += 2)
        memcpy(many + i, "\x52\0", 2);
    {
        uint8_t out[5000];

        no_model(out, wrap(out, 2, many, sizeof(many)),
                 "the model is no ML Program");
    }
}

Test(codec, memory_is_bounded)
{
    size_t n = (size_t)24 << 20, i;
    uint8_t *many = malloc(n + 16);

    for (i = 0; i < n; i += 2)
        memcpy(many + 8 + i, "\x52\0", 2);
    no_model(many, wrap(many, 2, many + 8, n),
             "would take more than 1073741824 bytes of memory when unpacked");
    free(many);
}

/* Flips, cuts and splices of a real model: refused, or decoded; what decodes
 * and validates must encode again. */
Test(codec, mutations)
{
    struct mil_program *p = ts_example(), *q;
    struct buf one = BUF_INIT, two = BUF_INIT;
    uint64_t seed = 11;
    struct err e = ERR_INIT;
    int i, valid = 0, decoded = 0;
    uint8_t *bytes;

    encode(p, &one);
    mil_program_free(p);
    cr_assert_eq(blob_open(&reader, t_path(dir, "weight.bin"), &e), 0);
    bytes = malloc(one.len);
    for (i = 0; i < 20000; i++) {
        struct codec_options o = { { get_blob, NULL }, i % 2 == 1 };
        size_t n = one.len, k, changes = 1 + ts_random(&seed) % 3;
        struct codec_described d = CODEC_DESCRIBED_INIT;

        if (i % 5 == 0)
            n = ts_random(&seed) % n;
        memcpy(bytes, one.data, one.len);
        for (k = 0; k < changes && n; k++) {
            size_t at = ts_random(&seed) % n;

            if (ts_random(&seed) % 2)
                bytes[at] ^= (uint8_t)(1 << ts_random(&seed) % 8);
            else
                bytes[at] = (uint8_t)ts_random(&seed);
        }
        err_reset(&e);
        q = codec_decode(bytes, n, &o, &d, &e);
        cr_assert_eq(q == NULL, e.code != ERR_OK);
        buf_release(&d.message);
        decoded += q != NULL;
        if (q && mil_validate(q, &e) == 0) {
            struct blob_writer *w =
                blob_writer_new(t_path(dir, "again"), NULL, &e);

            buf_clear(&two);
            err_reset(&e);
            if (codec_encode(q, w, &two, &e))
                cr_assert_neq(e.text[0], '\0');
            else
                valid++;
            blob_writer_free(w);
            err_reset(&e);
            cr_assert_eq(io_remove_tree(t_path(dir, "again"), &e), 0);
        }
        mil_program_free(q);
    }
    cr_assert_gt(decoded, 100);
    cr_assert_gt(valid, 100);
    blob_close(&reader);
    free(bytes);
    buf_release(&one);
    buf_release(&two);
}
