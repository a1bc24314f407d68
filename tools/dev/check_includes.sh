#!/bin/sh
# The include direction, from the #include lines: a module sees only what lies
# below it, the oracle shares nothing with the graph, private headers stay in
# their folder, outside libraries stay behind the module that wraps them.
set -eu
. "$(dirname -- "$0")/lib.sh"

sources | xargs awk '
function module(path) {
    if (path ~ /^converter\/base\//) return "base"
    if (path ~ /^mil\/run\//) return "run"
    if (match(path, /^[a-z]+\//)) return substr(path, 1, RLENGTH - 1)
    return "top"
}
function bad(why) {
    printf "%s:%d: %s includes \"%s\": %s\n", FILENAME, FNR, from, inc, why
    failed = 1
}
BEGIN {
    below["base"] = " base "
    below["safetensors"] = " safetensors base "
    below["quant"] = " quant base "
    below["mil"] = " mil base "
    below["run"] = " run mil base "
    below["schema"] = " schema mil base "
    below["models"] = " models mil safetensors base "
    below["converter"] = " converter models quant run schema mil safetensors base "
    below["tools"] = " tools" below["converter"]
    below["tests"] = " tests" below["converter"]
    library["cjson/"] = " base "
    library["yaml.h"] = " converter tests "
    library["protobuf-c/"] = " schema "
    library["xxhash.h"] = " base "
    library["zstd.h"] = " base converter "
    library["criterion/"] = " tests "
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    inc = $0; sub(/^[^<]*</, "", inc); sub(/>.*/, "", inc)
    from = module(FILENAME)
    for (l in library)
        if (index(inc, l) == 1 && !index(library[l], " " from " "))
            bad("only" library[l] "may use that library")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    inc = $0; sub(/^[^"]*"/, "", inc); sub(/".*/, "", inc)
    from = module(FILENAME)
    if (inc !~ /\//) {
        # Without a folder: test helpers and files made by the build.
        if (from != "tests") bad("name it from the top of the tree")
        next
    }
    to = module(inc)
    if (!index(below[from], " " to " ")) bad("above it or beside it")
    if (inc ~ /_priv\.h$/ && to != from) bad("private to " to)
    if (from == "models" && FILENAME ~ /\/oracle/ &&
        (to == "mil" || inc ~ /\/(parts|weights)\.h$/))
        bad("the oracle shares no graph code")
    if (from == "models" && FILENAME ~ /\/parts/ && inc ~ /\/oracle/)
        bad("the graph shares no oracle code")
}
END { exit failed }
'
