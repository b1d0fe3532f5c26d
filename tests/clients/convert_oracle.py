#!/usr/bin/env python3
"""Reads what `nibble convert` writes with the `safetensors` and `numpy` packages and decodes it by the formats'
definitions, with no code of nibble's.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy safetensors
    /tmp/venv/bin/python tests/clients/convert_oracle.py [build/nibble]      (or: make test-clients)

Checked, for every fixture and the small model: exact forms hold the source's values, element by element; FP8 bytes and
scales are within their limits; int4 codes are recomputed; everything else is byte for byte the source's. Then the small
model is run, in numpy, as it is, in int4 and encoded again from bf16, and the negative log-likelihoods are printed.
"""
import glob
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
from safetensors import safe_open

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NIBBLE = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "nibble")
TINY = os.path.join(ROOT, "models", "tiny-gpt-oss")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def raw_tensors(folder):
    """Names to (dtype, shape, bytes), read without the package: numpy has no bf16 and no FP8."""
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        if os.path.basename(path).startswith("expected"):
            continue
        with safe_open(path, "numpy") as file:  # the package accepts the file and sees the same names
            names = set(file.keys())
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            assert names == set(header)
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                file.seek(8 + size + begin)
                assert name not in tensors
                tensors[name] = (entry["dtype"], tuple(entry["shape"]), file.read(end - begin))
    return tensors


