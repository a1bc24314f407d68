/*
 * metadata.json of a compiled model: the description and some counts, for
 * tools and people; no loader is known to read it. All scalars but versions
 * and counts are strings. Key order and white space are ours.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/json.h"
#include "schema/compiled_priv.h"
#include "schema/proto_priv.h"

#define TIMES " \xc3\x97 " /* U+00D7 */

struct json {
    const struct mil_program *p;
    const Pb__ModelDescription *d;
    struct js_writer w;
    struct err *e;
};

/* ---- shapes ---- */

static void put_sizes(struct buf *b, const int64_t *dims, size_t n,
                      const char *between)
{
    size_t i;

    for (i = 0; i < n; i++)
        buf_printf(b, "%s%" PRId64, i ? between : "", dims[i]);
}

static void put_list(struct buf *b, const int64_t *dims, size_t n)
{
    buf_addc(b, '[');
    put_sizes(b, dims, n, ", ");
    buf_addc(b, ']');
}

static void put_range(struct buf *b, const Pb__SizeRange *r)
{
    buf_printf(b, "%" PRIu64, r->lowerbound);
    if (r->upperbound < 0)
        buf_puts(b, "...");
    else if ((uint64_t)r->upperbound != r->lowerbound)
        buf_printf(b, "...%" PRId64, r->upperbound);
}

/* A string member whose text is composed in `b`, which is emptied. */
static int flush(struct json *j, const char *key, struct buf *b)
{
    if (buf_ok(b, j->e)) {
        buf_release(b);
        return -1;
    }
    js_w_string(&j->w, key, buf_text(b));
    buf_release(b);
    return 0;
}

static int enumerated(struct json *j,
                      const Pb__ArrayFeatureType__EnumeratedShapes *list)
{
    struct buf shapes = BUF_INIT, text = BUF_INIT;
    size_t i;

    buf_addc(&shapes, '[');
    for (i = 0; i < list->n_shapes; i++) {
        const Pb__ArrayFeatureType__Shape *s = list->shapes[i];

        buf_puts(&shapes, i ? ", " : "");
        put_list(&shapes, s->shape, s->n_shape);
        buf_puts(&text, i ? " | " : "");
        put_sizes(&text, s->shape, s->n_shape, TIMES);
    }
    buf_addc(&shapes, ']');
    if (flush(j, "enumeratedShapes", &shapes)) {
        buf_release(&text);
        return -1;
    }
    return flush(j, "shapeFlexibility", &text);
}

static int ranges(struct json *j, const Pb__ArrayFeatureType__ShapeRange *r)
{
    struct buf shapes = BUF_INIT, text = BUF_INIT;
    size_t i;

    buf_addc(&shapes, '[');
    for (i = 0; i < r->n_sizeranges; i++) {
        const Pb__SizeRange *s = r->sizeranges[i];

        buf_printf(&shapes, "%s[%" PRIu64 ", %" PRId64 "]", i ? ", " : "",
                   s->lowerbound, s->upperbound < 0 ? -1 : s->upperbound);
        buf_puts(&text, i ? TIMES : "");
        put_range(&text, s);
    }
    buf_addc(&shapes, ']');
    if (flush(j, "shapeRange", &shapes)) {
        buf_release(&text);
        return -1;
    }
    return flush(j, "shapeFlexibility", &text);
}

/* ---- features ---- */

static const char *array_name(Pb__ArrayDataType t)
{
    switch (t) {
    case PB__ARRAY_DATA_TYPE__ARRAY_FLOAT16: return "Float16";
    case PB__ARRAY_DATA_TYPE__ARRAY_FLOAT32: return "Float32";
    case PB__ARRAY_DATA_TYPE__ARRAY_DOUBLE: return "Double";
    case PB__ARRAY_DATA_TYPE__ARRAY_INT32: return "Int32";
    case PB__ARRAY_DATA_TYPE__ARRAY_INT8: return "Int8";
    default: return "Unknown";
    }
}

static int array(struct json *j, const char *kind,
                 const Pb__ArrayFeatureType *a)
{
    const char *type = array_name(a->datatype);
    struct buf b = BUF_INIT;
    bool list = a->shape_flexibility_case ==
                PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_ENUMERATED_SHAPES;
    bool range = a->shape_flexibility_case ==
                 PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_SHAPE_RANGE;

    js_w_string(&j->w, "type", kind);
    js_w_string(&j->w, "dataType", type);
    js_w_string(&j->w, "hasShapeFlexibility", list || range ? "1" : "0");
    put_list(&b, a->shape, a->n_shape);
    if (flush(j, "shape", &b))
        return -1;
    buf_printf(&b, "%s (%s", kind, type);
    buf_puts(&b, a->n_shape ? " " : "");
    put_sizes(&b, a->shape, a->n_shape, TIMES);
    buf_addc(&b, ')');
    if (flush(j, "formattedType", &b))
        return -1;
    if (list)
        return enumerated(j, a->enumeratedshapes);
    return range ? ranges(j, a->shaperange) : 0;
}

