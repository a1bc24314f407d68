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

/* An absolute path, also of what does not exist yet. */
static char *settle(const char *what, const char *path, struct err *e)
{
    char *parent = output_parent(path, e), *real = NULL, *out = NULL;
    const char *rest = path;

    if (parent && !strncmp(path, parent, strlen(parent)))
        rest += strlen(parent);
    rest += strspn(rest, "/");
    if (parent && !output_check_way(what, path, parent, e) &&
        !(real = io_realpath(parent, e)) && e->code != ERR_NOMEM) {
        e->code = ERR_USAGE;
        err_in(e, "%s '%s'", what, path);
    }
    if (real)
        out = *rest ? io_join(real, rest, e) : mem_strdup(real, e);
    for (size_t n = out ? strlen(out) : 0; n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = '\0';
    mem_free(real);
    mem_free(parent);
    return out;
}

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}

int output_check_outside(const char *what, const char *path, const char *of,
                         const char *dir, struct err *e)
{
    char *real = settle(what, path, e), *around = settle(of, dir, e);
    int rc = real && around ? 0 : -1;

    if (!rc && is_below(real, around))
        rc = err_set(e, ERR_USAGE, "%s '%s' is or lies inside %s '%s'", what,
                     path, of, dir);
    mem_free(real);
    mem_free(around);
    return rc;
}
