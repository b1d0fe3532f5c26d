"""What a request says is what the model reads: numbers of schemas, refusals, preambles of calls, calls nobody offered."""
import json

import support
from support import scripted_server, user

CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
LARGEST = 2 ** 64 - 1


def tool(**parameters):
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}


class Prompts(support.unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(scripted_server())

    def prompt(self, **fields):
        status, _, text = self.server.request("/tokenize", {"messages": user("x"), **fields})
        self.assertEqual(status, 200, text)
        return json.loads(self.server.request("/detokenize", {"tokens": json.loads(text)["tokens"]})[2])["prompt"]

    def test_numbers_of_a_schema_have_the_digits_they_came_with(self):
        schema = {"type": "object", "properties": {"x": {"type": "number", "minimum": 0.1, "maximum": 1.0, "multipleOf": 1e-7,
                                                         "description": "0.10 e5 \"1.50\" \\"},
                                                   "y": {"enum": [-2.5e30, 0.30000000000000004, 5]}}}
        text = json.dumps(schema, separators=(",", ":")).replace("1e-07", "1e-7").replace("e+30", "e30")
        self.assertIn(text, self.prompt(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}))
        self.assertIn("// default: 0.1\n", self.prompt(tools=[tool(properties={"x": {"type": "number", "default": 0.1}})]))

    def test_a_schema_may_have_numbers_larger_than_any_integer_here(self):
        """The largest of 64 bits is the maximum that many a generator of schemas writes."""
        tools = [tool(properties={"x": {"type": "integer", "minimum": 0, "maximum": LARGEST, "default": 5}})]
        self.assertIn("// default: 5\n", self.prompt(tools=tools))
        for field in {"max_tokens": 50}, {"logit_bias": {"7": 1}}, {"top_k": 1}:
            self.server.chat(messages=user(CALL), tools=tools, **field)
        status, _, text = self.server.request("/v1/chat/completions", {"messages": user("x"), "seed": LARGEST})
        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, "seed"))
        status, _, text = self.server.request("/v1/chat/completions", b'{"messages": [], "seed": 1e999}')
        self.assertEqual((status, json.loads(text)["error"]["code"]), (400, "invalid_json"))

    def test_a_refusal_is_what_the_assistant_said(self):
        said = {"role": "assistant", "content": None, "refusal": "I cannot."}
        self.assertIn("<|channel|>final<|message|>I cannot.<|end|>", self.prompt(messages=[*user("x"), said, *user("y")]))
        status, _, text = self.server.request("/v1/chat/completions", {"messages": [{**said, "refusal": 5}]})
        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, "messages[0].refusal"))

    def test_a_preamble_is_no_answer_in_either_api(self):
        """Behind an answer the reasoning in front of it is dropped; behind the preamble of a call it goes on being of use."""
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        chat = [*user("x"), {"role": "assistant", "reasoning_content": "A long thought.", "content": "Let me see.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "1"}]
        thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "A long thought."}]}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
        called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "1"}
        self.assertIn("A long thought.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>",
                      self.prompt(messages=chat, tools=[tool()]))

        def tokens(*items):
            fields = {"input": [*user("x"), *items], "tools": [{"type": "function", **TOOL}]}
            return json.loads(self.server.request("/v1/responses", fields)[2])["usage"]["input_tokens"]
        wanted = self.server.chat(messages=chat, tools=[{"type": "function", "function": TOOL}])["usage"]["prompt_tokens"]
        self.assertEqual(tokens(thought, said, called, output), wanted)
        self.assertEqual(tokens(said, thought, called, output), wanted)
        answered = [*user("x"), {"role": "assistant", "reasoning_content": "A long thought.", "content": "Let me see."}, *user("y")]
        wanted = self.server.chat(messages=answered, tools=[{"type": "function", "function": TOOL}])["usage"]["prompt_tokens"]
        self.assertEqual(tokens(thought, said, *user("y")), wanted)

    def test_without_tools_there_are_no_calls(self):
        for fields in {}, {"tool_choice": "auto"}, {"tool_choice": "auto", "tools": []}, {"tool_choice": "none", "tools": [tool()]}:
            choice = self.server.chat(messages=user(CALL), **fields)["choices"][0]
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ('{"a": 1}', "stop"), fields)
        self.assertEqual(self.server.chat(messages=user(CALL), tools=[tool()])["choices"][0]["finish_reason"], "tool_calls")


if __name__ == "__main__":
    support.main()
