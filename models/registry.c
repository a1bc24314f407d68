/*
 * The list of architectures. CMake writes arch_list.inc from the names of
 * the files arch_<name>.c: dropping a file in registers it.
 */
#include "models/models.h"

#include <string.h>

#define ARCH(name) extern const struct model_arch arch_##name;
#include "models/arch_list.inc"
#undef ARCH

#define ARCH(name) &arch_##name,
const struct model_arch *const model_archs[] = {
#include "models/arch_list.inc"
    NULL
};
#undef ARCH

const struct model_arch *model_arch_by_type(const char *model_type)
{
    for (size_t i = 0; model_archs[i]; i++)
        for (const char *const *t = model_archs[i]->model_types; *t; t++)
            if (!strcmp(*t, model_type))
                return model_archs[i];
    return NULL;
}
