# What the tests of the tools share. The working folder is empty and private
# to the test; BUILD holds the tools (they are in PATH), SRC the sources, ROOT
# what the tests of one run share.

say() {
    printf '%s\n' "$*" >&2
}
fail() {
    say "FAIL: $*"
    say "command: ${command-none}"
    say "exit: ${status-none}"
    [ ! -s stdout ] || { say "--- stdout"; head -n 40 stdout >&2; }
    [ ! -s stderr ] || { say "--- stderr"; head -n 40 stderr >&2; }
    exit 1
}
skip() {
    printf '%s\n' "$*" >&2
    exit 77
}

# Runs a command; keeps its exit status and both outputs.
run() {
    command=$*
    status=0
    "$@" >stdout 2>stderr || status=$?
}
expect_exit() {
    [ "$status" -eq "$1" ] || fail "exit $1 was expected"
}
# Fixed strings that must stand in stdout or stderr.
expect_out() {
    for text; do
        grep -qF -e "$text" stdout || fail "stdout lacks: $text"
    done
}
expect_err() {
    for text; do
        grep -qF -e "$text" stderr || fail "stderr lacks: $text"
    done
}
expect_no_out() {
    [ ! -s stdout ] || fail "stdout should be empty"
}
expect_no_err() {
    [ ! -s stderr ] || fail "stderr should be empty"
}
expect_absent() {
    for f; do
        [ ! -e "$f" ] && [ ! -L "$f" ] || fail "'$f' should not be there"
    done
}
expect_file() {
    for f; do
        [ -f "$f" ] || fail "'$f' should be a file"
    done
}
expect_same() { # two files or two folders
    diff -r "$1" "$2" >differences 2>&1 ||
        { head -n 20 differences >&2; fail "'$1' and '$2' differ"; }
    rm -f differences
}
# The folder holds these names and nothing else (outputs of `run` aside).
expect_only() {
    for f; do printf '%s\n' "$f"; done | sort >"$ROOT/wanted"
    here_is | sort >"$ROOT/found"
    cmp -s "$ROOT/wanted" "$ROOT/found" || {
        diff "$ROOT/wanted" "$ROOT/found" >&2 || true
        fail "the folder should hold only: $*"
    }
}
here_is() {
    ls -A | grep -vxF -e .words -e stdout -e stderr || true
}

# A refusal: this exit code, these words in one error line on stderr, nothing
# on stdout, and nothing new in the folder.
refused() { # code, words... -- command...
    code=$1
    shift
    : >.words
    while [ "$1" != -- ]; do
        printf '%s\n' "$1" >>.words
        shift
    done
    shift
    here_is >"$ROOT/before"
    run "$@"
    here_is >"$ROOT/after"
    expect_exit "$code"
    expect_no_out
    while IFS= read -r w; do
        expect_err "$w"
    done <.words
    rm -f .words
    cmp -s "$ROOT/before" "$ROOT/after" || {
        diff "$ROOT/before" "$ROOT/after" >&2 || true
        fail "files were left behind"
    }
    grep -q '^anemll-[a-z]*: ' stderr || fail "no line of the tool"
}

# ---- checkpoints and packages; made once a run, copied where they change ----

# tiny ARCH: the path of a small checkpoint, not to be changed.
tiny() {
    arch=${1:-qwen3}
    like=${2:-tiny}
    d=$ROOT/$arch-$like
    [ -d "$d" ] || anemll-fixtures checkpoint --arch "$arch" --like "$like" \
        --seed 1 -q -o "$d" >&2 || fail "no checkpoint"
    printf '%s\n' "$d"
}
# A private copy of it.
model() { # DIR [ARCH [LIKE]]
    cp -r "$(tiny ${2-} ${3-})" "$1"
}
# A small package of the tiny checkpoint, not to be changed.
package() {
    if [ ! -d "$ROOT/package" ]; then
        anemll-convert --hf "$(tiny)" --ctx 128 --lut 4 --no-gate -q \
            -o "$ROOT/package" >/dev/null || fail "no package"
    fi
    printf '%s\n' "$ROOT/package"
}

# ---- safetensors, changed without any library ----

st_header_bytes() {
    od -An -tu8 -N8 "$1" | tr -d ' '
}
st_header() {
    tail -c +9 "$1" | head -c "$(st_header_bytes "$1")"
}
le64() ( # number -> eight bytes
    n=$1
    for i in 0 1 2 3 4 5 6 7; do
        printf "\\$(printf %03o $((n & 255)))"
        n=$((n >> 8))
    done
)
# Edits the header with a sed script; data keeps its bytes.
st_edit() { # FILE SCRIPT
    n=$(st_header_bytes "$1")
    st_header "$1" | sed "$2" >.header
    st_header "$1" | cmp -s - .header && fail "st_edit: '$2' changed nothing"
    { le64 "$(wc -c <.header)"; cat .header; tail -c +$((9 + n)) "$1"; } >.new
    mv .new "$1"
    rm -f .header
}
# Where the data of a tensor begins in the file.
st_begin() { # FILE TENSOR
    b=$(st_header "$1" | tr '{}' '\n\n' | grep -A1 -F "\"$2\":" |
        sed -n 's/.*"data_offsets": *\[ *\([0-9]*\),.*/\1/p' | head -n 1)
    [ -n "$b" ] || fail "st_begin: no tensor '$2' in '$1'"
    echo $((8 + $(st_header_bytes "$1") + b))
}
# Overwrites 16-bit words of a tensor: octal escapes of their bytes.
st_poke() { # FILE TENSOR ELEMENT BYTES
    at=$(($(st_begin "$1" "$2") + 2 * $3))
    printf "$4" | dd of="$1" bs=1 seek="$at" conv=notrunc 2>/dev/null
}

json() { # FILE [PATH] -> the value
    json_get "$@"
}
