/*
 * The plan of a job: names, chunks, LM-head parts, sizes, limits. Sizes come
 * from the very programs that will be written, built without bytes.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/assets.h"
#include "converter/base/io.h"
#include "converter/base/num.h"
#include "converter/budget_priv.h"
#include "converter/calib.h"
#include "converter/converter.h"
#include "converter/importance.h"
#include "converter/meta.h"
#include "converter/program_priv.h"
#include "converter/recipe.h"
#include "models/fp16_range.h"
#include "models/parts_gdn.h"
#include "models/weights.h"

/* Published limits of devices and compilers, with what they are known from:
 * files above 1 GB fail on iPhones (reports), weights of 2^31 bytes fail at
 * load (reports), axes above 16384 are refused by A13 to A15, above 65536 by
 * later chips (reports). */
#define PHONE_FILE_BYTES 1000000000u
#define BLOB_LIMIT ((uint64_t)1 << 31)
#define AXIS_LIMIT 16384
#define AXIS_LATER 65536

/* Files beside the parts' messages and weights. */
#define MANIFEST_BYTES 620
#define META_BYTES 1500

/* ---- names ---- */

/* Characters of a model's name in that of its package: with both ends it
 * stays below what meta.yaml's readers and file systems take. */
#define NAME_MAX_CHARS 100

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
           (c >= 'a' && c <= 'z');
}

/* "--" becomes "-", other characters than letters, digits and "-._" become
 * "_"; what is left out of a long name is its end. */
static void clean_name(char *name)
{
    char *q = name;

    for (const char *p = name; *p && q - name < NAME_MAX_CHARS; p++)
        if (p[0] != '-' || p[1] != '-')
            *q++ = is_word(*p) || strchr("-._", *p) ? *p : '_';
    *q = '\0';
}

/* The name that a checkpoint goes by: its folder, or the repository of a hub
 * cache ("models--Qwen--Qwen3-0.6B/snapshots/<hash>"). */
static char *model_name(const char *dir, struct err *e)
{
    char *real = io_realpath(dir, e), *snap, *name;
    const char *base;

    if (!real)
        return NULL;
    base = io_basename(real);
    snap = strstr(real, "/snapshots/");
    if (snap && !strchr(snap + strlen("/snapshots/"), '/')) {
        *snap = '\0';
        base = io_basename(real);
        if (!strncmp(base, "models--", 8))
            base += 8;
    }
    name = mem_strdup(*base ? base : "model", e);
    mem_free(real);
    if (name)
        clean_name(name);
    return name;
}

/* The prefix begins every file name and stands in meta.yaml, where ANEMLL's
 * readers take it apart: no quotes, no dots, none of their own marks. */
static int check_prefix(const struct cv_job *j, struct err *e)
{
    const char *p = j->prefix;
    size_t n = strlen(p);

    for (size_t i = 0; i < n; i++)
        if (!is_word(p[i]) && p[i] != '_' && p[i] != '-')
            n = 0;
    if (!n || n > 48 || !is_word(p[0]) || !meta_plain(p))
        return err_set(e, ERR_USAGE,
                       "--prefix '%s': up to 48 letters, digits, '_' and '-' "
                       "are allowed, starting with a letter, and no YAML word",
                       p);
    if (strstr(p, "_chunk_") || strstr(p, "FFN"))
        return err_set(e, ERR_USAGE,
                       "--prefix '%s': runtimes look for FFN and _chunk_ in "
                       "file names, so it may hold neither",
                       p);
    if (!strncmp(p, "gemma3", 6) && strncmp(j->ckpt.hp.arch->name, "gemma3", 6))
        return err_set(e, ERR_USAGE,
                       "--prefix '%s': runtimes treat prefixes that begin "
                       "with gemma3 as sliding-window models, and %s is none",
                       p, j->ckpt.hp.arch->name);
    return 0;
}

static int name_job(struct cv_job *j, struct err *e)
{
    char *model = model_name(j->opt.model, e);

    if (!model)
        return -1;
    j->name = mem_printf(e, "anemll-%s-ctx%" PRId64, model, j->opt.ctx);
    mem_free(model);
    if (!j->name)
        return -1;
    j->output = j->opt.output ? mem_strdup(j->opt.output, e)
                              : mem_printf(e, "./%s", j->name);
    j->prefix = j->opt.prefix ? j->opt.prefix : j->ckpt.hp.arch->prefix;
    return j->output ? check_prefix(j, e) : -1;
}

