"""Malformed requests: the server answers or hangs up, with no 5xx, and lives on. NIB_FUZZ_REQUESTS says how many."""
import collections
import concurrent.futures
import copy
import json
import os
import random
import socket

import support
from support import scripted_server, user

REQUESTS = int(os.environ.get("NIB_FUZZ_REQUESTS", "2000"))
HI = "<|channel|>final<|message|>Hi<|return|>"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
BODIES = {
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": HI}]},
                     {"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                     {"role": "tool", "tool_call_id": "c", "content": HI}],
        "temperature": 1, "top_p": 1, "n": 1, "stop": ["x"], "max_tokens": 9, "logprobs": True, "top_logprobs": 2, "seed": 1, "stream": True,
        "stream_options": {"include_usage": True}, "tools": [TOOL], "tool_choice": "auto", "logit_bias": {"1": 2}, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {
            "type": "object", "properties": {"a": {"type": "string", "pattern": "^a{2,3}[b-d]$"}, "n": {"type": "number", "minimum": 1.5}},
            "required": ["a"]}}}},
    "/v1/completions": {"prompt": "<|start|>user<|message|>" + HI + "<|end|>", "max_tokens": 3, "logprobs": 1},
    "/v1/responses": {"input": [{"role": "user", "content": HI}, {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"},
                                {"type": "function_call_output", "call_id": "c", "output": HI}], "text": {"format": {"type": "text"}}},
    "/tokenize": {"messages": user("x")},
    "/detokenize": {"tokens": [1, 2, 3]},
}
ODD = [None, True, -1, 0, 1e308, 2**63, -2**63, 0.5, "", "x" * 300, [], {}, [[]], [None], {"": ""}, "\u0000", "🦀", "<|end|>", [1] * 100]


def places(value, path=()):
    """All places inside a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, path + (key,))


def mutate_json(rng, value):
    value = json.loads(json.dumps(value))
    for _ in range(rng.randrange(1, 4)):
        path = rng.choice(list(places(value)))
        if not path:
            continue
        at = value
        for key in path[:-1]:
            at = at[key]
        choice = rng.randrange(4)
        if choice == 0 and isinstance(at, dict):
            del at[path[-1]]
        elif choice == 1 and isinstance(at, dict):
            at["k" + str(rng.randrange(9))] = copy.deepcopy(rng.choice(ODD))
        else:
            at[path[-1]] = copy.deepcopy(rng.choice(ODD))
    return json.dumps(value).encode()


def mutate_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        choice = rng.randrange(4)
        if choice == 0:
            data[at:at + rng.randrange(1, 20)] = b""
        elif choice == 1:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        elif choice == 2:
            data[at:at] = data[:rng.randrange(200)]
        elif at < len(data):
            data[at] = rng.randrange(256)
        if not data:
            data += b"\r\n\r\n"
    return bytes(data)


def make_request(rng):
    path = rng.choice(list(BODIES))
    body = mutate_json(rng, BODIES[path]) if rng.random() < 0.8 else mutate_bytes(rng, json.dumps(BODIES[path]).encode())
    length = b"Content-Length: %d" % len(body) if rng.random() < 0.9 else b"Transfer-Encoding: chunked"
    data = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + length + b"\r\n\r\n" + body
    return mutate_bytes(rng, data) if rng.random() < 0.4 else data


def send(port, data):
    """The status of the answer, "none" when there is none (many requests are never complete), and all of it."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(0.25)
            while chunk := connection.recv(65536):
                answer += chunk
        except (ConnectionError, TimeoutError):
            pass
    return answer[9:12].decode(errors="replace") if answer.startswith(b"HTTP/1.") else "none", answer


class Fuzz(support.unittest.TestCase):
    def attack(self, port, seed, requests):
        rng, seen = random.Random(seed), collections.Counter()
        for _ in range(requests):
            data = make_request(rng)
            status, answer = send(port, data)
            seen[status] += 1
            if status != "505":  # what HTTP says to a version that is not 1.x
                self.assertNotEqual(status[:1], "5", (data, answer))
        return seen

    def test_malformed_requests(self):
        clients, seed = 8, int(os.environ.get("NIB_FUZZ_SEED", "1"))
        with scripted_server(timeout=1, queue=1000) as server, concurrent.futures.ThreadPoolExecutor(clients) as pool:
            port = int(server.url.split(":")[-1])
            runs = [pool.submit(self.attack, port, 1000 * seed + i, REQUESTS // clients) for i in range(clients)]
            seen = sum((run.result() for run in runs), collections.Counter())
            self.assertIsNone(server.process.poll())
            self.assertEqual(server.chat(messages=user(HI))["choices"][0]["message"]["content"], "Hi")
            self.assertEqual(server.stop(), 0)
        print(f"{REQUESTS} requests: {dict(seen)}", flush=True)


if __name__ == "__main__":
    support.main()
