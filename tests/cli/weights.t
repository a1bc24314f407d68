# anemll-inspect --weights, and the report.json that it reads.

converted() { # options...
    run anemll-convert --hf "$(tiny)" --ctx 128 --no-gate "$@" -o out
    expect_exit 0
}
edit() { # PACKAGE/report.json: sed script
    sed "$1" out/report.json >new
    cmp -s new out/report.json && fail "'$1' changes nothing"
    mv new out/report.json
}

test_report_of_every_tensor() {
    converted --lut 4
    for want in 'tensor model.layers.0.self_attn.q_proj.weight' \
        'kind palettized' 'bits 4' 'bits_requested 4' 'group 8' \
        'group_requested 8' 'method kmeans' 'weights 16384' \
        'value_bytes 8192' 'table_bytes 512' 'bits_per_weight 4.25' \
        'bits_per_weight_requested 4.25'; do
        key=${want%% *}
        got=$(json out/report.json "weights.2.$key")
        [ "$got" = "${want#* }" ] || fail "$key is $got"
    done
    [ "$(json out/report.json weights.0.rule)" = option ] || fail "table"
    [ "$(json out/report.json weights.1.rule)" = norm ] || fail "norm"
    [ "$(json out/report.json package.matrices.weights)" = 647168 ] ||
        fail "weights of the package"
    run anemll-check out
    expect_exit 0
    expect_out "0 errors"
    run anemll-convert --hf "$(tiny)" --ctx 128 --no-gate --force -o out
    expect_exit 0
}
test_smaller_groups_and_recipes_are_told() {
    printf 'rules: [{layers: 1, lut: none}, {part: lmhead, lut: "6,24"}]\n' \
        >r.yaml
    converted --lut 4 --recipe r.yaml
    grep -q '"rule": "recipe"' out/report.json || fail "no recipe"
    [ "$(json out/report.json parts.2.kind)" = lmhead ] || fail "kind"
    grep -A1 '"group": 16,' out/report.json |
        grep -q '"group_requested": 24' || fail "no smaller group"
    run anemll-inspect out --weights --hf "$(tiny)"
    expect_exit 0
}
test_budget_in_the_report() {
    converted --budget 6.5
    achieved=$(json out/report.json budget.achieved)
    [ "$(json out/report.json budget.requested)" = 6.5 ] || fail "requested"
    awk "BEGIN { exit !($achieved > 6.4 && $achieved <= 6.5) }" ||
        fail "achieved $achieved"
}
# The report and a measurement of the written bytes say the same.
test_report_against_the_checkpoint() {
    for m in qwen3 gemma4 qwen3_5_moe; do
        run anemll-convert --hf "$(tiny $m)" --ctx 128 --no-gate --lut 3 \
            --lut-embeddings 6 -o out
        expect_exit 0
        run anemll-inspect out --weights
        expect_exit 0
        mv stdout said
        run anemll-inspect out --weights --hf "$(tiny $m)"
        expect_exit 0
        expect_same said stdout
        rm -r out
    done
}
test_text_and_json() {
    converted --lut 4
    run anemll-inspect out --weights
    expect_exit 0
    grep -q 'q_proj.weight  *LUT4,8  *8.7 KB  *4.250  *[0-9.]*  *2[01].[0-9]* dB  kmeans$' \
        stdout || fail "q_proj"
    grep -q 'layernorm.weight  *16 bits  *256 B  *16.000  *0  *exact  norm$' \
        stdout || fail "norm"
    expect_out "the package"
    run anemll-inspect out --weights --json
    expect_exit 0
    [ "$(json stdout report)" = true ] || fail "report"
    [ "$(json stdout weights.2.method)" = kmeans ] || fail "method"
    [ "$(json stdout weights.2.sse)" = "$(json out/report.json weights.2.sse)" ] ||
        fail "sse"
    run anemll-inspect out/qwen_lm_head_lut4.mlpackage --weights
    expect_exit 0
    expect_out "lm_head_weight_rows_32"
}
test_report_that_says_something_else() {
    converted --lut 4
    cp out/report.json kept
    for e in 's/"bits": 4/"bits": 6/' 's/"value_bytes": 8192/"value_bytes": 9/' \
        's/"group": 8/"group": 4/' 's/palettized/linear/' \
        's/"name": "layers_1_self_attn_k/"name": "another/' \
        's/"weights": 16384/"weights": 5/' \
        's/"bits_per_weight": 4.25/"bits_per_weight": 4/'; do
        edit "$e"
        run anemll-inspect out --weights
        expect_exit 1
        expect_out "MISMATCH"
        run anemll-inspect out --weights --json
        expect_exit 1
        json stdout mismatches.0 >/dev/null
        cp kept out/report.json
    done
    edit 's/"sse": 0\.5/"sse": 0.6/'
    run anemll-inspect out --weights
    expect_exit 1
    expect_out "chunk_01of01, 'all': report.json says"
    grep -q "MISMATCH .*_weight'.* of squared error" stdout && fail "unmeasured"
    run anemll-inspect out --weights --hf "$(tiny)"
    expect_exit 1
    expect_out "MISMATCH" "of squared error"
    grep -q "MISMATCH .*_weight'.* of squared error" stdout || fail "a row"
    cp kept out/report.json
    edit 's/"snr_db": 20/"snr_db": 30/'
    run anemll-inspect out --weights --hf "$(tiny)"
    expect_exit 1
    expect_out "MISMATCH" "dB, found 2"
    cp kept out/report.json
    edit '/"weights": \[/,/},/{/^    {/,/},/d}'
    run anemll-inspect out --weights
    expect_exit 1
    expect_out "'embed_tokens_weight': report.json has no row of it"
    cp kept out/report.json
    edit 's/"kmeans"/"\\u001b[31m"/'
    run anemll-inspect out --weights
    expect_exit 1
    expect_out "?[31m"
    echo '{' >out/report.json
    run anemll-inspect out --weights
    expect_exit 3
    expect_err "report.json"
}
damaged() { # sed script for the report, words of the mismatch
    edit "$1"
    shift
    run anemll-inspect out --weights
    expect_exit 1
    expect_out "MISMATCH" "$@"
    cp kept out/report.json
}
test_rows_of_other_tensors_and_methods() {
    printf 'rules: [{layers: 1, lut: none}, {layers: 2, quant: int8}]\n' >r.yaml
    converted --lut 4 --recipe r.yaml
    cp out/report.json kept
    q=layers_0_self_attn_q_proj_weight
    damaged 's/"model.layers.0.self_attn.q_proj.weight"/"model.layers.1.self_attn.q_proj.weight"/' \
        "'$q': report.json says 'model.layers.1.self_attn.q_proj.weight', found 'layers.0.self_attn.q_proj.weight'"
    for t in q_proj.weight layers.0.self_attn.q_proj layers.0.q_proj.weight \
        layers.0.self_attn.q_proj.weight.x layers.0.self_attn.xq_proj.weight; do
        damaged "s/\"model.layers.0.self_attn.q_proj.weight\"/\"$t\"/" \
            "'$q': report.json says '$t'"
    done
    damaged '/"model.layers.0.self_attn.q_proj/d' "'$q': report.json says ''"
    damaged 's/"model.embed_tokens.weight"/"model.norm.weight"/' \
        "'embed_tokens_weight'" "'lm_head_weight_rows_32'"
    # the checkpoint has a name of its own
    edit 's/"model.layers.0.self_attn.q_proj/"text.layers.0.self_attn.q_proj/'
    run anemll-inspect out --weights
    expect_exit 0
    run anemll-inspect out --weights --hf "$(tiny)"
    expect_exit 1
    expect_out "'text.layers.0.self_attn.q_proj.weight', found 'model.layers"
    cp kept out/report.json
    damaged 's/"method": "kmeans"/"method": "gptq"/' \
        "'$q': report.json says 'gptq', found 'kmeans'"
    damaged 's/"method": "kmeans"/"rule": "option"/' "says 'option', found 'km"
    damaged 's/"method": "nearest"/"method": "kmeans"/' "found 'nearest'"
    damaged 's/"rule": "recipe"/"method": "kmeans"/' "says 'kmeans', found 's"
    damaged 's/"rule": "norm"/"rule": "option"/' "says 'option', found 'norm'"
    damaged 's/"rule": "recipe"/"rule": "norm"/' "says 'norm', found 'small'"
    damaged 's/"sse": 0\.5[0-9]*/"sse": null/' "says no squared error"
    for x in '128, 128, 1' '128, 128, 1, 1, 1' '128, 64, 1, 1' \
        '1, 1, 1, 1, 1, 1, 1, 1, 1' '"x"' ''; do
        damaged "s/\"shape\": \[128, 128, 1, 1\]/\"shape\": [$x]/" \
            "'$q': axis"
    done
    # a row twice; a row of nothing
    damaged "s/layers_0_self_attn_k_proj/layers_0_self_attn_q_proj/" \
        "'$q': report.json has row 4 of it" "k_proj_weight': report.json has no"
    damaged 's/^  "weights": \[$/& 3,/' "?, '?': report.json has row 1"
}
test_sums_that_are_none() {
    converted --budget 6.5
    cp out/report.json kept
    part=$(json out/report.json parts.1.part)
    [ "$(json out/report.json package.all.weights)" = 648256 ] || fail "all"
    for of in parts package; do
        case $of in
        parts) from='/"kind": "ffn"/' name=$part ;;
        package) from='/"package": {/' name="the package" ;;
        esac
        for sum in all matrices; do
            for key in weights value_bytes table_bytes bits_per_weight \
                bits_per_weight_requested sse; do
                damaged "$from,\$ { /\"$sum\"/,/}/ s/\"$key\": /&1/ }" \
                    "MISMATCH $name, '$sum': report.json says 1"
            done
            damaged "$from,\$ { s/\"$sum\"/\"none\"/ }" "$name, '$sum'"
        done
        damaged "$from,\$ s/\"weight_file_bytes\": /&1/" \
            "MISMATCH $name, 'all': report.json says 1" "of weight files"
    done
    damaged 's/"kind": "lmhead"/"kind": "ffn"/' "'kind'" "found 'lmhead'"
    damaged "/\"parts\": /,\$ s/$part/x/" "$part: report.json has no sums"
    damaged 's/"parts": \[/& 3,/' "report.json has sums of 4 parts, found 3"
    damaged 's/"parts": /"none": /' "$part: report.json has no sums"
    damaged 's/"package": {/"none": {/' "the package: report.json has no sums"
    damaged 's/"achieved": /&1/' "the package, 'budget'" "found 6."
    damaged 's/"requested": 6.5/"requested": 6/' "6 bits per weight were requ"
    # ratios are known where errors are measured
    edit '/"package": {/,$ s/"snr_db": /&1/'
    run anemll-inspect out --weights
    expect_exit 0
    run anemll-inspect out --weights --hf "$(tiny)"
    expect_exit 1
    expect_out "the package, 'all'" "the package, 'matrices'" " dB, found "
}
# Wrappers of training tools within a name, and a report of each family.
test_reports_agree_with_every_family() {
    model m llama
    st_edit m/model.safetensors \
        's/layers\.1\.self_attn/layers.1._orig_mod.self_attn/g'
    for m in m "$(tiny gemma3)" "$(tiny gemma4)" "$(tiny qwen3_5_moe)"; do
        printf 'rules: [{layers: 1, lut: none}, {layers: 0, quant: int8}]\n' \
            >r.yaml
        run anemll-convert --hf "$m" --ctx 128 --no-gate --recipe r.yaml -o out
        expect_exit 0
        run anemll-inspect out --weights
        expect_exit 0
        run anemll-inspect out --weights --hf "$m"
        expect_exit 0
        rm -r out
    done
}
# What can be read from the files alone.
test_package_without_a_report() {
    converted --lut 4
    rm out/report.json
    run anemll-inspect out --weights
    expect_exit 0
    expect_out "no report.json"
    grep -q 'q_proj.weight  *LUT4,8  *8.7 KB  *4.250  *?  *?  ?$' stdout ||
        fail "q_proj"
    run anemll-inspect out --weights --json
    expect_exit 0
    [ "$(json stdout weights.2.sse)" = null ] || fail "sse"
    run anemll-inspect out --weights --hf "$(tiny)" --json
    expect_exit 0
    [ "$(json stdout weights.2.measured)" = true ] || fail "measured"
}
# Nobody's list of sources: tensors are told by their values, and that a matrix
# is held as half of it. The figures are those that the report had.
test_package_of_others() {
    converted --lut 4 --emit mlpackage
    mv out/report.json ours
    for f in out/*.mlpackage/Data/com.apple.CoreML/model.mlmodel; do
        LC_ALL=C sed 's/com\.anemll\.sources/com.anemll.sourcex/' "$f" >new
        mv new "$f"
    done
    run anemll-inspect out --weights
    expect_exit 0
    grep -q 'layers_0_self_attn_q_proj_weight  *LUT4,8 .* ?$' stdout ||
        fail "q_proj"
    run anemll-inspect out --weights --hf "$(tiny)" --json
    expect_exit 0
    mv stdout theirs
    for p in embed_tokens_weight layers_0_self_attn_q_proj_weight \
        layers_2_mlp_gate_proj_weight lm_head_weight_rows_32; do
        for key in sse snr_db; do
            for f in ours theirs; do
                grep -A20 "\"name\": \"$p\"" $f | grep -m 1 "\"$key\"" |
                    tr -d , >$f.row
            done
            expect_same ours.row theirs.row
        done
    done
    grep -A20 '"layers_0_input_layernorm_weight"' theirs |
        grep -m 1 '"sse"' | grep -q null || fail "a norm has a figure"
    run anemll-inspect out --weights --hf "$(tiny)"
    expect_out "?  (layers.2.mlp.gate_proj.weight)"
    # Another model of the same shapes has none of it.
    anemll-fixtures checkpoint --arch qwen3 --like tiny --seed 2 -q -o other
    run anemll-inspect out --weights --hf other
    expect_exit 0
    grep -q ' dB ' stdout && fail "another model's figures"
    :
}
# What coremltools wrote, and the forms of older systems.
test_files_of_coremltools() {
    shared=${ANEMLL_FIXTURES:-$SRC/../shared/fixtures}/..
    [ -d "$shared/goldens" ] || skip "no shared goldens"
    run anemll-inspect "$shared/goldens/packages/qwen3-tiny-coremltools" \
        --weights --hf "$shared/fixtures/qwen3-tiny"
    expect_exit 0
    expect_out "(embed_tokens.weight)" "(layers.0.self_attn.q_proj.weight)" \
        "(layers.5.mlp.down_proj.weight)"
    run anemll-inspect --weights \
        "$shared/goldens/mlmodelc/unified_palette_6bit/source.mlpackage"
    expect_exit 0
    grep -q 'layers_0_weight_to_fp16_palettized  *LUT6,tensor  *37.2 KB  *6.021' \
        stdout || fail "LUT6"
    run anemll-inspect --weights \
        "$shared/goldens/mlmodelc/unified_int8/source.mlpackage"
    expect_exit 0
    grep -q 'layers_0_weight_to_fp16_quantized  *int8,387  *49.9 KB  *8.062' \
        stdout || fail "int8"
}
test_options_of_weights() {
    refused 2 "--hf" "--weights" -- anemll-inspect "$(package)" --hf x
    refused 2 "--weights" -- anemll-inspect "$(tiny)" --weights
    refused 2 "--mil" "--weights" -- anemll-inspect \
        "$(package)/qwen_embeddings.mlpackage" --weights --mil
    run anemll-inspect "$(package)" --weights --hf "$(tiny llama)"
    [ "$status" = 1 ] || [ "$status" = 3 ] || fail "another checkpoint"
    expect_no_out
}