static void name_part(const struct cv_job *j, struct cv_part *p)
{
    char lut[16] = "";

    if (p->lut.bits && !p->lut.linear)
        snprintf(lut, sizeof(lut), "_lut%d", p->lut.bits);
    switch (p->kind) {
    case CV_EMBEDDINGS:
        snprintf(p->name, sizeof(p->name), "%s_embeddings%s", j->prefix, lut);
        break;
    case CV_HEAD:
        snprintf(p->name, sizeof(p->name), "%s_lm_head%s", j->prefix, lut);
        break;
    case CV_CHUNK:
        snprintf(p->name, sizeof(p->name), "%s_FFN_PF%s_chunk_%02dof%02d",
                 j->prefix, lut, p->chunk, j->chunks);
        break;
    }
}

/* ---- checks of the options against the model ---- */

/* Recurrent layers are prefilled in chunks that divide the batch. */
static int check_recurrent(const struct cv_job *j, struct err *e)
{
    if (!j->ckpt.hp.lin_value_heads || gdn_chunk(j->opt.batch))
        return 0;
    return err_set(e, ERR_USAGE,
                   "--batch %" PRId64 ": recurrent layers take it in chunks "
                   "of %d to %d tokens, and none of these numbers divides it; "
                   "%" PRId64 " would do",
                   j->opt.batch, GDN_CHUNK_MIN, GDN_CHUNK_MAX,
                   (j->opt.batch + GDN_CHUNK_MAX - 1) / GDN_CHUNK_MAX *
                       GDN_CHUNK_MAX);
}

static int check_shape(const struct cv_job *j, struct err *e)
{
    const struct hparams *hp = &j->ckpt.hp;
    int64_t ctx = j->opt.ctx, b = j->opt.batch;

    if (b < 1 || b > 4096)
        return err_set(e, ERR_USAGE,
                       "--batch %" PRId64 " is not between 1 and 4096", b);
    if (check_recurrent(j, e))
        return -1;
    if (ctx < 1 || ctx % b)
        return err_set(e, ERR_USAGE,
                       "--ctx %" PRId64 " is not a multiple of the batch of "
                       "%" PRId64 " tokens",
                       ctx, b);
    if (ctx > hp->max_positions)
        return err_set(e, ERR_USAGE,
                       "--ctx %" PRId64 " is above the model's %" PRId64
                       " positions (max_position_embeddings)",
                       ctx, hp->max_positions);
    if (j->opt.max_chunk_mb < 1 || j->opt.max_chunk_mb > 1000000000)
        return err_set(e, ERR_USAGE,
                       "--max-chunk-mb %" PRId64
                       " is not between 1 and 1000000000",
                       j->opt.max_chunk_mb);
    if (j->opt.chunks < 0 || j->opt.chunks > 99 || j->opt.chunks > hp->layers)
        return err_set(e, ERR_USAGE,
                       "--chunks %d: between 1 and %" PRId64
                       " chunks are possible (%" PRId64
                       " layers, at most 99 chunks)",
                       j->opt.chunks, hp->layers < 99 ? hp->layers : 99,
                       hp->layers);
    return 0;
}

static bool head_fits(int64_t vocab, int64_t n)
{
    return vocab % n == 0 && vocab / n <= AXIS_LIMIT;
}

/* The divisor of the vocabulary nearest to the family's number of parts,
 * among those whose parts stay below the axis limit if there is one. */
static int choose_head_parts(int64_t vocab, int wanted)
{
    for (int d = 0; d < 64; d++)
        for (int s = 1; s >= -1; s -= 2) {
            int n = wanted + s * d;

            if (n >= 1 && n <= 64 && head_fits(vocab, n))
                return n;
        }
    for (int n = wanted; n > 1; n--)
        if (vocab % n == 0)
            return n;
    return 1;
}

static int plan_head(struct cv_job *j, struct err *e)
{
    int64_t vocab = j->ckpt.hp.vocab;
    int wanted = j->ckpt.hp.arch->head_parts, n = j->opt.head_parts;

    if (n < 0 || n > 256)
        return err_set(e, ERR_USAGE,
                       "--split-lm-head %d is not between 1 and 256", n);
    if (n && vocab % n)
        return err_set(e, ERR_USAGE,
                       "--split-lm-head %d does not divide the vocabulary of "
                       "%" PRId64 " rows into equal parts (runtimes read "
                       "uneven ones wrongly); %d would",
                       n, vocab, choose_head_parts(vocab, wanted));
    if (!n)
        n = choose_head_parts(vocab, wanted);
    if (!j->opt.head_parts && n != wanted)
        buf_printf(&j->notes,
                   "LM head: %d equal parts, since %" PRId64
                   " rows do not split into %d\n",
                   n, vocab, wanted);
    if (vocab / n > AXIS_LIMIT)
        buf_printf(&j->notes,
                   "LM head: parts of %" PRId64 " rows are above %d, which "
                   "A13 to A15 chips refuse (reported)\n",
                   vocab / n, AXIS_LIMIT);
    j->head_parts = n;
    j->head_sizes = mem_alloc((size_t)n, sizeof(*j->head_sizes), e);
    if (!j->head_sizes)
        return -1;
    for (int i = 0; i < n; i++)
        j->head_sizes[i] = vocab / n;
    return 0;
}

