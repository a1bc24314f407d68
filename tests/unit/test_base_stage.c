/*
 * Staged directories: one rename, nothing left behind, what a kill leaves is
 * found, nothing of others is touched.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "t_dir.h"

static const char *dir;

static void set_up(void)
{
    dir = t_dir_new();
}

static void tear_down(void)
{
    t_dir_drop(dir);
}

TestSuite(stage, .init = set_up, .fini = tear_down);

/* Writes name = text inside the stage. */
static void put(const struct io_stage *s, const char *name, const char *text)
{
    struct err e = ERR_INIT;

    cr_assert_eq(io_write_file(t_path(s->dir, name), text, strlen(text), &e), 0,
                 "%s", e.text);
}

static void make(const char *target, bool replace, const char *text)
{
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;

    cr_assert_eq(io_stage_begin(&s, target, replace, &e), 0, "%s", e.text);
    put(&s, "f", text);
    cr_assert_eq(io_stage_commit(&s, &e), 0, "%s", e.text);
    io_stage_release(&s);
}

static void refuses(const char *target, bool replace, enum err_code code,
                    const char *part)
{
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;

    cr_assert_eq(io_stage_begin(&s, target, replace, &e), -1);
    cr_assert_eq(e.code, code, "%s", e.text);
    cr_assert_not_null(strstr(e.text, part), "%s", e.text);
    cr_assert_null(s.dir);
    io_stage_release(&s);
}

Test(stage, appears_by_one_rename)
{
    const char *out = t_path(dir, "out");
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;
    char home[100];

    cr_assert_eq(io_stage_begin(&s, out, false, &e), 0);
    cr_assert(!io_exists(out));
    snprintf(home, sizeof home, ".out.anemll-stage-%ld", (long)getpid());
    cr_assert_str_eq(t_names(dir), home);
    cr_assert_not_null(strstr(s.dir, home));
    put(&s, "a", "1");
    cr_assert_eq(io_mkdir(t_path(s.dir, "sub"), &e), 0);
    put(&s, "sub/b", "2");
    cr_assert_eq(io_stage_commit(&s, &e), 0);
    cr_assert(s.committed);
    io_stage_release(&s);
    cr_assert_str_eq(t_names(dir), "out");
    cr_assert_str_eq(t_names(out), "a sub");
    cr_assert_str_eq(t_read_text(t_path(out, "sub/b")), "2");
    io_stage_release(&s);
}

Test(stage, a_release_leaves_nothing)
{
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;

    io_stage_release(&s);
    cr_assert_eq(io_stage_begin(&s, t_path(dir, "out"), false, &e), 0);
    put(&s, "a", "1");
    io_stage_release(&s);
    cr_assert_str_eq(t_names(dir), "");
    /* Parents that it made go too, others stay. */
    cr_assert_eq(io_mkdir(t_path(dir, "p"), &e), 0);
    cr_assert_eq(io_stage_begin(&s, t_path(dir, "p/q/r/out"), false, &e), 0);
    cr_assert(io_is_dir(t_path(dir, "p/q/r")));
    io_stage_release(&s);
    cr_assert_str_eq(t_names(t_path(dir, "p")), "");
    make(t_path(dir, "p/q/r/out"), false, "x");
    cr_assert_str_eq(t_names(t_path(dir, "p/q/r")), "out");
}

Test(stage, an_existing_target_is_refused)
{
    make(t_path(dir, "out"), false, "old");
    refuses(t_path(dir, "out"), false, ERR_INPUT, "/out' exists");
    refuses(t_path(dir, "out/"), false, ERR_INPUT, "/out' exists");
    cr_assert_eq(symlink("nowhere", t_path(dir, "l")), 0);
    refuses(t_path(dir, "l"), false, ERR_INPUT, "/l' exists");
    t_write_text(t_path(dir, "file"), "x");
    refuses(t_path(dir, "file/out"), false, ERR_INPUT, "is not a directory");
    refuses("/", true, ERR_USAGE, "no name for a new directory");
    refuses(t_path(dir, "."), true, ERR_USAGE, "no name");
    refuses(t_path(dir, "x/.."), true, ERR_USAGE, "no name");
    refuses("", true, ERR_USAGE, "no name");
    cr_assert_str_eq(t_names(dir), "file l out");
}

Test(stage, replacing)
{
    const char *out = t_path(dir, "out");
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;

    make(out, true, "one");
    cr_assert_eq(io_stage_begin(&s, out, true, &e), 0);
    put(&s, "g", "two");
    cr_assert_str_eq(t_read_text(t_path(out, "f")), "one");
    cr_assert_eq(io_stage_commit(&s, &e), 0, "%s", e.text);
    io_stage_release(&s);
    cr_assert_str_eq(t_names(dir), "out");
    cr_assert_str_eq(t_names(out), "g");
    /* A release instead of a commit keeps the old one. */
    cr_assert_eq(io_stage_begin(&s, out, true, &e), 0);
    io_stage_release(&s);
    cr_assert_str_eq(t_read_text(t_path(out, "g")), "two");
    cr_assert_str_eq(t_names(dir), "out");
}

