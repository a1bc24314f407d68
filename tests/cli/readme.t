# Commands in the documents: blocks marked "sh test" must succeed line by line;
# blocks marked "console test" must also print what they show, numbers aside.
# Blocks of one document share a folder, as a reader's terminal would.

plain() { # numbers become N, so that figures may move
    sed -E 's/[0-9]+([.,][0-9]+)*(e-?[0-9]+)?/N/g; s/[ \t]+$//' "$1"
}
document() {
    ln -s "$BUILD" build
    ln -s "$SRC/tools" tools
    awk '
    /^ *```(sh|console) test$/ { kind = $1; sub(/```/, "", kind); n++; next }
    /^ *```/ { kind = ""; next }
    kind == "sh" { print > ("block" n ".sh"); next }
    kind == "console" { print > ("block" n ".console") }
    ' "$SRC/$1"
    blocks=0
    for b in $(ls block* 2>/dev/null | sort -t k -k 2 -n); do
        blocks=$((blocks + 1))
        case $b in
        *.sh) script "$b" ;;
        *.console) transcript "$b" ;;
        esac
    done
    [ "$blocks" -gt 0 ] || fail "$1 has no tested block"
}
script() {
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        run sh -c "$line"
        command=$line
        expect_exit 0
    done <"$1"
}
transcript() {
    : >printed
    sed -n 's/^\$ //p' "$1" >commands
    while IFS= read -r line; do
        printf '$ %s\n' "$line" >>printed
        sh -c "$line" >>printed 2>&1 || fail "$line"
    done <commands
    plain "$1" >want
    plain printed >got
    expect_same want got
}

test_readme() {
    document README.md
}
test_recurrent() {
    document docs/RECURRENT.md
}
test_readme_lists_every_option() {
    for tool in convert check inspect; do
        run anemll-$tool --help
        for o in $(sed -n 's/^  \(-[a-z0-9, -]*\).*/\1/p' stdout |
            tr ', ' '\n\n' | grep '^--'); do
            [ "$o" = --output ] || [ "$o" = --chunk ] ||
                grep -q -e "$o" "$SRC/README.md" ||
                fail "README.md lacks $o of anemll-$tool"
        done
    done
}
test_links_lead_somewhere() {
    for d in README.md CONTRIBUTING.md CHANGELOG.md docs/ARCHITECTURE.md docs/GATE.md \
        docs/LINT.md docs/RECURRENT.md docs/COMPILED.md; do
        for l in $(grep -o '](\([^)]*\))' "$SRC/$d" | sed 's/](//; s/)//'); do
            case $l in
            http*) ;;
            *)
                [ -e "$SRC/$(dirname $d)/${l%%#*}" ] || fail "$d: $l"
                ;;
            esac
        done
    done
}
test_documents_name_files_that_exist() {
    for d in README.md CONTRIBUTING.md docs/ARCHITECTURE.md docs/GATE.md docs/LINT.md \
        docs/RECURRENT.md docs/COMPILED.md; do
        for f in $(grep -oE '`[a-z]+/[a-zA-Z0-9_./]+[a-z]`' "$SRC/$d" | tr -d '`'); do
            case $f in build/* | results/*) continue ;; esac
            [ -e "$SRC/$f" ] || fail "$d names '$f', which is not there"
        done
    done
}
lists_checks() { # PACKAGE CHECKPOINT PROFILE: more than 5 of them
    run anemll-check "$1" --hf "$2" --profile "$3" --json
    expect_exit 0
    i=0
    while name=$(json_get stdout checks.$i.name 2>/dev/null); do
        grep -q "\`${name#f32_}\`" "$SRC/docs/GATE.md" ||
            fail "docs/GATE.md lacks $name"
        i=$((i + 1))
    done
    [ $i -gt 5 ] || fail "only $i checks"
}
test_gate_document_lists_every_check() {
    cp -r "$(package)" p
    lists_checks p "$(tiny)" f32
    anemll-fixtures checkpoint -q --arch qwen3_5 --like tiny -o hybrid
    anemll-convert -q --hf hybrid --ctx 64 --batch 16 --no-gate -o q >/dev/null
    lists_checks q hybrid fp16
}
