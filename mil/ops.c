/*
 * The op table, expanded from ops.def, and look-up by name.
 */
#include "mil/mil.h"

#include <string.h>

/* A row without parameters still needs an element. */
#define OP(id, since, outputs, flags) \
    static const struct mil_param params_##id[] = {
#define IN(id, param, cls, flags) { #param, MIL_T_##cls, flags },
#define LIST(id, param, cls, flags) { #param, MIL_T_##cls, flags },
#define END(id)            \
    {                      \
        NULL, MIL_T_ANY, 0 \
    }                      \
    }                      \
    ;
#include "mil/ops.def"

#define OP(id, since, outputs, flags) \
    [MIL_OP_##id] = { MIL_OP_##id,    \
                      #id,            \
                      since,          \
                      outputs,        \
                      flags,          \
                      params_##id,    \
                      (int)(sizeof params_##id / sizeof params_##id[0]) - 1 },
static const struct mil_op_info table[MIL_OP_COUNT] = {
    [MIL_OP_INVALID] = { MIL_OP_INVALID, "invalid", 0, 0, 0, NULL, 0 },
#include "mil/ops.def"
};

const struct mil_op_info *mil_op_info(enum mil_opcode code)
{
    unsigned i = (unsigned)code;

    return &table[i < MIL_OP_COUNT ? i : MIL_OP_INVALID];
}

const struct mil_op_info *mil_op_by_name(const char *name)
{
    for (int i = MIL_OP_INVALID + 1; i < MIL_OP_COUNT; i++) {
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    }
    return NULL;
}

int mil_param_index(const struct mil_op_info *info, const char *name)
{
    for (int i = 0; i < info->n_params; i++) {
        if (strcmp(info->params[i].name, name) == 0)
            return i;
    }
    return -1;
}

int mil_opset_number(const char *opset)
{
    int n = 0;

    if (strncmp(opset, "CoreML", 6) != 0 || opset[6] < '1' || opset[6] > '9')
        return 0;
    for (const char *s = opset + 6; *s; s++) {
        if (*s < '0' || *s > '9' || n > 99)
            return 0;
        n = n * 10 + (*s - '0');
    }
    return n;
}