/* ---- parts ---- */

static void fill_parts(struct cv_job *j)
{
    int64_t layers = j->ckpt.hp.layers, first = 0;
    struct cv_part *p = j->parts;

    memset(p, 0, j->n_parts * sizeof(*p));
    p->kind = CV_EMBEDDINGS;
    p->lut = p->asked = j->opt.lut_embeddings;
    name_part(j, p++);
    for (int c = 0; c < j->chunks; c++, p++) {
        p->kind = CV_CHUNK;
        p->chunk = c + 1;
        p->lut = p->asked = j->opt.lut_ffn;
        p->first_layer = first;
        p->n_layers = layers / j->chunks + (c < layers % j->chunks);
        first += p->n_layers;
        name_part(j, p);
    }
    p->kind = CV_HEAD;
    p->lut = p->asked = j->opt.lut_head;
    name_part(j, p);
}

static int size_part(struct cv_job *j, struct cv_part *p, struct err *e)
{
    struct cv_program prog;
    size_t notes = j->notes.len;
    int rc;

    if (cv_build_part(j, p, &prog, e))
        return -1;
    /* The same fallbacks are told again when the part is written. */
    j->notes.len = notes;
    if (j->notes.data)
        j->notes.data[notes] = '\0';
    rc = cv_program_sizes(&prog, p, j->opt.emit, e);
    cv_program_release(&prog);
    return rc;
}

static int size_chunks(struct cv_job *j, uint64_t *largest, struct err *e)
{
    *largest = 0;
    j->n_parts = (size_t)j->chunks + 2;
    mem_free(j->parts);
    j->parts = mem_zalloc(j->n_parts, sizeof(*j->parts), e);
    if (!j->parts)
        return -1;
    fill_parts(j);
    for (size_t i = 1; i + 1 < j->n_parts; i++) {
        if (size_part(j, &j->parts[i], e))
            return -1;
        if (j->parts[i].weight_bytes > *largest)
            *largest = j->parts[i].weight_bytes;
    }
    return 0;
}

/* The next count of chunks that makes the largest of them a layer shorter. */
static int64_t more_chunks(int64_t layers, int64_t chunks)
{
    int64_t longest = (layers + chunks - 1) / chunks;

    return longest > 1 ? (layers + longest - 2) / (longest - 1) : chunks + 1;
}

/* Parts of one kind are named after the narrowest tables among them. A name
 * that is longer or shorter than planned changes sizes. */
static int settle_widths(struct cv_job *j, enum cv_kind kind, struct err *e)
{
    struct cv_lut tables = { 0 }, integers = { 0 };
    double bits = 0, weights = 0;
    unsigned forms = 0;

    for (size_t i = 0; i < j->n_parts; i++) {
        const struct cv_part *p = &j->parts[i];

        if (p->kind != kind)
            continue;
        cv_keep_narrowest(&tables, &p->tables);
        cv_keep_narrowest(&integers, &p->integers);
        forms |= p->forms;
        bits += (double)p->stored_bits;
        weights += (double)p->stored;
    }
    for (size_t i = 0; i < j->n_parts; i++) {
        struct cv_part *p = &j->parts[i];
        size_t length = strlen(p->name);

        if (p->kind != kind)
            continue;
        p->lut = tables.bits ? tables : integers;
        p->mixed = p->lut.bits && (forms & (forms - 1)) ? bits / weights : 0;
        name_part(j, p);
        if (strlen(p->name) != length && size_part(j, p, e))
            return -1;
    }
    return 0;
}

/* As few chunks as stay below the limit: the whole in one tells how many there
 * must be at least; layers are not cut, so it may take more. */
