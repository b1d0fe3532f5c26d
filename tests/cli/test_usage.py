"""Help of every command, mistakes on the command line, missing and corrupt models, `nibble inspect`."""
import json
import os
import re
import shlex
import shutil
import struct
import subprocess

import support
from support import DATA, MODEL, NIBBLE, SCRATCH, run

COMMANDS = [["run"], ["serve"], ["inspect"], ["convert"], ["verify"], ["check"], ["parity", "moe"], ["eval", "nll"],
            ["eval", "tasks"], ["bench", "decode"], ["bench", "moe"], ["bench", "serve"]]


class Usage(support.Test):
    def test_help(self):
        self.assertIn("usage: nibble COMMAND", self.succeeds(run("--help")).stdout)
        for command in COMMANDS:
            with self.subTest(command):
                text = self.succeeds(run(*command, "--help")).stdout
                self.assertTrue(text.startswith("usage: nibble " + " ".join(command)))
                self.assertTrue(all(len(line) <= 120 for line in text.splitlines()), text)
                options = re.findall(r"^  (--[a-z0-9-]+)", text, re.M)
                self.assertEqual(len(options), len(set(options)), "an option is listed twice")
                self.assertEqual(options[-1], "--help")

    def test_help_is_whole(self):
        """However long the list of an option's values is."""
        shapes = re.search(r"^  --shape (\S+)\n {30}\S", self.succeeds(run("bench", "decode", "--help")).stdout, re.M)
        self.assertIn("mimo-v2-flash-layers", shapes[1].split("|"))

    def test_every_command_has_help(self):
        listed = [line.split()[0] for line in run("--help").stdout.splitlines() if line.startswith("  ")]
        self.assertTrue({"run", "inspect", "check", "eval"} <= set(listed))
        for command in listed:
            with self.subTest(command):
                self.assertIn("usage: nibble " + command, self.succeeds(run(command, "--help")).stdout)

    def test_version(self):
        self.assertRegex(self.succeeds(run("--version")).stdout, r"^nibble \d+\.\d+\.\d+\n$")

    def test_mistakes(self):
        for arguments, word in (((), "--nonsense"), ((), "--temperature"), (("hot",), "--temperature"),
                                (("-1",), "--top-p"), (("2",), "--top-p"), (("1.5",), "--max-tokens"),
                                (("9999999999999999999",), "--max-tokens"), (("loud",), "--reasoning"),
                                (("fpga",), "--device"), (("21",), "--logprobs")):
            with self.subTest((word, arguments)):
                self.fails(run("run", MODEL, word, *arguments), 2, word)
        for date in "tomorrow", "2025-02-30", "2025-2-3", "2025-06-28x", "":
            with self.subTest(date):
                self.fails(run("serve", MODEL, "--port", "0", "--date", date, timeout=10), 2, "--date")
        self.fails(run("serve", MODEL, "--port", "0", "--name", "", timeout=10), 2, "--name")
        self.fails(run("run"), 2, "MODEL")
        self.fails(run("run", MODEL, "another"), 2, "another")
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("dance").returncode, 2)


    def test_what_is_wrong_is_named(self):
        self.fails(run("run", MODEL, "--max-tokens", ""), 2, 'not "";')
        self.fails(run("run", MODEL, ""), 2, 'too many: "";')
        self.fails(run("convert", MODEL), 2, "it takes SRC DST")
        for wrong in ([MODEL, "--random"], [MODEL, "--shape", "gpt-oss-20b"], ["--shape", "gpt-oss-20b"], ["--random"], []):
            with self.subTest(wrong):
                self.fails(run("bench", "decode", *wrong), 2, "MODEL folder, or --shape NAME --random")


class StandardFiles(support.Test):
    PRINTING = (("--version",), ("--help",), ("run", "--help"), ("inspect", MODEL), ("inspect", MODEL, "--json"),
                ("run", MODEL, "--prompt", "Hello", "--temperature", "0"), ("run", MODEL, "--prompt", "Hello", "--json"))

    def test_output_that_cannot_be_written_is_an_error(self):
        """A full disk must not look like success."""
        for arguments in self.PRINTING:
            with self.subTest(arguments), open("/dev/full", "w") as full:
                process = subprocess.run([NIBBLE, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(process.returncode, 1)
                self.assertRegex(process.stderr.splitlines()[-1], "^nibble: standard output cannot be written")

    def test_closed_files_are_taken_by_no_other(self):
        """What is printed must not land in a file of the conversion that has the number of standard output or error."""
        folder = os.path.join(SCRATCH, "closed-files")
        shutil.rmtree(folder, ignore_errors=True)
        for closed, code in ((">&-", 1), ("2>&-", 0), (">&- 2>&- <&-", 1)):
            with self.subTest(closed):
                convert = shlex.join([NIBBLE, "convert", MODEL, folder, "--to", "per-expert"])
                self.assertEqual(subprocess.run(["sh", "-c", f"{convert} {closed}"], capture_output=True, timeout=60).returncode, code)
                self.assertIn("proven", self.succeeds(run("verify", MODEL, folder)).stdout)
                shutil.rmtree(folder)


class Devices(support.Test):
    def test_cuda(self):
        """Without a GPU, or in a build without CUDA, the reason is one line and the exit code 1."""
        for device in ("cuda", "cuda:99"):
            process = run("run", MODEL, "--prompt", "Hello", "--max-tokens", "1", "--device", device)
            if process.returncode == 0:
                self.skipTest("there is a GPU")
            self.assertEqual(process.returncode, 1)
            self.assertRegex(process.stderr, "^nibble: (cuda: |this build has no CUDA)[^\n]*\n$")
        self.fails(run("run", MODEL, "--device", "cuda:x"), 2, "--device")

    def test_former_names_are_understood(self):
        for former in (("--backend", "ref"), ("--backend=ref",)):
            process = run("run", MODEL, "--prompt", "Hello", "--max-tokens", "1", "--json", *former)
            self.assertEqual((process.returncode, json.loads(process.stdout)["device"]), (0, "ref"), process.stderr)
        self.fails(run("run", MODEL, "--backend", "fpga"), 2, "--device")


class Models(support.Test):
    def broken(self, name, change):
        """A copy of the small model with one change."""
        folder = os.path.join(SCRATCH, "broken-" + name)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder)
        change(folder)
        for command in (["run", folder, "--prompt", "a"], ["inspect", folder]):
            process = run(*command)
            self.fails(process, 1)
            yield process.stderr

    def test_missing(self):
        for command in (["run"], ["inspect"]):
            self.fails(run(*command, "/no/such/model", stdin="a"), 1, "/no/such/model")

    def test_truncated_shard(self):
        def change(folder):
            os.truncate(os.path.join(folder, "model-00002-of-00002.safetensors"), 5000000)
        for message in self.broken("truncated", change):
            self.assertIn("model-00002-of-00002.safetensors", message)

    def test_missing_shard(self):
        for message in self.broken("shard", lambda f: os.remove(os.path.join(f, "model-00001-of-00002.safetensors"))):
            self.assertIn("model-00001-of-00002.safetensors", message)

    def test_config_is_no_json(self):
        def change(folder):
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                file.write('{"model_type": "gpt_oss",')
        for message in self.broken("config", change):
            self.assertIn("config.json", message)

    def test_wrong_number_in_config(self):
        def change(folder):
            path = os.path.join(folder, "config.json")
            with open(path, encoding="utf-8") as file:
                text = file.read().replace('"hidden_size": 256', '"hidden_size": -256')
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        folder = os.path.join(SCRATCH, "broken-number")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder)
        change(folder)
        self.fails(run("run", folder, "--prompt", "a"), 1, "config.json", "hidden_size", "-256")


