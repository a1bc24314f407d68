/*
 * anemll-convert: a checkpoint becomes a gated package.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "converter/converter.h"
#include "converter/gate.h"
#include "converter/lint.h"
#include "tools/cli.h"

struct args {
    const char *hf, *output, *prefix, *chunks, *emit;
    const char *lut, *lut_ffn, *lut_head, *lut_embeddings, *quant, *budget,
        *widths;
    const char *profile, *fp16_scale, *tokens, *calib, *importance, *method,
        *recipe, *cache;
    int64_t ctx, batch, max_chunk_mb, head_parts;
    bool plan, no_gate, require_gate, force, strict, tie;
};

/* What gate and lint of a conversion need and yield. */
struct verify {
    struct cli *cli;
    const struct args *args;
    const struct cv_job *job;
    struct gate_result result;
    bool ran; /* the gate */
    struct lint_report lint;
};

static int set_lut(const char *option, const char *text, struct cv_lut *out,
                   struct err *e)
{
    return text ? cv_lut_parse(option, text, out, e) : 0;
}

static int set_chunks(const char *text, struct cv_options *o, struct err *e)
{
    uint64_t n;

    if (!text || !strcmp(text, "auto"))
        return 0;
    if (!num_parse_u64(text, strlen(text), &n) || !n || n > 99)
        return err_set(e, ERR_USAGE,
                       "--chunks '%s' is neither auto nor a number from 1 to "
                       "99",
                       text);
    o->chunks = (int)n;
    return 0;
}

/* "4.5" or "4.5bpw"; "4,6,8". */
static int set_budget(const struct args *a, struct cv_options *o, struct err *e)
{
    const char *s = a->widths;
    size_t n = a->budget ? strlen(a->budget) : 0;

    if (n > 3 && !strcmp(a->budget + n - 3, "bpw"))
        n -= 3;
    if (a->budget && (!num_parse_double(a->budget, n, &o->budget) ||
                      !(o->budget > 0 && o->budget <= 16)))
        return err_set(e, ERR_USAGE,
                       "--budget '%s' is no number of bits per weight, such as "
                       "4.5 or 4.5bpw",
                       a->budget);
    if (a->widths && !a->budget)
        return err_set(e, ERR_USAGE, "--widths goes with --budget");
    if (s && (!*s || s[strlen(s) - 1] == ','))
        return err_set(e, ERR_USAGE,
                       "--widths '%s' is no list of widths, such as 4,6,8", s);
    for (o->budget_widths = s ? 0 : o->budget_widths; s && *s;) {
        size_t len = strcspn(s, ",");
        struct err ignored = ERR_INIT;
        struct cv_lut lut;
        char one[8] = "";

        if (len < sizeof(one))
            memcpy(one, s, len);
        if (cv_lut_parse("--widths", one, &lut, &ignored) || !lut.bits)
            return err_set(e, ERR_USAGE,
                           "--widths: '%.*s' is no width; widths are 1, 2, 3, "
                           "4, 6 and 8",
                           (int)len, s);
        o->budget_widths |= 1u << lut.bits;
        s += len + (s[len] == ',');
    }
    return 0;
}

static int set_options(const struct args *a, struct cv_options *o,
                       struct err *e)
{
    enum run_profile profile;

    o->model = a->hf;
    o->output = a->output;
    o->prefix = a->prefix;
    o->tokens = a->tokens;
    if (a->fp16_scale && cv_scale_parse(a->fp16_scale, o, e))
        return -1;
    o->calib = a->calib;
    o->importance = a->importance;
    o->recipe = a->recipe;
    o->cache = a->cache;
    o->gptq = a->method && !strcmp(a->method, "gptq");
    if (a->method && !o->gptq && strcmp(a->method, "kmeans") != 0)
        return err_set(e, ERR_USAGE, "--method '%s' is neither kmeans nor gptq",
                       a->method);
    o->ctx = a->ctx;
    o->batch = a->batch;
    o->max_chunk_mb = a->max_chunk_mb;
    o->head_parts = a->head_parts > INT_MAX ? INT_MAX : (int)a->head_parts;
    o->strict = a->strict;
    o->force = a->force;
    o->tie = a->tie;
    if (a->quant && (a->lut || a->lut_ffn || a->lut_head))
        return err_set(e, ERR_USAGE,
                       "--quant stores integers instead of tables; it does not "
                       "go with --lut");
    if (a->quant && (cv_quant_parse("--quant", a->quant, &o->lut_ffn, e) ||
                     cv_quant_parse("--quant", a->quant, &o->lut_head, e)))
        return -1;
    if (set_budget(a, o, e))
        return -1;
    if (set_lut("--lut", a->lut, &o->lut_ffn, e) ||
        set_lut("--lut", a->lut, &o->lut_head, e) ||
        set_lut("--lut-ffn", a->lut_ffn, &o->lut_ffn, e) ||
        set_lut("--lut-lmhead", a->lut_head, &o->lut_head, e) ||
        set_lut("--lut-embeddings", a->lut_embeddings, &o->lut_embeddings, e))
        return -1;
    if (o->max_chunk_mb < 1)
        return err_set(e, ERR_USAGE, "--max-chunk-mb must be at least 1");
    if (a->profile && !run_profile_by_name(a->profile, &profile))
        return err_set(e, ERR_USAGE,
                       "--profile '%s' is none of f32, fp16 and ane",
                       a->profile);
    if (a->emit && cv_emit_parse(a->emit, &o->emit, e))
        return -1;
    return set_chunks(a->chunks, o, e);
}

