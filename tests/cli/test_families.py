"""`nibble check` on the families beside gpt-oss: the fixtures, and the other forms in which releases store the same."""
import base64
import json
import math
import os
import re
import shutil
import struct

import support
from support import DATA, SCRATCH, run

FAMILIES = ("qwen3_moe", "minimax_m2", "mimo_v2", "kimi_k2", "deepseek_v3_grouped")
# The routers of these fixtures are random, and some of their choices are so close that rounding anything to bf16 (the
# cache alone, on the reference device, does it) takes another expert. Then the logits behind it are other logits.
NEAR_TIES = ("mimo_v2", "kimi_k2", "deepseek_v3_grouped")
EXACT = ("--json", "--device", "ref", "--max-abs", "2e-4", "--greedy-margin", "1e-3")


def folder_of(family):
    return os.path.join(DATA, "models", family)


def expected(family):
    return os.path.join(folder_of(family), "expected.safetensors")


class Fixtures(support.Test):
    def test_reference_device(self):
        for family in FAMILIES:
            with self.subTest(family):
                got = self.json_of(run("check", folder_of(family), expected(family), *EXACT))
                self.assertLessEqual(got["max_abs"], 2e-4)
                self.assertEqual(got["greedy_agreement"], 1)

    def test_cpu_device(self):
        for family in FAMILIES:
            with self.subTest(family):
                self.succeeds(run("check", folder_of(family), expected(family), "--json", "--device", "cpu",
                                  "--min-top1", "0.97", "--max-kl", "2e-3", "--max-abs", "1e-2"))

    def test_rounded_activations(self):
        for family in FAMILIES:
            top1, kl = ("0.93", "4e-2") if family in NEAR_TIES else ("0.97", "2e-3")
            with self.subTest(family):
                self.succeeds(run("check", folder_of(family), expected(family), "--json", "--device", "cpu",
                                  "--precision", "fast", "--min-top1", top1, "--max-kl", kl))

    def test_converted_experts(self):
        for family in FAMILIES + ("gpt_oss",):
            for form in ("fused", "per-expert", "fp8-channel"):
                with self.subTest(f"{family} {form}"):
                    target = os.path.join(SCRATCH, "converted")
                    os.makedirs(SCRATCH, exist_ok=True)
                    shutil.rmtree(target, ignore_errors=True)
                    self.succeeds(run("convert", folder_of(family), target, "--to", form))
                    self.succeeds(run("check", target, expected(family), *EXACT))

    def test_chunks_and_threads_do_not_matter_to_fp8_experts(self):
        target = os.path.join(SCRATCH, "fp8-experts")
        os.makedirs(SCRATCH, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        self.succeeds(run("convert", folder_of("kimi_k2"), target, "--to", "fp8-channel"))
        ways = (("--threads", "1"), ("--threads", "2", "--chunk", "7"), ("--threads", "2", "--chunk", "1"))
        for precision in ("fast", "exact"):
            whole, *others = (self.json_of(run("check", target, expected("kimi_k2"), "--json", "--device", "cpu",
                                               "--precision", precision, *way)) for way in ways)
            for other in others:
                self.assertEqual(whole, other)


class Checkpoint:
    """A fixture's config and tensors, {name: (dtype, shape, bytes)}, to be changed and written elsewhere."""

    def __init__(self, family):
        with open(os.path.join(folder_of(family), "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        with open(os.path.join(folder_of(family), "model.safetensors"), "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            header, data = json.loads(file.read(size)), file.read()
        header.pop("__metadata__", None)
        self.tensors = {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
                        for name, entry in header.items()}

    def write(self, name):
        target, header, at = os.path.join(SCRATCH, name), {}, 0
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        for key, (dtype, shape, data) in self.tensors.items():
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(target, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, _, data in self.tensors.values():
                file.write(data)
        with open(os.path.join(target, "config.json"), "w", encoding="utf-8") as file:
            json.dump(self.config, file)
        return target

    def linears(self):
        return [name for name, (dtype, shape, _) in self.tensors.items()
                if dtype == "BF16" and len(shape) == 2 and re.search(r"_proj(_with_mqa)?\.weight$", name)]


def floats_of_bf16(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def bf16_of_floats(values):
    return b"".join(struct.pack("<f", value)[2:] for value in values)


E4M3 = sorted((abs(value), code) for code, value in (
    (code, (code % 8) * 2 ** -9 if code < 8 else (1 + code % 8 / 8) * 2 ** (code // 8 - 7)) for code in range(127)))


def e4m3_code(value):
    magnitude = min(abs(value), 448)
    exponent = max(math.frexp(magnitude)[1] - 1, -6) if magnitude else -6
    code = round(magnitude / 2 ** (exponent - 3))  # 8 .. 16, or fewer below 2^-6
    code = min((exponent + 6) * 8 + code, 126)
    return code | (0x80 if value < 0 else 0)


def to_fp8(checkpoint, block_rows, block_cols, suffix):
    """All linears in FP8 with a power of two for each block; returns the same numbers in bf16, exactly."""
    plain = dict(checkpoint.tensors)
    for name in checkpoint.linears():
        _, (rows, cols), data = checkpoint.tensors[name]
        values, tall, wide = floats_of_bf16(data), block_rows or rows, block_cols or cols
        across = -(-cols // wide)
        largest = [0.0] * (-(-rows // tall) * across)
        block_of = [(i // cols) // tall * across + i % cols // wide for i in range(rows * cols)]
        for value, block in zip(values, block_of):
            largest[block] = max(largest[block], abs(value))
        scales = [2.0 ** (math.frexp(top)[1] - 8) for top in largest]
        codes = [e4m3_code(value / scales[block]) for value, block in zip(values, block_of)]
        decoded = [math.copysign(E4M3[code & 0x7f][0], -1 if code & 0x80 else 1) * scales[block]
                   for code, block in zip(codes, block_of)]
        checkpoint.tensors[name] = ("F8_E4M3", [rows, cols], bytes(codes))
        checkpoint.tensors[name.removesuffix("weight") + suffix] = (
            "F32", [len(scales) // across, across], struct.pack(f"<{len(scales)}f", *scales))
        plain[name] = ("BF16", [rows, cols], bf16_of_floats(decoded))
    return plain


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def to_mxfp4(checkpoint):
    """All linears of whole blocks of 32 in MXFP4; returns the same numbers in bf16, exactly."""
    plain = dict(checkpoint.tensors)
    for name in checkpoint.linears():
        _, (rows, cols), data = checkpoint.tensors[name]
        if cols % 32:
            continue
        values, packed, scales, decoded = floats_of_bf16(data), bytearray(), bytearray(), []
        for at in range(0, rows * cols, 32):
            block = values[at:at + 32]
            power = math.frexp(max(map(abs, block)))[1] - 3
            codes = [min(range(8), key=lambda c, v=abs(v) / 2.0 ** power: abs(E2M1[c] - v)) | (8 if v < 0 else 0)
                     for v in block]
            packed += bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2]))
            scales.append(power + 127)
            decoded += [math.copysign(E2M1[code & 7], -1 if code & 8 else 1) * 2.0 ** power for code in codes]
        checkpoint.tensors[name] = ("U8", [rows, cols // 2], bytes(packed))
        checkpoint.tensors[name + "_scale"] = ("U8", [rows, cols // 32], bytes(scales))
        plain[name] = ("BF16", [rows, cols], bf16_of_floats(decoded))
    return plain


class Forms(support.Test):
    def check(self, folder, family):
        return self.json_of(run("check", folder, expected(family), "--json", "--device", "ref"))

    def test_codes_are_the_numbers_they_stand_for(self):
        forms = {
            "FP8 blocks": lambda checkpoint: to_fp8(checkpoint, 32, 32, "weight_scale_inv"),
            "FP8 channel": lambda checkpoint: to_fp8(checkpoint, 1, None, "weight_scale"),
            "MXFP4": to_mxfp4,
        }
        for family in ("kimi_k2", "mimo_v2", "qwen3_moe"):
            for form, change in forms.items():
                with self.subTest(f"{family} {form}"):
                    checkpoint = Checkpoint(family)
                    plain = change(checkpoint)
                    codes = self.check(checkpoint.write("codes"), family)
                    checkpoint.tensors = plain
                    bf16 = self.check(checkpoint.write("plain"), family)
                    self.assertGreater(bf16["max_abs"], 1e-3)  # the few bits of mantissa are seen
                    for key in ("max_abs", "rel_l2"):
                        self.assertAlmostEqual(codes[key], bf16[key], delta=1e-5)

    def test_text_tower_of_a_multimodal_release(self):
        checkpoint = Checkpoint("kimi_k2")
        checkpoint.tensors = {"language_model." + name: value for name, value in checkpoint.tensors.items()}
        checkpoint.tensors["vision_tower.patch_embed.weight"] = ("BF16", [4], bytes(8))
        checkpoint.tensors["mm_projector.weight"] = ("BF16", [4], bytes(8))
        checkpoint.config = {"model_type": "kimi_k25", "text_config": checkpoint.config}
        checkpoint.config["text_config"]["model_type"] = "kimi_k2"
        folder = checkpoint.write("multimodal")
        self.succeeds(run("check", folder, expected("kimi_k2"), *EXACT))
        self.assertNotIn("unused tensor", self.succeeds(run("inspect", folder)).stdout)

    def test_unknown_tensors_of_what_is_computed_are_refused(self):
        extra = ("BF16", [4], bytes(8))
        cases = {
            "kimi_k2": ("model.layers.1.mlp.experts.7.gate_proj.lora_A", "model.layers.0.mlp.gate.weight",
                        "model.layers.2.self_attn.indexer.wk.weight", "model.layers.3.input_layernorm.bias",
                        "model.layers.3.invented"),
            "qwen3_moe": ("model.layers.0.mlp.shared_expert.gate_proj.weight", "model.norm.bias",
                          "model.layers.0.mlp.gate.e_score_correction_bias", "lm_head.weight_scale_2"),
            "gpt_oss": ("model.layers.1.self_attn.q_norm.weight", "model.layers.0.mlp.experts.gate_up_proj_zeros"),
            "mimo_v2": ("model.layers.0.self_attn.attention_sink_bias", "model.embed_tokens.weight_scale"),
        }
        for family, names in cases.items():
            for name in names:
                with self.subTest(name):
                    checkpoint = Checkpoint(family)
                    checkpoint.tensors[name] = extra
                    folder = checkpoint.write("unknown")
                    self.fails(run("check", folder, expected(family)), 1, "model.safetensors", name)
                    inspected = self.json_of(run("inspect", folder, "--json"))
                    self.assertFalse(inspected["runs"])
                    self.assertIn(name, inspected["runs_not_because"])

    def test_an_expert_too_many_is_refused_in_every_form(self):
        checkpoint = Checkpoint("kimi_k2")
        for name in [name for name in checkpoint.tensors if ".experts." in name]:
            if name.endswith("_scale"):
                del checkpoint.tensors[name]
            else:
                rows, half = checkpoint.tensors[name][1]
                checkpoint.tensors[name] = ("BF16", [rows, 2 * half], bytes(4 * rows * half))
        name = "model.layers.1.mlp.experts.8.up_proj.weight"
        checkpoint.tensors[name] = checkpoint.tensors[name.replace(".8.", ".7.")]
        self.fails(run("check", checkpoint.write("nine"), expected("kimi_k2")), 1, name)

    def test_tensors_that_say_nothing_to_a_forward_pass_are_left_aside(self):
        checkpoint = Checkpoint("kimi_k2")
        one = ("F32", [1], struct.pack("<f", 1))
        layer = "model.layers.1."
        for name in ("self_attn.rotary_emb.inv_freq", "self_attn.k_scale", "self_attn.kv_b_proj.output_scale",
                     "self_attn.o_proj.input_scale", "mlp.shared_experts.up_proj.input_scale"):
            checkpoint.tensors[layer + name] = one
        checkpoint.config["num_nextn_predict_layers"] = 1
        checkpoint.tensors["model.layers.4.eh_proj.weight"] = one
        process = run("check", checkpoint.write("aside"), expected("kimi_k2"), *EXACT)
        self.succeeds(process)
        self.assertEqual(process.stderr, "")

        for name in ("model.layers.5.mtp.weight", "model.layers.60.norm.weight", "something.weight"):
            checkpoint.tensors[name] = one
        process = run("check", checkpoint.write("aside"), expected("kimi_k2"), *EXACT)
        self.succeeds(process)
        self.assertIn("3 tensors are not used by the model, the first is model.layers.5.mtp.weight", process.stderr)

    def test_openai_names_and_their_conversions(self):
        """gpt-oss under the names of OpenAI's own release, and what convert makes of its experts."""
        checkpoint = Checkpoint("gpt_oss")
        old, new = checkpoint.tensors, {}
        checkpoint.tensors = new
        for before, after in (("model.embed_tokens.weight", "embedding.weight"), ("model.norm.weight", "norm.scale"),
                              ("lm_head.weight", "unembedding.weight")):
            new[after] = old[before]
        for layer in range(checkpoint.config["num_hidden_layers"]):
            source, target = f"model.layers.{layer}.", f"block.{layer}."
            new[target + "attn.norm.scale"] = old[source + "input_layernorm.weight"]
            new[target + "mlp.norm.scale"] = old[source + "post_attention_layernorm.weight"]
            new[target + "attn.sinks"] = old[source + "self_attn.sinks"]
            for kind in ("weight", "bias"):
                parts = [old[f"{source}self_attn.{part}_proj.{kind}"] for part in "qkv"]
                rows = sum(shape[0] for _, shape, _ in parts)
                new[f"{target}attn.qkv.{kind}"] = ("BF16", [rows] + parts[0][1][1:], b"".join(p[2] for p in parts))
                new[f"{target}attn.out.{kind}"] = old[f"{source}self_attn.o_proj.{kind}"]
                new[f"{target}mlp.gate.{kind}"] = old[f"{source}mlp.router.{kind}"]
            for before, after in (("gate_up_proj", "mlp1"), ("down_proj", "mlp2")):
                for end, written in (("_blocks", "_weight.blocks"), ("_scales", "_weight.scales"), ("_bias", "_bias")):
                    new[f"{target}mlp.{after}{written}"] = old[f"{source}mlp.experts.{before}{end}"]
        original = checkpoint.write("openai")
        self.succeeds(run("check", original, expected("gpt_oss"), *EXACT))
        for form in ("fused", "per-expert", "fp8-channel"):
            with self.subTest(form):
                target = os.path.join(SCRATCH, "openai-converted")
                shutil.rmtree(target, ignore_errors=True)
                self.succeeds(run("convert", original, target, "--to", form))
                self.succeeds(run("verify", original, target))
                self.succeeds(run("check", target, expected("gpt_oss"), *EXACT))

    def test_fused_qkv_in_shards(self):
        checkpoint = Checkpoint("mimo_v2")
        shards = checkpoint.config["num_key_value_heads"]
        for layer in range(checkpoint.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}.self_attn."
            parts = [checkpoint.tensors.pop(f"{prefix}{part}_proj.weight") for part in "qkv"]
            data = b"".join(part[len(part) // shards * s:len(part) // shards * (s + 1)]
                            for s in range(shards) for _, _, part in parts)
            rows = sum(shape[0] for _, shape, _ in parts)
            checkpoint.tensors[prefix + "qkv_proj.weight"] = ("BF16", [rows, parts[0][1][1]], data)
        self.succeeds(run("check", checkpoint.write("fused-qkv"), expected("mimo_v2"), *EXACT))

    def test_released_config_of_mimo(self):
        checkpoint = Checkpoint("mimo_v2")
        config = checkpoint.config
        ropes = config.pop("rope_parameters")
        config["hybrid_layer_pattern"] = [int(kind == "sliding_attention") for kind in config.pop("layer_types")]
        config["moe_layer_freq"] = [int(kind == "sparse") for kind in config.pop("mlp_layer_types")]
        config["rope_theta"] = ropes["full_attention"]["rope_theta"]
        config["swa_rope_theta"] = ropes["sliding_attention"]["rope_theta"]
        config["partial_rotary_factor"] = ropes["full_attention"]["partial_rotary_factor"]
        config["swa_num_key_value_heads"] = 2 * config["num_key_value_heads"]
        config["layernorm_epsilon"] = config.pop("rms_norm_eps")
        # Both keys are written alike, and the second, which counts the tokens before the query's own, decides.
        config["sliding_window"] = config["sliding_window_size"] = config["sliding_window"] - 1
        config["routed_scaling_factor"] = None
        self.succeeds(run("check", checkpoint.write("released"), expected("mimo_v2"), *EXACT))

    def test_shared_experts(self):
        # A second shared expert of zeros changes nothing, and none is as good as one of zeros.
        two, zeros, none = (Checkpoint("kimi_k2") for _ in range(3))
        for name in [name for name in two.tensors if "shared_experts" in name]:
            dtype, (rows, cols), data = two.tensors[name]
            if "down_proj" in name:
                wide = b"".join(data[2 * cols * r:2 * cols * (r + 1)] + bytes(2 * cols) for r in range(rows))
                two.tensors[name] = (dtype, [rows, 2 * cols], wide)
                zeros.tensors[name] = (dtype, [rows, cols], bytes(len(data)))
            else:
                two.tensors[name] = (dtype, [2 * rows, cols], data + bytes(len(data)))
            del none.tensors[name]
        two.config["n_shared_experts"], none.config["n_shared_experts"] = 2, 0
        self.succeeds(run("check", two.write("two-shared"), expected("kimi_k2"), *EXACT))
        self.assertEqual(self.check(zeros.write("zero-shared"), "kimi_k2"),
                         self.check(none.write("no-shared"), "kimi_k2"))

    def test_queries_from_one_matrix(self):
        # Another model than the fixture, so only the two devices are held against each other.
        checkpoint = Checkpoint("kimi_k2")
        rank, hidden = checkpoint.config["q_lora_rank"], checkpoint.config["hidden_size"]
        for name in [name for name in checkpoint.tensors if ".q_b_proj." in name]:
            dtype, (rows, cols), data = checkpoint.tensors.pop(name)
            for unused in ("q_a_proj", "q_a_layernorm"):
                del checkpoint.tensors[name.replace("q_b_proj", unused)]
            wide = b"".join(data[2 * cols * r:2 * cols * (r + 1)] + bytes(2 * (hidden - rank)) for r in range(rows))
            checkpoint.tensors[name.replace("q_b_proj", "q_proj")] = (dtype, [rows, hidden], wide)
        checkpoint.config["q_lora_rank"] = None
        folder = checkpoint.write("one-matrix")
        ref, cpu = (self.json_of(run("check", folder, expected("kimi_k2"), "--json", "--device", backend))
                    for backend in ("ref", "cpu"))
        self.assertAlmostEqual(ref["mean_kl"], cpu["mean_kl"], delta=1e-3 * ref["mean_kl"])

    def test_tied_head(self):
        checkpoint = Checkpoint("qwen3_moe")
        dtype, shape, _ = checkpoint.tensors.pop("lm_head.weight")
        self.fails(run("check", checkpoint.write("untied"), expected("qwen3_moe")), 1, "lm_head.weight")
        checkpoint.config["tie_word_embeddings"] = True
        tied = self.check(checkpoint.write("tied"), "qwen3_moe")
        checkpoint.config["tie_word_embeddings"] = False
        checkpoint.tensors["lm_head.weight"] = (dtype, shape, checkpoint.tensors["model.embed_tokens.weight"][2])
        self.assertEqual(tied, self.check(checkpoint.write("copied"), "qwen3_moe"))


class Chat(support.Test):
    def folder(self, *renamed):
        target = os.path.join(SCRATCH, "renamed")
        os.makedirs(SCRATCH, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(support.MODEL, target)
        with open(os.path.join(target, "tokenizer.json"), encoding="utf-8") as file:
            text = file.read()
        for old, new in renamed:
            text = text.replace(f'"{old}"', f'"{new}"')
        with open(os.path.join(target, "tokenizer.json"), "w", encoding="utf-8") as file:
            file.write(text)
        return target

    def test_the_vocabulary_chooses_chatml(self):
        folder = self.folder(("<|start|>", "<|im_start|>"), ("<|end|>", "<|im_end|>"))
        got = self.json_of(run("run", folder, "--prompt", "Hello", "--json", "--temperature", "0", "--max-tokens", "8"))
        self.assertTrue(got["messages"])
        self.assertEqual(got["messages"][-1]["channel"], "final")

    def test_kimi_ranks(self):
        # The small model was not trained on these tokens; its answer is noise that must be read all the same.
        folder = self.folder()
        os.remove(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "tiktoken.model"), "wb") as file:
            for byte in range(256):
                file.write(base64.b64encode(bytes([byte])) + f" {byte}\n".encode())
        names = ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<think>", "</think>"]
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump({"added_tokens_decoder": {str(256 + i): {"content": name} for i, name in enumerate(names)}}, file)
        prompt = "Hi"
        system = "You are Kimi, an AI assistant created by Moonshot AI."
        for reasoning, behind in (("medium", 1), ("none", 2)):
            got = self.json_of(run("run", folder, "--prompt", prompt, "--json", "--seed", "1", "--max-tokens", "20",
                                   "--reasoning", reasoning))
            # a token a byte; three turns of two control tokens and, but for the last, an end
            self.assertEqual(got["prompt_tokens"], len("system" + system + "user" + prompt + "assistant") + 8 + behind)
            self.assertEqual(got["messages"][0]["channel"], "analysis" if reasoning == "medium" else "final")

    def test_no_format_fits(self):
        folder = self.folder(("<|start|>", "<|begin|>"))
        self.fails(run("run", folder, "--prompt", "Hello"), 1, "no chat format", "--raw")
        self.succeeds(run("run", folder, "--prompt", "Hello", "--raw", "--max-tokens", "4"))


if __name__ == "__main__":
    support.main()
