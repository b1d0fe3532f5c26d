"""Every chat format over HTTP: reasoning, answers and calls, streamed or not; Kimi's ids; arguments typed by their tool."""
import base64
import json
import os
import shutil

import support
from support import Server, joined, user, whole

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "array"}}}}}

# Control tokens of a vocabulary, the model's type, and what each format's model says; the prompt opens some thoughts itself.
FORMATS = {
    "chatml": ("<|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>", "qwen3_moe",
               "<think>\nHm.\n</think>\n\nYes.<|im_end|>",
               'Look.\n<tool_call>\n{"name": "f", "arguments": {"city": "Rome", "days": 2, "deep": [1]}}\n</tool_call><|im_end|>'),
    "mimo": ("<|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>", "mimo_v2_flash",
             "<think>Hm.</think>Yes.<|im_end|>",
             "Look.<tool_call>\n<function=f>\n<parameter=city>Rome</parameter>\n<parameter=days>2</parameter>\n"
             "<parameter=deep>[1]</parameter>\n</function>\n</tool_call><|im_end|>"),
    "minimax": ("]~!b[ ]~b] [e~[ <think> </think> <minimax:tool_call> </minimax:tool_call>", "minimax_m2",
                "Hm.\n</think>\n\nYes.[e~[",
                '</think>\n\nLook.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">Rome</parameter>\n<parameter '
                'name="days">2</parameter>\n<parameter name="deep">[1]</parameter>\n</invoke>\n</minimax:tool_call>[e~['),
    "kimi": ("<|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> <|tool_calls_section_begin|> "
             "<|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|> <think> </think>", "kimi_k2",
             "Hm.</think>Yes.<|im_end|>",
             '</think>Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{"city": "Rome", '
             '"days": 2, "deep": [1]}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'),
    "deepseek": ("<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> "
                 "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> "
                 "<｜tool▁output▁begin｜> <｜tool▁output▁end｜> <think> </think>", "deepseek_v3",
                 "Hm.\n</think>\n\nYes.<｜end▁of▁sentence｜>",
                 '</think>\n\nLook.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"city": "Rome", "days": '
                 '2, "deep": [1]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'),
}


def start(name):
    """A server of that format on a tokenizer of bytes and its control tokens, in Kimi's form."""
    folder = os.path.join(support.SCRATCH, "format-" + name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "tiktoken.model"), "wb") as file:
        for byte in range(256):
            file.write(base64.b64encode(bytes([byte])) + f" {byte}\n".encode())
    controls, model_type = FORMATS[name][:2]
    named = {str(256 + i): {"content": text} for i, text in enumerate(controls.split())}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"added_tokens_decoder": named}, file)
    os.environ["MODEL_TYPE"] = model_type
    return Server(support.SCRIPTED, folder)


class Formats(support.unittest.TestCase):
    def both(self, server, script, **fields):
        fields["messages"] = user(script)
        answer = server.chat(**fields)
        self.assertEqual(joined(server.stream(**fields)), whole(answer), script)
        return answer

    def test_reasoning_answers_and_calls(self):
        for name, (_, _, thought, call) in FORMATS.items():
            with self.subTest(name), start(name) as server:
                self.assertEqual(whole(self.both(server, thought)),
                                 {"content": "Yes.", "reasoning_content": "Hm.", "tool_calls": [], "finish_reason": "stop"})
                got = whole(self.both(server, call, tools=[TOOL]))
                (called, arguments), = got["tool_calls"]
                self.assertEqual((got["content"].rstrip("\n"), called, json.loads(arguments), got["finish_reason"]),
                                 ("Look.", "f", {"city": "Rome", "days": 2, "deep": [1]}, "tool_calls"))

    def test_cut_anywhere_no_text_is_lost(self):
        for name, (controls, _, _, call) in FORMATS.items():
            with self.subTest(name), start(name) as server:
                for end in range(0, len(call), 5):
                    if any(call[max(0, end - i):end] and word.startswith(call[max(0, end - i):end])
                           for word in controls.split() for i in range(1, 24)):
                        continue  # a tag cut in two is other text
                    got = whole(self.both(server, call[:end], tools=[TOOL]))
                    shown = got["content"] + "".join(name + arguments for name, arguments in got["tool_calls"])
                    self.assertEqual("Rome" in call[:end], "Rome" in shown, call[:end])
                    self.assertEqual("Look." in call[:end], "Look." in shown, call[:end])

    def test_kimi_ids(self):
        with start("kimi") as server:
            script = FORMATS["kimi"][3]
            answer = server.chat(messages=user(script), tools=[TOOL])
            call, = answer["choices"][0]["message"]["tool_calls"]
            self.assertEqual(call["id"], "functions.f:3")
            streamed = [c["id"] for _, chunk in server.stream(messages=user(script), tools=[TOOL])[:-1]
                        for choice in chunk["choices"] for c in choice["delta"].get("tool_calls", []) if "id" in c]
            self.assertEqual(streamed, ["functions.f:3"])
            twice = script.replace("<|tool_calls_section_end|>", script[script.index("<|tool_call_begin|>"):script.index("<|tool_calls_section_end|>")] +
                                   "<|tool_calls_section_end|>")
            ids = [c["id"] for c in server.chat(messages=user(twice), tools=[TOOL])["choices"][0]["message"]["tool_calls"]]
            self.assertEqual((len(set(ids)), ids[0]), (2, "functions.f:3"))  # a client could not tell them apart

            def prompt(call_id):
                call["id"] = call_id
                history = [*user("x"), {"role": "assistant", "content": "", "tool_calls": [call]},
                           {"role": "tool", "tool_call_id": call_id, "content": "sunny"}]
                _, _, text = server.request("/tokenize", {"messages": history, "tools": [TOOL]})
                _, _, text = server.request("/detokenize", {"tokens": json.loads(text)["tokens"]})
                return json.loads(text)["prompt"]
            self.assertIn("<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>", prompt("functions.f:3"))
            self.assertIn("## Return of functions.f:3\nsunny<|im_end|>", prompt("functions.f:3"))
            self.assertIn("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", prompt("call_abc"))
            self.assertIn("## Return of functions.f:0\nsunny<|im_end|>", prompt("call_abc"))

    def test_without_reasoning(self):
        for name, end in (("chatml", "<think>\n\n</think>\n\n"), ("mimo", "<think></think>"), ("kimi", "<think></think>"),
                          ("deepseek", "<think>\n\n</think>\n\n"), ("minimax", None)):
            with self.subTest(name), start(name) as server:
                for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}},
                               {"chat_template_kwargs": {"thinking": False}}):
                    status, _, text = server.request("/tokenize", {"messages": user("x"), **fields})
                    if end is None:
                        asked = next(iter(fields)) + "".join(f".{k}" for v in fields.values() if isinstance(v, dict) for k in v)
                        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, asked))
                        continue
                    _, _, text = server.request("/detokenize", {"tokens": json.loads(text)["tokens"]})
                    self.assertTrue(json.loads(text)["prompt"].endswith(end), text)
                for wrong in (5, {"enable_thinking": "no"}, {"other": True}):
                    self.assertEqual(server.request("/v1/chat/completions", {"messages": user("x"), "chat_template_kwargs": wrong})[0], 400)


if __name__ == "__main__":
    support.main()
