/*
 * Lint of what meta.yaml says of layers: their kinds, the states that they
 * write, experts, and the chunks of the recurrence. All of these are keys of
 * extended packages; where one is absent, nothing is said of it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/lint_priv.h"

#define MAX_LAYERS 10000 /* as many as num_layers may say */

enum kind { FULL, SLIDING, LINEAR, N_KINDS };
static const char *const words[] = { "full", "sliding", "linear" };

static bool state_has(const struct mil_function *f, const char *part,
                      const char **name)
{
    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);

        if (v->kind == MIL_V_STATE && strstr(v->name, part)) {
            if (name)
                *name = v->name;
            return true;
        }
    }
    return false;
}

/* A function of the first decoder that is open, by which runtimes make the
 * state; NULL: there is none. */
static const struct mil_function *first_function(struct lint *l)
{
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;)
        if (m != l->embeddings && m != l->head &&
            pkg_program(m->pkg)->n_functions)
            return pkg_program(m->pkg)->functions[0];
    return NULL;
}

static yaml_node_t *entry_of(struct lint *l, const yaml_node_t *list, int64_t i)
{
    return yaml_document_get_node(&l->meta.doc,
                                  list->data.sequence.items.start[i]);
}

static int64_t length_of(const yaml_node_t *list)
{
    return list && list->type == YAML_SEQUENCE_NODE
               ? list->data.sequence.items.top - list->data.sequence.items.start
               : -1;
}

/* ---- kinds of layers ---- */

/* The kinds of all layers; how many, 0 where they are not known. */
static int64_t read_kinds(struct lint *l, uint8_t kinds[MAX_LAYERS])
{
    const yaml_node_t *list = lint_meta_node(l, "layer_types");
    int64_t n = length_of(list);
    bool known = n > 0 && n <= MAX_LAYERS;

    for (int64_t i = 0; n <= MAX_LAYERS && i < n; i++) {
        const char *s = lint_node_text(entry_of(l, list, i));
        uint8_t k = 0;

        while (k < N_KINDS && (!s || strcmp(s, words[k]) != 0))
            k++;
        kinds[i] = k;
        if (k < N_KINDS)
            continue;
        lint_add(l, LINT_ID_meta_layer_words, "meta.yaml: layer_types",
                 "layer %" PRId64 " is '%.60s'", i, s ? s : "no word");
        known = false;
    }
    return known ? n : 0;
}

/* Layers that use another one's keys and values write none. */
static bool is_shared(const struct lint *l, int64_t i)
{
    char key[32];

    snprintf(key, sizeof(key), "%" PRId64, i);
    return lint_node_member(l, lint_meta_node(l, "kv_shared_layers"), key);
}

/* The state that layers of a kind write. */
static const char *state_of(const struct mil_function *f, uint8_t kind)
{
    static const char *const parts[] = { "kv_cache_global", "kv_cache_local",
                                         "gdn_state" };
    const char *name = NULL;

    if (kind >= N_KINDS)
        return NULL;
    if (!state_has(f, parts[kind], &name) && kind != LINEAR)
        (void)state_has(f, "kv_cache_0", &name);
    return name;
}

/* Whether infer writes what one layer makes of one token: to a cache a single
 * position. Caches that shift are written as a whole, too. */
static bool is_layers(const struct mil_function *f, const struct mil_op *op,
                      uint8_t kind)
{
    const struct mil_value *v =
        mil_arg(op, 1) ? mil_value(f, mil_arg(op, 1)) : NULL;
    const struct mil_op *update =
        v && v->kind == MIL_V_RESULT && v->op >= 0 && (size_t)v->op < f->n_ops
            ? &f->ops[v->op]
            : NULL;
    const struct mil_type *t;

    if (kind == LINEAR)
        return true;
    if (!update || update->code != MIL_OP_slice_update || !mil_arg(update, 1))
        return false;
    t = &mil_value(f, mil_arg(update, 1))->type;
    return t->rank == 4 && t->dims[2] == 1;
}

