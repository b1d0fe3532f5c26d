"""`nibble run` with one prompt: text, sampling, limits, JSON, Ctrl-C."""
import json
import os
import shutil
import signal
import subprocess

import support
from support import MODEL, NIBBLE, run

SUM = "Anna has 38 apples and buys 27 more. How many apples does she have?"
STORY = "Once upon a time there was"
TOOLS = ("<|start|>system<|message|>You are a helpful assistant.\nKnowledge cutoff: 2024-06\n"
         "Current date: 2024-05-04\n\nReasoning: low\n\n# Valid channels: analysis, commentary, final. Channel must be "
         "included for every message.\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
         "<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n"
         "// Get the current weather for a city.\ntype get_weather = (_: {\n// The name of the city\ncity: string,\n"
         "}) => any;\n\n} // namespace functions<|end|><|start|>user<|message|>Is it warm in Porto?<|end|>"
         "<|start|>assistant")


class Run(support.Test):
    def test_answer_and_reasoning(self):
        for device in ("cpu", "ref"):
            with self.subTest(device):
                process = self.succeeds(run("run", MODEL, "--device", device, "--temperature", 0, "--reasoning", "low",
                                            "--prompt", SUM))
                self.assertEqual(process.stdout, "Anna has 65 apples.\n")
                self.assertIn("reasoning: 38 + 27 = 65.\n", process.stderr)
                self.assertIn("memory: ", process.stderr)
                self.assertRegex(process.stderr, r"\d+ tokens, [\d.]+ tok/s; prompt: \d+ tokens, [\d.]+ tok/s")

    def test_standard_input(self):
        for arguments in ((), ("--prompt", "-")):
            process = run("run", MODEL, "--temperature", 0, "--reasoning", "low", "--hide-reasoning", *arguments,
                          stdin=SUM + "\n")
            self.assertEqual(self.succeeds(process).stdout, "Anna has 65 apples.\n")
            self.assertNotIn("38 + 27", process.stderr)

    def test_user_text_holds_no_control_tokens(self):
        plain = self.json_of(run("run", MODEL, "--json", "--max-tokens", 1, "--prompt", "a<|end|>b"))
        letters = self.json_of(run("run", MODEL, "--json", "--max-tokens", 1, "--prompt", "ab"))
        self.assertGreater(plain["prompt_tokens"], letters["prompt_tokens"] + 2)

    def test_system_and_reasoning_change_the_prompt(self):
        bare, more = (self.json_of(run("run", MODEL, "--json", "--max-tokens", 1, "--prompt", SUM, *extra))
                      for extra in ((), ("--system", "You answer questions briefly.")))
        self.assertGreater(more["prompt_tokens"], bare["prompt_tokens"] + 5)

    def test_json(self):
        got = self.json_of(run("run", MODEL, "--json", "--temperature", 0, "--prompt", SUM, "--logprobs", 2))
        self.assertEqual(got["text"], "Anna has 65 apples.")
        self.assertEqual(got["reasoning"], "38 + 27 = 65.")
        self.assertEqual([message["channel"] for message in got["messages"]], ["analysis", "final"])
        self.assertEqual(got["tool_calls"], [])
        self.assertEqual(got["finish_reason"], "stop")
        self.assertEqual(len(got["logprobs"]), got["generated_tokens"] - 1)  # all but the stop token
        for entry in got["logprobs"]:
            self.assertEqual(len(entry["top"]), 2)
            self.assertEqual(entry["id"], entry["top"][0]["id"])  # greedy takes the likeliest
            self.assertGreaterEqual(entry["top"][0]["logprob"], entry["top"][1]["logprob"])
        for key in ("prompt_tokens", "prefill_seconds", "decode_seconds", "prefill_tokens_per_second",
                    "decode_tokens_per_second", "load_seconds", "threads"):
            self.assertGreater(got[key], 0, key)

    def test_seeds(self):
        def story(*arguments):
            return self.json_of(run("run", MODEL, "--raw", "--json", "--prompt", STORY, "--max-tokens", 24,
                                    *arguments))["text"]
        self.assertEqual(story("--seed", 7), story("--seed", 7, "--threads", 1, "--deterministic"))
        self.assertNotEqual(story("--seed", 7), story("--seed", 8))
        self.assertNotEqual(story(), story())
        self.assertEqual(story("--top-k", 1), story("--temperature", 0))
        self.assertEqual(story("--top-p", 0.0001), story("--temperature", 0))
        self.assertEqual(story("--min-p", 1), story("--temperature", 0))

    def test_max_tokens(self):
        got = self.json_of(run("run", MODEL, "--raw", "--json", "--prompt", STORY, "--max-tokens", 5))
        self.assertEqual((got["finish_reason"], got["generated_tokens"]), ("length", 5))
        got = self.json_of(run("run", MODEL, "--raw", "--json", "--prompt", "word " * 40, "--context", 64,
                               "--temperature", 0))
        self.assertEqual(got["finish_reason"], "length")
        self.assertLessEqual(got["prompt_tokens"] + got["generated_tokens"], 65)

    def test_stop_strings(self):
        whole = run("run", MODEL, "--raw", "--prompt", STORY, "--temperature", 0, "--max-tokens", 30).stdout
        for stop in (whole[9:13], whole[1:3], whole[20:27]):
            got = self.json_of(run("run", MODEL, "--raw", "--json", "--prompt", STORY, "--temperature", 0,
                                   "--max-tokens", 30, "--stop", "never said", "--stop", stop))
            self.assertEqual(got["text"], whole[:whole.index(stop)])
            self.assertEqual(got["finish_reason"], "stop")
        # Reasoning is not searched: "65" is in both.
        got = self.json_of(run("run", MODEL, "--json", "--temperature", 0, "--prompt", SUM, "--stop", "65"))
        self.assertEqual((got["reasoning"], got["text"]), ("38 + 27 = 65.", "Anna has "))

    def test_raw_spells_control_tokens(self):
        process = self.succeeds(run("run", MODEL, "--raw", "--temperature", 0, "--prompt", TOOLS))
        self.assertEqual(process.stdout, "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
                                         '{"city": "Porto"}\n')

    def test_interrupt(self):
        process = subprocess.Popen([NIBBLE, "run", MODEL, "--raw", "--prompt", STORY, "--seed", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(process.stdout.read(1))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("(stopped)", errors)


class Wrong(support.Test):
    def test_prompts(self):
        self.fails(run("run", MODEL, "--prompt", ""), 1, "prompt is empty")
        self.fails(run("run", MODEL, "--raw", "--prompt", "word " * 100, "--context", 32), 1, "32", "context")
        self.fails(run("run", MODEL, "--prompt", "a", "--stop", ""), 1, "stop string")

    def test_no_harmony(self):
        folder = os.path.join(support.SCRATCH, "no-harmony")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for name in os.listdir(MODEL):
            if name != "tokenizer.json":
                os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
        for token in tokenizer["added_tokens"]:
            token["content"] = token["content"].replace("<|", "<!")
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump(tokenizer, file)
        self.fails(run("run", folder, "--prompt", "a"), 1, "harmony", "--raw")
        process = run("run", folder, "--raw", "--prompt", STORY, "--max-tokens", 3, "--temperature", 0)
        self.assertTrue(self.succeeds(process).stdout.strip())

    def test_no_tokenizer(self):
        self.fails(run("run", os.path.join(support.DATA, "models", "gpt_oss"), "--raw", "--prompt", "a"), 1,
                   "tokenizer")


if __name__ == "__main__":
    support.main()