static int image(struct json *j, const Pb__ImageFeatureType *i)
{
    bool gray = i->colorspace == 10 || i->colorspace == 40;
    struct buf b = BUF_INIT;

    js_w_string(&j->w, "type", "Image");
    js_w_string(&j->w, "isColor", gray ? "0" : "1");
    js_w_string(&j->w, "colorspace",
                i->colorspace == 40   ? "Grayscale16Half"
                : i->colorspace == 10 ? "Grayscale"
                : i->colorspace == 30 ? "BGR"
                                      : "RGB");
    js_w_string(&j->w, "hasSizeFlexibility", "0");
    buf_printf(&b, "%" PRId64, i->width);
    if (flush(j, "width", &b))
        return -1;
    buf_printf(&b, "%" PRId64, i->height);
    if (flush(j, "height", &b))
        return -1;
    buf_printf(&b, "Image (%s %" PRId64 TIMES "%" PRId64 ")",
               gray ? "Grayscale" : "Color", i->width, i->height);
    return flush(j, "formattedType", &b);
}

static int type(struct json *j, const Pb__FeatureType *t)
{
    const char *kind = "Unknown";

    switch (t ? t->type_case : PB__FEATURE_TYPE__TYPE__NOT_SET) {
    case PB__FEATURE_TYPE__TYPE_MULTI_ARRAY_TYPE:
        return array(j, "MultiArray", t->multiarraytype);
    case PB__FEATURE_TYPE__TYPE_STATE_TYPE:
        if (t->statetype->type_case == PB__STATE_FEATURE_TYPE__TYPE_ARRAY_TYPE)
            return array(j, "State", t->statetype->arraytype);
        break;
    case PB__FEATURE_TYPE__TYPE_IMAGE_TYPE: return image(j, t->imagetype);
    case PB__FEATURE_TYPE__TYPE_INT64_TYPE: kind = "Int64"; break;
    case PB__FEATURE_TYPE__TYPE_DOUBLE_TYPE: kind = "Double"; break;
    case PB__FEATURE_TYPE__TYPE_STRING_TYPE: kind = "String"; break;
    case PB__FEATURE_TYPE__TYPE_DICTIONARY_TYPE: kind = "Dictionary"; break;
    case PB__FEATURE_TYPE__TYPE_SEQUENCE_TYPE: kind = "Sequence"; break;
    case PB__FEATURE_TYPE__TYPE__NOT_SET:
    default: break;
    }
    js_w_string(&j->w, "type", kind);
    js_w_string(&j->w, "formattedType", kind);
    return 0;
}

static int features(struct json *j, const char *key,
                    Pb__FeatureDescription *const *list, size_t n)
{
    int rc = 0;
    size_t i;

    js_w_array(&j->w, key, false);
    for (i = 0; rc == 0 && i < n; i++) {
        js_w_object(&j->w, NULL);
        js_w_string(&j->w, "name", list[i]->name);
        js_w_string(&j->w, "shortDescription", list[i]->shortdescription);
        js_w_string(&j->w, "isOptional",
                    list[i]->type && list[i]->type->isoptional ? "1" : "0");
        rc = type(j, list[i]->type);
        js_w_end(&j->w);
    }
    js_w_end(&j->w);
    return rc;
}

/* ---- sets of words ---- */

/* Few at a time: types and operations of one function. */
#define MAX_WORDS 1024

struct words {
    struct word {
        char *text;
        uint64_t count;
    } * items;
    size_t n, cap;
};

static int note(struct words *w, const char *text, struct err *e)
{
    void *items = w->items;
    size_t i;

    if (!text)
        return 0;
    for (i = 0; i < w->n; i++)
        if (strcmp(w->items[i].text, text) == 0) {
            w->items[i].count++;
            return 0;
        }
    if (w->n == MAX_WORDS)
        return err_set(e, ERR_UNSUPPORTED, "more than %d kinds of operations",
                       MAX_WORDS);
    if (mem_grow(&items, &w->cap, w->n, sizeof(*w->items), e))
        return -1;
    w->items = items;
    w->items[w->n].text = mem_strdup(text, e);
    if (!w->items[w->n].text)
        return -1;
    w->items[w->n++].count = 1;
    return 0;
}

