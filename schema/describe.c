/*
 * The model description: made from a program, read into one, compared with
 * one. It says to callers what the program's functions take and give; nothing
 * but this code makes sure that both tell the same story.
 *
 * One function stands in the top-level lists and is called "main"; several
 * stand in `functions`, with a default, and the top level stays empty.
 * Dimensions that the program leaves open are described by a default shape
 * and the list of all accepted ones.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/proto_priv.h"

#define SINGLE_NAME "main"
/* Look-ups by name are linear; no real model comes near these. */
#define MAX_SHAPES 128 /* of one input: Core ML's own limit */
#define MAX_FEATURES 1024
#define MAX_METADATA 4096
#define MAX_ORDERED 64

static const struct {
    enum mil_dtype dtype;
    Pb__ArrayDataType array;
} array_types[] = {
    { MIL_F16, PB__ARRAY_DATA_TYPE__ARRAY_FLOAT16 },
    { MIL_F32, PB__ARRAY_DATA_TYPE__ARRAY_FLOAT32 },
    { MIL_F64, PB__ARRAY_DATA_TYPE__ARRAY_DOUBLE },
    { MIL_I32, PB__ARRAY_DATA_TYPE__ARRAY_INT32 },
    { MIL_I8, PB__ARRAY_DATA_TYPE__ARRAY_INT8 },
};
#define N_ARRAY_TYPES (sizeof(array_types) / sizeof(array_types[0]))

static Pb__ArrayDataType array_of_dtype(enum mil_dtype d)
{
    size_t i;

    for (i = 0; i < N_ARRAY_TYPES; i++)
        if (array_types[i].dtype == d)
            return array_types[i].array;
    return PB__ARRAY_DATA_TYPE__ARRAY_INVALID;
}

static enum mil_dtype array_to_dtype(Pb__ArrayDataType t)
{
    size_t i;

    for (i = 0; i < N_ARRAY_TYPES; i++)
        if (array_types[i].array == t)
            return array_types[i].dtype;
    return MIL_INVALID;
}

/* ---- making ---- */

struct maker {
    struct arena *a;
    const struct mil_program *p;
    struct err *e;
};

#define NEW(m, lower) proto_new((m)->a, &pb__##lower##__descriptor, (m)->e)

static int64_t *shape_of(struct maker *m, const struct mil_type *t)
{
    int64_t *s = arena_alloc(m->a, (size_t)t->rank, sizeof(*s), m->e);

    if (s && t->rank)
        memcpy(s, t->dims, (size_t)t->rank * sizeof(*s));
    return s;
}

static int add_enumerated(struct maker *m, Pb__ArrayFeatureType *a,
                          const struct mil_value *v)
{
    const struct mil_shapes *known = v->shapes;
    Pb__ArrayFeatureType__EnumeratedShapes *list =
        NEW(m, array_feature_type__enumerated_shapes);
    int i;

    if (!list)
        return -1;
    list->shapes =
        arena_alloc(m->a, (size_t)known->n, sizeof(*list->shapes), m->e);
    if (!list->shapes)
        return -1;
    for (i = 0; i < known->n; i++) {
        Pb__ArrayFeatureType__Shape *s = NEW(m, array_feature_type__shape);

        if (!s)
            return -1;
        if (!mil_type_is_static(&known->list[i]) ||
            known->list[i].rank != v->type.rank)
            return err_set(m->e, ERR_INPUT,
                           "accepted shape %d does not fit its rank %d", i + 1,
                           v->type.rank);
        s->n_shape = (size_t)known->list[i].rank;
        s->shape = shape_of(m, &known->list[i]);
        if (!s->shape)
            return -1;
        list->shapes[i] = s;
    }
    list->n_shapes = (size_t)known->n;
    a->shape_flexibility_case =
        PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_ENUMERATED_SHAPES;
    a->enumeratedshapes = list;
    return 0;
}

