"""`nibble inspect` of folders without weights: what the whole model would need, against numbers worked out by hand."""
import json
import os
import shutil

import support
from support import DATA, MODEL, SCRATCH, run

CONFIGS = os.path.join(DATA, "configs")
MXFP4, FP8, BF16 = 0.5 + 1 / 32, 1 + 4 / 128 ** 2, 2

# layers with experts, experts, hidden, intermediate, bytes of a weight; the cache's groups as (window, layers, elements a layer)
KNOWN = {
    "kimi-k2": (60, 384, 7168, 2048, MXFP4, {(0, 61, 512 + 64)}),
    "deepseek-v3": (58, 256, 7168, 2048, FP8, {(0, 61, 512 + 64)}),
    "mimo-v2-flash": (47, 256, 4096, 2048, MXFP4, {(0, 9, 4 * (192 + 128)), (129, 39, 8 * (192 + 128))}),
    "minimax-m2": (62, 256, 3072, 1536, FP8, {(0, 62, 2 * 8 * 128)}),
    "qwen3-235b": (94, 128, 4096, 1536, BF16, {(0, 94, 2 * 4 * 128)}),
    "gpt-oss-120b": (36, 128, 2880, 2880, MXFP4, {(128, 18, 2 * 8 * 64), (0, 18, 2 * 8 * 64)}),
}