static int plan_parts(struct cv_job *j, struct err *e)
{
    uint64_t limit = (uint64_t)j->opt.max_chunk_mb * 1000000u, largest, least;
    int64_t layers = j->ckpt.hp.layers, max = layers < 99 ? layers : 99;

    j->chunks = j->opt.chunks ? j->opt.chunks : 1;
    if (size_chunks(j, &largest, e))
        return -1;
    least = (largest + limit - 1) / limit;
    while (!j->opt.chunks && largest > limit && j->chunks < max) {
        int64_t next = more_chunks(layers, j->chunks);

        if (least > (uint64_t)next)
            next = least < (uint64_t)max ? (int64_t)least : max;
        j->chunks = (int)(next < max ? next : max);
        if (size_chunks(j, &largest, e))
            return -1;
    }
    if (!j->opt.chunks && largest > limit)
        buf_printf(&j->notes,
                   "chunks: one layer alone is above --max-chunk-mb %" PRId64
                   "\n",
                   j->opt.max_chunk_mb);
    if (size_part(j, &j->parts[0], e) ||
        size_part(j, &j->parts[j->n_parts - 1], e))
        return -1;
    if (settle_widths(j, CV_EMBEDDINGS, e) || settle_widths(j, CV_CHUNK, e) ||
        settle_widths(j, CV_HEAD, e))
        return -1;
    return j->recipe ? recipe_check_used(j->recipe, &j->ckpt, e) : 0;
}

/* ---- sums and limits ---- */

static uint64_t state_bytes(const struct state_desc *s)
{
    uint64_t n = 2;

    for (int k = 0; k < s->rank; k++)
        n *= (uint64_t)s->dims[k];
    return n;
}

static void plan_states(struct cv_job *j)
{
    j->n_states = j->ckpt.hp.arch->states(&j->ckpt.hp, j->opt.ctx, j->opt.batch,
                                          j->states);
    j->state_bytes = 0;
    for (int i = 0; i < j->n_states; i++) {
        const struct state_desc *s = &j->states[i];

        for (int k = 0; k < s->rank; k++)
            if (s->dims[k] > AXIS_LIMIT)
                buf_printf(&j->notes,
                           "state '%s': axis of %" PRId64 " is above %d, "
                           "which A13 to A15 chips refuse (reported)\n",
                           s->name, s->dims[k], AXIS_LIMIT);
        if (s->dims[s->rank - 1] % 32)
            buf_printf(&j->notes,
                       "state '%s': last axis of %" PRId64 " is no multiple "
                       "of 32, which the Neural Engine may refuse "
                       "(reported)\n",
                       s->name, s->dims[s->rank - 1]);
        j->state_bytes += state_bytes(s);
    }
}

/* Parts beyond one limit: told in one line, by the first of them. */
struct beyond {
    const char *first;
    size_t more;
    uint64_t largest;
};

static void see_limit(struct beyond *b, const struct cv_part *p, uint64_t value,
                      uint64_t limit)
{
    if (value <= limit)
        return;
    if (b->first)
        b->more++;
    else
        b->first = p->name;
    b->largest = value > b->largest ? value : b->largest;
}

static void tell_limit(struct buf *notes, const struct beyond *b,
                       const char *what)
{
    if (!b->first)
        return;
    buf_printf(notes, "part '%s'", b->first);
    if (b->more)
        buf_printf(notes, " and %zu more", b->more);
    buf_printf(notes, ": up to %" PRIu64 " %s (reported)\n", b->largest, what);
}

/* As others measured; see also README. */
static void plan_linear(struct cv_job *j)
{
    unsigned forms = 0;

    for (size_t i = 0; i < j->n_parts; i++)
        forms |= j->parts[i].forms;
    if (forms >> 16)
        buf_puts(&j->notes,
                 "linear weights are for the CPU and the GPU: the Neural "
                 "Engine computes wrong results from int8 and does not compile "
                 "int4 blocks (reported)\n");
}

/* Per-layer embeddings are rows of 16 bits by default: their tables are read
 * in place. */
static void plan_tables(struct cv_job *j)
{
    int bits = j->parts[0].lut.bits;

    if (j->ckpt.hp.ple_width && bits && bits < 6)
        buf_printf(&j->notes,
                   "warning: --lut-embeddings %d: tables of per-layer "
                   "embeddings lose much below 6 bits (reported)\n",
                   bits);
}