static int add_range(struct maker *m, Pb__ArrayFeatureType *a,
                     const struct mil_value *v)
{
    const struct mil_shapes *known = v->shapes;
    Pb__ArrayFeatureType__ShapeRange *range =
        NEW(m, array_feature_type__shape_range);
    int i;

    if (!range)
        return -1;
    range->sizeranges = arena_alloc(m->a, (size_t)v->type.rank,
                                    sizeof(*range->sizeranges), m->e);
    if (!range->sizeranges)
        return -1;
    for (i = 0; i < v->type.rank; i++) {
        Pb__SizeRange *r = NEW(m, size_range);

        if (!r)
            return -1;
        r->lowerbound = (uint64_t)known->low[i];
        r->upperbound = known->high[i];
        range->sizeranges[i] = r;
    }
    range->n_sizeranges = (size_t)v->type.rank;
    a->shape_flexibility_case =
        PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_SHAPE_RANGE;
    a->shaperange = range;
    return 0;
}

static int add_flexible(struct maker *m, Pb__ArrayFeatureType *a,
                        const struct mil_value *v)
{
    if (!v->shapes)
        return err_set(m->e, ERR_UNSUPPORTED,
                       "its shape is open and no accepted shapes are listed");
    a->n_shape = (size_t)v->shapes->first.rank;
    a->shape = shape_of(m, &v->shapes->first);
    if (!a->shape)
        return -1;
    return v->shapes->n ? add_enumerated(m, a, v) : add_range(m, a, v);
}

static Pb__ArrayFeatureType *array_type(struct maker *m,
                                        const struct mil_value *v)
{
    Pb__ArrayFeatureType *a = NEW(m, array_feature_type);

    if (!a)
        return NULL;
    a->datatype = array_of_dtype(v->type.dtype);
    if (v->type.dtype != MIL_F16 && v->type.dtype != MIL_F32 &&
        v->type.dtype != MIL_I32) {
        err_set(m->e, ERR_UNSUPPORTED,
                "its type is %s; inputs and outputs are fp16, fp32 or int32",
                mil_dtype_name(v->type.dtype));
        return NULL;
    }
    if (mil_type_is_static(&v->type)) {
        a->n_shape = (size_t)v->type.rank;
        a->shape = shape_of(m, &v->type);
        return a->shape ? a : NULL;
    }
    /* An output's open shape is left out altogether. */
    if (v->kind == MIL_V_INPUT && add_flexible(m, a, v))
        return NULL;
    return a;
}

static Pb__FeatureDescription *feature(struct maker *m,
                                       const struct mil_value *v)
{
    Pb__FeatureDescription *f = NEW(m, feature_description);
    Pb__FeatureType *t = NEW(m, feature_type);
    Pb__ArrayFeatureType *a = array_type(m, v);

    if (!f || !t || !a) {
        err_in(m->e, "'%s'", v->name);
        return NULL;
    }
    f->name = (char *)v->name;
    f->type = t;
    if (v->kind == MIL_V_STATE) {
        Pb__StateFeatureType *s = NEW(m, state_feature_type);

        if (!s)
            return NULL;
        s->type_case = PB__STATE_FEATURE_TYPE__TYPE_ARRAY_TYPE;
        s->arraytype = a;
        t->type_case = PB__FEATURE_TYPE__TYPE_STATE_TYPE;
        t->statetype = s;
    } else {
        t->type_case = PB__FEATURE_TYPE__TYPE_MULTI_ARRAY_TYPE;
        t->multiarraytype = a;
    }
    return f;
}

static int make_lists(struct maker *m, const struct mil_function *f,
                      struct describe_lists *l)
{
    size_t i;

    memset(l, 0, sizeof(*l));
    l->in = arena_alloc(m->a, f->n_inputs, sizeof(*l->in), m->e);
    l->state = arena_alloc(m->a, f->n_inputs, sizeof(*l->state), m->e);
    l->out = arena_alloc(m->a, f->n_outputs, sizeof(*l->out), m->e);
    if (!l->in || !l->state || !l->out)
        return -1;
    for (i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);
        Pb__FeatureDescription *d = feature(m, v);

