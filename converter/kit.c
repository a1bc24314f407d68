/*
 * The device kit, written.
 */
#include "converter/kit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/gate.h"
#include "converter/kit_files.inc"
#include "converter/package_run.h"
#include "safetensors/st.h"

#define MAX_DEPTH 16
#define SINGLE_STEPS 24 /* generated behind each of our own prompts */

/* A call of the decoder and what its logits are. */
struct call {
    int64_t first, count;
    const char *function;
    bool expects;
    int64_t top1;
    double margin, norm, digest[KIT_SUMS];
};
struct prompt {
    int32_t *ids;
    size_t n, known; /* ids from `known` on are our own best tokens */
    struct call *calls;
    size_t n_calls, rows;
};
struct kit {
    const struct kit_options *o;
    struct package *p;
    const struct meta *m;
    int64_t vocab;
    bool rotates;
    struct prompt *prompts;
    size_t n;
    float *logits;
    struct st_writer *out; /* NULL: none */
};

/* ---- digests ---- */

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= UINT32_C(0x7feb352d);
    x ^= x >> 15;
    x *= UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

void kit_digest(const float *logits, int64_t n, double out[KIT_SUMS])
{
    for (int k = 0; k < KIT_SUMS; k++) {
        double sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum +=
                mix((uint32_t)(KIT_SUMS * i + k)) & 1 ? logits[i] : -logits[i];
        out[k] = sum;
    }
}

static void describe(struct call *c, const float *logits, int64_t n)
{
    double best = -INFINITY, second = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)logits[i] * logits[i];
        if (logits[i] > best) {
            second = best;
            best = logits[i];
            c->top1 = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    c->margin = n > 1 ? best - second : 0;
    c->norm = sqrt(sum);
    kit_digest(logits, n, c->digest);
}

/* ---- prompts ---- */

static int add_prompt(struct kit *k, size_t n, size_t known, struct err *e)
{
    struct prompt *p = &k->prompts[k->n];

    if (n > (size_t)k->m->context_length)
        n = (size_t)k->m->context_length;
    p->n = n;
    p->known = known < n ? known : n;
    p->ids = mem_zalloc(n, sizeof(*p->ids), e);
    if (!p->ids)
        return -1;
    for (size_t i = 0; i < p->known; i++)
        p->ids[i] = (int32_t)(mix((uint32_t)(1000 * k->n + i + 1)) %
                              (uint64_t)k->vocab);
    k->n++;
    return 0;
}

/* One past a batch border, one by single tokens alone. */
static int own_prompts(struct kit *k, struct err *e)
{
    size_t batch = (size_t)k->m->batch_size;

    k->prompts = mem_zalloc(2, sizeof(*k->prompts), e);
    if (!k->prompts)
        return -1;
    return add_prompt(k, batch + SINGLE_STEPS, batch + 4, e) ||
                   add_prompt(k, 5 + SINGLE_STEPS, 5, e)
               ? -1
               : 0;
}

static int given_prompts(struct kit *k, struct err *e)
{
    struct prompts g;

    if (prompts_read(&g, k->o->tokens, k->vocab, e))
        return -1;
    k->prompts = mem_zalloc(g.n, sizeof(*k->prompts), e);
    for (size_t i = 0; k->prompts && i < g.n; i++) {
        if (add_prompt(k, g.lengths[i], g.lengths[i], e))
            break;
        memcpy(k->prompts[i].ids, g.ids[i],
               k->prompts[i].n * sizeof(*g.ids[i]));
    }
    prompts_release(&g);
    return e->code ? -1 : 0;
}

static const char *function_of(const struct kit *k, int64_t first,
                               int64_t count)
{
    bool rotate = k->rotates && first >= k->m->sliding_window;

    return count > 1 ? (rotate ? "prefill_rotate" : "prefill")
                     : (rotate ? "infer_rotate" : "infer");
}

/* Full batches while the ids are known, then one by one. */
static int plan_calls(struct kit *k, struct prompt *p, struct err *e)
{
    int64_t at = 0, n = (int64_t)p->n, known = (int64_t)p->known;

    p->calls = mem_zalloc(p->n, sizeof(*p->calls), e);
    if (!p->calls)
        return -1;
    while (at < n) {
        struct call *c = &p->calls[p->n_calls++];
        int64_t batch = k->m->batch_size;

        c->first = at;
        c->count = batch > 1 && at + batch <= known ? batch : 1;
        c->function = function_of(k, at, c->count);
        c->expects = c->count == 1 || k->m->prefill_last_token_output;
        p->rows += c->expects;
        at += c->count;
    }
    return 0;
}

