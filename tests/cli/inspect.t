# anemll-inspect: checkpoints, packages, programs.

test_checkpoint() {
    run anemll-inspect "$(tiny)"
    expect_exit 0
    expect_out "qwen3" "hidden_size 128" "layers.0.self_attn.q_proj.weight"
    run anemll-inspect "$(tiny)" --json
    expect_exit 0
    json stdout >/dev/null
}
test_config_alone() {
    mkdir m
    cp "$(tiny llama)/config.json" m/
    run anemll-inspect m
    expect_exit 0
    expect_out "llama"
}
test_package() {
    run anemll-inspect "$(package)"
    expect_exit 0
    expect_out "ANEMLL package" "function infer" "function prefill" "state "
    run anemll-inspect "$(package)" --json
    expect_exit 0
    json stdout >/dev/null
}
test_one_program() {
    p=$(echo "$(package)"/*FFN*.mlpackage)
    run anemll-inspect "$p"
    expect_exit 0
    expect_out "function infer" "constexpr_lut_to_dense"
    run anemll-inspect "$p/" --json
    expect_exit 0
    json stdout >/dev/null
}
test_mil_text() {
    p=$(echo "$(package)"/*FFN*.mlpackage)
    run anemll-inspect "$p" --mil
    expect_exit 0
    expect_out "program(" "func infer" "func prefill" "slice_update"
    run anemll-inspect "$p" --mil --function infer
    expect_exit 0
    expect_out "func infer"
    grep -q "func prefill" stdout && fail "prefill should not be there"
    :
}
test_function_that_is_not_there() {
    p=$(echo "$(package)"/*FFN*.mlpackage)
    refused 2 "decode" -- anemll-inspect "$p" --mil --function decode
}
test_options_that_do_not_fit() {
    refused 2 "--mil" -- anemll-inspect "$(tiny)" --mil
    refused 2 "--function" -- anemll-inspect "$(tiny)" --function infer
}
test_nothing_there() {
    refused 3 "'gone'" -- anemll-inspect gone
    refused 3 "gone.mlpackage" -- anemll-inspect gone.mlpackage
}
test_broken_program() {
    cp -r "$(package)" p
    for f in p/*FFN*.mlpackage; do
        for part in Manifest.json Data/com.apple.CoreML/model.mlmodel \
            Data/com.apple.CoreML/weights/weight.bin; do
            mv "$f/$part" keep
            head -c 50 keep >"$f/$part"
            refused 3 "${f##*/}" -- anemll-inspect "$f" --mil
            mv keep "$f/$part"
        done
    done
}