        if (!d)
            return err_in(m->e, "function '%s'", f->name);
        if (v->kind == MIL_V_STATE)
            l->state[l->n_state++] = d;
        else
            l->in[l->n_in++] = d;
    }
    for (i = 0; i < f->n_outputs; i++) {
        l->out[i] = feature(m, mil_value(f, f->outputs[i]));
        if (!l->out[i])
            return err_in(m->e, "function '%s'", f->name);
        l->n_out++;
    }
    return 0;
}

static int make_functions(struct maker *m, Pb__ModelDescription *d)
{
    size_t i, n = m->p->n_functions;

    d->functions = arena_alloc(m->a, n, sizeof(*d->functions), m->e);
    if (!d->functions)
        return -1;
    for (i = 0; i < n; i++) {
        Pb__FunctionDescription *f = NEW(m, function_description);
        struct describe_lists l;

        if (!f || make_lists(m, m->p->functions[i], &l))
            return -1;
        f->name = (char *)m->p->functions[i]->name;
        f->n_input = l.n_in;
        f->input = l.in;
        f->n_output = l.n_out;
        f->output = l.out;
        f->n_state = l.n_state;
        f->state = l.state;
        d->functions[i] = f;
    }
    d->n_functions = n;
    d->defaultfunctionname = (char *)m->p->functions[0]->name;
    return 0;
}

