/*
 * config.json: hyper-parameters that come out lie within bounds that later
 * arithmetic relies on, and print.
 */
#include "converter/base/json.h"
#include "models/models.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct js_doc *d = js_parse((const char *)data, size, &e);
    struct buf notes = BUF_INIT;
    struct hparams hp;

    if (!d)
        return 0;
    if (!hparams_parse(d, &hp, &notes, &e)) {
        FUZZ_CHECK(hp.arch && hp.layers > 0 && hp.hidden > 0 && hp.vocab > 0);
        FUZZ_CHECK(hp.heads > 0 && hp.kv_heads > 0 &&
                   hp.heads % hp.kv_heads == 0);
        FUZZ_CHECK(hparams_count(&hp) > 0);
        hparams_print(&hp, &notes);
        hparams_context_notes(&hp, 512, &notes);
    } else {
        FUZZ_CHECK(e.text[0] && e.code != ERR_NOMEM);
    }
    buf_release(&notes);
    js_free(d);
    return 0;
}
