#!/usr/bin/env python3
"""Compares nibble's prompts with a model's own chat template, which is not part of this repository: get it from the model's
folder (chat_template.jinja, or chat_template in tokenizer_config.json).

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2
    /tmp/venv/bin/python tests/clients/chat_oracle.py FORMAT TEMPLATE [--build build] [--set KEY=JSON]… [--absent TOKEN]…

FORMAT is chatml, mimo, minimax, kimi or deepseek. --set gives the template a variable (enable_thinking=false); --absent
names a control token that the model's vocabulary lacks. Exit status 1 and the differing prompts on any difference.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Ignored(Extension):
    """Tags that the transformers library adds and that print nothing."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=[Ignored, "jinja2.ext.loopcontrols"])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def fail(message):
        raise jinja2.exceptions.TemplateError(message)

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = fail
    return made


def sort_deep(value):
    if isinstance(value, dict):
        return {key: sort_deep(value[key]) for key in sorted(value)}
    return [sort_deep(item) for item in value] if isinstance(value, list) else value


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Says \"how\" it is.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Where, é"}, "days": {"type": "integer", "minimum": 1},
        "units": {"type": "string", "enum": ["c", "f"]}}}}}
TIME = {"type": "function", "function": {"name": "time", "description": "The time.",
                                         "parameters": {"type": "object", "properties": {}}}}


def call(name, number, **arguments):
    return {"id": f"functions.{name}:{number}", "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def result(name, number, content):
    return {"role": "tool", "name": name, "tool_call_id": f"functions.{name}:{number}", "content": content}


def cases():
    system = {"role": "system", "content": "Be brief."}
    hi, hello = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}
    thought = {"role": "assistant", "reasoning_content": "A greeting.", "content": "Hello!"}
    ask = {"role": "user", "content": "Weather in Rome\nand Oslo?"}
    calls = {"role": "assistant", "content": "Let me see.",
             "tool_calls": [call("weather", 0, city="Rome", days=2), call("weather", 1, city="Øslo")]}
    silent = {"role": "assistant", "content": "", "tool_calls": [call("time", 2)]}
    thinking = dict(calls, reasoning_content="Both.")
    results = [result("weather", 0, "sunny"), result("weather", 1, "{\"t\": 1.5}")]
    for tools in ((), (WEATHER,), (WEATHER, TIME)):
        for head in ((), (system,)):
            for body in ((hi,), (hi, hello, ask), (hi, thought, ask), (hi, hello, ask, calls, *results),
                         (hi, thought, ask, thinking, *results), (ask, silent, result("time", 2, "noon")),
                         (hi, hello, thought, ask), (ask, calls, *results, hello, hi), (ask, thinking, *results, thought, hi)):
                if tools or not any("tool_calls" in message for message in body):
                    yield list(tools), [*head, *body]


def for_template(message, parsed, nameless):
    message = json.loads(json.dumps(message))
    for made in message.get("tool_calls", []) if parsed else ():
        made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    if nameless and message["role"] == "tool":  # whose name a template writes in place of the role
        del message["name"]
    return message


def build_pipe(build, folder):
    path = os.path.join(folder, "chat_pipe")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "jansson", "libpcre2-8"], check=True,
                           capture_output=True, text=True).stdout.split()
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-I", os.path.join(ROOT, "include"), "-I",
                    os.path.join(ROOT, "src"), os.path.join(ROOT, "tests/clients/chat_pipe.c"),
                    os.path.join(build, "libnibble.a"), *flags, "-lm", "-lpthread", "-fopenmp", "-o", path], check=True)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format")
    parser.add_argument("template")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--absent", action="append", default=[])
    parser.add_argument("--effort", default="medium")
    parser.add_argument("--without-tools", action="store_true", help="the template does not write them")
    options = parser.parse_args()
    with open(options.template, encoding="utf-8") as file:
        template = environment().from_string(file.read())
    given = {key: json.loads(value) for key, value in (item.split("=", 1) for item in options.set)}
    parsed = options.format in ("mimo", "minimax")
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        pipe = subprocess.Popen([build_pipe(options.build, folder), options.format, *options.absent],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for tools, messages in cases():
            if options.without_tools and tools:
                tools = []
            told = sort_deep(tools) if options.format == "kimi" else tools
            expected = template.render(messages=[for_template(message, parsed, options.format == "kimi") for message in messages], tools=told or None,
                                       add_generation_prompt=True, bos_token="<｜begin▁of▁sentence｜>", **given)
            pipe.stdin.write(json.dumps({"messages": messages, "tools": tools, "effort": options.effort}) + "\n")
            pipe.stdin.flush()
            got = json.loads(pipe.stdout.readline())
            count += 1
            if got != expected:
                wrong += 1
                at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
                print(f"--- nibble, from {at}\n{got[max(at - 80, 0):at + 200]!r}\n--- template\n{expected[max(at - 80, 0):at + 200]!r}")
        pipe.stdin.close()
        pipe.wait()
    print(f"{options.format}: {count} prompts, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
