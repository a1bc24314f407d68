# Inputs that are no plain checkpoint, or a broken one: one clear line, the
# right exit code, nothing written. Every case goes through conversion and
# through anemll-inspect or anemll-check, which must agree.

# refused by conversion and by the judge of checkpoints
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
add_to_config() { # members, with a comma behind
    config "1s/{/{ $1/"
}

test_no_such_directory() {
    bad 3 "there is no directory 'm'" --
}
test_a_file_instead_of_a_directory() {
    : >m
    bad 3 "'m'" --
}
test_no_config() {
    model m
    rm m/config.json
    bad 3 "config.json" --
}
test_empty_directory() {
    mkdir m
    bad 3 "config.json" --
}
test_config_is_no_json() {
    model m
    echo '{ "model_type": "qwen3", ' >m/config.json
    bad 3 "config.json" "line" --
}
test_config_is_an_array() {
    model m
    echo '[]' >m/config.json
    bad 3 "config.json" --
}
test_config_is_huge_or_deep() {
    model m
    { i=0; while [ $i -lt 4000 ]; do printf '['; i=$((i + 1)); done; } >m/config.json
    bad 3 "config.json" --
}
test_unsupported_model_type() {
    model m
    config 's/"model_type": "qwen3"/"model_type": "mamba2"/'
    bad 3 "mamba2" "qwen3" "llama" --
}
test_no_model_type() {
    model m
    config '/"model_type"/d'
    bad 3 "model_type" --
}
test_wrong_type_of_a_key() {
    model m
    config 's/"hidden_size": [0-9]*/"hidden_size": "128"/'
    bad 3 "hidden_size" --
}
test_absurd_numbers() {
    for v in 0 -1 1e30 4294967296 18446744073709551616; do
        model m
        config "s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": $v/"
        bad 3 "num_hidden_layers" --
        rm -r m
    done
}
test_unknown_activation() {
    model m
    config 's/"silu"/"relu2"/'
    bad 3 "relu2" --
}
test_unknown_rope() {
    model m
    add_to_config '"rope_scaling": { "rope_type": "longrope", "factor": 4 },'
    config '0,/"rope_scaling": null,/{/"rope_scaling": null,/d}' || :
    bad 3 "longrope" --
}

# ---- other kinds of directories ----

test_lora_adapter() {
    mkdir m
    echo '{ "peft_type": "LORA", "base_model_name_or_path": "x/y" }' >m/adapter_config.json
    cp "$(tiny)/model.safetensors" m/adapter_model.safetensors
    bad 3 "LoRA" --
}
quantized() { # members of quantization_config
    model m
    add_to_config "\"quantization_config\": { $1 },"
    # Packed weights, as such directories hold them.
    st_edit m/model.safetensors \
        's/"model.layers.0.mlp.up_proj.weight"/"model.layers.0.mlp.up_proj.qweight"/'
}
test_gptq() {
    quantized '"quant_method": "gptq", "bits": 4, "group_size": 128'
    bad 3 "GPTQ" --
}
test_awq() {
    quantized '"quant_method": "awq", "bits": 4, "group_size": 128'
    bad 3 "AWQ" --
}
test_bitsandbytes() {
    quantized '"quant_method": "bitsandbytes", "load_in_4bit": true'
    bad 3 "bitsandbytes" --
}
test_mlx() {
    model m
    add_to_config '"quantization": { "group_size": 64, "bits": 4 },'
    st_edit m/model.safetensors \
        's/"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16"/"model.layers.0.mlp.up_proj.scales":{"dtype":"BF16"/'
    bad 3 "MLX" --
}
test_fp8() {
    model m
    add_to_config '"quantization_config": { "quant_method": "fp8" },'
    st_edit m/model.safetensors \
        's/"model.layers.0.mlp.up_proj.weight"/"model.layers.0.mlp.up_proj.weight_scale_inv"/'
    bad 3 "FP8" --
}
test_gguf_only() {
    model m
    rm m/model.safetensors
    printf 'GGUF\003\000\000\000' >m/model-q4_k_m.gguf
    bad 3 "GGUF" --
}
test_git_lfs_pointer() {
    model m
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 1169128\n' \
        0 >m/model.safetensors
    bad 3 "git-lfs" "model.safetensors" --
}
test_git_lfs_pointer_as_config() {
    model m
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 709\n' \
        0 >m/config.json
    bad 3 "git-lfs" "config.json" --
}
test_no_weights() {
    model m
    rm m/model.safetensors
    bad 3 "safetensors" --
}
test_pytorch_weights_only() {
    model m
    mv m/model.safetensors m/pytorch_model.bin
    bad 3 "safetensors" --
}

# ---- broken safetensors ----

