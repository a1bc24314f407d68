# anemll-check: packages against checkpoints, checkpoints alone.

test_package_passes_against_its_checkpoint() {
    cp -r "$(package)" p
    run anemll-check p --hf "$(tiny)"
    expect_exit 0
    expect_out "PASS (fp16, "
    [ "$(json p/gate.json verdict)" = PASS ] || fail "gate.json"
}
# Right figures do not make up for a package that does not load.
test_a_package_with_lint_errors_does_not_pass() {
    cp -r "$(package)" p
    sed -i '/prefill_dynamic_slice/d' p/meta.yaml # a warning: not shown
    run anemll-check p --hf "$(tiny)"
    expect_exit 0
    expect_out "PASS (fp16, " "lint of p: 0 errors, "
    ! grep -q meta_prefill_flags stdout || fail "a warning is shown"
    sed -i 's/    num_layers:.*/&\n    split_rotate: true/' p/meta.yaml
    run anemll-check p --hf "$(tiny)"
    expect_exit 1
    expect_out "PASS (fp16, " "error meta_split_rotate: " \
        "  meta.yaml: split_rotate: true" "lint of p: 1 error, "
    [ "$(json p/gate.json verdict)" = PASS ] || fail "gate.json"
    run anemll-check p --hf "$(tiny)" --json
    expect_exit 1
    [ "$(json stdout verdict)" = PASS ] || fail "verdict"
    [ "$(json stdout lint.errors)" = 1 ] || fail "lint.errors"
    [ "$(json stdout lint.findings.0.rule)" = meta_split_rotate ] || fail "rule"
}
test_json_is_gate_json_and_the_lint() {
    cp -r "$(package)" p
    run anemll-check p --hf "$(tiny)" --json
    expect_exit 0
    [ "$(json stdout lint.errors)" = 0 ] || fail "lint.errors"
    sed '/^  "lint": {/,/^  }/d; s/^  ],$/  ]/' stdout >figures
    sed 's/^  ],$/  ]/' p/gate.json >kept
    expect_same figures kept
    for k in verdict profile prompts positions cosine_min cosine_mean psnr_min \
        kl_mean kl_max top1_agreement top1_agreement_decided max_abs_diff \
        perplexity.oracle perplexity.package prefill_infer_max_diff \
        checks.0.name checks.0.value checks.0.limit checks.0.pass \
        bytes.cosine_min loss.cosine_min; do
        json stdout $k >/dev/null || fail "no $k"
    done
}
test_profile_f32_meets_the_bars_of_bytes() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut none --no-gate -o p
    run anemll-check p --hf "$(tiny)" --profile f32 --json
    expect_exit 0
    awk -v c="$(json stdout cosine_min)" -v p="$(json stdout psnr_min)" \
        'BEGIN { exit !(c >= 0.99999 && p > 70) }' || fail "bars of f32"
}
limit_of() { # CHECK, in stdout
    i=0
    while name=$(json stdout checks.$i.name); do
        [ "$name" != "$1" ] || json stdout checks.$i.limit
        i=$((i + 1))
    done 2>/dev/null
}
test_profile_ane_has_the_bars_of_fp16() {
    cp -r "$(package)" p
    run anemll-check p --hf "$(tiny)" --profile ane --json
    expect_exit 0
    [ "$(json stdout profile)" = ane ] || fail "profile"
    [ "$(limit_of cosine_min)" = 0.999 ] || fail "limit of cosine_min"
}
test_the_gate_without_a_checkpoint_is_unverified() {
    run anemll-check "$(package)" --profile fp16
    expect_exit 0
    expect_out "UNVERIFIED"
    expect_absent "$(package)/gate.json"
}
test_wrong_weights_fail() {
    run anemll-fixtures checkpoint --seed 2 -q -o other
    cp -r "$(package)" p
    run anemll-check p --hf other
    expect_exit 1
    expect_out "FAIL"
    [ "$(json p/gate.json verdict)" = FAIL ] || fail "gate.json"
}
test_flipped_bits_in_the_weights_fail() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut none --no-gate -o p
    expect_exit 0
    w=$(echo p/*FFN*/Data/com.apple.CoreML/weights/weight.bin)
    size=$(wc -c <"$w")
    # A stretch of one matrix, zeroed.
    dd if=/dev/zero of="$w" bs=1 seek=$((size / 2)) count=20000 conv=notrunc 2>/dev/null
    run anemll-check p --hf "$(tiny)"
    [ "$status" -eq 1 ] || [ "$status" -eq 3 ] || fail "not noticed"
}
test_swapped_chunks_fail() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --chunks 3 --no-gate -o p
    expect_exit 0
    a=$(echo p/*_chunk_01of03.mlpackage)
    b=$(echo p/*_chunk_02of03.mlpackage)
    mv "$a" p/t && mv "$b" "$a" && mv p/t "$b"
    run anemll-check p --hf "$(tiny)"
    expect_exit 1
    expect_out "FAIL"
}
# A byte of weights or an operation, in one form of a part.
test_forms_that_differ_fail() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 4 -o p
    expect_exit 0
    cp -r p q # the weights become two files
    run anemll-check q --hf "$(tiny)"
    expect_exit 0
    expect_out "PASS" "both forms, .mlmodelc and .mlpackage, are one model"
    w=$(echo q/*FFN*.mlmodelc/weights/weight.bin)
    printf '\377\376' | dd of="$w" bs=1 seek=5000 conv=notrunc 2>/dev/null
    run anemll-check q --hf "$(tiny)" --json
    expect_exit 1
    [ "$(json stdout verdict)" = FAIL ] || fail "verdict"
    [ "$(json stdout checks.0.name)" = forms_differ ] || fail "checks"
    json stdout reason | grep -q "weights/weight.bin' differ at byte 500[01]" ||
        fail "reason"
    [ "$(json q/gate.json verdict)" = FAIL ] || fail "gate.json still says PASS"
    cp -r p r
    sed -i 's/ = add(/ = mul(/' r/*FFN*.mlmodelc/model.mil
    run anemll-check r --hf "$(tiny)"
    expect_exit 1
    expect_out "FAIL" "their programs differ: "
    # Other forms of it: the same fault in the source.
    cp -r p s
    LC_ALL=C sed -i 's/tanh/sqrt/' \
        s/*FFN*.mlpackage/Data/com.apple.CoreML/model.mlmodel
    run anemll-check s --hf "$(tiny)"
    expect_exit 1
    expect_out "FAIL" "their programs differ: "
}
test_tokens_as_text() {
    cp -r "$(package)" p
    printf '1 2 3 4 5 6 7 8\n10 20 30\n' >prompts.txt
    run anemll-check p --hf "$(tiny)" --tokens prompts.txt --json
    expect_exit 0
    [ "$(json stdout prompts)" -ge 2 ] || fail "prompts"
}
test_tokens_that_are_none() {
    cp -r "$(package)" p
    for text in '1 2 x' '1 -2' '512' '1.5' ''; do
        printf '%s\n' "$text" >prompts.txt
        refused 3 "prompts.txt" -- \
            anemll-check p --hf "$(tiny)" --tokens prompts.txt
    done
    refused 3 "gone.txt" -- anemll-check p --hf "$(tiny)" --tokens gone.txt
}
test_logits_file() {
    cp -r "$(package)" p
    printf '1 2 3 4 5 6 7 8\n' >t
    run anemll-check p --hf "$(tiny)" --tokens t --logits l.safetensors
    expect_exit 0
    st_header l.safetensors | grep -qF '"oracle.0"' || fail "no oracle.0"
    st_header l.safetensors | grep -qF '"package.0"' || fail "no package.0"
    st_header l.safetensors | grep -qF '[8,512]' || fail "shape"
    run anemll-inspect l.safetensors
    :
}
test_oracle_of_a_checkpoint() {
    printf '1 2 3 4 5 6 7 8\n' >t
    run anemll-check "$(tiny)" --tokens t --logits l.safetensors
    expect_exit 0
    st_header l.safetensors | grep -qF '"oracle.0"' || fail "no oracle.0"
    refused 2 "--tokens" "--logits" -- anemll-check "$(tiny)" --tokens t
}
test_oracle_agrees_with_the_package_run() {
    printf '1 2 3 4 5 6 7 8\n' >t
    cp -r "$(package)" p
    run anemll-check p --hf "$(tiny)" --tokens t --logits a.safetensors
    run anemll-check "$(tiny)" --tokens t --logits b.safetensors
    n=$((8 * 512 * 4))
    tail -c +$(st_begin a.safetensors oracle.0) a.safetensors | tail -c +2 | head -c $n >a
    tail -c +$(st_begin b.safetensors oracle.0) b.safetensors | tail -c +2 | head -c $n >b
    expect_same a b
}
test_sound_checkpoint() {
    run anemll-check "$(tiny)" --json
    expect_exit 0
    [ "$(json stdout kind)" = checkpoint ] || fail "kind"
    [ "$(json stdout architecture)" = qwen3 ] || fail "architecture"
}
test_options_that_do_not_fit() {
    refused 2 "--hf" -- anemll-check "$(tiny)" --hf "$(tiny)"
    refused 2 "--logits" -- anemll-check "$(package)" --logits l
    refused 2 "--profile 'x'" -- anemll-check "$(package)" --profile x
}