static void plan_limits(struct cv_job *j)
{
    struct beyond table = { 0 }, file = { 0 }, blob = { 0 }, axis = { 0 },
                  later = { 0 };

    for (size_t i = 0; i < j->n_parts; i++) {
        const struct cv_part *p = &j->parts[i];
        uint64_t longest = (uint64_t)p->largest_axis;

        if (p->kind == CV_EMBEDDINGS) {
            see_limit(&table, p, p->weight_bytes, PHONE_FILE_BYTES);
            continue;
        }
        see_limit(&file, p, p->weight_bytes, PHONE_FILE_BYTES);
        see_limit(&blob, p, p->largest_blob, BLOB_LIMIT - 1);
        if (p->kind == CV_CHUNK) {
            see_limit(&axis, p, longest, AXIS_LIMIT);
            see_limit(&later, p, longest, AXIS_LATER);
        }
    }
    tell_limit(&j->notes, &table,
               "bytes; token tables are read in place and load beyond 1 GB on "
               "a Mac, iPhones are not known");
    tell_limit(&j->notes, &file,
               "bytes of weights are above the 1 GB that iPhones load; more "
               "chunks or fewer bits help");
    tell_limit(&j->notes, &blob,
               "bytes of one weight are not below 2^31 and fail to load");
    tell_limit(&j->notes, &axis,
               "elements of one axis are above 16384, which A13 to A15 chips "
               "refuse");
    tell_limit(&j->notes, &later,
               "elements of one axis are above 65536, which later chips "
               "refuse too");
}

/* ---- experts ---- */

/* All experts are evaluated for each token: what a token reads, and what it
 * would read if only those that routing chooses were. */
static void plan_experts(struct cv_job *j)
{
    const struct hparams *hp = &j->ckpt.hp;
    uint64_t all = 0, experts = 0;

    for (size_t i = 0; i < j->n_parts; i++) {
        if (j->parts[i].kind != CV_EMBEDDINGS)
            all += j->parts[i].weight_bytes;
        experts += j->parts[i].expert_bytes;
    }
    if (!hp->experts)
        return;
    j->expert_bytes = experts;
    j->dense_bytes = all;
    j->routed_bytes =
        all - experts +
        experts / (uint64_t)hp->experts * (uint64_t)hp->experts_per_token;
}

/* Models that nobody wants to run so by accident. */
static int check_expert_bytes(const struct cv_job *j, struct err *e)
{
    char experts[NUM_TEXT_MAX], limit[NUM_TEXT_MAX];

    if (j->expert_bytes <= j->opt.expert_limit || j->opt.force)
        return 0;
    num_bytes_text(experts, j->expert_bytes);
    num_bytes_text(limit, j->opt.expert_limit);
    return err_set(e, ERR_USAGE,
                   "the experts take %s and each token reads all of them; "
                   "above %s pass --force to convert all the same (--plan "
                   "tells what it costs)",
                   experts, limit);
}

/* A bound of the conversion's peak, by measurement: processes of 1 to 8 threads
 * on models of 2 to 30 layers took 35 to 95 % of it, whatever the weights.
 * Tokenizers are parsed and dropped before the weights are read. */
#define MEMORY_PROCESS 8000000
#define MEMORY_LAYER 750000 /* program, message and read-back of a layer */
#define MEMORY_BLOCK 11000000
#define MEMORY_WORKER 5000000
#define MEMORY_CACHE 6000000 /* pieces that are hashed, blocks of an entry */
#define MEMORY_TOKENIZER 8   /* times its text */

static void plan_memory(struct cv_job *j, uint64_t tokenizer)
{
    uint64_t width = (uint64_t)par_width(j->opt.par), layers = 0, tables = 0;
    uint64_t work, texts = MEMORY_TOKENIZER * tokenizer;
    bool lut = false;

    for (size_t i = 0; i < j->n_parts; i++) {
        const struct cv_part *p = &j->parts[i];
        uint64_t n = (uint64_t)p->n_layers;

        layers = n > layers ? n : layers;
        tables = p->largest_table > tables ? p->largest_table : tables;
        lut = lut || p->lut.bits;
    }
    work = MEMORY_LAYER * layers;
    if (lut)
        work += MEMORY_BLOCK + MEMORY_WORKER * width + tables;
    if (j->opt.cache)
        work += MEMORY_CACHE;
    j->memory_bytes = MEMORY_PROCESS + (work > texts ? work : texts);
}

/* Of the forms that are asked for; both share one copy of the weights. */
static uint64_t part_bytes(const struct cv_job *j, const struct cv_part *p)
{
    uint64_t n = p->weight_bytes + p->compiled_bytes + p->report_bytes;

    return j->opt.emit & CV_EMIT_PACKAGE ? n + p->model_bytes + MANIFEST_BYTES
                                         : n;
}

