/*
 * The shared half of the replay: YAML values, models and calls.
 */
#include "contract.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <yaml.h>

bool ct_fail(char why[600], const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, 600, fmt, ap);
    va_end(ap);
    return false;
}

bool ct_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

/* ---- YAML, by libyaml alone ---- */

struct ct_yaml {
    yaml_document_t doc;
};

struct ct_yaml *ct_yaml_open(const char *dir)
{
    struct ct_yaml *y = calloc(1, sizeof(*y));
    yaml_parser_t parser;
    char path[700];
    FILE *f;
    int ok;

    snprintf(path, sizeof(path), "%s/meta.yaml", dir);
    f = fopen(path, "rb");
    if (!f || !y || !yaml_parser_initialize(&parser)) {
        free(y);
        return NULL;
    }
    yaml_parser_set_input_file(&parser, f);
    ok = yaml_parser_load(&parser, &y->doc);
    yaml_parser_delete(&parser);
    fclose(f);
    if (ok)
        return y;
    free(y);
    return NULL;
}

void ct_yaml_close(struct ct_yaml *y)
{
    if (y)
        yaml_document_delete(&y->doc);
    free(y);
}

static yaml_node_t *child(struct ct_yaml *y, yaml_node_t *map, const char *key)
{
    if (!map || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         p < map->data.mapping.pairs.top; p++) {
        yaml_node_t *k = yaml_document_get_node(&y->doc, p->key);

        if (k->type == YAML_SCALAR_NODE &&
            !strcmp((char *)k->data.scalar.value, key))
            return yaml_document_get_node(&y->doc, p->value);
    }
    return NULL;
}

const char *ct_yaml_get(struct ct_yaml *y, bool info, const char *key,
                        bool *plain)
{
    yaml_node_t *n =
        child(y, yaml_document_get_root_node(&y->doc), "model_info");

    if (!info)
        n = child(y, n, "parameters");
    n = child(y, n, key);
    if (!n || n->type != YAML_SCALAR_NODE)
        return NULL;
    if (plain)
        *plain = n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return (char *)n->data.scalar.value;
}

/* ---- models ---- */

static bool open_model(struct ct *c, int i, const char *path)
{
    const struct run_options o = { .profile = RUN_FP16 };
    struct err e = ERR_INIT;

    c->pkg[i] = pkg_open(path, &e);
    if (c->pkg[i])
        c->run[i] = run_open(pkg_program(c->pkg[i]), &o, &e);
    return c->run[i] || ct_fail(c->why, "%s", e.text);
}

static const struct mil_value *border(const struct mil_function *f,
                                      const char *name, bool in)
{
    for (size_t i = 0; i < (in ? f->n_inputs : f->n_outputs); i++) {
        const struct mil_value *v =
            mil_value(f, in ? f->inputs[i] : f->outputs[i]);

        if (!strcmp(v->name, name))
            return v;
    }
    return NULL;
}

/* logits1 ... logitsN: every one of them, whatever their order. */
static bool find_logits(struct ct *c)
{
    const struct mil_function *f =
        pkg_program(c->pkg[c->chunks + 1])->functions[0];

    c->vocab = 0;
    for (int i = 0; i < (int)c->parts; i++) {
        char name[32];
        const struct mil_value *v;

        snprintf(name, sizeof(name), "logits%d", i + 1);
        v = border(f, name, false);
        if (!v || v->type.rank != 3 || v->type.dtype != MIL_F16)
            return ct_fail(c->why, "the LM head has no fp16 '%s' [1, 1, V]",
                           name);
        c->widths[i] = v->type.dims[2];
        c->vocab += v->type.dims[2];
    }
    return true;
}

/* H is read off the first chunk's infer; the state is made from its prefill. */
bool ct_open_models(struct ct *c)
{
    const struct mil_function *infer, *prefill, *last;
    const struct mil_value *v;
    struct err e = ERR_INIT;
    bool state = false;

    if (c->parts > CT_MAX_PARTS || c->chunks > CT_MAX_CHUNKS)
        return ct_fail(c->why, "more than the replay holds");
    if (!open_model(c, 0, c->embeddings) ||
        !open_model(c, c->chunks + 1, c->head))
        return false;
    for (int i = 0; i < c->chunks; i++)
        if (!open_model(c, i + 1, c->ffn[i]))
            return false;
    infer = mil_program_find(pkg_program(c->pkg[1]), "infer");
    prefill = mil_program_find(pkg_program(c->pkg[1]), "prefill");
    last = mil_program_find(pkg_program(c->pkg[c->chunks]), "prefill");
    if (!infer || !prefill || !last)
        return ct_fail(c->why, "no functions infer and prefill");
    v = border(infer, "hidden_states", true);
    if (!v || v->type.rank != 3)
        return ct_fail(c->why, "no hidden_states [1, 1, H]");
    c->hidden = v->type.dims[2];
    for (size_t i = 0; i < prefill->n_inputs; i++)
        state = state ||
                mil_value(prefill, prefill->inputs[i])->kind == MIL_V_STATE;
    if (!state)
        return ct_fail(c->why, "no state to make");
    v = border(last, "output_hidden_states", false);
    if (!v || v->type.rank != 3)
        return ct_fail(c->why, "no output_hidden_states");
    c->rows_one = v->type.dims[1] == 1;
    c->states = run_states_new(&e);
    c->stream = calloc((size_t)(c->batch * c->hidden), sizeof(float));
    c->mask = calloc((size_t)(c->batch * c->context), sizeof(float));
    return find_logits(c) && c->states && c->stream && c->mask;
}

