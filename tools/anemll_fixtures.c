/*
 * anemll-fixtures: makes checkpoints of any supported shape from a seed, and
 * kits with which a Mac confirms or refutes a package.
 */
#include <string.h>

#include "converter/base/io.h"
#include "converter/kit.h"
#include "converter/synth.h"
#include "tools/cli.h"

struct args {
    const char *arch, *like, *output, *tokens, *logits;
    int64_t seed, layers, experts;
};

static int make_checkpoint(struct cli *c, const struct args *a)
{
    struct synth_options o = { .arch = a->arch,
                               .like = a->like,
                               .seed = (uint64_t)a->seed,
                               .layers = (uint64_t)a->layers,
                               .experts = (uint64_t)a->experts,
                               .log = &c->log };
    struct err e = ERR_INIT;

    if (a->tokens || a->logits)
        return cli_usage(c, "--tokens and --logits are for kits");
    return synth_make(&o, a->output, &e) ? cli_fail(c, &e) : EXIT_DONE;
}

static int make_kit(struct cli *c, const struct args *a)
{
    struct kit_options o = { .package = c->positional[1],
                             .output = a->output,
                             .tokens = a->tokens,
                             .logits = a->logits,
                             .log = &c->log,
                             .par = c->par };
    struct err e = ERR_INIT;

    if (c->n_positional < 2)
        return cli_usage(c, "a kit needs a package (kit PACKAGE -o DIR)");
    if (a->logits && io_exists(a->logits))
        return cli_usage(c, "'%s' exists", a->logits);
    return kit_write(&o, &e) ? cli_fail(c, &e) : EXIT_DONE;
}

static int run(struct cli *c, const struct args *a)
{
    bool kit = !strcmp(c->positional[0], "kit");

    if (!kit && strcmp(c->positional[0], "checkpoint"))
        return cli_usage(c, "'%s' is not a kind of fixture (checkpoint, kit)",
                         c->positional[0]);
    if (!kit && c->n_positional > 1)
        return cli_usage(c, "unexpected argument '%s'", c->positional[1]);
    if (!a->output)
        return cli_usage(c, "no directory given (-o DIR)");
    if (io_exists(a->output))
        return cli_usage(c, "'%s' exists", a->output);
    return kit ? make_kit(c, a) : make_checkpoint(c, a);
}

int main(int argc, char **argv)
{
    struct args a = { .arch = "qwen3", .like = "tiny", .seed = 1 };
    const struct cli_option options[] = {
        { "--arch", NULL, CLI_TEXT, &a.arch, "NAME",
          "qwen3, llama, qwen3_5, qwen3_5_moe, gemma3 or gemma4 (qwen3)" },
        { "--like", NULL, CLI_TEXT, &a.like, "MODEL",
          "shape: tiny, odd, or a published model such as qwen3-0.6b (tiny)" },
        { "--layers", NULL, CLI_INT, &a.layers, "N",
          "layers, others than the model has" },
        { "--experts", NULL, CLI_INT, &a.experts, "N",
          "experts, others than the model has" },
        { "--seed", NULL, CLI_INT, &a.seed, "N", "seed of the weights (1)" },
        { "--tokens", NULL, CLI_TEXT, &a.tokens, "FILE",
          "prompts of a kit: safetensors with int32 tokens.N, or ids, a line "
          "each" },
        { "--logits", NULL, CLI_TEXT, &a.logits, "FILE",
          "also write the rows of a kit: prompt.N [rows, V] float32" },
        { "--output", "-o", CLI_TEXT, &a.output, "DIR", "directory to make" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-fixtures",
                     .usage = "checkpoint [options] -o DIR\n"
                              "       anemll-fixtures kit PACKAGE -o DIR",
                     .about = "Makes a checkpoint with the exact shape of a "
                              "model and random weights from a seed,\nor a "
                              "kit: a package with its expected results, for "
                              "a Mac to confirm or refute.",
                     .options = options,
                     .max_positional = 2 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    code = c.n_positional
               ? run(&c, &a)
               : cli_usage(&c, "say what to make: checkpoint or kit");
    return cli_end(&c, code);
}
