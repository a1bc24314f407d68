/*
 * Leaks of the tests, not of Criterion: the process that only hands out tests
 * can leave one of Criterion's own blocks, depending on how many tests there
 * are. It is not searched for leaks; those that run tests are.
 */
#include <criterion/criterion.h>
#include <criterion/hooks.h>

static int hands_out_tests;

ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
    (void)stats;
    hands_out_tests = 1;
}

/* The sanitizer asks this at the end of a process. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return hands_out_tests;
}