void ct_close(struct ct *c)
{
    for (int i = 0; i < CT_MAX_CHUNKS + 2; i++) {
        run_close(c->run[i]);
        pkg_close(c->pkg[i]);
    }
    run_states_free(c->states);
    free(c->stream);
    free(c->mask);
    memset(c, 0, sizeof(*c));
}

/* ---- calls ---- */

/* One prediction: the inputs by name, one output of an exact shape. */
static bool predict(struct ct *c, int part, const char *function,
                    const struct run_tensor *in, size_t n_in, const char *want,
                    const struct mil_type *shape, const void **out)
{
    struct run_tensor outs[CT_MAX_PARTS];
    struct err e = ERR_INIT;
    size_t n;

    if (run_call(c->run[part], function, c->states, in, n_in, outs,
                 CT_MAX_PARTS, &n, &e))
        return ct_fail(c->why, "part %d, %s: %s", part,
                       function ? function : "main", e.text);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(outs[i].name, want)) {
            if (shape && !mil_type_equal(&outs[i].type, shape))
                return ct_fail(c->why, "part %d: '%s' does not fit its buffer",
                               part, want);
            *out = outs[i].data;
            return true;
        }
    return ct_fail(c->why, "part %d has no output '%s'", part, want);
}

#define TYPE(d, ...)                                                        \
    mil_type_make((d), (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / 8), \
                  (const int64_t[]){ __VA_ARGS__ })

static bool embed(struct ct *c, const int32_t *ids, int64_t n)
{
    struct run_tensor in = { "input_ids", TYPE(MIL_I32, 1, n), ids };
    struct mil_type shape = TYPE(MIL_F16, 1, n, c->hidden);
    const void *out;

    if (!predict(c, 0, NULL, &in, 1, "hidden_states", &shape, &out))
        return false;
    memcpy(c->stream, out, (size_t)(n * c->hidden) * sizeof(float));
    return true;
}

/* gemma3: the rotate functions from the window on, by the batch's start. */
static const char *function_at(const struct ct *c, int64_t p, int64_t n)
{
    bool rotate = c->window && p >= c->window;

    return n == 1 ? (rotate ? "infer_rotate" : "infer")
                  : (rotate ? "prefill_rotate" : "prefill");
}

/* Positions p .. p + n - 1 through all chunks. */
static bool decode(struct ct *c, int64_t p, int64_t n)
{
    int32_t positions[4096], current = (int32_t)p;

    for (int64_t i = 0; i < n; i++) {
        positions[i] = (int32_t)(p + i);
        for (int64_t k = 0; k < c->context; k++)
            c->mask[i * c->context + k] = k <= p + i ? 0 : -INFINITY;
    }
    for (int i = 1; i <= c->chunks; i++) {
        struct run_tensor in[] = {
            { "hidden_states", TYPE(MIL_F16, 1, n, c->hidden), c->stream },
            { "position_ids", TYPE(MIL_I32, n), positions },
            { "causal_mask", TYPE(MIL_F16, 1, 1, n, c->context), c->mask },
            { "current_pos", TYPE(MIL_I32, 1), &current },
        };
        int64_t rows = n > 1 && i == c->chunks && c->rows_one ? 1 : n;
        struct mil_type shape = TYPE(MIL_F16, 1, rows, c->hidden);
        const void *out;

        if (!predict(c, i, function_at(c, p, n), in, 4, "output_hidden_states",
                     &shape, &out))
            return false;
        memcpy(c->stream, out, (size_t)(rows * c->hidden) * sizeof(float));
    }
    return true;
}

static bool head(struct ct *c, float *logits)
{
    struct run_tensor in = { "hidden_states", TYPE(MIL_F16, 1, 1, c->hidden),
                             c->stream };
    int64_t at = 0;

    for (int i = 0; i < (int)c->parts; i++) {
        struct mil_type shape = TYPE(MIL_F16, 1, 1, c->widths[i]);
        char name[32];
        const void *out;

        snprintf(name, sizeof(name), "logits%d", i + 1);
        if (!predict(c, c->chunks + 1, NULL, &in, 1, name, &shape, &out))
            return false;
        memcpy(logits + at, out, (size_t)c->widths[i] * sizeof(float));
        at += c->widths[i];
    }
    return true;
}

bool ct_token(struct ct *c, int32_t token, int64_t position, float *logits)
{
    return embed(c, &token, 1) && decode(c, position, 1) && head(c, logits);
}

static bool feed(struct ct *c, const int32_t *tokens, int64_t n)
{
    int64_t p = 0;

    while (c->batched && p + c->batch <= n) {
        if (!embed(c, tokens + p, c->batch) || !decode(c, p, c->batch))
            return false;
        p += c->batch;
    }
    for (; p < n; p++)
        if (!embed(c, tokens + p, 1) || !decode(c, p, 1))
            return false;
    return true;
}

bool ct_prompt(struct ct *c, const int32_t *tokens, size_t n, float *logits)
{
    return feed(c, tokens, (int64_t)n) &&
           ct_token(c, tokens[n - 1], (int64_t)n - 1, logits);
}

bool ct_prompt_once(struct ct *c, const int32_t *tokens, size_t n,
                    float *logits)
{
    return feed(c, tokens, (int64_t)n) && head(c, logits);
}

int64_t ct_swift_id(const struct ct *c, int64_t at)
{
    for (int i = 0; i < (int)c->parts; i++) {
        if (at < c->widths[i])
            return i * c->widths[i] + at;
        at -= c->widths[i];
    }
    return -1;
}
