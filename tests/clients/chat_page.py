"""The chat page in headless Chromium: what a visitor sees and can do, and that the page does nothing else.

usage: chat_page.py [unittest options]; NIBBLE and SCRIPTED name the programs, as for tests/server."""
import json
import os
import re
import shutil
import sys
import time

import playwright.sync_api

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "server"))

import support
from support import SCRATCH, model_server, scripted_server

SUM = "Anna has 38 apples and buys 27 more. How many apples does she have?"
THINK = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"
SAY = "<|channel|>final<|message|>{}<|return|>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def channels(colour):
    """Red, green, blue of a computed colour, each from 0 to 1."""
    return [float(number) / 255 for number in re.findall(r"[\d.]+", colour)[:3]]


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def at_zero(route):
    """Lets a request of the page go on with a temperature of zero: drawn at one, the small model sometimes errs."""
    route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | {"temperature": 0}))


class Page(support.unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert CHROMIUM, "this test needs Chromium"
        manager = cls.enterClassContext(playwright.sync_api.sync_playwright())
        cls.browser = manager.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def visit(self, server, allowed_errors=(), **options):
        """A page in a fresh profile; what it complains about, asks for elsewhere, or pops up fails the test."""
        context = self.browser.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(20000)
        errors, requests = [], []
        self.errors = errors

        def check():
            self.assertEqual([e for e in errors if not any(word in e for word in allowed_errors)], [])
            self.assertEqual([url for url in requests if not url.startswith(server.url + "/")], [])
            self.assertIn(server.url + "/", requests)

        self.addCleanup(check)
        page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: (errors.append("dialog: " + dialog.message), dialog.dismiss()))
        context.on("request", lambda request: requests.append(request.url))
        page.goto(server.url + "/")
        return page

    def ask(self, page, text):
        page.locator("#text").fill(text)
        page.locator("#text").press("Enter")

    def answer(self, page, index=-1):
        """The text of an answer, once it is complete."""
        playwright.sync_api.expect(page.locator("#go")).to_have_text("Send", timeout=60000)
        return page.locator(".answer > span").nth(index).inner_text()

    def figures(self, page):
        return page.locator(".answer small").last.inner_text()

    # ---- chatting

    def test_the_model_answers(self):
        with model_server() as server:
            page = self.visit(server)
            page.route("**/v1/chat/completions", at_zero)
            playwright.sync_api.expect(page.locator("#model")).to_have_text("tiny-gpt-oss")
            page.locator("#effort").select_option("low")
            self.ask(page, SUM)
            self.assertEqual(page.locator(".user").inner_text(), SUM)
            self.assertIn("65", self.answer(page))
            self.assertRegex(self.figures(page), r"^\d+ tokens, \d+\.\d tok/s$")
            prompt = server.metric("prompt_tokens_total")
            self.ask(page, "Calculate 52 + 78.")
            self.answer(page)
            self.assertGreater(server.metric("prompt_tokens_total"), 2 * prompt)  # the second has the first before it
            self.assertEqual(page.locator(".answer").count(), 2)
            page.locator("#clear").click()
            self.assertEqual(page.locator("#log > *").count(), 0)

    def test_an_answer_appears_word_by_word(self):
        words = [f"word{i}" for i in range(30)]
        with scripted_server(step_us=40000) as server:
            page = self.visit(server)
            started = time.monotonic()
            self.ask(page, SAY.format(" ".join(words)))
            seen = set()
            while page.locator("#go").inner_text() == "Stop" and time.monotonic() - started < 60:
                seen.add(page.locator(".answer > span").inner_text())
            self.assertEqual(self.answer(page), " ".join(words))
            self.assertTrue(all(" ".join(words).startswith(text) for text in seen), seen)
            self.assertGreater(len(seen), 10)
            # 40 ms a token are 25 a second at the most.
            count, rate = re.match(r"^(\d+) tokens, ([\d.]+) tok/s$", self.figures(page)).groups()
            self.assertGreater(int(count), 60)
            self.assertTrue(8 <= float(rate) <= 26, rate)

    def test_reasoning_is_folded(self):
        with scripted_server() as server:
            page = self.visit(server)
            self.ask(page, THINK.format("Let me see.", "It is so."))
            self.assertEqual(self.answer(page), "It is so.")
            thought = page.locator("details span")
            self.assertFalse(thought.is_visible())
            page.locator("summary").click()
            self.assertTrue(thought.is_visible())
            self.assertEqual(thought.inner_text(), "Let me see.")
            self.ask(page, SAY.format("No thoughts."))
            self.assertEqual(self.answer(page), "No thoughts.")
            self.assertFalse(page.locator("details").last.is_visible())

    def test_stop_cancels(self):
        with scripted_server(step_us=20000) as server:
            page = self.visit(server)
            self.ask(page, SAY.format("word " * 2000))
            playwright.sync_api.expect(page.locator(".answer > span")).to_contain_text("word word")
            server.wait_for("running", 1)
            page.locator("#go").click()
            server.wait_for("running", 0)  # the server works no more
            self.assertRegex(self.figures(page), r"^\d+ tokens, [\d.]+ tok/s \(stopped\)$")
            kept = self.answer(page)
            self.assertTrue("word word" in kept and len(kept) < 5 * 2000)
            self.assertEqual(server.request("/metrics")[2].count('answers_total{finish="cancelled"} 1'), 1)
            self.ask(page, SAY.format("And now?"))
            self.assertEqual(self.answer(page), "And now?")

    def test_a_new_chat_forgets_the_answer_under_way(self):
        with scripted_server(step_us=20000) as server:
            page = self.visit(server)
            self.ask(page, SAY.format("word " * 2000))
            playwright.sync_api.expect(page.locator(".answer > span")).to_contain_text("word")
            page.locator("#clear").click()
            server.wait_for("running", 0)
            self.ask(page, SAY.format("Fresh."))
            self.assertEqual(self.answer(page), "Fresh.")
            self.assertEqual(page.locator("#log > *").count(), 2)
            sent = page.evaluate("messages.map(m => m.role)")
            self.assertEqual(sent, ["user", "assistant"])

    def test_lines_are_broken_with_shift(self):
        with scripted_server() as server:
            page = self.visit(server)
            page.locator("#text").fill("one")
            page.locator("#text").press("Shift+Enter")
            page.locator("#text").type("two" + SAY.format("Yes."))
            page.locator("#text").press("Enter")
            self.assertTrue(page.locator(".user").inner_text().startswith("one\ntwo"))
            self.assertIn("Yes.", self.answer(page))

    # ---- what may go wrong

    def test_html_of_a_model_is_text(self):
        evil = '<img src=x onerror="window.hacked=1;alert(1)"><script>window.hacked=1</script><b>bold</b>&lt;i&gt; <a href="javascript:alert(1)">x</a>'
        with scripted_server() as server:
            page = self.visit(server)
            self.ask(page, THINK.format(evil, evil))
            self.assertEqual(self.answer(page), evil)
            page.locator("summary").click()
            self.assertEqual(page.locator("details span").inner_text(), evil)
            self.assertEqual(page.locator("#log").locator("img, script, b, i, a").count(), 0)
            self.assertIsNone(page.evaluate("window.hacked ?? null"))

    def test_errors_are_shown(self):
        with scripted_server(context=400) as server:
            page = self.visit(server, allowed_errors=["status of 400"])
            self.ask(page, "<b>word</b> " * 400)
            playwright.sync_api.expect(page.locator(".error")).to_contain_text("the context holds 400")
            self.assertEqual(page.locator("#log b").count(), 0)
            playwright.sync_api.expect(page.locator("#go")).to_have_text("Send")

    def test_a_server_with_keys_asks_for_one(self):
        keys = os.path.join(SCRATCH, "page_keys")
        with open(keys, "w") as file:
            file.write("open-sesame-1234\n")
        with model_server("--api-key-file", keys) as server:
            page = self.visit(server, allowed_errors=["status of 401"])
            playwright.sync_api.expect(page.locator("#key")).to_be_visible()
            self.ask(page, "Hi")
            playwright.sync_api.expect(page.locator(".error")).to_contain_text("API key")
            page.locator("#key").fill("open-sesame-1234")
            self.ask(page, "Calculate 52 + 78.")
            self.assertIn("130", self.answer(page))

    def test_the_policy_keeps_other_hosts_out(self):
        with scripted_server() as server:
            page = self.visit(server, allowed_errors=["Content Security Policy"])
            self.assertTrue(page.evaluate("fetch('http://127.0.0.1:1/').then(() => false, () => true)"))
            self.assertTrue(any("Content Security Policy" in e for e in self.errors), self.errors)

    # ---- looks

    def colours(self, page):
        return page.evaluate("""() => {
            const of = selector => getComputedStyle(document.querySelector(selector));
            return {page: of("body").backgroundColor, text: of("body").color, answer: of(".answer").color, error: of(".error").color,
                    box: of("#text").color, button: of("#go").color, button_back: of("#go").backgroundColor};
        }""")

    def test_dark_and_light(self):
        seen = {}
        for scheme in "light", "dark":
            with scripted_server() as server:
                page = self.visit(server, color_scheme=scheme, allowed_errors=["status of 400"])
                self.ask(page, THINK.format("Hm.", "Hello."))
                self.answer(page)
                page.evaluate("add('error', 'a mistake')")
                colours = seen[scheme] = self.colours(page)
                for name in "text", "answer", "box", "error":
                    self.assertGreater(contrast(colours[name], colours["page"]), 4.5, (scheme, name, colours))
                self.assertGreater(contrast(colours["button"], colours["button_back"]), 4.5, (scheme, colours))
        self.assertGreater(luminance(seen["light"]["page"]), 0.8)
        self.assertLess(luminance(seen["dark"]["page"]), 0.05)
        self.assertLess(luminance(seen["light"]["text"]), luminance(seen["dark"]["text"]))

    def test_a_change_of_the_scheme_is_followed(self):
        with scripted_server() as server:
            page = self.visit(server, color_scheme="light")
            before = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.emulate_media(color_scheme="dark")
            self.assertNotEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), before)

    def test_a_narrow_window(self):
        with scripted_server() as server:
            page = self.visit(server, viewport={"width": 340, "height": 600})
            self.ask(page, SAY.format("x" * 300 + " and more"))
            self.answer(page)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 340)
            self.assertTrue(page.locator("#go").is_visible())


if __name__ == "__main__":
    support.main()
