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
test_error_feedback_for_integers() {
    tokens t
    printf 'rules: [{layers: 1, quant: int8}]\n' >r.yaml
    for q in '--quant int4,32' '--recipe r.yaml'; do
        run anemll-convert --hf "$(tiny)" --ctx 128 $q --calib t \
            --method gptq -o out
        expect_exit 0
        expect_out "PASS (fp16, "
        mv out with
        run anemll-convert --hf "$(tiny)" --ctx 128 $q --calib t -o out
        expect_exit 0
        p=layers_1_self_attn_q_proj_weight
        for d in with out; do
            grep -A20 "\"$p\"" $d/report.json | grep -m 2 -e method -e sse \
                >$d.row
        done
        grep -q '"method": "gptq"' with.row || fail "method"
        cmp -s with.row out.row && fail "nothing is fed back ($q)"
        rm -r out with
    done
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
    expect_err "tensors' divergences add up to"
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

# ---- the cache ----

cached() { # DIR OUTPUT OPTIONS...
    c=$1 o=$2
    shift 2
    run anemll-convert --hf "$(tiny)" --lut 4 --no-gate -v --cache "$c" \
        -o "$o" "$@"
    expect_exit 0
}
test_cache_serves_other_contexts_and_heads() {
    cached deep/c a --ctx 128
    expect_err "cache 'deep/c': 0 matrices found (0 B), 37 added, 0 refused"
    cached deep/c b --ctx 128 --threads 1
    expect_err "37 matrices found" "0 added, 0 refused"
    expect_same a b
    cached deep/c d --ctx 256 --lut-lmhead 6
    expect_err "21 matrices found" "16 added, 0 refused"
    run anemll-convert --hf "$(tiny)" --lut 4 --lut-lmhead 6 --ctx 256 \
        --no-gate -o plain
    expect_same d plain
    # no path of this machine, no time
    ! grep -rlF -e "$(pwd)" -e "$ROOT" deep || fail "a path in the cache"
}
test_cache_is_never_trusted() {
    cached c a --ctx 128
    set -- c/*.matrix
    printf x | dd of="$1" bs=1 seek=200 conv=notrunc 2>/dev/null
    head -c 100 "$2" >cut
    mv cut "$2"
    printf '\002' | dd of="$3" bs=1 seek=8 conv=notrunc 2>/dev/null
    : >"$4"
    cached c b --ctx 128
    for f; do [ "$f" = "$5" ] && break; expect_err "'$f'"; done
    expect_err "left out of the cache and made anew: 'c/"
    expect_err "checksum differs" "has 100 bytes" "has version 2.3" "is empty" \
        "33 matrices found" "4 added, 4 refused"
    expect_same a b
    cached c d --ctx 128
    expect_err "37 matrices found" "0 refused"
}
test_cache_in_the_wrong_place() {
    model m
    say=anemll-convert
    set -- "$say" --hf m --ctx 128 --no-gate -o out
    refused 2 "--cache 'm'" "model folder" -- "$@" --cache m
    refused 2 "--cache 'm/c'" "model folder" -- "$@" --cache m/c
    refused 2 "--cache 'out'" "inside the output" -- "$@" --cache out
    refused 2 "--cache './out//c'" "inside the output" -- "$@" --cache ./out//c
    refused 2 "'..' of a folder" -- "$@" --cache new/../out
    : >file
    refused 2 "--cache 'file'" "not a directory" -- "$@" --cache file
    refused 2 "--cache 'file/c'" -- "$@" --cache file/c
    ln -s m link
    refused 2 "--cache 'link/c'" "model folder" -- "$@" --cache link/c
    [ ! -d /proc/self ] || refused 2 "--cache '/proc/self/c'" -- "$@" \
        --cache /proc/self/c
    ln -s nowhere gone
    ln -s loop loop
    for c in gone gone/c; do
        refused 2 "--cache '$c'" "'gone' is a link to 'nowhere', which does" \
            -- "$@" --cache $c
    done
    refused 2 "--cache 'loop/c'" "'loop' is a link that leads to itself" -- \
        "$@" --cache loop/c
    if [ "$(id -u)" != 0 ]; then
        mkdir closed
        chmod a-w closed
        refused 2 "--cache 'closed'" -- "$@" --cache closed
    fi
    # a refusal for another reason leaves no empty folder either
    rm m/tokenizer.json
    refused 3 "tokenizer" -- "$@" --cache c
}
test_cache_on_a_full_disk() {
    mkdir c
    mount -t tmpfs -o size=64k tmpfs c 2>/dev/null ||
        skip "no permission to mount a small disk"
    trap 'umount c' EXIT
    cached c a --ctx 128
    expect_err "nothing more is added to the cache" "0 matrices found"
    ! ls c/*.part 2>/dev/null || fail "a part is left"
    run anemll-convert --hf "$(tiny)" --lut 4 --no-gate --ctx 128 -o b
    expect_same a b
    cached c d --ctx 128
    expect_same a d
}
