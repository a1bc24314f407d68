# anemll-check without a checkpoint: the lint, and the plan of the device.

test_a_package_of_ours_has_no_error() {
    run anemll-check "$(package)"
    expect_exit 0
    expect_out ": 0 errors, "
    run anemll-check "$(package)" --json
    expect_exit 0
    [ "$(json stdout kind)" = lint ] || fail "kind"
    [ "$(json stdout errors)" = 0 ] || fail "errors"
}
# Every family, split and whole, by the lint that ends each conversion.
test_conversions_end_with_the_lint() {
    for arch in qwen3 llama qwen3_5 gemma3 gemma4; do
        run anemll-convert --hf "$(tiny $arch)" --ctx 128 --lut 6 --chunks 2 \
            --no-gate --json -o "$arch"
        expect_exit 0
        [ "$(json stdout lint.errors)" = 0 ] || fail "$arch"
        run anemll-check "$arch"
        expect_exit 0
    done
}
test_an_error_is_exit_1() {
    cp -r "$(package)" p
    sed -i 's/split_lm_head: .*/split_lm_head: 3/' p/meta.yaml
    run anemll-check p
    expect_exit 1
    expect_out "error head_parts: " "qwen_lm_head_lut4.mlpackage: 16 outputs, split_lm_head is 3" \
        "  -> write the number of logits outputs"
    run anemll-check p --json
    expect_exit 1
    [ "$(json stdout findings.0.rule)" = head_parts ] || fail "rule"
    [ "$(json stdout findings.0.severity)" = error ] || fail "severity"
    for k in topic where what advice; do
        json stdout findings.0.$k >/dev/null || fail "no $k"
    done
}
test_warnings_alone_are_exit_0() {
    cp -r "$(package)" p
    rm p/tokenizer.json
    echo x >p/stray.txt
    run anemll-check p
    expect_exit 0
    expect_out "warning tokenizer_missing: " "note file_stray: " "  stray.txt: "
}
test_wrecks_are_findings() {
    cp -r "$(package)" p
    for f in p/*.mlpackage; do : >"$f/Data/com.apple.CoreML/model.mlmodel"; done
    printf '\0\1\2' >p/meta.yaml
    echo '{' >p/config.json
    run anemll-check p
    expect_exit 1
    expect_out "error meta_unreadable: " "error program_unreadable: " \
        "error file_placeholder: " "error config_broken: "
    rm -r p/*
    : >p/meta.yaml
    run anemll-check p
    expect_exit 1
    expect_out "error part_missing: "
}
test_what_is_no_package() {
    mkdir empty
    refused 3 "empty" -- anemll-check empty
    refused 3 "gone" -- anemll-check gone
    echo x >file
    refused 3 "file" -- anemll-check file
    cp -a "$(package)/qwen_embeddings.mlmodelc" .
    refused 3 "is one model" "--plan" -- anemll-check qwen_embeddings.mlmodelc/
}
test_plan() {
    run anemll-check "$(package)" --plan
    expect_exit 0
    expect_out "qwen_FFN_PF_lut4_chunk_01of01.mlpackage" "  infer: " "  prefill: " \
        "epsilon_subnormal"
    run anemll-check "$(package)" --plan --json
    expect_exit 0
    [ "$(json stdout kind)" = plan ] || fail "kind"
    [ "$(json stdout models.0.functions.0.name)" = infer ] || fail "function"
    n=$(json stdout models.0.functions.0.ops)
    [ "$n" -gt 50 ] || fail "$n operations"
    for k in refused wrong slow edge unknown rules.0.rule rules.0.count \
        findings.0.op findings.0.type findings.0.name; do
        json stdout models.0.functions.0.$k >/dev/null || fail "no $k"
    done
}
test_plan_of_one_model() {
    run anemll-check "$(package)/qwen_embeddings.mlpackage" --plan
    expect_exit 0
    expect_out "  main: 1 operations, 1 refused" "gather_32_bits"
    refused 2 "--plan" -- anemll-check "$(package)" --plan --hf "$(tiny)"
    refused 3 "gone.mlpackage" -- anemll-check gone.mlpackage --plan
    mkdir empty
    refused 3 "empty" -- anemll-check empty --plan
}
test_document_has_every_rule() {
    run anemll-check --rules
    expect_exit 0
    grep '^|' stdout >rules
    sed -n '/^## Rules/,$p' "$SRC/docs/LINT.md" | grep '^|' >listed
    expect_same rules listed
    [ "$(grep -c '^| `' rules)" -gt 85 ] || fail "rules"
}
# Its meta.yaml is minimal, and nothing else in it is wrong.
test_a_package_that_is_not_ours() {
    p=$FIXTURES/../goldens/packages/qwen3-tiny-coremltools
    [ -d "$p" ] || skip "no golden package (ANEMLL_FIXTURES)"
    cp -r "$p" p
    chmod -R u+w p
    rm -f p/gate.json # of somebody's run in place
    run anemll-check p --json
    expect_exit 1
    i=0
    while r=$(json_get stdout findings.$i.rule 2>/dev/null); do
        case $r in
        meta_key_missing | head_parts | meta_* | part_* | tokenizer_missing | \
            config_missing) ;;
        *) fail "finding $r" ;;
        esac
        i=$((i + 1))
    done
    [ $i -gt 5 ] || fail "only $i findings"
}
# Tables of several widths, and the key that says so.
test_mixed_widths_want_their_key() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --budget 5 --no-gate -o p
    expect_exit 0
    grep -q lut_ffn_mixed p/meta.yaml || fail "no lut_ffn_mixed"
    run anemll-check p
    expect_exit 0
    ! grep -q lut_bits stdout || fail "lut_bits"
    sed -i /lut_ffn_mixed/d p/meta.yaml
    run anemll-check p
    expect_exit 0
    expect_out "warning lut_bits: " ": tables of " " bits, and meta.yaml has no lut_ffn_mixed"
}
# Every place is named, and the last line says how many and of how many rules.
test_every_place_is_named() {
    run anemll-convert --hf "$(tiny gemma3)" --ctx 128 --chunks 6 --no-gate \
        --emit mlpackage -o p
    expect_exit 0
    run anemll-check p
    expect_exit 0
    for i in 1 2 3 4 5 6; do
        expect_out "gemma3_FFN_PF_lut6_chunk_0${i}of06.mlpackage: no '" \
            "gemma3_FFN_PF_lut6_chunk_0${i}of06.mlpackage: 'model_model_kv_cache_local' and '"
    done
    expect_out "p: 0 errors, 14 warnings, 0 notes (14 findings of 2 rules)"
    run anemll-check p --json
    [ "$(json stdout rules)" = 2 ] || fail "rules"
}
