"""Installs into a scratch prefix and builds a program against it, with pkg-config and with find_package."""
import os
import shutil
import subprocess
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONSUMER = os.path.join(SOURCE, "tests", "install", "consumer")
MODEL = os.path.join(SOURCE, "models", "tiny-gpt-oss")
BUILD = os.environ["NIB_BUILD"]
SCRATCH = os.path.join(BUILD, "scratch", "install")
PREFIX = os.path.join(SCRATCH, "prefix")
CC = os.environ["CC"]


def run(*command, **environment):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment}).stdout


def find(name):
    return [os.path.join(folder, name) for folder, _, files in os.walk(PREFIX) if name in files]


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        run("cmake", "--install", BUILD, "--prefix", PREFIX)
        cls.library_folder = os.path.dirname(find("libnibble.so")[0])
        os.environ["PKG_CONFIG_PATH"] = os.path.join(cls.library_folder, "pkgconfig")

    def flags(self, *arguments):
        return run("pkg-config", *arguments, "nibble").split()

    def check(self, program, **environment):
        nibble = os.path.join(PREFIX, "bin", "nibble")
        told = run(nibble, "run", MODEL, "--raw", "--temperature", "0", "--max-tokens", "1", "--prompt", "Once upon a")
        self.assertIn("Once upon a" + told.rstrip("\n"), run(program, MODEL, **environment))

    def test_command(self):
        self.assertTrue(run(os.path.join(PREFIX, "bin", "nibble"), "--version").startswith("nibble "))

    def test_pkg_config_shared(self):
        program = os.path.join(SCRATCH, "pkg_shared")
        run(CC, os.path.join(CONSUMER, "consumer.c"), "-o", program, *self.flags("--cflags", "--libs"))
        self.check(program, LD_LIBRARY_PATH=self.library_folder)

    def test_pkg_config_static(self):
        program = os.path.join(SCRATCH, "pkg_static")
        libraries = [flag.replace("-lnibble", "-l:libnibble.a") for flag in self.flags("--static", "--libs")]
        run(CC, os.path.join(CONSUMER, "consumer.c"), "-o", program, *self.flags("--cflags"), *libraries)
        self.check(program)

    def test_cmake_package(self):
        build = os.path.join(SCRATCH, "build")
        run("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={PREFIX}",
            f"-DCMAKE_C_COMPILER={CC}")
        run("cmake", "--build", build)
        self.check(os.path.join(build, "with_shared"))
        self.check(os.path.join(build, "with_static"))

    def test_only_the_api_is_exported(self):
        symbols = run("nm", "-D", "--defined-only", os.path.join(self.library_folder, "libnibble.so")).split("\n")
        names = {line.split()[2] for line in symbols if line}
        names -= {name for name in names if name.startswith(".gomp_")}  # the compiler's, of OpenMP reductions
        headers = ""
        for name in os.listdir(os.path.join(PREFIX, "include", "nibble")):
            with open(os.path.join(PREFIX, "include", "nibble", name), encoding="utf-8") as header:
                headers += header.read()
        self.assertIn("nib_engine_open", names)
        self.assertEqual([name for name in names if name + "(" not in headers], [])

    def test_headers_stand_alone(self):
        for name in sorted(os.listdir(os.path.join(PREFIX, "include", "nibble"))):
            source = os.path.join(SCRATCH, "one_header.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write(f"#include <nibble/{name}>\nextern int something;\n")
            include = f"-I{os.path.join(PREFIX, 'include')}"
            run(CC, "-std=c17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", include, source)
            run("c++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", include, "-x", "c++",
                source)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=sys.argv[:1])
