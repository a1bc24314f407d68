/*
 * Runs op cases that a peer wrote and compares the results:
 *
 *     run_op CASES.json [--verbose]
 *
 * The form of the cases is in tests/unit/t_op.h. Exit status 1 if anything
 * differs.
 */
#include <stdio.h>

#include "tests/unit/t_op.h"

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct js_doc *doc;
    int failed = 0, total = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: run_op CASES.json [--verbose]\n");
        return 2;
    }
    doc = js_read_file(argv[1], 1u << 30, &e);
    if (!doc) {
        fprintf(stderr, "%s\n", e.text);
        return 3;
    }
    for (const struct js_node *n = js_first(js_get(js_root(doc), "cases")); n;
         n = js_next(n)) {
        struct t_op_case c;

        err_reset(&e);
        if (t_op_read(n, &c, &e) || t_op_run(&c, &e)) {
            printf("%s\n", e.text);
            failed++;
        } else if (argc > 2) {
            printf("%s: ok\n", c.name);
        }
        total++;
        t_op_free(&c);
    }
    js_free(doc);
    printf("%d cases, %d failed\n", total, failed);
    return failed != 0 || total == 0;
}
