#!/bin/sh
# Global symbols of the module libraries: none is defined twice, and each
# carries a prefix that its module owns, so that linking them into a larger
# program is safe. Needs a build: BUILD names it (default build).
set -eu
. "$(dirname -- "$0")/lib.sh"

build=${BUILD:-build}
command -v nm >/dev/null 2>&1 || skip "nm is not installed"
set -- "$build"/libanemll_*.a
[ -f "$1" ] || skip "no build in $build"
for a; do
    case $a in */libanemll_proto.a | */libanemll_cli.a) continue ;; esac
    nm -g --defined-only "$a" 2>/dev/null |
        awk -v lib="$(basename "$a")" 'NF == 3 { print lib, $3 }'
done | awk '
BEGIN {
    own["libanemll_base.a"] = "err_ mem_ buf_ io_ js_ json_ num_ cpu_ par_ log_ hash_ dm_ bug_at"
    own["libanemll_safetensors.a"] = "st_"
    own["libanemll_mil.a"] = "mil_ mb_ infer_ parse_"
    own["libanemll_run.a"] = "run_ kern_ k_"
    own["libanemll_quant.a"] = "qz_ km_"
    own["libanemll_schema.a"] = "pkg_ blob_ wire_ pb_ codec_ manifest_ encode_ decode_"
}
/ __(asan|ubsan|tsan|odr)/ { next }
{
    if ($2 in seen) { print $2 ": defined in " seen[$2] " and " $1; failed = 1 }
    seen[$2] = $1
    if (!($1 in own)) next
    n = split(own[$1], p); good = 0
    for (i = 1; i <= n; i++) if (index($2, p[i]) == 1) good = 1
    if (!good) { print $1 ": " $2 " has no prefix of its module"; failed = 1 }
}
END { exit failed }'