static int by_text(const void *a, const void *b)
{
    const struct word *x = a, *y = b;

    return strcmp(x->text, y->text);
}

static void words_sort(struct words *w)
{
    if (w->n)
        qsort(w->items, w->n, sizeof(*w->items), by_text);
}

static void words_release(struct words *w)
{
    size_t i;

    for (i = 0; i < w->n; i++)
        mem_free(w->items[i].text);
    mem_free(w->items);
    memset(w, 0, sizeof(*w));
}

/* "A", or "Mixed (A, B)". */
static int put_words(struct json *j, const char *key, struct words *w)
{
    struct buf b = BUF_INIT;
    size_t i;

    words_sort(w);
    buf_puts(&b, w->n > 1 ? "Mixed (" : "");
    for (i = 0; i < w->n; i++)
        buf_printf(&b, "%s%s", i ? ", " : "", w->items[i].text);
    buf_puts(&b, w->n > 1 ? ")" : "");
    return flush(j, key, &b);
}

/* ---- precision ---- */

static const char *precision_name(enum mil_dtype d)
{
    static const char *const names[MIL_DTYPE_COUNT] = {
        [MIL_F16] = "Float16",   [MIL_F32] = "Float32", [MIL_F64] = "Double",
        [MIL_BF16] = "BFloat16", [MIL_I4] = "Int4",     [MIL_I8] = "Int8",
        [MIL_I16] = "Int16",     [MIL_I32] = "Int32",   [MIL_I64] = "Int64",
        [MIL_U1] = "UInt1",      [MIL_U2] = "UInt2",    [MIL_U3] = "UInt3",
        [MIL_U4] = "UInt4",      [MIL_U6] = "UInt6",    [MIL_U8] = "UInt8",
        [MIL_U16] = "UInt16",    [MIL_U32] = "UInt32",  [MIL_U64] = "UInt64",
    };

    return names[d]; /* NULL: bool, string */
}

/* The numeric types of all results. */
static int compute_precision(struct json *j, const struct mil_function *f)
{
    struct words w = { NULL, 0, 0 };
    int rc = 0;
    size_t i;
    uint32_t k;

    for (i = 0; rc == 0 && i < f->n_ops; i++)
        for (k = 0; rc == 0 && k < f->ops[i].n_outs; k++) {
            enum mil_dtype d = mil_value(f, f->ops[i].outs[k])->type.dtype;

            rc = note(&w, precision_name(d), j->e);
        }
    if (!rc)
        rc = put_words(j, "computePrecision", &w);
    words_release(&w);
    return rc;
}

static int note_palette(struct words *w, const struct mil_const *indices,
                        const struct mil_const *table, bool older,
                        struct err *e)
{
    unsigned bits = 0;
    int64_t n;
    char *text;
    int rc;

    if (older)
        for (n = mil_type_elems(&table->type); n > 1; n /= 2)
            bits++;
    else
        bits = mil_dtype_bits(indices->type.dtype);
    text = mem_printf(e, "Palettized (%u bits)", bits);
    rc = text ? note(w, text, e) : -1;
    mem_free(text);
    return rc;
}

static const struct mil_const *constant(const struct mil_function *f,
                                        const struct mil_arg *a)
{
    return a->n == 1 ? mil_value(f, a->refs[0])->konst : NULL;
}

/* Tables count as palettes whatever they hold; else each type in the file. */
static int note_stored(struct words *w, const struct mil_function *f,
                       const struct mil_op *op, struct err *e)
{
    const struct mil_op_info *info = mil_op_info(op->code);
    uint32_t n = op->foreign ? op->foreign->n_args : (uint32_t)info->n_params;
    const struct mil_const *indices = NULL, *table = NULL;
    bool stored = false;
    uint32_t i;

    if (op->code == MIL_OP_const) {
        const struct mil_const *k = mil_value(f, op->outs[0])->konst;

        return k && k->data ? note(w, precision_name(k->type.dtype), e) : 0;
    }
    for (i = 0; i < n; i++) {
        const char *name =
            op->foreign ? op->foreign->args[i].name : info->params[i].name;
        const struct mil_arg *a =
            op->foreign ? &op->foreign->args[i].arg : &op->args[i];
        const struct mil_const *k = constant(f, a);
        bool literal =
            k && mil_value(f, a->refs[0])->kind == MIL_V_LITERAL && k->data;

        if (strcmp(name, "indices") == 0)
            indices = k;
        if (strcmp(name, "lut") == 0)
            table = k;
        stored = stored || literal;
        if (literal && strcmp(mil_op_type(op), "constexpr_lut_to_dense") != 0 &&
            note(w, precision_name(k->type.dtype), e))
            return -1;
    }
    if (!stored)
        return 0;
    if (strcmp(mil_op_type(op), "constexpr_sparse_to_dense") == 0)
        return note(w, "Sparse", e);
    if (strcmp(mil_op_type(op), "constexpr_lut_to_dense") == 0 && indices &&
        table)
        return note_palette(w, indices, table, op->foreign != NULL, e);
    return 0;
}

