"""The server as a service: errors, limits, keys, cancelling, stopping."""
import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time
import unittest.mock

import support
from support import model_server, scripted_server, user

LONG = "<|channel|>final<|message|>" + "word " * 3000 + "<|return|>"
SHORT = "<|channel|>final<|message|>Hi!<|return|>"


def raw(server, data):
    """Sends bytes on a connection of its own; the socket."""
    host, port = server.url.split("//")[1].split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(data)
    return connection


def chat_bytes(body):
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def read_words(connection, count):
    """Reads events until `count` more of them have carried content; how many did."""
    rest, words = b"", 0
    while words < count:
        chunk = connection.recv(1)
        assert chunk, "the stream has ended"
        rest += chunk
        if rest.endswith(b"\n\n"):
            words += b'"content":"' in rest and b'"content":""' not in rest
            rest = b""
    return words


class Errors(support.unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(scripted_server())

    def refused(self, body, status, param, code=None, path="/v1/chat/completions"):
        got, _, text = self.server.request(path, body)
        error = json.loads(text)["error"]
        self.assertEqual((got, error["param"]), (status, param), text)
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        if code:
            self.assertEqual(error["code"], code)
        return error["message"]

    def test_fields_are_named(self):
        for field, value in {"temperature": "hot", "top_p": 2, "n": 0, "seed": 1.5, "stop": [""], "max_tokens": 0,
                             "max_completion_tokens": -1, "logprobs": "yes", "stream": 1, "unheard_of": 1,
                             "reasoning_effort": "loud", "tools": {}, "tool_choice": "maybe", "top_logprobs": 5,
                             "messages": [], "stream_options": {"include_usage": True}}.items():
            with self.subTest(field):
                self.refused({"messages": user(SHORT), field: value}, 400, field)
        for path, messages in {"messages[0].role": [{"role": "wizard", "content": "x"}],
                               "messages[0].content": [{"role": "user"}],
                               "messages[0].content[0].type": [{"role": "user", "content": [{"type": "image_url"}]}],
                               "messages[0]": ["hello"],
                               "messages[1].tool_call_id": user("x") + [{"role": "tool", "tool_call_id": "a", "content": ""}]}.items():
            with self.subTest(path):
                self.refused({"messages": messages}, 400, path)
        self.refused({}, 400, "messages", "missing_required_parameter")
        self.refused({"messages": user(SHORT), "model": "other"}, 404, "model", "model_not_found")

    def test_unknown_reasoning_effort_is_a_400(self):
        """llama.cpp 15130"""
        self.assertIn("'low', 'medium', 'high'", self.refused(
            {"messages": user(SHORT), "reasoning_effort": "maximum"}, 400, "reasoning_effort"))
        self.refused({"messages": user(SHORT), "reasoning_effort": "none"}, 400, "reasoning_effort", "unsupported_value")

    def test_tools_are_checked(self):
        tool = {"type": "function", "function": {"name": "f"}}
        for path, tools in {"tools[0].type": [{"type": "web_search"}], "tools[0].function": [{"type": "function"}],
                            "tools[0].function.name": [{"type": "function", "function": {"name": "a b"}}],
                            "tools[1].function.name": [tool, tool],
                            "tools[0].function.parameters": [{"type": "function", "function": {"name": "f", "parameters": []}}]}.items():
            with self.subTest(path):
                self.refused({"messages": user(SHORT), "tools": tools}, 400, path)
        self.refused({"messages": user(SHORT), "tool_choice": "required"}, 400, "tool_choice")
        self.refused({"messages": user(SHORT), "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}},
                     400, "tool_choice.function.name")

    def test_bodies_that_are_no_request(self):
        for body in b"", b"{", b"[]", b"null", b'{"messages": 1, "messages": 2}', b"\xff\xfe", b"[" * 100000, b'{"a": "\\ud800"}':
            with self.subTest(body[:20]):
                status, _, text = self.server.request("/v1/chat/completions", body)
                self.assertEqual(status, 400, text)
                self.assertIn("message", json.loads(text)["error"])

    def test_a_prompt_that_does_not_fit(self):
        message = self.refused({"messages": user("word " * 9000)}, 400, "messages", "context_length_exceeded")
        self.assertIn("8192", message)

    def test_places_and_methods(self):
        self.assertEqual(self.server.request("/nowhere")[0], 404)
        self.assertEqual(self.server.request("/v1/chat/completions")[0], 405)
        self.assertEqual(self.server.request("/health", b"{}")[0], 405)
        self.assertEqual(self.server.request("/../../etc/passwd")[0], 404)
        self.assertEqual(self.server.request("/health")[0], 200)
        listed = json.loads(self.server.request("/v1/models")[2])["data"]
        self.assertEqual([model["id"] for model in listed], ["scripted"])
        self.assertEqual(json.loads(self.server.request("/v1/models/scripted")[2]), listed[0])
        for other in "other", "scripted/", "scripte", "":
            status, _, text = self.server.request("/v1/models/" + other)
            self.assertEqual((status, json.loads(text)["error"]["code"]), (404, "model_not_found"), other)

    def test_a_wrong_method_hears_of_the_right_ones(self):
        for path, method, allowed in (("/v1/chat/completions", "GET", "POST"), ("/v1/chat/completions", "OPTIONS", "POST"),
                                      ("/v1/responses", "HEAD", "POST"), ("/health", "PUT", "GET, HEAD")):
            with self.subTest(path=path, method=method):
                status, headers, _ = self.server.request(path, method=method)
                self.assertEqual((status, headers["Allow"]), (405, allowed))
        self.assertIsNone(self.server.request("/nowhere")[1]["Allow"])

    def test_pages_of_other_sites_are_refused(self):
        body = {"messages": user(SHORT)}
        self.assertEqual(self.server.request("/v1/chat/completions", body, {"Origin": "https://evil.example"})[0], 403)
        self.assertEqual(self.server.request("/v1/chat/completions", body, {"Origin": self.server.url})[0], 200)

    def test_pages_of_sites_whose_name_leads_here_are_refused(self):
        """DNS rebinding: such a page is of the server's own origin."""
        for host, status in (("evil.example:8000", 403), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("[evil.example]", 403),
                             ("localhost.evil.example", 403), ("x" * 300, 403), ("localhost:8000", 200), ("LOCALHOST", 200),
                             ("127.0.0.1", 200), ("[::1]:8000", 200), ("192.168.1.7:80", 200)):
            with self.subTest(host):
                headers = {"Host": host, "Origin": "http://" + host}
                self.assertEqual(self.server.request("/v1/chat/completions", {"messages": user(SHORT)}, headers)[0], status)
        self.assertEqual(self.server.request("/v1/models", headers={"Host": "evil.example"})[0], 200, "no page: a proxy, a host's alias")

    def test_a_host_is_named_once(self):
        for version, hosts, status in ((b"1.1", 0, 400), (b"1.1", 1, 200), (b"1.1", 2, 400), (b"1.0", 0, 200), (b"1.0", 1, 200),
                                       (b"1.0", 2, 400)):
            with self.subTest(version=version, hosts=hosts):
                lines = [b"GET /health HTTP/" + version] + [b"Host: x"] * hosts + [b"Connection: close"]
                with raw(self.server, b"\r\n".join(lines) + b"\r\n\r\n") as connection:
                    head, body = b"".join(iter(lambda: connection.recv(65536), b"")).split(b"\r\n\r\n")
                self.assertEqual(int(head.split()[1]), status, head)
                if status == 400:
                    self.assertIn(b"Content-Type: application/json", head)
                    error = json.loads(body)["error"]
                    self.assertEqual((error["type"], error["code"]), ("invalid_request_error", "invalid_host"))
                    self.assertIn(f"one Host header, not {hosts}", error["message"])

    def test_a_body_too_large(self):
        """Urllib sends all of a body before it looks for an answer, and does not look when the connection is reset."""
        for size in 1 << 20, 12 << 20:
            status, _, text = self.server.request("/v1/chat/completions", b'{"messages": "' + b"x" * size + b'"}')
            self.assertEqual(status, 413, text)

    def test_a_body_announced_too_large_is_not_waited_for(self):
        for request, status in ((b"POST /v1/chat/completions", 413), (b"GET /health", 413), (b"POST /nowhere", 404), (b"PUT /health", 405)):
            for expect in b"", b"Expect: 100-continue\r\n":
                with self.subTest(request, expect=expect):
                    started = time.monotonic()
                    with raw(self.server, request + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n" + expect + b"\r\n") as connection:
                        connection.settimeout(20)
                        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # to the end of the connection
                    self.assertLess(time.monotonic() - started, 10)
                    self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), answer)
                    self.assertIn(b"Connection: close\r\n", answer)
                    if status == 413:
                        self.assertEqual(json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"], "body_too_large")

    def test_large_headers(self):
        connection = raw(self.server, b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100000 + b"\r\n\r\n")
        self.assertRegex(connection.recv(1000), rb"^HTTP/1.1 4\d\d")
        connection.close()


class Load(support.unittest.TestCase):
    def test_more_answers_than_there_is_room_for_are_a_400(self):
        """A 429 would have the client try again for ever."""
        with scripted_server(parallel=1, queue=2) as server:
            for n, expected in ((3, 200), (4, 400)):
                status, _, text = server.request("/v1/chat/completions", {"messages": user(SHORT), "n": n})
                self.assertEqual(status, expected, text)
            self.assertEqual(json.loads(text)["error"]["param"], "n")

    def test_full_queue_is_a_429(self):
        with scripted_server(parallel=1, queue=1, step_us=2000) as server:
            waiting = [raw(server, chat_bytes({"messages": user(LONG), "stream": True})) for _ in range(2)]
            server.wait_for("running", 1)
            status, headers, text = server.request("/v1/chat/completions", {"messages": user(SHORT)})
            self.assertEqual((status, headers["Retry-After"]), (429, "1"), text)
            self.assertEqual(json.loads(text)["error"]["type"], "rate_limit_error")
            for connection in waiting:
                connection.close()
            server.wait_for("running", 0)
            server.wait_for("waiting", 0)
            self.assertEqual(server.request("/v1/chat/completions", {"messages": user(SHORT)})[0], 200)

    def test_disconnect_cancels_its_own_request_only(self):
        """ik_llama 1929, llama.cpp 24496: what is generated for nobody is at most four tokens, and the others get all of theirs"""
        for stream, reset in (False, False), (True, False), (True, True):
            with self.subTest(stream=stream, reset=reset), scripted_server(parallel=2, step_us=30000) as server:
                answers = []
                other = threading.Thread(target=lambda: answers.append(server.chat(
                    messages=user("<|channel|>final<|message|>" + "word " * 60 + "<|return|>"))))
                other.start()
                server.wait_for("running", 1)
                leaver = raw(server, chat_bytes({"messages": user(LONG), "stream": stream}))
                server.wait_for("running", 2)
                heard = 3 + read_words(leaver, 10) if stream else None  # three tokens make the header
                if reset:
                    leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                before = server.metric("generated_tokens_total")
                leaver.close()
                server.wait_for("running", 1)
                after = server.metric("generated_tokens_total")
                other.join()
                self.assertEqual(answers[0]["choices"][0]["message"]["content"], "word " * 60)
                self.assertEqual(answers[0]["choices"][0]["finish_reason"], "stop")
                said = server.metric("generated_tokens_total") - answers[0]["usage"]["completion_tokens"]
                if stream:
                    self.assertLessEqual(said - heard, 4)
                # Nothing says when an answer that is not streamed was left; both have spoken in each step since.
                self.assertLessEqual((after - before) / 2, 4)
                self.assertIn('answers_total{finish="cancelled"} 1', server.request("/metrics")[2])

    def test_the_place_of_who_left_is_free_at_once(self):
        with scripted_server(parallel=1, step_us=30000) as server:
            leaver = raw(server, chat_bytes({"messages": user(LONG), "stream": True}))
            heard = 3 + read_words(leaver, 5)
            answers = []
            next_one = threading.Thread(target=lambda: answers.append(server.chat(messages=user(SHORT))))
            next_one.start()
            server.wait_for("waiting", 1)
            heard += read_words(leaver, 5)
            leaver.close()
            next_one.join()
            self.assertEqual(answers[0]["choices"][0]["message"]["content"], "Hi!")
            self.assertLessEqual(server.metric("generated_tokens_total") - answers[0]["usage"]["completion_tokens"] - heard, 4)

    def test_tokens_are_sent_as_they_come(self):
        """Nothing on the way gathers them: each arrives before the one after the next is made."""
        with scripted_server(step_us=60000) as server:
            reader, heard = raw(server, chat_bytes({"messages": user(LONG), "stream": True})), 3
            for _ in range(15):
                heard += read_words(reader, 1)
                self.assertLessEqual(server.metric("generated_tokens_total") - heard, 1)
            reader.close()

    def test_leaving_the_queue(self):
        with scripted_server(parallel=1, step_us=5000) as server:
            first = raw(server, chat_bytes({"messages": user(LONG)}))
            server.wait_for("running", 1)
            second = raw(server, chat_bytes({"messages": user(LONG)}))
            server.wait_for("waiting", 1)
            second.close()
            server.wait_for("waiting", 0)
            self.assertEqual(server.metric("running"), 1)
            first.close()

    def test_uploads_given_up_keep_no_connection(self):
        """Also when the client's end comes with its last bytes."""
        body = b'{"messages": "' + b"x" * 500000

        def connections(server):
            folder, count = f"/proc/{server.process.pid}/fd", 0
            for fd in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                    count += os.readlink(os.path.join(folder, fd)).startswith("socket:")
            return count
        with scripted_server(timeout=60) as server:
            server.request("/health")
            before = connections(server)
            for size in (0, 1, 100, len(body)) * 5:
                raw(server, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n" + body[:size]).close()
            end = time.monotonic() + 20
            while connections(server) > before and time.monotonic() < end:
                time.sleep(0.1)
            self.assertEqual(connections(server), before)


class Stopping(support.unittest.TestCase):
    def test_answers_under_way_are_finished(self):
        with scripted_server(step_us=5000, grace=20) as server:
            script = "<|channel|>final<|message|>" + "word " * 100 + "<|return|>"
            answers = []
            client = threading.Thread(target=lambda: answers.append(server.chat(messages=user(script))))
            client.start()
            server.wait_for("running", 1)
            self.assertEqual(server.stop(), 0)
            client.join()
            self.assertEqual(answers[0]["choices"][0]["message"]["content"].count("word"), 100)

    def test_answers_that_take_too_long_are_cut_off_with_a_reason(self):
        with scripted_server(step_us=20000, grace=0) as server:
            events = []
            client = threading.Thread(target=lambda: events.extend(server.stream(messages=user(LONG))))
            client.start()
            server.wait_for("running", 1)
            self.assertEqual(server.stop(), 0)
            client.join()
            self.assertEqual(support.joined(events)["finish_reason"], "length")


    def test_nobody_new_is_let_in(self):
        with scripted_server(step_us=10000, grace=20) as server:
            answers = []
            script = "<|channel|>final<|message|>" + "word " * 100 + "<|return|>"
            client = threading.Thread(target=lambda: answers.append(server.chat(messages=user(script))))
            client.start()
            server.wait_for("running", 1)
            open_before = raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertTrue(open_before.recv(1000).startswith(b"HTTP/1.1 200"))
            server.process.send_signal(signal.SIGTERM)
            while True:  # until the signal has come
                open_before.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                if open_before.recv(1000).startswith(b"HTTP/1.1 503"):
                    break
            open_before.sendall(chat_bytes({"messages": user(SHORT)}))
            refused = open_before.recv(4000)
            self.assertTrue(refused.startswith(b"HTTP/1.1 503"), refused)
            self.assertIn(b"Retry-After: 1", refused)
            open_before.close()
            with self.assertRaises(OSError):
                raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").recv(1000)
            client.join()
            self.assertEqual(answers[0]["choices"][0]["finish_reason"], "stop")

    @support.unittest.skipUnless(os.environ.get("NIB_FAULTS"), "needs the library of faults")
    def test_clients_that_come_as_it_stops(self):
        """The threads that wait for them and the one that stops must not both let go of the listening socket."""
        slow = {"LD_PRELOAD": os.environ["NIB_FAULTS"], "NIB_FAULT": "epoll_ctl:SLOW:3"}
        with unittest.mock.patch.dict(os.environ, slow):
            server = scripted_server()
        with server:
            server.process.send_signal(signal.SIGTERM)
            while server.process.poll() is None:
                with contextlib.suppress(OSError), contextlib.ExitStack() as clients:  # so many that all threads wake
                    for _ in range(16):
                        clients.enter_context(raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
            self.assertEqual(server.process.returncode, 0)

    def test_a_second_signal_cuts_at_once(self):
        with model_server("--grace", 600) as server:
            events = []
            bias = {str(token): -100 for token in (5100, 5103, 5104, 5109, 5113)}  # so that it goes on and on
            client = threading.Thread(target=lambda: events.extend(server.stream(messages=user("Tell me a story."), logit_bias=bias)))
            client.start()
            server.wait_for("running", 1)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            started = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - started, 10)
            client.join()
            self.assertEqual(support.joined(events)["finish_reason"], "length")


class Metrics(support.unittest.TestCase):
    def test_they_count_what_happened(self):
        with scripted_server(parallel=2, step_us=1000) as server:
            script = "<|channel|>final<|message|>one two<|return|>"
            usage = [server.chat(messages=user(script))["usage"] for _ in range(3)]
            server.request("/v1/chat/completions", {"messages": []})
            server.request("/nowhere")
            leaver = raw(server, chat_bytes({"messages": user(LONG), "stream": True}))
            heard = 3 + read_words(leaver, 4)
            leaver.close()
            server.wait_for("running", 0)
            text = server.request("/metrics")[2]
            tokens = sum(u["completion_tokens"] for u in usage)
            self.assertIn('nibble_requests_total{status="4xx"} 2\n', text)
            self.assertIn('nibble_requests_total{status="5xx"} 0\n', text)
            self.assertIn('nibble_answers_total{finish="stop"} 3\n', text)
            self.assertIn('nibble_answers_total{finish="cancelled"} 1\n', text)
            self.assertIn('nibble_answers_total{finish="error"} 0\n', text)
            self.assertTrue(tokens + heard <= server.metric("generated_tokens_total") < tokens + 1000)  # of LONG's 3000
            self.assertGreater(server.metric("prompt_tokens_total"), sum(u["prompt_tokens"] for u in usage))
            self.assertEqual(server.metric("time_to_first_token_seconds_count"), 4)
            self.assertEqual(server.metric("inter_token_seconds_count"), server.metric("generated_tokens_total") - 4)
            self.assertGreater(server.metric("inter_token_seconds_sum"), 0.001 * (tokens - 4))
            self.assertEqual((server.metric("running"), server.metric("waiting"), server.metric("refused_total")), (0, 0, 0))
            for histogram in "time_to_first_token_seconds", "inter_token_seconds":
                counts = [int(line.split()[1]) for line in text.splitlines() if line.startswith(f"nibble_{histogram}_bucket")]
                self.assertEqual(counts, sorted(counts))
                self.assertEqual(counts[-1], server.metric(histogram + "_count"))


if __name__ == "__main__":
    support.main()
