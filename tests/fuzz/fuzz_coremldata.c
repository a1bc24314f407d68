/*
 * Fuzz target: the bytes of a compiled model's coremldata.bin.
 *
 * Whatever they are, they are refused with a text or read; what they hold as
 * a description lies inside them and is refused for a program or taken. What
 * is read and written is read to the same, and a description that was taken
 * is taken again in the form that it got.
 */
#include "mil/text.h"
#include "schema/codec.h"
#include "schema/coremldata.h"
#include "tests/fuzz/target.h"

/* Programs that the descriptions of the corpus fit. */
static const char embeddings[] =
    "program(1.3)\n"
    "{\n"
    "    func main<ios18>(tensor<int32, [1, ?]> input_ids) {\n"
    "            tensor<int32, [1, ?]> hidden_states = "
    "identity(x = input_ids)[name = string(\"hidden_states\")];\n"
    "        } -> (hidden_states);\n"
    "}\n";
#define CHUNK(name, T)                                               \
    "    func " name "<ios18>(tensor<fp16, [1, " T                   \
    ", 128]> hidden_states, tensor<int32, [" T "]> position_ids, "   \
    "tensor<fp16, [1, 1, " T ", 128]> causal_mask, "                 \
    "tensor<int32, [1]> current_pos, "                               \
    "state<tensor<fp16, [2, 2, 128, 32]>> model_model_kv_cache_0, "  \
    "state<tensor<fp16, [12, 32, 32]>> model_model_gdn_state_0, "    \
    "state<tensor<fp16, [3, 3, 256]>> model_model_conv_state_0) {\n" \
    "            tensor<fp16, [1, " T                                \
    ", 128]> output_hidden_states = identity(x = hidden_states)"     \
    "[name = string(\"output_hidden_states\")];\n"                   \
    "        } -> (output_hidden_states);\n"
static const char chunk[] =
    "program(1.3)\n{\n" CHUNK("infer", "1") CHUNK("prefill", "64") "}\n";

static void refused(const struct err *e)
{
    FUZZ_CHECK(e->text[0] && e->code != ERR_NOMEM);
}

static struct mil_program *program(const char *source)
{
    static const struct text_parse_options o = { .blob = NULL };
    struct err e = ERR_INIT;
    struct mil_program *p = text_parse(source, strlen(source), &o, &e);

    if (!p)
        fprintf(stderr, "%s\n", e.text);
    FUZZ_CHECK(p);
    return p;
}

static void describe(const char *source, const struct coremldata *d)
{
    struct codec_described first = CODEC_DESCRIBED_INIT;
    struct codec_described again = CODEC_DESCRIBED_INIT;
    struct mil_program *p = program(source), *q = program(source);
    struct err e = ERR_INIT;

    p->spec_version = q->spec_version = d->spec_version;
    if (codec_describe(p, d->description, d->description_bytes, &first, &e)) {
        refused(&e);
    } else {
        FUZZ_CHECK(!codec_describe(q, first.message.data, first.message.len,
                                   &again, &e));
        FUZZ_CHECK(
            first.message.len == again.message.len &&
            !memcmp(first.message.data, again.message.data, first.message.len));
    }
    buf_release(&first.message);
    buf_release(&again.message);
    mil_program_free(p);
    mil_program_free(q);
}

static void write_again(const struct coremldata *d)
{
    struct buf out = BUF_INIT;
    struct coremldata c;
    struct err e = ERR_INIT;

    coremldata_put(&out, d->spec_version, d->description, d->description_bytes,
                   d->functions);
    FUZZ_CHECK(!coremldata_read(out.data, out.len, &c, &e));
    FUZZ_CHECK(c.spec_version == d->spec_version &&
               c.functions == d->functions &&
               c.description_bytes == d->description_bytes &&
               !memcmp(c.description, d->description, c.description_bytes));
    buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coremldata d;
    struct err e = ERR_INIT;

    if (coremldata_read(data, size, &d, &e)) {
        refused(&e);
        return 0;
    }
    FUZZ_CHECK(
        (const uint8_t *)d.description >= data && d.description_bytes <= size &&
        (const uint8_t *)d.description + d.description_bytes <= data + size);
    write_again(&d);
    describe(embeddings, &d);
    describe(chunk, &d);
    return 0;
}
