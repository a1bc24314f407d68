#!/bin/sh
# Layout is what clang-format 14 (Debian 12) makes of it; other versions
# format differently and are not asked.
set -eu
. "$(dirname -- "$0")/lib.sh"

tool=
for t in clang-format-14 clang-format; do
    if command -v $t >/dev/null 2>&1 &&
        $t --version | grep -q 'version 14\.'; then
        tool=$t
        break
    fi
done
[ -n "$tool" ] || skip "clang-format 14 is not installed"
sources | xargs "$tool" --dry-run -Werror 2>&1 |
    { grep -E 'error:|warning:' || true; } | awk '
    { sub(/: error:.*/, ""); sub(/:[0-9]+$/, ""); print; n++ }
    END { if (n) print n " places; clang-format -i mends them"; exit n > 0 }'
