"""What the server's tests share: servers to talk to, and ways to talk to them."""
import functools
import json
import os
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(SOURCE, "build")
NIBBLE = os.environ.get("NIBBLE", os.path.join(BUILD, "nibble"))
SCRIPTED = os.environ.get("SCRIPTED", os.path.join(BUILD, "tests", "scripted_server"))
SCRATCH = os.environ.get("NIB_SCRATCH", os.path.join(BUILD, "scratch"))
MODEL = os.path.join(SOURCE, "models", "tiny-gpt-oss")
DATA = os.path.join(SOURCE, "tests", "data")
os.makedirs(SCRATCH, exist_ok=True)


class Server:
    """A server process, stopped at the end of the `with`."""

    def __init__(self, *command):
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        self.log = ""
        while True:
            line = self.process.stderr.readline()
            self.log += line
            if " serving at " in f" {line}":
                self.url = line.split()[-1]
                break
            if not line:
                raise AssertionError(f"the server did not start: {self.log}")

    @functools.cached_property
    def client(self):
        import openai  # which not every client needs
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop() if self.process.poll() is None else self.process.returncode
        self.log += self.process.stderr.read()
        self.process.stderr.close()
        if code != 0:
            print(self.log, file=sys.stderr)
        if kind is None and code != 0:
            raise AssertionError(f"the server ended with {code}")

    def stop(self, timeout=60):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def request(self, path, body=None, headers=None, method=None):
        """(status, headers, text) of one request; `body` is JSON, or bytes as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def chat(self, **fields):
        """The JSON of an answer from /v1/chat/completions."""
        status, _, text = self.request("/v1/chat/completions", fields)
        assert status == 200, text
        return json.loads(text)

    def stream(self, path="/v1/chat/completions", **fields):
        """The events of a streamed answer, read with curl: pairs of event name (or None) and data."""
        process = subprocess.run(["curl", "-sSN", "--max-time", "120", self.url + path, "-H",
                                  "Content-Type: application/json", "-d", "@-"],
                                 input=json.dumps({**fields, "stream": True}).encode(), capture_output=True, check=True)
        return parse_events(process.stdout.decode())

    def metric(self, name):
        for line in self.request("/metrics")[2].splitlines():
            if line.startswith(f"nibble_{name} "):
                return float(line.split()[1])
        raise KeyError(name)

    def wait_for(self, name, value, seconds=20):
        end = time.monotonic() + seconds
        while self.metric(name) != value:
            if time.monotonic() > end:
                raise AssertionError(f"{name} is {self.metric(name)}, not {value}")
            time.sleep(0.02)


def parse_events(text):
    """Server-sent events; anything that is none is an error."""
    assert text.endswith("\n\n"), text[-200:]
    events = []
    for block in text[:-2].split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            field, value = line.split(": ", 1)
            assert field in ("event", "data"), line
            if field == "event":
                name = value
            else:
                data = value if value == "[DONE]" else json.loads(value)
        events.append((name, data))
    return events


def model_server(*options):
    return Server(NIBBLE, "serve", MODEL, "--port", 0, "--date", "2025-06-28", *options)


def scripted_server(**options):
    return Server(SCRIPTED, MODEL, *(f"{name}={value}" for name, value in options.items()))


def user(text):
    return [{"role": "user", "content": text}]


def joined(events):
    """What the chunks of a streamed chat add up to: a dictionary of its first choice, to compare with a whole answer."""
    message = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None}
    assert events[-1][1] == "[DONE]", events[-1]
    for _, chunk in events[:-1]:
        for choice in chunk["choices"]:
            assert choice["index"] == 0 and message["finish_reason"] is None, chunk
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append([call["function"]["name"], ""])
                message["tool_calls"][call["index"]][1] += call["function"].get("arguments", "")
            message["finish_reason"] = choice["finish_reason"]
    assert message["finish_reason"]
    return message


def whole(answer):
    """The same of an answer that was not streamed."""
    choice = answer["choices"][0]
    message = choice["message"]
    return {"content": message["content"] or "", "reasoning_content": message.get("reasoning_content", ""),
            "tool_calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])],
            "finish_reason": choice["finish_reason"]}


def main():
    unittest.main(verbosity=2, argv=sys.argv[:1])
