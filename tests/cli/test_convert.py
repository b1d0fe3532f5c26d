"""`nibble convert` and `nibble verify`: interrupted anywhere, on full and on dying disks, and back again."""
import contextlib
import glob
import json
import math
import os
import random
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import support
from support import DATA, MODEL, NIBBLE, SCRATCH, run

SMALL = os.path.join(DATA, "models", "kimi_k2")
QUICK = os.environ.get("NIB_QUICK") == "1"
FAULTS = os.environ.get("NIB_FAULTS", "")


def content(folder):
    """Every file's bytes, by name."""
    files = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = file.read()
    return files


class Folders(support.Test):
    SCRATCH = SCRATCH

    def setUp(self):
        os.makedirs(self.SCRATCH, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="convert-", dir=self.SCRATCH)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def convert(self, source, name, *arguments, **more):
        return run("convert", source, self.path(name), *arguments, **more)

    def proven(self, source, name):
        report = self.json_of(run("verify", source, self.path(name), "--json"))
        self.assertTrue(report["proven"])


class Forms(Folders):
    def test_the_tiny_model_there_and_back(self):
        """Exact forms give the same model, to the last bit of what it computes."""
        self.succeeds(self.convert(MODEL, "experts", "--to", "per-expert", "--file-size", "0.004"))
        self.proven(MODEL, "experts")
        self.succeeds(self.convert(self.path("experts"), "fused", "--to", "fused", "--gate-up", "concatenated"))
        self.proven(MODEL, "fused")
        expected = os.path.join(DATA, "tiny-gpt-oss", "expected.safetensors")
        reference = self.json_of(run("check", MODEL, expected, "--json"))
        for name in ("experts", "fused"):
            checked = self.json_of(run("check", self.path(name), expected, "--json"))
            self.assertEqual(checked, reference)

    def test_fp8_is_proven_and_refuses_what_it_cannot_say(self):
        done = self.succeeds(self.convert(MODEL, "fp8", "--to", "fp8-channel"))
        self.assertIn("spread of the scales", done.stdout)
        self.proven(MODEL, "fp8")

    def test_options_of_other_forms_are_refused(self):
        """A wish that the form cannot grant is not dropped."""
        for form, option, value in (("per-expert", "--gate-up", "concatenated"), ("fp8-channel", "--names", "deepseek"),
                                    ("fused", "--names", "deepseek"), ("fused", "--consumer-activations", "swiglu_oai"),
                                    ("per-expert", "--experts", "fused"), ("fused", "--scale-rule", "ocp"),
                                    ("fp8-channel", "--dtype-map", "model.layers.0.mlp.experts=keep")):
            with self.subTest(form=form, option=option):
                self.fails(self.convert(MODEL, "refused", "--to", form, option, value), 2, option + " is for")
        self.fails(self.convert(MODEL, "refused", "--to", "fused", "--shard", "1/2", "--merge"), 2, "--shard", "--merge")
        self.assertFalse(os.path.exists(self.path("refused")))
        self.fails(run("convert", MODEL, "", "--to", "fused"), 1, "the path of the destination is empty")

    def test_int4_needs_consent(self):
        self.fails(self.convert(SMALL, "int4", "--to", "int4-g32"), 1, "--lossy")
        self.fails(self.convert(MODEL, "int4", "--to", "int4-g32", "--consumer-activations", "silu"), 1, "--lossy")
        refused = self.convert(MODEL, "int4", "--to", "int4-g32", "--lossy")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("swiglu_oai", refused.stderr)
        done = self.succeeds(self.convert(SMALL, "int4", "--to", "int4-g32", "--lossy"))
        self.assertIn("lossy", done.stderr)
        self.assertIn("worst group", done.stdout)
        self.proven(SMALL, "int4")

    def test_a_dry_run_says_what_would_be(self):
        plan = self.json_of(run("inspect", MODEL, "--dry-run-convert", "per-expert", "--json"))
        done = self.succeeds(self.convert(MODEL, "done", "--to", "per-expert"))
        self.assertTrue(plan["possible"])
        self.assertIn(f"{plan['tensors']} tensors in {plan['files']} files, {plan['experts']} experts", done.stdout)
        refused = run("inspect", MODEL, "--dry-run-convert", "int4-g32")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("swiglu_oai", refused.stdout)

    def test_usage(self):
        self.fails(run("convert", SMALL), 2, "SRC DST")
        self.fails(self.convert(SMALL, "x"), 2, "--to")
        self.fails(self.convert(SMALL, "x", "--to", "gguf"), 2, "gguf")
        self.fails(self.convert(SMALL, "x", "--to", "fused", "--shard", "3/2"), 2, "--shard")
        self.fails(run("convert", SMALL, SMALL, "--to", "fused"), 1, "is the source")
        self.assertIn("--resume", self.succeeds(run("convert", "--help")).stdout)
        self.assertIn("Exit code 0", self.succeeds(run("verify", "--help")).stdout)

    def test_verify_exit_codes(self):
        self.succeeds(self.convert(SMALL, "fused", "--to", "fused"))
        self.assertEqual(run("verify", SMALL, self.path("fused"), "--sample", "0.5").returncode, 3)
        with open(os.path.join(self.path("fused"), "model.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 16]))
        wrong = run("verify", SMALL, self.path("fused"))
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("NOT the same, 1 problem", wrong.stdout)
        self.fails(run("verify", SMALL, self.path("nowhere")), 1, "nowhere")


class Memory(Folders):
    def sparse_layer(self, experts=64, width=1024):
        """One layer of zeros in gpt-oss's layout, of which the disk holds nothing"""
        base = "model.layers.0.mlp.experts."
        shapes = {f"{base}{name}_{part}": [experts, rows, width // 32, *more]
                  for name, rows in (("down_proj", width), ("gate_up_proj", 2 * width)) for part, more in (("blocks", [16]), ("scales", []))}
        header, end = {}, 0
        for name, shape in shapes.items():
            header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [end, end + math.prod(shape)]}
            end += math.prod(shape)
        text = json.dumps(header).encode()
        os.mkdir(self.path("sparse"))
        with open(os.path.join(self.path("sparse"), "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(file.tell() + end)
        with open(os.path.join(self.path("sparse"), "config.json"), "w", encoding="utf-8") as file:
            file.write('{"model_type": "gpt_oss", "num_hidden_layers": 1}')
        return self.path("sparse"), end

    @unittest.skipIf(QUICK, "a sanitizer's own memory is more than the cap")
    def test_a_conversion_keeps_to_its_chunks(self):
        """NeMo 3667: a layer of 102 MiB, and 32 MiB of memory that is not the mapped source, two threads' stacks included"""
        cap = 32 << 20
        source, size = self.sparse_layer()
        self.assertGreater(size, 100 << 20)
        for form in (("per-expert",), ("fp8-channel",), ("int4-g32", "--lossy", "--consumer-activations", "swiglu_oai")):
            with self.subTest(form):
                self.succeeds(subprocess.run(
                    [NIBBLE, "convert", source, self.path(form[0]), "--chunk", "2", "--threads", "2", "--to", *form],
                    capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))))


class Interrupted(Folders):
    # Thousands of files are made durable here; in memory that costs nothing.
    SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else SCRATCH
    ARGUMENTS = ("--to", "fp8-channel", "--file-size", "0.00003")

    @classmethod
    def tearDownClass(cls):
        """A killed process leaves libomp's mark; half written, it stops a later process that gets the same number."""
        for mark in glob.glob(f"/dev/shm/__KMP_REGISTERED_LIB_*_{os.getuid()}"):
            if not os.path.exists(f"/proc/{mark.split('_')[-2]}"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(mark)

    def reference(self):
        self.succeeds(self.convert(SMALL, "reference", *self.ARGUMENTS))
        self.proven(SMALL, "reference")
        return content(self.path("reference"))

    def resumes(self, name, expected):
        """No file has its name before it is whole, and going on ends with the same bytes."""
        for file, data in content(self.path(name)).items() if os.path.isdir(self.path(name)) else ():
            if file in expected:
                self.assertEqual(data, expected[file], f"{file} has its name but not its bytes")
        self.succeeds(self.convert(SMALL, name, *self.ARGUMENTS, "--resume"))
        self.assertEqual(content(self.path(name)), expected)

    def test_killed_at_random(self):
        started = time.monotonic()
        expected = self.reference()
        whole = (time.monotonic() - started) / 2
        chance = random.Random(4)
        unfinished = 0
        for _ in range(10 if QUICK else 50):
            process = subprocess.Popen([NIBBLE, "convert", SMALL, self.path("killed"), *self.ARGUMENTS],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0, whole))
            process.send_signal(signal.SIGKILL)
            unfinished += process.wait() != 0
            self.resumes("killed", expected)
            shutil.rmtree(self.path("killed"))
        self.assertGreater(unfinished, 0 if QUICK else 10)

    def test_killed_at_every_kind_of_call(self):
        if not FAULTS:
            self.skipTest("no library of faults in a sanitizer build")
        expected = self.reference()
        total = self.count_calls("any")
        self.assertGreater(total, 50)
        for at in range(1, total + 1, max(1, total // 60)):
            killed = self.faulty("killed", f"any:KILL:{at}")
            self.assertEqual(killed.returncode, -signal.SIGKILL)
            self.resumes("killed", expected)
            shutil.rmtree(self.path("killed"))

    def faulty(self, name, fault, *arguments, **more):
        environment = {"LD_PRELOAD": FAULTS, "NIB_FAULT": fault, **more}
        return self.convert(SMALL, name, *self.ARGUMENTS, *arguments, environment=environment)

    def count_calls(self, call):
        counter = self.path("count")
        self.succeeds(self.faulty("counted", f"{call}:EIO:1000000000", NIB_FAULT_COUNT=counter))
        shutil.rmtree(self.path("counted"))
        with open(counter) as file:
            return int(file.read())

    def test_calls_that_fail(self):
        if not FAULTS:
            self.skipTest("no library of faults in a sanitizer build")
        expected = self.reference()
        for call, error, says in (("pwrite", "EIO", "cannot write"), ("pwrite", "ENOSPC", "No space left"),
                                  ("fsync", "EIO", "cannot sync"), ("rename", "EIO", "cannot rename"),
                                  ("fallocate", "ENOSPC", "no room"), ("open", "EIO", "Input/output error"),
                                  ("mmap", "ENOMEM", "cannot map")):
            total = self.count_calls(call)
            for at in sorted({1, 2, total // 2, total - 1, total} - {0}):
                with self.subTest(call=call, at=at):
                    shutil.rmtree(self.path("failed"), ignore_errors=True)
                    failed = self.faulty("failed", f"{call}:{error}:{at}")
                    self.fails(failed, 1, says)
                    if os.path.isdir(self.path("failed")):
                        self.assertNotIn("config.json", os.listdir(self.path("failed")))
                        self.resumes("failed", expected)

    def test_calls_that_do_half(self):
        if not FAULTS:
            self.skipTest("no library of faults in a sanitizer build")
        expected = self.reference()
        for fault in ("pwrite:SHORT:1+", "pwrite:EINTR:3", "fallocate:EOPNOTSUPP:1+"):
            self.succeeds(self.faulty("short", fault))
            self.assertEqual(content(self.path("short")), expected)
            shutil.rmtree(self.path("short"))

    def test_a_limit_on_file_sizes(self):
        command = shlex.join([NIBBLE, "convert", MODEL, self.path("limited"), "--to", "fused"])
        process = subprocess.run(["sh", "-c", f"ulimit -f 8000; exec {command}"], capture_output=True, text=True, timeout=60)
        self.fails(process, 1, "model.safetensors.part", "File too large")
        self.succeeds(self.convert(MODEL, "limited", "--to", "fused", "--resume"))
        self.proven(MODEL, "limited")

    def test_a_full_disk(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True,
                                 text=True)
        if mounted.returncode:
            self.skipTest(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        try:
            expected = self.reference()
            failed = self.convert(SMALL, "disk/converted", *self.ARGUMENTS)
            self.fails(failed, 1, "No space left")
            self.assertNotIn("config.json", os.listdir(self.path("disk/converted")))
            self.assertFalse([name for name in os.listdir(self.path("disk/converted")) if name.endswith(".part")])
            subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
            self.resumes("disk/converted", expected)
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_source_that_is_cut_short_meanwhile(self):
        """Pages of a mapped file that are not there any more, as on a disk that dies, end the run with one line."""
        if not FAULTS:
            self.skipTest("no library of faults in a sanitizer build")
        source = self.path("source")
        shutil.copytree(SMALL, source)
        # The first file that is mapped is config.json, the second the weights.
        cut = run("convert", source, self.path("cut"), *self.ARGUMENTS,
                  environment={"LD_PRELOAD": FAULTS, "NIB_FAULT": "mmap:SHORT:2"})
        self.fails(cut, 1, "could not read a page")
        self.assertNotIn("config.json", os.listdir(self.path("cut")))
        shutil.rmtree(source)
        shutil.copytree(SMALL, source)
        self.succeeds(run("convert", source, self.path("cut"), *self.ARGUMENTS, "--resume"))
        self.proven(source, "cut")

    def test_a_source_that_was_cut_short(self):
        source = self.path("source")
        shutil.copytree(SMALL, source)
        weights = os.path.join(source, "model.safetensors")
        os.truncate(weights, os.path.getsize(weights) - 1)
        self.fails(run("convert", source, self.path("cut"), *self.ARGUMENTS), 1, "model.safetensors")
        self.assertFalse(os.path.exists(self.path("cut")))


if __name__ == "__main__":
    support.main()
