/*
 * Errors, memory, buffers, hash, log, cpu: the small parts of the floor.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "converter/base/err.h"

Test(err, first_failure_is_kept)
{
    struct err e = ERR_INIT;

    cr_assert_eq(err_set(&e, ERR_INPUT, "tensor '%s' has %d axes", "w", 7), -1);
    cr_assert_eq(err_set(&e, ERR_IO, "later"), -1);
    cr_assert_eq(err_sys(&e, EIO, "later still"), -1);
    cr_assert_eq(e.code, ERR_INPUT);
    cr_assert_str_eq(e.text, "tensor 'w' has 7 axes");
    err_reset(&e);
    cr_assert_eq(e.code, ERR_OK);
    cr_assert_str_eq(e.text, "");
}

Test(err, context_goes_in_front)
{
    struct err e = ERR_INIT;

    err_in(&e, "nothing to add to");
    cr_assert_str_eq(e.text, "");
    err_set(&e, ERR_INPUT, "key 'a' is null");
    cr_assert_eq(err_in(&e, "cannot read '%s'", "config.json"), -1);
    err_in(&e, "model 'm'");
    cr_assert_str_eq(e.text,
                     "model 'm': cannot read 'config.json': key 'a' is null");
    cr_assert_eq(e.code, ERR_INPUT);
}

Test(err, system_errors_name_their_cause)
{
    struct err e = ERR_INIT;

    err_sys(&e, ENOENT, "cannot open '%s'", "x");
    cr_assert_eq(e.code, ERR_IO);
    cr_assert_str_eq(e.text, "cannot open 'x': No such file or directory");
    err_reset(&e);
    err_sys(&e, ENOSPC, "cannot write 'y'");
    cr_assert_str_eq(e.text, "cannot write 'y': No space left on device (the "
                             "disk is full)");
    err_reset(&e);
    err_sys(&e, EDQUOT, "cannot write 'y'");
    cr_assert_not_null(strstr(e.text, "the disk is full for this user"));
}

Test(err, long_texts_are_cut_with_dots)
{
    static char big[3 * ERR_TEXT_MAX];
    struct err e = ERR_INIT;

    memset(big, 'x', sizeof big - 1);
    err_set(&e, ERR_INPUT, "%s", big);
    cr_assert_eq(strlen(e.text), ERR_TEXT_MAX - 1);
    cr_assert_str_eq(e.text + ERR_TEXT_MAX - 4, "...");
    err_in(&e, "context");
    cr_assert_eq(strlen(e.text), ERR_TEXT_MAX - 1);
    cr_assert_eq(strncmp(e.text, "context: xxx", 12), 0);
    cr_assert_str_eq(e.text + ERR_TEXT_MAX - 4, "...");
    err_in(&e, "%s", big);
    cr_assert_eq(strlen(e.text), ERR_TEXT_MAX - 1);
}

Test(err, a_text_that_just_fits_is_whole)
{
    static char big[ERR_TEXT_MAX];
    struct err e = ERR_INIT;

    memset(big, 'x', sizeof big - 1);
    err_set(&e, ERR_INPUT, "%s", big);
    cr_assert_str_eq(e.text, big);
}

Test(err, a_cut_keeps_utf8_whole)
{
    static char big[2 * ERR_TEXT_MAX];
    struct err e = ERR_INIT;

    for (size_t shift = 0; shift < 3; shift++) {
        size_t n = 0;

        memset(big, 'x', shift);
        for (n = shift; n + 4 < sizeof big; n += 3)
            memcpy(big + n, "\xe2\x82\xac", 3);
        big[n] = '\0';
        err_reset(&e);
        err_set(&e, ERR_INPUT, "%s", big);
        n = strlen(e.text);
        cr_assert_str_eq(e.text + n - 3, "...");
        cr_assert_eq((n - 3 - shift) % 3, 0, "cut inside a character");
    }
}

Test(err, names_cannot_drive_a_terminal)
{
    struct err e = ERR_INIT;

    err_set(&e, ERR_INPUT, "tensor '%s'",
            "a\x1b[2Jb\x7f\r\xc2\x9b"
            "1\xc3\xa9\tc\nd");
    cr_assert_str_eq(e.text, "tensor 'a?[2Jb????1\xc3\xa9\tc\nd'");
    err_in(&e, "%s", "\x01");
    cr_assert_eq(strncmp(e.text, "?: tensor", 9), 0);
}

/* What names its own origin gets no other one. */
Test(err, whole)
{
    struct err e = ERR_INIT;

    cr_assert_eq(err_whole(&e), -1);
    err_set(&e, ERR_INPUT, "holds 1 NaN");
    err_in(&e, "'m'");
    cr_assert_eq(err_whole(&e), -1);
    cr_assert_eq(err_in(&e, "cannot write 'p'"), -1);
    cr_assert_str_eq(e.text, "'m': holds 1 NaN");
    err_reset(&e);
    err_set(&e, ERR_IO, "full");
    err_in(&e, "cannot write 'p'");
    cr_assert_str_eq(e.text, "cannot write 'p': full");
}

Test(err, exit_codes)
{
    static const struct {
        enum err_code code;
        int exit;
    } table[] = {
        { ERR_OK, 0 },          { ERR_USAGE, 2 },     { ERR_INPUT, 3 },
        { ERR_UNSUPPORTED, 3 }, { ERR_IO, 4 },        { ERR_NOMEM, 4 },
        { ERR_MISMATCH, 1 },    { ERR_CANCELLED, 4 },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct err e = ERR_INIT;

        e.code = table[i].code;
        cr_assert_eq(err_exit_code(&e), table[i].exit, "code %d",
                     (int)table[i].code);
    }
}

Test(err, a_bug_aborts, .signal = SIGABRT)
{
    BUG_UNLESS(1 + 1 == 2);
    BUG_UNLESS(1 + 1 == 3);
}

Test(err, a_copy_holds_everything_and_the_first_is_kept)
{
    struct err a = ERR_INIT, b = ERR_INIT;

    err_set(&a, ERR_IO, "first");
    err_whole(&a);
    cr_expect_eq(err_copy(&b, &a), -1);
    cr_expect_eq((int)b.code, ERR_IO);
    err_in(&b, "where");
    cr_expect_str_eq(b.text, "first");
    err_reset(&a);
    err_set(&a, ERR_INPUT, "second");
    cr_expect_eq(err_copy(&b, &a), -1);
    cr_expect_str_eq(b.text, "first");
}
