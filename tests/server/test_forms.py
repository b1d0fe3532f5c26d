"""Answers in a form that the request demands: JSON, a schema, a call."""
import json
import os
import shutil
import string

import openai
import pydantic

import support
from support import joined, model_server, user, whole

SUM = "Anna has 38 apples and buys 27 more. How many apples does she have?"
ANSWER = {"type": "object", "properties": {
    "sum": {"type": "integer", "minimum": 10, "maximum": 99}, "who": {"type": "string", "maxLength": 8},
    "fruit": {"enum": ["apples", "pears"]},
    "parts": {"type": "array", "items": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2}, "minItems": 1, "maxItems": 3}},
    "required": ["sum", "who", "fruit", "parts"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "description": f"{name} something.", "parameters": {
    "type": "object", "properties": {"what": {"type": "string", "maxLength": 20}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["what", "count"]}}} for name in ("fetch", "store")]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


class Forms(support.unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(model_server("--parallel", 4))

    def ask(self, text, **fields):
        fields = {"messages": user(text), "reasoning_effort": "low", "max_completion_tokens": 400, **fields}
        answer = whole(self.server.chat(**fields))
        self.assertEqual(joined(self.server.stream(**fields)), answer)
        return answer

    def check_answer(self, text):
        value = json.loads(text)
        self.assertEqual(list(value), ["sum", "who", "fruit", "parts"])
        self.assertTrue(10 <= value["sum"] <= 99 and isinstance(value["sum"], int))
        self.assertLessEqual(len(value["who"]), 8)
        self.assertIn(value["fruit"], ("apples", "pears"))
        self.assertTrue(1 <= len(value["parts"]) <= 3 and all(0.5 <= part < 2 for part in value["parts"]))

    def test_a_schema_binds_the_answer(self):
        for seed in range(6):
            answer = self.ask(SUM, response_format=schema_format(ANSWER), seed=seed, temperature=1.5)
            self.assertEqual(answer["finish_reason"], "stop")
            self.check_answer(answer["content"])

    def test_the_schema_binds_the_final_channel_only(self):
        """sglang 9259, vllm 23120: with reasoning and with tools, streaming and not"""
        answer = self.ask(SUM, response_format=schema_format(ANSWER), temperature=0)
        self.assertEqual(answer["reasoning_content"], "38 + 27 = 65.")
        self.check_answer(answer["content"])
        answer = self.ask(SUM, response_format=schema_format(ANSWER), temperature=0, tools=TOOLS)
        if not answer["tool_calls"]:
            self.check_answer(answer["content"])

    def test_arguments_are_an_object_whatever_the_schema_leaves_open(self):
        """Also of a model that wants to write a number."""
        wishes = json.loads(self.server.request("/tokenize", {"prompt": "7<|call|>"})[2])["tokens"]
        for parameters in {}, {"description": "Anything."}, {"properties": {"a": {"type": "integer"}}, "required": ["a"]}:
            tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
            answer = self.ask(SUM, tools=[tool], tool_choice={"type": "function", "function": {"name": "f"}}, temperature=0,
                              logit_bias=dict.fromkeys(map(str, wishes), 100), max_completion_tokens=30)
            self.assertEqual([arguments[0] for _, arguments in answer["tool_calls"]], ["{"], answer)

    def test_nothing_is_said_in_front_of_an_answer_that_a_schema_binds(self):
        """Not even by a model that wants to say something in front of a call, and then does not call."""
        wishes = json.loads(self.server.request("/tokenize", {"prompt": "commentary<|message|><|end|><|call|>"})[2])["tokens"]
        answer = self.ask(SUM, response_format=schema_format(ANSWER), temperature=0, tools=TOOLS, logit_bias=dict.fromkeys(map(str, wishes), 100))
        self.assertEqual((answer["content"], answer["finish_reason"]), ("", "tool_calls"))

    def test_any_json_object(self):
        complete = 0
        for seed in range(6):
            answer = self.ask(SUM, response_format={"type": "json_object"}, seed=seed, temperature=1)
            self.assertTrue(answer["content"].startswith("{"))
            if answer["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(answer["content"]), dict)
                complete += 1
        self.assertGreater(complete, 0)

    def test_the_openai_package_parses_a_model(self):
        class Answer(pydantic.BaseModel):
            total: int = pydantic.Field(ge=0, le=200)
            fruit: str = pydantic.Field(max_length=10)
            rest: int | None

        parsed = self.server.client.chat.completions.parse(
            model="tiny-gpt-oss", messages=user(SUM), response_format=Answer, temperature=0, max_completion_tokens=300)
        self.assertIsInstance(parsed.choices[0].message.parsed, Answer)

    def test_a_call_is_required(self):
        for seed in range(4):
            answer = self.ask("Tell me a story.", tools=TOOLS, tool_choice="required", seed=seed, temperature=1)
            (name, arguments), = answer["tool_calls"]
            self.assertEqual(answer["finish_reason"], "tool_calls")
            self.assertIn(name, ("fetch", "store"))
            arguments = json.loads(arguments)
            self.assertTrue(1 <= arguments["count"] <= 9 and len(arguments["what"]) <= 20)

    def test_a_call_of_one_tool_is_required(self):
        answer = self.ask(SUM, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "store"}}, temperature=1, seed=1)
        self.assertEqual(answer["tool_calls"][0][0], "store")
        self.assertEqual(set(json.loads(answer["tool_calls"][0][1])), {"what", "count"})

    def test_a_bad_schema_is_a_400(self):
        """llama.cpp 19051"""
        for schema, word in (({"type": "object", "properties": {"a": {"not": {}}}}, "'not' at #/properties/a"),
                             ({"type": "nonsense"}, "'type'"), ({"$ref": "#/nowhere"}, "'$ref'"),
                             ({"type": "string", "pattern": "(?<=a)b"}, "pattern"), ({"$ref": "#"}, "no JSON")):
            with self.subTest(schema), self.assertRaises(openai.BadRequestError) as caught:
                self.server.client.chat.completions.create(model="tiny-gpt-oss", messages=user(SUM),
                                                           response_format=schema_format(schema))
            self.assertEqual(caught.exception.param, "response_format")
            self.assertIn(word, str(caught.exception))
        for given, param in (({"type": "xml"}, "response_format.type"), ({"type": "json_schema"}, "response_format.json_schema"),
                             ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema")):
            status, _, text = self.server.request("/v1/chat/completions", {"messages": user(SUM), "response_format": given})
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param))
        tool = {"type": "function", "function": {"name": "f", "parameters": {"oneOf": []}}}
        status, _, text = self.server.request("/v1/chat/completions", {"messages": user(SUM), "tools": [tool], "tool_choice": "required"})
        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, "tools"))

    def test_a_function_without_parameters_takes_none(self):
        tool = {"type": "function", "function": {"name": "now"}}
        answer = self.ask("What is the weather in Paris?", temperature=0, tools=[tool], tool_choice="required")
        self.assertEqual([(name, json.loads(arguments)) for name, arguments in answer["tool_calls"]], [("now", {})])

    def test_biases_and_penalties(self):
        plain = self.ask("Calculate 52 + 78.", temperature=0)
        token = self.server.chat(messages=user("Calculate 52 + 78."), temperature=0, logprobs=True)
        self.assertEqual(plain, whole(token))
        digit = "1".encode()[0] - ord("!")  # byte tokens come first, in the order of printable bytes
        biased = self.ask("Calculate 52 + 78.", temperature=0, logit_bias={str(digit): -100})
        self.assertNotIn("1", biased["content"] + biased["reasoning_content"])
        repeat = {"temperature": 0, "max_completion_tokens": 80}
        self.assertNotEqual(self.ask("Repeat exactly: sun, sun, sun, sun, sun", **repeat, frequency_penalty=2),
                            self.ask("Repeat exactly: sun, sun, sun, sun, sun", **repeat))
        self.assertNotEqual(self.ask("Repeat exactly: sun, sun, sun, sun, sun", **repeat, repetition_penalty=1.5),
                            self.ask("Repeat exactly: sun, sun, sun, sun, sun", **repeat))
        for field, value in (("logit_bias", {"99999": 1}), ("logit_bias", {"x": 1}), ("logit_bias.3", {"3": 101}),
                             ("presence_penalty", 2.5), ("repetition_penalty", 0)):
            status, _, text = self.server.request("/v1/chat/completions", {"messages": user(SUM), field.split(".")[0]: value})
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, field))