class Defaults(support.Test):
    def test_sampling_comes_from_the_model(self):
        """All that its generation_config.json asks for, unless the command line says otherwise."""
        def text(folder, *options):
            return self.json_of(run("run", folder, "--json", "--raw", "--prompt", "Hello Hello Hello", "--max-tokens", "20", *options))["text"]
        folder = os.path.join(SCRATCH, "generation")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder)
        plain, lowered = text(MODEL, "--temperature", "0"), text(MODEL, "--temperature", "0", "--repetition-penalty", "1.3")
        self.assertNotEqual(plain, lowered)
        for given, expected in (({"do_sample": False}, plain), ({"temperature": 0}, plain), ({"top_k": 1}, plain), ({"top_p": 0.0001}, plain),
                                ({"temperature": 0, "top_k": -1, "repetition_penalty": 1.3}, lowered)):
            with self.subTest(given):
                with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
                    json.dump(given, file)
                self.assertEqual(text(folder), expected)
        self.assertEqual(text(folder, "--repetition-penalty", "1"), plain)
        with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
            file.write('{"repetition_penalty": 0}')
        self.fails(run("run", folder, "--prompt", "a"), 1, "generation_config.json", "repetition_penalty")


class Inspect(support.Test):
    def test_small_model(self):
        got = self.json_of(run("inspect", MODEL, "--json", "--check-scales"))
        self.assertTrue(got["runs"])
        self.assertEqual((got["model_type"], got["tensors"], got["bytes"]), ("gpt_oss", 155, 24142720))
        self.assertEqual(len(got["layers"]), 8)
        self.assertEqual({experts["scales"] for experts in got["experts"]}, {"no NaN"})
        self.assertEqual(sum(group["bytes"] for group in got["groups"]), got["bytes"])
        self.assertEqual(sum(group["count"] for group in got["groups"]), got["tensors"])
        self.assertEqual(got["unused"], [])
        for layer in got["layers"]:
            self.assertTrue(layer["moe_kernel"] and layer["moe_reason"] and layer["linear_kernel"])
        memory = got["memory"]
        self.assertEqual(memory["total_bytes"], sum(memory[part + "_bytes"] for part in
                                                    ("weights", "cache", "buffer", "scratch")))

    def test_text(self):
        text = self.succeeds(run("inspect", MODEL)).stdout
        for word in ("gpt_oss", "window 128", "experts of 256 x 256", "KV cache", "one decoded token reads"):
            self.assertIn(word, text)

    def test_every_family(self):
        root = os.path.join(DATA, "models")
        for name in sorted(os.listdir(root)):
            with self.subTest(name):
                got = self.json_of(run("inspect", os.path.join(root, name), "--json"))
                self.assertGreater(got["tensors"], 0)
                if not got["runs"]:
                    self.assertTrue(got["runs_not_because"])

    def test_one_file(self):
        got = self.json_of(run("inspect", os.path.join(MODEL, "model-00001-of-00002.safetensors"), "--json"))
        self.assertFalse(got["runs"])
        self.assertGreater(len(got["experts"]), 0)

    def test_nan_scale(self):
        folder = os.path.join(SCRATCH, "nan-scale")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(DATA, "models", "gpt_oss"), folder)
        path = os.path.join(folder, "model.safetensors")
        with open(path, "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
            name = "model.layers.1.mlp.experts.down_proj_scales"
            file.seek(8 + size + header[name]["data_offsets"][0] + 3)
            file.write(b"\xff")
        process = run("inspect", folder, "--check-scales")
        self.assertEqual(process.returncode, 1)
        self.assertIn(name, process.stdout)
        self.assertEqual(run("inspect", folder).returncode, 0)


if __name__ == "__main__":
    support.main()
