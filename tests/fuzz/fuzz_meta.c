/*
 * meta.yaml: what is read lies within bounds, and the lint takes whatever it
 * is.
 */
#include "converter/base/io.h"
#include "converter/lint.h"
#include "converter/meta.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct lint_report r;
    struct meta m;

    fuzz_file("meta.yaml", data, size);
    FUZZ_CHECK(!lint_package(fuzz_dir, &r, &e) && r.errors);
    lint_release(&r);
    if (meta_read(fuzz_dir, &m, &e)) {
        FUZZ_CHECK(e.text[0] && e.code != ERR_NOMEM);
        return 0;
    }
    FUZZ_CHECK(m.context_length > 0 && m.batch_size > 0);
    FUZZ_CHECK(m.num_chunks >= 0 && m.num_chunks <= 99);
    FUZZ_CHECK(memchr(m.prefix, 0, sizeof(m.prefix)));
    return 0;
}