def bf16_values(data):
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def bf16(x):
    """The nearest bf16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32)).view(np.float32).astype(np.float64)


def e4m3_values():
    byte = np.arange(256)
    sign, field, mantissa = np.where(byte & 128, -1.0, 1.0), byte >> 3 & 15, byte & 7
    value = np.where(field > 0, (8 + mantissa) * 2.0 ** (field - 10), mantissa * 2.0**-9)
    return sign * np.where(byte & 127 == 127, np.nan, value)


def array(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return bf16_values(data).reshape(shape)
    if dtype == "F8_E4M3":
        return e4m3_values()[np.frombuffer(data, np.uint8)].reshape(shape)
    kinds = {"U8": "u1", "I8": "u1", "F8_E8M0": "u1", "F32": "<f4", "I32": "<u4", "I64": "<i8", "F16": "<f2"}
    return np.frombuffer(data, kinds[dtype]).reshape(shape)


def codes_of(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def mxfp4(codes, scales):
    values = E2M1[codes].reshape(*scales.shape, 32) * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    return values.reshape(*codes.shape)


def expert_layers(tensors):
    return sorted({name[:name.index("experts.") + 7] for name in tensors
                   if "experts." in name and "shared_experts" not in name})


def experts(tensors, layer, metadata_layout="interleaved"):
    """[gate, up, down] as float arrays [E, rows, cols], and the names they came from; any form."""
    names = [name for name in tensors if name.startswith(layer + ".")]
    get = lambda name: array(tensors[f"{layer}.{name}"])
    for gate_up, scale, down, down_scale in (
            ("gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"),
            ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")):
        if f"{layer}.{gate_up}" not in tensors:
            continue
        both, below = [mxfp4(codes_of(get(weight).reshape(*get(scales).shape[:2], -1)), get(scales))
                       for weight, scales in ((gate_up, scale), (down, down_scale))]
        half = both.shape[1] // 2
        if metadata_layout == "interleaved" and gate_up == "gate_up_proj_blocks":
            return [both[:, 0::2], both[:, 1::2], below], names
        return [both[:, :half], both[:, half:], below], names
    parts = []
    for spellings in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
        matrices = []
        while True:
            found = [p for p in (f"{layer}.{len(matrices)}.{s}" for s in spellings)
                     if p + ".weight" in tensors or p + ".weight_packed" in tensors]
            if not found:
                break
            matrices.append(matrix(tensors, found[0]))
        parts.append(np.stack(matrices))
    return parts, names


def matrix(tensors, name):
    """A matrix of its own, by what lies beside it."""
    weight = tensors.get(name + ".weight", tensors.get(name + ".weight_packed"))
    scale = tensors.get(name + ".weight_scale", tensors.get(name + ".scale"))
    if weight[0] == "I32":
        rows, cols = array(tensors[name + ".weight_shape"])
        words = array(weight)
        q = np.stack([words >> 4 * i & 15 for i in range(8)], -1).reshape(rows, cols).astype(np.float64) - 8
        return (q.reshape(rows, -1, 32) * array(scale)[..., None]).reshape(rows, cols)
    if weight[0] == "F8_E4M3":
        return array(weight) * array(scale).astype(np.float64)
    return mxfp4(codes_of(array(weight)), array(scale))


def int4_by_definition(values):
    w = bf16(values).reshape(*values.shape[:-1], -1, 32)
    top = np.maximum(np.abs(w).max(-1, keepdims=True), bf16(1e-6))
    scale = bf16(top / 7)
    return (np.clip(np.rint(bf16(w / scale)), -7, 7) * scale).reshape(values.shape)


def check_fp8_limits(tensors, layer):
    for name, tensor in tensors.items():
        if name.startswith(layer + ".") and name.endswith("proj.weight"):
            assert tensor[0] == "F8_E4M3", name
            data = np.frombuffer(tensor[2], np.uint8).reshape(tensor[1])
            field, scale = data >> 3 & 15, array(tensors[name + "_scale"])
            assert np.all((data == 0) | ((field >= 2) & (field <= 14))), name
            assert np.all((field == 14).any(1) | (data == 0).all(1)), name
            assert np.all((np.frexp(scale)[0] == 0.5) & (scale > 0)), name


def convert(source, folder, *arguments):
    subprocess.run([NIBBLE, "convert", source, folder, *arguments], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def check_form(source, scratch, form, arguments):
    folder = tempfile.mkdtemp(dir=scratch)
    convert(source, folder, "--to", form, "--file-size", "0.001", *arguments)
    before, after = raw_tensors(source), raw_tensors(folder)
    used_before, used_after = set(), set()
    for layer in expert_layers(before):
        old, names = experts(before, layer)
        used_before |= set(names)
        new, names = experts(after, layer, "concatenated" if "concatenated" in arguments else "interleaved")
        used_after |= set(names)
        for one, other in zip(old, new):
            wanted = int4_by_definition(one) if form == "int4-g32" else one
            assert one.shape == other.shape and np.array_equal(wanted, other), (source, form, layer)
        if form == "fp8-channel":
            check_fp8_limits(after, layer)
    assert used_before and {n for n in before if n not in used_before} == {n for n in after if n not in used_after}
    for name in before:
        if name not in used_before:
            assert before[name] == after[name], name


# ---- The small model in numpy ----


class Model:
    """gpt-oss, forward over one text, in float64."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            self.config = json.load(file)
        self.tensors = raw_tensors(folder)
        self.layers = [experts(self.tensors, f"model.layers.{i}.mlp.experts")[0]
                       for i in range(self.config["num_hidden_layers"])]

    def get(self, name):
        return array(self.tensors[name])

    def linear(self, x, name):
        return x @ self.get(name + ".weight").T + self.get(name + ".bias")

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.get(name + ".weight")

    def rope(self, count):
        c, d = self.config, self.config["head_dim"]
        yarn, base = c["rope_scaling"], c["rope_theta"]
        corner = lambda turns: d * math.log(yarn["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (
            2 * math.log(base))
        low, high = corner(yarn["beta_fast"]), corner(yarn["beta_slow"])
        ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
        inverse = base ** (-np.arange(d // 2) * 2 / d)
        angles = np.arange(count)[:, None] * (inverse / yarn["factor"] * ramp + inverse * (1 - ramp))
        factor = 0.1 * math.log(yarn["factor"]) + 1
        return np.cos(angles) * factor, np.sin(angles) * factor

    def attention(self, x, layer, rope):
        c, name, count = self.config, f"model.layers.{layer}.self_attn", len(x)
        d, heads, groups = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        q, k, v = (self.linear(x, f"{name}.{p}_proj").reshape(count, -1, d) for p in "qkv")

        def turn(y):
            a, b = np.split(y, 2, -1)
            cos, sin = rope[0][:, None], rope[1][:, None]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        q, k = turn(q), turn(k)
        k, v = (np.repeat(y, heads // groups, 1) for y in (k, v))
        q, k, v = (y.swapaxes(0, 1) for y in (q, k, v))  # products of matrices, a head each: numpy's einsum is far slower
        scores = q @ k.swapaxes(1, 2) * d**-0.5
        back = np.arange(count)[:, None] - np.arange(count)
        hidden = back < 0
        if c["layer_types"][layer] == "sliding_attention":
            hidden = hidden | (back >= c["sliding_window"])
        scores[:, hidden] = -np.inf
        sinks = np.broadcast_to(self.get(name + ".sinks")[:, None, None], (heads, count, 1))
        scores = np.concatenate([scores, sinks], -1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores = (scores / scores.sum(-1, keepdims=True))[..., :-1]
        return self.linear((scores @ v).swapaxes(0, 1).reshape(count, -1), name + ".o_proj")

    def biases(self, layer, e):
        name = f"model.layers.{layer}.mlp.experts"
        if f"{name}.gate_up_proj_bias" in self.tensors:
            both = self.get(f"{name}.gate_up_proj_bias")[e]
            return both[0::2], both[1::2], self.get(f"{name}.down_proj_bias")[e]
        return [self.get(f"{name}.{e}.{p}_proj.bias") for p in ("gate", "up", "down")]

    def moe(self, x, layer):
        top, limit = self.config["num_experts_per_tok"], self.config.get("swiglu_limit", 7.0)
        logits = self.linear(x, f"model.layers.{layer}.mlp.router")
        chosen = np.argsort(-logits, 1)[:, :top]
        weights = np.exp(np.take_along_axis(logits, chosen, 1))
        weights /= weights.sum(1, keepdims=True)
        out = np.zeros_like(x)
        gates, ups, downs = self.layers[layer]
        for e in range(len(gates)):
            rows, slots = np.nonzero(chosen == e)
            gate_bias, up_bias, down_bias = self.biases(layer, e)
            gate = np.minimum(x[rows] @ gates[e].T + gate_bias, limit)
            up = np.clip(x[rows] @ ups[e].T + up_bias, -limit, limit)
            inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            np.add.at(out, rows, weights[rows, slots][:, None] * (inner @ downs[e].T + down_bias))
        return out

    def logits(self, ids):
        x, rope = self.get("model.embed_tokens.weight")[ids], self.rope(len(ids))
        for i in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{i}"
            x = x + self.attention(self.norm(x, name + ".input_layernorm"), i, rope)
            x = x + self.moe(self.norm(x, name + ".post_attention_layernorm"), i)
        return self.norm(x, "model.norm") @ self.get("lm_head.weight").T


def nll(logits, ids):
    logits = logits[:-1] - logits[:-1].max(1, keepdims=True)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids) - 1), ids[1:]]).mean())


def write_bf16_fine_tune(source, folder):
    """The small model with its experts in bf16 and transposed, as gpt-oss is fine-tuned."""
    tensors = raw_tensors(source)
    os.makedirs(folder)
    plain = {}
    for layer in expert_layers(tensors):
        gate, up, down = experts(tensors, layer)[0]
        both = np.stack([gate, up], 2).reshape(gate.shape[0], -1, gate.shape[2])
        for name, values in (("gate_up_proj", both), ("down_proj", down)):
            plain[f"{layer}.{name}"] = np.ascontiguousarray(values.swapaxes(1, 2))
            for ending in ("_blocks", "_scales"):
                tensors.pop(f"{layer}.{name}{ending}")
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    for name, values in plain.items():
        assert np.array_equal(bf16(values), values)
        content = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    del config["quantization_config"]
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)