/* Absent where nothing lies in a weight file. */
static int storage_precision(struct json *j, const struct mil_function *f)
{
    struct words w = { NULL, 0, 0 };
    int rc = 0;
    size_t i;

    for (i = 0; rc == 0 && i < f->n_ops; i++)
        rc = note_stored(&w, f, &f->ops[i], j->e);
    if (!rc && w.n)
        rc = put_words(j, "storagePrecision", &w);
    words_release(&w);
    return rc;
}

/* ---- histogram ---- */

#define IOS15 1u
#define IOS16 2u
#define IOS17 4u
#define IOS18 8u

/* In which opsets an operation got a definition of its own, as the names in
 * models of Apple's compiler show; those not listed in all. */
static const struct {
    const char *name;
    unsigned opsets;
} defined[] = {
    { "pad", IOS15 },
    { "split", IOS15 },
    { "tile", IOS15 },
    { "select", IOS15 },
    { "stack", IOS15 },
    { "range_1d", IOS15 },
    { "identity", IOS15 },
    { "shape", IOS15 },
    { "reduce_mean", IOS15 | IOS16 },
    { "reduce_sum", IOS15 | IOS16 },
    { "reduce_max", IOS15 | IOS16 },
    { "reduce_min", IOS15 | IOS16 },
    { "softmax", IOS15 | IOS16 | IOS18 },
    { "sigmoid", IOS15 | IOS16 | IOS18 },
    { "relu", IOS15 | IOS16 | IOS18 },
    { "silu", IOS15 | IOS16 | IOS18 },
    { "slice_by_index", IOS15 | IOS17 | IOS18 },
    { "transpose", IOS15 | IOS17 | IOS18 },
    { "squeeze", IOS15 | IOS17 | IOS18 },
    { "expand_dims", IOS15 | IOS17 | IOS18 },
    { "concat", IOS15 | IOS17 | IOS18 },
    { "reshape", IOS15 | IOS17 | IOS18 },
    { "constexpr_affine_dequantize", IOS16 },
    { "constexpr_sparse_to_dense", IOS16 | IOS18 },
    { "constexpr_lut_to_dense", IOS16 | IOS18 },
    { "constexpr_cast", IOS16 },
};

/* 15 to 18: the last of its definitions that a function's opset has. */
static int definition(const char *op, int opset)
{
    unsigned opsets = IOS15 | IOS16 | IOS17 | IOS18;
    size_t i;
    int v;

    for (i = 0; i < sizeof(defined) / sizeof(defined[0]); i++)
        if (strcmp(defined[i].name, op) == 0)
            opsets = defined[i].opsets;
    for (v = opset > 18 ? 18 : opset; v > 15; v--)
        if (opsets >> (v - 15) & 1)
            return v;
    return 15;
}

/* "Ios17.sliceByIndex"; of the first opset "SliceByIndex". */
static void put_op_name(struct buf *b, const char *op, int opset)
{
    int v = definition(op, opset);
    bool up = v == 15;
    const char *p;

    if (v > 15)
        buf_printf(b, "Ios%d.", v);
    for (p = op; *p; p++) {
        if (*p == '_') {
            up = true;
            continue;
        }
        buf_addc(b, up && *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p);
        up = false;
    }
}

static int histogram(struct json *j, const struct mil_function *f)
{
    int opset = mil_opset_number(f->opset) + 10, rc = 0;
    struct words w = { NULL, 0, 0 };
    size_t i;

    for (i = 0; rc == 0 && i < f->n_ops; i++)
        if (strcmp(mil_op_type(&f->ops[i]), "const") != 0)
            rc = note(&w, mil_op_type(&f->ops[i]), j->e);
    words_sort(&w);
    js_w_object(&j->w, "mlProgramOperationTypeHistogram");
    for (i = 0; rc == 0 && i < w.n; i++) {
        struct buf name = BUF_INIT;

        put_op_name(&name, w.items[i].text, opset);
        rc = buf_ok(&name, j->e);
        if (!rc)
            js_w_uint(&j->w, buf_text(&name), w.items[i].count);
        buf_release(&name);
    }
    js_w_end(&j->w);
    words_release(&w);
    return rc;
}

