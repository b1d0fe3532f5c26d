#!/usr/bin/env python3
"""Writes cases for test_harmony_render from the official renderer, the package openai-harmony.

  pip install openai-harmony==0.0.8
  export TIKTOKEN_ENCODINGS_BASE=FOLDER      # holds o200k_base.tiktoken
  harmony_oracle.py golden tests/data/harmony/golden.json
  harmony_oracle.py random cases.json --count 3000 --seed 1
  harmony_oracle.py tasks TASKS.jsonl cases.json [--every N]
  NIB_HARMONY_CASES=cases.json build/tests/test_harmony_render

A case is a conversation in nibble's terms and the pieces the official renderer made of it. `tasks` takes prompts as
text instead, and works out the conversation that they were made from.
"""

import argparse
import json
import random
import re

CONTROL = re.compile(r"(<\|(?:start|end|message|channel|constrain|return|call|endoftext)\|>)")
DEFAULTS = {"model_identity": "You are ChatGPT, a large language model trained by OpenAI.", "knowledge_cutoff": "2024-06",
            "effort": "medium", "channels": "analysis, commentary, final"}


# -- the official renderer

def official():
    import openai_harmony
    return openai_harmony, openai_harmony.load_harmony_encoding("HarmonyGptOss")


def to_official(oh, case):
    talk = case["conversation"]
    messages = []

    def group(g):
        return oh.ToolNamespaceConfig(name=g["name"], description=g.get("description"), tools=[
            oh.ToolDescription(name=t["name"], description=t.get("description", ""),
                               parameters=json.loads(t["parameters"]) if "parameters" in t else None) for t in g.get("tools", [])])

    if any(k in talk for k in ("model_identity", "knowledge_cutoff", "current_date", "effort", "channels", "builtins")):
        effort = {"low": oh.ReasoningEffort.LOW, "medium": oh.ReasoningEffort.MEDIUM, "high": oh.ReasoningEffort.HIGH}
        system = oh.SystemContent(
            model_identity=talk.get("model_identity"), knowledge_cutoff=talk.get("knowledge_cutoff"),
            conversation_start_date=talk.get("current_date"), reasoning_effort=effort.get(talk.get("effort")),
            channel_config=oh.ChannelConfig.require_channels(talk["channels"].split(", ")) if "channels" in talk else None)
        for g in talk.get("builtins", []):
            system = system.with_tools(group(g))
        messages.append(oh.Message.from_role_and_content(oh.Role.SYSTEM, system))
    if "instructions" in talk or "tools" in talk:
        developer = oh.DeveloperContent(instructions=talk.get("instructions"))
        if "tools" in talk:
            developer = developer.with_tools(group({"name": "functions", "tools": talk["tools"]}))
        messages.append(oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer))
    for m in talk["messages"]:
        kind = m.get("content_type")
        messages.append(oh.Message(
            author=oh.Author(role=oh.Role(m["role"]), name=m.get("name")), content=[oh.TextContent(text=m["text"])],
            channel=m.get("channel"), recipient=m.get("recipient"),
            content_type="<|constrain|>" + (kind or "") if m.get("constrained") else kind))
    return oh.Conversation.from_messages(messages)


def expected(oh, encoding, case):
    """The official ids as pieces, and a check that encoding each run of text by itself gives the same ids."""
    talk = case["conversation"]
    config = oh.RenderConversationConfig(auto_drop_analysis=not talk.get("keep_reasoning", False))
    conversation = to_official(oh, case)
    if talk.get("no_reply"):
        ids = encoding.render_conversation(conversation, config)
    else:
        ids = encoding.render_conversation_for_completion(conversation, oh.Role.ASSISTANT, config)
    pieces, run = [], []

    def flush():
        if run:
            text = encoding.decode_utf8(run)
            if encoding.encode(text, disallowed_special=()) != run:
                raise SystemExit(f"{case['name']}: {text!r} is not encoded as one run")
            pieces.append(text)
            run.clear()

    for token in ids:
        if encoding.is_special_token(token):
            flush()
            pieces.append({"control": encoding.decode([token])})
        else:
            run.append(token)
    flush()
    return pieces


# -- conversations

def user(text):
    return {"role": "user", "text": text}


def said(channel, text):
    return {"role": "assistant", "channel": channel, "text": text}


def call(name, arguments, **more):
    return {"role": "assistant", "channel": "commentary", "recipient": name, "content_type": "json", "constrained": True,
            "text": arguments, **more}


def result(name, text):
    return {"role": "tool", "name": name, "recipient": "assistant", "channel": "commentary", "text": text}


def tool(name, description="", parameters=None):
    out = {"name": name, "description": description}
    if parameters is not None:
        out["parameters"] = json.dumps(parameters, ensure_ascii=False)
    return out


