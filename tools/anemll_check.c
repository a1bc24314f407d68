/*
 * anemll-check: is this directory sound? A package is compared with a
 * checkpoint by the gate; a checkpoint is judged, or run by the oracle.
 */
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/gate.h"
#include "converter/meta.h"
#include "converter/package_run.h"
#include "tools/cli.h"

struct args {
    const char *dir, *hf, *tokens, *logits, *profile;
    bool tie;
};

static int print_gate(struct cli *c, const struct args *a,
                      const struct gate_result *r)
{
    struct buf out = BUF_INIT;
    struct err e = ERR_INIT;
    struct js_writer w;

    if (a->hf && gate_write(a->dir, r, &e))
        log_warn(&c->log, "gate.json was not written: %s", e.text);
    if (c->json) {
        js_w_init(&w, &out);
        gate_json(r, &w, NULL);
        buf_puts(&out, "\n");
    } else {
        gate_text(r, &out);
    }
    cli_print(&out);
    buf_release(&out);
    return r->verdict == GATE_FAIL                  ? EXIT_CHECK_FAILED
           : a->hf && r->verdict == GATE_UNVERIFIED ? EXIT_CHECK_FAILED
                                                    : EXIT_DONE;
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
    return rc ? cli_fail(c, e) : print_gate(c, a, &r);
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
    cli_print(&out);
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
    char *meta = io_join(a->dir, "meta.yaml", &e);
    bool package;

    if (!meta)
        return cli_fail(c, &e);
    package = io_exists(meta);
    mem_free(meta);
    return package ? check_package(c, a, &e) : check_checkpoint(c, a, &e);
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
        { "--tie", NULL, CLI_FLAG, &a.tie, NULL,
          "use the embedding as LM head although the config does not" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-check",
                     .usage = "DIR [options]",
                     .about = "Checks a package against its checkpoint, "
                              "position by position, or judges a checkpoint.",
                     .options = options,
                     .max_positional = 1 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    if (!c.n_positional)
        code = cli_usage(&c, "no directory given");
    else {
        a.dir = c.positional[0];
        code = run(&c, &a);
    }
    return cli_end(&c, code);
}
