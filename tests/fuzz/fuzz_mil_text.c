/*
 * MIL text: what parses prints, and print - parse - print is stable.
 */
#include "mil/text.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct text_options to = { .sorted = false };
    static const struct text_parse_options po = { .blob = NULL };
    struct err e = ERR_INIT;
    struct mil_program *p = text_parse((const char *)data, size, &po, &e);
    struct buf one = BUF_INIT, two = BUF_INIT;

    if (!p) {
        FUZZ_CHECK(e.text[0] && e.code != ERR_NOMEM);
        return 0;
    }
    if (mil_validate(p, &e)) {
        err_reset(&e);
        mil_program_free(p);
        return 0;
    }
    FUZZ_CHECK(!text_print(p, &to, &one, &e));
    mil_program_free(p);
    p = text_parse((const char *)one.data, one.len, &po, &e);
    if (!p)
        fprintf(stderr, "%s\n%s\n", e.text, buf_text(&one));
    FUZZ_CHECK(p);
    FUZZ_CHECK(!text_print(p, &to, &two, &e));
    FUZZ_CHECK(one.len == two.len && !memcmp(one.data, two.data, one.len));
    mil_program_free(p);
    buf_release(&one);
    buf_release(&two);
    return 0;
}
