/*
 * Parallel-for: each index once, pieces bounded, workers apart, and the
 * pool after many jobs and few threads.
 */
#define _DEFAULT_SOURCE /* RLIMIT_NPROC */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/mem.h"
#include "converter/base/par.h"
#include "converter/base/task.h"

#define N 10007

struct job {
    unsigned char hits[N];
    uint64_t grain;
    atomic_int inside[16];
    atomic_int bad, pieces;
};

static void count_hits(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct job *j = arg;

    if (atomic_fetch_add(&j->inside[worker], 1) != 0)
        atomic_fetch_add(&j->bad, 1);
    if (begin >= end || end - begin > j->grain || end > N)
        atomic_fetch_add(&j->bad, 1);
    for (uint64_t i = begin; i < end; i++)
        j->hits[i]++;
    atomic_fetch_add(&j->pieces, 1);
    atomic_fetch_sub(&j->inside[worker], 1);
}

static void check_pool(struct par *p, uint64_t grain)
{
    static struct job j;

    memset(&j, 0, sizeof j);
    j.grain = grain == 0 ? N : grain;
    par_for(p, N, grain, count_hits, &j);
    cr_assert_eq(j.bad, 0);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(j.hits[i], 1, "index %zu: %d times", i, j.hits[i]);
    if (grain != 0)
        cr_assert_eq(j.pieces, (int)((N + grain - 1) / grain));
}

Test(par, each_index_once)
{
    static const int widths[] = { 1, 2, 3, 7, 16 };
    static const uint64_t grains[] = { 0, 1, 2, 100, 5003, N - 1, N, N + 1 };
    struct err e = ERR_INIT;

    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        struct par *p = par_new(widths[w], &e);

        cr_assert_eq(par_width(p), widths[w]);
        for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++)
            check_pool(p, grains[g]);
        par_free(p);
    }
    for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++)
        check_pool(NULL, grains[g]);
    cr_assert_eq(par_width(NULL), 1);
    par_free(NULL);
}

Test(par, many_small_jobs)
{
    struct err e = ERR_INIT;
    struct par *p = par_new(4, &e);
    static struct job j;

    j.grain = 3;
    for (int round = 0; round < 5000; round++)
        par_for(p, (uint64_t)(round % 50), 3, count_hits, &j);
    /* Index i is in 49 - i of each 50 rounds; counts wrap at 256. */
    for (unsigned i = 0; i < 50; i++)
        cr_assert_eq(j.hits[i], (unsigned char)(100 * (49 - i)));
    par_for(p, 0, 0, count_hits, &j);
    cr_assert_eq(j.bad, 0);
    par_free(p);
}

static void add_up(void *arg, uint64_t begin, uint64_t end, int worker)
{
    double *part = arg;

    (void)worker;
    for (uint64_t i = begin; i < end; i++)
        part[i / 100] += 1.0 / (double)(i + 1);
}

Test(par, results_do_not_depend_on_the_width)
{
    struct err e = ERR_INIT;
    double ref[100], got[100];

    memset(ref, 0, sizeof ref);
    par_for(NULL, 10000, 100, add_up, ref);
    for (int width = 1; width <= 8; width++) {
        struct par *p = par_new(width, &e);

        memset(got, 0, sizeof got);
        par_for(p, 10000, 100, add_up, got);
        cr_assert_eq(memcmp(ref, got, sizeof ref), 0, "width %d", width);
        par_free(p);
    }
}

Test(par, memory_failures_are_reported)
{
    for (long n = 0;; n++) {
        struct err e = ERR_INIT;
        struct par *p;

        mem_fail_at(n, false);
        p = par_new(3, &e);
        mem_fail_at(-1, false);
        if (p != NULL) {
            cr_assert_geq(n, 1);
            par_free(p);
            break;
        }
        cr_assert_eq(e.code, ERR_NOMEM);
    }
}

/* Address space for no further stacks: pthread_create must fail. */
Test(par, too_few_threads_still_work)
{
    struct rlimit limit = { 0 };
    struct err e = ERR_INIT;
    struct par *p;

#if defined(HAVE_ASAN) || defined(__SANITIZE_THREAD__)
    cr_skip_test("sanitizers need the address space");
#endif
    cr_assert_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = (rlim_t)512 << 20;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    p = par_new(1000, &e);
    cr_assert_not_null(p);
    cr_assert_geq(par_width(p), 1);
    cr_assert_lt(par_width(p), 1000);
    if (par_width(p) <= 16)
        check_pool(p, 10);
    par_free(p);
}

/* ---- a thread beside its caller ---- */

struct step {
    int *at;
    int from;
};

static void take_step(void *arg)
{
    struct step *s = arg;
    struct timespec nap = { 0, 2000000 };

    if (s->from % 2 == 0)
        nanosleep(&nap, NULL);
    if (*s->at == s->from)
        ++*s->at;
}

Test(base_par, tasks_run_one_after_the_other)
{
    struct err e = ERR_INIT;
    struct task *t = task_new(&e);
    struct step steps[20];
    int at = 0;

    cr_assert_not_null(t, "%s", e.text);
    cr_expect(!task_busy(t));
    for (int i = 0; i < 20; i++) {
        steps[i] = (struct step){ &at, i };
        task_start(t, take_step, &steps[i]);
    }
    task_wait(t);
    cr_expect_eq(at, 20);
    cr_expect(!task_busy(t));
    steps[0].from = 20;
    task_start(t, take_step, &steps[0]);
    task_free(t);
    cr_expect_eq(at, 21, "freed before it was done");
}

Test(base_par, without_a_task_everything_is_done_at_once)
{
    int at = 0;
    struct step s = { &at, 0 };

    task_start(NULL, take_step, &s);
    cr_expect_eq(at, 1);
    task_wait(NULL);
    cr_expect(!task_busy(NULL));
    task_free(NULL);
}
