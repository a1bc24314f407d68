/*
 * Several calls side by side. Taken one after the other, each call reads all
 * weights. Here every large product is one product for all calls, and what
 * lies between two of them runs call by call: the weights are read once.
 *
 * That is a change of order, and states are how a call sees those before it.
 * Steps of different segments are swapped between calls, so two steps that
 * touch the same memory of a state, one of them writing, must be in one
 * segment, with all that lies between them. What a step touches is known from
 * the views that it is given and from where slice_update begins; what is not
 * known counts as the whole state. So the results are those of the calls one
 * by one, bit for bit, whatever the program.
 *
 * A call's values that live across segments lie in storage of its own, at the
 * same place in each; all others in the plan's arena.
 */
#include "mil/run/run_priv.h"

/* Products with fewer weights gain nothing. */
#define WIDE_ELEMS 16384
/* Storage of the calls that are taken together. */
#define GROUP_FLOATS ((uint64_t)6 << 20)

struct segment {
    size_t first, end; /* steps */
    bool product;      /* one step, for all calls at once */
    size_t slots, n_slots;
};
struct stored {
    mil_ref r;
    uint64_t at; /* in a call's storage */
};
struct run_lockstep {
    bool possible;
    struct segment *segments;
    size_t n_segments;
    /* What each segment's steps are given and make, where it is stored. */
    struct stored *slots;
    size_t n_slots, cap_slots;
    struct stored *roots;
    size_t n_roots;
    uint64_t stride; /* floats of a call's storage */
    float *storage;
    uint64_t room;
};

/* ---- what steps touch ---- */

struct touch {
    size_t step;
    mil_ref state;
    int64_t lo, hi;
    bool write;
};
struct touches {
    struct touch *list;
    size_t n, cap;
};

static int add_touch(struct touches *t, size_t step, mil_ref state, int64_t lo,
                     int64_t hi, bool write, struct err *e)
{
    if (mem_grow((void **)&t->list, &t->cap, t->n, sizeof(*t->list), e))
        return -1;
    t->list[t->n++] = (struct touch){ step, state, lo, hi, write };
    return 0;
}

static bool const_at(const struct run_plan *p, const struct mil_op *op,
                     int param, int64_t absent, int64_t *v)
{
    const struct mil_const *c;

    *v = absent;
    if (!op->args[param].n)
        return true;
    c = mil_arg_const(p->f, op, param);
    if (c)
        *v = mil_const_int(c, 0);
    return c != NULL;
}

/* The first element of slice_update's begin: a constant, or a concat of
 * scalars of which the first is one. */
static bool begin_of(const struct run_plan *p, const struct mil_op *op,
                     int64_t *v)
{
    const struct mil_value *b =
        mil_value(p->f, mil_arg(op, P_slice_update_begin));
    const struct mil_op *join;
    const struct mil_const *c;

    if (mil_arg_const(p->f, op, P_slice_update_begin))
        return const_at(p, op, P_slice_update_begin, 0, v);
    if (b->kind != MIL_V_RESULT || b->op < 0 ||
        p->f->ops[b->op].code != MIL_OP_concat)
        return false;
    join = &p->f->ops[b->op];
    if (!join->args[P_concat_values].n)
        return false;
    c = mil_value(p->f, join->args[P_concat_values].refs[0])->konst;
    if (!c || mil_type_elems(&c->type) < 1)
        return false;
    *v = mil_const_int(c, 0);
    return true;
}

/* Where an update in place writes, from the start of the state: whole rows of
 * its first dim. */
static void update_span(const struct run_plan *p, const struct run_step *s,
                        int64_t *lo, int64_t *hi)
{
    const struct run_slot *x = run_arg(s, P_slice_update_x);
    const struct mil_type *u = &run_arg(s, P_slice_update_update)->type;
    int64_t begin, stride, mask, squeeze, row, n;

    *lo = x->offset;
    *hi = x->offset + x->elems;
    if (!begin_of(p, s->op, &begin) ||
        !const_at(p, s->op, P_slice_update_stride, 1, &stride) ||
        !const_at(p, s->op, P_slice_update_begin_mask, 0, &mask) ||
        !const_at(p, s->op, P_slice_update_squeeze_mask, 0, &squeeze))
        return;
    n = x->type.rank ? x->type.dims[0] : 0;
    if (stride != 1 || mask || squeeze || u->rank != x->type.rank || n < 1 ||
        begin < 0 || begin + u->dims[0] > n)
        return;
    row = x->elems / n;
    *lo = x->offset + begin * row;
    *hi = *lo + u->dims[0] * row;
}

