/*
 * anemll-check: is this directory sound? A package is linted, or compared with
 * a checkpoint by the gate; a checkpoint is judged, or run by the oracle.
 */
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/device_plan.h"
#include "converter/gate.h"
#include "converter/lint.h"
#include "converter/meta.h"
#include "converter/package_run.h"
#include "tools/cli.h"

struct args {
    const char *dir, *hf, *tokens, *logits, *profile;
    bool tie, plan, rules;
};

static void print_both(struct cli *c, const struct args *a,
                       const struct gate_result *r,
                       const struct lint_report *lint)
{
    struct buf out = BUF_INIT;
    struct js_writer w;

    if (c->json) {
        js_w_init(&w, &out);
        js_w_object(&w, NULL);
        gate_json_members(r, &w);
        lint_json(lint, &w, "lint");
        js_w_end(&w);
        buf_puts(&out, "\n");
    } else {
        gate_text(r, &out);
        lint_findings(lint, LINT_ERROR, &out);
        buf_puts(&out, "lint of ");
        lint_sum(lint, a->dir, &out);
    }
    cli_print(c, &out);
    buf_release(&out);
}

/* A package is sound if both say so: one that computes the right thing and
 * does not load is of no use. */
static int report_both(struct cli *c, const struct args *a,
                       const struct gate_result *r, struct err *e)
{
    struct lint_report lint;
    struct err ignored = ERR_INIT;
    int code = EXIT_DONE;

    if (a->hf && gate_write(a->dir, r, &ignored))
        log_warn(&c->log, "gate.json was not written: %s", ignored.text);
    if (lint_package(a->dir, &lint, e))
        return cli_fail(c, e);
    print_both(c, a, r, &lint);
    if (r->verdict == GATE_FAIL || (a->hf && r->verdict == GATE_UNVERIFIED) ||
        lint.errors)
        code = EXIT_CHECK_FAILED;
    lint_release(&lint);
    return code;
}

static int check_package(struct cli *c, const struct args *a, struct err *e)
{
    struct gate_options g = { .package = a->dir,
                              .profile = RUN_FP16,
                              .tokens = a->tokens,
                              .logits = a->logits,
                              .log = &c->log,
                              .par = c->par };
    struct gate_result r;
    struct ckpt ckpt;
    int rc;

    if (a->profile && !run_profile_by_name(a->profile, &g.profile))
        return cli_usage(c, "--profile '%s' is none of f32, fp16 and ane",
                         a->profile);
    if (a->logits && !a->hf)
        return cli_usage(c, "--logits of a package needs --hf DIR");
    if (a->hf && ckpt_open(&ckpt, a->hf, a->tie ? CKPT_FORCE_TIE : 0, e))
        return cli_fail(c, e);
    g.ckpt = a->hf ? &ckpt : NULL;
    rc = gate_run(&g, &r, e);
    if (a->hf)
        ckpt_close(&ckpt);
    return rc ? cli_fail(c, e) : report_both(c, a, &r, e);
}

/* Without a checkpoint: the lint. */
static int check_form(struct cli *c, const struct args *a, struct err *e)
{
    struct lint_report r;
    struct buf out = BUF_INIT;
    struct js_writer w;
    int code;

    if (lint_package(a->dir, &r, e))
        return cli_fail(c, e);
    js_w_init(&w, &out);
    if (c->json)
        lint_json(&r, &w, NULL);
    else
        lint_text(&r, a->dir, &out);
    if (c->json)
        buf_puts(&out, "\n");
    cli_print(c, &out);
    code = r.errors ? EXIT_CHECK_FAILED : EXIT_DONE;
    buf_release(&out);
    lint_release(&r);
    return code;
}

static bool is_model(const char *path)
{
    static const char *const ends[] = { ".mlpackage", ".mlmodelc", ".mlmodel" };
    size_t n = strlen(path);

    while (n && path[n - 1] == '/')
        n--;
    for (size_t i = 0; i < 3; i++) {
        size_t k = strlen(ends[i]);

        if (n > k && !memcmp(path + n - k, ends[i], k))
            return true;
    }
    return false;
}

static int plan_model(const char *path, bool json, struct js_writer *w,
                      struct buf *out, struct err *e)
{
    struct pkg *p = pkg_open_raw(path, e);
    int rc = -1;

    if (p)
        rc = json ? dev_plan_json(p, w, e) : dev_plan_text(p, out, e);
    pkg_close(p);
    return rc;
}

/* Whether names[i] is to be walked: of two forms of a model the source. */
static bool is_walked(char *const *names, size_t n, size_t i)
{
    const char *end = strrchr(names[i], '.');

    if (!is_model(names[i]) || strcmp(end, ".mlmodelc") != 0)
        return is_model(names[i]);
    for (size_t k = 0; k < n; k++)
        if (!strncmp(names[k], names[i], (size_t)(end - names[i])) &&
            !strcmp(names[k] + (end - names[i]), ".mlpackage"))
            return false;
    return true;
}

static int plan_folder(const char *dir, bool json, struct js_writer *w,
                       struct buf *out, struct err *e)
{
    char **names;
    size_t n, seen = 0;
    int rc = io_list(dir, &names, &n, e);

    if (rc)
        return -1;
    for (size_t i = 0; !rc && i < n; i++) {
        char *path;

        if (!is_walked(names, n, i))
            continue;
        seen++;
        path = io_join(dir, names[i], e);
        rc = path ? plan_model(path, json, w, out, e) : -1;
        mem_free(path);
    }
    io_list_free(names, n);
    return rc || seen ? rc : err_set(e, ERR_INPUT, "'%s' holds no model", dir);
}

