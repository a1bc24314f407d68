/*
 * States: float buffers by name, made at first use, that live between calls.
 */
#include "mil/run/run_priv.h"

struct state {
    char *name;
    struct mil_type type;
    uint64_t elems;
    float *data;
};

struct run_states {
    struct state *items;
    size_t n, cap;
};

struct run_states *run_states_new(struct err *e)
{
    return mem_zalloc(1, sizeof(struct run_states), e);
}

void run_states_reset(struct run_states *s)
{
    for (size_t i = 0; i < s->n; i++)
        memset(s->items[i].data, 0, (size_t)s->items[i].elems * sizeof(float));
}

void run_states_free(struct run_states *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->items[i].name);
        mem_free(s->items[i].data);
    }
    mem_free(s->items);
    mem_free(s);
}

static struct state *find(const struct run_states *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].name, name) == 0)
            return &s->items[i];
    return NULL;
}

static struct state *add(struct run_states *s, const char *name,
                         const struct mil_type *type, struct err *e)
{
    int64_t elems = mil_type_elems(type);
    struct state *st;
    void *items = s->items;

    if (elems < 0) {
        err_set(e, ERR_INPUT, "state '%s' has no fixed size", name);
        return NULL;
    }
    if (mem_grow(&items, &s->cap, s->n, sizeof(*s->items), e))
        return NULL;
    s->items = items;
    st = &s->items[s->n];
    st->type = *type;
    st->elems = (uint64_t)elems;
    st->name = mem_strdup(name, e);
    st->data =
        st->name ? mem_alloc_aligned((size_t)elems, sizeof(float), e) : NULL;
    if (!st->data) {
        mem_free(st->name);
        return NULL;
    }
    memset(st->data, 0, (size_t)elems * sizeof(float));
    s->n++;
    return st;
}

int run_state_get(struct run_states *s, const char *name,
                  const struct mil_type *type, float **data, struct err *e)
{
    struct state *st = find(s, name);
    char have[MIL_TYPE_TEXT_MAX], want[MIL_TYPE_TEXT_MAX];

    if (!st)
        st = add(s, name, type, e);
    if (!st)
        return -1;
    if (!mil_type_equal(&st->type, type)) {
        mil_type_text(&st->type, have);
        mil_type_text(type, want);
        return err_set(e, ERR_INPUT,
                       "state '%s' is declared as %s, but was %s before", name,
                       want, have);
    }
    *data = st->data;
    return 0;
}

const float *run_state_data(const struct run_states *s, const char *name,
                            const struct mil_type **type)
{
    const struct state *st = find(s, name);

    if (!st)
        return NULL;
    if (type)
        *type = &st->type;
    return st->data;
}

struct run_states *run_states_copy(const struct run_states *s, struct err *e)
{
    struct run_states *c = run_states_new(e);

    for (size_t i = 0; c && i < s->n; i++) {
        const struct state *from = &s->items[i];
        struct state *to = add(c, from->name, &from->type, e);

        if (!to) {
            run_states_free(c);
            return NULL;
        }
        memcpy(to->data, from->data, (size_t)from->elems * sizeof(float));
    }
    return c;
}
