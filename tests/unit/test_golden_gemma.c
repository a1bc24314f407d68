/*
 * The programs of two tiny Gemmas as text, so that a change of the graph shows
 * as a difference to read. ANEMLL_GOLDEN=write rewrites the files.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/synth.h"
#include "mil/text.h"
#include "models/models.h"
#include "models/weights.h"
#include "t_dir.h"

static struct err err;

enum part { EMBEDDINGS, CHUNK, HEAD };
struct golden {
    const char *arch, *file, *function;
    enum part part;
    int64_t first_layer, n_layers, tokens;
    bool last_chunk, rotate;
};

/* Windows of 32; contexts that shift and rotate. */
static const struct golden goldens[] = {
    { "gemma4", "gemma4-embeddings", "main", EMBEDDINGS, 0, 0, 1, false,
      false },
    /* a sliding layer that stores, the full one that others read */
    { "gemma4", "gemma4-infer", "infer", CHUNK, 3, 2, 1, false, false },
    /* the same, and a layer that shares; behind the last store the last token
     * alone goes on */
    { "gemma4", "gemma4-prefill", "prefill", CHUNK, 3, 3, 16, true, false },
    { "gemma4", "gemma4-head", "main", HEAD, 0, 0, 1, false, false },
    { "gemma3", "gemma3-prefill", "prefill", CHUNK, 5, 2, 16, true, false },
    { "gemma3", "gemma3-infer-rotate", "infer_rotate", CHUNK, 6, 1, 1, true,
      true },
    { "gemma3", "gemma3-prefill-rotate", "prefill_rotate", CHUNK, 6, 1, 16,
      true, true },
};

static void build(const struct golden *x, const struct ckpt *c, struct buf *out)
{
    static const int64_t sizes[] = { 256, 256 };
    struct weights *w = weights_new(c, &err);
    struct mil_program *p = mil_program_new(&err);
    struct graph g = { .hp = &c->hp,
                       .weights = w,
                       .ctx = 128,
                       .batch = 16,
                       .norm_exp = 3,
                       .tokens = x->tokens,
                       .rotate = x->rotate,
                       .first_layer = x->first_layer,
                       .n_layers = x->n_layers,
                       .last_chunk = x->last_chunk,
                       .head_sizes = sizes,
                       .n_head_parts = 2 };
    const struct model_arch *a = c->hp.arch;
    struct text_options o = { .function = NULL };
    struct mb b;

    cr_assert(w && p, "%s", err.text);
    p->spec_version = 9;
    mb_begin(&b, p, x->function);
    (x->part == EMBEDDINGS ? a->embeddings
     : x->part == HEAD     ? a->head
                           : a->chunk)(&b, &g);
    cr_assert_eq(mb_end(&b, &err), 0, "%s", err.text);
    cr_assert_eq(text_print(p, &o, out, &err), 0, "%s", err.text);
    mil_program_free(p);
    weights_free(w);
}

/* The first line that differs, for the message. */
static int first_difference(const char *a, const char *b)
{
    int line = 1;

    for (; *a && *a == *b; a++, b++)
        line += *a == '\n';
    return *a == *b ? 0 : line;
}

static void compare(const struct golden *x, const struct buf *text)
{
    const char *mode = getenv("ANEMLL_GOLDEN");
    struct buf want = BUF_INIT;
    char path[1024];
    int line;

    snprintf(path, sizeof(path), "%s/tests/golden/%s.mil", ANEMLL_SOURCE_DIR,
             x->file);
    if (mode && !strcmp(mode, "write")) {
        remove(path); /* what is there is never written over */
        cr_assert_eq(io_write_file(path, text->data, text->len, &err), 0, "%s",
                     err.text);
    }
    cr_assert_eq(io_read_file(path, 1 << 24, &want, &err), 0, "%s", err.text);
    line = first_difference(buf_text(text), buf_text(&want));
    cr_expect_eq(line, 0, "%s: line %d differs", x->file, line);
    buf_release(&want);
}

Test(golden_gemma, programs)
{
    const char *root = t_dir_new();

    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        const struct golden *x = &goldens[i];
        struct buf text = BUF_INIT;
        char dir[512];
        struct ckpt c;

        snprintf(dir, sizeof(dir), "%s/%s-%zu", root, x->arch, i);
        cr_assert_eq(synth_checkpoint(x->arch, "tiny", 1, dir, NULL, &err), 0,
                     "%s", err.text);
        cr_assert_eq(ckpt_open(&c, dir, 0, &err), 0, "%s", err.text);
        build(x, &c, &text);
        compare(x, &text);
        buf_release(&text);
        ckpt_close(&c);
    }
    t_dir_drop(root);
}
