/*
 * A package and its call order: embeddings, chunks 1..N, LM head; full
 * batches through prefill, single tokens through infer.
 */
#include "converter/package_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"

struct package {
    char *dir;
    unsigned forms;
    struct meta meta;
    struct pkg **files; /* embeddings, chunks, head */
    struct run_model **models;
    size_t n;
    struct run_states *states;
    int64_t pos;
    bool broken; /* a call failed half-way: states that count twice */
    int64_t hidden, vocab;
    int64_t ple;        /* width of per_layer_inputs; 0: there are none */
    bool rotates;       /* chunks have *_rotate functions */
    float *mask;        /* [batch, ctx] rows of the causal mask */
    int32_t *positions; /* [batch] */
    float *stream;      /* [batch, hidden] between the parts */
    float *per_layer;   /* [batch, ple] from the embeddings to every chunk */
};

/* ---- opening ---- */

/* One limit for all parts, in their order. */
static struct run_options part_options(const struct package *p,
                                       const struct run_options *o)
{
    struct run_options own = *o;
    uint64_t used = 0;

    for (size_t i = 0; i < p->n && p->models[i]; i++)
        used += run_resident_bytes(p->models[i]);
    if (o->const_bytes)
        own.const_bytes = used < o->const_bytes ? o->const_bytes - used : 1;
    return own;
}

/* The part in the form that apps load, read through its text, if that is
 * there; if both are, they must be one model, so that what is found of one
 * holds for the other. */
static struct pkg *open_forms(struct package *p, const char *compiled,
                              const char *package, struct err *e)
{
    unsigned forms = (io_exists(compiled) ? PACKAGE_COMPILED : 0) |
                     (io_exists(package) ? PACKAGE_SOURCE : 0);
    struct pkg *k, *other;
    int rc = 0;

    if (!forms) {
        err_set(e, ERR_INPUT, "neither '%s' nor '%s' exists", compiled,
                package);
        return NULL;
    }
    p->forms &= forms;
    if (!(forms & PACKAGE_COMPILED))
        return pkg_open(package, e);
    k = pkg_open(compiled, e);
    if (k && forms & PACKAGE_SOURCE) {
        other = pkg_open(package, e);
        rc = other ? pkg_same(k, other, e) : -1;
        pkg_close(other);
    }
    if (!rc)
        return k;
    pkg_close(k);
    return NULL;
}

static int open_part(struct package *p, size_t i, enum cv_kind kind,
                     const struct run_options *o, struct err *e)
{
    struct run_options own = part_options(p, o);
    char *compiled =
        meta_part_path(p->dir, &p->meta, kind, (int)i, META_COMPILED, e);
    char *package = compiled ? meta_part_path(p->dir, &p->meta, kind, (int)i,
                                              META_PACKAGE, e)
                             : NULL;
    struct pkg *k = package ? open_forms(p, compiled, package, e) : NULL;

    p->files[i] = k;
    /* What Core ML would refuse must not pass here because we could run it. */
    if (k && !mil_validate(pkg_program(k), e) && !pkg_check_description(k, e))
        p->models[i] = run_open(pkg_program(k), &own, e);
    if (!p->models[i] && package)
        err_in(e, "part '%s'", io_basename(k ? pkg_path(k) : package));
    mem_free(compiled);
    mem_free(package);
    return p->models[i] ? 0 : -1;
}

static int open_files(struct package *p, const struct run_options *o,
                      struct err *e)
{
    size_t chunks = p->meta.num_chunks ? (size_t)p->meta.num_chunks : 1;

    p->n = chunks + 2;
    p->files = mem_zalloc(p->n, sizeof(*p->files), e);
    p->models = mem_zalloc(p->n, sizeof(*p->models), e);
    if (!p->files || !p->models)
        return -1;
    if (open_part(p, 0, CV_EMBEDDINGS, o, e))
        return -1;
    for (size_t i = 1; i <= chunks; i++)
        if (open_part(p, i, CV_CHUNK, o, e))
            return -1;
    return open_part(p, p->n - 1, CV_HEAD, o, e);
}