test_truncated_file() {
    model m
    size=$(wc -c <m/model.safetensors)
    head -c $((size - 1)) m/model.safetensors >.s && mv .s m/model.safetensors
    bad 3 "model.safetensors" --
}
test_trailing_byte() {
    model m
    printf x >>m/model.safetensors
    bad 3 "model.safetensors" --
}
test_empty_file() {
    model m
    : >m/model.safetensors
    bad 3 "model.safetensors" --
}
test_header_length_beyond_the_file() {
    model m
    printf '\377\377\377\377\000\000\000\000' |
        dd of=m/model.safetensors conv=notrunc 2>/dev/null
    bad 3 "model.safetensors" --
    printf '\377\377\377\377\377\377\377\377' |
        dd of=m/model.safetensors conv=notrunc 2>/dev/null
    bad 3 "model.safetensors" --
}
test_offsets_that_overlap() {
    model m
    st_edit m/model.safetensors 's/"data_offsets":\[[0-9]*,/"data_offsets":[0,/g'
    bad 3 "model.safetensors" --
}
test_unknown_dtype() {
    model m
    st_edit m/model.safetensors '1s/"BF16"/"I99"/'
    bad 3 "I99" --
}
test_zeroed_hole() {
    model m
    size=$(wc -c <m/model.safetensors)
    n=$((8 + $(st_header_bytes m/model.safetensors)))
    head -c $n m/model.safetensors >.s
    truncate -s "$size" .s
    mv .s m/model.safetensors
    run anemll-convert --hf m --ctx 128 --no-gate -o out
    [ "$status" -ne 0 ] || grep -q "warning" stderr ||
        fail "a file without data passed without a word"
}

# ---- shards ----

