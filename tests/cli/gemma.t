# Gemma 3 and Gemma 4: what configs and tensors may say, through the tools.

bad() { # code, words... -- (the checkpoint is m)
    refused "$@" anemll-convert --hf m --ctx 128 -o out
    shift
    refused 3 "$@" anemll-check m
}
config() { # sed script
    sed "$1" m/config.json >.c
    cmp -s .c m/config.json && fail "config: '$1' changed nothing"
    mv .c m/config.json
}
test_tensors_that_nobody_reads_change_nothing() {
    for like in tiny tiny-resaved; do
        mkdir "$like"
        model "$like/m" gemma4 "$like"
        run anemll-convert --hf "$like/m" --ctx 128 --lut 4 --no-gate \
            -o "$like/out"
        expect_exit 0
        cp stderr "$like/err"
    done
    expect_same tiny/out tiny-resaved/out
    grep -q "15 .*keys and values of layers that share them" tiny/err ||
        fail "skipped tensors are not told"
    grep -q "share them" tiny-resaved/err && fail "told without reason"
    :
}
test_inspect_tells_which_layer_gets_what() {
    run anemll-inspect "$(tiny gemma4)"
    expect_exit 0
    expect_out "layer_types 0-3 sliding_attention" "kv_source 5-8 layer 3" \
        "kv_source 9 layer 4" "rope_pairs_that_turn 8" \
        "sliding_rope_type default" "embedding_scale 8"
    run anemll-inspect "$(tiny gemma4)" --json
    expect_exit 0
    [ "$(json stdout hparams.sliding_window)" = 32 ] || fail window
    [ "$(json stdout hparams.kv_source.9)" = 4 ] || fail kv_source
    [ "$(json stdout hparams.layer_types.4)" = full_attention ] || fail layers
}
test_window_of_nothing() {
    for arch in gemma3 gemma4; do
        model m "$arch"
        config 's/"sliding_window": 32/"sliding_window": 0/'
        bad 3 "'sliding_window' is 0, allowed are 1 to" --
        rm -r m
    done
}
test_window_beyond_what_a_package_can_state() {
    for arch in gemma3 gemma4; do
        model m "$arch"
        config 's/"sliding_window": 32/"sliding_window": 16777217/'
        bad 3 "'sliding_window' is 16777217, allowed are 1 to 16777216" --
        config 's/"sliding_window": 16777217/"sliding_window": 16777216/'
        run anemll-convert --hf m --ctx 64 --lut 4 --no-gate -o out
        expect_exit 0
        rm -r m out
    done
}
test_soft_cap_beyond_fp16() {
    model m gemma4
    config 's/"final_logit_softcapping": 30[.0]*/"final_logit_softcapping": 65520/'
    bad 3 "'final_logit_softcapping' is 65520, allowed are 0.001 to 65504" --
    config 's/"final_logit_softcapping": 65520/"final_logit_softcapping": 65504/'
    run anemll-convert --hf m --ctx 64 --lut none --require-gate -o out
    expect_exit 0
}
test_bidirectional_attention() {
    model m gemma4
    config 's/"use_bidirectional_attention": null/"use_bidirectional_attention": "all"/'
    bad 3 "'use_bidirectional_attention' is 'all'" "causal" --
}
test_heads_that_do_not_divide() {
    model m gemma4 odd
    config 's/"num_key_value_heads": 3,/"num_key_value_heads": 4,/'
    bad 3 "num_attention_heads 6 is not a multiple of the 4" "sliding" --
    rm -r m
    model m gemma4 odd
    config 's/"num_key_value_heads": 2$/"num_key_value_heads": 4/'
    bad 3 "num_attention_heads 6 is not a multiple of the 4" "full" --
}
test_layers_without_a_source() {
    model m gemma4
    config 's/"num_kv_shared_layers": 5/"num_kv_shared_layers": 7/'
    bad 3 "num_kv_shared_layers is 7: layer 4 is full_attention" --
    config 's/"num_kv_shared_layers": 7/"num_kv_shared_layers": 10/'
    bad 3 "num_kv_shared_layers is 10 of 10 layers" --
}
test_last_layer_is_forced_to_full() {
    model m gemma4 odd
    config '/"layer_types"/,/\]/{/full_attention/{x;s/^/x/;/^xx$/{x;s/full/sliding/;b};x}}'
    run anemll-check m
    expect_exit 0
    grep -q "warning: the last layer, 5, is sliding_attention" stderr stdout ||
        fail "no warning"
}
test_per_layer_embeddings_that_lack() {
    model m gemma4
    st_edit m/model.safetensors 's/embed_tokens_per_layer/embed_tokens_per_lager/'
    bad 3 "missing embed_tokens_per_layer.weight [512, 160]" \
        "unknown embed_tokens_per_lager.weight" \
        "hidden_size_per_layer_input" --
    rm -r m
    model m gemma4
    st_edit m/model.safetensors 's/layers.7.per_layer_proj/layers.7.per_lager_proj/'
    bad 3 "layer 7: missing per_layer_projection.weight [64, 16]" --
}
test_experts_that_the_config_does_not_announce() {
    model m gemma4 moe-odd
    config 's/"enable_moe_block": true/"enable_moe_block": false/'
    bad 3 "unknown experts.down_proj" "does not announce 'enable_moe_block'" --
}
test_other_kinds_of_gemma() {
    for t in gemma4_assistant gemma3n_text gemma2; do
        model m gemma4 odd
        config "s/\"model_type\": \"gemma4_text\"/\"model_type\": \"$t\"/"
        bad 3 "model_type '$t' is not supported" "gemma4" --
        rm -r m
    done
}
# 12 slots, keys and values, window + 2 batches: 7,864,320 bytes.
test_plan_of_the_published_shape() {
    c=$FIXTURES/../configs/gemma-4-E2B-it
    [ -d "$c" ] || skip "no published configs"
    run anemll-convert "$c" --plan --ctx 8192
    expect_exit 0
    expect_out "state model_model_kv_cache_local [12, 2, 640, 256] fp16, 8 MB" \
        "state model_model_kv_cache_global [3, 2, 8192, 512] fp16, 50 MB"
}
test_plan_of_tables_inside_the_model() {
    mkdir c
    cp "$(tiny gemma4)/config.json" c
    for lut in 2,tensor 1,tensor; do
        run anemll-convert c --plan --json --lut $lut
        expect_exit 0
        planned=$(json stdout parts.1.model_bytes)
        run anemll-convert "$(tiny gemma4)" --lut $lut --emit mlpackage \
            --no-gate -o "out$lut"
        expect_exit 0
        written=$(wc -c <"$(find "out$lut" -path '*FFN*' -name '*.mlmodel')")
        [ "$planned" = "$written" ] || fail "$lut: $planned, not $written"
    done
    run anemll-convert c --plan --quant int8
    expect_exit 0
}