/* An input of the contract with its exact shape. */
static int check_input(const struct mil_function *f, const char *name, int rank,
                       const int64_t *dims, struct err *e)
{
    const struct mil_value *v =
        mil_value_among(f, f->inputs, f->n_inputs, name);
    struct mil_type want;
    char a[MIL_TYPE_TEXT_MAX], b[MIL_TYPE_TEXT_MAX];

    if (!v)
        return err_set(e, ERR_INPUT, "function '%s' declares no input '%s'",
                       f->name, name);
    want = mil_type_make(v->type.dtype, rank, dims);
    if (mil_type_equal(&v->type, &want))
        return 0;
    mil_type_text(&v->type, a);
    mil_type_text(&want, b);
    return err_set(e, ERR_INPUT,
                   "function '%s': input '%s' is %s, meta.yaml calls for %s",
                   f->name, name, a, b);
}

/* The residual stream: as many rows as tokens, but from the last chunk's
 * prefill the last token alone if meta.yaml says so; if not, either. */
static int check_output(const struct package *p, const struct mil_function *f,
                        int64_t tokens, bool last, struct err *e)
{
    int64_t rows = last && p->meta.prefill_last_token_output ? 1 : tokens;
    const struct mil_type *t;
    char text[MIL_TYPE_TEXT_MAX];

    if (f->n_outputs < 1)
        return err_set(e, ERR_INPUT, "function '%s' has no output", f->name);
    t = &mil_value(f, f->outputs[0])->type;
    if (t->rank == 3 && t->dims[0] == 1 && t->dims[2] == p->hidden &&
        (t->dims[1] == rows ||
         (last && !p->meta.prefill_last_token_output && t->dims[1] == 1)))
        return 0;
    mil_type_text(t, text);
    return err_set(e, ERR_INPUT,
                   "function '%s' yields %s, meta.yaml calls for "
                   "[1, %" PRId64 ", %" PRId64 "]",
                   f->name, text, rows, p->hidden);
}

static int check_chunk(struct package *p, size_t i, const char *function,
                       int64_t tokens, struct err *e)
{
    const struct mil_function *f =
        mil_program_find(pkg_program(p->files[i]), function);
    int64_t ctx = p->meta.context_length;

    if (!f)
        return err_set(e, ERR_INPUT, "'%s' has no function '%s'",
                       io_basename(pkg_path(p->files[i])), function);
    if (check_input(f, "hidden_states", 3, (int64_t[]){ 1, tokens, p->hidden },
                    e) ||
        check_input(f, "position_ids", 1, &tokens, e) ||
        check_input(f, "causal_mask", 4, (int64_t[]){ 1, 1, tokens, ctx }, e) ||
        check_input(f, "current_pos", 1, (int64_t[]){ 1 }, e) ||
        (p->ple && check_input(f, "per_layer_inputs", 3,
                               (int64_t[]){ 1, tokens, p->ple }, e)) ||
        check_output(p, f, tokens, i + 2 == p->n, e))
        return err_in(e, "'%s'", io_basename(pkg_path(p->files[i])));
    return 0;
}

/* One function of a chunk, and its *_rotate form if there are such. */
static int check_pair(struct package *p, size_t i, const char *function,
                      int64_t tokens, struct err *e)
{
    char rotate[32];

    snprintf(rotate, sizeof(rotate), "%s_rotate", function);
    if (check_chunk(p, i, function, tokens, e))
        return -1;
    return p->rotates ? check_chunk(p, i, rotate, tokens, e) : 0;
}

/* The embeddings' second output, where they have one. */
static int find_per_layer(struct package *p, struct err *e)
{
    const struct mil_function *f = pkg_program(p->files[0])->functions[0];
    const struct mil_value *v =
        mil_value_among(f, f->outputs, f->n_outputs, "per_layer_inputs");

    if (!v)
        return 0;
    if (v->type.rank != 3 || v->type.dims[2] < 1)
        return err_set(e, ERR_INPUT,
                       "output 'per_layer_inputs' of the embeddings is not "
                       "[1, T, width]");
    p->ple = v->type.dims[2];
    return 0;
}