/* ---- functions ---- */

static int function(struct json *j, const char *name)
{
    const struct mil_function *f = mil_program_find(j->p, name);
    struct describe_lists l;

    if (!f || !describe_find(j->d, name, &l))
        return err_set(j->e, ERR_INPUT, "function '%s' is not described", name);
    if (features(j, "inputSchema", l.in, l.n_in) ||
        features(j, "outputSchema", l.out, l.n_out) ||
        features(j, "stateSchema", l.state, l.n_state) ||
        storage_precision(j, f) || compute_precision(j, f))
        return -1;
    return histogram(j, f);
}

static int functions(struct json *j)
{
    int rc = 0;
    size_t i;

    js_w_array(&j->w, "functions", false);
    for (i = 0; rc == 0 && i < j->d->n_functions; i++) {
        js_w_object(&j->w, NULL);
        js_w_string(&j->w, "name", j->d->functions[i]->name);
        rc = function(j, j->d->functions[i]->name);
        js_w_end(&j->w);
    }
    js_w_end(&j->w);
    js_w_string(&j->w, "defaultFunctionName", j->d->defaultfunctionname);
    return rc;
}

/* ---- the model ---- */

static void availability(struct json *j)
{
    static const struct {
        const char *macos, *ios, *vision, *watch;
    } rows[] = {
        { "12.0", "15.0", "1.0", "8.0" },
        { "13.0", "16.0", "1.0", "9.0" },
        { "14.0", "17.0", "1.0", "10.0" },
        { "15.0", "18.0", "2.0", "11.0" },
    };
    int row = j->p->spec_version - 6;

    row = row < 0 ? 0 : row > 3 ? 3 : row;
    js_w_object(&j->w, "availability");
    js_w_string(&j->w, "macOS", rows[row].macos);
    js_w_string(&j->w, "tvOS", rows[row].ios);
    js_w_string(&j->w, "visionOS", rows[row].vision);
    js_w_string(&j->w, "watchOS", rows[row].watch);
    js_w_string(&j->w, "iOS", rows[row].ios);
    js_w_string(&j->w, "macCatalyst", rows[row].ios);
    js_w_end(&j->w);
}

static void if_set(struct json *j, const char *key, const char *value)
{
    if (*value)
        js_w_string(&j->w, key, value);
}

static void metadata(struct json *j)
{
    const Pb__Metadata *m = j->d->metadata;
    size_t i;

    if (m) {
        if_set(j, "shortDescription", m->shortdescription);
        if_set(j, "version", m->versionstring);
        if_set(j, "author", m->author);
        if_set(j, "license", m->license);
    }
    js_w_object(&j->w, "userDefinedMetadata");
    for (i = 0; m && i < m->n_userdefined; i++)
        js_w_string(&j->w, m->userdefined[i]->key, m->userdefined[i]->value);
    js_w_end(&j->w);
}

static int class_name(struct json *j, const char *name)
{
    struct buf b = BUF_INIT;

    for (; *name; name++)
        buf_addc(&b, (*name >= '0' && *name <= '9') ||
                             (*name >= 'A' && *name <= 'Z') ||
                             (*name >= 'a' && *name <= 'z')
                         ? *name
                         : '_');
    return flush(j, "generatedClassName", &b);
}

int compiled_json(const struct mil_program *p, const Pb__ModelDescription *d,
                  const char *name, struct buf *out, struct err *e)
{
    struct json j = { .p = p, .d = d, .e = e };
    int rc;

    js_w_init(&j.w, out);
    js_w_array(&j.w, NULL, false);
    js_w_object(&j.w, NULL);
    js_w_string(&j.w, "metadataOutputVersion", "3.0");
    js_w_int(&j.w, "specificationVersion", p->spec_version);
    js_w_object(&j.w, "modelType");
    js_w_string(&j.w, "name", "MLModelType_mlProgram");
    js_w_end(&j.w);
    js_w_array(&j.w, "modelParameters", false);
    js_w_end(&j.w);
    js_w_string(&j.w, "isUpdatable", "0");
    js_w_string(&j.w, "method", "predict");
    availability(&j);
    metadata(&j);
    rc = class_name(&j, name);
    if (!rc)
        rc = function(&j, p->functions[0]->name);
    if (!rc && d->n_functions)
        rc = functions(&j);
    js_w_end(&j.w);
    js_w_end(&j.w);
    return rc ? -1 : buf_ok(out, e);
}