sharded() { # two shards and their index, from the single file
    model m
    mv m/model.safetensors m/model-00001-of-00002.safetensors
    f=m/model-00001-of-00002.safetensors
    # The last tensor of the file moves into a second shard.
    last=$(st_header $f | tr '{}' '\n\n' | awk -F'[][,]' '
        /":$/ { name = $0; sub(/^,?"/, "", name); sub(/":$/, "", name) }
        /data_offsets/ { b = $0; sub(/.*data_offsets":\[/, "", b); split(b, o, /[,\]]/)
            if (o[1] + 0 >= max) { max = o[1] + 0; last = name } }
        END { print max, last }')
    at=${last% *}
    name=${last#* }
    n=$(st_header_bytes $f)
    entry=$(st_header $f | grep -o "\"$name\":{[^}]*}")
    st_header $f | sed "s/,\{0,1\}\"$name\":{[^}]*}//; s/{,/{/" >.h
    size=$(($(wc -c <$f) - 8 - n - at))
    { le64 "$(wc -c <.h)"; cat .h; tail -c +$((9 + n)) $f | head -c $at; } >.one
    printf '{%s}' "$entry" | sed "s/\"data_offsets\":\[[^]]*\]/\"data_offsets\":[0,$size]/" >.h
    { le64 "$(wc -c <.h)"; cat .h; tail -c +$((9 + n + at)) $f; } \
        >m/model-00002-of-00002.safetensors
    {
        printf '{"metadata":{"total_size":%d},"weight_map":{' $((at + size))
        st_header $f | grep -o '"[^"]*":{"dtype' | sed 's/:{"dtype//' |
            while IFS= read -r key; do
                s=1
                [ "$key" != "\"$name\"" ] || s=2
                printf '%s:"model-0000%d-of-00002.safetensors",' "$key" $s
            done | sed 's/,$//'
        printf '}}'
    } >m/model.safetensors.index.json
    mv .one $f
    rm -f .h
}
test_sound_shards_are_read() {
    sharded
    run anemll-check m
    expect_exit 0
    run anemll-convert --hf m --ctx 128 --lut none --no-gate -o out
    expect_exit 0
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut none --no-gate -o whole
    expect_exit 0
    for f in $(cd whole && find . -name '*.bin' -o -name '*.mlmodel'); do
        cmp "whole/$f" "out/$f" || fail "shards give other bytes"
    done
}
test_missing_shard() {
    sharded
    rm m/model-00002-of-00002.safetensors
    bad 3 "model-00002-of-00002.safetensors" --
}
test_truncated_shard() {
    sharded
    f=m/model-00002-of-00002.safetensors
    head -c $(($(wc -c <$f) - 2)) $f >.s && mv .s $f
    bad 3 "model-00002-of-00002.safetensors" --
}
test_index_names_a_missing_tensor() {
    sharded
    sed 's/"weight_map":{/&"model.layers.9.ghost.weight":"model-00001-of-00002.safetensors",/' \
        m/model.safetensors.index.json >.i && mv .i m/model.safetensors.index.json
    bad 3 "layer 9" "ghost.weight" "model-00001-of-00002.safetensors" --
}
test_index_escapes_the_folder() {
    sharded
    sed 's/"model-00002/"..\/model-00002/' m/model.safetensors.index.json >.i
    mv .i m/model.safetensors.index.json
    bad 3 "../model-00002-of-00002.safetensors" --
}

# ---- tensors ----

test_missing_and_extra_tensor() {
    model m
    st_edit m/model.safetensors \
        's/model.layers.1.self_attn.q_proj.weight/model.layers.1.self_attn.q_proj.wei9ht/'
    bad 3 "self_attn.q_proj.weight" "wei9ht" --
}
# A hint about q/k norms only where the family's own are the matter.
test_norms_in_a_layer_that_is_not_there() {
    model m
    st_edit m/model.safetensors 's/layers.1.self_attn.q_norm/layers.9.self_attn.q_norm/'
    bad 3 "layer 9: unknown self_attn.q_norm.weight [32]" \
        "(per-head q/k norms: qwen3 has them)" --
    grep -q "has none" stderr && fail "qwen3 has q/k norms"
    :
}
test_extra_tensor_alone() {
    model m
    n=$(st_header_bytes m/model.safetensors)
    size=$(($(wc -c <m/model.safetensors) - 8 - n))
    printf '\000\000' >>m/model.safetensors
    st_edit m/model.safetensors \
        "s/}\( *\)\$/,\"model.layers.0.mlp.extra.weight\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[$size,$((size + 2))]}}/"
    bad 3 "extra" --
}
test_wrong_shape() {
    model m
    st_edit m/model.safetensors \
        's/\("model.norm.weight":{"dtype":"BF16","shape":\)\[128\]/\1[2,64]/'
    bad 3 "norm.weight" "128" "64" --
}
test_transposed_matrix() {
    model m
    st_edit m/model.safetensors \
        's/\("model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":\)\[320,128\]/\1[128,320]/'
    bad 3 "up_proj" "320" "128" --
}
test_wrong_layer_count() {
    model m
    config 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 2/'
    bad 3 "11 unknown" "layer 2" --
}

# ---- values; found while converting, with nothing left behind ----

convert_refuses() { # words...
    refused 3 "$@" -- anemll-convert --hf m --ctx 128 --lut 6 -o out
    refused 3 "$@" -- anemll-convert --hf m --ctx 128 --lut none -o out
    refused 3 "$@" -- anemll-convert --hf m --ctx 128 --lut 4,tensor -o out
    refused 3 "$@" -- anemll-convert --hf m --ctx 128 --quant int4,32 -o out
}
test_nan_weight() {
    model m
    st_poke m/model.safetensors model.layers.1.mlp.down_proj.weight 77 '\300\177'
    convert_refuses "anemll-convert: 'm': tensor 'model.layers.1.mlp.down_proj.weight' holds 1 NaN" "row 0, column 77"
}
test_nan_under_one_scale() { # which is found before any value is written
    model m
    st_poke m/model.safetensors model.layers.1.mlp.down_proj.weight 77 '\300\177'
    refused 3 "tensor 'model.layers.1.mlp.down_proj.weight' holds 1 NaN" \
        "row 0, column 77" -- \
        anemll-convert --hf m --ctx 128 --quant int8,tensor -o out
}
test_infinite_weight() {
    model m
    st_poke m/model.safetensors model.layers.0.self_attn.v_proj.weight 5 '\200\377'
    convert_refuses "anemll-convert: 'm': tensor 'model.layers.0.self_attn.v_proj.weight' holds 0 NaN and 1 infinite" "row 0, column 5"
}
test_weight_beyond_fp16() {
    model m
    # 131072 in bf16
    st_poke m/model.safetensors model.layers.2.self_attn.v_proj.weight 1000 '\000\110'
    convert_refuses "layers.2.self_attn.v_proj.weight" "beyond fp16"
}
test_nan_in_the_embedding() {
    model m
    st_poke m/model.safetensors model.embed_tokens.weight 300 '\300\177'
    convert_refuses "anemll-convert: 'm': tensor 'model.embed_tokens.weight' holds 1 NaN" "row 2, column 44"
}
test_nan_in_a_norm() {
    model m
    st_poke m/model.safetensors model.norm.weight 3 '\300\177'
    convert_refuses "anemll-convert: 'm': tensor 'model.norm.weight' holds 1 NaN"
}

# ---- packages that are none ----

test_broken_packages() {
    cp -r "$(package)" p
    rm p/meta.yaml
    refused 3 "meta.yaml" -- anemll-check p --hf "$(tiny)"
    cp "$(package)/meta.yaml" p/
    for f in $(cd p && find . -name weight.bin -o -name model.mlmodel); do
        mv "p/$f" keep
        head -c 100 keep >"p/$f"
        run anemll-check p --hf "$(tiny)"
        expect_exit 3
        expect_no_out
        mv keep "p/$f"
    done
}
test_meta_is_no_yaml() {
    cp -r "$(package)" p
    printf 'model_info: [1, 2\n' >p/meta.yaml
    refused 3 "meta.yaml" -- anemll-check p --hf "$(tiny)"
}
test_package_of_another_checkpoint() {
    run anemll-check "$(package)" --hf "$(tiny llama)"
    [ "$status" -eq 1 ] || [ "$status" -eq 3 ] || fail "should not pass"
}