static int check_contract(struct package *p, struct err *e)
{
    const struct mil_program *head = pkg_program(p->files[p->n - 1]);
    const struct mil_function *f = head->functions[0];
    const struct mil_value *in =
        mil_value_among(f, f->inputs, f->n_inputs, "hidden_states");

    if (!in || in->type.rank != 3 || in->type.dims[2] < 1)
        return err_set(e, ERR_INPUT,
                       "the LM head has no input 'hidden_states' [1, 1, H]");
    p->hidden = in->type.dims[2];
    for (size_t i = 0; i < f->n_outputs; i++) {
        const struct mil_type *t = &mil_value(f, f->outputs[i])->type;

        if (t->rank != 3 || t->dims[2] < 1)
            return err_set(e, ERR_INPUT,
                           "output '%s' of the LM head is not [1, 1, V]",
                           mil_value(f, f->outputs[i])->name);
        p->vocab += t->dims[2];
    }
    if (p->meta.vocab_size && p->vocab != p->meta.vocab_size)
        return err_set(e, ERR_INPUT,
                       "the LM head yields %" PRId64 " logits, meta.yaml "
                       "says vocab_size %" PRId64,
                       p->vocab, p->meta.vocab_size);
    if (find_per_layer(p, e))
        return -1;
    p->rotates = mil_program_find(pkg_program(p->files[1]), "infer_rotate");
    for (size_t i = 1; i + 1 < p->n; i++)
        if (check_pair(p, i, "infer", 1, e) ||
            check_pair(p, i, "prefill", p->meta.batch_size, e))
            return -1;
    return 0;
}

struct package *package_open(const char *dir, const struct run_options *o,
                             struct err *e)
{
    struct package *p = mem_zalloc(1, sizeof(*p), e);
    size_t batch, ctx;

    if (!p)
        return NULL;
    p->forms = PACKAGE_COMPILED | PACKAGE_SOURCE;
    p->dir = mem_strdup(dir, e);
    if (!p->dir || meta_read(dir, &p->meta, e) || open_files(p, o, e) ||
        check_contract(p, e))
        goto fail;
    batch = (size_t)p->meta.batch_size;
    ctx = (size_t)p->meta.context_length;
    p->states = run_states_new(e);
    p->mask = mem_alloc(batch * ctx, sizeof(float), e);
    p->positions = mem_alloc(batch, sizeof(int32_t), e);
    p->stream = mem_alloc(batch * (size_t)p->hidden, sizeof(float), e);
    p->per_layer = mem_alloc(batch * (size_t)p->ple + 1, sizeof(float), e);
    if (p->states && p->mask && p->positions && p->stream && p->per_layer)
        return p;
fail:
    package_close(p);
    return NULL;
}

void package_close(struct package *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n && p->files && p->models; i++) {
        run_close(p->models[i]);
        pkg_close(p->files[i]);
    }
    run_states_free(p->states);
    mem_free(p->files);
    mem_free(p->models);
    mem_free(p->mask);
    mem_free(p->positions);
    mem_free(p->stream);
    mem_free(p->per_layer);
    mem_free(p->dir);
    mem_free(p);
}

const struct meta *package_meta(const struct package *p)
{
    return &p->meta;
}

int64_t package_vocab(const struct package *p)
{
    return p->vocab;
}

int64_t package_hidden(const struct package *p)
{
    return p->hidden;
}

unsigned package_forms(const struct package *p)
{
    return p->forms;
}

size_t package_files(const struct package *p)
{
    return p->n;
}

const struct pkg *package_file(const struct package *p, size_t i)
{
    return p->files[i];
}

void package_reset(struct package *p)
{
    run_states_reset(p->states);
    p->pos = 0;
    p->broken = false;
}

void package_restart(struct package *p)
{
    if (p->meta.recurrent_state)
        package_reset(p);
    p->pos = 0;
}

int64_t package_position(const struct package *p)
{
    return p->pos;
}

/* What would be lost on the way back to a position; NULL: nothing. */
static const char *unwindable(const struct package *p, int64_t position)
{
    if (p->meta.recurrent_state)
        return "a recurrent state";
    if (position > 0 && p->meta.local_cache_length)
        return "a window that shifts";
    if (position > 0 && p->rotates && p->pos > p->meta.sliding_window)
        return "a window that has rotated";
    return NULL;
}

int package_seek(struct package *p, int64_t position, struct err *e)
{
    const char *what;

    if (position < 0 || position > p->pos)
        return err_set(e, ERR_INPUT,
                       "position %" PRId64 " cannot follow: the next one is "
                       "%" PRId64 ", and none may be left out",
                       position, p->pos);
    what = position < p->pos ? unwindable(p, position) : NULL;
    if (what)
        return err_set(e, ERR_INPUT,
                       "position %" PRId64 " was fed already, the next one is "
                       "%" PRId64 ": %s cannot be rewound; restore a snapshot, "
                       "or reset and feed again",
                       position, p->pos, what);
    p->pos = position;
    return 0;
}