static int by_key(const void *a, const void *b)
{
    const Pb__Metadata__UserDefinedEntry *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

static char *or_empty(const char *s)
{
    return (char *)(s ? s : "");
}

static int make_metadata(struct maker *m, Pb__ModelDescription *d)
{
    const struct mil_program *p = m->p;
    Pb__Metadata *md = NEW(m, metadata);
    size_t i;

    if (!md)
        return -1;
    md->shortdescription = or_empty(p->description);
    md->versionstring = or_empty(p->version);
    md->author = or_empty(p->author);
    md->license = or_empty(p->license);
    md->userdefined =
        arena_alloc(m->a, p->n_metadata, sizeof(*md->userdefined), m->e);
    if (!md->userdefined)
        return -1;
    for (i = 0; i < p->n_metadata; i++) {
        Pb__Metadata__UserDefinedEntry *u =
            NEW(m, metadata__user_defined_entry);

        if (!u)
            return -1;
        u->key = (char *)p->metadata[i].key;
        u->value = (char *)p->metadata[i].value;
        md->userdefined[i] = u;
    }
    md->n_userdefined = p->n_metadata;
    if (p->n_metadata)
        qsort(md->userdefined, p->n_metadata, sizeof(*md->userdefined), by_key);
    if (p->n_metadata || *md->shortdescription || *md->versionstring ||
        *md->author || *md->license)
        d->metadata = md;
    return 0;
}

Pb__ModelDescription *describe_make(struct arena *a,
                                    const struct mil_program *p, struct err *e)
{
    struct maker m = { a, p, e };
    Pb__ModelDescription *d = NEW(&m, model_description);
    struct describe_lists l;

    if (!d)
        return NULL;
    if (p->n_functions == 0) {
        err_set(e, ERR_INPUT, "the program has no function");
        return NULL;
    }
    if (p->n_functions > 1) {
        if (make_functions(&m, d))
            return NULL;
    } else {
        if (strcmp(p->functions[0]->name, SINGLE_NAME) != 0) {
            err_set(e, ERR_INPUT,
                    "the only function of a program must be called '%s', "
                    "not '%s'",
                    SINGLE_NAME, p->functions[0]->name);
            return NULL;
        }
        if (make_lists(&m, p->functions[0], &l))
            return NULL;
        d->n_input = l.n_in;
        d->input = l.in;
        d->n_output = l.n_out;
        d->output = l.out;
        d->n_state = l.n_state;
        d->state = l.state;
    }
    return make_metadata(&m, d) ? NULL : d;
}

/* ---- reading ---- */

static const Pb__ArrayFeatureType *array_of(const Pb__FeatureDescription *f)
{
    if (f->type &&
        f->type->type_case == PB__FEATURE_TYPE__TYPE_MULTI_ARRAY_TYPE)
        return f->type->multiarraytype;
    return NULL;
}

/* A described shape as the type that an input then has; false if it cannot
 * be one. */
static bool fits(const struct mil_type *open, const int64_t *shape, size_t n,
                 struct mil_type *out)
{
    int i;

    if (n != (size_t)open->rank)
        return false;
    for (i = 0; i < open->rank; i++)
        if (shape[i] < 0 ||
            (open->dims[i] != MIL_DIM_UNKNOWN && open->dims[i] != shape[i]))
            return false;
    *out = mil_type_make(open->dtype, open->rank, shape);
    return mil_type_elems(out) >= 0;
}

/* The accepted shapes of one open input on their way into the program. */
struct shapes {
    struct mil_shapes s;
    struct mil_type list[MAX_SHAPES + 1];
};

static void note_shape(struct shapes *k, const struct mil_type *t)
{
    if (k->s.n && mil_shapes_take(&k->s, t))
        return;
    k->list[k->s.n++] = *t;
}

static int read_enumerated(struct shapes *k, const struct mil_type *open,
                           const Pb__ArrayFeatureType__EnumeratedShapes *list,
                           struct err *e)
{
    struct mil_type t;
    size_t i;

    if (list->n_shapes > MAX_SHAPES)
        return err_set(e, ERR_UNSUPPORTED,
                       "more than %d accepted shapes are described",
                       MAX_SHAPES);
    for (i = 0; i < list->n_shapes; i++)
        if (fits(open, list->shapes[i]->shape, list->shapes[i]->n_shape, &t))
            note_shape(k, &t);
    return 0;
}

/* False if the described range is none of the input's rank. */
static bool read_range(struct shapes *k, const struct mil_type *open,
                       const Pb__ArrayFeatureType__ShapeRange *range)
{
    int64_t lowest[MIL_MAX_RANK];
    int i;

    if (range->n_sizeranges != (size_t)open->rank)
        return false;
    for (i = 0; i < open->rank; i++) {
        const Pb__SizeRange *r = range->sizeranges[i];

        if (r->lowerbound > INT64_MAX)
            return false;
        k->s.low[i] = lowest[i] = (int64_t)r->lowerbound;
        k->s.high[i] = r->upperbound < 0 ? -1 : r->upperbound;
    }
    return fits(open, lowest, (size_t)open->rank, &k->s.first);
}

/* The described shapes of one open input. Without a default the first listed
 * shape is it, or the lower bounds. */
static int read_shapes(struct mil_function *f, mil_ref input,
                       const Pb__ArrayFeatureType *a, struct err *e)
{
    const struct mil_type *open = &mil_value(f, input)->type;
    struct mil_type given;
    bool first = fits(open, a->shape, a->n_shape, &given);
    struct shapes k;

    memset(&k, 0, sizeof(k));
    k.s.list = k.list;
    switch (a->shape_flexibility_case) {
    case PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_SHAPE_RANGE:
        if (!read_range(&k, open, a->shaperange))
            return 0; /* left to the comparison */
        if (first)
            k.s.first = given;
        return mil_set_shapes(f, input, &k.s, e);
    case PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_ENUMERATED_SHAPES:
        if (read_enumerated(&k, open, a->enumeratedshapes, e))
            return -1;
        break;
    case PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY__NOT_SET:
    default: break;
    }
    if (first && !(k.s.n && mil_shapes_take(&k.s, &given))) {
        memmove(k.list + 1, k.list, (size_t)k.s.n * sizeof(k.list[0]));
        k.list[0] = given;
        k.s.n++;
    }
    if (!k.s.n)
        return 0;
    k.s.first = first ? given : k.list[0];
    return mil_set_shapes(f, input, &k.s, e);
}

static bool is_multi(const Pb__ModelDescription *d)
{
    return d->n_functions > 0 || *d->defaultfunctionname;
}

bool describe_find(const Pb__ModelDescription *d, const char *name,
                   struct describe_lists *l)
{
    size_t i;

    if (!is_multi(d)) {
        struct describe_lists top = { d->n_input, d->n_output, d->n_state,
                                      d->input,   d->output,   d->state };

        *l = top;
        return true;
    }
    for (i = 0; i < d->n_functions && i < MAX_FEATURES; i++) {
        const Pb__FunctionDescription *f = d->functions[i];
        struct describe_lists own = { f->n_input, f->n_output, f->n_state,
                                      f->input,   f->output,   f->state };

        if (strcmp(f->name, name) == 0) {
            *l = own;
            return true;
        }
    }
    return false;
}

static const Pb__FeatureDescription *
find_feature(Pb__FeatureDescription *const *list, size_t n, const char *name)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}