/* The state behind an argument; 0 if there is none. */
static mil_ref state_of(const struct run_plan *p, mil_ref r)
{
    mil_ref root = p->slots[r].root;

    return p->slots[root].home == RUN_HOME_STATE ? root : 0;
}

static int touch_arg(const struct run_plan *p, size_t i, int param, mil_ref r,
                     struct touches *t, struct err *e)
{
    const struct run_step *s = &p->steps[i];
    const struct run_slot *v = &p->slots[r];
    mil_ref state = state_of(p, r);
    int64_t lo = v->offset, hi = v->offset + v->elems;

    if (!state)
        return 0;
    if (s->op->code == MIL_OP_write_state) {
        const struct run_slot *x = run_arg(s, P_write_state_data);

        if (x->root == state && !x->offset && x->elems == p->slots[state].elems)
            return 0; /* it is there already */
        return add_touch(t, i, state, 0, p->slots[state].elems, true, e);
    }
    if (s->op->code == MIL_OP_slice_update && s->in_place &&
        param == P_slice_update_x) {
        update_span(p, s, &lo, &hi);
        return add_touch(t, i, state, lo, hi, true, e);
    }
    /* Views touch nothing; what is made of them is seen at its reader. */
    if (s->op->n_outs && run_out(s, 0)->root == v->root)
        return 0;
    return add_touch(t, i, state, lo, hi, false, e);
}

static int touch_all(const struct run_plan *p, struct touches *t, struct err *e)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct run_step *s = &p->steps[i];
        const struct mil_op_info *info = mil_op_info(s->op->code);

        for (int k = 0; k < info->n_params; k++)
            for (uint32_t j = 0; j < s->op->args[k].n; j++)
                if (touch_arg(p, i, k, s->op->args[k].refs[j], t, e))
                    return -1;
    }
    return 0;
}

/* joined[i]: steps i and i + 1 are of one segment. */
static int join_steps(const struct run_plan *p, bool *joined, struct err *e)
{
    struct touches t = { 0 };
    int rc = touch_all(p, &t, e);

    for (size_t a = 0; a < t.n && !rc; a++)
        for (size_t b = a + 1; b < t.n; b++) {
            const struct touch *x = &t.list[a], *y = &t.list[b];

            if (x->state != y->state || (!x->write && !y->write) ||
                x->hi <= y->lo || y->hi <= x->lo)
                continue;
            for (size_t i = x->step; i < y->step; i++)
                joined[i] = true;
        }
    mem_free(t.list);
    return rc;
}

/* ---- segments ---- */

static bool is_wide(const struct run_plan *p, const struct run_step *s)
{
    const struct run_slot *x, *w;
    enum run_home home;

    if (s->op->code != MIL_OP_conv || !s->p.conv.pointwise ||
        s->p.conv.n != 1 || s->p.conv.in_elems != 1)
        return false;
    x = run_arg(s, P_conv_x);
    w = run_arg(s, P_conv_weight);
    home = p->slots[x->root].home;
    return w->konst && w->elems >= WIDE_ELEMS &&
           (home == RUN_HOME_ARENA || home == RUN_HOME_INPUT);
}

static int cut(const struct run_plan *p, const bool *joined,
               struct run_lockstep *l, struct err *e)
{
    bool open = false;

    l->segments = mem_zalloc(p->n_steps + 1, sizeof(*l->segments), e);
    if (!l->segments)
        return -1;
    for (size_t i = 0; i < p->n_steps; i++) {
        bool product =
            is_wide(p, &p->steps[i]) && !joined[i] && !(i && joined[i - 1]);

        if (product || !open)
            l->segments[l->n_segments++] =
                (struct segment){ .first = i, .product = product };
        l->segments[l->n_segments - 1].end = i + 1;
        open = !product;
        l->possible = l->possible || product;
    }
    return 0;
}

