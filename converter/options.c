/*
 * Options of a job and their text forms.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "converter/converter.h"
#include "quant/quant.h"

void cv_options_init(struct cv_options *o)
{
    memset(o, 0, sizeof(*o));
    o->ctx = 512;
    o->batch = 64;
    o->lut_ffn = (struct cv_lut){ 6, 8, false };
    o->lut_head = (struct cv_lut){ 6, 8, false };
    o->max_chunk_mb = 950;
    o->budget_widths = 1u << 4 | 1u << 6 | 1u << 8;
    o->emit = CV_EMIT_BOTH;
    o->expert_limit = 8000000000;
}

static const char *const methods[] = { [CV_KMEANS] = "kmeans",
                                       [CV_IMPORTANCE] = "importance",
                                       [CV_CALIB] = "calib",
                                       [CV_GPTQ] = "gptq" };

const char *cv_method_name(enum cv_method m)
{
    return methods[m];
}

bool cv_method_by_name(const char *name, enum cv_method *out)
{
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (!strcmp(name, methods[i])) {
            *out = (enum cv_method)i;
            return true;
        }
    return false;
}

static int parse_group(const char *s, uint64_t *group)
{
    if (!strcmp(s, "tensor") || !strcmp(s, "t")) {
        *group = 0;
        return 0;
    }
    return num_parse_u64(s, strlen(s), group) && *group <= 1u << 20 ? 0 : -1;
}

int cv_lut_parse(const char *option, const char *text, struct cv_lut *out,
                 struct err *e)
{
    const char *comma = strchr(text, ',');
    size_t n = comma ? (size_t)(comma - text) : strlen(text);
    uint64_t bits;

    if (!strcmp(text, "none")) {
        *out = (struct cv_lut){ 0, 8, false };
        return 0;
    }
    if (!num_parse_u64(text, n, &bits) || bits > 8 || !qz_bits_ok((int)bits))
        return err_set(e, ERR_USAGE,
                       "%s: '%s' is not BITS[,GROUP] or none; bits are 1, 2, "
                       "3, 4, 6 or 8",
                       option, text);
    *out = (struct cv_lut){ (int)bits, 8, false };
    if (comma && parse_group(comma + 1, &out->group))
        return err_set(e, ERR_USAGE,
                       "%s: group '%s' is not a number of output channels "
                       "(1 to 1048576), 0 or tensor",
                       option, comma + 1);
    return 0;
}

int cv_quant_parse(const char *option, const char *text, struct cv_lut *out,
                   struct err *e)
{
    const char *comma = strchr(text, ',');
    size_t n = comma ? (size_t)(comma - text) : strlen(text);
    bool four = n == 4 && !memcmp(text, "int4", 4);
    bool eight = n == 4 && !memcmp(text, "int8", 4);

    *out = (struct cv_lut){ .group = CV_ROW, .linear = true };
    if (!strcmp(text, "none")) {
        *out = (struct cv_lut){ 0, 8, false };
        return 0;
    }
    if (!four && !eight)
        return err_set(e, ERR_USAGE,
                       "%s: '%s' is not int4 or int8 with or without ,BLOCK, "
                       "nor none",
                       option, text);
    out->bits = four ? 4 : 8;
    if (comma && (parse_group(comma + 1, &out->group) ||
                  (!out->group && strcmp(comma + 1, "tensor") != 0)))
        return err_set(e, ERR_USAGE,
                       "%s: block '%s' is not a number of input channels (1 to "
                       "1048576) or tensor",
                       option, comma + 1);
    return 0;
}

void cv_quant_text(const struct cv_lut *l, char out[32])
{
    if (!l->group)
        snprintf(out, 32, "int%d,tensor", l->bits);
    else if (l->group == CV_ROW)
        snprintf(out, 32, "int%d", l->bits);
    else
        snprintf(out, 32, "int%d,%" PRIu64, l->bits, l->group);
}

static const struct {
    const char *name;
    enum cv_emit emit;
} emits[] = {
    { "both", CV_EMIT_BOTH },
    { "mlmodelc", CV_EMIT_COMPILED },
    { "mlpackage", CV_EMIT_PACKAGE },
};
#define N_EMITS (sizeof(emits) / sizeof(emits[0]))

int cv_emit_parse(const char *text, enum cv_emit *out, struct err *e)
{
    for (size_t i = 0; i < N_EMITS; i++)
        if (!strcmp(emits[i].name, text)) {
            *out = emits[i].emit;
            return 0;
        }
    return err_set(e, ERR_USAGE,
                   "--emit '%s' is none of both, mlmodelc and mlpackage", text);
}

const char *cv_emit_name(enum cv_emit emit)
{
    for (size_t i = 0; i < N_EMITS; i++)
        if (emits[i].emit == emit)
            return emits[i].name;
    return "none";
}
