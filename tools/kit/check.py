#!/usr/bin/env python3
"""Asks a Mac what kit.json says of the package beside it, and answers in one
line: CONFIRMED or REFUTED.

  pip install coremltools numpy
  python3 check.py                        the Neural Engine and the CPU
  python3 check.py --units gpu            another unit
  python3 check.py --form mlpackage       the source form instead of the compiled
  python3 check.py --dry-run FILE         no Mac: rows of logits from a file

Every token is forced, so one difference does not bring the next. result.json
holds the figures: please send it to whoever gave you the kit.
"""
import argparse
import json
import os
import platform
import struct
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
SUMS = 16


def mix(x):
    x = x.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def signs(n):
    i = np.arange(n, dtype=np.uint32) * np.uint32(SUMS)
    return [np.where(mix(i + np.uint32(k)) & np.uint32(1), 1.0, -1.0)
            for k in range(SUMS)]


class Judge:
    """Compares rows of logits with what kit.json expects of them."""

    def __init__(self, kit):
        self.kit = kit
        self.signs = signs(kit["vocab_size"])
        self.worst = 0.0
        self.rows = self.equal = self.decided = self.decided_equal = 0
        self.first = None

    def row(self, prompt, call, logits):
        logits = np.asarray(logits, dtype=np.float64).reshape(-1)
        where = "prompt %d, position %d" % (prompt, call["first"] + call["count"] - 1)
        self.rows += 1
        if logits.size != self.kit["vocab_size"] or not np.isfinite(logits).all():
            self.worst = float("inf")
            self.first = self.first or where + ": NaN, Inf or another size"
            return
        d = np.array([s @ logits for s in self.signs]) - np.array(call["digest"])
        error = float(np.sqrt(np.mean(d * d))) / max(call["norm"], 1e-30)
        self.worst = max(self.worst, error)
        top1 = int(np.argmax(logits))
        rms = call["norm"] / self.kit["vocab_size"] ** 0.5
        decided = call["margin"] >= self.kit["decided"] * rms
        same = top1 == call["top1"]
        self.equal += same
        self.decided += decided
        self.decided_equal += decided and same
        if (error > self.kit["limit"] or (decided and not same)) and not self.first:
            self.first = "%s: token %d instead of %d, error %.3g" % (
                where, top1, call["top1"], error)

    def good(self):
        return (self.rows > 0 and self.worst <= self.kit["limit"]
                and self.decided == self.decided_equal)

    def line(self, how):
        text = "%s: %d rows, top-1 %d of %d (decided %d of %d), worst error %.3g; %s" % (
            "CONFIRMED" if self.good() else "REFUTED", self.rows, self.equal, self.rows,
            self.decided_equal, self.decided, self.worst, how)
        return text + ("; first: " + self.first if self.first else "")


def forced_calls(kit):
    """Every call in order: prompt number, call, ids."""
    for number, prompt in enumerate(kit["prompts"]):
        for call in prompt["calls"]:
            ids = prompt["tokens"][call["first"]:call["first"] + call["count"]]
            if len(ids) != call["count"]:
                raise ValueError("prompt %d has no ids for position %d" % (number, call["first"]))
            yield number, call, ids


def decoder_inputs(kit, call):
    """What every chunk takes beside hidden_states: numpy arrays by name."""
    first, count, context = call["first"], call["count"], kit["context_length"]
    positions = np.arange(first, first + count, dtype=np.int32)
    mask = np.where(np.arange(context)[None, :] <= positions[:, None], 0.0, -np.inf)
    return {
        "position_ids": positions,
        "causal_mask": mask[None, None].astype(np.float16),
        "current_pos": np.array([first], dtype=np.int32),
    }


# ---- without a Mac ----

