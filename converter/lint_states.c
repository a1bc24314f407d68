/*
 * Lint of the states: equal in all chunks, of the layout that runtimes know,
 * and of shapes that devices take.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/lint_priv.h"

#define AXIS_LIMIT 16384 /* A13 to A15 (reported) */

/* The declarations that all others are compared with. */
struct states {
    const struct lint_model *m;
    const struct mil_function *f;
    const struct mil_value *v[LINT_MAX_STATES];
    size_t n;
};

static void collect(struct states *s, const struct lint_model *m,
                    const struct mil_function *f)
{
    memset(s, 0, sizeof(*s));
    s->m = m;
    s->f = f;
    for (size_t i = 0; i < f->n_inputs && s->n < LINT_MAX_STATES; i++)
        if (mil_value(f, f->inputs[i])->kind == MIL_V_STATE)
            s->v[s->n++] = mil_value(f, f->inputs[i]);
}

static const struct mil_value *find(const struct states *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->v[i]->name, name))
            return s->v[i];
    return NULL;
}

static void compare(struct lint *l, const struct states *first,
                    const struct states *s)
{
    char where[256], a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];

    snprintf(where, sizeof(where), "%.180s, %.60s", s->m->name, s->f->name);
    for (size_t i = 0; i < first->n; i++) {
        const struct mil_value *v = find(s, first->v[i]->name);

        if (!v) {
            lint_add(l, LINT_ID_state_differs, where,
                     "no state '%s', which %s of '%s' has", first->v[i]->name,
                     first->f->name, first->m->name);
            continue;
        }
        mil_type_text(&v->type, a);
        mil_type_text(&first->v[i]->type, b);
        if (!mil_type_equal(&v->type, &first->v[i]->type))
            lint_add(l, LINT_ID_state_differs, where,
                     "'%s' is %s, in %s of '%s' %s", v->name, a, first->f->name,
                     first->m->name, b);
    }
    for (size_t i = 0; i < s->n; i++)
        if (!find(first, s->v[i]->name))
            lint_add(l, LINT_ID_state_differs, where,
                     "a state '%s', which %s of '%s' does not have",
                     s->v[i]->name, first->f->name, first->m->name);
}

static bool is_read(const struct mil_function *f, const struct mil_value *v)
{
    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_read_state &&
            mil_value(f, mil_arg(&f->ops[i], 0)) == v)
            return true;
    return false;
}

static void check_reads(struct lint *l, const struct states *s)
{
    char where[256];

    snprintf(where, sizeof(where), "%.180s, %.60s", s->m->name, s->f->name);
    for (size_t i = 0; i < s->n; i++)
        if (!is_read(s->f, s->v[i]))
            lint_add(l, LINT_ID_state_unread, where, "'%s'", s->v[i]->name);
}

/* ---- one state ---- */

static bool is_cache(const char *name)
{
    return strstr(name, "kv_cache") != NULL;
}

static bool is_known(const char *name)
{
    static const char *const known[] = {
        "model_model_kv_cache_0",      "model_model_kv_cache_local",
        "model_model_kv_cache_global", "model_model_gdn_state_0",
        "model_model_conv_state_0",
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(name, known[i]))
            return true;
    return false;
}

static void check_axes(struct lint *l, const char *where,
                       const struct mil_value *v)
{
    const struct mil_type *t = &v->type;
    int64_t last;

    if (t->rank < 1)
        return;
    last = t->dims[t->rank - 1];
    if (last == 3)
        lint_add(l, LINT_ID_state_axis_3, where, "'%s'", v->name);
    else if (last > 0 && last % 32)
        lint_add(l, LINT_ID_state_axis_32, where, "'%s': %" PRId64, v->name,
                 last);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > AXIS_LIMIT)
            lint_add(l, LINT_ID_state_axis_limit, where,
                     "'%s': axis %d has %" PRId64, v->name, i, t->dims[i]);
}

static int64_t attention_layers(struct lint *l)
{
    const yaml_node_t *t = lint_meta_node(l, "layer_types");
    int64_t n = 0;

    if (!t || t->type != YAML_SEQUENCE_NODE)
        return l->meta.layers;
    for (yaml_node_item_t *i = t->data.sequence.items.start;
         i < t->data.sequence.items.top; i++) {
        const char *s =
            lint_node_text(yaml_document_get_node(&l->meta.doc, *i));

        n += s && strcmp(s, "linear") != 0;
    }
    return n;
}

static void check_cache(struct lint *l, const char *where,
                        const struct mil_value *v)
{
    int64_t layers = attention_layers(l), length;
    const struct mil_type *t = &v->type;

    if (t->rank != 4)
        return;
    if (!strstr(v->name, "local") && l->meta.context &&
        t->dims[2] < l->meta.context)
        lint_add(l, LINT_ID_state_context, where,
                 "'%s' holds %" PRId64 ", context_length is %" PRId64, v->name,
                 t->dims[2], l->meta.context);
    if (strstr(v->name, "local") &&
        lint_meta_int(l, "local_cache_length", &length) && t->dims[2] != length)
        lint_add(l, LINT_ID_state_context, where,
                 "'%s' holds %" PRId64 ", local_cache_length is %" PRId64,
                 v->name, t->dims[2], length);
    if (strstr(v->name, "kv_cache_0") && layers && t->dims[0] != 2 * layers)
        lint_add(l, LINT_ID_state_layers, where,
                 "'%s' has %" PRId64 " rows for %" PRId64 " layers", v->name,
                 t->dims[0], layers);
}

