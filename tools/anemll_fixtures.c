/*
 * anemll-fixtures: makes checkpoints of any supported shape from a seed.
 */
#include <string.h>

#include "converter/base/io.h"
#include "converter/synth.h"
#include "tools/cli.h"

struct args {
    const char *arch, *like, *output;
    int64_t seed, layers, experts;
};

static int run(struct cli *c, const struct args *a)
{
    struct synth_options o = { .arch = a->arch,
                               .like = a->like,
                               .seed = (uint64_t)a->seed,
                               .layers = (uint64_t)a->layers,
                               .experts = (uint64_t)a->experts,
                               .log = &c->log };
    struct err e = ERR_INIT;

    if (strcmp(c->positional[0], "checkpoint"))
        return cli_usage(c, "'%s' is not a kind of fixture (checkpoint)",
                         c->positional[0]);
    if (!a->output)
        return cli_usage(c, "no directory given (-o DIR)");
    if (io_exists(a->output))
        return cli_usage(c, "'%s' exists", a->output);
    if (synth_make(&o, a->output, &e))
        return cli_fail(c, &e);
    return EXIT_DONE;
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
        { "--output", "-o", CLI_TEXT, &a.output, "DIR", "directory to make" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-fixtures",
                     .usage = "checkpoint [options] -o DIR",
                     .about = "Makes a checkpoint with the exact shape of a "
                              "model and random weights from a seed.",
                     .options = options,
                     .max_positional = 1 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    code = c.n_positional ? run(&c, &a)
                          : cli_usage(&c, "say what to make: checkpoint");
    return cli_end(&c, code);
}
