/*
 * What suites of quant/ ask of every kind of source.
 */
#include "t_quant.h"

#include <criterion/criterion.h>

#include "converter/base/mem.h"
#include "quant/linear.h"

void t_quant_linear_without_memory(const struct qz_source *src)
{
    uint8_t b[4];
    long n;

    for (n = 1;; n++) {
        struct err e = ERR_INIT;
        struct qz_linear *l;
        int rc = -1;

        mem_fail_at(n, false);
        l = qz_linear_new(src, 4, 32, NULL, &e);
        if (l)
            rc = qz_linear_read_values(l, 0, b, 4, &e);
        mem_fail_at(-1, false);
        qz_linear_free(l);
        if (rc == 0)
            break;
        cr_assert_eq(e.code, ERR_NOMEM, "%s", e.text);
    }
}