static int plan_sums(struct cv_job *j, struct err *e)
{
    uint64_t assets, tokenizer;

    if (assets_measure(&j->ckpt, &assets, &tokenizer, e))
        return -1;
    j->disk_bytes = assets + META_BYTES + 25 * (uint64_t)j->head_parts;
    for (size_t i = 0; i < j->n_parts; i++)
        j->disk_bytes += part_bytes(j, &j->parts[i]);
    plan_tables(j);
    plan_limits(j);
    plan_linear(j);
    plan_experts(j);
    plan_memory(j, tokenizer);
    return buf_ok(&j->notes, e);
}

static int open_recipe(struct cv_job *j, struct err *e)
{
    j->recipe = recipe_read(j->opt.recipe, e);
    if (!j->recipe)
        return -1;
    return recipe_check_layers(j->recipe, j->ckpt.hp.layers, e);
}

/* What makes some weights count more than others. */
static int open_guides(struct cv_job *j, bool plan_only, struct err *e)
{
    struct calib_options co = { .tokens = j->opt.calib,
                                .full = j->opt.gptq,
                                .par = j->opt.par,
                                .log = j->opt.log };

    if (j->opt.importance && j->opt.calib)
        return err_set(e, ERR_USAGE,
                       "--importance and --calib both say what a weight "
                       "counts for; one of them is enough");
    if (j->opt.budget > 0 && plan_only)
        return err_set(e, ERR_USAGE,
                       "--budget chooses widths by the weights' errors; --plan "
                       "reads none and cannot tell them");
    if (j->opt.budget > 0 && (j->opt.lut_ffn.linear || j->opt.lut_head.linear))
        return err_set(e, ERR_USAGE, "--budget is for tables, not for --quant");
    if (j->opt.gptq && !j->opt.calib)
        return err_set(e, ERR_USAGE,
                       "--method gptq needs calibration tokens (--calib)");
    if (j->opt.recipe && open_recipe(j, e))
        return -1;
    if (j->opt.importance)
        j->importance = importance_open(j->opt.importance, &j->ckpt, e);
    if (j->opt.calib)
        j->calib = calib_open(&j->ckpt, &co, e);
    return (j->opt.importance && !j->importance) || (j->opt.calib && !j->calib)
               ? -1
               : 0;
}

/* Tokens and importances that could change no byte are a mistake. */
static int check_guided(const struct cv_job *j, struct err *e)
{
    uint64_t guided = 0;

    for (size_t i = 0; i < j->n_parts; i++)
        guided += j->parts[i].guided;
    if (guided || !(j->opt.calib || j->opt.importance))
        return 0;
    return err_set(e, ERR_USAGE,
                   "%s has nothing to act on: no matrix%s gets %s; --lut, "
                   "--quant and --recipe ask for them",
                   j->opt.importance ? "--importance"
                   : j->opt.gptq     ? "--calib with --method gptq"
                                     : "--calib",
                   j->opt.importance ? "" : " of the layers or of the LM head",
                   j->opt.gptq ? "tables or integers"
                               : "tables, or integers with more than one scale "
                                 "to a tensor");
}

int cv_job_open(struct cv_job *j, const struct cv_options *o, bool plan_only,
                struct err *e)
{
    unsigned flags =
        (plan_only ? CKPT_CONFIG_ONLY : 0u) | (o->tie ? CKPT_FORCE_TIE : 0u);

    memset(j, 0, sizeof(*j));
    j->opt = *o;
    if (ckpt_open(&j->ckpt, o->model, flags, e))
        return -1;
    buf_puts(&j->notes, buf_text(&j->ckpt.notes));
    j->stream_exp = o->scale_given ? o->stream_exp : 0;
    j->norm_exp = range_norm_exp(&j->ckpt.hp, NULL);
    j->weights = weights_new(&j->ckpt, e);
    if (!j->weights || range_check_exp(&j->ckpt.hp, j->stream_exp, e) ||
        open_guides(j, plan_only, e) || name_job(j, e) || check_shape(j, e) ||
        plan_head(j, e) || plan_parts(j, e) || check_guided(j, e)) {
        cv_job_close(j);
        return -1;
    }
    hparams_context_notes(&j->ckpt.hp, o->ctx, &j->notes);
    plan_states(j);
    if (!plan_sums(j, e) &&
        (plan_only || (!check_expert_bytes(j, e) &&
                       !(j->opt.budget > 0 && cv_check_budget(j, e)))))
        return 0;
    cv_job_close(j);
    return -1;
}