static int read_function(struct mil_function *f, const Pb__ModelDescription *d,
                         struct err *e)
{
    struct describe_lists l;
    size_t i;

    if (!describe_find(d, f->name, &l) || l.n_in > MAX_FEATURES)
        return 0; /* left to the comparison */
    for (i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);
        const Pb__FeatureDescription *fd;
        const Pb__ArrayFeatureType *a;

        if (v->kind != MIL_V_INPUT || mil_type_is_static(&v->type))
            continue;
        fd = find_feature(l.in, l.n_in, v->name);
        a = fd ? array_of(fd) : NULL;
        if (a && read_shapes(f, f->inputs[i], a, e))
            return err_in(e, "input '%s'", v->name);
    }
    return 0;
}

static int read_text(struct mil_program *p, const char **to, const char *s,
                     struct err *e)
{
    if (!*s)
        return 0;
    *to = arena_strdup(&p->arena, s, e);
    return *to ? 0 : -1;
}

static int read_metadata(struct mil_program *p, const Pb__Metadata *md,
                         struct err *e)
{
    size_t i;

    if (read_text(p, &p->description, md->shortdescription, e) ||
        read_text(p, &p->version, md->versionstring, e) ||
        read_text(p, &p->author, md->author, e) ||
        read_text(p, &p->license, md->license, e))
        return -1;
    if (md->n_userdefined > MAX_METADATA)
        return err_set(e, ERR_UNSUPPORTED,
                       "%zu metadata entries, at most %d are read",
                       md->n_userdefined, MAX_METADATA);
    for (i = 0; i < md->n_userdefined; i++)
        if (mil_program_set_metadata(p, md->userdefined[i]->key,
                                     md->userdefined[i]->value, e))
            return -1;
    return 0;
}

int describe_read(struct mil_program *p, const Pb__ModelDescription *d,
                  struct err *e)
{
    size_t i;

    if (d->metadata && read_metadata(p, d->metadata, e))
        return -1;
    for (i = 0; i < p->n_functions; i++)
        if (read_function(p->functions[i], d, e))
            return err_in(e, "function '%s'", p->functions[i]->name);
    return 0;
}

/* ---- order ---- */

static size_t place_of(const struct describe_lists *l,
                       const struct mil_value *v)
{
    bool state = v->kind == MIL_V_STATE;
    size_t i, n = state ? l->n_state : l->n_in;

    for (i = 0; i < n; i++)
        if (strcmp((state ? l->state : l->in)[i]->name, v->name) == 0)
            break;
    return state ? l->n_in + i : i;
}

/* Stable: what is not described stays behind what is. */
static void order_inputs(struct mil_function *f, const struct describe_lists *l)
{
    size_t i, k;

    for (i = 1; i < f->n_inputs; i++) {
        mil_ref r = f->inputs[i];
        size_t at = place_of(l, mil_value(f, r));

        for (k = i; k && place_of(l, mil_value(f, f->inputs[k - 1])) > at; k--)
            f->inputs[k] = f->inputs[k - 1];
        f->inputs[k] = r;
    }
}

void describe_order(struct mil_program *p, const Pb__ModelDescription *d)
{
    struct describe_lists l;
    size_t i;

    for (i = 0; i < p->n_functions; i++)
        if (describe_find(d, p->functions[i]->name, &l) &&
            p->functions[i]->n_inputs <= MAX_ORDERED &&
            l.n_in + l.n_state <= MAX_ORDERED)
            order_inputs(p->functions[i], &l);
}

/* ---- comparing ---- */

static int differ(struct err *e, const char *what, const struct mil_value *v)
{
    char t[MIL_TYPE_TEXT_MAX];

    mil_type_text(&v->type, t);
    return err_set(e, ERR_INPUT, "%s, the program has %s", what, t);
}

