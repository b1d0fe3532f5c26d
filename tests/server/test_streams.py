"""Whatever tokens a model emits, the client gets valid JSON, all of the text, and the same answer streamed or not."""
import json
import random

import support
from support import joined, scripted_server, user, whole

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
CALL_IN_ROLE = ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
ROME = [["get_weather", '{"city": "Rome"}']]


class Streams(support.unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(scripted_server())

    def both(self, script, **fields):
        """The answer to a script, asserted to be the same with and without streaming."""
        fields["messages"] = user(script)
        answer = whole(self.server.chat(**fields))
        self.assertEqual(joined(self.server.stream(**fields)), answer, script)
        return answer

    def expect(self, script, content="", reasoning="", calls=(), finish="stop", **fields):
        answer = self.both(script, **fields)
        self.assertEqual(answer, {"content": content, "reasoning_content": reasoning, "tool_calls": list(calls),
                                  "finish_reason": finish}, script)

    def test_streaming_equals_not_streaming(self):
        """worker-vllm 271"""
        self.expect("<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>Hi!<|return|>",
                    "Hi!", "Let me see.")

    def test_finish_reasons(self):
        """worker-vllm 271: one table"""
        final = "<|channel|>final<|message|>one two three four"
        self.expect(final + "<|return|>", "one two three four")
        self.expect(final + "<|end|>", "one two three four", finish="length")
        self.expect(final, "one two three four", finish="length")
        self.expect(final + "<|return|>", "one", stop=" two")
        self.expect(final + "<|return|>", "one two", finish="length", max_tokens=5)
        self.expect(CALL, calls=ROME, finish="tool_calls", tools=[WEATHER])
        self.expect(CALL[:-len('"}<|call|>')], calls=[["get_weather", '{"city": "Rome']], finish="length", tools=[WEATHER])

    def test_recipient_in_role_or_channel_is_a_call(self):
        """llama.cpp 15181, harmony 27"""
        for script in CALL, CALL_IN_ROLE:
            self.expect(script, calls=ROME, finish="tool_calls", tools=[WEATHER])

    def test_truncated_arguments_are_kept(self):
        """harmony 27"""
        self.expect('<|channel|>commentary to=functions.get_weather<|message|>{"ci', calls=[["get_weather", '{"ci']],
                    finish="length", tools=[WEATHER])
        self.expect("<|channel|>commentary to=functions.get_weather", calls=[["get_weather", ""]],
                    finish="length", tools=[WEATHER])

    def test_odd_header_token_is_never_a_500(self):
        """harmony 38, vllm 23567, vllm 51977"""
        self.expect("Hello there<|return|>", "Hello there")
        self.expect("<|message|>Hello<|return|>", "Hello")
        self.expect("<|channel|><|message|>Hello<|return|>", "Hello")
        self.expect("<|channel|>final<|channel|>final<|message|>Hello<|return|>", "Hello")
        self.expect("<|channel|>final<|constrain|><|message|>Hello<|return|>", "Hello")
        self.expect("<|start|>assistant<|channel|>final<|message|>Hello<|return|>", "Hello")
        self.expect("<|channel|>nonsense<|message|>Hello<|return|>", "Hello")
        self.expect("<|return|>", "")
        self.expect("<|end|><|end|><|start|><|start|><|return|>", "")

    def test_messages_behind_each_other(self):
        self.expect("<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant" + CALL, "I will look.",
                    calls=ROME, finish="tool_calls", tools=[WEATHER])
        self.expect("<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Second.<|return|>",
                    "First.\nSecond.")
        two = CALL.replace("<|call|>", "<|end|>") + "<|start|>assistant" + CALL
        self.expect(two, calls=ROME + ROME, finish="tool_calls", tools=[WEATHER])
        self.expect(two, calls=ROME, finish="tool_calls", tools=[WEATHER], parallel_tool_calls=False)

    def test_a_call_that_nobody_offered_is_text(self):
        self.expect(CALL, '{"city": "Rome"}')

    def test_characters_cut_by_tokens(self):
        text = "naïve 🦀 日本語"
        self.expect(f"<|channel|>final<|message|>{text}<|return|>", text)
        self.assertIn("\ufffd", self.both("<|channel|>final<|message|>🦀"[:-1] + "{{172}}{{172}}x<|return|>")["content"])

    def test_stop_strings_across_tokens(self):
        script = "<|channel|>final<|message|>alpha beta STOPPED gamma<|return|>"
        self.expect(script, "alpha beta ", stop="STOP")
        self.expect(script, "alpha", stop=["nowhere", " beta ST"])
        self.expect(script, "alpha beta STOPPED gamma", stop=["STOPS"])
        self.expect("<|channel|>analysis<|message|>STOP<|end|><|start|>assistant<|channel|>final<|message|>a STOP<|return|>",
                    "a ", "STOP", stop="STOP")

    def test_random_tokens(self):
        """Any stream: valid JSON, never a 5xx, and no visible text is lost."""
        rng = random.Random(7)
        controls = [5100, 5103, 5104, 5106, 5107, 5108, 5109, 5113, 5099, 5119, 5101]
        for i in range(150):
            ids = [rng.choice(controls) if rng.random() < 0.5 else rng.randrange(5099) for _ in range(rng.randrange(1, 25))]
            script = "".join(f"{{{{{token}}}}}" for token in ids)
            fields = {"tools": [WEATHER]} if i % 2 else {}
            self.both(script, **fields)

    def test_logprobs_belong_to_the_content(self):
        for script in ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello you 🦀!<|return|>",
                       "Bare text<|return|>"):
            for stream in False, True:
                fields = {"messages": user(script), "logprobs": True, "top_logprobs": 3}
                if stream:
                    events = [e for _, e in self.server.stream(**fields)[:-1]]
                    choices = [c for e in events for c in e["choices"]]
                    content = "".join(c["delta"].get("content") or "" for c in choices)
                    entries = [t for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
                else:
                    choice = self.server.chat(**fields)["choices"][0]
                    content, entries = choice["message"]["content"], choice["logprobs"]["content"]
                self.assertEqual(bytes(b for t in entries for b in t["bytes"]).decode(), content)
                self.assertTrue(all(len(t["top_logprobs"]) == 3 and t["logprob"] <= 0 for t in entries))

    def test_several_choices(self):
        script = "<|channel|>final<|message|>same<|return|>"
        answer = self.server.chat(messages=user(script), n=3)
        self.assertEqual([(c["index"], c["message"]["content"]) for c in answer["choices"]],
                         [(0, "same"), (1, "same"), (2, "same")])
        texts = {}
        for _, chunk in self.server.stream(messages=user(script), n=3)[:-1]:
            for choice in chunk["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        self.assertEqual(texts, {0: "same", 1: "same", 2: "same"})

    def test_usage(self):
        script = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>"
        usage = self.server.chat(messages=user(script))["usage"]
        events = self.server.stream(messages=user(script), stream_options={"include_usage": True})
        self.assertEqual(events[-2][1]["choices"], [])
        self.assertEqual(events[-2][1]["usage"], usage)
        self.assertTrue(all(e["usage"] is None for _, e in events[:-2]))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 0)
        self.assertTrue(all("usage" not in e for _, e in self.server.stream(messages=user(script))[:-1]))


if __name__ == "__main__":
    support.main()
