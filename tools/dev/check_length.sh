#!/bin/sh
# Functions of more than 150 lines fail; those above 80 are named, so that a
# reviewer asks why. Relies on the layout that clang-format keeps: a
# function's braces stand alone in column one.
set -eu
. "$(dirname -- "$0")/lib.sh"

sources | xargs awk '
FNR == 1 { start = 0; name = "" }
/^[A-Za-z_].*\(/ && !start { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
/^\{/ { start = FNR; next }
/^\}/ && start {
    n = FNR - start - 1
    if (n > 150) {
        printf "%s:%d: %s has %d lines, 150 are allowed\n", FILENAME, start, name, n
        failed = 1
    } else if (n > 80) {
        printf "note: %s:%d: %s has %d lines\n", FILENAME, start, name, n
    }
    if (n > longest) longest = n
    total++
    start = 0
}
END { printf "note: %d functions, the longest has %d lines\n", total, longest; exit failed }
'
