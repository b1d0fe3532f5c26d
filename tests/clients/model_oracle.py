#!/usr/bin/env python3
"""Small random models of odd shapes against their definitions in numpy, written from the papers and published configs and
sharing nothing with the library: head and group counts, windows, ranks, tied embeddings, layer patterns.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy
    /tmp/venv/bin/python tests/clients/model_oracle.py [--build build] [--seed 1] [FAMILY …]

Each model is checked by `nibble check` on the reference device (whole, in chunks of 7 and token by token) and on the CPU
device. Exit status 1 on any difference.
"""

import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TOKENS = 75

# ---- weights


class Weights:
    """Random tensors as the file has them, and the numbers they stand for."""

    def __init__(self, seed):
        self.random, self.file, self.value = np.random.default_rng(seed), {}, {}

    def add(self, name, shape, scale=None, mean=0.0):
        scale = shape[-1] ** -0.5 if scale is None else scale
        values = (mean + scale * self.random.standard_normal(shape)).astype(np.float32)
        bits = (values.view(np.uint32) + 0x8000) >> 16
        self.file[name] = ("BF16", shape, bits.astype("<u2").tobytes())
        self.value[name] = (bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)

    def add_mxfp4(self, name, rows, cols):
        codes = self.random.integers(0, 16, (rows, cols))
        scales = self.random.integers(121, 124, (rows, cols // 32)) - round(math.log2(cols) / 2) + 2
        self.file[name] = ("U8", (rows, cols // 2), (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8).tobytes())
        self.file[name + "_scale"] = ("U8", scales.shape, scales.astype(np.uint8).tobytes())
        signs = np.where(codes & 8, -1.0, 1.0)
        self.value[name] = signs * E2M1[codes & 7] * np.repeat(2.0 ** (scales - 127), 32, axis=1)

    def __getitem__(self, name):
        return self.value[name]


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


# ---- pieces of the definitions, all in float64


def norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def frequencies(rope, dims):
    inverse = rope["rope_theta"] ** (-np.arange(0, dims, 2) / dims)
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        return inverse / rope["factor"], 1.0
    if kind == "default":
        return inverse, 1.0
    original, factor = rope["original_max_position_embeddings"], rope["factor"]

    def index(rotations):
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low, high = index(rope.get("beta_fast", 32)), index(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / (high - low or 0.001), 0, 1)

    def magnitude(mscale):
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    scale = magnitude(1)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        scale = magnitude(rope["mscale"]) / magnitude(rope["mscale_all_dim"])
    return inverse / factor * ramp + inverse * (1 - ramp), scale


def rotate(x, rope, dims, interleaved=False):
    """The first `dims` elements of the heads x [T, heads, width]."""
    inverse, scale = frequencies(rope, dims)
    angles = np.arange(len(x))[:, None] * inverse
    cos, sin = (np.cos(angles) * scale)[:, None], (np.sin(angles) * scale)[:, None]
    turned, rest = x[..., :dims], x[..., dims:]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turned.shape)
    else:
        a, b = turned[..., :dims // 2], turned[..., dims // 2:]
        turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    return np.concatenate([turned, rest], -1)


def attend(q, k, v, scale, window=0, sinks=None):
    """q [T, heads, d], k and v [T, kv heads, …]."""
    count, heads = q.shape[:2]
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    distance = np.arange(count)[:, None] - np.arange(count)
    scores[:, (distance < 0) | ((distance >= window) if window else False)] = -np.inf
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (heads, count, 1))], -1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True))[..., :count]
    return np.einsum("hqk,khd->qhd", weights, v).reshape(count, -1)