static bool shape_equal(const struct mil_type *t, const int64_t *shape,
                        size_t n)
{
    struct mil_type got;

    return fits(t, shape, n, &got);
}

/* Each listed shape and the range must be open where the program is open. */
static int check_flexible(const struct mil_value *v,
                          const Pb__ArrayFeatureType *a, struct err *e)
{
    size_t i;

    switch (a->shape_flexibility_case) {
    case PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_ENUMERATED_SHAPES:
        if (a->enumeratedshapes->n_shapes == 0)
            return differ(e, "described with an empty list of shapes", v);
        for (i = 0; i < a->enumeratedshapes->n_shapes; i++)
            if (!shape_equal(&v->type, a->enumeratedshapes->shapes[i]->shape,
                             a->enumeratedshapes->shapes[i]->n_shape))
                return differ(e, "described with a shape that does not fit", v);
        return 0;
    case PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY_SHAPE_RANGE:
        if (a->shaperange->n_sizeranges != (size_t)v->type.rank)
            return differ(e, "described with ranges of another rank", v);
        for (i = 0; i < a->shaperange->n_sizeranges; i++) {
            const Pb__SizeRange *r = a->shaperange->sizeranges[i];
            int64_t dim = v->type.dims[i];

            if (dim != MIL_DIM_UNKNOWN &&
                (r->lowerbound != (uint64_t)dim || r->upperbound != dim))
                return differ(e, "described with a range in a fixed dimension",
                              v);
        }
        return 0;
    case PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY__NOT_SET:
    default: break;
    }
    return 0;
}

static int check_array(const struct mil_value *v, const Pb__ArrayFeatureType *a,
                       struct err *e)
{
    bool fixed = mil_type_is_static(&v->type);
    bool flexible = a->shape_flexibility_case !=
                    PB__ARRAY_FEATURE_TYPE__SHAPE_FLEXIBILITY__NOT_SET;
    enum mil_dtype d = array_to_dtype(a->datatype);

    if (d != v->type.dtype) {
        char what[64];

        if (d == MIL_INVALID)
            snprintf(what, sizeof(what), "described with unknown type %d",
                     (int)a->datatype);
        else
            snprintf(what, sizeof(what), "described as %s", mil_dtype_name(d));
        return differ(e, what, v);
    }
    if (v->kind == MIL_V_STATE && (flexible || !a->n_shape))
        return differ(e, "a state is described without a fixed shape", v);
    /* An output may leave its shape out, and so may a scalar. */
    if (a->n_shape == 0 &&
        (v->kind == MIL_V_RESULT || v->type.rank == 0 || flexible))
        return check_flexible(v, a, e);
    if (!shape_equal(&v->type, a->shape, a->n_shape))
        return differ(e, "described with another shape", v);
    if (fixed && flexible)
        return differ(e, "described with a flexible shape", v);
    if (!fixed && !flexible && v->kind == MIL_V_INPUT)
        return differ(e, "described with a fixed shape", v);
    return check_flexible(v, a, e);
}

static int check_feature(const struct mil_value *v,
                         const Pb__FeatureDescription *f, struct err *e)
{
    const Pb__FeatureType *t = f->type;

    if (!t)
        return err_set(e, ERR_INPUT, "described without a type");
    if (v->kind == MIL_V_STATE) {
        if (t->type_case != PB__FEATURE_TYPE__TYPE_STATE_TYPE ||
            t->statetype->type_case != PB__STATE_FEATURE_TYPE__TYPE_ARRAY_TYPE)
            return err_set(e, ERR_INPUT, "a state is described as no state");
        return check_array(v, t->statetype->arraytype, e);
    }
    if (t->type_case == PB__FEATURE_TYPE__TYPE_IMAGE_TYPE)
        return v->type.rank == 4
                   ? 0
                   : differ(e, "described as an image, which has rank 4", v);
    if (t->type_case != PB__FEATURE_TYPE__TYPE_MULTI_ARRAY_TYPE)
        return differ(e, "described as no array", v);
    return check_array(v, t->multiarraytype, e);
}