/* ---- storage ---- */

struct keeping {
    size_t *segment; /* of each step */
    size_t *last;    /* by value: last segment that uses a stored root */
    uint64_t *at;    /* by value: place in storage; UINT64_MAX: not stored */
    mil_ref *live;   /* roots that have a place now, in order of places */
    size_t n_live;
};

static uint64_t room_of(const struct run_slot *s)
{
    return ((uint64_t)s->elems + 16) / 16 * 16;
}

static void place(const struct run_plan *p, struct run_lockstep *l,
                  struct keeping *k, mil_ref r)
{
    uint64_t need = room_of(&p->slots[r]), at = 0;
    size_t i = 0;

    for (; i < k->n_live; i++) {
        if (k->at[k->live[i]] - at >= need)
            break;
        at = k->at[k->live[i]] + room_of(&p->slots[k->live[i]]);
    }
    memmove(k->live + i + 1, k->live + i, (k->n_live - i) * sizeof(*k->live));
    k->live[i] = r;
    k->n_live++;
    k->at[r] = at;
    l->roots[l->n_roots++] = (struct stored){ r, at };
    l->stride = at + need > l->stride ? at + need : l->stride;
}

static void release_before(struct keeping *k, size_t segment)
{
    size_t n = 0;

    for (size_t i = 0; i < k->n_live; i++)
        if (k->last[k->live[i]] >= segment)
            k->live[n++] = k->live[i];
    k->n_live = n;
}

/* The last segment that uses a root; ops count from 1 in spans. */
static size_t last_segment(const struct run_plan *p,
                           const struct run_lockstep *l,
                           const struct keeping *k, const struct run_slot *root)
{
    return root->last > p->n_steps ? l->n_segments : k->segment[root->last - 1];
}

/* Results that live beyond their segment, and all of the products'. */
static void place_results(const struct run_plan *p, struct run_lockstep *l,
                          struct keeping *k)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct mil_op *op = p->steps[i].op;
        size_t segment = k->segment[i];

        release_before(k, segment);
        for (uint32_t j = 0; j < op->n_outs; j++) {
            mil_ref r = op->outs[j];
            const struct run_slot *s = &p->slots[r];

            if (s->root != r || s->home != RUN_HOME_ARENA)
                continue;
            k->last[r] = last_segment(p, l, k, s);
            if (k->last[r] > segment || l->segments[segment].product)
                place(p, l, k, r);
        }
    }
}

static int list_slot(const struct run_plan *p, struct run_lockstep *l,
                     const struct keeping *k, mil_ref r, struct err *e)
{
    const struct run_slot *s = &p->slots[r];

    if (!r || k->at[s->root] == UINT64_MAX)
        return 0;
    if (mem_grow((void **)&l->slots, &l->cap_slots, l->n_slots,
                 sizeof(*l->slots), e))
        return -1;
    l->slots[l->n_slots++] =
        (struct stored){ r, k->at[s->root] + (uint64_t)s->offset };
    return 0;
}

static int list_slots(const struct run_plan *p, struct run_lockstep *l,
                      const struct keeping *k, struct segment *g, struct err *e)
{
    g->slots = l->n_slots;
    for (size_t i = g->first; i < g->end; i++) {
        const struct mil_op *op = p->steps[i].op;
        int n = mil_op_info(op->code)->n_params;

        for (int a = 0; a < n; a++)
            for (uint32_t j = 0; j < op->args[a].n; j++)
                if (list_slot(p, l, k, op->args[a].refs[j], e))
                    return -1;
        for (uint32_t j = 0; j < op->n_outs; j++)
            if (list_slot(p, l, k, op->outs[j], e))
                return -1;
    }
    g->n_slots = l->n_slots - g->slots;
    return 0;
}

