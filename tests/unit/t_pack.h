/*
 * Test helper: a package of a synthetic checkpoint, and copies of it that are
 * damaged on purpose. Copies are hard links until a file is changed.
 */
#ifndef T_PACK_H
#define T_PACK_H

#include "mil/mil.h"

struct t_pack_recipe {
    const char *arch, *like; /* synthetic checkpoint */
    const char *lut;         /* NULL: "none" */
    int chunks;              /* 0: 1 */
    long ctx, batch;         /* 0: 64, 16 */
    const char *prefix;      /* NULL: the family's */
    int head_parts;          /* 0: the family's */
    bool both;               /* compiled models too */
};
/* Makes a package `name` in the scratch folder of t_conv. */
void t_pack_make(const char *name, const struct t_pack_recipe *r);
#define T_PACK_MAKE(name, ...) \
    t_pack_make((name), &(struct t_pack_recipe){ __VA_ARGS__ })
/* A copy of a folder there; an older copy is removed. */
void t_pack_copy(const char *from, const char *to);

/* The whole of a file below the package, as a text that lasts until the next
 * call but three. */
const char *t_pack_text(const char *pack, const char *file);
/* Writes a file anew (other links keep the old one). */
void t_pack_put(const char *pack, const char *file, const char *text);
/* Replaces the first `from` of a text file; it must be there. */
void t_pack_edit(const char *pack, const char *file, const char *from,
                 const char *to);
/* Gives the copy a file of its own, which other links do not share. */
void t_pack_own(const char *pack, const char *file);
void t_pack_remove(const char *pack, const char *file);
void t_pack_rename(const char *pack, const char *from, const char *to);

/* Lets `change` have the program of a .mlpackage and writes what it leaves,
 * valid or not, together with a description that fits. */
void t_pack_program(const char *pack, const char *model,
                    void (*change)(struct mil_program *p, const void *arg),
                    const void *arg);

#endif
