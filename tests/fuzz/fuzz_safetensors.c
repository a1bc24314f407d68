/*
 * safetensors: what opens lies inside the file, and every byte of it can be
 * read.
 */
#include "converter/base/mem.h"
#include "safetensors/st.h"
#include "tests/fuzz/target.h"

static void read_all(const struct st *s, const struct st_tensor *t)
{
    uint8_t block[256];
    float row[16];
    struct err e = ERR_INIT;
    uint64_t bytes = t->end - t->begin, n = t->elems < 16 ? t->elems : 16;

    for (uint64_t at = 0; at < bytes; at += sizeof(block)) {
        size_t m =
            bytes - at < sizeof(block) ? (size_t)(bytes - at) : sizeof(block);

        FUZZ_CHECK(!st_read_bytes(s, t, at, block, m, &e));
    }
    if (st_read_f32(s, t, 0, (size_t)n, row, &e)) {
        FUZZ_CHECK(e.code == ERR_UNSUPPORTED && !st_dtype_is_plain(t->dtype));
        err_reset(&e);
    }
    FUZZ_CHECK(st_read_bytes(s, t, bytes, block, 1, &e));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct st *s = st_open(fuzz_file("input.safetensors", data, size), &e);

    if (!s) {
        FUZZ_CHECK(e.text[0] && e.code != ERR_NOMEM);
        return 0;
    }
    for (size_t i = 0; i < st_count(s); i++) {
        const struct st_tensor *t = st_at(s, i);

        FUZZ_CHECK(t->begin <= t->end && t->end <= size);
        FUZZ_CHECK(st_find(s, t->name) == t);
        read_all(s, t);
    }
    st_close(s);
    return 0;
}
