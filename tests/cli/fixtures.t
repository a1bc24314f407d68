# anemll-fixtures.

test_makes_a_whole_checkpoint() {
    run anemll-fixtures checkpoint --arch qwen3 --like tiny --seed 1 -o m
    expect_exit 0
    expect_only m
    expect_file m/config.json m/model.safetensors m/tokenizer.json \
        m/tokenizer_config.json m/generation_config.json
    json m/config.json >/dev/null
}
test_same_seed_same_bytes() {
    for d in a b; do
        run anemll-fixtures checkpoint --arch llama --seed 7 -o $d
        expect_exit 0
    done
    expect_same a b
    run anemll-fixtures checkpoint --arch llama --seed 8 -o c
    cmp -s a/model.safetensors c/model.safetensors && fail "seed is ignored"
    :
}
test_every_small_shape_is_a_sound_checkpoint() {
    for m in qwen3:tiny qwen3:odd llama:tiny qwen3_5:tiny qwen3_5:odd \
        qwen3_5_moe:tiny qwen3_5_moe:odd gemma3:tiny gemma4:tiny \
        gemma4:tiny-resaved gemma4:odd gemma4:moe-odd; do
        run anemll-check "$(tiny ${m%:*} ${m#*:})"
        expect_exit 0
        arch=${m%:*}
        expect_out "a sound ${arch%_moe} checkpoint"
    done
}
test_other_depth_and_breadth() {
    run anemll-fixtures checkpoint --arch qwen3_5_moe --layers 5 --experts 6 -o m
    expect_exit 0
    [ "$(json m/config.json text_config.num_hidden_layers)" = 5 ] || fail layers
    [ "$(json m/config.json text_config.num_experts)" = 6 ] || fail experts
    run anemll-check m
    expect_exit 0
    refused 2 "qwen3 has no experts" -- \
        anemll-fixtures checkpoint --experts 6 -o x
    refused 2 "3 layers: between 4 and 256" "qwen3_5" -- \
        anemll-fixtures checkpoint --arch qwen3_5 --layers 3 -o x
}
test_unknown_architecture_lists_the_known() {
    refused 2 "mamba" "qwen3" "llama" -- \
        anemll-fixtures checkpoint --arch mamba -o m
}
test_unknown_model_lists_the_known() {
    refused 2 "huge" "tiny" "qwen3-0.6b" -- \
        anemll-fixtures checkpoint --like huge -o m
}
test_existing_directory_is_kept() {
    mkdir m
    refused 2 "'m' exists" -- anemll-fixtures checkpoint -o m
}
test_unknown_kind() {
    refused 2 "'kernel' is not a kind of fixture" -- anemll-fixtures kernel -o m
}
test_no_directory() {
    refused 2 "-o DIR" -- anemll-fixtures checkpoint
}
test_parent_that_cannot_be_made() {
    : >file
    refused 3 "'file' is not a directory" -- anemll-fixtures checkpoint -o file/m
}