Test(stage, a_target_that_appears_meanwhile_is_kept)
{
    const char *out = t_path(dir, "out");
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;

    cr_assert_eq(io_stage_begin(&s, out, false, &e), 0);
    cr_assert_eq(mkdir(out, 0777), 0);
    cr_assert_eq(io_stage_commit(&s, &e), -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_not_null(strstr(e.text, "exists now"));
    cr_assert(!s.committed);
    io_stage_release(&s);
    cr_assert_str_eq(t_names(dir), "out");
    cr_assert_str_eq(t_names(out), "");
}

Test(stage, a_relative_target)
{
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;

    cr_assert_eq(chdir(dir), 0);
    make("out", false, "x");
    make("./deep/er/out//", false, "y");
    cr_assert_str_eq(t_names(dir), "deep out");
    cr_assert_str_eq(t_read_text("deep/er/out/f"), "y");
    cr_assert_eq(io_stage_begin(&s, "new/out", false, &e), 0);
    io_stage_release(&s);
    cr_assert_str_eq(t_names(dir), "deep out");
    cr_assert_eq(chdir("/"), 0);
}

Test(stage, modes_follow_the_umask)
{
    struct stat st;

    umask(022);
    make(t_path(dir, "a"), false, "x");
    cr_assert_eq(stat(t_path(dir, "a"), &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0755);
    cr_assert_eq(stat(t_path(dir, "a/f"), &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0644);
    umask(077);
    make(t_path(dir, "b"), false, "x");
    cr_assert_eq(stat(t_path(dir, "b"), &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0700);
}

/* Runs a child that begins a stage, says so, and waits to be killed. */
static pid_t hold_stage(const char *target, bool replace)
{
    int ready[2];
    char c;
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        struct io_stage s = IO_STAGE_INIT;
        struct err e = ERR_INIT;

        if (io_stage_begin(&s, target, replace, &e) == 0 &&
            io_write_file(t_path(s.dir, "part"), "x", 1, &e) == 0 &&
            write(ready[1], "x", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &c, 1), 1);
    close(ready[0]);
    return pid;
}

static void kill_child(pid_t pid)
{
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

Test(stage, what_a_kill_leaves_is_removed)
{
    pid_t pid = hold_stage(t_path(dir, "out"), false);

    kill_child(pid);
    cr_assert_neq(t_names(dir)[0], '\0');
    make(t_path(dir, "other"), false, "x"); /* another target: not its own */
    cr_assert_not_null(strstr(t_names(dir), ".out.anemll-stage-"));
    make(t_path(dir, "out"), false, "x");
    cr_assert_str_eq(t_names(dir), "other out");
}

Test(stage, a_living_run_is_left_alone)
{
    pid_t pid = hold_stage(t_path(dir, "out"), false);
    char home[200];

    make(t_path(dir, "out"), false, "x");
    snprintf(home, sizeof home, "%s/.out.anemll-stage-%ld/new/part", dir,
             (long)pid);
    cr_assert(io_exists(home));
    kill_child(pid);
    make(t_path(dir, "out"), true, "y");
    cr_assert_str_eq(t_names(dir), "out");
}

/* Two stages for one target in one process: the second is refused and does
 * not take the first one's lock with it. */
Test(stage, twice_in_one_process)
{
    struct io_stage s = IO_STAGE_INIT;
    struct err e = ERR_INIT;
    const char *out = t_path(dir, "out");
    int status;
    pid_t pid;

    cr_assert_eq(io_stage_begin(&s, out, false, &e), 0);
    refuses(out, false, ERR_IO, "File exists");
    put(&s, "f", "x");
    pid = fork();
    if (pid == 0) { /* another process must still see it as in use */
        struct io_stage t = IO_STAGE_INIT;

        if (io_stage_begin(&t, out, false, &e) != 0)
            _exit(1);
        io_stage_release(&t);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert(io_exists(t_path(s.dir, "f")));
    cr_assert_eq(io_stage_commit(&s, &e), 0, "%s", e.text);
    io_stage_release(&s);
    cr_assert_str_eq(t_names(dir), "out");
}

/* A home with our name and this marker text (NULL: none), and a file. */
static void fake_home(const char *name, const char *marker)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    cr_assert_eq(mkdir(path, 0777), 0);
    if (marker != NULL)
        t_write_text(t_path(path, ".anemll-stage"), marker);
    t_write_text(t_path(path, "data"), "x");
}

Test(stage, only_what_is_ours_is_removed)
{
    pid_t pid = fork();
    char dead[100];

    if (pid == 0)
        _exit(0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);

    snprintf(dead, sizeof dead, ".out.anemll-stage-%ld", (long)pid);
    fake_home(dead, "anemll stage 1\n1 0123456789abcdef\n");
    fake_home(".out.anemll-stage-1", "anemll stage 1\n1 0123456789abcdef\n");
    fake_home(".out.anemll-stage-7x", "anemll stage 1\n1 0123456789abcdef\n");
    fake_home(".out.anemll-stage-", "anemll stage 1\n1 0123456789abcdef\n");
    fake_home(".out2.anemll-stage-99999999", "anemll stage 1\n");
    fake_home(".out.anemll-stage-99999998", "my own notes\n");
    fake_home(".out.anemll-stage-99999997", NULL);
    fake_home("out.anemll-stage-99999996", "anemll stage 1\n");
    fake_home(".out.anemll-stage-99999995", ""); /* killed while writing it */
    cr_assert_eq(mkdir(t_path(dir, ".out.anemll-stage-99999994"), 0777), 0);
    t_write_text(t_path(dir, ".out.anemll-stage-99999993"), "a file");
    make(t_path(dir, "out"), false, "x");
    cr_assert_not_null(strstr(t_names(dir), ".out.anemll-stage-1 "));
    cr_assert_not_null(strstr(t_names(dir), ".out.anemll-stage-7x "));
    cr_assert_not_null(strstr(t_names(dir), ".out.anemll-stage- "));
    cr_assert_null(strstr(t_names(dir), dead));
    cr_assert_null(strstr(t_names(dir), "99999995"));
    cr_assert_null(strstr(t_names(dir), "99999994"));
    cr_assert_not_null(strstr(t_names(dir), ".out2.anemll-stage-99999999"));
    cr_assert_not_null(strstr(t_names(dir), "99999998"));
    cr_assert_not_null(strstr(t_names(dir), "99999997"));
    cr_assert_not_null(strstr(t_names(dir), "99999996"));
    cr_assert_not_null(strstr(t_names(dir), "99999993"));
}

/* Killed between the two renames of a replacement: the old target waits in
 * the home and comes back. */
Test(stage, an_old_target_comes_back)
{
    pid_t pid = hold_stage(t_path(dir, "out"), true);
    char home[200];

    kill_child(pid);
    snprintf(home, sizeof home, "%s/.out.anemll-stage-%ld", dir, (long)pid);
    cr_assert_eq(mkdir(t_path(home, "old"), 0777), 0);
    t_write_text(t_path(home, "old/f"), "precious");
    refuses(t_path(dir, "out"), false, ERR_INPUT, "/out' exists");
    /* That moved it back; the rest goes with the next run. */
    cr_assert_str_eq(t_read_text(t_path(dir, "out/f")), "precious");
    make(t_path(dir, "out"), true, "new");
    cr_assert_str_eq(t_names(dir), "out");
    cr_assert_str_eq(t_read_text(t_path(dir, "out/f")), "new");
}

/* SIGKILL at many moments of replacing a target: whatever is left, the target
 * is a whole one, and the next run leaves nothing beside it. */
Test(stage, kills_at_many_moments)
{
    struct err e = ERR_INIT;
    char out[200];

    snprintf(out, sizeof out, "%s/out", dir);
    make(out, false, "0");
    for (int round = 0; round < 60; round++) {
        struct timespec wait = { 0, round * 40000L };
        pid_t pid = fork();

        cr_assert_geq(pid, 0);
        if (pid == 0)
            for (;;) {
                struct io_stage s = IO_STAGE_INIT;

                if (io_stage_begin(&s, out, true, &e) ||
                    io_write_file(t_path(s.dir, "f"), "0", 1, &e) ||
                    io_stage_commit(&s, &e))
                    _exit(1);
                io_stage_release(&s);
            }
        nanosleep(&wait, NULL);
        kill_child(pid);
        make(out, true, "0");
        cr_assert_str_eq(t_names(dir), "out");
        cr_assert_str_eq(t_names(out), "f");
        cr_assert_str_eq(t_read_text(t_path(out, "f")), "0");
    }
}

Test(stage, memory_failures_leave_nothing)
{
    bool done = false;
    char out[200];

    snprintf(out, sizeof out, "%s/p/out", dir);
    for (long n = 0; !done; n++) {
        struct io_stage s = IO_STAGE_INIT;
        struct err e = ERR_INIT;

        cr_assert_lt(n, 1000);
        mem_fail_at(n, false);
        done = io_stage_begin(&s, out, false, &e) == 0 &&
               io_write_file(t_path(s.dir, "f"), "x", 1, &e) == 0 &&
               io_stage_commit(&s, &e) == 0;
        mem_fail_at(-1, false);
        io_stage_release(&s);
        if (!done)
            cr_assert_eq(e.code, ERR_NOMEM, "%ld: %s", n, e.text);
        if (done || io_exists(out))
            break;
        cr_assert_str_eq(t_names(dir), "", "allocation %ld", n);
    }
    cr_assert_str_eq(t_names(t_path(dir, "p/out")), "f");
}
