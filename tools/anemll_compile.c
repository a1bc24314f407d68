/*
 * anemll-compile: one Core ML program in the form that apps load.
 */
#include <inttypes.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/num.h"
#include "converter/compile.h"
#include "tools/cli.h"

static void report_json(const struct cv_compiled *r, struct buf *out)
{
    struct js_writer w;

    js_w_init(&w, out);
    js_w_object(&w, NULL);
    js_w_uint(&w, "schema", 1);
    js_w_string(&w, "output", r->output);
    js_w_uint(&w, "functions", r->functions);
    js_w_uint(&w, "operations", r->ops);
    js_w_uint(&w, "program_bytes", r->files.text_bytes);
    js_w_uint(&w, "weights_bytes", r->files.weights_bytes);
    js_w_string(&w, "unknown_operation", r->unknown);
    js_w_end(&w);
    buf_puts(out, "\n");
}

static void report_text(const struct cv_compiled *r, struct buf *out)
{
    char a[NUM_TEXT_MAX], b[NUM_TEXT_MAX];

    num_bytes_text(a, r->files.text_bytes);
    num_bytes_text(b, r->files.weights_bytes);
    buf_printf(out,
               "%s: %zu function%s, %zu operations, %s of program, %s of "
               "weights\n",
               r->output, r->functions, r->functions == 1 ? "" : "s", r->ops, a,
               b);
}

static int run(struct cli *c, struct cv_compile *o)
{
    struct cv_compiled result;
    struct err e = ERR_INIT;
    struct buf out = BUF_INIT;
    int rc;

    o->source = c->positional[0];
    o->log = &c->log;
    rc = cv_compile(o, &result, &e);
    if (rc) {
        rc = cli_fail(c, &e);
    } else {
        if (result.unknown)
            log_info(&c->log,
                     "note: '%s' is an operation that is not known here; it "
                     "is written as it stands",
                     result.unknown);
        if (c->json)
            report_json(&result, &out);
        else
            report_text(&result, &out);
        cli_print(c, &out);
        rc = EXIT_DONE;
    }
    buf_release(&out);
    cv_compiled_release(&result);
    return rc;
}

int main(int argc, char **argv)
{
    struct cv_compile o = { NULL, NULL, false, NULL };
    const struct cli_option options[] = {
        { "--output", "-o", CLI_TEXT, &o.output, "X.mlmodelc",
          "compiled model to make (default: beside the source)" },
        { "--force", NULL, CLI_FLAG, &o.force, NULL,
          "replace a compiled model that this tool wrote" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-compile",
                     .usage = "X.mlpackage|X.mlmodel [options]",
                     .about = "Compiles a Core ML program, ours or not, into "
                              "the form that apps load (.mlmodelc).",
                     .options = options,
                     .max_positional = 1 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    code = c.n_positional ? run(&c, &o) : cli_usage(&c, "no model given");
    return cli_end(&c, code);
}