class OtherFormats(support.unittest.TestCase):
    """The small model with ChatML's tags in its vocabulary: it was not trained on them, but must keep to them."""

    @classmethod
    def setUpClass(cls):
        folder = os.path.join(support.SCRATCH, "chatml-model")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(support.MODEL, folder)
        path = os.path.join(folder, "tokenizer.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for old, new in (("<|start|>", "<|im_start|>"), ("<|end|>", "<|im_end|>"), ("<|channel|>", "<think>"), ("<|message|>", "</think>"),
                         ("<|call|>", "<tool_call>"), ("<|constrain|>", "</tool_call>")):
            text = text.replace(f'"{old}"', f'"{new}"')
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        cls.server = cls.enterClassContext(support.Server(support.NIBBLE, "serve", folder, "--port", 0))

    def ask(self, **fields):
        fields = {"messages": user(SUM), "max_completion_tokens": 400, "temperature": 1, **fields}
        answer = whole(self.server.chat(**fields))
        self.assertEqual(joined(self.server.stream(**fields)), answer)
        return answer

    def test_a_schema_binds_the_answer(self):
        complete = 0
        for seed in range(6):
            answer = self.ask(response_format=schema_format(ANSWER), seed=seed)
            if answer["finish_reason"] == "stop":
                self.assertEqual(list(json.loads(answer["content"])), ["sum", "who", "fruit", "parts"])
                complete += 1
        self.assertGreater(complete, 0)

    def test_a_call_is_demanded(self):
        for seed in range(4):
            answer = self.ask(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "store"}}, seed=seed)
            (name, arguments), = answer["tool_calls"]
            self.assertEqual((answer["finish_reason"], name), ("tool_calls", "store"))
            self.assertEqual(set(json.loads(arguments)), {"what", "count"})


