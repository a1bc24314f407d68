# What every tool does the same way.

tools="anemll-convert anemll-check anemll-inspect anemll-fixtures
    anemll-compile"

test_help_goes_to_stdout() {
    for t in $tools; do
        for option in --help -h; do
            run $t $option
            expect_exit 0
            expect_no_err
            expect_out "usage: $t" "--json" "--threads" "--quiet" "--verbose" \
                "--version" "exit codes: 0 done"
        done
    done
}
test_version_names_the_tool() {
    for t in $tools; do
        run $t --version
        expect_exit 0
        expect_no_err
        grep -qxE "$t [0-9]+\.[0-9]+\.[0-9]+" stdout || fail "no version"
    done
}
test_help_lists_every_option_once() {
    for t in $tools; do
        run $t --help
        sed -n 's/^  *\(-[a-z], \)\{0,1\}\(--[a-z0-9-]*\).*/\2/p' stdout |
            sort | uniq -d >"$ROOT/twice"
        [ ! -s "$ROOT/twice" ] || fail "listed twice: $(cat "$ROOT/twice")"
    done
}
test_unknown_option() {
    for t in $tools; do
        refused 2 "unknown option '--frobnicate'" "try '$t --help'" -- \
            $t --frobnicate
    done
}
test_no_argument() {
    for t in $tools; do
        refused 2 "try '$t --help'" -- $t
    done
}
test_too_many_arguments() {
    for t in $tools; do
        a=a
        [ "$t" != anemll-fixtures ] || a=checkpoint
        refused 2 "unexpected argument 'b'" -- $t $a b
    done
}
test_missing_value() {
    refused 2 "option '--ctx' needs a value" -- anemll-convert m --ctx
    refused 2 "option '--hf' needs a value" -- anemll-check p --hf
    refused 2 "option '--seed' needs a value" -- anemll-fixtures checkpoint --seed
}
test_numbers_are_strict() {
    for n in 12x -1 1.5 0x10 '' ' 5' 99999999999999999999; do
        refused 2 "option '--ctx'" "is not a number" -- \
            anemll-convert m --ctx "$n"
    done
}
test_flag_takes_no_value() {
    refused 2 "option '--json' takes no value" -- anemll-inspect m --json=yes
}
test_value_behind_an_equals_sign() {
    run anemll-inspect --cpu=scalar "$(tiny)"
    expect_exit 0
    refused 2 "neon" -- anemll-inspect --cpu=mmx "$(tiny)"
}
test_double_dash_ends_options() {
    refused 3 "'--json'" -- anemll-inspect -- --json
}
test_threads_are_limited() {
    refused 2 "--threads" -- anemll-inspect "$(tiny)" --threads 5000
}
test_quiet_is_silent() {
    run anemll-fixtures checkpoint -q -o m
    expect_exit 0
    expect_no_out
    expect_no_err
}
test_full_stdout_is_noticed() {
    [ -c /dev/full ] || skip "no /dev/full"
    status=0
    anemll-inspect "$(tiny)" >/dev/full 2>stderr || status=$?
    : >stdout
    expect_exit 4
    expect_err "stdout"
}
test_closed_pipe_ends_in_silence() {
    p=$(echo "$(package)"/*FFN*.mlpackage)
    anemll-inspect "$p" --mil 2>stderr | head -n 1 >stdout
    [ -s stdout ] || fail "no first line"
    expect_no_err
}
test_comma_locale_changes_nothing() {
    locale -a 2>/dev/null | grep -qiE '^de_DE\.utf-?8' || skip "no de_DE locale"
    anemll-inspect --json "$(tiny)" >a
    LC_ALL=de_DE.UTF-8 anemll-inspect --json "$(tiny)" >b
    expect_same a b
}
