"""nibble parity moe on the float64 vectors, and the shape of what nibble bench moe prints and draws."""
import glob
import json
import os
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

NIBBLE = os.environ["NIBBLE"]
SCRATCH = os.environ["NIB_SCRATCH"]
VECTORS = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "../data/moe/*.safetensors")))


def run(*arguments):
    return subprocess.run([NIBBLE, *arguments], capture_output=True, text=True)


class Parity(unittest.TestCase):
    def test_every_kernel_passes_on_every_vector(self):
        done = run("parity", "moe", "--json", *VECTORS)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertTrue(report["pass"])
        self.assertEqual({row["detail"] for row in report["rows"]}, {os.path.basename(v) for v in VECTORS})
        for row in report["rows"]:
            self.assertLessEqual(row["rel_l2"], 1.8e-3)

    def test_text_ends_with_the_verdict(self):
        done = run("parity", "moe", "--tier", "ref", VECTORS[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("PARITY PASS", done.stdout.splitlines()[-1])

    def test_a_file_without_vectors_is_an_error(self):
        path = os.path.join(SCRATCH, "not-vectors.safetensors")
        os.makedirs(SCRATCH, exist_ok=True)
        with open(path, "wb") as file:
            file.write((2).to_bytes(8, "little") + b"{}")
        done = run("parity", "moe", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("w13", done.stderr)


class Bench(unittest.TestCase):
    SMALL = ["--variant", "gptoss", "--experts", "4", "--seconds", "0.1", "--no-unpack"]

    def test_rows_and_plot(self):
        plot = os.path.join(SCRATCH, "bench.svg")
        os.makedirs(SCRATCH, exist_ok=True)
        done = run("bench", "moe", *self.SMALL, "--tokens", "1,2", "--json", "--plot", plot)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["tokens"] for row in rows], [1, 2])
        for row in rows:
            self.assertEqual((row["variant"], row["threads"]), ("gptoss", 1))
            for key in ("us_median", "gb_per_s", "share_of_read_ceiling", "times_floor"):
                self.assertGreater(row[key], 0)
            self.assertIn("unpack_ratio", row)
        self.assertTrue(ElementTree.parse(plot).getroot().tag.endswith("svg"))

    def test_impossible_arguments_are_named(self):
        for arguments in (["--tokens", "0"], ["--variant", "none"], ["--experts", "3", "--variant", "glm"]):
            done = run("bench", "moe", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(arguments[0], done.stderr)


if __name__ == "__main__":
    unittest.main()