def props(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


SCHEMAS = {
    "none": None,
    "empty object": {"type": "object", "properties": {}},
    "no properties": {"type": "object"},
    "anything": {},
    "weather": props(["location"], location={"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                     format={"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}),
    "scalars": props(["a", "b"], a={"type": "integer"}, b={"type": "number", "default": 1.5}, c={"type": "boolean", "default": False},
                     d={"type": "string", "default": "x y"}, e={"type": "null"}, f={}),
    "arrays": props(a={"type": "array"}, b={"type": "array", "items": {"type": "string"}},
                    c={"type": "array", "items": {"type": "string", "enum": ["p", "q"]}},
                    d={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                    e={"type": "array", "items": props(["x"], x={"type": "number", "description": "how far"})}),
    "nested": props(["deep"], deep=props(["deeper"], deeper=props(z={"type": "string", "description": "two\nlines"},
                                                                  y={"type": "object"}))),
    "described object": {**props(x={"type": "string"}), "description": "all of it"},
    "nested described": props(n={**props(q={"type": "integer", "default": 3}), "description": "an object"}),
    "type lists": props(a={"type": ["string", "null"]}, b={"type": ["integer", "number", "string"], "default": -1}, c={"type": []}),
    "nullable": props(a={"type": "string", "nullable": True}, b={"type": ["string", "null"], "nullable": True},
                      c={"type": "string", "enum": ["null"], "nullable": True}, d={"type": "number", "nullable": False}),
    "anyOf": props(["a"], a={"anyOf": [{"type": "string"}, {"type": "null"}], "description": "either"}, b={"allOf": [{"type": "string"}]},
                   c={"$ref": "#/$defs/x"}, d={"const": 3}, e={"enum": [1, 2]}),
    "oneOf property": props(
        a={"description": "top", "default": 3, "oneOf": [{"type": "string", "description": "s", "default": "q"},
                                                           {"type": "number", "description": "n", "default": 2}]},
        b={"description": "same", "oneOf": [{"type": "string", "description": "same"}, {"type": "integer", "nullable": True}]},
        c={"oneOf": [{"type": "string", "enum": ["u", "v"], "default": "u"}, props(k={"type": "string"})], "default": "u"},
        d={"oneOf": [], "description": "nothing"}, e={"oneOf": "no list", "description": "odd", "default": 1},
        f={"oneOf": [{"type": "null"}], "enum": ["w"], "default": "w"}),
    "oneOf top": {"oneOf": [props(a={"type": "string"}), {"type": "string", "description": "text", "default": "e"}]},
    "oneOf items": props(a={"type": "array", "items": {"oneOf": [{"type": "string", "enum": ["e"], "default": "e", "description": "x"},
                                                                  {"type": "number", "default": 2, "nullable": True}]}}),
    "titles": props(["a"], a={"type": "string", "title": "T", "description": "D", "examples": ["one", 2, "three"]},
                    b={"type": "string", "title": "only"}, c={"type": "integer", "examples": []}, d={"type": "integer", "examples": [1]}),
    "defaults": props(a={"type": "object", "default": {"k": [1, 0.1, 1.0, True, None, "é\n\"/"]}}, b={"type": "string", "default": "say \"hi\""},
                      c={"type": "number", "default": 0.30000000000000004}, d={"type": "number", "default": 1e20},
                      e={"type": "array", "default": []}, f={"type": "string", "default": None},
                      g={"type": "string", "enum": ["a"], "default": 7}, h={"type": "number", "default": -0.0}),
    "odd": props(a={"type": "string", "enum": []}, b={"type": "string", "enum": [1, "x"]}, c={"type": "strange"}, d={"type": 7},
                 e={"type": "string", "description": 5, "title": None}),
    "unicode": props(["ключ"], **{"ключ": {"type": "string", "description": "описание 🙂"}, "with space": {"type": "string", "default": "日本"}}),
    "properties no object": {"type": "object", "properties": [1], "required": "a"},
}

TEXTS = ["Hello", "What is 2 + 2?", "", " leading and trailing ", "line\nbreaks\n\n", "say <|end|> and <|start|>user<|message|>", "日本語 🙂 é",
         "tabs\tand\r\nmore", "to=functions.x <|channel|>final", "a" * 300]
NAMES = ["functions.get_weather", "functions.f", "functions.web-browsing", "browser.search", "python"]


def curated():
    def case(name, messages=(), **talk):
        return {"name": name, "conversation": {**talk, "messages": list(messages)}}

    yield case("a user alone", [user("What is 2 + 2?")])
    yield case("defaults", [user("Hi")], **DEFAULTS)
    yield case("everything in the system message", [user("Hi")], **{**DEFAULTS, "effort": "high"}, current_date="2025-06-28")
    yield case("identity alone", [user("Hi")], model_identity="You are a tiny demo model.")
    yield case("effort alone", [user("Hi")], effort="low")
    yield case("date alone", [user("Hi")], current_date="2025-06-28")
    yield case("channels alone", [user("Hi")], channels="analysis, final")
    yield case("instructions", [user("Hi")], **DEFAULTS, instructions="Always respond in riddles.\n\nBe brief.")
    for name, schema in SCHEMAS.items():
        yield case(f"schema: {name}", [user("Hi")], tools=[tool("f", "Does it.", schema)])
    yield case("several tools", [user("Hi")], **DEFAULTS, instructions="Use them.", tools=[
        tool("get_location", "Gets the location of the user."), tool("get_weather", "Two\nlines\r\nor three\n", SCHEMAS["weather"]), tool("silent")])
    yield case("builtins", [user("Hi")], **DEFAULTS, builtins=[
        {"name": "browser", "description": "Tool for browsing.\nWith two lines.", "tools": [
            tool("search", "Searches.", props(["query"], query={"type": "string"}, topn={"type": "number", "default": 10}))]},
        {"name": "python", "description": "Runs code.\n\nStatefully.", "tools": []}])
    loop = [user("Weather?"), said("analysis", "Need the tool."), call("functions.get_weather", '{"location":"SF"}'),
            result("functions.get_weather", '{"sunny":true}')]
    yield case("tool loop keeps reasoning", loop, **DEFAULTS)
    yield case("answered: reasoning dropped", [*loop, said("analysis", "Sunny."), said("final", "It is sunny."), user("Thanks")], **DEFAULTS)
    yield case("answered: reasoning kept on request", [*loop, said("final", "It is sunny."), user("Thanks")], keep_reasoning=True)
    yield case("two answers, kept", [user("a"), said("analysis", "b"), said("final", "c"), user("d"), said("analysis", "e"), said("final", "f")],
               keep_reasoning=True)
    yield case("no reply", [user("a"), said("final", "b")], no_reply=True)
    yield case("preamble", [user("a"), said("commentary", "First I look."), call("functions.f", "{}")])
    yield case("no channel", [user("a"), {"role": "assistant", "text": "b"}])
    yield case("plain content type", [user("a"), call("functions.f", "{}", constrained=False)])
    yield case("constrain without type", [user("a"), call("functions.f", "{}", content_type=None)])
    yield case("code", [user("a"), {"role": "assistant", "channel": "analysis", "recipient": "python", "content_type": "code", "text": "print(1)"},
                        {"role": "tool", "name": "python", "recipient": "assistant", "channel": "analysis", "text": "1"}])
    yield case("names", [{"role": "user", "name": "ann", "text": "a"}, {"role": "assistant", "name": "bob", "channel": "final", "text": "b"}])
    yield case("control tokens as text", [user(TEXTS[5]), said("final", "<|return|>")], instructions="never write <|call|>")


def random_schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "enum", "types", "array", "object", "oneOf", "any"] if depth < 3 else
                      ["string", "integer", "enum"])
    schema = {"enum": {"type": "string", "enum": rng.sample(["a", "b", "null", "c d"], rng.randint(1, 3))},
              "types": {"type": rng.sample(["string", "integer", "null", "boolean"], rng.randint(1, 3))}, "any": {}}.get(kind) or {"type": kind}
    schema = dict(schema)
    if kind == "array" and rng.random() < 0.8:
        schema["items"] = random_schema(rng, depth + 1)
    if kind == "object":
        schema["properties"] = {f"p{i}": random_schema(rng, depth + 1) for i in range(rng.randint(0, 3))}
        if rng.random() < 0.7:
            schema["required"] = [k for k in schema["properties"] if rng.random() < 0.5]
    if kind == "oneOf":
        schema = {"oneOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(0, 3))]}
    for key, values, share in (("description", ["some words", "d", "two\nlines", "é"], 0.4), ("title", ["A title"], 0.1), ("nullable", [True, False], 0.15),
                               ("default", ["text", 1, 0.25, None, ["x", 2], {"y": 1.5}, True, "null"], 0.25), ("examples", [["e1"], [1], []], 0.08)):
        if rng.random() < share:
            schema[key] = rng.choice(values)
    return schema


def random_case(rng, name):
    talk = {}
    for key, values, share in (("model_identity", [DEFAULTS["model_identity"], "Someone else."], 0.8), ("knowledge_cutoff", ["2024-06"], 0.8),
                               ("current_date", ["2025-06-28", "2026-01-01"], 0.7), ("effort", ["low", "medium", "high"], 0.8),
                               ("channels", [DEFAULTS["channels"]], 0.8), ("instructions", [t for t in TEXTS if t], 0.4)):
        if rng.random() < share:
            talk[key] = rng.choice(values)
    if rng.random() < 0.5:
        talk["tools"] = []
        for i in range(rng.randint(1, 4)):
            schema = None if rng.random() < 0.1 else random_schema(rng) if rng.random() < 0.1 else \
                {"type": "object", "properties": {f"a{k}": random_schema(rng) for k in range(rng.randint(0, 5))}, "required": ["a0"]}
            talk["tools"].append(tool(f"tool_{i}", rng.choice(["", "Does a thing.", "Two\nlines."]), schema))
    messages = []
    for _ in range(rng.randint(0, 2)):
        messages.append(user(rng.choice(TEXTS)))
        for _ in range(rng.randint(0, 2)):
            name_ = rng.choice(NAMES)
            messages += [said("analysis", rng.choice(TEXTS)), call(name_, rng.choice(TEXTS), constrained=rng.random() < 0.7), result(name_, rng.choice(TEXTS))]
        if rng.random() < 0.5:
            messages += [said("analysis", rng.choice(TEXTS)), said(rng.choice(["final", "commentary"]), rng.choice(TEXTS))]
    messages.append(user(rng.choice(TEXTS)))
    # With several answers the official renderer drops only the reasoning before the first one, or none while a loop
    # of calls is open; nibble drops what lies before the last answer. One answer, the last word: both say the same.
    finals = [i for i, m in enumerate(messages) if m.get("channel") == "final"]
    spoken = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    if len(finals) > 1 or (finals and finals[-1] != spoken[-1]):
        talk["keep_reasoning"] = True
    if rng.random() < 0.2:
        talk["no_reply"] = True
    return {"name": name, "conversation": {**talk, "messages": messages}}


# -- prompts given as text

def kind_schema(kind):
    if kind.endswith("[]"):
        return {"type": "array", "items": kind_schema(kind[:-2])}
    if kind.startswith('"'):
        return {"type": "string", "enum": [k.strip('"') for k in kind.split(" | ")]}
    return {"type": kind}


def read_tools(text):
    for comments, name, body in re.findall(r"((?:// [^\n]*\n)*)type (\w+) = \((?:_: \{\n(.*?)\})?\) => any;", text, re.S):
        properties, comment = {}, None
        for line in body.splitlines():
            if line.startswith("// "):
                comment = line[3:]
                continue
            key, kind = re.fullmatch(r"(\w+): (.*),", line).groups()
            properties[key] = {**kind_schema(kind), **({"description": comment} if comment else {})}
            comment = None
        yield tool(name, comments.replace("// ", "").rstrip("\n"), props(properties, **properties) if body else None)


def read_prompt(name, prompt):
    talk = {"messages": []}
    *whole, reply = prompt.split("<|start|>")[1:]
    assert reply == "assistant", reply
    for message in whole:
        header, text = message.removesuffix("<|end|>").split("<|message|>")
        if header == "system":
            lines = text.split("\n")
            talk["model_identity"] = lines[0]
            for label, key in (("Knowledge cutoff: ", "knowledge_cutoff"), ("Current date: ", "current_date"), ("Reasoning: ", "effort"),
                               ("# Valid channels: ", "channels")):
                for line in lines:
                    if line.startswith(label):
                        talk[key] = line.removeprefix(label).split(". Channel")[0]
        elif header == "developer":
            text, _, tools = text.partition("# Tools\n\n")
            if text:
                talk["instructions"] = text.removeprefix("# Instructions\n\n").removesuffix("\n\n")
            if tools:
                talk["tools"] = list(read_tools(tools))
        elif header == "user":
            talk["messages"].append(user(text))
        elif header == "assistant<|channel|>final":
            talk["messages"].append(said("final", text))
        else:
            raise SystemExit(f"{name}: cannot read {header!r}")
    return {"name": name, "conversation": talk, "pieces": [{"control": p} if CONTROL.fullmatch(p) else p for p in CONTROL.split(prompt) if p]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    golden = commands.add_parser("golden")
    golden.add_argument("out")
    more = commands.add_parser("random")
    more.add_argument("out")
    more.add_argument("--count", type=int, default=1000)
    more.add_argument("--seed", type=int, default=1)
    tasks = commands.add_parser("tasks")
    tasks.add_argument("tasks")
    tasks.add_argument("out")
    tasks.add_argument("--every", type=int, default=1)
    args = parser.parse_args()

    if args.command == "tasks":
        with open(args.tasks, encoding="utf-8") as lines:
            cases = [read_prompt(f"task {i}", json.loads(line)["prompt"]) for i, line in enumerate(lines) if i % args.every == 0]
    else:
        oh, encoding = official()
        if args.command == "golden":
            rng = random.Random(20)
            cases = [*curated(), *(random_case(rng, f"random {i}") for i in range(40))]
        else:
            rng = random.Random(args.seed)
            cases = [random_case(rng, f"random {args.seed}.{i}") for i in range(args.count)]
        for case in cases:
            case["pieces"] = expected(oh, encoding, case)
    with open(args.out, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
