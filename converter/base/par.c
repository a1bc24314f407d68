/*
 * Parallel-for on persistent threads.
 *
 * One job at a time. Threads wait on `wake` for a new job number and take
 * pieces from an atomic counter. The caller works too; when it finds no
 * piece left it closes the job, so that a thread that wakes late does not
 * join, and waits only for those inside.
 */
#include "converter/base/par.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "converter/base/cpu.h"
#include "converter/base/mem.h"

#define PAR_MAX_THREADS 1024

struct worker {
    struct par *p;
    int index; /* 1 .. width - 1 */
    pthread_t thread;
};

struct par {
    int width;  /* threads that really run, the caller's included */
    int useful; /* of them, beside the caller: more than cores only queue */
    struct worker *workers;
    atomic_bool busy;

    pthread_mutex_t lock; /* guards what follows, up to the blank line */
    pthread_cond_t wake, idle;
    uint64_t job; /* number of the newest job */
    bool open, quit;
    int inside; /* threads that work on the open job */

    /* The job: written before it opens, constant while it is open. */
    par_fn fn;
    void *arg;
    uint64_t n, grain;
    atomic_uint_fast64_t next; /* number of the next piece */
};

static void do_pieces(struct par *p, int worker)
{
    uint64_t pieces = p->n / p->grain + (p->n % p->grain != 0);

    for (;;) {
        uint64_t i = atomic_fetch_add(&p->next, 1), begin;

        if (i >= pieces)
            return;
        begin = i * p->grain;
        p->fn(p->arg, begin, p->n - begin < p->grain ? p->n : begin + p->grain,
              worker);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct par *p = w->p;
    uint64_t seen = 0;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->quit && !(p->open && p->job != seen))
            pthread_cond_wait(&p->wake, &p->lock);
        if (p->quit)
            break;
        seen = p->job;
        p->inside++;
        pthread_mutex_unlock(&p->lock);
        do_pieces(p, w->index);
        pthread_mutex_lock(&p->lock);
        if (--p->inside == 0)
            pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Starts as many threads as the system gives. Signals stay with the threads
 * of the caller, whose handlers expect them there. */
static void start_threads(struct par *p, int threads)
{
    sigset_t all, old;
    bool masked;

    sigfillset(&all);
    masked = pthread_sigmask(SIG_SETMASK, &all, &old) == 0;
    for (int i = 1; i < threads; i++) {
        struct worker *w = &p->workers[i - 1];

        w->p = p;
        w->index = i;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
        p->width = i + 1;
    }
    if (masked)
        pthread_sigmask(SIG_SETMASK, &old, NULL);
}

struct par *par_new(int threads, struct err *e)
{
    struct par *p = mem_zalloc(1, sizeof *p, e);

    if (p == NULL)
        return NULL;
    if (threads <= 0)
        threads = cpu_count();
    if (threads > PAR_MAX_THREADS)
        threads = PAR_MAX_THREADS;
    p->width = 1;
    p->useful = cpu_count() < 4 ? 3 : cpu_count() - 1;
    atomic_init(&p->busy, false);
    atomic_init(&p->next, 0);
    p->workers = mem_zalloc((size_t)threads, sizeof *p->workers, e);
    if (p->workers == NULL) {
        mem_free(p);
        return NULL;
    }
    if (pthread_mutex_init(&p->lock, NULL) != 0)
        threads = 0; /* serial, and nothing to destroy */
    else if (pthread_cond_init(&p->wake, NULL) != 0 ||
             pthread_cond_init(&p->idle, NULL) != 0)
        threads = 1;
    start_threads(p, threads);
    return p;
}

void par_free(struct par *p)
{
    if (p == NULL)
        return;
    if (p->width > 1) {
        pthread_mutex_lock(&p->lock);
        p->quit = true;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (int i = 1; i < p->width; i++)
            pthread_join(p->workers[i - 1].thread, NULL);
        pthread_cond_destroy(&p->wake);
        pthread_cond_destroy(&p->idle);
        pthread_mutex_destroy(&p->lock);
    }
    mem_free(p->workers);
    mem_free(p);
}

int par_width(const struct par *p)
{
    return p == NULL ? 1 : p->width;
}

static void run_serial(uint64_t n, uint64_t grain, par_fn fn, void *arg)
{
    for (uint64_t i = 0; i < n;) {
        uint64_t end = n - i < grain ? n : i + grain;

        fn(arg, i, end, 0);
        i = end;
    }
}

/* As many threads as there are pieces and cores for; the others sleep on. */
static void wake_some(struct par *p)
{
    uint64_t pieces = p->n / p->grain + (p->n % p->grain != 0);

    if (p->width - 1 <= p->useful && pieces >= (uint64_t)p->width) {
        pthread_cond_broadcast(&p->wake);
        return;
    }
    for (int i = 0; i < p->useful && (uint64_t)i + 1 < pieces; i++)
        pthread_cond_signal(&p->wake);
}

void par_for(struct par *p, uint64_t n, uint64_t grain, par_fn fn, void *arg)
{
    uint64_t width = (uint64_t)par_width(p);

    if (grain == 0)
        grain = n / (4 * width);
    if (grain == 0)
        grain = 1;
    if (width == 1 || n <= grain) {
        run_serial(n, grain, fn, arg);
        return;
    }
    if (atomic_exchange(&p->busy, true))
        BUG("par_for inside par_for on one pool");
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->grain = grain;
    atomic_store(&p->next, 0);
    p->job++;
    p->open = true;
    wake_some(p);
    pthread_mutex_unlock(&p->lock);

    do_pieces(p, 0);

    pthread_mutex_lock(&p->lock);
    p->open = false;
    while (p->inside > 0)
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->busy, false);
}
