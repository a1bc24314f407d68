# anemll-convert: options, output folder, determinism, interruption.

quick="--ctx 128 --lut 6 --no-gate"

test_converts_and_passes_its_gate() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 6 -o out
    expect_exit 0
    expect_out "out: " "PASS (fp16, "
    expect_only out
    expect_file out/meta.yaml out/gate.json out/config.json out/tokenizer.json \
        out/tokenizer_config.json
    [ "$(json out/gate.json verdict)" = PASS ] || fail "verdict"
    [ "$(json out/gate.json reached_end)" = true ] || fail "reached_end"
    [ "$(json out/gate.json crossed_batch)" = true ] || fail "crossed_batch"
}
test_first_argument_is_the_model() {
    run anemll-convert "$(tiny)" $quick -o out
    expect_exit 0
    expect_only out
}
test_default_output_name() {
    model Small-1B
    run anemll-convert --hf Small-1B/ $quick
    expect_exit 0
    expect_only Small-1B anemll-Small-1B-ctx128
}
test_every_family_and_layout() {
    run anemll-convert --hf "$(tiny llama)" --ctx 128 --lut 4,8 --chunks 2 -o a
    expect_exit 0
    expect_out "PASS"
    [ "$(ls a | grep -c '_chunk_0[12]of02.mlpackage$')" -eq 2 ] || fail "chunks"
    run anemll-convert --hf "$(tiny qwen3 odd)" --ctx 128 --lut none -o b
    expect_exit 0
    expect_out "PASS"
}
# Recurrent layers, published layout, a mixture of experts.
test_hybrid_family() {
    run anemll-convert --hf "$(tiny qwen3_5)" --ctx 256 --lut 6 -o a
    expect_exit 0
    expect_out "PASS (fp16, "
    expect_err "skipped by rule 'visual'" "skipped by rule 'mtp'"
    grep -q '^    recurrent_state: true$' a/meta.yaml || fail "meta.yaml"
    run anemll-convert --hf "$(tiny qwen3_5_moe)" --ctx 256 --lut 6 -o b
    expect_exit 0
    expect_out "PASS (fp16, "
    grep -q 'moe: {experts: 16, experts_per_token: 4, evaluation: dense}' \
        b/meta.yaml || fail "meta.yaml"
}
# Text-only in float32, odd widths, layers of the last kind, experts one by
# one; in chunks of which some lack a kind of layer.
test_hybrid_family_odd_f32() {
    run anemll-convert --hf "$(tiny qwen3_5 odd)" --ctx 128 --batch 16 \
        --lut none --chunks 5 --profile f32 -o a
    expect_exit 0
    expect_out "PASS (f32, "
    run anemll-convert --hf "$(tiny qwen3_5_moe odd)" --ctx 128 --batch 16 \
        --lut none --chunks 2 --profile f32 -o b
    expect_exit 0
    expect_out "PASS (f32, "
}
test_json_report() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --json -o out
    expect_exit 0
    [ "$(json stdout verdict)" = PASS ] || fail "verdict"
    [ "$(json stdout schema)" = 1 ] || fail "schema"
    [ "$(json stdout package)" = out ] || fail "package"
    json stdout plan >/dev/null
    json stdout gate.checks.0.name >/dev/null
}
test_no_gate_says_unverified() {
    run anemll-convert --hf "$(tiny)" $quick -o out
    expect_exit 0
    expect_out "UNVERIFIED"
    expect_absent out/gate.json
}
test_lut_forms() {
    for l in 1 2 3 4 6 8 none 4,0 4,tensor 6,16 8,1; do
        run anemll-convert --hf "$(tiny)" --ctx 64 --no-gate --lut $l -o out
        expect_exit 0
        rm -r out
    done
}
test_lut_per_part() {
    run anemll-convert --hf "$(tiny)" --ctx 64 --no-gate --lut-ffn 4 \
        --lut-lmhead 8 --lut-embeddings none -o a
    expect_exit 0
    run anemll-convert --hf "$(tiny)" --ctx 64 --no-gate --lut2 4 --lut3 8 \
        --lut1 none -o b
    expect_exit 0
    ls a | grep -q FFN_PF_lut4_ || fail "no lut4 in the chunk's name"
    ls a | grep -q lm_head_lut8 || fail "no lut8 in the head's name"
    sed 's/-a-/-b-/' a/meta.yaml | cmp -s - b/meta.yaml || expect_same a b
}
test_lut_that_is_none() {
    for l in 0 5 7 9 16 six 6, 6,x 6,-1 6,8,2 '' none,8; do
        refused 2 "--lut" -- anemll-convert --hf "$(tiny)" --ctx 128 --lut "$l" \
            -o out
    done
}
test_context_above_the_positions() {
    refused 2 "--ctx 41024" "40960" "max_position_embeddings" -- \
        anemll-convert --hf "$(tiny)" --ctx 41024 -o out
}
test_context_no_multiple_of_the_batch() {
    refused 2 "--ctx 100" "64" -- anemll-convert --hf "$(tiny)" --ctx 100 -o out
    refused 2 "--ctx 0" -- anemll-convert --hf "$(tiny)" --ctx 0 -o out
}
test_batch_out_of_range() {
    refused 2 "--batch 0" -- anemll-convert --hf "$(tiny)" --batch 0 -o out
    refused 2 "--batch 8192" -- \
        anemll-convert --hf "$(tiny)" --ctx 8192 --batch 8192 -o out
}
test_chunks_out_of_range() {
    refused 2 "--chunks" "3 layers" -- \
        anemll-convert --hf "$(tiny)" --chunks 4 -o out
    for c in 0 100 x -1; do
        refused 2 "--chunks" -- anemll-convert --hf "$(tiny)" --chunks=$c -o out
    done
}
test_head_parts_that_do_not_divide() {
    refused 2 "--split-lm-head 7 does not divide the vocabulary of 512 rows" "16 would" -- \
        anemll-convert --hf "$(tiny)" --split-lm-head 7 -o out
    for n in 257 512 3000000000; do
        refused 2 "--split-lm-head" "is not between 1 and 256" -- \
            anemll-convert --hf "$(tiny)" --split-lm-head $n -o out
    done
}
test_prefix() {
    refused 2 "--prefix" -- anemll-convert --hf "$(tiny)" --prefix ../x -o out
    refused 2 "--prefix" -- anemll-convert --hf "$(tiny)" --prefix no -o out
    run anemll-convert --hf "$(tiny)" $quick --prefix mine -o out
    expect_exit 0
    [ -d out/mine_embeddings.mlpackage ] || fail "prefix is not used"
}
test_unknown_profile() {
    refused 2 "--profile 'fp8'" -- \
        anemll-convert --hf "$(tiny)" --profile fp8 -o out
}
test_scales_that_cannot_be_folded() {
    for s in 0 2 -0.5 0.3 1/8 half 3e-05 ""; do
        refused 2 "--fp16-scale '$s'" "power of two" -- \
            anemll-convert --hf "$(tiny)" "--fp16-scale=$s" -o out
    done
}
test_range_is_told_and_not_measured_under_a_given_scale() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --no-gate --json -o a
    expect_exit 0
    [ "$(json stdout plan.fp16_scale)" = 1 ] || fail "fp16_scale"
    grep -q "fp16 range on 32 measured tokens: the residual stream" stdout ||
        fail "no range"
    run anemll-convert --hf "$(tiny)" --ctx 128 --no-gate --fp16-scale 1 -o b
    expect_exit 0
    grep -q "fp16 range" stderr && fail "measured all the same"
    expect_same a b
}
test_narrow_tables_of_per_layer_embeddings_are_warned_of() {
    run anemll-fixtures checkpoint --arch gemma4 --like tiny -q -o m
    run anemll-convert --hf m --ctx 128 --lut-embeddings 6 --plan
    expect_exit 0
    grep -q "per-layer" stderr && fail "6 bits are warned of"
    run anemll-convert --hf m --ctx 128 --lut-embeddings 4 --plan
    expect_exit 0
    expect_err "tables of per-layer embeddings lose much below 6 bits"
}
test_states_of_sliding_and_full_layers_are_planned() {
    run anemll-fixtures checkpoint --arch gemma4 --like tiny -q -o m
    run anemll-convert --hf m --ctx 512 --batch 16 --plan
    expect_exit 0
    expect_out "kv_cache_local [4, 2, 64, 32] fp16, 32.7 KB"
    expect_out "kv_cache_global [1, 2, 512, 64] fp16, 131 KB"
}
test_strict_refuses_a_fallback() {
    refused 3 "q_proj" "group of 7" "--strict" -- \
        anemll-convert --hf "$(tiny)" --ctx 128 --lut 4,7 --strict -o out
}
test_fallback_is_said() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --no-gate --lut 4,24 -o out
    expect_exit 0
    expect_err "group of 24, using 16"
}

