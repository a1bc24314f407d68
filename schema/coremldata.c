/*
 * coremldata.bin, written and read (coremldata.h).
 */
#include "schema/coremldata.h"

#include <inttypes.h>
#include <string.h>

#include "converter/base/num.h"

#define KIND_PIPELINE_FIRST 200
#define KIND_PIPELINE_LAST 202
#define KIND_NETWORK 500
#define KIND_NETWORK_CLASSIFIER 403
#define KIND_NETWORK_REGRESSOR 303
#define KIND_PROGRAM 502
#define VARIANT "generic"
/* Of a read file; none comes near it. */
#define MAX_SPEC_VERSION 1000

/* ---- writing ---- */

void coremldata_put_number(struct buf *out, uint64_t v)
{
    uint8_t b[8];

    store_le64(b, v);
    buf_add(out, b, sizeof(b));
}

void coremldata_put_bytes(struct buf *out, const void *p, size_t n)
{
    coremldata_put_number(out, n);
    buf_add(out, p, n);
}

/* The least version of a loader that takes models of this version. */
static int compiler_version(int spec_version)
{
    if (spec_version < 6)
        return spec_version - 1;
    if (spec_version < 8)
        return 5;
    return spec_version == 8 ? 8 : 9;
}

void coremldata_put(struct buf *out, int spec_version, const void *description,
                    size_t n, size_t functions)
{
    uint8_t kind[4];
    size_t i;

    store_le32(kind, KIND_PROGRAM);
    buf_add(out, kind, sizeof(kind));
    coremldata_put_number(out, (uint64_t)compiler_version(spec_version));
    coremldata_put_number(out, 0);
    coremldata_put_number(out, 0);
    coremldata_put_bytes(out, VARIANT, strlen(VARIANT));
    coremldata_put_number(out, (uint64_t)spec_version);
    coremldata_put_number(out, 0);
    coremldata_put_number(out, 0);
    coremldata_put_bytes(out, "", 0);
    coremldata_put_bytes(out, description, n);
    for (i = 0; i < functions; i++) {
        coremldata_put_number(out, KIND_PROGRAM);
        coremldata_put_number(out, 0);
    }
}

/* ---- reading ---- */

struct take {
    const uint8_t *start, *p;
    size_t left;
    struct err *e;
};

static int cut(struct take *t)
{
    return err_set(t->e, ERR_INPUT, "byte %zu: the file ends early",
                   (size_t)(t->p - t->start));
}

static int take_number(struct take *t, uint64_t *out)
{
    if (t->left < 8)
        return cut(t);
    *out = load_le64(t->p);
    t->p += 8;
    t->left -= 8;
    return 0;
}

static int take_bytes(struct take *t, const uint8_t **out, size_t *n)
{
    uint64_t bytes = 0;

    if (take_number(t, &bytes))
        return -1;
    if (bytes > t->left)
        return err_set(t->e, ERR_INPUT,
                       "byte %zu: %" PRIu64 " bytes where %zu are left",
                       (size_t)(t->p - t->start), bytes, t->left);
    *out = t->p;
    *n = (size_t)bytes;
    t->p += bytes;
    t->left -= (size_t)bytes;
    return 0;
}

static int take_version(struct take *t, uint64_t *major)
{
    const uint8_t *variant = NULL;
    uint64_t minor = 0, patch = 0;
    size_t n = 0;

    return take_number(t, major) || take_number(t, &minor) ||
                   take_number(t, &patch) || take_bytes(t, &variant, &n)
               ? -1
               : 0;
}

static int check_kind(uint32_t kind, struct err *e)
{
    const char *what = "of an unknown kind";

    if (kind == KIND_PROGRAM)
        return 0;
    if (kind == KIND_NETWORK || kind == KIND_NETWORK_CLASSIFIER ||
        kind == KIND_NETWORK_REGRESSOR)
        what = "a neural network of the older kind";
    else if (kind >= KIND_PIPELINE_FIRST && kind <= KIND_PIPELINE_LAST)
        what = "a pipeline";
    return err_set(e, ERR_UNSUPPORTED,
                   "the model is %s (%" PRIu32
                   "); only ML Programs are supported",
                   what, kind);
}

/* One for each function: its kind and a list of strings. */
static int take_record(struct take *t)
{
    const uint8_t *text = NULL;
    uint64_t kind = 0, strings = 0;
    size_t n = 0;

    if (take_number(t, &kind) || take_number(t, &strings))
        return -1;
    for (; strings; strings--)
        if (take_bytes(t, &text, &n))
            return -1;
    return 0;
}

int coremldata_read(const void *bytes, size_t n, struct coremldata *out,
                    struct err *e)
{
    struct take t = { bytes, bytes, n, e };
    const uint8_t *description = NULL;
    uint64_t compiler = 0, spec = 0;

    memset(out, 0, sizeof(*out));
    if (n < 4)
        return cut(&t);
    if (check_kind(load_le32(t.p), e))
        return -1;
    t.p += 4;
    t.left -= 4;
    if (take_version(&t, &compiler) || take_version(&t, &spec) ||
        take_bytes(&t, &description, &out->description_bytes))
        return -1;
    if (spec > MAX_SPEC_VERSION)
        return err_set(e, ERR_INPUT, "a specification version of %" PRIu64,
                       spec);
    out->spec_version = (int)spec;
    out->description = description;
    while (t.left) {
        if (take_record(&t))
            return -1;
        out->functions++;
    }
    return 0;
}