/* Every value of the program, and nothing else, is described. */
static int check_list(const struct mil_function *f, const mil_ref *refs,
                      size_t n_refs, bool states, const char *what,
                      Pb__FeatureDescription *const *list, size_t n,
                      struct err *e)
{
    size_t i, j, found = 0;

    for (i = 0; i < n_refs; i++) {
        const struct mil_value *v = mil_value(f, refs[i]);
        const Pb__FeatureDescription *fd;

        if ((v->kind == MIL_V_STATE) != states)
            continue;
        fd = find_feature(list, n, v->name);
        if (!fd)
            return err_set(e, ERR_INPUT, "%s '%s' is not described", what,
                           v->name);
        if (check_feature(v, fd, e))
            return err_in(e, "%s '%s'", what, v->name);
        found++;
    }
    if (found == n)
        return 0;
    for (i = 0; i < n; i++) {
        for (j = 0; j < n_refs; j++) {
            const struct mil_value *v = mil_value(f, refs[j]);

            if ((v->kind == MIL_V_STATE) == states &&
                strcmp(v->name, list[i]->name) == 0)
                break;
        }
        if (j == n_refs)
            return err_set(e, ERR_INPUT,
                           "%s '%s' is described, the program has none", what,
                           list[i]->name);
    }
    return err_set(e, ERR_INPUT, "an %s is described twice", what);
}

static int check_function(const struct mil_function *f,
                          const Pb__ModelDescription *d, struct err *e)
{
    struct describe_lists l;

    if (!describe_find(d, f->name, &l))
        return err_set(e, ERR_INPUT, "it is not described");
    if (l.n_in > MAX_FEATURES || l.n_out > MAX_FEATURES ||
        l.n_state > MAX_FEATURES)
        return err_set(e, ERR_UNSUPPORTED,
                       "more than %d inputs, outputs or states are described",
                       MAX_FEATURES);
    if (check_list(f, f->inputs, f->n_inputs, false, "input", l.in, l.n_in, e))
        return -1;
    if (check_list(f, f->inputs, f->n_inputs, true, "state", l.state, l.n_state,
                   e))
        return -1;
    return check_list(f, f->outputs, f->n_outputs, false, "output", l.out,
                      l.n_out, e);
}

static int check_functions(const struct mil_program *p,
                           const Pb__ModelDescription *d, struct err *e)
{
    size_t i;

    if (!is_multi(d)) {
        if (p->n_functions != 1 ||
            strcmp(p->functions[0]->name, SINGLE_NAME) != 0)
            return err_set(e, ERR_INPUT,
                           "one function '%s' is described, the program has "
                           "%zu, the first called '%s'",
                           SINGLE_NAME, p->n_functions, p->functions[0]->name);
        return 0;
    }
    if (d->n_input || d->n_output || d->n_state)
        return err_set(e, ERR_INPUT,
                       "functions are described beside inputs, outputs or "
                       "states of the model itself");
    if (!mil_program_find(p, d->defaultfunctionname))
        return err_set(e, ERR_INPUT,
                       "the default function '%s' is not in the program",
                       d->defaultfunctionname);
    for (i = 0; i < d->n_functions && i <= p->n_functions; i++)
        if (!mil_program_find(p, d->functions[i]->name))
            return err_set(e, ERR_INPUT,
                           "function '%s' is described, the program has none",
                           d->functions[i]->name);
    if (d->n_functions != p->n_functions)
        return err_set(e, ERR_INPUT,
                       "%zu functions are described, the program has %zu",
                       d->n_functions, p->n_functions);
    return 0;
}

int describe_check(const struct mil_program *p, const Pb__ModelDescription *d,
                   struct err *e)
{
    size_t i;

    if (!d)
        return err_set(e, ERR_INPUT, "the model has no description");
    if (check_functions(p, d, e))
        return -1;
    for (i = 0; i < p->n_functions; i++)
        if (check_function(p->functions[i], d, e))
            return err_in(e, "function '%s'", p->functions[i]->name);
    return 0;
}