def mixture(w, base, x, c, names=("gate_proj", "up_proj", "down_proj")):
    logits = x @ w[base + "gate.weight"].T
    experts, top_k = len(logits[0]), c["num_experts_per_tok"]
    y = np.zeros_like(x)
    for t, row in enumerate(logits):
        if c.get("softmax"):
            scores = np.exp(row - row.max())
            scores = choice = scores / scores.sum()
        else:
            scores = 1 / (1 + np.exp(-row))
            choice = scores + w[base + "correction"] if c.get("corrected", True) else scores
        groups = c.get("n_group", 1)
        if groups > 1:
            grouped = choice.reshape(groups, -1)
            value = np.sort(grouped, axis=1)[:, -2:].sum(1)
            kept = np.zeros(groups, bool)
            kept[np.argsort(-value, kind="stable")[:c["topk_group"]]] = True
            choice = np.where(np.repeat(kept, experts // groups), choice, 0.0)
        chosen = np.argsort(-choice, kind="stable")[:top_k]
        weights = scores[chosen]
        if c.get("norm_topk_prob", True):
            weights = weights / (weights.sum() + 1e-20)
        for e, weight in zip(chosen, weights * c.get("routed_scaling_factor", 1.0)):
            gate, up, down = (w[f"{base}experts.{e}.{name}.weight"] for name in names)
            y[t] += weight * (down @ (silu(gate @ x[t]) * (up @ x[t])))
    return y


def dense(w, base, x):
    return (silu(x @ w[base + "gate_proj.weight"].T) * (x @ w[base + "up_proj.weight"].T)) @ w[base + "down_proj.weight"].T


def add_dense(w, base, hidden, width):
    for name in ("gate_proj", "up_proj"):
        w.add(f"{base}{name}.weight", (width, hidden))
    w.add(base + "down_proj.weight", (hidden, width))


def add_mixture(w, base, c, hidden, width, experts, correction, names=("gate_proj", "up_proj", "down_proj")):
    w.add(base + "gate.weight", (experts, hidden))
    if correction:
        w.add(base + correction, (experts,), 0.2)
        w.value[base + "correction"] = w[base + correction]
    for e in range(experts):
        for name in names[:2]:
            w.add_mxfp4(f"{base}experts.{e}.{name}.weight", width, hidden)
        w.add_mxfp4(f"{base}experts.{e}.{names[2]}.weight", hidden, width)


def ends(w, c):
    w.add("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), 1.0)
    w.add("model.norm.weight", (c["hidden_size"],), 0.1, 1.0)
    if not c.get("tie_word_embeddings"):
        w.add("lm_head.weight", (c["vocab_size"], c["hidden_size"]))


def run_layers(w, c, ids, attention, mlp, eps):
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        x = x + attention(layer, base + "self_attn.", norm(x, w[base + "input_layernorm.weight"], eps))
        x = x + mlp(layer, base, norm(x, w[base + "post_attention_layernorm.weight"], eps))
    head = w["model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"]
    return norm(x, w["model.norm.weight"], eps) @ head.T


def add_norms(w, base, hidden):
    w.add(base + "input_layernorm.weight", (hidden,), 0.1, 1.0)
    w.add(base + "post_attention_layernorm.weight", (hidden,), 0.1, 1.0)


# ---- families: a config becomes weights and logits


def deepseek(w, c, ids):
    h, heads, lora = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"]
    nope, turned, v, kv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    rope, bias = c["rope_parameters"], c.get("attention_bias", False)
    ends(w, c)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        a = base + "self_attn."
        add_norms(w, base, h)
        if lora:
            w.add(a + "q_a_proj.weight", (lora, h))
            w.add(a + "q_a_layernorm.weight", (lora,), 0.1, 1.0)
            w.add(a + "q_b_proj.weight", (heads * (nope + turned), lora))
        else:
            w.add(a + "q_proj.weight", (heads * (nope + turned), h))
        w.add(a + "kv_a_proj_with_mqa.weight", (kv + turned, h))
        w.add(a + "kv_a_layernorm.weight", (kv,), 0.1, 1.0)
        w.add(a + "kv_b_proj.weight", (heads * (nope + v), kv))
        w.add(a + "o_proj.weight", (h, heads * v))
        if bias:
            w.add(a + "kv_a_proj_with_mqa.bias", (kv + turned,), 0.2)
            w.add(a + "o_proj.bias", (h,), 0.2)
            if lora:
                w.add(a + "q_a_proj.bias", (lora,), 0.2)
        if layer < c["first_k_dense_replace"]:
            add_dense(w, base + "mlp.", h, c["intermediate_size"])
        else:
            add_mixture(w, base + "mlp.", c, h, c["moe_intermediate_size"], c["n_routed_experts"], "gate.e_score_correction_bias")
            if c["n_shared_experts"]:
                add_dense(w, base + "mlp.shared_experts.", h, c["n_shared_experts"] * c["moe_intermediate_size"])
    scale = (nope + turned) ** -0.5
    if rope.get("mscale_all_dim") and rope["factor"] > 1:
        scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2

    def attention(layer, a, x):
        def biased(y, name):
            return y + w[a + name + ".bias"] if bias else y
        if lora:
            q = norm(biased(x @ w[a + "q_a_proj.weight"].T, "q_a_proj"), w[a + "q_a_layernorm.weight"], 1e-6) @ w[a + "q_b_proj.weight"].T
        else:
            q = x @ w[a + "q_proj.weight"].T
        q = q.reshape(len(x), heads, nope + turned)
        row = biased(x @ w[a + "kv_a_proj_with_mqa.weight"].T, "kv_a_proj_with_mqa")
        both = (norm(row[:, :kv], w[a + "kv_a_layernorm.weight"], 1e-6) @ w[a + "kv_b_proj.weight"].T).reshape(len(x), heads, nope + v)
        shared = rotate(row[:, None, kv:], rope, turned, c.get("rope_interleave", True))
        q = np.concatenate([q[..., :nope], rotate(q[..., nope:], rope, turned, c.get("rope_interleave", True))], -1)
        k = np.concatenate([both[..., :nope], np.repeat(shared, heads, axis=1)], -1)
        return biased(attend(q, k, both[..., nope:], scale) @ w[a + "o_proj.weight"].T, "o_proj")

    def mlp(layer, base, x):
        if layer < c["first_k_dense_replace"]:
            return dense(w, base + "mlp.", x)
        y = mixture(w, base + "mlp.", x, c)
        return y + dense(w, base + "mlp.shared_experts.", x) if c["n_shared_experts"] else y

    return run_layers(w, c, ids, attention, mlp, c["rms_norm_eps"])


def grouped(w, c, ids, kinds, sparse, qk_norm, base_of, correction, names, eps):
    """Families of grouped-query attention. kinds: for each layer (heads, kv heads, d, v, window, sinks, rope, dims)."""
    h = c["hidden_size"]
    bias = c.get("attention_bias", False)
    value_scale = c.get("attention_value_scale", 1.0)
    ends(w, c)
    for layer, (heads, kv, d, v, window, sinks, rope, dims) in enumerate(kinds):
        base = f"model.layers.{layer}."
        a = base + "self_attn."
        add_norms(w, base, h)
        for name, rows in (("q_proj", heads * d), ("k_proj", kv * d), ("v_proj", kv * v)):
            w.add(f"{a}{name}.weight", (rows, h))
            if bias:
                w.add(f"{a}{name}.bias", (rows,), 0.2)
        w.add(a + "o_proj.weight", (h, heads * v))
        if bias and c["model_type"] != "mimo_v2_flash":
            w.add(a + "o_proj.bias", (h,), 0.2)
        if qk_norm:
            w.add(a + "q_norm.weight", (heads * d if qk_norm == "whole" else d,), 0.1, 1.0)
            w.add(a + "k_norm.weight", (kv * d if qk_norm == "whole" else d,), 0.1, 1.0)
        if sinks:
            w.add(a + "attention_sink_bias", (heads,), 1.0)
        if sparse[layer]:
            experts = c.get("n_routed_experts") or c.get("num_local_experts") or c["num_experts"]
            add_mixture(w, base_of(base), c, h, c.get("moe_intermediate_size") or c["intermediate_size"], experts, correction, names)
        else:
            add_dense(w, base + "mlp.", h, c["intermediate_size"])

    def attention(layer, a, x):
        heads, kv, d, v, window, sinks, rope, dims = kinds[layer]
        q, k, values = (x @ w[f"{a}{name}.weight"].T + (w[f"{a}{name}.bias"] if bias else 0) for name in ("q_proj", "k_proj", "v_proj"))
        if qk_norm == "whole":
            q, k = norm(q, w[a + "q_norm.weight"], eps), norm(k, w[a + "k_norm.weight"], eps)
        q, k, values = q.reshape(len(x), heads, d), k.reshape(len(x), kv, d), values.reshape(len(x), kv, v)
        if qk_norm == "head":
            q, k = norm(q, w[a + "q_norm.weight"], eps), norm(k, w[a + "k_norm.weight"], eps)
        y = attend(rotate(q, rope, dims), rotate(k, rope, dims), values * value_scale, d ** -0.5, window,
                   w[a + "attention_sink_bias"] if sinks else None)
        return y @ w[a + "o_proj.weight"].T + (w[a + "o_proj.bias"] if a + "o_proj.bias" in w.value else 0)

    def mlp(layer, base, x):
        return mixture(w, base_of(base), x, c, names) if sparse[layer] else dense(w, base + "mlp.", x)

    return run_layers(w, c, ids, attention, mlp, eps)


PLAIN = ("gate_proj", "up_proj", "down_proj")


def mimo(w, c, ids):
    d, n = c["head_dim"], c["num_hidden_layers"]
    kinds = []
    for slides in c["hybrid_layer_pattern"]:
        theta = c["swa_rope_theta"] if slides else c["rope_theta"]
        width = c["swa_head_dim"] if slides else d
        kinds.append((c["swa_num_attention_heads"] if slides else c["num_attention_heads"],
                      c["swa_num_key_value_heads"] if slides else c["num_key_value_heads"], width,
                      c["swa_v_head_dim"] if slides else c["v_head_dim"], c["sliding_window"] if slides else 0,
                      c["add_swa_attention_sink_bias"] if slides else c["add_full_attention_sink_bias"], {"rope_theta": theta},
                      int(width * c["partial_rotary_factor"])))
    assert len(kinds) == n
    return grouped(w, c, ids, kinds, c["moe_layer_freq"], None, lambda base: base + "mlp.", "gate.e_score_correction_bias", PLAIN,
                   c["layernorm_epsilon"])


def minimax(w, c, ids):
    kind = (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["head_dim"], 0, False,
            {"rope_theta": c["rope_theta"]}, c["rotary_dim"])
    n = c["num_hidden_layers"]
    return grouped(w, dict(c, corrected=c["use_routing_bias"]), ids, [kind] * n, [1] * n, "whole" if c["use_qk_norm"] else None,
                   lambda base: base + "block_sparse_moe.", "e_score_correction_bias" if c["use_routing_bias"] else None,
                   ("w1", "w3", "w2"), c["rms_norm_eps"])


def qwen(w, c, ids):
    kind = (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["head_dim"],
            c["sliding_window"] if c.get("use_sliding_window") else 0, False, c["rope_parameters"], c["head_dim"])
    n = c["num_hidden_layers"]
    sparse = [(layer + 1) % c["decoder_sparse_step"] == 0 and layer not in c["mlp_only_layers"] for layer in range(n)]
    return grouped(w, dict(c, softmax=True), ids, [kind] * n, sparse, "head", lambda base: base + "mlp.", None, PLAIN,
                   c["rms_norm_eps"])


# ---- odd configs

YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 32,
        "rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0}


def configs():
    deep = {"model_type": "deepseek_v3", "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 3,
            "num_key_value_heads": 3, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12,
            "v_head_dim": 28, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 12, "num_experts_per_tok": 3,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "rope_parameters": dict(YARN)}
    for change in ({}, {"q_lora_rank": None}, {"q_lora_rank": None, "attention_bias": True}, {"attention_bias": True},
                   {"first_k_dense_replace": 0}, {"first_k_dense_replace": 2}, {"num_hidden_layers": 1, "first_k_dense_replace": 0},
                   {"n_shared_experts": 0}, {"n_shared_experts": 3}, {"n_group": 3, "topk_group": 2}, {"n_group": 6, "topk_group": 2},
                   {"n_group": 4, "topk_group": 4}, {"norm_topk_prob": False, "routed_scaling_factor": 0.7},
                   {"tie_word_embeddings": True}, {"num_attention_heads": 1, "num_key_value_heads": 1, "v_head_dim": 64},
                   {"num_attention_heads": 7, "num_key_value_heads": 7, "kv_lora_rank": 33, "qk_rope_head_dim": 2},
                   {"rope_interleave": False}, {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
                   {"rope_parameters": dict(YARN, mscale=0.5, mscale_all_dim=0.8)}, {"rope_parameters": dict(YARN, factor=40.0)},
                   {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}},
                   {"num_experts_per_tok": 12}, {"num_experts_per_tok": 1}, {"hidden_size": 96, "q_lora_rank": 128, "kv_lora_rank": 96}):
        yield "deepseek", deepseek, dict(deep, **change)
    mi = {"model_type": "mimo_v2_flash", "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
          "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
          "swa_num_attention_heads": 6, "swa_num_key_value_heads": 3, "head_dim": 24, "v_head_dim": 16, "swa_head_dim": 24,
          "swa_v_head_dim": 16, "partial_rotary_factor": 0.34, "rope_theta": 5e6, "swa_rope_theta": 1e4, "sliding_window": 9,
          "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "attention_value_scale": 0.707,
          "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "layernorm_epsilon": 1e-5,
          "max_position_embeddings": 256, "n_group": 1, "topk_group": 1}
    for change in ({}, {"sliding_window": 1}, {"sliding_window": 32}, {"sliding_window": 200}, {"hybrid_layer_pattern": [1, 1, 1, 1]},
                   {"hybrid_layer_pattern": [0, 0, 0, 0]}, {"moe_layer_freq": [1, 0, 1, 0]}, {"add_full_attention_sink_bias": True},
                   {"add_swa_attention_sink_bias": False}, {"swa_head_dim": 36, "swa_v_head_dim": 24}, {"v_head_dim": 48},
                   {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4}, {"num_key_value_heads": 6, "swa_num_key_value_heads": 1},
                   {"attention_bias": True}, {"tie_word_embeddings": True}, {"partial_rotary_factor": 1.0},
                   {"n_group": 4, "topk_group": 2}, {"num_hidden_layers": 1, "hybrid_layer_pattern": [1], "moe_layer_freq": [1]}):
        yield "mimo", mimo, dict(mi, **change)
    mini = {"model_type": "minimax_m2", "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
            "num_local_experts": 10, "num_experts_per_tok": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20,
            "rotary_dim": 10, "rope_theta": 5e6, "use_qk_norm": True, "use_routing_bias": True, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256}
    for change in ({}, {"use_qk_norm": False}, {"use_routing_bias": False}, {"num_key_value_heads": 6}, {"num_key_value_heads": 1},
                   {"rotary_dim": 20}, {"rotary_dim": 2}, {"num_hidden_layers": 1}, {"tie_word_embeddings": True},
                   {"hidden_size": 160, "intermediate_size": 64}, {"num_experts_per_tok": 10}):
        yield "minimax", minimax, dict(mini, **change)
    qw = {"model_type": "qwen3_moe", "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96,
          "moe_intermediate_size": 32, "num_experts": 9, "num_experts_per_tok": 4, "num_attention_heads": 6, "num_key_value_heads": 3,
          "head_dim": 24, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-6,
          "max_position_embeddings": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    for change in ({}, {"norm_topk_prob": False}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0, 2]}, {"attention_bias": True},
                   {"tie_word_embeddings": True}, {"use_sliding_window": True, "sliding_window": 11}, {"num_key_value_heads": 1},
                   {"rope_parameters": dict(YARN, mscale=0, mscale_all_dim=0)}, {"num_hidden_layers": 1}, {"head_dim": 128},
                   {"rope_parameters": dict(YARN, truncate=False, mscale=0, mscale_all_dim=0)}):
        yield "qwen", qwen, dict(qw, **change)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ways = [("ref", ["--max-abs", "2e-4"]), ("ref", ["--max-abs", "2e-4", "--chunk", "7"]),
            ("ref", ["--max-abs", "2e-4", "--chunk", "1"]), ("cpu", ["--max-abs", "5e-3"])]
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (family, define, config) in enumerate(configs()):
            if options.families and family not in options.families:
                continue
            weights = Weights(options.seed + number)
            ids = weights.random.integers(0, config["vocab_size"], TOKENS)
            logits = define(weights, config, ids)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            write(os.path.join(folder, "model.safetensors"), weights.file)
            write(os.path.join(folder, "expected.safetensors"),
                  {"input_ids": ("I32", (TOKENS,), ids.astype("<i4").tobytes()),
                   "logits": ("F32", logits.shape, logits.astype("<f4").tobytes())})
            for device, limits in [ways[number % len(ways)]] if os.environ.get("NIB_QUICK") == "1" else ways:
                got = subprocess.run([os.path.join(options.build, "nibble"), "check", folder, os.path.join(folder, "expected.safetensors"),
                                      "--json", "--device", device, *limits], capture_output=True, text=True, check=False)
                count += 1
                if got.returncode:
                    wrong += 1
                    print(f"{family} {number}: {device} {' '.join(limits)}: {got.stderr.strip() or got.stdout.strip()}\n  {config}")
    print(f"{count} checks, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