static void check_state(struct lint *l, const char *where,
                        const struct mil_value *v)
{
    char text[MIL_TYPE_TEXT_MAX];

    mil_type_text(&v->type, text);
    if (v->type.dtype != MIL_F16 || !mil_type_is_static(&v->type))
        lint_add(l, LINT_ID_state_type, where, "'%s' is %s", v->name, text);
    if (!is_known(v->name))
        lint_add(l, LINT_ID_state_name, where, "'%s'", v->name);
    check_axes(l, where, v);
    if (is_cache(v->name))
        check_cache(l, where, v);
}

/* ---- all of them, against each other and meta.yaml ---- */

static void check_set(struct lint *l, const struct states *s)
{
    for (size_t i = 0; i < s->n; i++)
        check_state(l, s->m->name, s->v[i]);
    if (s->n >= 3)
        lint_add(l, LINT_ID_state_many, s->m->name, "%zu states", s->n);
    for (size_t i = 1; i < s->n; i++)
        if (!mil_type_equal(&s->v[i]->type, &s->v[0]->type)) {
            lint_add(l, LINT_ID_state_shapes, s->m->name, "'%s' and '%s'",
                     s->v[0]->name, s->v[i]->name);
            break;
        }
}

static void check_recurrent(struct lint *l, const struct states *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (!is_cache(s->v[i]->name) && is_known(s->v[i]->name) &&
            l->meta.params && !l->meta.recurrent) {
            lint_add(l, LINT_ID_meta_recurrent, "meta.yaml: recurrent_state",
                     "state '%s'", s->v[i]->name);
            break;
        }
}

/* The shape of an entry of meta.yaml's states against a declaration. */
static bool shape_is(struct lint *l, const yaml_node_t *list,
                     const struct mil_type *t)
{
    int k = 0;

    if (!list || list->type != YAML_SEQUENCE_NODE)
        return false;
    for (yaml_node_item_t *i = list->data.sequence.items.start;
         i < list->data.sequence.items.top; i++, k++) {
        int64_t v;

        if (!lint_node_int(yaml_document_get_node(&l->meta.doc, *i), &v) ||
            k >= t->rank || v != t->dims[k])
            return false;
    }
    return k == t->rank;
}

static void check_entry(struct lint *l, const struct states *s,
                        const yaml_node_t *entry, size_t *matched)
{
    const char *name = lint_node_text(lint_node_member(l, entry, "name"));
    const char *dtype = lint_node_text(lint_node_member(l, entry, "dtype"));
    const struct mil_value *v = name ? find(s, name) : NULL;
    char text[MIL_TYPE_TEXT_MAX];

    if (!v) {
        lint_add(l, LINT_ID_meta_states, "meta.yaml: states",
                 "'%.100s' is no state of the chunks", name ? name : "?");
        return;
    }
    ++*matched;
    mil_type_text(&v->type, text);
    if (!shape_is(l, lint_node_member(l, entry, "shape"), &v->type))
        lint_add(l, LINT_ID_meta_states, "meta.yaml: states",
                 "another shape of '%s' than the chunks' %s", name, text);
    if (dtype && strcmp(dtype, "float16") != 0)
        lint_add(l, LINT_ID_meta_states, "meta.yaml: states",
                 "'%s' is '%.40s', the chunks' is %s", name, dtype, text);
}

static void check_listed(struct lint *l, const struct states *s)
{
    const yaml_node_t *list = lint_meta_node(l, "states");
    size_t matched = 0;

    if (!list)
        return;
    if (list->type == YAML_SEQUENCE_NODE)
        for (yaml_node_item_t *i = list->data.sequence.items.start;
             i < list->data.sequence.items.top; i++)
            check_entry(l, s, yaml_document_get_node(&l->meta.doc, *i),
                        &matched);
    if (matched < s->n)
        lint_add(l, LINT_ID_meta_states, "meta.yaml: states",
                 "%zu of %zu states are listed", matched, s->n);
}

void lint_states_check(struct lint *l)
{
    struct states first = { 0 }, s;
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        const struct mil_program *p = pkg_program(m->pkg);

        if (m == l->embeddings || m == l->head)
            continue;
        for (size_t i = 0; i < p->n_functions; i++) {
            collect(&s, m, p->functions[i]);
            check_reads(l, &s);
            if (!i)
                check_set(l, &s);
            if (!s.n)
                lint_add(l, LINT_ID_state_missing, m->name, "function '%s'",
                         p->functions[i]->name);
            if (!first.f)
                first = s;
            else
                compare(l, &first, &s);
        }
    }
    if (!first.f)
        return;
    check_recurrent(l, &first);
    check_listed(l, &first);
}