class Absent(support.Test):
    def folder(self, config, index=None):
        target = os.path.join(SCRATCH, "absent")
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        with open(os.path.join(target, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        if index is not None:
            with open(os.path.join(target, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
                json.dump(index, file)
        return target

    def config(self, name):
        with open(os.path.join(CONFIGS, name + ".json"), encoding="utf-8") as file:
            return json.load(file)

    def test_every_release(self):
        self.assertEqual({name.removesuffix(".json") for name in os.listdir(CONFIGS)}, set(KNOWN))
        for name, (layers, experts, hidden, intermediate, size, groups) in KNOWN.items():
            with self.subTest(name):
                config = self.config(name)
                got = self.json_of(run("inspect", self.folder(config), "--json"))
                expert_bytes = layers * experts * 3 * hidden * intermediate * size
                if name == "gpt-oss-120b":
                    expert_bytes += layers * experts * (2 * intermediate + hidden) * 2  # biases
                self.assertAlmostEqual(got["weights"]["expert_bytes"], expert_bytes, delta=16)
                text = config.get("text_config", config)
                self.assertEqual(got["weights"]["embedding_bytes"], 2 * text["vocab_size"] * text["hidden_size"])
                self.assertEqual({(g["window"], g["layers"], g["elements_per_token"] // g["layers"])
                                  for g in got["cache_groups"]}, groups)
                for group in got["cache_groups"]:
                    self.assertEqual(group["bytes_per_token"], 2 * group["elements_per_token"])
                self.assertEqual(got["cache_bytes_per_token"],
                                 sum(2 * n * width for window, n, width in groups if window == 0))
                self.assertEqual(got["memory"]["context"], text["max_position_embeddings"])
                per_token = expert_bytes / experts * got["experts_per_token"]
                self.assertAlmostEqual(got["expert_bytes_per_token"], per_token, delta=16)
                self.assertAlmostEqual(got["weight_bytes_per_token"],
                                       got["expert_bytes_per_token"] + got["dense_bytes_per_token"], delta=2)
                self.assertAlmostEqual(got["most_tokens_per_second"] * got["weight_bytes_per_token"],
                                       got["read_bytes_per_second"], delta=got["read_bytes_per_second"] / 100)
                self.assertLess(got["most_tokens_per_second_full_context"], got["most_tokens_per_second"])

    def test_windows_bound_the_cache(self):
        small, large = (self.json_of(run("inspect", self.folder(self.config("mimo-v2-flash")), "--json", "--context",
                                         str(context))) for context in (32768, 262144))
        sliding = [next(g for g in got["cache_groups"] if g["window"]) for got in (small, large)]
        self.assertEqual(sliding[0]["sequence_bytes"], sliding[1]["sequence_bytes"])
        self.assertGreater(large["cache_without_windows_bytes"], 9 * large["cache_sequence_bytes"])
        text = self.succeeds(run("inspect", self.folder(self.config("mimo-v2-flash")))).stdout
        self.assertIn("39 layers x 2560 elements x 2 bytes", text)
        self.assertIn("times as much", text)

    def test_every_fixture(self):
        for name in ("gpt_oss", "kimi_k2", "deepseek_v3_grouped", "mimo_v2", "minimax_m2", "qwen3_moe"):
            with self.subTest(name):
                whole = os.path.join(DATA, "models", name)
                with open(os.path.join(whole, "config.json"), encoding="utf-8") as file:
                    config = json.load(file)
                there = self.json_of(run("inspect", whole, "--json"))
                absent = self.json_of(run("inspect", self.folder(config), "--json"))
                sizes = absent["weights"]
                planned = sizes["expert_bytes"] + sizes["dense_bytes"] + sizes["embedding_bytes"]
                self.assertAlmostEqual(planned, there["bytes"], delta=there["bytes"] / 50)  # corrections in fp32
                self.assertAlmostEqual(absent["weight_bytes_per_token"], there["weight_bytes_per_token"],
                                       delta=there["weight_bytes_per_token"] / 50)
                self.assertEqual(absent["cache_groups"], there["cache_groups"])
                memory = there["memory"]
                parts = ("weights", "widened", "cache", "buffer", "scratch")
                self.assertEqual(memory["total_bytes"], sum(memory[part + "_bytes"] for part in parts))

    def test_missing_files_are_named(self):
        files = [f"model-{i:05}-of-00006.safetensors" for i in range(1, 7)]
        index = {"metadata": {"total_size": 600 * 10 ** 9}, "weight_map": {f"t{i}": name for i, name in enumerate(files)}}
        folder = self.folder(self.config("kimi-k2"), index)
        got = self.json_of(run("inspect", folder, "--json"))
        self.assertEqual(sorted(got["files_missing"]), files)
        self.assertEqual(got["memory"]["weights_bytes"], 600 * 10 ** 9)
        text = self.succeeds(run("inspect", folder)).stdout
        for word in ("6 tensors in 6 files", files[0], "61 layers x 576 elements x 2 bytes: 70272", "tok/s"):
            self.assertIn(word, text)
        with open(os.path.join(folder, files[2]), "wb"):
            pass
        partial = run("inspect", folder, "--json")
        self.fails(partial, 1, "safetensors")
        self.assertEqual(sorted(json.loads(partial.stdout)["files_missing"]), files[:2] + files[3:])

    def test_some_shards_are_not_none(self):
        for name in ("model-00000-of-00014.safetensors", "model.safetensors"):
            folder = self.folder(self.config("gpt-oss-120b"))
            os.symlink(os.path.join(SCRATCH, "nowhere"), os.path.join(folder, name))
            partial = run("inspect", folder)
            self.fails(partial, 1, name)
            self.assertEqual(partial.stdout, "")

    def test_refusals(self):
        config = self.config("kimi-k2")
        config["text_config"]["scoring_func"] = "softmax"
        self.fails(run("inspect", self.folder(config)), 1, "scoring_func", "softmax")
        config = self.config("minimax-m2")
        config["quantization_config"]["quant_method"] = "awq"
        self.fails(run("inspect", self.folder(config)), 1, "quant_method", "awq")
        self.fails(run("inspect", self.folder(self.config("qwen3-235b"), {"weight_map": 5})), 1, "weight_map")
        empty = os.path.join(SCRATCH, "empty")
        os.makedirs(empty, exist_ok=True)
        self.fails(run("inspect", empty), 1, "config.json")

    def test_complete_models_print_their_cache(self):
        text = self.succeeds(run("inspect", MODEL)).stdout
        self.assertIn("bytes a token", text)
        self.assertIn("KV cache of a sequence", text)


if __name__ == "__main__":
    support.main()
