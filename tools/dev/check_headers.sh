#!/bin/sh
# Every header compiles alone: it includes what it uses.
set -eu
. "$(dirname -- "$0")/lib.sh"

cc=${CC:-cc}
command -v "$cc" >/dev/null 2>&1 || skip "no C compiler"
gen=$(mktemp -d)
trap 'rm -rf "$gen"' EXIT
mkdir -p "$gen/schema" "$gen/models"
if command -v protoc-c >/dev/null 2>&1; then
    for p in schema/*.proto; do
        [ ! -f "$p" ] || protoc-c --proto_path=. --c_out="$gen" "$p"
    done
fi
flags=$(pkg-config --cflags libcjson yaml-0.1 libprotobuf-c 2>/dev/null || true)
rc=0
for h in $(sources | grep '\.h$'); do
    printf '#include "%s"\ntypedef int unit;\n' "$h" |
        "$cc" -std=c11 -D_XOPEN_SOURCE=700 -D_FILE_OFFSET_BITS=64 -Wall \
            -Wextra -Wpedantic -Werror -Wno-unused-function -I. -Itests/unit \
            -I"$gen" $flags -fsyntax-only -x c - || rc=1
done
exit $rc