MARKUP_TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "$defs": {"Size": {"enum": ["small", "large"]}}, "type": "object", "required": ["what", "count", "size"], "properties": {
        "what": {"type": "string", "minLength": 2, "maxLength": 20}, "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "size": {"$ref": "#/$defs/Size"}, "gift": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}}}
    for name in ("fetch", "store")]


class MarkupFormats(support.unittest.TestCase):
    """Calls whose arguments are bare text between tags, demanded of models that were not trained on them."""

    @staticmethod
    def tokenizer(controls):
        """Line breaks, what prints, and the tags: few enough for the fixtures' vocabulary."""
        vocabulary = {"\u010a": 0, "\u0120": 1}
        for letter in string.digits + string.ascii_letters + string.punctuation:
            vocabulary[letter] = len(vocabulary)
        added = [{"id": len(vocabulary) + i, "content": tag, "special": True} for i, tag in enumerate(controls.split())]
        return {"added_tokens": added, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}

    def start(self, fixture, controls):
        folder = os.path.join(support.SCRATCH, "markup-model")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(support.DATA, "models", fixture), folder)
        for name in ("config.json", "tokenizer.json"):
            path = os.path.join(folder, name)
            value = self.tokenizer(controls)
            if name == "config.json":
                with open(path, encoding="utf-8") as file:
                    value = json.load(file)
                value["max_position_embeddings"] = 8192  # the tools alone are longer than what the fixture says
            with open(path, "w", encoding="utf-8") as file:
                json.dump(value, file)
        return support.Server(support.NIBBLE, "serve", folder, "--port", 0)

    def check_call(self, server, seed, choice, names):
        fields = {"messages": user("x"), "tools": MARKUP_TOOLS, "tool_choice": choice, "max_completion_tokens": 1000,
                  "temperature": 1, "seed": seed}
        answer = whole(server.chat(**fields))
        self.assertEqual(joined(server.stream(**fields)), answer)
        if answer["finish_reason"] == "length":  # still thinking
            return 0
        (name, arguments), = answer["tool_calls"]
        self.assertEqual((answer["finish_reason"], name in names), ("tool_calls", True))
        arguments = json.loads(arguments)
        self.assertLessEqual({"what", "count", "size"}, set(arguments))
        self.assertTrue(2 <= len(arguments["what"]) <= 20 and isinstance(arguments["what"], str), arguments)
        self.assertTrue(1 <= arguments["count"] <= 9 and arguments["size"] in ("small", "large"), arguments)
        self.assertIn(arguments.get("gift"), (None, True, False))
        return 1

    def test_calls_are_demanded(self):
        for fixture, controls in (
                ("mimo_v2", "<|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"),
                ("minimax_m2", "]~!b[ ]~b] [e~[ <think> </think> <minimax:tool_call> </minimax:tool_call>")):
            with self.subTest(fixture), self.start(fixture, controls) as server:
                named = {"type": "function", "function": {"name": "store"}}
                self.assertEqual(sum(self.check_call(server, seed, named, ("store",)) for seed in range(6)), 6)
                self.assertGreater(sum(self.check_call(server, seed, "required", ("fetch", "store")) for seed in range(6)), 0)
                flat = [{"type": "function", **tool["function"]} for tool in MARKUP_TOOLS]
                answer = server.client.responses.create(model="markup-model", input="x", tools=flat, tool_choice={"type": "function", "name": "fetch"})
                self.assertEqual(answer.output[-1].name, "fetch")
                self.assertLessEqual({"what", "count", "size"}, set(json.loads(answer.output[-1].arguments)))
                tool = {"type": "function", "function": {"name": "f", "parameters": {
                    "type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}}}
                status, _, text = server.request("/v1/chat/completions", {"messages": user("x"), "tools": [tool], "tool_choice": "required"})
                self.assertEqual(status, 400)
                self.assertIn("'pattern' at #/properties/a", text)


if __name__ == "__main__":
    support.main()
