/*
 * model.mlmodel: bytes decode to a program or to an error, with known
 * operations only and with foreign ones; the validator takes whatever comes
 * out, and a valid program prints.
 */
#include "mil/text.h"
#include "schema/codec.h"
#include "tests/fuzz/target.h"

static void judge(struct mil_program *p)
{
    struct buf text = BUF_INIT;
    struct err e = ERR_INIT;

    if (!mil_validate(p, &e))
        FUZZ_CHECK(!text_print(p, &(struct text_options){ .sorted = true },
                               &text, &e));
    buf_release(&text);
    mil_program_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int raw = 0; raw < 2; raw++) {
        struct codec_options o = { .raw = raw != 0 };
        struct err description = ERR_INIT, e = ERR_INIT;
        struct mil_program *p = codec_decode(data, size, &o, &description, &e);

        if (p)
            judge(p);
        else
            FUZZ_CHECK(e.text[0] && e.code != ERR_NOMEM);
    }
    return 0;
}