def read_rows(path):
    """Tensors prompt.N [rows, vocab] float32 of a safetensors file."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    rows = {}
    for name, t in header.items():
        if name.startswith("prompt."):
            begin, end = t["data_offsets"]
            if t["dtype"] != "F32":
                raise ValueError("%s: %s is %s, F32 is needed" % (path, name, t["dtype"]))
            rows[int(name[7:])] = np.frombuffer(data[begin:end], "<f4").reshape(t["shape"])
    return rows


def check_specs(kit):
    """The inputs that would be passed against those that the models declare."""
    try:
        import coremltools as ct
    except ImportError:
        return "models not opened (no coremltools)"
    seen = 0
    for number, call, ids in forced_calls(kit):
        for i, stem in enumerate(kit["parts"][1:-1]):
            path = os.path.join(HERE, "package", stem + ".mlpackage")
            if not os.path.isdir(path):
                return "models not opened (no .mlpackage)"
            d = ct.utils.load_spec(path).description
            f = next((f for f in d.functions if f.name == call["function"]), None)
            if f is None:
                raise ValueError("%s has no function %s" % (stem, call["function"]))
            feed = decoder_inputs(kit, call)
            for x in f.input:
                shape = tuple(x.type.multiArrayType.shape)
                if x.name in feed and feed[x.name].shape != shape:
                    raise ValueError("%s, %s: %s is %s, passed %s" % (
                        stem, call["function"], x.name, shape, feed[x.name].shape))
            extra = {x.name for x in f.input} - set(feed) - {"hidden_states", "per_layer_inputs"}
            if extra or not set(feed) <= {x.name for x in f.input}:
                raise ValueError("%s, %s: other inputs than are passed" % (stem, call["function"]))
            seen += 1
        if call["count"] == 1:
            break
    return "inputs of %d functions fit" % seen


def dry_run(kit, path, judge):
    rows, at = read_rows(path), {}
    for number, call, ids in forced_calls(kit):
        decoder_inputs(kit, call)
        if "top1" not in call:
            continue
        k = at.get(number, 0)
        if number not in rows or k >= len(rows[number]):
            raise ValueError("%s: no row %d of prompt %d" % (path, k, number))
        judge.row(number, call, rows[number][k])
        at[number] = k + 1
    return "dry run, " + check_specs(kit)


# ---- on a Mac ----

class Models:
    def __init__(self, kit, units, form):
        import coremltools as ct
        self.ct = ct
        self.kit = kit
        self.units = {"ne": ct.ComputeUnit.CPU_AND_NE, "gpu": ct.ComputeUnit.CPU_AND_GPU,
                      "all": ct.ComputeUnit.ALL}[units]
        self.forms = [form] if form else ["mlmodelc", "mlpackage"]
        self.loads = []
        self.cache = {}

    def load(self, stem, function):
        key = (stem, function)
        if key in self.cache:
            return self.cache[key]
        failure = None
        for form in self.forms:
            path = os.path.join(HERE, "package", stem + "." + form)
            if not os.path.isdir(path):
                continue
            try:
                make = (self.ct.models.CompiledMLModel if form == "mlmodelc"
                        else self.ct.models.MLModel)
                model = make(path, compute_units=self.units, function_name=function)
                self.loads.append("%s %s: loaded" % (stem + "." + form, function or ""))
                self.cache[key] = model
                return model
            except Exception as error:  # what Core ML raises has no one class
                failure = "%s.%s, %s: %s" % (stem, form, function or "main", error)
                self.loads.append(failure)
        raise RuntimeError(failure or "no model '%s' in any form asked for" % stem)

    def run(self, judge):
        parts = self.kit["parts"]
        state, current = None, None
        for number, call, ids in forced_calls(self.kit):
            if number != current:
                state = self.load(parts[1], "prefill").make_state()
                current = number
            out = self.load(parts[0], None).predict(
                {"input_ids": np.array([ids], dtype=np.int32)})
            hidden = np.asarray(out["hidden_states"], dtype=np.float16)
            feed = decoder_inputs(self.kit, call)
            if "per_layer_inputs" in out:
                feed["per_layer_inputs"] = np.asarray(out["per_layer_inputs"], dtype=np.float16)
            for stem in parts[1:-1]:
                feed["hidden_states"] = hidden
                out = self.load(stem, call["function"]).predict(feed, state)
                hidden = np.asarray(out["output_hidden_states"], dtype=np.float16)
            if "top1" not in call:
                continue
            out = self.load(parts[-1], None).predict({"hidden_states": hidden[:, -1:, :]})
            logits = [out["logits%d" % (i + 1)] for i in range(len(out))]
            judge.row(number, call, np.concatenate([np.ravel(x) for x in logits]))


def machine():
    chip = platform.machine()
    try:
        chip = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"],
                              capture_output=True, text=True).stdout.strip() or chip
        build = subprocess.run(["sw_vers", "-buildVersion"],
                               capture_output=True, text=True).stdout.strip()
    except OSError:
        build = ""
    return "%s %s %s" % (chip, platform.mac_ver()[0] or platform.system(), build)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--units", choices=["ne", "gpu", "all"], default="ne",
                        help="CPU and Neural Engine (ne), CPU and GPU, or all; the CPU alone "
                             "is known to give NaN for such models")
    parser.add_argument("--form", choices=["mlmodelc", "mlpackage"],
                        help="the form to load (default: compiled, else source)")
    parser.add_argument("--dry-run", metavar="FILE", help="rows of logits instead of a device")
    args = parser.parse_args()
    with open(os.path.join(HERE, "kit.json")) as f:
        kit = json.load(f)
    judge, models = Judge(kit), None
    try:
        if args.dry_run:
            how = dry_run(kit, args.dry_run, judge)
        else:
            models = Models(kit, args.units, args.form)
            models.run(judge)
            how = "%s, units %s, %s" % (machine(), args.units, " and ".join(
                sorted({x.split()[0].rsplit(".", 1)[1] for x in models.loads if "loaded" in x})))
        line, good = judge.line(how), judge.good()
    except Exception as error:
        line, good = "REFUTED: %s; %s" % (" ".join(str(error).split()), machine()), False
    print(line)
    if not args.dry_run:
        with open(os.path.join(HERE, "result.json"), "w") as f:
            json.dump({"line": line, "confirmed": good, "machine": machine(),
                       "loads": models.loads if models else [], "worst": repr(judge.worst),
                       "rows": judge.rows, "top1": judge.equal, "decided": judge.decided,
                       "decided_top1": judge.decided_equal}, f, indent=2)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