int cv_plan_again(struct cv_job *j, struct err *e)
{
    uint64_t old = 0;

    for (size_t i = 0; i < j->n_parts; i++)
        old += part_bytes(j, &j->parts[i]);
    if (plan_parts(j, e))
        return -1;
    j->disk_bytes -= old;
    for (size_t i = 0; i < j->n_parts; i++)
        j->disk_bytes += part_bytes(j, &j->parts[i]);
    return 0;
}

void cv_job_close(struct cv_job *j)
{
    if (j->choices)
        mem_free(j->choices->items);
    mem_free(j->choices);
    recipe_free(j->recipe);
    calib_close(j->calib);
    importance_close(j->importance);
    weights_free(j->weights);
    ckpt_close(&j->ckpt);
    mem_free(j->output);
    mem_free(j->name);
    mem_free(j->parts);
    mem_free(j->head_sizes);
    for (int i = 0; i < j->n_states; i++)
        mem_free(j->states[i].layers);
    buf_release(&j->notes);
    memset(j, 0, sizeof(*j));
}

/* ---- printing ---- */

static void lut_text(const struct cv_lut *l, char out[48])
{
    if (!l->bits)
        snprintf(out, 48, "fp16");
    else if (l->linear)
        cv_quant_text(l, out);
    else if (!l->group)
        snprintf(out, 48, "LUT%d, one table per tensor", l->bits);
    else
        snprintf(out, 48, "LUT%d, group %" PRIu64, l->bits, l->group);
}

/* States in whole megabytes of 10^6 bytes, rounded: 12 slots of 640 positions
 * of Gemma 4 E2B are 7,864,320 bytes. JSON has them exactly. */
static void states_text(char out[NUM_TEXT_MAX], uint64_t bytes)
{
    const uint64_t mb = 1000000;

    if (bytes < mb)
        num_bytes_text(out, bytes);
    else
        snprintf(out, NUM_TEXT_MAX, "%" PRIu64 " MB", (bytes + mb / 2) / mb);
}

static void experts_text(const struct cv_job *j, struct buf *out)
{
    const struct hparams *hp = &j->ckpt.hp;
    char dense[NUM_TEXT_MAX], routed[NUM_TEXT_MAX], experts[NUM_TEXT_MAX];

    if (!hp->experts)
        return;
    num_bytes_text(dense, j->dense_bytes);
    num_bytes_text(routed, j->routed_bytes);
    num_bytes_text(experts, j->expert_bytes);
    buf_printf(out,
               "all %" PRId64 " experts (%s) are evaluated for each token, "
               "which reads %s of weights; the %" PRId64 " that routing "
               "chooses would need %s, %.1f times less\n",
               hp->experts, experts, dense, hp->experts_per_token, routed,
               (double)j->dense_bytes / (double)j->routed_bytes);
    if (j->expert_bytes > j->opt.expert_limit)
        buf_printf(out,
                   "experts above %" PRIu64 " GB: the conversion will ask "
                   "for --force\n",
                   j->opt.expert_limit / 1000000000);
}

void cv_plan_text(const struct cv_job *j, struct buf *out)
{
    const struct hparams *hp = &j->ckpt.hp;
    char t[NUM_TEXT_MAX], lut[48];

    buf_printf(out, "%s: %s, %" PRIu64 " parameters\n", j->name, hp->arch->name,
               hparams_count(hp));
    buf_printf(out,
               "context %" PRId64 ", batch %" PRId64 ", %d chunk%s, "
               "LM head in %d parts of %" PRId64 "\n",
               j->opt.ctx, j->opt.batch, j->chunks, j->chunks == 1 ? "" : "s",
               j->head_parts, j->head_sizes[0]);
    for (size_t i = 0; i < j->n_parts; i++) {
        const struct cv_part *p = &j->parts[i];

        num_bytes_text(t, p->weight_bytes);
        lut_text(&p->lut, lut);
        buf_printf(out, "  %-40s %9s  %s", p->name, t, lut);
        if (p->mixed > 0)
            buf_printf(out, " and others, %.2f bits on average", p->mixed);
        if (p->kind == CV_CHUNK)
            buf_printf(out, ", layers %" PRId64 "-%" PRId64, p->first_layer,
                       p->first_layer + p->n_layers - 1);
        buf_puts(out, "\n");
    }
    for (int i = 0; i < j->n_states; i++) {
        const struct state_desc *s = &j->states[i];

        buf_printf(out, "  state %s [", s->name);
        for (int k = 0; k < s->rank; k++)
            buf_printf(out, "%s%" PRId64, k ? ", " : "", s->dims[k]);
        states_text(t, state_bytes(s));
        buf_printf(out, "] fp16, %s\n", t);
    }
    experts_text(j, out);
    states_text(t, j->state_bytes);
    buf_printf(out, "states need %s on the device", t);
    num_bytes_text(t, j->disk_bytes);
    buf_printf(out, "; the package %s of disk", t);
    num_bytes_text(t, j->memory_bytes);
    buf_printf(out, "; the conversion about %s of memory\n", t);
}