/* What infer writes, in order: a byte a write, the kind of state. */
static void add_writes(const struct mil_function *f, struct buf *out)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        const struct mil_op *op = &f->ops[i];
        const char *name;

        if (op->code != MIL_OP_write_state || !mil_arg(op, 0))
            continue;
        name = mil_value(f, mil_arg(op, 0))->name;
        for (uint8_t k = 0; k < N_KINDS; k++) {
            const char *s = state_of(f, k);

            if (s && !strcmp(s, name) && is_layers(f, op, k)) {
                buf_add(out, &k, 1);
                break;
            }
        }
    }
}

/* The same of the whole model, by the infer of each chunk; false where a part
 * is missing. */
static bool all_writes(struct lint *l, struct buf *out)
{
    int n = l->whole ? 1 : l->n_chunks;

    for (int i = 0; i < n; i++) {
        const struct lint_model *m = l->whole ? l->whole : l->chunk[i];
        const struct mil_function *f =
            m && m->pkg ? mil_program_find(pkg_program(m->pkg), "infer") : NULL;

        if (!f)
            return false;
        add_writes(f, out);
    }
    return n > 0 && !buf_ok(out, l->e);
}

/* Sliding layers of a package with one cache write what full ones do. */
static uint8_t merged(const struct mil_function *f, uint8_t kind)
{
    const char *a = state_of(f, kind), *b = state_of(f, FULL);

    return kind == SLIDING && a && b && !strcmp(a, b) ? FULL : kind;
}

/* A layer writes its cache once, or keys and values one after the other. */
static void compare_order(struct lint *l, const struct mil_function *f,
                          const uint8_t *kinds, int64_t n,
                          const struct buf *writes)
{
    const uint8_t *is = (const uint8_t *)writes->data;
    size_t said[N_KINDS] = { 0 }, done[N_KINDS] = { 0 }, at = 0;

    for (int64_t i = 0; i < n; i++)
        if (kinds[i] < N_KINDS)
            said[merged(f, kinds[i])]++;
    for (size_t i = 0; i < writes->len; i++)
        done[is[i]]++;
    for (uint8_t k = 0; k < N_KINDS; k++)
        if ((said[k] && !state_of(f, k)) || (!said[k] && done[k])) {
            lint_add(l, LINT_ID_meta_layer_order, "meta.yaml: layer_types",
                     "%zu layers are '%s', %s", said[k], words[k],
                     said[k] ? "and there is no state of such layers"
                             : "the programs write the state of such layers");
            return;
        }
    for (int k = 0; k < N_KINDS; k++)
        if (said[k] && (!done[k] || done[k] % said[k]))
            return; /* several layers by one write: nothing is known */
    for (int64_t i = 0; i < n; i++) {
        uint8_t k = kinds[i] < N_KINDS ? merged(f, kinds[i]) : N_KINDS;

        for (size_t r = 0; k < N_KINDS && r < done[k] / said[k]; r++, at++)
            if (is[at] != k) {
                lint_add(l, LINT_ID_meta_layer_order, "meta.yaml: layer_types",
                         "layer %" PRId64 " is '%s', the programs write the "
                         "state of a '%s' layer there",
                         i, words[kinds[i]], words[is[at]]);
                return;
            }
    }
}

static void check_kinds(struct lint *l, const struct mil_function *f)
{
    uint8_t *kinds = mem_zalloc(MAX_LAYERS, 1, l->e);
    struct buf writes = BUF_INIT;
    int64_t n = kinds ? read_kinds(l, kinds) : 0;

    if (n && all_writes(l, &writes) && writes.len) {
        for (int64_t i = 0; i < n; i++)
            if (is_shared(l, i))
                kinds[i] = N_KINDS;
        compare_order(l, f, kinds, n, &writes);
    }
    buf_release(&writes);
    mem_free(kinds);
}

/* ---- the layers of each state ---- */

