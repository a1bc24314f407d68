/*
 * The place of an output.
 */
#include "converter/output_priv.h"

#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"

char *output_parent(const char *path, struct err *e)
{
    char *p = mem_strdup(path, e);

    while (p && !io_exists(p)) {
        char *slash = strrchr(p, '/');

        if (!slash) {
            mem_free(p);
            return mem_strdup(".", e);
        }
        if (slash == p) {
            slash[1] = '\0';
            break;
        }
        *slash = '\0';
    }
    return p;
}

int output_check_way(const char *what, const char *path, const char *parent,
                     struct err *e)
{
    size_t n = strlen(parent);
    const char *p = path;

    if (!strncmp(p, parent, n))
        p += n;
    for (; *p; p += strcspn(p, "/")) {
        p += strspn(p, "/");
        if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
            return err_set(e, ERR_USAGE,
                           "%s '%s' goes through '..' of a folder that does "
                           "not exist",
                           what, path);
    }
    return 0;
}
