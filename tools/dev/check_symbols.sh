#!/bin/sh
# The include direction once more, from what the libraries really use: no
# global symbol is defined twice, and none is taken from a module above or
# beside. Needs a build: BUILD names it (default build).
set -eu
. "$(dirname -- "$0")/lib.sh"

build=${BUILD:-build}
command -v nm >/dev/null 2>&1 || skip "nm is not installed"
set -- "$build"/libanemll_*.a
[ -f "$1" ] || skip "no build in $build"
for a; do
    m=${a##*/libanemll_}
    nm -g "$a" 2>/dev/null | awk -v m="${m%.a}" '
        $1 == "U" { print m, "U", $2 }
        NF == 3 { print m, "D", $3 }'
done | awk '
BEGIN {
    below["base"] = " "
    below["safetensors"] = below["quant"] = below["mil"] = below["cli"] = " base "
    below["run"] = " mil base "
    below["schema"] = " proto mil base "
    below["models"] = " mil safetensors base "
    below["converter"] = " models quant run schema mil safetensors base "
    below["testing"] = " converter" below["converter"]
    below["proto"] = " "
}
$3 ~ /^_*(asan|ubsan|tsan|odr|gcov)/ { next }
$2 == "D" {
    if ($3 in home) { print $3 ": defined in " home[$3] " and " $1; failed = 1 }
    home[$3] = $1
}
$2 == "U" { uses[$1 " " $3] = 1 }
END {
    for (u in uses) {
        split(u, f, " ")
        to = home[f[2]]
        if (to != "" && to != f[1] && !index(below[f[1]], " " to " ")) {
            print f[1] " uses " f[2] " of " to
            failed = 1
        }
    }
    exit failed
}'
