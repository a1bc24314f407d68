# anemll-convert: how weights are palettized.

tokens() { # FILE: ids below 300
    awk 'BEGIN { for (r = 0; r < 4; r++) for (c = 0; c < 40; c++)
        printf "%d%s", (r * 91 + c * c * 7 + c) % 300, c < 39 ? " " : "\n" }' \
        >"$1"
}

test_calibrated_package_passes() {
    tokens t
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 4 --calib t -o out
    expect_exit 0
    expect_out "PASS (fp16, "
}
test_calibration_of_every_family() {
    tokens t
    for m in llama qwen3_5 qwen3_5_moe; do
        run anemll-convert --hf "$(tiny $m)" --ctx 128 --lut 3 --calib t \
            --no-gate -o out
        expect_exit 0
        rm -r out
    done
}
test_error_feedback() {
    tokens t
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 3 --calib t \
        --method gptq -o out
    expect_exit 0
    expect_out "PASS (fp16, "
    refused 2 "--method gptq" "--calib" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --method gptq -o out2
    refused 2 "--method 'awq'" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --method awq -o out2
}
test_linear_weights() {
    for q in int8 int4,32 int8,64; do
        run anemll-convert --hf "$(tiny)" --ctx 128 --quant $q -o out
        expect_exit 0
        expect_out "PASS (fp16, "
        expect_err "Neural Engine computes wrong results"
        rm -r out
    done
    refused 2 "--quant" "--lut" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --quant int8 --lut 4 -o out
    refused 2 "--quant: 'int5'" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --quant int5 -o out
}
test_linear_weights_are_shown() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --quant int4,32 --no-gate -o out
    run anemll-inspect out/qwen_lm_head.mlpackage
    expect_exit 0
    expect_out "  int4, "
    run anemll-inspect out/qwen_lm_head.mlpackage --json
    [ "$(json stdout functions.0.weights.0.bits)" = 4 ] || fail "bits"
    json stdout functions.0.weights.0.scales >/dev/null
}
test_budget() {
    tokens t
    run anemll-convert --hf "$(tiny)" --ctx 128 --budget 6.5bpw --calib t \
        -o out
    expect_exit 0
    expect_out "PASS (fp16, "
    expect_err "budget of 6.5 bits: 6."
    grep -q 'lut_ffn_mixed: [0-9]\.[0-9][0-9]$' out/meta.yaml ||
        fail "no lut_ffn_mixed"
    for b in 0 x -1 4.5b 17 ''; do
        refused 2 "--budget '$b'" -- \
            anemll-convert --hf "$(tiny)" --ctx 128 "--budget=$b" -o out2
    done
    refused 2 "--budget 4" "tables included" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --budget 4 -o out2
    refused 2 "--widths" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --widths 4,6 -o out2
    refused 2 "--widths: '5'" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --budget 5 --widths 4,5 -o out2
    refused 2 "--budget" "--plan" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --budget 5 --plan
}
test_calibration_needs_sound_tokens() {
    echo "1 2 999999" >t
    refused 3 "--calib" "999999" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --calib t -o out
    refused 3 "--calib" "nowhere" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --calib nowhere -o out
}
test_importance_of_the_weights_themselves() {
    # Squared gradients are not at hand; any file of the same shapes serves,
    # and this one has negative values.
    refused 3 "--importance" "not negative" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 \
        --importance "$(tiny)/model.safetensors" -o out
}
test_importance_and_calibration_contradict() {
    tokens t
    refused 2 "--importance" "--calib" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --calib t \
        --importance "$(tiny)/model.safetensors" -o out
}
