# anemll-fixtures kit: what a Mac is asked, and the script's own judgement.

kit() { # NAME [options...]: DIR of a kit of the shared package, with its rows
    k=$1
    shift
    run anemll-fixtures kit "$(package)" -o "$k" --logits "$k.safetensors" "$@"
    expect_exit 0
}
# A Python with numpy; coremltools is used where it is there.
python_of() {
    for p in "${PEERS_PYTHON-}" "$BUILD/peers/bin/python" python3; do
        [ -n "$p" ] && "$p" -c 'import numpy' 2>/dev/null && {
            printf '%s\n' "$p"
            return
        }
    done
    skip "no Python with numpy (PEERS_PYTHON)"
}

test_kit_is_complete() {
    kit k
    expect_no_out
    expect_file k/kit.json k/README.md k/check.py k/check.swift k/package/meta.yaml
    expect_same "$(package)" k/package
    expect_same "$SRC/tools/kit/check.py" k/check.py
    expect_same "$SRC/tools/kit/check.swift" k/check.swift
    expect_same "$SRC/tools/kit/README.md" k/README.md
    [ "$(json k/kit.json parts.1)" = qwen_FFN_PF_lut4_chunk_01of01 ] || fail "parts"
    [ "$(json k/kit.json prompts.0.calls.0.function)" = prefill ] || fail "prefill"
    [ "$(json k/kit.json prompts.0.calls.0.count)" = 64 ] || fail "count"
    [ "$(json k/kit.json prompts.0.calls.1.first)" = 64 ] || fail "first"
    [ "$(json k/kit.json prompts.1.calls.0.function)" = infer ] || fail "infer"
    json k/kit.json prompts.1.calls.28.digest.15 >/dev/null || fail "digest"
    grep -q /home k/kit.json k/check.py && fail "a path"
    :
}
test_kits_are_deterministic() {
    kit a --threads 1
    kit b --threads 2
    expect_same a b
    expect_same a.safetensors b.safetensors
}
# The script reads what the runtime wrote, with its own arithmetic.
test_dry_run_confirms() {
    p=$(python_of)
    kit k
    run "$p" k/check.py --dry-run k.safetensors
    expect_exit 0
    expect_out "CONFIRMED: 54 rows, top-1 54 of 54 (decided "
    expect_absent k/result.json
    [ "$(wc -l <stdout)" -eq 1 ] || fail "more than one line"
}
test_dry_run_refutes() {
    p=$(python_of)
    kit k
    n=$((9 + $(st_header_bytes k.safetensors)))
    # Other logits in one row of 512: zeros.
    cp k.safetensors zeros.safetensors
    dd if=/dev/zero of=zeros.safetensors bs=1 seek=$((n - 1 + 4 * 512 * 7)) \
        count=2048 conv=notrunc 2>/dev/null
    run "$p" k/check.py --dry-run zeros.safetensors
    expect_exit 1
    expect_out "REFUTED: 54 rows, " "first: prompt 0, position 70: token 0 instead of"
    # NaN in the last row of all.
    cp k.safetensors nan.safetensors
    printf '\000\000\300\177' | dd of=nan.safetensors bs=1 \
        seek=$(($(wc -c <nan.safetensors) - 4)) conv=notrunc 2>/dev/null
    run "$p" k/check.py --dry-run nan.safetensors
    expect_exit 1
    expect_out "REFUTED: " "worst error inf" "NaN"
    # Another model's rows.
    anemll-fixtures checkpoint --seed 2 -q -o other
    anemll-convert --hf other --ctx 128 --lut 4 --no-gate -q -o op >/dev/null
    anemll-fixtures kit op -o ok --logits o.safetensors -q
    run "$p" k/check.py --dry-run o.safetensors
    expect_exit 1
    expect_out "REFUTED: "
    # Rows that are missing, a file that is none.
    head -c 5000 k.safetensors >short
    run "$p" k/check.py --dry-run short
    expect_exit 1
    expect_out "REFUTED: "
    run "$p" k/check.py --dry-run gone
    expect_exit 1
    expect_out "REFUTED: "
}
# A difference as small as half precision makes is no refutation.
test_dry_run_takes_rounding() {
    p=$(python_of)
    kit k
    "$p" - <<'END'
import json, struct
import numpy as np
b = open("k.safetensors", "rb").read()
n = 8 + struct.unpack("<Q", b[:8])[0]
x = np.frombuffer(b[n:], "<f4")
r = np.random.default_rng(1).standard_normal(x.size).astype("f4")
y = x + np.float32(0.01 * np.sqrt(np.mean(x * x))) * r
open("near.safetensors", "wb").write(b[:n] + y.astype("<f4").tobytes())
END
    run "$p" k/check.py --dry-run near.safetensors
    expect_exit 0
    expect_out "CONFIRMED: "
    awk '{ sub(/.*worst error /, ""); exit !($1 > 0.005 && $1 < 0.02) }' stdout ||
        fail "the digest misses the distance"
}
# Every family's calls: states, rotation, the second output of embeddings.
test_kits_of_other_families() {
    p=$(python_of)
    for arch in llama qwen3_5 gemma3 gemma4; do
        anemll-convert --hf "$(tiny $arch)" --ctx 128 --batch 32 --lut 6 \
            --chunks 2 --no-gate -q -o $arch >/dev/null
        run anemll-fixtures kit $arch -o k-$arch --logits $arch.safetensors
        expect_exit 0
        run "$p" k-$arch/check.py --dry-run $arch.safetensors
        expect_exit 0
        expect_out "CONFIRMED: "
    done
    grep -q prefill_rotate k-gemma3/kit.json || say "no rotation at this size"
}
test_prompts_from_a_file() {
    printf '1 2 3 4 5\n9 8 7\n' >ids
    kit k --tokens ids
    [ "$(json k/kit.json prompts.1.tokens.2)" = 7 ] || fail "tokens"
    json k/kit.json prompts.2 >/dev/null 2>&1 && fail "more prompts"
    :
}
test_without_a_device_it_says_so() {
    p=$(python_of)
    [ "$(uname)" = Linux ] || skip "there may be a device"
    kit k
    run "$p" k/check.py
    expect_exit 1
    expect_out "REFUTED: "
    expect_file k/result.json
    [ "$(json k/result.json confirmed)" = false ] || fail "confirmed"
}
# As downloads lie in a cache: the kit goes to another machine.
test_links_become_files() {
    cp -a "$(package)" linked
    mv linked/tokenizer.json blob
    ln -s ../blob linked/tokenizer.json
    run anemll-fixtures kit linked -o k
    expect_exit 0
    [ ! -L k/package/tokenizer.json ] || fail "a link in the kit"
    cmp blob k/package/tokenizer.json || fail "another file"
}

test_bad_kits() {
    refused 2 "kit needs a package" -- anemll-fixtures kit -o k
    refused 2 "-o DIR" -- anemll-fixtures kit "$(package)"
    mkdir there
    refused 2 "exists" -- anemll-fixtures kit "$(package)" -o there
    cp -a "$(package)" held
    refused 2 "inside the package" -- anemll-fixtures kit held -o held/kit
    ln -s / held/more
    refused 3 "held/more' is a link to a folder" -- anemll-fixtures kit held -o k
    rm -r held
    refused 3 "there" -- anemll-fixtures kit there -o k
    refused 3 "gone" -- anemll-fixtures kit "$(package)" -o k --tokens gone
    refused 2 "--tokens" -- anemll-fixtures checkpoint -o k --tokens x
    refused 2 "unexpected" -- anemll-fixtures checkpoint x -o k
}
