# anemll-compile: any ML Program to its compiled form.

part() { # a package of one part, not to be changed
    echo "$(package)"/*FFN*.mlpackage
}

test_compiles() {
    run anemll-compile "$(part)" -o x.mlmodelc
    expect_exit 0
    expect_out "x.mlmodelc: 2 functions, " "of weights"
    expect_no_err
    expect_only x.mlmodelc
    expect_file x.mlmodelc/model.mil x.mlmodelc/coremldata.bin \
        x.mlmodelc/metadata.json x.mlmodelc/analytics/coremldata.bin
    expect_same "$(part)/Data/com.apple.CoreML/weights" x.mlmodelc/weights
    json x.mlmodelc/metadata.json >/dev/null
}
test_json() {
    run anemll-compile "$(part)" -o x.mlmodelc --json
    expect_exit 0
    [ "$(json stdout functions)" = 2 ] || fail "functions"
    [ "$(json stdout program_bytes)" = "$(wc -c <x.mlmodelc/model.mil)" ] ||
        fail "program_bytes"
}
test_default_output_lies_beside() {
    cp -r "$(part)" p.mlpackage
    run anemll-compile p.mlpackage/
    expect_exit 0
    expect_only p.mlpackage p.mlmodelc
}
test_a_bare_model() {
    cp "$(part)/Data/com.apple.CoreML/model.mlmodel" bare.mlmodel
    cp -r "$(part)/Data/com.apple.CoreML/weights" weights
    run anemll-compile bare.mlmodel -o x.mlmodelc
    expect_exit 0
    run anemll-compile "$(part)" -o y.mlmodelc
    expect_exit 0
    expect_same x.mlmodelc/model.mil y.mlmodelc/model.mil
    expect_same x.mlmodelc/coremldata.bin y.mlmodelc/coremldata.bin
}
test_two_runs_write_the_same_bytes() {
    run anemll-compile "$(part)" -o x.mlmodelc
    run anemll-compile "$(part)" -o y.mlmodelc --threads 1
    expect_exit 0
    expect_same x.mlmodelc y.mlmodelc
}
test_nothing_given() {
    refused 2 "no model given" -- anemll-compile
    refused 2 "end in .mlmodelc" -- anemll-compile "$(part)" -o x
    refused 3 "gone.mlpackage" -- anemll-compile gone.mlpackage -o x.mlmodelc
    refused 3 "Manifest.json" -- anemll-compile "$(tiny)" -o x.mlmodelc
}
test_existing_output() {
    mkdir x.mlmodelc
    echo mine >x.mlmodelc/file
    refused 2 "'x.mlmodelc' exists" "--force" -- \
        anemll-compile "$(part)" -o x.mlmodelc
    refused 2 "is no compiled model" -- \
        anemll-compile "$(part)" -o x.mlmodelc --force
    [ "$(cat x.mlmodelc/file)" = mine ] || fail "touched"
}
test_force_replaces_ours() {
    head="$(echo "$(package)"/*lm_head*.mlpackage)"
    run anemll-compile "$(part)" -o x.mlmodelc
    run anemll-compile "$head" -o x.mlmodelc --force
    expect_exit 0
    expect_only x.mlmodelc
    run anemll-compile "$head" -o y.mlmodelc
    expect_same x.mlmodelc y.mlmodelc
}
test_force_keeps_what_is_not_ours() {
    run anemll-compile "$(part)" -o x.mlmodelc
    echo mine >x.mlmodelc/notes
    refused 2 "'notes'" "--force does not remove it" -- \
        anemll-compile "$(part)" -o x.mlmodelc --force
    rm x.mlmodelc/notes
    sed -i 's/anemll-convert-version/another-version/' x.mlmodelc/model.mil
    refused 2 "was not written by this program" -- \
        anemll-compile "$(part)" -o x.mlmodelc --force
    expect_file x.mlmodelc/model.mil
}
test_output_and_source_in_each_other() {
    cp -r "$(part)" p.mlpackage
    refused 2 "lie in each other" -- \
        anemll-compile p.mlpackage -o p.mlpackage/x.mlmodelc
    refused 2 "lie in each other" -- \
        anemll-compile p.mlpackage -o p.mlpackage/a/b/x.mlmodelc
    mkdir x.mlmodelc
    mv p.mlpackage x.mlmodelc/
    refused 2 "lie in each other" -- \
        anemll-compile x.mlmodelc/p.mlpackage -o x.mlmodelc --force
}
test_compiled_source() {
    run anemll-compile "$(part)" -o x.mlmodelc
    refused 3 "compiled model already" -- anemll-compile x.mlmodelc -o y.mlmodelc
}

# ---- hostile sources ----

test_truncated_program() {
    cp -r "$(part)" p.mlpackage
    m=p.mlpackage/Data/com.apple.CoreML/model.mlmodel
    for n in 1 10 100 5000; do
        head -c $n "$(part)/Data/com.apple.CoreML/model.mlmodel" >$m
        refused 3 "p.mlpackage" -- anemll-compile p.mlpackage -o x.mlmodelc
    done
}
test_truncated_weights() {
    cp -r "$(part)" p.mlpackage
    weights=p.mlpackage/Data/com.apple.CoreML/weights/weight.bin
    for n in 10 64 1000; do
        head -c $n "$(part)/Data/com.apple.CoreML/weights/weight.bin" >$weights
        refused 3 "weight.bin" -- anemll-compile p.mlpackage -o x.mlmodelc
    done
    rm $weights
    refused 3 "weight.bin" -- anemll-compile p.mlpackage -o x.mlmodelc
}
# Messages with specificationVersion 1 and an empty model of a kind.
test_other_kinds_of_models() {
    printf '\010\001\302\037\000' >n.mlmodel # 504: none
    refused 3 "no ML Program" -- anemll-compile n.mlmodel -o x.mlmodelc
    printf '\010\001\242\037\000' >n.mlmodel # 500
    refused 3 "neural network" -- anemll-compile n.mlmodel -o x.mlmodelc
    printf '\010\001\322\014\000' >n.mlmodel # 202
    refused 3 "pipeline" -- anemll-compile n.mlmodel -o x.mlmodelc
}
test_weights_that_leave_the_package() {
    cp -r "$(part)" p.mlpackage
    m=p.mlpackage/Data/com.apple.CoreML/model.mlmodel
    LC_ALL=C sed -i 's,@model_path/weights/weight.bin,@model_path/../ghts/weight.bin,g' $m
    refused 3 "no name that the format allows" -- \
        anemll-compile p.mlpackage -o x.mlmodelc
}
test_unwritable_output() {
    run anemll-compile "$(part)" -o /dev/null/x.mlmodelc
    [ "$status" -eq 4 ] || [ "$status" -eq 3 ] || fail "exit 3 or 4"
    expect_no_out
}

# ---- what neither compiles nor runs, by either tool ----

M=Data/com.apple.CoreML/model.mlmodel

neither() { # words... -- MODEL: refused by compile and by inspect, file named
    words=$1 file=$2
    refused 3 "$words" "$file" -- anemll-compile "$file" -o x.mlmodelc
    refused 3 "$words" "$file" -- anemll-inspect "$file"
}
# A copy of the part with other bytes of the same length in its program.
spoil() { # sed script
    rm -rf p.mlpackage
    cp -r "$(part)" p.mlpackage
    LC_ALL=C sed -i "$1" p.mlpackage/$M
    cmp -s "$(part)/$M" p.mlpackage/$M && fail "'$1' changed nothing"
    :
}
test_kinds_are_named_by_both_tools() {
    while read -r field kind; do
        printf "\\010\\001$field\\000" >n.mlmodel
        neither "the model is $kind; only ML Programs are supported" n.mlmodel
    done <<'END'
\242\037 a neural network of the older kind
\232\031 a neural network of the older kind
\372\022 a neural network of the older kind
\302\014 a pipeline
\312\014 a pipeline
\322\014 a pipeline
\302\037 no ML Program
END
    : >n.mlmodel
    neither "is empty" n.mlmodel
    printf '\377\377\377' >n.mlmodel
    neither "no field starts here" n.mlmodel
}
test_truncated_programs_by_both_tools() {
    cp -r "$(part)" p.mlpackage
    size=$(wc -c <p.mlpackage/$M)
    for n in 1 10 100 5000 $((size - 1)); do
        head -c $n "$(part)/$M" >p.mlpackage/$M
        neither "cannot read" p.mlpackage
    done
}
test_weights_that_end_early_by_both_tools() {
    cp -r "$(part)" p.mlpackage
    bin=p.mlpackage/Data/com.apple.CoreML/weights/weight.bin
    size=$(wc -c <"$bin")
    for n in 10 64 1000 $((size / 2)); do
        head -c $n "$(part)/Data/com.apple.CoreML/weights/weight.bin" >$bin
        neither "weight.bin" p.mlpackage
    done
}
test_weights_outside_the_file() {
    run anemll-compile "$(part)" -o c.mlmodelc
    sed 's/offset = uint64(64)/offset = uint64(64000000)/' c.mlmodelc/model.mil >m
    cmp -s m c.mlmodelc/model.mil && fail "no such offset"
    mv m c.mlmodelc/model.mil
    refused 3 "byte 64000000" "c.mlmodelc" -- anemll-inspect c.mlmodelc
}
test_paths_that_leave_the_package_by_both_tools() {
    for name in @model_path/../ghts/weight.bin @model_path//eights/weight.bin \
        /model_path/weights/weight.bin; do
        spoil "s,@model_path/weights/weight.bin,$name,g"
        neither "the weight file '$name' is no name that the format allows" \
            p.mlpackage
    done
}
# Kept where a program is printed, refused by name where it would run.
test_an_unknown_operation() {
    spoil 's/\x04conv/\x04cvon/g'
    run anemll-compile p.mlpackage -o x.mlmodelc
    expect_exit 0
    expect_err "'cvon' is an operation that is not known here"
    grep -q ' = cvon(' x.mlmodelc/model.mil || fail "not written"
    for m in p.mlpackage x.mlmodelc; do
        run anemll-inspect $m
        expect_exit 0
        expect_out " cvon "
        run anemll-inspect $m --mil
        expect_exit 0
        expect_out " = cvon("
        cp -r "$(package)" q
        rm -r q/*FFN*
        cp -r $m "q/qwen_FFN_PF_lut4_chunk_01of01.${m##*.}"
        run anemll-check q
        expect_out "program_op_unknown" "unknown op 'cvon'"
        run anemll-check q --hf "$(tiny)"
        expect_exit 3
        expect_err "unknown op 'cvon'"
        expect_absent q/gate.json
        rm -r q
    done
}
test_a_name_that_text_cannot_spell() {
    spoil 's/hidden_states/hidden-states/g'
    refused 3 "cannot compile 'p.mlpackage'" \
        "the name 'hidden-states' is no identifier" -- \
        anemll-compile p.mlpackage -o x.mlmodelc
    refused 3 "p.mlpackage" "the name 'hidden-states' is no identifier" -- \
        anemll-inspect p.mlpackage --mil
    run anemll-inspect p.mlpackage
    expect_exit 0
    expect_out "hidden-states"
}

# ---- models of others ----

shared() {
    d=${ANEMLL_FIXTURES:-$SRC/../shared/fixtures}/../goldens
    [ -d "$d" ] || skip "no shared goldens"
    printf '%s\n' "$d"
}
test_apples_models() {
    g=$(shared)/mlmodelc
    for m in flexible-enumerated flexible-gather flexible-multifunction \
        quantized-constexpr; do
        run anemll-inspect "$g/$m/apple.mlmodelc"
        expect_exit 0
        expect_out "compiled Core ML program"
        run anemll-inspect "$g/$m/apple.mlmodelc" --json
        expect_exit 0
        [ "$(json stdout compiled)" = true ] || fail "compiled"
        run anemll-inspect "$g/$m/apple.mlmodelc" --mil
        expect_exit 0
        sed '1,/^{/d' stdout >theirs
        run anemll-compile "$g/$m/input.mlmodel" -o ours.mlmodelc --force
        expect_exit 0
        run anemll-inspect ours.mlmodelc --mil
        sed '1,/^{/d' stdout >ours
        expect_same theirs ours
    done
}
test_unknown_operations_are_kept() {
    s="$(shared)/mlmodelc/silero-vad-unified-v6.0.0/source.mlpackage"
    run anemll-compile "$s" -o x.mlmodelc
    expect_exit 0
    expect_err "'lstm' is an operation that is not known here"
    run anemll-inspect x.mlmodelc
    expect_exit 0
    expect_out " lstm 1"
    run anemll-inspect x.mlmodelc --mil
    expect_out " = lstm("
}