/* ---- running ---- */

static int run_prompt(struct kit *k, struct prompt *p, struct err *e)
{
    size_t bytes = (size_t)k->vocab * sizeof(float);

    package_reset(k->p);
    for (size_t i = 0; i < p->n_calls; i++) {
        struct call *c = &p->calls[i];
        size_t next = (size_t)(c->first + c->count);

        if (package_feed(k->p, p->ids + c->first, (size_t)c->count,
                         c->count > 1, c->expects ? k->logits : NULL, e))
            return -1;
        if (!c->expects)
            continue;
        describe(c, k->logits, k->vocab);
        if (k->out && st_writer_write(k->out, k->logits, bytes, e))
            return -1;
        if (next >= p->known && next < p->n)
            p->ids[next] = (int32_t)c->top1;
        log_progress(k->o->log, "kit", i + 1, p->n_calls, "calls");
        if (log_cancelled(k->o->log))
            return err_set(e, ERR_CANCELLED, "interrupted");
    }
    return 0;
}

static int begin_logits(struct kit *k, struct err *e)
{
    if (!k->o->logits)
        return 0;
    k->out = st_writer_new(e);
    for (size_t i = 0; k->out && i < k->n; i++) {
        uint64_t dims[2] = { k->prompts[i].rows, (uint64_t)k->vocab };
        char name[32];

        snprintf(name, sizeof(name), "prompt.%zu", i);
        if (st_writer_add(k->out, name, ST_F32, 2, dims, e))
            return -1;
    }
    return k->out ? st_writer_begin(k->out, k->o->logits, e) : -1;
}

static int run_all(struct kit *k, struct err *e)
{
    k->logits = mem_alloc((size_t)k->vocab, sizeof(*k->logits), e);
    if (!k->logits)
        return -1;
    for (size_t i = 0; i < k->n; i++)
        if (plan_calls(k, &k->prompts[i], e))
            return -1;
    if (begin_logits(k, e))
        return -1;
    for (size_t i = 0; i < k->n; i++)
        if (run_prompt(k, &k->prompts[i], e))
            return err_in(e, "prompt %zu", i);
    return k->out ? st_writer_finish(k->out, e) : 0;
}

/* ---- kit.json ---- */

static void call_json(const struct call *c, struct js_writer *w)
{
    js_w_object(w, NULL);
    js_w_string(w, "function", c->function);
    js_w_int(w, "first", c->first);
    js_w_int(w, "count", c->count);
    if (c->expects) {
        js_w_int(w, "top1", c->top1);
        js_w_double(w, "margin", c->margin);
        js_w_double(w, "norm", c->norm);
        js_w_array(w, "digest", true);
        for (int i = 0; i < KIT_SUMS; i++)
            js_w_double(w, NULL, c->digest[i]);
        js_w_end(w);
    }
    js_w_end(w);
}

static void prompt_json(const struct prompt *p, struct js_writer *w)
{
    js_w_object(w, NULL);
    js_w_array(w, "tokens", true);
    for (size_t i = 0; i < p->n; i++)
        js_w_int(w, NULL, p->ids[i]);
    js_w_end(w);
    js_w_array(w, "calls", false);
    for (size_t i = 0; i < p->n_calls; i++)
        call_json(&p->calls[i], w);
    js_w_end(w);
    js_w_end(w);
}

static void part_json(const struct kit *k, size_t i, struct js_writer *w)
{
    const char *name = io_basename(pkg_path(package_file(k->p, i)));
    size_t n = strlen(name);
    char stem[256];

    if (n > 10 && !strcmp(name + n - 10, ".mlpackage"))
        n -= 10;
    else if (n > 9 && !strcmp(name + n - 9, ".mlmodelc"))
        n -= 9;
    snprintf(stem, sizeof(stem), "%.*s", (int)n, name);
    js_w_string(w, NULL, stem);
}

static void kit_json(const struct kit *k, struct buf *out)
{
    struct js_writer w;

    js_w_init(&w, out);
    js_w_object(&w, NULL);
    js_w_uint(&w, "schema", 1);
    js_w_string(&w, "kind", "kit");
    js_w_string(&w, "name", k->m->name);
    js_w_string(&w, "architecture", k->m->architecture);
    js_w_string(&w, "made_by",
                "anemll-fixtures " ANEMLL_VERSION ", profile fp16");
    js_w_int(&w, "context_length", k->m->context_length);
    js_w_int(&w, "batch_size", k->m->batch_size);
    js_w_int(&w, "vocab_size", k->vocab);
    js_w_array(&w, "parts", false); /* embeddings, chunks, LM head */
    for (size_t i = 0; i < package_files(k->p); i++)
        part_json(k, i, &w);
    js_w_end(&w);
    /* What a device may differ by. Half precision in another order gives
     * about 0.04; a decided token's margin is above what that moves. */
    js_w_double(&w, "limit", 0.1);
    js_w_double(&w, "decided", 0.4);
    js_w_array(&w, "prompts", false);
    for (size_t i = 0; i < k->n; i++)
        prompt_json(&k->prompts[i], &w);
    js_w_end(&w);
    js_w_end(&w);
    buf_puts(out, "\n");
}

