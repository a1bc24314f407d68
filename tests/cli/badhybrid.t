# Bad input of the hybrid family (Qwen3.5, dense and mixture of experts): exact
# messages, exit codes, nothing written.

# What conversion and the judge of checkpoints say of `m`, to the letter.
says() { # text behind "anemll-convert: " (lines of a list are not compared)
    refused 3 "anemll-convert: $1" -- anemll-convert --hf m --ctx 128 -o out
    refused 3 "anemll-check: $1" -- anemll-check m
}
config() { # sed script
    sed "$1" m/config.json >.c
    cmp -s .c m/config.json && fail "config: '$1' changed nothing"
    mv .c m/config.json
}
dense() {
    model m qwen3_5
}
moe() {
    model m qwen3_5_moe
}
rename() { # sed expression on tensor names
    st_edit m/model.safetensors "s/$1/$2/g"
}

# ---- tensors ----

test_missing_convolution() {
    dense
    rename layers.1.linear_attn.conv1d.weight layers.1.linear_attn.conv9d.weight
    says "'m' does not hold the tensors of a qwen3_5 model of this config: 1 missing, 1 unknown"
    expect_err "  layer 1: missing linear_attn.conv1d.weight [256, 1, 4]" \
        "  layer 1: unknown linear_attn.conv9d.weight [256, 1, 4]"
}
test_missing_decay() {
    dense
    rename layers.2.linear_attn.A_log layers.2.linear_attn.A_lag
    says "'m' does not hold the tensors of a qwen3_5 model of this config: 1 missing, 1 unknown"
    expect_err "  layer 2: missing linear_attn.A_log [4]"
}
test_missing_experts() {
    moe
    rename layers.3.mlp.experts.down_proj layers.3.mlp.experts.dawn_proj
    says "'m' does not hold the tensors of a qwen3_5 model of this config: 1 missing, 1 unknown"
    expect_err "  layer 3: missing mlp.experts.down_proj [16, 96, 20]"
}
test_weights_of_another_family() {
    dense
    cp "$(tiny qwen3)/model.safetensors" m/
    says "'m' does not hold the tensors of a qwen3_5 model of this config: 38 missing, 18 unknown, 9 of another shape"
    expect_err "  layers 0-2: missing linear_attn.A_log [4]"
}
test_packing_of_qwen3_next() {
    dense
    rename layers.0.linear_attn.in_proj_qkv.weight layers.0.linear_attn.in_proj_qkvz.weight
    says "'m': the linear projections are packed per key head, as Qwen3-Next has them (tensor 'model.language_model.layers.0.linear_attn.in_proj_qkvz.weight'): use the original checkpoint of a Qwen3.5 model"
}
test_mlx_layout_of_experts() {
    moe
    rename layers.0.mlp.experts.gate_up_proj layers.0.mlp.switch_mlp.gate_proj.weight
    says "'m': it is in MLX layout (tensor 'model.language_model.layers.0.mlp.switch_mlp.gate_proj.weight'): use the original checkpoint of a Qwen3.5 model"
}
# MLX turns the convolutions and adds 1 to the norms; some tools do one only.
turn() {
    st_edit m/model.safetensors 's/"shape":\[256,1,4\]/"shape":[256,4,1]/g'
}
shift_norms() { # BF16 1.0 in every element of the stream's norms
    i=0
    while [ $i -lt 128 ]; do
        printf '\200\077'
        i=$((i + 1))
    done >.ones
    for l in 0 1 2 3; do
        for n in input_layernorm post_attention_layernorm; do
            at=$(st_begin m/model.safetensors model.language_model.layers.$l.$n.weight)
            dd if=.ones of=m/model.safetensors bs=1 seek="$at" conv=notrunc 2>/dev/null
        done
    done
    rm .ones
}
test_mlx_layout_of_convolutions_and_norms() {
    dense
    turn
    shift_norms
    says "'m': it is in MLX layout: 0 convolutions are [channels, 1, taps] as published, 3 [channels, taps, 1] as MLX turns them, and the means of 11 norms run from "
    expect_err "with median 1.000 (around 0 as published, around 1 where 1 was added): use the original checkpoint"
}
test_turned_convolutions_alone() {
    dense
    turn
    says "'m': its convolutions are written as MLX does, its norms are not: 0 convolutions are [channels, 1, taps] as published, 3 [channels, taps, 1] as MLX turns them"
}
test_shifted_norms_alone() {
    dense
    shift_norms
    says "'m': 1 was added to its norms already: 3 convolutions are [channels, 1, taps] as published, 0 [channels, taps, 1] as MLX turns them"
}

