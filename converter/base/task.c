/*
 * A thread beside its caller.
 */
#include "converter/base/task.h"

#include <pthread.h>
#include <signal.h>

#include "converter/base/mem.h"

struct task {
    bool threaded; /* there are a lock, a condition and a thread */
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool quit;
    void (*fn)(void *arg); /* NULL: idle */
    void *arg;
};

static void *task_main(void *arg)
{
    struct task *t = arg;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->fn && !t->quit)
            pthread_cond_wait(&t->changed, &t->lock);
        if (!t->fn)
            break;
        pthread_mutex_unlock(&t->lock);
        t->fn(t->arg);
        pthread_mutex_lock(&t->lock);
        t->fn = NULL;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Signals stay with the threads of the caller. */
static bool start_thread(struct task *t)
{
    sigset_t all, old;
    bool masked, ok;

    sigfillset(&all);
    masked = pthread_sigmask(SIG_SETMASK, &all, &old) == 0;
    ok = pthread_create(&t->thread, NULL, task_main, t) == 0;
    if (masked)
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

struct task *task_new(struct err *e)
{
    struct task *t = mem_zalloc(1, sizeof(*t), e);

    if (!t || pthread_mutex_init(&t->lock, NULL) != 0)
        return t;
    if (pthread_cond_init(&t->changed, NULL) == 0) {
        t->threaded = start_thread(t);
        if (t->threaded)
            return t;
        pthread_cond_destroy(&t->changed);
    }
    pthread_mutex_destroy(&t->lock);
    return t;
}

void task_free(struct task *t)
{
    if (t && t->threaded) {
        pthread_mutex_lock(&t->lock);
        t->quit = true;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
        pthread_cond_destroy(&t->changed);
        pthread_mutex_destroy(&t->lock);
    }
    mem_free(t);
}

void task_start(struct task *t, void (*fn)(void *arg), void *arg)
{
    if (!t || !t->threaded) {
        fn(arg);
        return;
    }
    pthread_mutex_lock(&t->lock);
    while (t->fn)
        pthread_cond_wait(&t->changed, &t->lock);
    t->arg = arg;
    t->fn = fn;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void task_wait(struct task *t)
{
    if (!t || !t->threaded)
        return;
    pthread_mutex_lock(&t->lock);
    while (t->fn)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

bool task_busy(struct task *t)
{
    bool busy;

    if (!t || !t->threaded)
        return false;
    pthread_mutex_lock(&t->lock);
    busy = t->fn != NULL;
    pthread_mutex_unlock(&t->lock);
    return busy;
}
