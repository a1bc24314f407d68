/*
 * Writes what our reader makes of a package's compressed constants:
 *
 *     dump_weights PACKAGE CHECKPOINT OUT
 *
 * PACKAGE is the folder of all parts. OUT gets the values, float32, one
 * constant behind the other; a line of stdout per constant: name, "lut" or
 * "linear", bits, groups (or columns per scale, 0: one scale), rows, columns.
 */
#include <inttypes.h>
#include <stdio.h>

#include "converter/base/mem.h"
#include "converter/package_source.h"

static int dump(const struct package_source *s, FILE *out, struct err *e)
{
    size_t i;

    for (i = 0; i < package_source_count(s); i++) {
        struct source_piece p;
        uint64_t n;
        float *v;
        int rc;

        package_source_at(s, i, &p);
        if (!p.linear && p.bits == 16)
            continue;
        n = p.rows * p.cols;
        v = mem_alloc((size_t)n, sizeof *v, e);
        rc = v == NULL || package_source_values(s, i, 0, n, v, e);
        if (!rc && fwrite(v, sizeof *v, (size_t)n, out) != n)
            rc = err_set(e, ERR_IO, "cannot write the values");
        mem_free(v);
        if (rc)
            return -1;
        printf("%s %s %d %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", p.name,
               p.linear ? "linear" : "lut", p.bits,
               p.linear ? p.per_scale : p.groups, p.rows, p.cols);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct run_options o = { .profile = RUN_F32 };
    struct err e = ERR_INIT;
    struct package *package = NULL;
    struct package_source *s = NULL;
    struct ckpt c;
    FILE *out;
    int rc = 3;

    if (argc != 4) {
        fprintf(stderr, "usage: dump_weights PACKAGE CHECKPOINT OUT\n");
        return 2;
    }
    if (ckpt_open(&c, argv[2], 0, &e) == 0) {
        out = fopen(argv[3], "wb");
        package = package_open(argv[1], &o, &e);
        s = package == NULL ? NULL : package_source_open(package, &c, &e);
        if (out != NULL && s != NULL && dump(s, out, &e) == 0)
            rc = 0;
        if (out != NULL && fclose(out) != 0)
            rc = 3;
        package_source_close(s);
        package_close(package);
        ckpt_close(&c);
    }
    if (rc != 0)
        fprintf(stderr, "dump_weights: %s\n", e.text);
    return rc;
}