/* ---- snapshots ---- */

struct package_snapshot {
    struct run_states *states;
    int64_t pos;
};

struct package_snapshot *package_snapshot(const struct package *p,
                                          struct err *e)
{
    struct package_snapshot *s = mem_zalloc(1, sizeof(*s), e);

    if (!s)
        return NULL;
    s->pos = p->pos;
    s->states = run_states_copy(p->states, e);
    if (s->states)
        return s;
    package_snapshot_free(s);
    return NULL;
}

int package_restore(struct package *p, const struct package_snapshot *s,
                    struct err *e)
{
    struct run_states *states = run_states_copy(s->states, e);

    if (!states)
        return -1;
    run_states_free(p->states);
    p->states = states;
    p->pos = s->pos;
    p->broken = false;
    return 0;
}

void package_snapshot_free(struct package_snapshot *s)
{
    if (!s)
        return;
    run_states_free(s->states);
    mem_free(s);
}

const struct run_states *package_states(const struct package *p)
{
    return p->states;
}

const struct run_states *snapshot_states(const struct package_snapshot *s)
{
    return s->states;
}

/* ---- calls ---- */

/* Calls of `tokens` tokens each, one after the other through each part: one for
 * a batch, or several of infer. */
struct pass {
    struct package *p;
    size_t n;       /* calls */
    int64_t tokens; /* of each */
    int64_t rows;   /* that the last chunk's calls yield */
    float *logits;  /* [n, vocab] */
};

#define MAX_INPUTS 5

static int run_part(struct pass *a, size_t part, const char *function,
                    const struct run_tensor *inputs, size_t n_inputs,
                    int (*take)(void *pass, size_t call,
                                const struct run_tensor *outs, size_t n_outs,
                                struct err *e),
                    struct err *e)
{
    const struct run_calls calls = { .function = function,
                                     .n = a->n,
                                     .n_inputs = n_inputs,
                                     .inputs = inputs,
                                     .take = take,
                                     .cookie = a };

    return run_many(a->p->models[part], a->p->states, &calls, e);
}

/* The output `name`; a single one may be called otherwise. */
static const struct run_tensor *find_output(const struct run_tensor *outs,
                                            size_t n, const char *name,
                                            struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (n == 1 || !strcmp(outs[i].name, name))
            return &outs[i];
    err_set(e, ERR_INPUT, "it has no output '%s'", name);
    return NULL;
}

/* A call's rows of the embeddings' output `name`. */
static int take_rows(const struct pass *a, size_t call,
                     const struct run_tensor *outs, size_t n, const char *name,
                     int64_t width, float *dst, struct err *e)
{
    const struct run_tensor *t = find_output(outs, n, name, e);
    int64_t elems = a->tokens * width;

    if (!t)
        return -1;
    if (mil_type_elems(&t->type) != elems)
        return err_set(e, ERR_INPUT,
                       "its output '%s' is not [1, %" PRId64 ", %" PRId64 "]",
                       name, a->tokens, width);
    memcpy(dst + (int64_t)call * elems, t->data, (size_t)elems * sizeof(float));
    return 0;
}

static int take_embedding(void *cookie, size_t call,
                          const struct run_tensor *outs, size_t n,
                          struct err *e)
{
    const struct pass *a = cookie;
    struct package *p = a->p;

    if (take_rows(a, call, outs, n, "hidden_states", p->hidden, p->stream, e))
        return -1;
    return p->ple ? take_rows(a, call, outs, n, "per_layer_inputs", p->ple,
                              p->per_layer, e)
                  : 0;
}

static int embed(struct pass *a, const int32_t *tokens, struct err *e)
{
    struct package *p = a->p;
    struct run_tensor *in = mem_alloc(a->n, sizeof(*in), e);
    int rc;

    for (int64_t i = 0; in && i < (int64_t)a->n * a->tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= p->vocab) {
            mem_free(in);
            return err_set(e, ERR_INPUT,
                           "token id %d is not below the vocabulary of "
                           "%" PRId64,
                           tokens[i], p->vocab);
        }
    if (!in)
        return -1;
    for (size_t i = 0; i < a->n; i++)
        in[i] = (struct run_tensor){
            "input_ids", mil_type_make(MIL_I32, 2, (int64_t[]){ 1, a->tokens }),
            tokens + (int64_t)i * a->tokens
        };
    rc = run_part(a, 0, NULL, in, 1, take_embedding, e);
    mem_free(in);
    return rc ? err_in(e, "embeddings") : 0;
}