# ---- config.json ----

test_value_heads_no_multiple_of_key_heads() {
    dense
    config 's/"linear_num_value_heads": 4/"linear_num_value_heads": 3/'
    says "'m/config.json': linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"
}
test_layer_types_of_the_wrong_length() {
    dense
    config 's/"num_hidden_layers": 4/"num_hidden_layers": 5/'
    says "'m/config.json': 'layer_types' has 4 entries, num_hidden_layers is 5"
}
test_unknown_layer_type() {
    dense
    config '0,/"linear_attention"/s//"sliding_attention"/'
    says "'m/config.json': layer_types[0] is 'sliding_attention'; full_attention and linear_attention are computed"
}
test_more_experts_of_a_token_than_there_are() {
    moe
    config 's/"num_experts_per_tok": 4/"num_experts_per_tok": 17/'
    says "'m/config.json': num_experts_per_tok 17 is more than the 16 of num_experts"
}
test_mlp_only_layers() {
    moe
    config 's/"mlp_only_layers": \[\]/"mlp_only_layers": [1, 2]/'
    says "'m/config.json': 'mlp_only_layers' names 2 layers; all layers of qwen3_5_moe_text have the same kind of MLP"
}
test_attention_without_its_gate() {
    dense
    config 's/"attn_output_gate": true/"attn_output_gate": false/'
    says "'m/config.json': 'attn_output_gate' is false; qwen3_5_text is computed with true only"
}
test_other_activations() {
    dense
    config 's/"hidden_act": "silu"/"hidden_act": "gelu"/'
    says "'m/config.json': hidden_act 'gelu' is not computed, only 'silu' is"
    rm -r m
    dense
    config 's/"attn_output_gate": true/"output_gate_type": "sigmoid"/'
    says "'m/config.json': output_gate_type 'sigmoid' is not computed, only 'swish' and 'silu' are"
}
test_text_config_of_another_family() {
    for t in qwen3 qwen3_next qwen3_5_moe_text; do
        dense
        config "s/\"qwen3_5_text\"/\"$t\"/"
        says "'m/config.json': model_type 'qwen3_5' with a text_config of model_type '$t' is not supported"
        rm -r m
    done
    moe
    config 's/"qwen3_5_moe_text"/"qwen3_5_text"/'
    says "'m/config.json': model_type 'qwen3_5_moe' with a text_config of model_type 'qwen3_5_text' is not supported"
}

# ---- options ----

test_batch_without_a_chunk() {
    refused 2 "anemll-convert: --batch 67: recurrent layers take it in chunks of 16 to 64 tokens, and none of these numbers divides it; 128 would do" -- \
        anemll-convert --hf "$(tiny qwen3_5)" --ctx 134 --batch 67 -o out
}
# 100 is no multiple of 64: chunks of 50.
test_batch_with_a_chunk_of_its_own() {
    run anemll-convert --hf "$(tiny qwen3_5)" --ctx 200 --batch 100 \
        --lut none --profile f32 -o out
    expect_exit 0
    expect_out "PASS (f32, "
    grep -q '^    gdn_chunk_size: 50$' out/meta.yaml || fail "meta.yaml"
}
