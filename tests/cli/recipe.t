# anemll-convert --recipe: rules for single matrices.

recipe() { # lines of the list
    { echo "rules:"; printf '  %s\n' "$@"; } >r.yaml
}
with() { # options...
    anemll-convert --hf "$(tiny)" --ctx 128 --recipe r.yaml "$@"
}
line_of() { # PACKAGE/PART CONSTANT
    anemll-inspect "out/$1.mlpackage" | grep "^  $2 " ||
        fail "no constant $2 in $1"
}

test_rules_by_tensor_part_and_layer() {
    recipe '- part: lmhead' '  lut: 6' \
        '- tensor: "*.mlp.down_proj.weight"' '  layers: 0-1' '  lut: 8,16' \
        '- tensor: layers.1.self_attn.v_proj.weight' '  lut: none' \
        '- tensor: model.layers.0.self_attn.q_proj.weight' '  quant: int8' \
        '- part: embeddings' '  lut: 8'
    run with --lut 4 -o out
    expect_exit 0
    expect_out "PASS (fp16, "
    ffn=qwen_FFN_PF_lut4_chunk_01of01
    line_of $ffn layers_0_mlp_down_proj_weight | grep -q 'LUT8, 8 tables' ||
        fail "down_proj of layer 0"
    line_of $ffn layers_2_mlp_down_proj_weight | grep -q 'LUT4, 16 tables' ||
        fail "down_proj of layer 2"
    line_of $ffn layers_1_self_attn_v_proj_weight | grep -q 'KB$' ||
        fail "v_proj should be fp16"
    line_of $ffn layers_0_self_attn_q_proj_weight | grep -q 'int8, 128' ||
        fail "q_proj should be int8"
    for l in 'lut_embeddings: 8' 'lut_ffn: 4' 'lut_ffn_mixed: 5\.27' \
        'lut_lmhead: 6' 'lm_head: qwen_lm_head_lut6.mlmodelc'; do
        grep -q "^    $l\$" out/meta.yaml || fail "meta.yaml lacks $l"
    done
    run anemll-check out
    expect_exit 0
    expect_out "0 errors"
}
# One chunk has no tables at all; its name has the width of the others.
test_chunks_that_differ() {
    recipe '- layers: 1' '  lut: none' '- layers: 2' '  quant: int4,32'
    run with --lut 6 --chunks 3 -o out
    expect_exit 0
    expect_out "PASS (fp16, "
    expect_file out/qwen_FFN_PF_lut6_chunk_02of03.mlpackage/Manifest.json
    run anemll-check out
    expect_exit 0
}
# Without the default, the recipe alone makes tables.
test_works_alone() {
    recipe '- tensor: "*.o_proj.weight"' '  lut: 4'
    run with --lut none --plan --json
    expect_exit 0
    planned=$(json stdout parts.1.model_bytes)
    run with --lut none --json -o out
    expect_exit 0
    expect_file out/qwen_FFN_PF_lut4_chunk_01of01.mlpackage/Manifest.json
    [ "$(json stdout plan.parts.1.written_model_bytes)" = "$planned" ] ||
        fail "planned $planned"
    grep -q 'lut_lmhead: none' out/meta.yaml || fail "lut_lmhead"
}
test_with_a_budget() {
    recipe '- part: lmhead' '  lut: 8' '- layers: 0' '  lut: none'
    run with --budget 10 -o out --no-gate
    expect_exit 0
    expect_err "budget of 10 bits: 9.9" "8 pinned by the recipe"
    line_of qwen_FFN_PF_lut4_chunk_01of01 layers_0_mlp_up_proj_weight |
        grep -q 'KB$' || fail "layer 0 should be fp16"
    refused 2 "--budget 5" "8 tensors pinned by the recipe" \
        "bits per weight" -- with --budget 5 -o out2
    recipe '- layers: 0-2' '  lut: 4' '- part: lmhead' '  lut: 4'
    refused 2 "--budget" "could have other widths" -- with --budget 5 -o out2
}
test_what_fits_nothing() {
    recipe '- part: ffn' '  lut: 4' '- tensor: "*.w_proj.weight"' '  lut: 4'
    refused 3 "--recipe" "'r.yaml', line 4" "fits no tensor" "*.w_proj" -- \
        with -o out
    recipe '- tensor: "*norm.weight"' '  lut: 4'
    refused 3 "'r.yaml', line 2" "always stay fp16" -- with -o out
    refused 3 "'r.yaml', line 2" -- with --plan
    recipe '- tensor: "*.q_proj.*"' '  part: lmhead' '  lut: 4'
    refused 3 "'r.yaml', line 2" "another part" -- with -o out
    recipe '- layers: 1-3' '  lut: 4'
    refused 3 "'r.yaml', line 2" "layers 1-3" "layers 0 to 2" -- with -o out
}
test_what_is_no_recipe() {
    recipe '- part: ffn' '  lut: 5'
    refused 3 "'r.yaml', line 3" "'5'" "1, 2, 3, 4, 6 or 8" -- with -o out
    recipe '- part: ffn' '  luts: 4'
    refused 3 "'r.yaml', line 3" "'luts'" "lut and quant" -- with -o out
    : >r.yaml
    refused 3 "--recipe" "empty" -- with -o out
    rm r.yaml
    refused 3 "--recipe" "'r.yaml' does not exist" -- with -o out
    mkdir r.yaml
    refused 3 "--recipe" "directory" -- with -o out
}
test_a_recipe_in_the_output_is_not_removed() {
    recipe '- part: ffn' '  lut: 4'
    run with -o out --no-gate
    mv r.yaml out
    ln -s out/r.yaml r.yaml
    refused 2 "the output 'out' holds the input file 'r.yaml'" -- \
        with --force -o out
}
