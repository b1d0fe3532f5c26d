"""Many requests: all well formed, nothing lost, nothing kept. NIB_SOAK_REQUESTS and NIB_STRESS_SECONDS say how many."""
import collections
import concurrent.futures
import json
import os
import random
import socket
import threading
import time

import support
from support import joined, model_server, user, whole

SOAK = int(os.environ.get("NIB_SOAK_REQUESTS", "40"))
STRESS = float(os.environ.get("NIB_STRESS_SECONDS", "10"))
TOOLS = [{"type": "function", "function": {"name": "get_stock", "description": "Get how many items are in stock.", "parameters": {
    "type": "object", "properties": {"item": {"type": "string", "maxLength": 20}}, "required": ["item"]}}}]
FORM = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {
    "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}, "note": {"type": "string", "maxLength": 20}},
    "required": ["sum", "note"]}}}


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))


class Load(support.unittest.TestCase):
    def test_soak_with_logprobs(self):
        def ask(i):
            fields = {"messages": user(f"Calculate {i % 90 + 10} + {i * 7 % 90 + 10}."), "temperature": 1, "seed": i, "logprobs": True,
                      "top_logprobs": 5, "reasoning_effort": "low", "max_completion_tokens": 60}
            if i % 2:
                events = [e for _, e in server.stream(**fields)[:-1]]
                content = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
                tokens = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
            else:
                choice = server.chat(**fields)["choices"][0]
                content, tokens = choice["message"]["content"], choice["logprobs"]["content"]
            self.assertEqual(bytes(b for t in tokens for b in t["bytes"]).decode(errors="replace"), content)
            for token in tokens:
                self.assertEqual(len(token["top_logprobs"]), 5)
                self.assertTrue(all(t["logprob"] <= 0 for t in [token, *token["top_logprobs"]]))

        with model_server("--parallel", 8, "--cache-tokens", 32768) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(SOAK)))
            self.assertEqual(server.metric("kv_pages"), server.metric("kv_pages_free"))

    def test_a_long_prompt_does_not_hold_up_short_ones(self):
        with model_server("--parallel", 4, "--step-tokens", 64, "--cache-tokens", 16384) as server:
            order, words = [], " ".join(str(i % 10) for i in range(3500))

            def ask(name, text):
                joined(server.stream(messages=user(text), max_tokens=8))
                order.append(name)

            long_one = threading.Thread(target=ask, args=("long", words))
            long_one.start()
            server.wait_for("waiting", 1)
            for i in range(3):
                ask(f"short {i}", f"Calculate {i} + 5.")
            long_one.join()
            self.assertEqual(order, ["short 0", "short 1", "short 2", "long"])

    # ---- stress: one kind of request each; a failed assertion is an error

    def chat(self, server, rng):
        fields = {"messages": user(f"Calculate {rng.randrange(99)} + {rng.randrange(99)}."), "seed": rng.randrange(9), "max_tokens": 60}
        if rng.random() < 0.5:
            joined(server.stream(**fields))
        else:
            whole(server.chat(**fields))

    def tools(self, server, rng):
        answer = whole(server.chat(messages=user(f"Check the stock of item {rng.randrange(99)}."), tools=TOOLS, tool_choice="required",
                                   max_tokens=120))
        if answer["finish_reason"] == "tool_calls":
            self.assertIn("item", json.loads(answer["tool_calls"][0][1]))

    def form(self, server, rng):
        answer = whole(server.chat(messages=user(f"Calculate {rng.randrange(99)} + 5."), response_format=FORM, max_tokens=200))
        if answer["finish_reason"] == "stop":
            self.assertEqual(list(json.loads(answer["content"])), ["sum", "note"])

    def long_prompt(self, server, rng):
        words = " ".join(str(rng.randrange(10)) for _ in range(rng.randrange(200, 900)))
        joined(server.stream(messages=user(words), max_tokens=10))

    def leave(self, server, rng):
        body = json.dumps({"messages": user("Tell me a story."), "stream": rng.random() < 0.5}).encode()
        with socket.create_connection(("127.0.0.1", int(server.url.split(":")[-1]))) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(rng.random() / 4)

    def bad(self, server, rng):
        body = rng.choice([{"messages": []}, {"messages": user("x"), "n": 99}, b"{", {"messages": user("x"), "tools": 1}])
        self.assertEqual(server.request("/v1/chat/completions", body)[0], 400)

    def responses(self, server, rng):
        status, _, text = server.request("/v1/responses", {"input": f"Calculate {rng.randrange(99)} + 1.", "max_output_tokens": 40})
        self.assertEqual((status, json.loads(text)["object"]), (200, "response"))

    def test_stress(self):
        kinds = [self.chat] * 4 + [self.tools, self.form, self.long_prompt, self.leave, self.bad, self.responses]
        seen, memory, end = collections.Counter(), [], time.monotonic() + STRESS

        def client(seed):
            rng = random.Random(seed)
            while time.monotonic() < end:
                kind = rng.choice(kinds)
                kind(server, rng)
                seen[kind.__name__] += 1

        def watch():
            while time.monotonic() < end:
                memory.append(resident(server))
                time.sleep(min(1, STRESS / 50))

        with model_server("--parallel", 16, "--cache-tokens", 32768) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
            watcher = threading.Thread(target=watch)
            watcher.start()
            for run in [pool.submit(client, seed) for seed in range(16)]:
                run.result()
            watcher.join()
            server.wait_for("running", 0)
            server.wait_for("waiting", 0)
            self.assertEqual(server.metric("kv_pages"), server.metric("kv_pages_free"))
            self.assertNotIn('status="5xx"} 1', server.request("/metrics")[2])
            self.assertEqual(server.stop(), 0)
        half, growth = memory[len(memory) // 2], memory[-1] / memory[len(memory) // 2]
        print(f"{sum(seen.values())} requests in {STRESS:.0f} s: {dict(seen)}; resident {half >> 20} MiB, then {memory[-1] >> 20} MiB", flush=True)
        if STRESS >= 300:
            self.assertLess(growth, 1.02)


if __name__ == "__main__":
    support.main()