/* ---- files ---- */

static int copy_tree(const char *from, const char *to, int depth,
                     struct err *e);

static int copy_entry(const char *from, const char *to, const char *name,
                      int depth, struct err *e)
{
    char *a = io_join(from, name, e), *b = io_join(to, name, e);
    struct stat st;
    bool is_link = a && lstat(a, &st) == 0 && S_ISLNK(st.st_mode);
    int rc = -1;

    /* Folders of downloads link to files, which the kit holds itself. */
    if (is_link && io_is_dir(a))
        err_set(e, ERR_INPUT, "'%s' is a link to a folder", a);
    else if (is_link && b)
        rc = io_copy_file(a, b, e);
    else if (a && b)
        rc = io_is_dir(a)      ? copy_tree(a, b, depth + 1, e)
             : link(a, b) == 0 ? 0
                               : io_copy_file(a, b, e);
    mem_free(a);
    mem_free(b);
    return rc;
}

static int copy_tree(const char *from, const char *to, int depth, struct err *e)
{
    char **names;
    size_t n;
    int rc;

    if (depth > MAX_DEPTH)
        return err_set(e, ERR_INPUT, "'%s': more than %d folders deep", from,
                       MAX_DEPTH);
    if (io_mkdir(to, e) || io_list(from, &names, &n, e))
        return -1;
    rc = 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = copy_entry(from, to, names[i], depth, e);
    io_list_free(names, n);
    return rc;
}

static int write_file(const char *dir, const char *name, const void *bytes,
                      size_t n, struct err *e)
{
    char *path = io_join(dir, name, e);
    int rc = path ? io_write_file(path, bytes, n, e) : -1;

    mem_free(path);
    return rc;
}

static int write_files(const struct kit *k, const char *dir, struct err *e)
{
    struct buf json = BUF_INIT;
    char *to = io_join(dir, "package", e);
    int rc = -1;

    kit_json(k, &json);
    if (to && !buf_ok(&json, e) && !copy_tree(k->o->package, to, 0, e) &&
        !write_file(dir, "kit.json", json.data, json.len, e) &&
        !write_file(dir, "README.md", kit_README_md, sizeof(kit_README_md),
                    e) &&
        !write_file(dir, "check.py", kit_check_py, sizeof(kit_check_py), e))
        rc = write_file(dir, "check.swift", kit_check_swift,
                        sizeof(kit_check_swift), e);
    buf_release(&json);
    mem_free(to);
    return rc;
}

static void release(struct kit *k)
{
    for (size_t i = 0; i < k->n; i++) {
        mem_free(k->prompts[i].ids);
        mem_free(k->prompts[i].calls);
    }
    mem_free(k->prompts);
    mem_free(k->logits);
    st_writer_free(k->out);
    package_close(k->p);
}

/* The package is copied: it would hold its own copy. */
static int check_outside(const struct kit *k, const struct io_stage *stage,
                         struct err *e)
{
    if (io_contains(k->o->package, stage->dir) != 1)
        return 0;
    return err_set(e, ERR_USAGE, "the kit '%s' lies inside the package '%s'",
                   k->o->output, k->o->package);
}

int kit_write(const struct kit_options *o, struct err *e)
{
    const struct run_options ro = { .profile = RUN_FP16, .par = o->par };
    struct io_stage stage = IO_STAGE_INIT;
    struct kit k = { .o = o };
    int rc = -1;

    k.p = package_open(o->package, &ro, e);
    if (!k.p)
        return -1;
    k.m = package_meta(k.p);
    k.vocab = package_vocab(k.p);
    k.rotates =
        mil_program_find(pkg_program(package_file(k.p, 1)), "infer_rotate");
    if ((o->tokens ? given_prompts(&k, e) : own_prompts(&k, e)) == 0 &&
        !io_stage_begin(&stage, o->output, false, e) &&
        !check_outside(&k, &stage, e) && !run_all(&k, e) &&
        !write_files(&k, stage.dir, e))
        rc = io_stage_commit(&stage, e);
    io_stage_release(&stage);
    release(&k);
    return rc;
}
