#!/bin/sh
# Shell scripts parse, and shellcheck finds no error in them.
set -eu
. "$(dirname -- "$0")/lib.sh"

rc=0
scripts=$(files | xargs awk 'FNR == 1 && /^#!.*\/(env )?(ba)?sh$/ { print FILENAME }')
for s in $scripts; do
    case $(head -n 1 "$s") in
    *bash) bash -n "$s" || rc=1 ;;
    *) sh -n "$s" || rc=1 ;;
    esac
done
if command -v shellcheck >/dev/null 2>&1; then
    shellcheck -x -S error -f gcc $scripts || rc=1
fi
exit $rc