/* Whether `n` layers may have so many rows in a state. */
static bool rows_fit(const char *name, int64_t rows, int64_t n)
{
    if (strstr(name, "gdn_state"))
        return n && rows % n == 0;
    if (strstr(name, "kv_cache_0"))
        return rows == 2 * n;
    return rows == n || (strstr(name, "kv_cache") && rows == 2 * n);
}

static void tell_layers(struct lint *l, const char *name, const char *what,
                        int64_t v)
{
    lint_add(l, LINT_ID_meta_state_layers, "meta.yaml: states",
             "'%.100s': %s %" PRId64, name, what, v);
}

/* Whether a layer of this kind writes the state. */
static bool kind_writes(const char *kind, const char *state)
{
    bool linear = !strcmp(kind, "linear");

    if (!strstr(state, "kv_cache"))
        return linear;
    if (strstr(state, "kv_cache_local"))
        return !strcmp(kind, "sliding");
    if (strstr(state, "kv_cache_global"))
        return !strcmp(kind, "full");
    return !linear;
}

/* The listed layers against those that layer_types gives the state. */
static void check_types(struct lint *l, const char *name,
                        const yaml_node_t *list)
{
    const yaml_node_t *types = lint_meta_node(l, "layer_types");
    int64_t n = length_of(list), at = 0, v;

    for (int64_t i = 0; i < length_of(types); i++) {
        const char *kind = lint_node_text(entry_of(l, types, i));
        bool listed =
            at < n && lint_node_int(entry_of(l, list, at), &v) && v == i;

        at += listed;
        if (kind && listed != (kind_writes(kind, name) && !is_shared(l, i))) {
            lint_add(l, LINT_ID_meta_state_layers, "meta.yaml: states",
                     "'%.100s' %s layer %" PRId64 ", which is '%.40s'", name,
                     listed ? "lists" : "does not list", i, kind);
            return;
        }
    }
}

static void check_list(struct lint *l, const char *name,
                       const yaml_node_t *list)
{
    int64_t v, last = -1, n = length_of(list);

    for (int64_t i = 0; i < n; i++) {
        if (!lint_node_int(entry_of(l, list, i), &v) || v <= last) {
            tell_layers(l, name, "no ascending number as entry", i + 1);
            return;
        }
        last = v;
    }
    if (l->meta.layers && last >= l->meta.layers)
        tell_layers(l, name, "there is no layer", last);
    check_types(l, name, list);
}

static void check_state_entry(struct lint *l, const struct mil_function *f,
                              const yaml_node_t *entry)
{
    const char *name = lint_node_text(lint_node_member(l, entry, "name"));
    const yaml_node_t *list = lint_node_member(l, entry, "layers");
    const struct mil_value *v = name ? lint_input(f, name) : NULL;

    if (!v || !list)
        return;
    if (length_of(list) < 0) {
        lint_add(l, LINT_ID_meta_state_layers, "meta.yaml: states",
                 "'%.100s': layers is no list", name);
        return;
    }
    check_list(l, name, list);
    if (v->type.rank && !rows_fit(name, v->type.dims[0], length_of(list)))
        lint_add(l, LINT_ID_meta_state_layers, "meta.yaml: states",
                 "'%.100s' has %" PRId64 " rows for %" PRId64 " listed layers",
                 name, v->type.dims[0], length_of(list));
}

static void check_states(struct lint *l, const struct mil_function *f)
{
    const yaml_node_t *list = lint_meta_node(l, "states");

    if (!list &&
        (l->extended || l->meta.recurrent || state_has(f, "gdn_state", NULL)))
        lint_add(l, LINT_ID_meta_states_missing, "meta.yaml: states",
                 "no such key");
    for (int64_t i = 0; i < length_of(list); i++)
        check_state_entry(l, f, entry_of(l, list, i));
}

/* ---- the recurrence ---- */

/* The recurrence over chunks of n positions multiplies n by n matrices. */
static bool has_square(const struct mil_function *f, int64_t n)
{
    for (size_t i = 1; i < f->n_values; i++) {
        const struct mil_type *t = &f->values[i].type;

        if (t->rank >= 2 && t->dims[t->rank - 1] == n &&
            t->dims[t->rank - 2] == n)
            return true;
    }
    return false;
}