static void tell_notes(const struct cli *c, const struct cv_job *j)
{
    for (const char *s = buf_text(&j->notes); *s;) {
        size_t n = strcspn(s, "\n");

        log_info(&c->log, "note: %.*s", (int)n, s);
        s += n + (s[n] == '\n');
    }
}

static int show_plan(struct cli *c, const struct cv_job *j)
{
    struct buf out = BUF_INIT;
    struct js_writer w;

    if (c->json) {
        js_w_init(&w, &out);
        cv_plan_json(j, &w, NULL);
        buf_puts(&out, "\n");
    } else {
        cv_plan_text(j, &out);
        tell_notes(c, j);
    }
    cli_print(c, &out);
    buf_release(&out);
    return EXIT_DONE;
}

/* Gate and lint open the staged package from disk, like any reader. */
static int run_gate(struct verify *v, const char *dir, struct err *e)
{
    struct gate_options g = { .package = dir,
                              .ckpt = &v->job->ckpt,
                              .profile = RUN_FP16,
                              .tokens = v->args->tokens,
                              .log = &v->cli->log,
                              .par = v->cli->par };

    if (v->args->profile)
        (void)run_profile_by_name(v->args->profile, &g.profile);
    log_info(&v->cli->log, "gate: comparing with the float32 oracle");
    if (gate_run(&g, &v->result, e) || gate_write(dir, &v->result, e))
        return err_in(e, "gate");
    v->ran = true;
    return 0;
}

static bool failed(const struct verify *v)
{
    return v->lint.errors || (v->ran && v->result.verdict != GATE_PASS);
}

static int verify(void *cookie, const char *dir, bool *keep, struct err *e)
{
    struct verify *v = cookie;

    if (!v->args->no_gate && run_gate(v, dir, e))
        return -1;
    if (lint_package(dir, &v->lint, e))
        return -1;
    *keep = !failed(v) || !v->args->require_gate;
    return 0;
}

static void report(struct cli *c, const struct cv_job *j,
                   const struct verify *v, bool kept)
{
    struct buf out = BUF_INIT;
    struct js_writer w;
    char size[NUM_TEXT_MAX];
    uint64_t bytes = 0;

    for (size_t i = 0; i < j->n_parts; i++)
        bytes += j->parts[i].written_weights + j->parts[i].written_model +
                 j->parts[i].written_compiled;
    if (c->json) {
        js_w_init(&w, &out);
        js_w_object(&w, NULL);
        js_w_uint(&w, "schema", 1);
        js_w_string(&w, "package", kept ? j->output : NULL);
        js_w_uint(&w, "bytes", bytes);
        js_w_string(&w, "verdict",
                    gate_verdict_name(v->ran ? v->result.verdict
                                             : GATE_UNVERIFIED));
        cv_plan_json(j, &w, "plan");
        lint_json(&v->lint, &w, "lint");
        if (v->ran)
            gate_json(&v->result, &w, "gate");
        js_w_end(&w);
        buf_puts(&out, "\n");
    } else {
        num_bytes_text(size, bytes);
        if (kept)
            buf_printf(&out, "%s: %s in %zu parts\n", j->output, size,
                       j->n_parts);
        else
            buf_printf(&out, "%s: not written (--require-gate)\n", j->output);
        if (v->ran)
            gate_text(&v->result, &out);
        else
            buf_puts(&out, "UNVERIFIED: the gate did not run (--no-gate)\n");
        if (v->lint.errors)
            lint_text(&v->lint, j->output, &out);
    }
    cli_print(c, &out);
    buf_release(&out);
}

static int convert(struct cli *c, const struct args *a, struct cv_job *j,
                   struct err *e)
{
    struct verify v = { .cli = c, .args = a, .job = j };
    struct cv_verify hook = { verify, &v };
    int code = EXIT_DONE;

    log_info(&c->log, "converting to %s", j->output);
    if (cv_convert(j, &hook, e)) {
        lint_release(&v.lint);
        return cli_fail(c, e);
    }
    tell_notes(c, j);
    if (failed(&v))
        code = EXIT_CHECK_FAILED;
    report(c, j, &v, !(code && a->require_gate));
    lint_release(&v.lint);
    return code;
}

static int run(struct cli *c, struct args *a)
{
    struct err e = ERR_INIT;
    struct cv_options o;
    struct cv_job j;
    int code;

    cv_options_init(&o);
    if (a->no_gate && a->require_gate)
        return cli_usage(c, "--require-gate and --no-gate contradict");
    if (set_options(a, &o, &e))
        return cli_usage(c, "%s", e.text);
    o.log = &c->log;
    o.par = c->par;
    if (cv_job_open(&j, &o, a->plan, &e))
        return cli_fail(c, &e);
    code = a->plan ? show_plan(c, &j) : convert(c, a, &j, &e);
    cv_job_close(&j);
    return code;
}

