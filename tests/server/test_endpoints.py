"""The endpoints beside chats: completions, tokens, responses, the page, metrics."""
import json
import re

import openai

import support
from support import model_server, scripted_server, user

SUM = "Anna has 38 apples and buys 27 more. How many apples does she have?"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}}, "required": ["city"]}}
REASONING = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'


class Model(support.unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(model_server("--parallel", 4))
        cls.client = cls.server.client

    def complete(self, prompt, **fields):
        return self.client.completions.create(model="tiny-gpt-oss", prompt=prompt, **{"temperature": 0, "max_tokens": 40, **fields})

    def test_completion_of_a_rendered_chat(self):
        prompt = "<|start|>user<|message|>Calculate 52 + 78.<|end|><|start|>assistant"
        answer = self.complete(prompt)
        self.assertIn("130", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        ids = json.loads(self.server.request("/tokenize", {"prompt": prompt})[2])["tokens"]
        self.assertEqual(answer.usage.prompt_tokens, len(ids))
        for same in ids, [prompt], [ids]:
            self.assertEqual(self.complete(same).choices[0].text, answer.choices[0].text)

    def test_completion_streamed(self):
        whole = self.complete("The weather in", logprobs=2)
        chunks = list(self.complete("The weather in", logprobs=2, stream=True))
        self.assertEqual("".join(c.choices[0].text for c in chunks), whole.choices[0].text)
        self.assertEqual("".join(whole.choices[0].logprobs.tokens), whole.choices[0].text)
        self.assertEqual([t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens], whole.choices[0].logprobs.tokens)
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_several_prompts(self):
        """Each gets what it gets alone, with the same seed; the choices of a prompt follow each other."""
        prompts, fields = ["The weather in", "Once upon a time", "The weather in"], {"temperature": 1, "seed": 7, "n": 2, "max_tokens": 12}
        ids = [json.loads(self.server.request("/tokenize", {"prompt": prompt})[2])["tokens"] for prompt in prompts]
        alone = [[choice.text for choice in self.complete(prompt, **fields).choices] for prompt in prompts]
        self.assertNotEqual(alone[0], alone[1])
        for several in prompts, ids, [prompts[0], *ids[1:]]:
            together = self.complete(several, **fields)
            self.assertEqual([choice.text for choice in together.choices], sum(alone, []))
            self.assertEqual([choice.index for choice in together.choices], list(range(6)))
            self.assertEqual(together.usage.prompt_tokens, sum(map(len, ids)))
            self.assertLessEqual(together.usage.prompt_tokens_details.cached_tokens, together.usage.prompt_tokens)
        texts = [""] * 6
        for chunk in self.complete(prompts, **fields, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, sum(alone, []))

    def test_several_prompts_are_each_checked(self):
        for prompts, word in ((["x", ""], "empty"), ([[1], []], "empty"), ([], "empty"), (["x", 5], "array of either"), ([[1], [99999]], "5119"),
                              ([1, "x"], "array of either"), ([["x"]], "array of either"), (["x", "word " * 9000], "9001 tokens"),
                              (["x"] * 69, "69 answers; this server takes 68")):
            with self.subTest(str(prompts)[:40]):
                status, _, text = self.server.request("/v1/completions", {"prompt": prompts, "max_tokens": 1})
                error = json.loads(text)["error"]
                self.assertEqual((status, error["param"]), (400, "prompt"), text)
                self.assertIn(word, error["message"])

    def test_completion_errors(self):
        for body, param in (({}, "prompt"), ({"prompt": 1}, "prompt"), ({"prompt": [1, -1]}, "prompt"), ({"prompt": ""}, "prompt"),
                            ({"prompt": "x", "echo": True}, "echo"), ({"prompt": "x", "messages": []}, "messages")):
            status, _, text = self.server.request("/v1/completions", body)
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param), text)

    def test_tokens_and_back(self):
        text = "Hello <|end|> naïve 🦀"
        plain = json.loads(self.server.request("/tokenize", {"prompt": text, "add_special_tokens": False})[2])
        special = json.loads(self.server.request("/tokenize", {"prompt": text})[2])
        self.assertNotIn(5108, plain["tokens"])
        self.assertIn(5108, special["tokens"])
        for tokens in plain, special:
            self.assertEqual(tokens["count"], len(tokens["tokens"]))
            self.assertEqual(json.loads(self.server.request("/detokenize", {"tokens": tokens["tokens"]})[2])["prompt"], text)
        self.assertEqual(self.server.request("/detokenize", {"tokens": [99999]})[0], 400)

    def test_reasoning_effort_is_in_the_prompt(self):
        """llama.cpp 15130"""
        for effort in "low", "medium", "high":
            tokens = json.loads(self.server.request("/tokenize", {"messages": user(SUM), "reasoning_effort": effort})[2])["tokens"]
            prompt = json.loads(self.server.request("/detokenize", {"tokens": tokens})[2])["prompt"]
            self.assertIn(f"\n\nReasoning: {effort}\n", prompt)
            self.assertTrue(prompt.endswith(f"<|start|>user<|message|>{SUM}<|end|><|start|>assistant"))

    # ---- responses

    def test_response(self):
        answer = self.client.responses.create(model="tiny-gpt-oss", input=SUM, temperature=0, reasoning={"effort": "low"})
        self.assertEqual(answer.status, "completed")
        self.assertEqual([item.type for item in answer.output], ["reasoning", "message"])
        self.assertEqual(answer.output_text, "Anna has 65 apples.")
        self.assertEqual(answer.output[0].content[0].text, "38 + 27 = 65.")
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)

    def test_response_goes_on_from_another(self):
        first = self.client.responses.create(model="tiny-gpt-oss", input="Calculate 52 + 78.", temperature=0)
        second = self.client.responses.create(model="tiny-gpt-oss", input="Calculate 20 + 21.", temperature=0, previous_response_id=first.id)
        self.assertIn("41", second.output_text)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens + 20)
        for unknown in "resp_unknown", self.client.responses.create(model="tiny-gpt-oss", input="Hi", store=False, max_output_tokens=2).id:
            with self.assertRaises(openai.NotFoundError):
                self.client.responses.create(model="tiny-gpt-oss", input="x", previous_response_id=unknown)

    def test_response_streamed(self):
        text, types = "", []
        with self.client.responses.stream(model="tiny-gpt-oss", input=SUM, temperature=0, reasoning={"effort": "low"}) as stream:
            for event in stream:
                types.append(event.type)
                text += event.delta if event.type == "response.output_text.delta" else ""
            final = stream.get_final_response()
        self.assertEqual(text, "Anna has 65 apples.")
        self.assertEqual(final.output_text, text)
        self.assertEqual((types[0], types[1], types[-1]), ("response.created", "response.in_progress", "response.completed"))

    def test_response_with_a_schema(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"]}
        answer = self.client.responses.create(model="tiny-gpt-oss", input=SUM, temperature=0, text={"format": {
            "type": "json_schema", "name": "sum", "schema": schema}})
        self.assertTrue(0 <= json.loads(answer.output_text)["sum"] <= 99)

    def test_response_calls_a_function(self):
        tool = {"type": "function", "name": "translate", "description": "Translate a word.", "parameters": {
            "type": "object", "properties": {"word": {"type": "string"}, "language": {"type": "string", "description": "Target language"}},
            "required": ["word", "language"]}}
        ask = {"model": "tiny-gpt-oss", "tools": [tool], "temperature": 0, "reasoning": {"effort": "low"}}
        first = self.client.responses.create(input="How do you say cloud in Italian?", **ask)
        call = first.output[-1]
        self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "translate", {"word": "cloud", "language": "Italian"}))
        second = self.client.responses.create(previous_response_id=first.id, input=[
            {"type": "function_call_output", "call_id": call.call_id, "output": '{"translation": "nuvola"}'}], **ask)
        self.assertIn("nuvola", second.output_text)

    def test_response_with_logprobs(self):
        ask = {"model": "tiny-gpt-oss", "input": SUM, "temperature": 0, "reasoning": {"effort": "low"}, "top_logprobs": 3,
               "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
        part = self.client.responses.create(**ask).output[-1].content[0]
        self.assertEqual("".join(t.token for t in part.logprobs), part.text)
        for token in part.logprobs:
            self.assertEqual((len(token.top_logprobs), token.top_logprobs[0].token), (3, token.token))
            self.assertTrue(all(t.logprob <= 0 for t in [token, *token.top_logprobs]))
        chat = self.server.chat(messages=user(SUM), temperature=0, reasoning_effort="low", logprobs=True, top_logprobs=3)
        self.assertEqual([t.model_dump() for t in part.logprobs], chat["choices"][0]["logprobs"]["content"])
        events = [e for _, e in self.server.stream("/v1/responses", **ask)]
        for kind in "response.output_text.delta", "response.output_text.done":
            tokens = [t["token"] for e in events if e["type"] == kind for t in e["logprobs"]]
            self.assertEqual("".join(tokens), part.text)
        self.assertEqual(events[-1]["response"]["output"][-1]["content"][0]["logprobs"], chat["choices"][0]["logprobs"]["content"])
        del ask["top_logprobs"]
        self.assertEqual(self.client.responses.create(**ask).output[-1].content[0].logprobs[0].top_logprobs, [])
        del ask["include"]
        self.assertEqual(self.client.responses.create(**ask).output[-1].content[0].logprobs, [])

    def test_response_errors(self):
        for body, param in (({}, "input"), ({"input": []}, "input"), ({"input": "x", "wrong": 1}, "wrong"),
                            ({"input": [{"type": "image"}]}, "input[0].type"), ({"input": "x", "reasoning": {"effort": "no"}}, "reasoning.effort"),
                            ({"input": "x", "reasoning": {"effort": "none"}}, "reasoning.effort"),
                            ({"input": [{"type": "function_call_output", "call_id": "a", "output": ""}]}, "input[0].call_id"),
                            ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
                            ({"input": "x", "include": "logprobs"}, "include"), ({"input": "x", "include": [1]}, "include[0]"),
                            ({"input": "x", "include": ["message.output_text.logprobs", "web_search_call.action.sources"]}, "include[1]"),
                            ({"input": "x", "top_logprobs": 2}, "top_logprobs"),
                            ({"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs")):
            status, _, text = self.server.request("/v1/responses", body)
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param), text)

    # ---- the page

    def test_the_page_is_whole(self):
        status, headers, page = self.server.request("/")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/html"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertTrue(page.rstrip().endswith("</html>"))
        self.assertEqual(re.findall(r"(?:src|href)=|url\(|@import|https?://", page), [])

    def test_metrics_are_prometheus(self):
        text = self.server.request("/metrics")[2]
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) nibble_\w+ .+|nibble_\w+(\{[a-z]+="[^"]+"\})? [-+.e\d]+|.*\+Inf.*)$')
        self.assertEqual(self.server.metric("kv_pages"), self.server.metric("kv_pages_free"))


class Scripted(support.unittest.TestCase):
    def test_offsets_of_a_completion_count_characters(self):
        """So that they index the text: a token that goes on with a character is where that is."""
        text = "naïve 🦀 日本x"
        request = {"prompt": f"<|message|>{text}<|end|>", "logprobs": 1, "max_tokens": 60}
        with scripted_server() as server:
            whole = json.loads(server.request("/v1/completions", request)[2])["choices"][0]
            events = [data["choices"][0]["logprobs"] for _, data in server.stream("/v1/completions", **request)[:-1]]
        self.assertEqual(whole["text"], text)
        for offsets in whole["logprobs"]["text_offset"], sum((logprobs["text_offset"] for logprobs in events if logprobs), []):
            self.assertEqual(offsets[:4], [0, 1, 2, 2])
            for token, offset in zip(whole["logprobs"]["tokens"], offsets):
                self.assertTrue("\ufffd" in token or text[offset:].startswith(token), (token, offset))
            self.assertEqual(offsets[-1], len(text) - 1)

    def test_offsets_are_of_tokens_also_where_text_is_held_back(self):
        """A part of "stop" may begin a stop string, so it comes late; its tokens are where they are all the same."""
        request = {"prompt": "<|message|>stop naïve stop🦀<|end|>", "logprobs": 0, "stop": ["top!", "the", "🦀"], "max_tokens": 60}
        with scripted_server() as server:
            whole = json.loads(server.request("/v1/completions", request)[2])["choices"][0]
            chunks = [data["choices"][0] for _, data in server.stream("/v1/completions", **request)[:-1]]
        self.assertEqual([whole["text"], "".join(chunk["text"] for chunk in chunks)], ["stop naïve stop"] * 2)
        told = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
        for field in "tokens", "text_offset":
            self.assertEqual(sum((logprobs[field] for logprobs in told), []), whole["logprobs"][field])


class Streams(support.unittest.TestCase):
    def test_items_of_odd_streams(self):
        with scripted_server() as server:
            for script, types in ((REASONING + CALL, ["reasoning", "function_call"]),
                                  (CALL.replace("<|call|>", "<|end|>") + "<|start|>assistant" + CALL, ["function_call"] * 2),
                                  (REASONING + "<|channel|>final<|message|>Hi", ["reasoning", "message"]), ("Hi<|return|>", ["message"]),
                                  ("<|return|>", []), (REASONING * 2 + "<|channel|>final<|message|>Hi<|return|>", ["reasoning", "message"])):
                body = {"input": script, "tools": [WEATHER]}
                whole = json.loads(server.request("/v1/responses", body)[2])
                events = server.stream("/v1/responses", **body)
                self.assertEqual([item["type"] for item in whole["output"]], types)
                self.assertEqual([e["sequence_number"] for _, e in events], list(range(len(events))))
                self.assertTrue(all(name == e["type"] for name, e in events))
                self.assertEqual(strip(events[-1][1]["response"]["output"]), strip(whole["output"]))
                done = [e["item"] for name, e in events if name == "response.output_item.done"]
                self.assertEqual(done, events[-1][1]["response"]["output"])
                self.assertEqual(whole["status"], "completed" if script.endswith(("|return|>", "|call|>")) else "incomplete")


def strip(items):
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


if __name__ == "__main__":
    support.main()