static void fill_positions(struct package *p, int64_t n)
{
    int64_t ctx = p->meta.context_length;

    for (int64_t i = 0; i < n; i++) {
        p->positions[i] = (int32_t)(p->pos + i);
        for (int64_t c = 0; c < ctx; c++)
            p->mask[i * ctx + c] = c <= p->pos + i ? 0.0f : -INFINITY;
    }
}

static bool rotates_at(const struct package *p, int64_t pos)
{
    return p->rotates && pos >= p->meta.sliding_window;
}

/* Replaces a call's rows of the stream. */
static int take_stream(void *cookie, size_t call, const struct run_tensor *outs,
                       size_t n, struct err *e)
{
    struct pass *a = cookie;
    int64_t H = a->p->hidden;
    const struct run_tensor *t =
        find_output(outs, n, "output_hidden_states", e);

    if (!t)
        return -1;
    if (t->type.rank != 3 || t->type.dims[0] != 1 || t->type.dims[2] != H ||
        t->type.dims[1] > a->tokens)
        return err_set(e, ERR_INPUT, "output is not [1, rows, %" PRId64 "]", H);
    a->rows = t->type.dims[1];
    memcpy(a->p->stream + (int64_t)call * a->tokens * H, t->data,
           (size_t)(a->rows * H) * sizeof(float));
    return 0;
}

static void chunk_inputs(const struct pass *a, struct run_tensor *in)
{
    const struct package *p = a->p;
    int64_t n = a->tokens, H = p->hidden, ctx = p->meta.context_length;
    size_t each = p->ple ? MAX_INPUTS : MAX_INPUTS - 1;

    for (int64_t i = 0; i < (int64_t)a->n; i++, in += each) {
        in[0] = (struct run_tensor){
            "hidden_states", mil_type_make(MIL_F16, 3, (int64_t[]){ 1, n, H }),
            p->stream + i * n * H
        };
        in[1] =
            (struct run_tensor){ "position_ids", mil_type_make(MIL_I32, 1, &n),
                                 p->positions + i * n };
        in[2] = (struct run_tensor){ "causal_mask",
                                     mil_type_make(MIL_F16, 4,
                                                   (int64_t[]){ 1, 1, n, ctx }),
                                     p->mask + i * n * ctx };
        in[3] =
            (struct run_tensor){ "current_pos",
                                 mil_type_make(MIL_I32, 1, (int64_t[]){ 1 }),
                                 p->positions + i * n };
        if (p->ple)
            in[4] =
                (struct run_tensor){ "per_layer_inputs",
                                     mil_type_make(MIL_F16, 3,
                                                   (int64_t[]){ 1, n, p->ple }),
                                     p->per_layer + i * n * p->ple };
    }
}

/* Runs all chunks on the stream. */
static int decode(struct pass *a, struct err *e)
{
    struct package *p = a->p;
    size_t each = p->ple ? MAX_INPUTS : MAX_INPUTS - 1;
    struct run_tensor *in = mem_alloc(a->n * each, sizeof(*in), e);
    char function[32];
    int rc = in ? 0 : -1;

    snprintf(function, sizeof(function), "%s%s",
             a->tokens == 1 ? "infer" : "prefill",
             rotates_at(p, p->pos) ? "_rotate" : "");
    fill_positions(p, (int64_t)a->n * a->tokens);
    if (in)
        chunk_inputs(a, in);
    for (size_t i = 1; i + 1 < p->n && !rc; i++)
        if (run_part(a, i, function, in, each, take_stream, e))
            rc = err_in(e, "chunk %zu, %s", i, function);
    mem_free(in);
    return rc;
}

/* By name: logits1, logits2, ... */
static int take_logits(void *cookie, size_t call, const struct run_tensor *outs,
                       size_t n, struct err *e)
{
    const struct pass *a = cookie;
    float *to = a->logits + (int64_t)call * a->p->vocab;

    for (size_t i = 0; i < n; i++) {
        char name[32];
        const struct run_tensor *t;

        snprintf(name, sizeof(name), "logits%zu", i + 1);
        t = find_output(outs, n, name, e);
        if (!t)
            return -1;
        memcpy(to, t->data, (size_t)t->type.dims[2] * sizeof(float));
        to += t->type.dims[2];
    }
    return 0;
}