# ---- --plan ----

test_plan_writes_nothing() {
    run anemll-convert --hf "$(tiny)" --ctx 512 --plan -o out
    expect_exit 0
    expect_out "qwen_embeddings" "qwen_lm_head"
    here_is >"$ROOT/found"
    [ ! -s "$ROOT/found" ] || fail "files: $(cat "$ROOT/found")"
}
test_plan_from_the_config_alone() {
    mkdir m
    cp "$(tiny)/config.json" m/
    run anemll-convert --hf m --plan --json
    expect_exit 0
    json stdout >/dev/null
    expect_only m
}
test_plan_tells_the_sizes_that_are_written() {
    run anemll-convert --hf "$(tiny)" $quick --plan --json
    expect_exit 0
    cp stdout plan.json
    run anemll-convert --hf "$(tiny)" $quick -o out
    expect_exit 0
    for i in 0 1 2; do
        name=$(json plan.json parts.$i.name)
        want=$(json plan.json parts.$i.weight_bytes)
        got=$(wc -c <"out/$name.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
        [ "$want" -eq "$got" ] || fail "$name: planned $want, written $got"
    done
}
test_plan_of_a_bad_option() {
    refused 2 "--ctx 100" -- anemll-convert --hf "$(tiny)" --plan --ctx 100
}

# ---- the output folder ----

test_existing_output() {
    mkdir out
    echo mine >out/file
    refused 2 "'out' exists" "--force" -- \
        anemll-convert --hf "$(tiny)" $quick -o out
    [ "$(cat out/file)" = mine ] || fail "touched"
}
test_existing_file_as_output() {
    echo mine >out
    refused 2 "'out' exists" -- anemll-convert --hf "$(tiny)" $quick -o out
    refused 2 "--force" -- anemll-convert --hf "$(tiny)" $quick --force -o out
    [ "$(cat out)" = mine ] || fail "touched"
}
test_force_replaces_a_package() {
    cp -r "$(package)" out
    run anemll-convert --hf "$(tiny)" $quick --force -o out
    expect_exit 0
    expect_only out
    ls out | grep -q lut6 || fail "not replaced"
    ls out | grep -q lut4 && fail "not replaced whole"
    :
}
test_force_keeps_what_is_no_package() {
    mkdir out
    echo mine >out/file
    refused 2 "'out'" "no package" -- \
        anemll-convert --hf "$(tiny)" $quick --force -o out
    [ "$(cat out/file)" = mine ] || fail "touched"
}
test_force_keeps_a_package_with_a_file_of_the_user() {
    cp -r "$(package)" out
    echo mine >out/notes.txt
    refused 2 "'out'" "'notes.txt'" "--force does not remove it" -- \
        anemll-convert --hf "$(tiny)" $quick --force -o out
    [ "$(cat out/notes.txt)" = mine ] || fail "touched"
}
test_force_keeps_the_old_package_when_it_fails() {
    cp -r "$(package)" out
    model m
    st_poke m/model.safetensors model.norm.weight 3 '\300\177'
    refused 3 "norm.weight" -- anemll-convert --hf m $quick --force -o out
    expect_same "$(package)" out
}
test_output_inside_the_model() {
    model m
    refused 2 "inside" -- anemll-convert --hf m $quick -o m/out
    expect_absent m/out
    mkdir m/sub
    refused 2 "inside" -- anemll-convert --hf m $quick -o m/sub/out
    ln -s m/sub link
    refused 2 "inside" -- anemll-convert --hf m $quick -o link/out
}
test_model_inside_the_output() {
    mkdir -p out
    model out/m
    refused 2 "'out'" -- anemll-convert --hf out/m $quick -o out
    refused 2 "'out'" -- anemll-convert --hf out/m $quick --force -o out
    expect_file out/m/model.safetensors
}
test_output_is_the_model() {
    model m
    refused 2 "'m'" -- anemll-convert --hf m $quick -o m
    refused 2 "'m'" -- anemll-convert --hf m $quick --force -o m
    refused 2 -- anemll-convert --hf m $quick --force -o ./m/../m
    expect_file m/model.safetensors
}
test_output_through_a_dangling_link() {
    ln -s nowhere/deep out
    refused 2 "'out'" -- anemll-convert --hf "$(tiny)" $quick -o out
}
test_parents_of_the_output_are_made() {
    run anemll-convert --hf "$(tiny)" $quick -o a/b/out
    if [ "$status" -eq 0 ]; then
        expect_file a/b/out/meta.yaml
    else
        expect_only
        expect_err "a/b"
    fi
}
test_model_through_links() {
    mkdir blobs snap
    for f in "$(tiny)"/*; do
        cp "$f" "blobs/$(basename "$f").blob"
        ln -s "../blobs/$(basename "$f").blob" "snap/$(basename "$f")"
    done
    ln -s snap m
    run anemll-convert --hf m $quick -o out
    expect_exit 0
    [ -z "$(find out -type l)" ] || fail "links in the package"
    run anemll-convert --hf "$(tiny)" $quick -o same
    expect_exit 0
    diff -r -x meta.yaml same out >&2 || fail "links change the bytes"
}
test_dangling_link_in_the_model() {
    model m
    rm m/model.safetensors
    ln -s ../blobs/gone m/model.safetensors
    refused 3 "model.safetensors" "link" -- \
        anemll-convert --hf m $quick -o out
}
test_read_only_model() {
    model m
    chmod -R a-w m
    run anemll-convert --hf m $quick -o out
    expect_exit 0
    [ -w out/config.json ] || fail "the package is read-only"
}
test_unwritable_parent() {
    model m
    mkdir ro
    chmod a-w ro
    as=
    if [ "$(id -u)" -eq 0 ]; then # root may write everywhere
        chmod 755 "$ROOT" . m
        as="setpriv --reuid=65534 --regid=65534 --clear-groups"
        $as anemll-convert --version >/dev/null 2>&1 ||
            skip "root may write everywhere"
    fi
    refused 4 "ro" -- unprivileged anemll-convert --hf m $quick -o ro/out
}
unprivileged() {
    $as "$@"
}

# ---- bytes and modes ----

test_two_runs_write_the_same_bytes() {
    model m
    run anemll-convert --hf m --ctx 128 --lut 4 -o a
    expect_exit 0
    mv a first
    run anemll-convert --hf m --ctx 128 --lut 4 -o a
    expect_exit 0
    expect_same first a
}
test_threads_do_not_change_the_bytes() {
    for t in 1 2 5; do
        run anemll-convert --hf "$(tiny llama)" --ctx 128 --lut 6,4 --threads $t -o out
        expect_exit 0
        mv out with$t
    done
    expect_same with1 with2
    expect_same with1 with5
}
test_simd_does_not_change_the_bytes() {
    for l in scalar auto; do
        run anemll-convert --hf "$(tiny qwen3 odd)" $quick --cpu $l -o out
        expect_exit 0
        mv out with-$l
    done
    expect_same with-scalar with-auto
}
test_nothing_of_this_machine_is_written() {
    model secret-place
    run anemll-convert --hf "$PWD/secret-place" --ctx 128 -o out
    expect_exit 0
    grep -rlaF -e "$PWD" -e "$ROOT" out >&2 && fail "a path is in the package"
    :
}
modes() { # umask, file mode, folder mode
    (
        umask "$1"
        anemll-convert --hf "$(tiny)" $quick -q -o "out$1" >/dev/null
    )
    for f in $(find "out$1" -type f); do
        [ "$(stat -c %a "$f")" = "$2" ] || fail "$f: mode $(stat -c %a "$f")"
    done
    for f in $(find "out$1" -type d); do
        [ "$(stat -c %a "$f")" = "$3" ] || fail "$f: mode $(stat -c %a "$f")"
    done
}
test_modes_follow_the_umask() {
    tiny >/dev/null
    modes 022 644 755
    modes 077 600 700
}

# ---- trouble in the middle ----

test_full_disk_is_found_before_work() {
    mkdir disk
    mount -t tmpfs -o size=256k tmpfs disk 2>/dev/null ||
        skip "no permission to mount a small disk"
    model m
    status=0
    command="anemll-convert -o disk/out"
    anemll-convert --hf m $quick -o disk/out >stdout 2>stderr || status=$?
    left=$(ls -A disk)
    umount disk
    expect_exit 4
    expect_err "needs about" "free"
    expect_no_out
    [ -z "$left" ] || fail "left on the disk: $left"
}
test_disk_that_fills_in_the_middle() {
    mkdir disk
    mount -t tmpfs -o size=1200k tmpfs disk 2>/dev/null ||
        skip "no permission to mount a small disk"
    model m
    # Enough at first; a file grows while the conversion runs.
    status=0
    command="anemll-convert -o disk/out"
    anemll-convert --hf m --ctx 128 --lut none --no-gate -o disk/out \
        >stdout 2>stderr || status=$?
    left=$(ls -A disk)
    umount disk
    [ "$status" -eq 0 ] || {
        expect_exit 4
        [ -z "$left" ] || fail "left on the disk: $left"
    }
}
test_file_size_limit() {
    model m
    status=0
    command="anemll-convert under ulimit -f"
    (
        ulimit -f 200
        exec anemll-convert --hf m $quick -o out
    ) >stdout 2>stderr || status=$?
    expect_exit 4
    expect_err "weight.bin"
    expect_only m
}
# A conversion that has begun, stopped by a signal: nothing is left.
interrupted() { # signal, options...
    signal=$1
    shift
    model m
    anemll-convert --hf m -o out --threads 1 "$@" >stdout 2>stderr &
    pid=$!
    i=0
    while [ -z "$(find . -name '.out.*' | head -n 1)" ] && [ $i -lt 2000 ]; do
        kill -0 $pid 2>/dev/null || break
        sleep 0.005
        i=$((i + 1))
    done
    sleep 0.05
    kill -s "$signal" $pid 2>/dev/null || skip "it was faster than the signal"
    status=0
    command="anemll-convert, stopped by $signal"
    wait $pid || status=$?
    expect_exit 4
    expect_err "interrupted"
    expect_no_out
    expect_only m
}
test_interrupt_in_the_gate() {
    interrupted INT --ctx 4096 --batch 16 --lut none --profile f32
}
test_interrupt_while_writing() {
    [ -d "$ROOT/big" ] || anemll-fixtures checkpoint --arch llama \
        --like smollm2-135m -q -o "$ROOT/big" || fail "no checkpoint"
    ln -s "$ROOT/big" m
    model() { :; }
    interrupted TERM --ctx 512 --lut 6 --no-gate
}
test_closed_stderr_leaves_nothing() {
    model m
    st_poke m/model.safetensors model.norm.weight 3 '\300\177'
    status=0
    command="anemll-convert, its messages unread"
    { anemll-convert --hf m $quick -v -o out || echo $? >"$ROOT/code"; } 2>&1 |
        : || :
    [ "$(cat "$ROOT/code")" = 3 ] || fail "exit $(cat "$ROOT/code")"
    expect_only m
}
test_leftovers_of_a_killed_run_are_removed() {
    model m
    anemll-convert --hf m -o out --ctx 4096 --batch 16 --lut none \
        >stdout 2>stderr &
    pid=$!
    i=0
    while [ -z "$(find . -name '.out.*' | head -n 1)" ] && [ $i -lt 2000 ]; do
        sleep 0.005
        i=$((i + 1))
    done
    kill -s KILL $pid 2>/dev/null || skip "it was faster than the signal"
    wait $pid 2>/dev/null || :
    run anemll-convert --hf m $quick -o out
    expect_exit 0
    expect_only m out
}
test_two_runs_at_once_do_not_meet() {
    model m
    anemll-convert --hf m --ctx 128 --lut 6 -q -o a >/dev/null 2>err.a &
    one=$!
    anemll-convert --hf m --ctx 128 --lut 6 -q -o b >/dev/null 2>err.b &
    two=$!
    wait $one && wait $two || fail "$(cat err.a err.b)"
    rm err.a err.b
    expect_only m a b
    diff -r -x meta.yaml a b >&2 || fail "different bytes"
}
test_address_space_limit() {
    status=0
    command="anemll-convert under ulimit -v"
    ldd "$(command -v anemll-convert)" | grep -q 'lib[at]san' &&
        skip "sanitizers need the whole address space"
    ckpt=$(tiny)
    (
        ulimit -v 40000
        exec anemll-convert --hf "$ckpt" $quick --threads 1 -o out
    ) >stdout 2>stderr || status=$?
    case $status in
    0) ;;
    4) expect_only ;;
    *) fail "exit 0 or 4 was expected" ;;
    esac
}

# ---- the forms of a package ----

inode() {
    stat -c %i "$1" 2>/dev/null || stat -f %i "$1"
}
test_both_forms_over_one_copy_of_the_weights() {
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 6 --json -o out
    expect_exit 0
    [ "$(json stdout plan.emit)" = both ] || fail "plan.emit"
    [ "$(json stdout gate.forms.0)" = mlmodelc ] || fail "gate.forms"
    [ "$(json out/gate.json forms.1)" = mlpackage ] || fail "forms in gate.json"
    for p in out/*.mlpackage; do
        a=$p/Data/com.apple.CoreML/weights/weight.bin
        b=${p%.mlpackage}.mlmodelc/weights/weight.bin
        [ "$(inode "$a")" = "$(inode "$b")" ] || fail "two copies of $a"
    done
    [ "$(ls out | grep -c '\.mlmodelc$')" -eq 3 ] || fail "parts"
    # What the tool says it wrote is what lies there, but for meta.yaml and such.
    said=$(json stdout bytes)
    there=$(find out -name '*.bin' -o -name '*.mil' -o -name '*.mlmodel' \
        -o -name metadata.json | while read -r f; do
        echo "$(inode "$f") $(wc -c <"$f")"; done | sort -u |
        awk '{ n += $2 } END { print n }')
    [ "$said" = "$there" ] || fail "said $said bytes, there are $there"
}
test_one_form_alone() {
    for form in mlmodelc mlpackage; do
        run anemll-convert --hf "$(tiny)" --ctx 128 --emit $form -o $form
        expect_exit 0
        expect_out "PASS (fp16, "
        [ "$(ls $form | grep -c '\.ml')" -eq 3 ] || fail "parts"
        [ "$(ls $form | grep -c "\.$form\$")" -eq 3 ] || fail "form"
        [ "$(json $form/gate.json forms.0)" = $form ] || fail "forms"
        json $form/gate.json forms.1 >/dev/null 2>&1 && fail "two forms"
    done
    run anemll-convert --hf "$(tiny)" --ctx 128 --no-gate -o both
    for p in mlmodelc/*.mlmodelc mlpackage/*.mlpackage; do
        expect_same "$p" "both/${p#*/}"
    done
}
test_forms_that_are_none() {
    for f in none BOTH mlmodel both,both ''; do
        refused 2 "--emit '$f'" "both, mlmodelc and mlpackage" -- \
            anemll-convert --hf "$(tiny)" --emit="$f" -o out
    done
}
test_weights_are_copied_where_links_fail() {
    without_links true || skip "system calls cannot be filtered"
    run without_links anemll-convert --hf "$(tiny)" --ctx 128 --lut 6 -o out
    expect_exit 0
    expect_err "takes no hard links: the weights are stored in both forms"
    expect_out "PASS (fp16, " "both forms, "
    expect_only out
    for p in out/*.mlpackage; do
        a=$p/Data/com.apple.CoreML/weights/weight.bin
        b=${p%.mlpackage}.mlmodelc/weights/weight.bin
        [ "$(inode "$a")" != "$(inode "$b")" ] || fail "linked all the same"
        expect_same "$a" "$b"
    done
    mv out copied
    run anemll-convert --hf "$(tiny)" --ctx 128 --lut 6 -o out
    expect_exit 0
    grep -q "hard links" stderr && fail "links are there"
    expect_same copied out
}
# Room for the weights once, not for a copy.
test_copies_need_room() {
    without_links true || skip "system calls cannot be filtered"
    model m
    need=$(anemll-convert --hf m --ctx 128 --lut none --plan --json |
        sed -n 's/^ *"disk_bytes": \([0-9]*\),*$/\1/p')
    mkdir disk
    mount -t tmpfs -o size=$(((need + 1400000) / 1024))k tmpfs disk 2>/dev/null ||
        skip "no permission to mount a small disk"
    status=0
    command="anemll-convert -o disk/out, no links"
    without_links anemll-convert --hf m --ctx 128 --lut none --no-gate \
        -o disk/out >stdout 2>stderr || status=$?
    left=$(ls -A disk)
    code=0
    anemll-convert --hf m --ctx 128 --lut none --no-gate -q -o disk/out \
        >/dev/null 2>&1 || code=$?
    umount disk
    expect_exit 4
    expect_err "no hard links here, weights are copied" "needs about"
    [ -z "$left" ] || fail "left on the disk: $left"
    [ $code -eq 0 ] || fail "with links there is room"
}