int main(int argc, char **argv)
{
    struct args a = { .ctx = 512, .batch = 64, .max_chunk_mb = 950 };
    const struct cli_option options[] = {
        { "--hf", NULL, CLI_TEXT, &a.hf, "DIR",
          "checkpoint directory (or the first argument)" },
        { "--output", "-o", CLI_TEXT, &a.output, "DIR",
          "package directory (default ./anemll-<name>-ctx<N>)" },
        { "--ctx", NULL, CLI_INT, &a.ctx, "N", "context length (512)" },
        { "--batch", NULL, CLI_INT, &a.batch, "N",
          "tokens per prefill call (64)" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "Palettization:" },
        { "--lut", NULL, CLI_TEXT, &a.lut, "BITS[,GROUP]",
          "layers and LM head (6,8); none = fp16" },
        { "--lut-ffn", "--lut2", CLI_TEXT, &a.lut_ffn, "BITS[,GROUP]",
          "layers only" },
        { "--lut-lmhead", "--lut3", CLI_TEXT, &a.lut_head, "BITS[,GROUP]",
          "LM head only" },
        { "--lut-embeddings", "--lut1", CLI_TEXT, &a.lut_embeddings,
          "BITS[,GROUP]", "token table (none)" },
        { "--recipe", NULL, CLI_TEXT, &a.recipe, "FILE",
          "YAML rules for single matrices, by tensor, part or layers" },
        { "--budget", NULL, CLI_TEXT, &a.budget, "BITS[bpw]",
          "choose each tensor's width for this average, tables included" },
        { "--widths", NULL, CLI_TEXT, &a.widths, "LIST",
          "widths that --budget may use (4,6,8)" },
        { "--quant", NULL, CLI_TEXT, &a.quant, "int8|int4[,BLOCK]",
          "integers and scales instead of tables; not for the Neural Engine" },
        { "--calib", NULL, CLI_TEXT, &a.calib, "TOKENS",
          "weight errors by the model's activations on these tokens" },
        { "--method", NULL, CLI_TEXT, &a.method, "kmeans|gptq",
          "gptq: error feedback and tables refitted; with --calib" },
        { "--importance", NULL, CLI_TEXT, &a.importance, "FILE",
          "what each weight counts for: safetensors as the checkpoint" },
        { "--strict", NULL, CLI_FLAG, &a.strict, NULL,
          "refuse instead of falling back to a smaller group" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "Layout:" },
        { "--chunks", "--chunk", CLI_TEXT, &a.chunks, "N|auto",
          "files for the layers (auto)" },
        { "--max-chunk-mb", NULL, CLI_INT, &a.max_chunk_mb, "MB",
          "limit of a file for auto (950)" },
        { "--split-lm-head", NULL, CLI_INT, &a.head_parts, "N",
          "outputs of the LM head (by family)" },
        { "--prefix", NULL, CLI_TEXT, &a.prefix, "NAME",
          "prefix of file names (by family)" },
        { "--emit", NULL, CLI_TEXT, &a.emit, "FORM",
          "both, mlmodelc (apps) or mlpackage (Python) (both)" },
        { "--tie", NULL, CLI_FLAG, &a.tie, NULL,
          "use the embedding as LM head although the config does not" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "Run:" },
        { "--plan", NULL, CLI_FLAG, &a.plan, NULL,
          "print parts, sizes and needs; write nothing" },
        { "--force", NULL, CLI_FLAG, &a.force, NULL,
          "replace an existing package; convert experts above 8 GB" },
        { "--cache", NULL, CLI_TEXT, &a.cache, "DIR",
          "keep finished weights here; later conversions take them" },
        { "--no-gate", NULL, CLI_FLAG, &a.no_gate, NULL,
          "do not compare the package with the oracle" },
        { "--require-gate", NULL, CLI_FLAG, &a.require_gate, NULL,
          "keep no package that fails the gate" },
        { "--profile", NULL, CLI_TEXT, &a.profile, "f32|fp16|ane",
          "numeric profile of the gate (fp16)" },
        { "--fp16-scale", NULL, CLI_TEXT, &a.fp16_scale, "auto|S",
          "power of two that the residual stream is computed with (auto: "
          "from its measured range)" },
        { "--tokens", NULL, CLI_TEXT, &a.tokens, "FILE",
          "prompts of the gate, beside its own" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-convert",
                     .usage = "--hf DIR [options]",
                     .about = "Converts a Hugging Face checkpoint into an "
                              "ANEMLL package for Apple's Neural Engine and\n"
                              "proves the result against a float32 oracle.",
                     .options = options,
                     .max_positional = 1 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    if (c.n_positional && a.hf)
        code = cli_usage(&c, "both --hf and '%s' name a checkpoint",
                         c.positional[0]);
    else {
        if (c.n_positional)
            a.hf = c.positional[0];
        code = a.hf ? run(&c, &a)
                    : cli_usage(&c, "no checkpoint given (--hf DIR)");
    }
    return cli_end(&c, code);
}
