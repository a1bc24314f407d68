/*
 * Contents of states; see gate_states.h.
 *
 * A distance is |a - b| / |b| over a slice: a head of the recurrent state, a
 * layer of the others; the largest one counts. Slices that are next to
 * nothing beside the rest of their state are measured by the rest.
 */
#include "converter/gate_states.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/gate_metrics.h"
#include "models/parts_gdn.h"

#define SMALL_SLICE 1e-3 /* of the largest one */

static double norm(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* One slice: a against scale * b. */
static double distance(const float *a, const float *b, double scale, size_t n,
                       double least)
{
    double sum = 0, size = scale * norm(b, n);

    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - scale * (double)b[i];

        sum += d * d;
    }
    size = size < least ? least : size;
    return sum == 0 ? 0 : sqrt(sum) / size; /* NaN stays */
}

static void add_slices(const float *a, const float *b, double scale,
                       size_t slices, size_t n, double *worst)
{
    double largest = 0;

    for (size_t i = 0; i < slices; i++)
        metrics_keep_max(&largest, scale * norm(b + i * n, n));
    for (size_t i = 0; i < slices; i++)
        metrics_keep_max(worst, distance(a + i * n, b + i * n, scale, n,
                                         SMALL_SLICE * largest));
}

/* ---- a package against itself ---- */

static struct gate_state *entry(struct gate_result *r, const char *name)
{
    int i = 0;

    while (i < r->n_states && strcmp(r->states[i].name, name) != 0)
        i++;
    if (i == GATE_MAX_STATES)
        return NULL;
    if (i == r->n_states) {
        r->n_states++;
        snprintf(r->states[i].name, sizeof(r->states[i].name), "%s", name);
    }
    return &r->states[i];
}

static void compare_calls(const char *name, const struct run_states *now,
                          const struct run_states *prefilled,
                          struct gate_state *s)
{
    const struct mil_type *type;
    const float *a = run_state_data(prefilled, name, &type);
    const float *b = run_state_data(now, name, &type);
    size_t slices;

    if (!a && !b)
        return; /* of a shape that no function touches */
    if (!a || !b) {
        s->prefill_infer = INFINITY;
        return;
    }
    slices = type->rank ? (size_t)type->dims[0] : 1;
    add_slices(a, b, 1, slices, (size_t)mil_type_elems(type) / slices,
               &s->prefill_infer);
}

/* ---- against the oracle ---- */

static bool has_shape(const struct mil_type *t, size_t a, size_t b, size_t c)
{
    return t->rank == 3 && (size_t)t->dims[0] == a && (size_t)t->dims[1] == b &&
           (size_t)t->dims[2] == c;
}

/* Layer j of n recurrent ones. */
static void compare_memory(const struct run_states *states,
                           const struct oracle_memory *m, size_t j, size_t n,
                           double *worst)
{
    const struct mil_type *type;
    const float *x = run_state_data(states, GDN_STATE, &type);
    size_t head = m->dk * m->dv;

    if (!x || !has_shape(type, n * m->heads, m->dk, m->dv))
        *worst = INFINITY;
    else
        add_slices(x + j * m->heads * head, m->state, sqrt((double)m->dk),
                   m->heads, head, worst);
}

static void compare_taps(const struct run_states *states,
                         const struct oracle_memory *m, size_t j, size_t n,
                         double *worst)
{
    const struct mil_type *type;
    const float *x = run_state_data(states, CONV_STATE, &type);
    size_t layer = m->n_taps * m->channels;

    if (!x || !has_shape(type, n, m->n_taps, m->channels))
        *worst = INFINITY;
    else
        add_slices(x + j * layer, m->taps, 1, 1, layer, worst);
}

static size_t count_recurrent(const struct oracle *o)
{
    struct oracle_memory m;
    size_t n = 0;

    for (int64_t l = 0; l < oracle_layers(o); l++)
        n += oracle_memory(o, l, &m);
    return n;
}

static void compare_oracle(const struct run_states *states,
                           const struct oracle *o, struct gate_result *r)
{
    size_t n = count_recurrent(o), j = 0;
    struct gate_state *memory = n ? entry(r, GDN_STATE) : NULL;
    struct gate_state *taps = n ? entry(r, CONV_STATE) : NULL;
    struct oracle_memory m;

    if (!memory || !taps)
        return;
    memory->known = taps->known = true;
    for (int64_t l = 0; l < oracle_layers(o); l++)
        if (oracle_memory(o, l, &m)) {
            compare_memory(states, &m, j, n, &memory->oracle);
            compare_taps(states, &m, j++, n, &taps->oracle);
        }
}

void gate_states_compare(const struct package *p,
                         const struct run_states *prefilled,
                         const struct oracle *o, struct gate_result *r)
{
    const struct mil_function *f =
        pkg_program(package_file(p, 1))->functions[0];

    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);
        struct gate_state *s =
            v->kind == MIL_V_STATE ? entry(r, v->name) : NULL;

        if (s)
            compare_calls(v->name, package_states(p), prefilled, s);
    }
    if (!o)
        return;
    compare_oracle(prefilled, o, r);
    compare_oracle(package_states(p), o, r);
}

double gate_states_between(const struct oracle *a, const struct oracle *b)
{
    struct oracle_memory x, y;
    double worst = 0;

    for (int64_t l = 0; l < oracle_layers(a); l++)
        if (oracle_memory(a, l, &x) && oracle_memory(b, l, &y)) {
            add_slices(y.state, x.state, 1, x.heads, x.dk * x.dv, &worst);
            add_slices(y.taps, x.taps, 1, 1, x.n_taps * x.channels, &worst);
        }
    return worst;
}
