"""What the end-to-end tests share: running the command, and a terminal to run it in."""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NIBBLE = os.environ.get("NIBBLE", os.path.join(SOURCE, "build", "nibble"))
MODEL = os.path.join(SOURCE, "models", "tiny-gpt-oss")
DATA = os.path.join(SOURCE, "tests", "data")
SCRATCH = os.environ.get("NIB_SCRATCH", os.path.join(SOURCE, "build", "scratch"))


def run(*arguments, stdin="", timeout=240, environment=None):
    """The finished process of `nibble ARGUMENTS`, with text in stdout and stderr."""
    return subprocess.run([NIBBLE, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(environment or {})})


class Terminal:
    """`nibble ARGUMENTS` on a terminal of its own."""

    def __init__(self, *arguments):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(NIBBLE, [NIBBLE, *map(str, arguments)])

    def send(self, text):
        os.write(self.fd, text.encode())

    def expect(self, text, timeout=60):
        """Reads until `text` has appeared; returns everything up to its end, and forgets that."""
        end = time.monotonic() + timeout
        while text not in self.seen:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            try:
                chunk = os.read(self.fd, 65536) if ready else b""
            except OSError:  # the other end is closed
                chunk = b""
            if not chunk:
                raise AssertionError(f"{text!r} did not appear; seen: {self.seen!r}")
            self.seen += chunk.decode(errors="replace")
        cut = self.seen.index(text) + len(text)
        before, self.seen = self.seen[:cut], self.seen[cut:]
        return before

    def exit_code(self, timeout=30):
        """Waits for the end; a signal counts as its negative number."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"the command goes on; seen: {self.seen!r}")


class Test(unittest.TestCase):
    """Assertions about finished processes."""

    def succeeds(self, process):
        self.assertEqual(process.returncode, 0, process.stderr)
        return process

    def json_of(self, process):
        return json.loads(self.succeeds(process).stdout)

    def fails(self, process, code, *words):
        """Fails with this exit code and one line on stderr that has all the words."""
        self.assertEqual(process.returncode, code, process.stderr)
        lines = [line for line in process.stderr.splitlines() if not line.startswith("memory: ")]
        self.assertEqual(len(lines), 1, process.stderr)
        self.assertTrue(lines[0].startswith("nibble: "), lines[0])
        for word in words:
            self.assertIn(word, lines[0])


def main():
    unittest.main(verbosity=2, argv=sys.argv[:1])
