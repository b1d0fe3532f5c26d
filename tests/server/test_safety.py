"""Keys, TLS, limits on connections, slow clients; what is logged; options that are refused."""
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import support
from support import MODEL, NIBBLE, SCRATCH, model_server, scripted_server, user


def scratch(name, text):
    path = os.path.join(SCRATCH, name)
    with open(path, "w") as file:
        file.write(text)
    return path


class Safety(support.unittest.TestCase):
    def test_keys(self):
        keys = scratch("server_keys", "# two keys\nfirst-key-0123\n\n  second-key  \n")
        with model_server("--api-key-file", keys) as server:
            def status(key, path="/v1/models"):
                return server.request(path, headers={"Authorization": key} if key else {})[0]
            self.assertEqual(status("Bearer first-key-0123"), 200)
            self.assertEqual(status("bearer second-key"), 200)
            for key in None, "Bearer ", "Bearer first-key-012", "Bearer first-key-01234", "first-key-0123", "Bearer # two keys", "Basic x":
                self.assertEqual(status(key), 401, key)
            answer = server.request("/v1/models")
            self.assertEqual(answer[1]["WWW-Authenticate"], "Bearer")
            self.assertEqual(json.loads(answer[2])["error"]["type"], "authentication_error")
            self.assertEqual(status(None, "/metrics"), 401)
            self.assertEqual(status(None, "/health"), 200)
            self.assertEqual(status(None, "/v1/models/tiny-gpt-oss"), 401)
            proxy = {"Authorization": "Bearer second-key", "Host": "nibble.example", "Origin": "https://nibble.example"}
            self.assertEqual(server.request("/v1/models", headers=proxy)[0], 200, "a page that knows a key is no stranger's")

    def test_the_name_is_the_folders(self):
        copy = os.path.join(SCRATCH, "named", "model")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(MODEL, copy)
        os.mkdir(os.path.join(copy, "below"))
        for here, model, name in ((MODEL, ".", "tiny-gpt-oss"), (os.path.join(copy, "below"), "..", "model"), ("/", copy + "//", "model"),
                                  ("/", os.path.join(copy, "below", ".."), "model")):
            with self.subTest(model), support.Server("env", "-C", here, os.path.abspath(NIBBLE), "serve", model, "--port", 0) as server:
                self.assertEqual(json.loads(server.request("/v1/models")[2])["data"][0]["id"], name)

    def test_tls(self):
        certificate, key = os.path.join(SCRATCH, "server_cert.pem"), os.path.join(SCRATCH, "server_key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
        with model_server("--tls-cert", certificate, "--tls-key", key) as server:
            self.assertTrue(server.url.startswith("https://"))
            context = ssl.create_default_context(cafile=certificate)
            body = json.dumps({"messages": user("Calculate 52 + 78."), "temperature": 0, "stream": True}).encode()
            with urllib.request.urlopen(urllib.request.Request(server.url + "/v1/chat/completions", body), context=context) as answer:
                self.assertEqual(support.joined(support.parse_events(answer.read().decode()))["finish_reason"], "stop")
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(server.url + "/v1/chat/completions", b" " * (20 << 20)), context=context)
            self.assertEqual(caught.exception.code, 413)

    def test_options_that_cannot_work(self):
        empty = scratch("server_no_keys", "# none\n")
        many = scratch("server_many_keys", "".join(f"key{i}\n" for i in range(4097)))
        for options, word in ((["--api-key-file", empty], "no API key"), (["--api-key-file", empty + ".missing"], "cannot be read"),
                              (["--api-key-file", "/dev/zero"], "/dev/zero: a line is longer"), (["--api-key-file", many], "more than 4096"),
                              (["--tls-cert", empty], "both"), (["--tls-cert", empty, "--tls-key", empty], "PEM"),
                              (["--host", "no.such.host.invalid"], "no.such.host.invalid"), (["--host", "203.0.113.1"], "cannot listen")):
            process = subprocess.run([NIBBLE, "serve", MODEL, "--port", "0", *options], capture_output=True, text=True, timeout=60)
            self.assertEqual(process.returncode, 1, process.stderr)
            self.assertIn(word, process.stderr)

    def test_a_body_has_one_length(self):
        """Of two lengths a proxy may have believed the other; what it took for a body would be a request here."""
        with model_server() as server:
            port = int(server.url.rsplit(":", 1)[1])
            for headers, body in (("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"), ("Content-Length: 2\r\nContent-Length: 2\r\n", "{}"),
                                  ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")):
                with self.subTest(headers), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{headers}\r\n{body}"
                                       "GET /health HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()  # to the end of the connection
                    self.assertTrue(answer.startswith("HTTP/1.1 400 ") and "ambiguous_body" in answer, answer)
                    self.assertNotIn('"status":"ok"', answer)

    def test_an_encoded_body_is_refused_as_such(self):
        with model_server() as server:
            for coding, status in (("gzip", 415), ("Identity", 400)):
                request = urllib.request.Request(server.url + "/v1/chat/completions", data=b"{}", headers={"Content-Encoding": coding})
                with self.subTest(coding), self.assertRaises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(request, timeout=30)
                self.assertEqual(caught.exception.code, status)
                self.assertEqual("encoding gzip" in caught.exception.read().decode(), status == 415)

    def test_only_this_machine_by_default(self):
        with model_server() as server:
            self.assertRegex(server.url, r"^http://127\.0\.0\.1:\d+$")

    def test_connections_per_client_and_silence_are_limited(self):
        with scripted_server(per_client=4, timeout=1) as server:
            host, port = server.url.split("//")[1].split(":")
            open_ones = [socket.create_connection((host, int(port)), timeout=10) for _ in range(8)]
            for one in open_ones:
                one.settimeout(10)
                try:
                    one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost")  # and no more
                except OSError:
                    pass
            started = time.monotonic()
            for one in open_ones:
                try:
                    while one.recv(4096):
                        pass
                except ConnectionError:
                    pass
                one.close()
            self.assertLess(time.monotonic() - started, 8)
            while True:  # the last of them may still be counted for a moment
                try:
                    self.assertEqual(server.request("/health")[0], 200)
                    break
                except ConnectionError:
                    self.assertLess(time.monotonic() - started, 10)

    def trickle(self, server, begin, drops, expected=b""):
        """Sends the bytes of `drops` slowly; the seconds until the server hangs up, and what it has said."""
        host, port = server.url.split("//")[1].split(":")
        said, started = b"", time.monotonic()
        with socket.create_connection((host, int(port)), timeout=0.2) as connection:
            connection.sendall(begin)
            while time.monotonic() - started < 20:
                try:
                    chunk = connection.recv(4096)
                    if not chunk:
                        break
                    said += chunk
                except TimeoutError:
                    pass
                except ConnectionError:
                    break
                if said.endswith(expected):
                    try:
                        connection.sendall(drops[:1])
                    except OSError:
                        pass
                    drops = drops[1:] or drops
        return time.monotonic() - started, said

    def test_who_trickles_is_cut_off(self):
        """One byte at a time is never silent"""
        header = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * 1000
        body = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"
        health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        with scripted_server(timeout=2) as server:
            for begin, drops in ((b"", header), (body, b" " * 500), (health, header), (b"P", b"O" * 500)):
                with self.subTest(begin=begin[:20]):
                    seconds, said = self.trickle(server, begin, drops)
                    self.assertTrue(1.9 < seconds < 6, seconds)
                    self.assertEqual(said.count(b"HTTP/1.1 200"), begin == health)
                    self.assertEqual(server.request("/health")[0], 200)
            self.assertEqual(server.request("/v1/chat/completions", {"messages": user("Hi<|return|>")})[0], 200)

    def test_a_refused_body_is_thrown_away_for_a_while(self):
        begin = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
        with scripted_server(timeout=2) as server:
            host, port = server.url.split("//")[1].split(":")
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(begin)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
                self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
                started = time.monotonic()
                with self.assertRaises(ConnectionError):
                    while time.monotonic() - started < 20:
                        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                        time.sleep(0.05)
                self.assertTrue(1 < time.monotonic() - started < 10)
            many = [socket.create_connection((host, int(port)), timeout=10) for _ in range(100)]  # more than are left the time
            for connection in many:
                connection.sendall(begin)
            for connection in many:
                self.assertTrue(connection.recv(65536).startswith(b"HTTP/1.1 413 "))
            self.assertEqual(server.request("/health")[0], 200)
            server.stop()  # with some of them open
            for connection in many:
                connection.close()

    def test_a_slow_answer_is_not_a_slow_client(self):
        with scripted_server(timeout=1, step_us=50000) as server:
            script = user("<|channel|>final<|message|>" + "word " * 30 + "<|return|>")
            self.assertEqual(server.chat(messages=script)["choices"][0]["finish_reason"], "stop")
            self.assertEqual(support.joined(server.stream(messages=script))["finish_reason"], "stop")

    def test_an_answer_that_nobody_reads_is_given_up(self):
        with scripted_server(parallel=16, timeout=60) as server:
            body = json.dumps({"messages": user("<|channel|>final<|message|>" + "word " * 3000 + "<|return|>"), "n": 16, "stream": True,
                               "logprobs": True, "top_logprobs": 20}).encode()
            host, port = server.url.split("//")[1].split(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                server.wait_for("running", 16)
                server.wait_for("running", 0, 60)
                self.assertIn('answers_total{finish="cancelled"} 16', server.request("/metrics")[2])

    def test_what_is_said_is_not_logged(self):
        with model_server("--log") as server:
            server.chat(messages=user("SECRET-PROMPT"), max_tokens=3)
            server.request("/nowhere/SECRET%0aINJECTED")
            server.request("/v1/models?key=SECRET")
            server.stop()
            log = server.process.stderr.read()
        self.assertIn("/v1/chat/completions 200", log)
        self.assertNotIn("SECRET", log)
        self.assertTrue(all(line.startswith("nibble: ") for line in log.splitlines()), log)
        self.assertEqual(len(re.findall(r"^nibble: \S+ \d{3} [\d.]+ s$", log, re.M)), 3)


if __name__ == "__main__":
    support.main()
