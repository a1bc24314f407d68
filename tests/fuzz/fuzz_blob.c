/*
 * Fuzz target: the bytes of a weight file.
 *
 * Whatever they are, a walk over the records ends; each record that it gives
 * is found again by its place and type, and its data lie inside the file. A
 * place that holds no record is refused with a text.
 */
#include "schema/blob.h"
#include "tests/fuzz/target.h"

static void refused(const struct err *e)
{
    FUZZ_CHECK(e->text[0] && e->code != ERR_NOMEM);
}

static void check_record(const struct blob_reader *r,
                         const struct blob_record *rec)
{
    int64_t dims = (int64_t)rec->elems;
    struct mil_type t = mil_type_make(rec->dtype, 1, &dims);
    struct err e = ERR_INIT;
    uint64_t data = 0;
    uint8_t byte;

    FUZZ_CHECK(rec->bytes <= r->file.size &&
               rec->data <= r->file.size - rec->bytes);
    FUZZ_CHECK(!blob_find(r, rec->offset, &t, &data, &e) && data == rec->data);
    FUZZ_CHECK(mil_type_bytes(&t) == (int64_t)rec->bytes);
    if (rec->bytes)
        FUZZ_CHECK(!io_pread(&r->file, &byte, 1, data + rec->bytes - 1, &e));
    t.dims[0]++;
    FUZZ_CHECK(blob_find(r, rec->offset, &t, &data, &e));
    refused(&e);
}

/* Every place of the file, also those that no record can have. */
static void look_everywhere(const struct blob_reader *r)
{
    int64_t dims = 2;
    struct mil_type t = mil_type_make(MIL_F16, 1, &dims);

    for (uint64_t at = 0; at <= r->file.size && at < 4096; at += 32) {
        struct err e = ERR_INIT;
        uint64_t data;

        if (blob_find(r, at, &t, &data, &e))
            refused(&e);
        else
            FUZZ_CHECK(data <= r->file.size - 4);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct blob_reader r = BLOB_READER_INIT;
    struct blob_record rec = { 0 };
    struct err e = ERR_INIT;
    uint64_t at = 0, last = 0;
    int more;

    if (blob_open(&r, fuzz_file("weight.bin", data, size), &e)) {
        refused(&e);
        return 0;
    }
    while ((more = blob_next(&r, &at, &rec, &e)) == 1) {
        FUZZ_CHECK(at > last);
        last = at;
        check_record(&r, &rec);
    }
    if (more)
        refused(&e);
    look_everywhere(&r);
    blob_close(&r);
    return 0;
}