static bool writes_memory(const struct mil_function *f)
{
    for (size_t i = 0; i < f->n_ops; i++)
        if (f->ops[i].code == MIL_OP_write_state && mil_arg(&f->ops[i], 0) &&
            strstr(mil_value(f, mil_arg(&f->ops[i], 0))->name, "gdn_state"))
            return true;
    return false;
}

static void check_gdn_chunk(struct lint *l)
{
    static const char where[] = "meta.yaml: gdn_chunk_size";
    int64_t size, batch = l->meta.batch;
    int at = 0;

    if (!lint_meta_int(l, "gdn_chunk_size", &size) || size < 1)
        return;
    if (batch && batch % size) {
        lint_add(l, LINT_ID_meta_gdn_chunk, where,
                 "%" PRId64 ", batch_size %" PRId64 " is no multiple of it",
                 size, batch);
        return;
    }
    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        const struct mil_function *f =
            mil_program_find(pkg_program(m->pkg), "prefill");

        if (f && size > 1 && writes_memory(f) && !has_square(f, size))
            lint_add(l, LINT_ID_meta_gdn_chunk, m->name,
                     "prefill computes nothing over chunks of %" PRId64, size);
    }
}

static void check_recurrence(struct lint *l, const struct mil_function *f)
{
    const char *s =
        lint_node_text(lint_meta_node(l, "prefill_full_batches_only"));

    if (l->meta.params && !l->meta.full_batches &&
        (state_has(f, "gdn_state", NULL) || state_has(f, "conv_state", NULL)))
        lint_add(l, LINT_ID_meta_full_batches,
                 "meta.yaml: prefill_full_batches_only", "%.60s",
                 s ? s : "no such key");
    check_gdn_chunk(l);
}

/* ---- experts ---- */

/* A router and what it gives have a row (or column) for each expert. */
static bool has_router(const struct mil_program *p, int64_t experts)
{
    for (size_t i = 0; i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        for (size_t k = 1; k < f->n_values; k++) {
            const struct mil_type *t = &f->values[k].type;

            if (t->rank >= 2 &&
                (t->dims[0] == experts || t->dims[1] == experts))
                return true;
        }
    }
    return false;
}

static void check_moe(struct lint *l)
{
    static const char where[] = "meta.yaml: moe";
    const yaml_node_t *moe = lint_meta_node(l, "moe");
    const char *how = lint_node_text(lint_node_member(l, moe, "evaluation"));
    int64_t experts = 0, used = 0;
    int at = 0;

    if (!moe)
        return;
    if (!lint_node_int(lint_node_member(l, moe, "experts"), &experts) ||
        experts < 1) {
        lint_add(l, LINT_ID_meta_moe, where, "experts is no number from 1");
        experts = 0;
    }
    if (!lint_node_int(lint_node_member(l, moe, "experts_per_token"), &used) ||
        used < 1 || (experts && used > experts))
        lint_add(l, LINT_ID_meta_moe, where,
                 "experts_per_token is no number from 1 to %" PRId64, experts);
    if (!how || strcmp(how, "dense") != 0)
        lint_add(l, LINT_ID_meta_moe, where, "evaluation is '%.60s'",
                 how ? how : "");
    for (struct lint_model *m; experts && (m = lint_next_part(l, &at));)
        if (m != l->embeddings && m != l->head &&
            has_router(pkg_program(m->pkg), experts))
            return;
    if (experts)
        lint_add(l, LINT_ID_meta_moe, where,
                 "nothing in the chunks has %" PRId64 " rows, one for each "
                 "expert",
                 experts);
}

void lint_layers_check(struct lint *l)
{
    const struct mil_function *f = first_function(l);

    if (!f)
        return;
    check_kinds(l, f);
    check_states(l, f);
    check_recurrence(l, f);
    check_moe(l);
}
