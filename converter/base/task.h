/*
 * One thread that does one thing at a time beside its caller: writing what is
 * ready while the next is computed. NULL is no thread: what is started is done
 * at once. Started, waited for and freed by one caller.
 */
#ifndef BASE_TASK_H
#define BASE_TASK_H

#include <stdbool.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

struct task;
/* Where the system gives no thread, what is started is done at once. NULL only
 * on ERR_NOMEM. */
struct task *task_new(struct err *e) ATTR_MUST_USE;
void task_free(struct task *t); /* when it is done */

/* Waits for what is at work, then starts fn(arg). What fn writes may be read
 * after task_wait. */
void task_start(struct task *t, void (*fn)(void *arg), void *arg);
void task_wait(struct task *t);
bool task_busy(struct task *t);

#endif