static int show_plan(struct cli *c, const struct args *a, struct err *e)
{
    struct buf out = BUF_INIT;
    struct js_writer w;
    int rc;

    js_w_init(&w, &out);
    if (c->json) {
        js_w_object(&w, NULL);
        js_w_uint(&w, "schema", 1);
        js_w_string(&w, "kind", "plan");
        js_w_array(&w, "models", false);
    }
    rc = is_model(a->dir) ? plan_model(a->dir, c->json, &w, &out, e)
                          : plan_folder(a->dir, c->json, &w, &out, e);
    if (c->json && !rc) {
        js_w_end(&w);
        js_w_end(&w);
        buf_puts(&out, "\n");
    }
    if (!rc)
        cli_print(c, &out);
    buf_release(&out);
    return rc ? cli_fail(c, e) : EXIT_DONE;
}

static int show_rules(const struct cli *c)
{
    struct buf out = BUF_INIT;

    lint_rules_text(&out);
    buf_puts(&out, "\n");
    dev_rules_text(&out);
    cli_print(c, &out);
    buf_release(&out);
    return EXIT_DONE;
}

static void print_checkpoint(struct cli *c, const struct ckpt *k)
{
    struct buf out = BUF_INIT;
    struct js_writer w;

    if (c->json) {
        js_w_init(&w, &out);
        js_w_object(&w, NULL);
        js_w_uint(&w, "schema", 1);
        js_w_string(&w, "kind", "checkpoint");
        js_w_string(&w, "architecture", k->hp.arch->name);
        js_w_uint(&w, "parameters", hparams_count(&k->hp));
        js_w_uint(&w, "tensors", k->ledger.used_tensors);
        js_w_uint(&w, "bytes", k->ledger.used_bytes);
        js_w_end(&w);
        buf_puts(&out, "\n");
    } else {
        buf_printf(&out,
                   "a sound %s checkpoint: %llu parameters, %llu tensors "
                   "used\n%s",
                   k->hp.arch->name, (unsigned long long)hparams_count(&k->hp),
                   (unsigned long long)k->ledger.used_tensors,
                   buf_text(&k->notes));
    }
    cli_print(c, &out);
    buf_release(&out);
}

static int check_checkpoint(struct cli *c, const struct args *a, struct err *e)
{
    struct prompts p = { 0 };
    struct ckpt k;
    int rc = 0;

    if (a->hf || a->profile)
        return cli_usage(c,
                         "'%s' has no meta.yaml, so it is taken for a "
                         "checkpoint; --hf and --profile are for packages",
                         a->dir);
    if (!a->tokens != !a->logits)
        return cli_usage(c, "the oracle of a checkpoint needs both --tokens "
                            "and --logits");
    if (ckpt_open(&k, a->dir, a->tie ? CKPT_FORCE_TIE : 0, e))
        return cli_fail(c, e);
    if (a->tokens) {
        rc = prompts_read(&p, a->tokens, k.hp.vocab, e);
        if (!rc)
            rc = gate_oracle_logits(&k, &p, a->logits, c->par, &c->log, e);
        prompts_release(&p);
    }
    if (!rc)
        print_checkpoint(c, &k);
    ckpt_close(&k);
    return rc ? cli_fail(c, e) : EXIT_DONE;
}

static int run(struct cli *c, const struct args *a)
{
    struct err e = ERR_INIT;
    bool package;

    if (a->plan) {
        if (a->hf || a->tokens || a->logits || a->profile)
            return cli_usage(c, "--plan runs nothing: it takes no --hf, "
                                "--tokens, --logits or --profile");
        return show_plan(c, a, &e);
    }
    if (lint_is_package(a->dir, &package, &e))
        return cli_fail(c, &e);
    if (!package && is_model(a->dir)) {
        err_set(&e, ERR_INPUT,
                "'%s' is one model: the folder that holds all of a package is "
                "checked, one model only by --plan",
                a->dir);
        return cli_fail(c, &e);
    }
    if (!package)
        return check_checkpoint(c, a, &e);
    return a->hf || a->tokens || a->logits || a->profile
               ? check_package(c, a, &e)
               : check_form(c, a, &e);
}

int main(int argc, char **argv)
{
    struct args a = { 0 };
    const struct cli_option options[] = {
        { "--hf", NULL, CLI_TEXT, &a.hf, "DIR",
          "the checkpoint that the package was made from" },
        { "--tokens", NULL, CLI_TEXT, &a.tokens, "FILE",
          "prompts: safetensors with int32 tokens.N, or ids, a line each" },
        { "--logits", NULL, CLI_TEXT, &a.logits, "FILE",
          "write oracle.N and package.N [T, V] float32 (safetensors)" },
        { "--profile", NULL, CLI_TEXT, &a.profile, "f32|fp16|ane",
          "numeric profile of the runtime (fp16)" },
        { "--plan", NULL, CLI_FLAG, &a.plan, NULL,
          "per operation: what the Neural Engine is known to refuse or to "
          "compute badly" },
        { "--rules", NULL, CLI_FLAG, &a.rules, NULL,
          "print what the lint and --plan look for" },
        { "--tie", NULL, CLI_FLAG, &a.tie, NULL,
          "use the embedding as LM head although the config does not" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-check",
                     .usage = "DIR [options]",
                     .about = "Lints a package, compares it with its "
                              "checkpoint position by position, or judges a\n"
                              "checkpoint.",
                     .options = options,
                     .max_positional = 1 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    if (a.rules)
        code = show_rules(&c);
    else if (!c.n_positional)
        code = cli_usage(&c, "no directory given");
    else {
        a.dir = c.positional[0];
        code = run(&c, &a);
    }
    return cli_end(&c, code);
}