static void part_json(const struct cv_part *p, struct js_writer *w)
{
    static const char *const kinds[] = { "embeddings", "ffn", "lm_head" };

    js_w_object(w, NULL);
    js_w_string(w, "name", p->name);
    js_w_string(w, "kind", kinds[p->kind]);
    if (p->kind == CV_CHUNK) {
        js_w_int(w, "first_layer", p->first_layer);
        js_w_int(w, "layers", p->n_layers);
    }
    js_w_int(w, "lut_bits", p->lut.linear ? 0 : p->lut.bits);
    js_w_uint(w, "lut_group", p->lut.bits && !p->lut.linear ? p->lut.group : 0);
    if (p->lut.linear) {
        char text[32];

        cv_quant_text(&p->lut, text);
        js_w_string(w, "quant", text);
    }
    if (p->mixed > 0)
        js_w_double(w, "mixed_bits", p->mixed);
    js_w_uint(w, "weight_bytes", p->weight_bytes);
    js_w_uint(w, "model_bytes", p->model_bytes);
    js_w_uint(w, "compiled_bytes", p->compiled_bytes);
    js_w_uint(w, "largest_blob_bytes", p->largest_blob);
    if (p->written_weights) {
        js_w_uint(w, "written_weight_bytes", p->written_weights);
        js_w_uint(w, "written_model_bytes", p->written_model);
        js_w_uint(w, "written_compiled_bytes", p->written_compiled);
    }
    if (p->palettized) {
        js_w_uint(w, "palettized_weights", p->palettized);
        js_w_uint(w, "tensors_with_smaller_group", p->fallback_tensors);
        js_w_double(w, "sse", p->sse);
        js_w_double(w, "relative_sse", p->sum_sq > 0 ? p->sse / p->sum_sq : 0);
    }
    js_w_end(w);
}

void cv_plan_json(const struct cv_job *j, struct js_writer *w, const char *key)
{
    const struct hparams *hp = &j->ckpt.hp;

    js_w_object(w, key);
    js_w_uint(w, "schema", 1);
    js_w_string(w, "name", j->name);
    js_w_string(w, "architecture", hp->arch->name);
    js_w_uint(w, "parameters", hparams_count(hp));
    js_w_string(w, "emit", cv_emit_name(j->opt.emit));
    js_w_int(w, "context_length", j->opt.ctx);
    js_w_int(w, "batch_size", j->opt.batch);
    js_w_int(w, "num_chunks", j->chunks);
    js_w_int(w, "split_lm_head", j->head_parts);
    js_w_array(w, "parts", false);
    for (size_t i = 0; i < j->n_parts; i++)
        part_json(&j->parts[i], w);
    js_w_end(w);
    js_w_array(w, "states", false);
    for (int i = 0; i < j->n_states; i++) {
        js_w_object(w, NULL);
        js_w_string(w, "name", j->states[i].name);
        js_w_array(w, "shape", true);
        for (int k = 0; k < j->states[i].rank; k++)
            js_w_int(w, NULL, j->states[i].dims[k]);
        js_w_end(w);
        js_w_uint(w, "bytes", state_bytes(&j->states[i]));
        js_w_end(w);
    }
    js_w_end(w);
    js_w_uint(w, "state_bytes", j->state_bytes);
    if (hp->experts) {
        js_w_object(w, "experts");
        js_w_int(w, "count", hp->experts);
        js_w_int(w, "per_token", hp->experts_per_token);
        js_w_uint(w, "bytes", j->expert_bytes);
        js_w_uint(w, "bytes_read_per_token", j->dense_bytes);
        js_w_uint(w, "bytes_if_routed", j->routed_bytes);
        js_w_bool(w, "needs_force", j->expert_bytes > j->opt.expert_limit);
        js_w_end(w);
    }
    js_w_uint(w, "disk_bytes", j->disk_bytes);
    js_w_uint(w, "memory_bytes", j->memory_bytes);
    js_w_double(w, "fp16_scale", ldexp(1, j->stream_exp));
    js_w_lines(w, "notes", buf_text(&j->notes));
    js_w_end(w);
}
