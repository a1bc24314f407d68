# Widths, groups, importances, budgets and calibration that cannot work: each
# is refused before a weight is read. The model's own weights are broken here
# (a value is not finite), so that whoever read them first would say so.

broken() {
    model m
    st_poke m/model.safetensors model.layers.0.self_attn.q_proj.weight 0 \
        '\300\177'
}
convert() {
    anemll-convert --hf m --ctx 128 "$@"
}
# Importances for the tiny model: each 0.746.
importances() {
    cp m/model.safetensors i.safetensors
    n=$(($(st_header_bytes i.safetensors) + 8))
    all=$(wc -c <i.safetensors)
    { head -c "$n" m/model.safetensors
      head -c "$((all - n))" /dev/zero | tr '\000' '\077'; } >i.safetensors
}
Q=model.layers.1.self_attn.q_proj.weight

test_the_weights_would_be_read_last() {
    broken
    refused 3 "$(echo $Q | sed s/1/0/)" "NaN" -- convert -o out
}
test_bits_outside_the_set() {
    broken
    for b in 0 5 7 9 16 -4 4.5 x '' ,8; do
        refused 2 "--lut: '$b'" "1, 2, 3, 4, 6 or 8" -- convert "--lut=$b" -o out
    done
    refused 2 "--lut-ffn: '5'" -- convert --lut-ffn 5 -o out
    refused 2 "--lut-lmhead: '5'" -- convert --lut-lmhead 5 -o out
    refused 2 "--lut-embeddings: '5'" -- convert --lut-embeddings 5 -o out
    for q in int2 int16 4 int4,0 int4,-1 int4,x; do
        refused 2 "--quant: " -- convert --quant $q -o out
    done
    for g in -1 x 1048577; do
        refused 2 "group '$g'" "1 to 1048576" -- convert --lut "4,$g" -o out
    done
}
test_groups_that_do_not_divide() {
    broken
    printf 'rules: [{layers: 1, lut: "4,24"}]\n' >r.yaml
    refused 3 "'$(echo $Q | sed s/1/0/)'" "128 rows" "group of 24" \
        "largest that divides is 16" "--strict" -- \
        convert --lut 4,24 --strict -o out
    refused 3 "128 columns" "block of 24" "--strict" -- \
        convert --quant int4,24 --strict -o out
    refused 3 "512 rows" "group of 7" -- \
        convert --lut-embeddings 4,7 --strict -o out
    refused 3 "'$Q'" "group of 24" -- \
        convert --recipe r.yaml --strict -o out
    refused 3 "group of 24" -- convert --lut 4,24 --strict --plan
    refused 3 "group of 24" -- convert --budget 5 --lut 4,24 --strict -o out
}
# Without --strict the largest divisor below is taken, and said.
test_smaller_groups_are_told() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 4,24 --no-gate -o out
    expect_exit 0
    expect_err "tensor '$Q': 128 rows are not divisible by a group of 24, using 16"
    n=$(grep -c "'model.embed_tokens.weight': 32 rows" stderr)
    [ "$n" = 1 ] || fail "$n lines of the LM head's parts"
    grep -q '"group_requested": 24' out/report.json || fail "report.json"
    run anemll-inspect out --weights
    grep -q "layers.1.self_attn.q_proj.weight  *LUT4,16 " stdout || fail "16"
}
test_importances() {
    broken
    importances
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 4 --no-gate \
        --importance i.safetensors -o out
    expect_exit 0
    rm -r out
    mv i.safetensors sound
    try() { # words... of the refusal
        refused 3 "--importance" "i.safetensors" "$@" -- \
            convert --importance i.safetensors -o out
    }
    cp sound i.safetensors
    st_edit i.safetensors "s/$Q/another/"
    try "no tensor '$Q'"
    refused 3 "no tensor '$Q'" -- convert --importance i.safetensors --plan
    cp sound i.safetensors
    st_edit i.safetensors "s/\(\"$Q\":{[^}]*\"shape\": *\)\[128, *128\]/\1[64,256]/"
    try "'$Q' has shape [64, 256], the weights [128, 128]"
    cp sound i.safetensors
    st_poke i.safetensors $Q 130 '\200\277'
    try "'$Q', row 1, column 2 is -1;" "not negative"
    st_poke i.safetensors $Q 130 '\300\177'
    try "'$Q', row 1, column 2 is nan;" "finite"
    st_poke i.safetensors $Q 130 '\200\177'
    try "'$Q', row 1, column 2 is inf;" "finite"
    cp sound i.safetensors
    dd if=/dev/zero of=i.safetensors bs=1 seek="$(st_begin i.safetensors $Q)" \
        count=32768 conv=notrunc 2>/dev/null
    try "'$Q' is all zero"
    head -c 100000 sound >i.safetensors
    try "truncated"
    : >i.safetensors
    try "empty"
    rm i.safetensors
    try "does not exist"
}
# What is not palettized needs no importance.
test_importances_of_other_tensors() {
    model m
    importances
    st_poke i.safetensors model.norm.weight 0 '\200\277'
    run convert --lut 4 --no-gate --importance i.safetensors -o out
    expect_exit 0
}
# Tokens and importances without a matrix that they could change.
test_nothing_to_guide() {
    broken
    importances
    awk 'BEGIN { for (i = 0; i < 40; i++) print i * i % 300 }' >t
    layers="no matrix of the layers or of the LM head gets"
    printf 'rules: [{part: ffn, lut: none}, {part: lmhead, lut: none}]\n' \
        >r.yaml
    for o in '--lut none' '--lut none --lut-embeddings 4' '--recipe r.yaml' \
        '--quant int8,tensor'; do
        refused 2 "--calib has nothing to act on: $layers tables, or" \
            "--lut, --quant and --recipe" -- convert $o --calib t -o out
        refused 2 "--calib has nothing" -- convert $o --calib t --plan
    done
    refused 2 "--calib with --method gptq has nothing" "$layers tables or" -- \
        convert --lut none --calib t --method gptq -o out
    refused 2 "--calib has nothing" -- \
        convert --lut none --budget 5 --calib t -o out
    for o in '--lut none' '--quant int8,tensor'; do
        refused 2 "--importance has nothing to act on: no matrix gets" -- \
            convert $o --importance i.safetensors -o out
    done
    # one matrix is enough, of a part or of a recipe
    printf 'rules: [{tensor: "*.o_proj.weight", layers: 1, lut: 4}]\n' >r.yaml
    for o in '--lut-ffn none' '--lut-lmhead none' '--lut none --recipe r.yaml' \
        '--quant int4' '--quant int8,tensor --method gptq'; do
        run convert $o --calib t --plan
        expect_exit 0
    done
    run convert --lut none --lut-embeddings 4 --importance i.safetensors --plan
    expect_exit 0
}
test_budgets() {
    broken
    refused 2 "--budget 4.1" "4 to 8 bits" "takes 4.219 to 11.493 bits" -- \
        convert --budget 4.1 -o out
    refused 2 "--budget 12" "4.219 to 11.493" -- convert --budget 12 -o out
    # what is told may be asked for
    for b in 4.219 11.493; do
        refused 3 "NaN" -- convert --budget $b -o out
    done
    refused 2 "--budget 5" "2 to 3 bits" -- \
        convert --budget 5 --widths 2,3 -o out
    refused 2 "--budget" "could have other widths" -- \
        convert --budget 5 --lut none -o out
    refused 2 "--budget" "--quant" -- convert --budget 5 --quant int8 -o out
    for w in '' 4,6, ,4 4,,6 none 4,16; do
        refused 2 "--widths" -- convert --budget 5 "--widths=$w" -o out
    done
    # no tensor's loss can be told apart on too few tokens
    printf '1\n2 3\n' >t
    refused 3 "--budget: 't' has 3 tokens" "at least 4" -- \
        convert --budget 5 --calib t -o out
    printf '1\n2 3 4\n' >t
    refused 3 "NaN" -- convert --budget 5 --calib t -o out
}
test_calibration_tokens() {
    broken
    try() { # words... of the refusal; the file is t
        refused 3 "--calib" "'t'" "$@" -- convert --calib t -o out
        refused 3 "--calib" "'t'" "$@" -- convert --calib t --plan
    }
    echo '1 2 512' >t
    try "token 2 is id 512" "ids 0 to 511"
    printf '1 2\n3 -1\n' >t
    try "prompt 1, token 1 is id -1"
    echo '1 x' >t
    try "'x' is no token id"
    echo >t
    try "no prompt"
    : >t
    try "empty"
    rm t
    try "does not exist"
}