def check_small_model(scratch):
    with safe_open(os.path.join(ROOT, "tests/data/tiny-gpt-oss/expected.safetensors"), "numpy") as file:
        ids = file.get_tensor("long_text.input_ids").astype(np.int64)
        top_ids, top_logits = file.get_tensor("long_text.top_ids"), file.get_tensor("long_text.top_logits")
    original = Model(TINY)
    logits = original.logits(ids)
    assert np.abs(logits[-1][top_ids] - top_logits).max() < 0.05  # the numpy model is the model
    folders = {name: os.path.join(scratch, name) for name in ("fp8", "int4", "bf16", "again")}
    convert(TINY, folders["fp8"], "--to", "fp8-channel")
    convert(TINY, folders["int4"], "--to", "int4-g32", "--lossy", "--consumer-activations", "swiglu_oai")
    write_bf16_fine_tune(TINY, folders["bf16"])
    convert(folders["bf16"], folders["again"], "--to", "mxfp4", "--experts", "fused")
    base = nll(logits, ids)
    print(f"negative log-likelihood of {len(ids) - 1} tokens, nats per token")
    print(f"  as published                   {base:.5f}")
    for name, what in (("fp8", "FP8 per channel"), ("again", "bf16, encoded to MXFP4 again"), ("int4", "int4 g32")):
        after = nll(Model(folders[name]).logits(ids), ids)
        print(f"  {what:30} {after:.5f}  {after - base:+.5f}")
        if name != "int4":
            assert after == base  # the same values, so the same sums


def main():
    forms = [("fused", ()), ("fused", ("--gate-up", "concatenated")), ("per-expert", ()),
             ("per-expert", ("--names", "deepseek")), ("per-expert", ("--names", "compressed-tensors")),
             ("fp8-channel", ()), ("int4-g32", ("--lossy", "--consumer-activations", "silu,swiglu_oai,silu_clamp,unknown"))]
    with tempfile.TemporaryDirectory() as scratch:
        for source in sorted(glob.glob(os.path.join(ROOT, "tests/data/models/*"))) + [TINY]:
            for form, arguments in forms:
                check_form(source, scratch, form, arguments)
            print(f"{os.path.basename(source)}: {len(forms)} forms hold what they should")
        check_small_model(scratch)


if __name__ == "__main__":
    main()
