# Checkpoints with known answers and published configs, where they are at hand
# (FIXTURES, and configs/ beside it).

fixture() {
    [ -d "$FIXTURES/$1" ] || skip "no fixture $1 (ANEMLL_FIXTURES)"
    printf '%s\n' "$FIXTURES/$1"
}
passes() { # fixture, options...
    m=$(fixture "$1")
    shift
    run anemll-convert --hf "$m" -o out "$@"
    expect_exit 0
    expect_out "PASS (fp16, "
    run anemll-check out --hf "$m" --tokens "$m/expect.safetensors" \
        --logits l.safetensors --json
    expect_exit 0
    [ "$(json stdout verdict)" = PASS ] || fail "verdict with the fixture's prompts"
    expect_file l.safetensors
}
# With what the Neural Engine is known to do worse.
passes_ane() {
    run anemll-check out --hf "$(fixture "$1")" --profile ane --json
    expect_exit 0
    [ "$(json stdout verdict)" = PASS ] || fail "verdict of profile ane"
}
test_qwen3_tiny_6_bits() {
    passes qwen3-tiny --ctx 512 --lut 6
    passes_ane qwen3-tiny
}
test_qwen3_tiny_uncompressed_f32() {
    passes qwen3-tiny --ctx 256 --lut none
    run anemll-check out --hf "$(fixture qwen3-tiny)" --profile f32 --json
    expect_exit 0
    awk -v c="$(json stdout cosine_min)" -v p="$(json stdout psnr_min)" \
        'BEGIN { exit !(c >= 0.99999 && p > 70) }' || fail "bars of f32"
}
test_qwen3_odd_uncompressed() {
    passes qwen3-odd --ctx 256 --lut none
}
test_llama_odd_4_bits_in_two_chunks() {
    passes llama-odd --ctx 256 --lut 4,8 --chunks 2
}
# Hybrid layers: three states, recurrent; float32 A_log and norms are rounded.
test_qwen3_5_tiny_6_bits() {
    passes qwen3_5-tiny --ctx 512 --lut 6
    grep -q '^    recurrent_state: true$' out/meta.yaml || fail "meta.yaml"
    passes_ane qwen3_5-tiny
}
test_qwen3_5_in_three_chunks_f32() {
    passes qwen3_5-tiny --ctx 256 --batch 32 --lut none --chunks 3
    run anemll-check out --hf "$(fixture qwen3_5-tiny)" --profile f32 --json
    expect_exit 0
    awk -v c="$(json stdout cosine_min)" 'BEGIN { exit !(c >= 0.99999) }' ||
        fail "bar of f32"
}
test_qwen3_5_moe_6_bits() {
    passes qwen3_5_moe-tiny --ctx 256 --lut 6
    passes_ane qwen3_5_moe-tiny
}
test_qwen3_5_odd_f32() {
    m=$(fixture qwen3_5-odd)
    run anemll-convert --hf "$m" --ctx 256 --lut none --profile f32 -o out
    expect_exit 0
    expect_out "PASS (f32, "
}
# Random weights that make much of rounding: its own noise says how much.
test_qwen3_5_odd_by_the_noise_of_the_model() {
    passes qwen3_5-odd --ctx 256 --lut none
    grep -q '"f32_cosine_min"' out/gate.json || fail "no run in f32"
    awk -v c="$(json stdout bytes.cosine_min)" \
        -v n="$(json stdout noise.cosine_min)" \
        'BEGIN { exit !(c < 0.999 && c >= n) }' || fail "noise of the model"
}
test_other_families_are_refused_by_name() {
    for f in mistral-odd:mistral qwen2-odd:qwen2; do
        m=$(fixture "${f%:*}")
        refused 3 "'${f#*:}' is not supported" "llama, qwen3" -- \
            anemll-convert --hf "$m" -o out
    done
}
test_a_package_that_is_not_ours() {
    p=$(fixture ../goldens/packages/qwen3-tiny-coremltools)
    cp -r "$p" p
    chmod -R u+w p
    run anemll-inspect p
    expect_exit 0
    m=$(fixture qwen3-tiny)
    run anemll-check p --hf "$m" --json
    expect_exit 1 # right logits, but keys that ANEMLL's runtimes ask for lack
    [ "$(json stdout verdict)" = PASS ] || fail "verdict"
    [ "$(json stdout lint.errors)" = 5 ] || fail "lint"
}
# What evaluating all experts costs, from the config alone.
test_plan_of_a_large_mixture_of_experts() {
    c=$FIXTURES/../configs/Qwen3.5-35B-A3B
    [ -d "$c" ] || skip "no published configs"
    run anemll-convert "$c" --plan
    expect_exit 0
    expect_out "all 256 experts (24.3 GB) are evaluated for each token, which reads 25.8 GB of weights; the 8 that routing chooses would need 2.2 GB, 11.4 times less" \
        "experts above 8 GB: the conversion will ask for --force"
    run anemll-convert "$FIXTURES/../configs/Qwen3.5-27B" --plan
    expect_exit 0
    grep -q experts stdout && fail "a dense model has no experts"
    :
}
# Qwen3.5, 3.6, 3.8: sizes that are read, quantized ones that are not.
test_published_hybrids() {
    configs=$FIXTURES/../configs
    [ -d "$configs" ] || skip "no published configs"
    for m in Qwen3.5-0.8B-reformatted:752393024 Qwen3.5-4B:4205751296 \
        Qwen3.5-4B-TextOnly-HF:4205751296 Qwen3.5-27B:26895998464 \
        Qwen3.8-27B:26895998464 Qwen3.5-25B-REAP-A3B-Coding:25091371648 \
        Qwen3.5-35B-A3B:34660610688 Qwen3.6-35B-A3B:34660610688 \
        Qwen3.5-397B-A17B:396346350336; do
        run anemll-convert "$configs/${m%:*}" --plan
        expect_exit 0
        expect_out ": qwen3_5, ${m#*:} parameters"
    done
    for m in "Qwen3.5-35B-A3B-GPTQ-Int4:GPTQ-quantized (4 bits, groups of 128)" \
        "Qwen3.5-9B-MLX-8bit:MLX-quantized (8 bits, groups of 64)" \
        "Qwen3.6-27B-FP8:FP8-quantized (e4m3)" \
        "Qwen3.6-27B-NVFP4:quantized with modelopt" \
        "Qwen3.5-122B-A10B-NVFP4:quantized with modelopt (NVFP4)"; do
        refused 3 "${m%%:*}' is ${m#*:}" "take the model that it was made from" \
            -- anemll-convert "$configs/${m%%:*}" --plan
    done
}
test_published_configs_parse_or_are_refused_in_a_line() {
    configs=$FIXTURES/../configs
    [ -d "$configs" ] || skip "no published configs"
    read=0 refused=0
    for d in "$configs"/*/; do
        d=${d%/}
        run anemll-inspect "$d" --quiet
        case $status in
        0)
            read=$((read + 1))
            expect_out "hidden_size"
            run anemll-convert "$d" --plan --quiet
            expect_exit 0
            expect_out "_lm_head"
            ;;
        3)
            refused=$((refused + 1))
            expect_no_out
            [ "$(wc -l <stderr)" -eq 1 ] || fail "more than one line"
            expect_err "${d##*/}"
            run anemll-convert "$d" --plan --quiet
            expect_exit 3
            ;;
        *) fail "exit 0 or 3 was expected" ;;
        esac
    done
    say "$read read, $refused refused"
    [ "$read" -ge 19 ] && [ "$refused" -ge 24 ] || fail "$read read, $refused refused"
}
