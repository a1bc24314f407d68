#!/bin/sh
# Calls that bring the locale, unchecked numbers or unchecked memory in, and
# words that do not belong in the tree. A few uses are right: they stand in
# `allowed` below, each with its reason.
set -eu
. "$(dirname -- "$0")/lib.sh"

# path<TAB>call[<TAB>why]: what may stand there.
allowed() {
    cat <<'END'
converter/base/mem.c	malloc
converter/base/mem.c	calloc
converter/base/mem.c	realloc
converter/base/mem.c	free
converter/base/num_text.c	strtod
converter/base/num_text.c	strtol
converter/plan.c	free	of realpath
END
}

# Comments and strings are blanked first, so that prose may say "free".
code=$(sources | xargs awk -v allowed="$(allowed)" '
function report(call, why) {
    if (FILENAME "\t" call in ok) return
    printf "%s:%d: %s: %s\n", FILENAME, FNR, call, why
    failed = 1
}
function strip(s,    out, c, i, n) {
    out = ""; n = length(s)
    for (i = 1; i <= n; i++) {
        c = substr(s, i, 1)
        if (in_comment) {
            if (substr(s, i, 2) == "*/") { in_comment = 0; i++ }
        } else if (quote != "") {
            if (c == "\\") i++
            else if (c == quote) quote = ""
        } else if (substr(s, i, 2) == "/*") { in_comment = 1; i++ }
        else if (substr(s, i, 2) == "//") { slashes = 1; break }
        else if (c == "\"" || c == "\047") quote = c
        else out = out c
    }
    quote = ""
    return out
}
BEGIN {
    n = split(allowed, rows, "\n")
    for (i = 1; i <= n; i++) {
        split(rows[i], field, "\t"); ok[field[1] "\t" field[2]] = 1
    }
    locale = "setlocale newlocale uselocale"
    number = "strtod strtof strtold strtol strtoll strtoul strtoull atof atoi atol atoll sscanf fscanf scanf"
    memory = "malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf alloca"
    unsafe = "gets strcpy strcat sprintf vsprintf strtok mkstemp mkdtemp tmpnam tmpfile system popen rand srand random"
    n = split(locale, w); for (i = 1; i <= n; i++) why[w[i]] = "results must not depend on the locale"
    n = split(number, w); for (i = 1; i <= n; i++) why[w[i]] = "parse with num_parse_* and js_*"
    n = split(memory, w); for (i = 1; i <= n; i++) why[w[i]] = "use mem_*"
    n = split(unsafe, w); for (i = 1; i <= n; i++) why[w[i]] = "not in this tree"
}
FNR == 1 { in_comment = 0; quote = "" }
{
    slashes = 0
    s = strip($0)
    if (slashes) report("//", "comments are /* */")
    if (length($0) > 100) report("line", "more than 100 columns")
    if ($0 ~ /\t/) report("tab", "indent with spaces")
    if ($0 ~ /[ \t]$/) report("space", "white space at the end of the line")
    if (s ~ /valueint/) report("valueint", "saturates silently; use js_uint or js_integral")
    if (s ~ /cJSON_GetObjectItem *\(/) report("cJSON_GetObjectItem", "ignores case")
    # Where file bytes are read.
    if (s ~ /\* *\((const )?(u?int(16|32|64)_t|float|double|f16_t)( const)? ?\*\)[A-Za-z_(&]*[^=]*$/ && FILENAME ~ /^(converter|safetensors|schema)\//)
        report("cast", "bytes are read with load_le* or memcpy")
    # Tests compare with libc on purpose and own their memory.
    if (FILENAME ~ /^tests\//) next
    while (match(s, /[A-Za-z_][A-Za-z0-9_]* *\(/)) {
        call = substr(s, RSTART, RLENGTH - 1); sub(/ +$/, "", call)
        if (call in why) report(call, why[call])
        s = substr(s, RSTART + RLENGTH)
    }
}
END { exit failed }
') && rc=0 || rc=1
[ -z "$code" ] || printf '%s\n' "$code"

# Written so that this file does not match itself.
words='(^|[^A-Za-z0-9_.])/wor[k]/|/tmp/b[-]'
words="$words|shared/(spe[c]|seed[s]|desig[n])"
words="$words|(hazard[s]|mlprogra[m]|checkpoint[s]|palettizatio[n]|anem[l]l|styl[e]|desig[n])[.]md"
words="$words|c[l]aude|a[n]thropic|chat[g]pt|cop[i]lot|sub[a]gent|lang[u]age model\$"
words="$words|pypi[.]or[g]|pythonh[o]sted|deb[.]debi[a]n|regis[t]ry[.]npm"
# Tests plant such folders on purpose; nothing else may name one.
homes='(^|[^A-Za-z0-9_.])/(roo[t]|hom[e]/[a-z])'
found=$(files | xargs grep -nIiE -e "$words" -- 2>/dev/null || true
    files | grep -v '^tests/' | xargs grep -nIE -e "$homes" -- 2>/dev/null || true)
if [ -n "$found" ]; then
    echo "paths of one machine, registries' addresses or foreign words:"
    printf '%s\n' "$found" | cut -c1-160
    rc=1
fi
big=$(files | while IFS= read -r f; do
    [ "$(wc -c <"$f")" -le 1000000 ] || echo "$f: more than 1 MB"
done)
if [ -n "$big" ]; then
    printf '%s\n' "$big"
    rc=1
fi
exit $rc