static int keep_values(const struct run_plan *p, struct run_lockstep *l,
                       struct keeping *k, struct err *e)
{
    for (size_t g = 0; g < l->n_segments; g++)
        for (size_t i = l->segments[g].first; i < l->segments[g].end; i++)
            k->segment[i] = g;
    for (mil_ref r = 0; r < p->f->n_values; r++)
        k->at[r] = UINT64_MAX;
    for (size_t i = 0; i < p->f->n_inputs; i++) {
        mil_ref r = p->f->inputs[i];

        if (p->slots[r].home != RUN_HOME_INPUT)
            continue;
        k->last[r] = l->n_segments;
        place(p, l, k, r);
    }
    place_results(p, l, k);
    for (size_t i = 0; i < p->f->n_outputs; i++)
        if (list_slot(p, l, k, p->f->outputs[i], e))
            return -1;
    for (size_t g = 0; g < l->n_segments; g++)
        if (list_slots(p, l, k, &l->segments[g], e))
            return -1;
    return 0;
}

static int store_values(const struct run_plan *p, struct run_lockstep *l,
                        struct err *e)
{
    size_t n = p->f->n_values + 1;
    struct keeping k = { .segment =
                             mem_zalloc(p->n_steps + 1, sizeof(size_t), e),
                         .last = mem_zalloc(n, sizeof(size_t), e),
                         .at = mem_alloc(n, sizeof(uint64_t), e),
                         .live = mem_alloc(n, sizeof(mil_ref), e) };
    int rc = -1;

    l->roots = mem_alloc(n, sizeof(*l->roots), e);
    if (k.segment && k.last && k.at && k.live && l->roots)
        rc = keep_values(p, l, &k, e);
    mem_free(k.segment);
    mem_free(k.last);
    mem_free(k.at);
    mem_free(k.live);
    return rc;
}

/* ---- one plan ---- */

/* Shapes are known, and what a call yields is not what a state holds later. */
static bool is_plain(const struct run_plan *p)
{
    for (size_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].dynamic)
            return false;
    for (mil_ref r = 1; r < p->f->n_values; r++)
        if (p->slots[r].home == RUN_HOME_OWN)
            return false;
    for (size_t i = 0; i < p->f->n_outputs; i++)
        if (state_of(p, p->f->outputs[i]))
            return false;
    return true;
}

static int prepare(struct run_plan *p, struct err *e)
{
    struct run_lockstep *l = mem_zalloc(1, sizeof(*l), e);
    bool *joined = mem_zalloc(p->n_steps + 1, sizeof(*joined), e);
    int rc = -1;

    p->lockstep = l;
    if (l && joined && !is_plain(p))
        rc = 0;
    else if (l && joined && !join_steps(p, joined, e) && !cut(p, joined, l, e))
        rc = l->possible ? store_values(p, l, e) : 0;
    mem_free(joined);
    if (!rc)
        return 0;
    run_lockstep_free(l);
    p->lockstep = NULL;
    return -1;
}

void run_lockstep_free(struct run_lockstep *l)
{
    if (!l)
        return;
    mem_free(l->segments);
    mem_free(l->slots);
    mem_free(l->roots);
    mem_free(l->storage);
    mem_free(l);
}

/* ---- running ---- */

static void bind_call(struct run_plan *p, const struct segment *g, size_t call)
{
    struct run_lockstep *l = p->lockstep;
    float *base = l->storage + call * l->stride;

    for (size_t i = 0; i < g->n_slots; i++) {
        const struct stored *s = &l->slots[g->slots + i];

        p->slots[s->r].data = base + s->at;
    }
}

static int run_segment(struct run_plan *p, const struct segment *g, size_t n,
                       struct err *e)
{
    struct run_ctx *c = &p->model->ctx;

    if (g->product) {
        bind_call(p, g, 0);
        return run_conv_calls(c, &p->steps[g->first], (int64_t)n,
                              (int64_t)p->lockstep->stride, e);
    }
    for (size_t t = 0; t < n; t++) {
        bind_call(p, g, t);
        for (size_t i = g->first; i < g->end; i++)
            if (run_step_exec(c, &p->steps[i], e))
                return -1;
    }
    return 0;
}