/* The first n rows of the stream, a call each. */
static int head(struct package *p, const float *rows, size_t n, float *logits,
                struct err *e)
{
    struct pass a = { .p = p, .n = n, .tokens = 1, .logits = logits };
    struct run_tensor *in = mem_alloc(n, sizeof(*in), e);
    int rc;

    if (!in)
        return -1;
    for (size_t i = 0; i < n; i++)
        in[i] =
            (struct run_tensor){ "hidden_states",
                                 mil_type_make(MIL_F16, 3,
                                               (int64_t[]){ 1, 1, p->hidden }),
                                 rows + (int64_t)i * p->hidden };
    rc = run_part(&a, p->n - 1, NULL, in, 1, take_logits, e);
    mem_free(in);
    return rc ? err_in(e, "LM head") : 0;
}

/* `n` calls of `tokens` each; what they yield stands in the stream. */
static int feed(struct package *p, const int32_t *ids, size_t n, int64_t tokens,
                int64_t *rows, struct err *e)
{
    struct pass a = { .p = p, .n = n, .tokens = tokens };
    int64_t end = p->pos + (int64_t)n * tokens;

    if (end > p->meta.context_length)
        return err_set(e, ERR_INPUT,
                       "position %" PRId64 " is beyond the package's context "
                       "of %" PRId64 "; convert again with a larger --ctx",
                       end - 1, p->meta.context_length);
    if (p->broken)
        return err_set(e, ERR_INPUT,
                       "a call at position %" PRId64 " failed half-way, and a "
                       "recurrent state cannot be rewound: restore a snapshot, "
                       "or reset and feed again",
                       p->pos);
    if (embed(&a, ids, e))
        return -1;
    if (decode(&a, e)) {
        p->broken = p->meta.recurrent_state;
        return -1;
    }
    p->pos = end;
    *rows = a.rows;
    return 0;
}

static int feed_batch(struct package *p, const int32_t *ids, float *logits,
                      struct err *e)
{
    int64_t rows;

    if (feed(p, ids, 1, p->meta.batch_size, &rows, e))
        return -1;
    if (!logits)
        return 0;
    if (!(rows == 1 && p->meta.prefill_last_token_output))
        return err_set(e, ERR_UNSUPPORTED,
                       "prefill of this package does not yield its last "
                       "token");
    return head(p, p->stream, 1, logits, e);
}

/* Calls of one function that the memory for a batch has room for. */
static size_t infer_calls(const struct package *p, size_t n)
{
    int64_t most = p->meta.batch_size, border = p->meta.sliding_window;

    if (p->rotates && p->pos < border && p->pos + most > border)
        most = border - p->pos;
    return (int64_t)n < most ? n : (size_t)most;
}

int package_infer(struct package *p, const int32_t *tokens, size_t n,
                  float *logits, struct err *e)
{
    for (size_t i = 0; i < n;) {
        size_t calls = infer_calls(p, n - i);
        int64_t rows;

        if (feed(p, tokens + i, calls, 1, &rows, e) ||
            (logits &&
             head(p, p->stream, calls, logits + (int64_t)i * p->vocab, e)))
            return -1;
        i += calls;
    }
    return 0;
}

int package_feed(struct package *p, const int32_t *tokens, size_t n,
                 bool prefill, float *logits, struct err *e)
{
    if (prefill && n > 1 && (int64_t)n == p->meta.batch_size)
        return feed_batch(p, tokens, logits, e);
    if (!n)
        return 0;
    return package_infer(p, tokens, n - 1, NULL, e) ||
                   package_infer(p, tokens + n - 1, 1, logits, e)
               ? -1
               : 0;
}

int package_embed(struct package *p, const int32_t *tokens, size_t n,
                  float *rows, struct err *e)
{
    size_t batch = (size_t)p->meta.batch_size, width = (size_t)p->hidden;

    for (size_t at = 0, m; at < n; at += m) {
        struct pass a = { .p = p, .tokens = 1 };

        a.n = m = n - at < batch ? n - at : batch;
        if (embed(&a, tokens + at, e))
            return -1;
        memcpy(rows + at * width, p->stream, m * width * sizeof(float));
    }
    return 0;
}