/* Copies a call's inputs to their storage. */
static void load_inputs(struct run_plan *p, const struct run_calls *calls,
                        size_t call, size_t at)
{
    struct run_lockstep *l = p->lockstep;
    struct run_ctx *c = &p->model->ctx;

    for (size_t i = 0; i < l->n_roots; i++) {
        mil_ref r = l->roots[i].r;
        const struct run_slot *s = &p->slots[r];
        float *to = l->storage + at * l->stride + l->roots[i].at;
        const struct run_tensor *t;

        if (s->home != RUN_HOME_INPUT)
            continue;
        t = run_find_input(calls->inputs + call * calls->n_inputs,
                           calls->n_inputs, mil_value(p->f, r)->name);
        if (run_rounds(c, s))
            c->k->round(to, t->data, (size_t)s->elems);
        else
            memcpy(to, t->data, (size_t)s->elems * sizeof(float));
    }
}

/* 1: the caller's function failed. */
static int give(struct run_plan *p, const struct run_calls *calls, size_t call,
                size_t at, struct run_tensor *outs, struct err *e)
{
    struct run_lockstep *l = p->lockstep;
    /* the function's outputs are the first in the list */
    const struct segment all = { .n_slots = l->segments[0].slots };

    bind_call(p, &all, at);
    for (size_t i = 0; i < p->f->n_outputs; i++) {
        const struct run_slot *s = &p->slots[p->f->outputs[i]];

        outs[i].name = mil_value(p->f, p->f->outputs[i])->name;
        outs[i].type = s->type;
        outs[i].data = s->data;
    }
    return calls->take(calls->cookie, call, outs, p->f->n_outputs, e) ? 1 : 0;
}

static int run_group(struct run_plan *p, const struct run_calls *calls,
                     size_t first, size_t n, struct run_tensor *outs,
                     struct err *e)
{
    struct run_lockstep *l = p->lockstep;

    for (size_t t = 0; t < n; t++)
        load_inputs(p, calls, first + t, t);
    for (size_t g = 0; g < l->n_segments; g++)
        if (run_segment(p, &l->segments[g], n, e))
            return -1;
    for (size_t t = 0; t < n; t++)
        if (give(p, calls, first + t, t, outs, e))
            return 1;
    return 0;
}

static size_t group_size(const struct run_lockstep *l, size_t n)
{
    uint64_t most = GROUP_FLOATS / (l->stride ? l->stride : 1);

    return most < 1 ? 1 : most < n ? (size_t)most : n;
}

static int reserve(struct run_lockstep *l, size_t n, struct err *e)
{
    uint64_t need = l->stride * n;

    if (need <= l->room)
        return 0;
    mem_free(l->storage);
    l->room = 0;
    l->storage = mem_alloc_aligned((size_t)need, sizeof(float), e);
    if (!l->storage)
        return -1;
    l->room = need;
    return 0;
}

/* Later single calls find their values where the plan has put them. */
static void unbind(struct run_plan *p)
{
    struct run_lockstep *l = p->lockstep;

    for (size_t i = 0; i < l->n_roots; i++) {
        struct run_slot *s = &p->slots[l->roots[i].r];

        if (s->home == RUN_HOME_ARENA)
            s->data = p->arena + s->place;
    }
}

int run_lockstep(struct run_plan *p, const struct run_calls *calls, bool *done,
                 struct err *e)
{
    struct run_tensor *outs;
    size_t group;
    int rc = 0;

    *done = false;
    if (!p->lockstep && prepare(p, e))
        return -1;
    if (!p->lockstep->possible || calls->n < 2)
        return 0;
    *done = true;
    group = group_size(p->lockstep, calls->n);
    outs = mem_alloc(p->f->n_outputs, sizeof(*outs), e);
    if (!outs || reserve(p->lockstep, group, e))
        rc = -1;
    for (size_t i = 0; i < calls->n && !rc; i += group)
        rc = run_group(p, calls, i, calls->n - i < group ? calls->n - i : group,
                       outs, e);
    unbind(p);
    mem_free(outs);
    return rc;
}
