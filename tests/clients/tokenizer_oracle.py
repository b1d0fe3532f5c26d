#!/usr/bin/env python3
"""Compares nibble's tokenizer with the `tokenizers` and `tiktoken` packages, id by id, on varied and hostile text.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers tiktoken
    /tmp/venv/bin/python tests/clients/tokenizer_oracle.py [--build build] [--megabytes 4] [--seed 1]

Checked: the small model's tokenizer.json; variants of it (split patterns, prefix space, ignore_merges, merges as
strings, strips, missing bytes); the o200k ranks; Kimi's tiktoken.model. Exit status 1 and the differing texts on any difference.
"""

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TINY = os.path.join(ROOT, "models/tiny-gpt-oss/tokenizer.json")
RANKS = os.path.join(ROOT, "tests/data/tokenizer/o200k_base.tiktoken")
PLAIN, SPECIAL = 0, 1

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]


class Nibble:
    """tokenizer_pipe as a child process."""

    def __init__(self, pipe, *arguments):
        self.child = subprocess.Popen([pipe, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, size):
        data = self.child.stdout.read(size)
        if len(data) != size:
            raise SystemExit("tokenizer_pipe ended early")
        return data

    def encode(self, text, flags):
        self.child.stdin.write(struct.pack("<II", flags, len(text)) + text)
        self.child.stdin.flush()
        (count,) = struct.unpack("<I", self.read(4))
        if count == 0xFFFFFFFF:
            (size,) = struct.unpack("<I", self.read(4))
            raise SystemExit(self.read(size).decode())
        return list(struct.unpack(f"<{count}i", self.read(4 * count)))


def build_pipe(build, folder):
    out = os.path.join(folder, "tokenizer_pipe")
    libraries = ["-lpcre2-8", "-ljansson", "-fopenmp", "-lm"]
    source = os.path.join(ROOT, "tests/clients/tokenizer_pipe.c")
    include = os.path.join(ROOT, "include")
    archive = os.path.join(build, "libnibble.a")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-I", include, source, archive, "-o", out, *libraries], check=True)
    return out


def samples(seed, budget, sweep=1):
    """Texts of very different make, then every sweep-th character that is assigned in Python's version of Unicode:
    the libraries know different versions, and whatever is newer than the oldest may be split differently."""
    random_ = random.Random(seed)
    pieces = [
        " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u180e", "\u200b", "\x85", "\u2028", "'s", "'S", "'re", "'LL", "’ve",
        "'ſ", "'\u212a", "a", "B", "ǅ", "ʰ", "文", "字", "々", "〇", "仮", "ー", "\u0301", "\u20e3", "1", "٣", "Ⅷ", "½", "/", "//", "\x00",
        "_", "-", ".", "|", "<|end|>", "<|start|>", "<|message|>", "<|endoftext|>", "<|end", "👩‍👩‍👧‍👦", "🏳️‍🌈", "return", "Return",
        "HTTPServer", "한국어", "नमस्ते", "ไทย", "ß", "ﬁ", "İ", "ı", "Å", "x" * 40, " " * 17, "\n" * 9, "0" * 25,
    ]
    files = []
    for folder in ("src", "include", "tests/unit", "tests/clients", "models/tiny-gpt-oss"):
        for name in sorted(os.listdir(os.path.join(ROOT, folder))) if os.path.isdir(os.path.join(ROOT, folder)) else []:
            path = os.path.join(ROOT, folder, name)
            if os.path.isfile(path) and name.endswith((".c", ".h", ".py", ".md", ".json")):
                files.append(open(path, encoding="utf-8").read())
    text = "".join(files)
    spent = 0
    while spent < budget:
        kind = random_.randrange(5)
        if kind == 0:
            at = random_.randrange(max(1, len(text)))
            sample = text[at : at + random_.randrange(4000)]
        elif kind == 1:
            sample = "".join(random_.choice(ASSIGNED) for _ in range(random_.randrange(300)))
        elif kind == 2:
            sample = "".join(random_.choice(pieces) for _ in range(random_.randrange(200)))
        elif kind == 3:
            start = random_.choice((0x20, 0x20, 0xC0, 0x370, 0x400, 0x590, 0x900, 0xE00, 0x3040, 0x4E00, 0xAC00, 0x1F300))
            block = [chr(c) for c in range(start, start + 256) if is_assigned(c)] + [" ", "\n"]
            sample = "".join(random_.choice(block) for _ in range(random_.randrange(400)))
        else:
            sample = random_.choice(pieces) * random_.randrange(200) + random_.choice(pieces)
        spent += len(sample.encode())
        yield sample
    swept = ASSIGNED[seed % sweep :: sweep]
    for at in range(0, len(swept), 2000):
        yield "".join(f"a{c}A{c}{c} 1" for c in swept[at : at + 2000])


def is_assigned(character):
    return unicodedata.category(chr(character)) not in ("Cn", "Cs")


ASSIGNED = [chr(c) for c in range(0x110000) if is_assigned(c)]


def variants(folder):
    """The small tokenizer.json and changed copies: (name, path)."""
    original = json.load(open(TINY, encoding="utf-8"))

    def write(name, change):
        changed = json.loads(json.dumps(original))
        change(changed)
        path = os.path.join(folder, f"{name}.json")
        json.dump(changed, open(path, "w", encoding="utf-8"), ensure_ascii=bool(hash(name) & 1))
        return name, path

    def split(pattern, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}

    def byte_level(prefix=False, regex=False):
        return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}

    def stages(*list_):
        return lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": list(list_)})

    def merges_as_strings(t):
        t["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in t["model"]["merges"]]

    def drop_bytes(t):
        # Other tokens take their places: `tokenizers` renumbers the added tokens of a vocabulary with gaps.
        vocab = t["model"]["vocab"]
        t["model"]["vocab"] = {f"no {s}" if s in ("q", "Z", "Ã") else s: i for s, i in vocab.items()}
        t["model"]["merges"] = [m for m in t["model"]["merges"] if not set("qZÃ") & set("".join(m))]

    def unknown(t):
        drop_bytes(t)
        t["model"].update(unk_token="!", fuse_unk=True)

    def strips(t):
        for token, left, right in zip(t["added_tokens"], (1, 0, 1, 0) * 9, (0, 1, 1, 0) * 9):
            token.update(lstrip=bool(left), rstrip=bool(right))

    def not_special(t):
        for token in t["added_tokens"][::2]:
            token.update(special=False, normalized=True)
        first = max(token["id"] for token in t["added_tokens"]) + 1
        for i, text in enumerate(["  ", "<|", "<|end|><", "turn", "文字", "|><|st"]):
            flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=i % 2 == 0, special=False)
            t["added_tokens"].append(dict(id=first + i, content=text, **flags))

    yield "tiny", TINY
    yield write("gpt2", lambda t: t.update(pre_tokenizer=byte_level(False, True)))
    yield write("gpt2-prefix", lambda t: t.update(pre_tokenizer=byte_level(True, True)))
    # With a space in front of every piece the ids show where the pieces begin.
    yield write("gpt2-split", stages(split(GPT2), byte_level(True)))
    yield write("o200k-split", stages(split(O200K), byte_level(True)))
    yield write("split-prefix-regex", stages(split(r"\p{N}"), byte_level(True, True)))
    yield write("llama3", stages(split(LLAMA3), byte_level(True)))
    yield write("qwen2", stages(split(QWEN2), byte_level()))
    yield write("kimi", stages(split(KIMI), byte_level(True)))
    yield write("deepseek", stages(*map(split, DEEPSEEK), byte_level(True)))
    yield write("removed-inverted", stages(split(O200K, "Removed", True), byte_level()))
    yield write("removed", stages(split(r"[aeiou]+", "Removed"), byte_level()))
    yield write("empty-matches", stages(split(r"a*|(?=B)|$"), byte_level(True)))
    yield write("anchors", stages(split(r"^\s*\w+|\W$|[^\w\s]+"), byte_level(True)))
    yield write("words", stages(split(r"\w+|[^\w]"), byte_level(True)))
    yield write("ignore-merges", lambda t: t["model"].update(ignore_merges=True))
    yield write("merges-as-strings", merges_as_strings)
    yield write("missing-bytes", drop_bytes)
    yield write("unknown", unknown)
    yield write("strips", strips)
    yield write("not-special", not_special)


def compare(name, nibble, encode, texts, flags):
    """encode(text) -> ids of the other library. Returns the number of differences, the first few of them printed."""
    count = size = wrong = 0
    for text in texts:
        expected, got = encode(text), nibble.encode(text.encode(), flags)
        count, size = count + 1, size + len(text.encode())
        if expected != got:
            wrong += 1
            if wrong <= 3:
                at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
                print(f"  {name}: differs at token {at}: {expected[at:at+6]} expected, {got[at:at+6]}; text {text[:200]!r}")
    print(f"{name}: {count} texts, {size / 1e6:.1f} MB, {wrong} differ")
    return wrong


def compare_kimi(pipe, folder, seed, budget):
    """Kimi's file with other ranks: its pattern, the names in tokenizer_config.json, and the reserved ones."""
    ranks = load_tiktoken_bpe(RANKS)
    shutil.copy(RANKS, os.path.join(folder, "tiktoken.model"))
    named = {len(ranks) + 2: "<|im_end|>", len(ranks) + 3: "<|im_user|>", len(ranks) + 22: "<think>"}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"added_tokens_decoder": {str(i): {"content": text, "special": i % 2 == 0}
                                            for i, text in named.items()}}, file)
    special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)}
    other = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    nibble = Nibble(pipe, os.path.join(folder, "tiktoken.model"))
    wrong = compare("kimi, tiktoken.model", nibble, other.encode_ordinary, samples(seed, budget), PLAIN)
    texts = [*samples(seed + 1, budget / 4, 7), *(f"a{text}b {text}" for text in special)]
    return wrong + compare("kimi, special tokens", nibble, lambda t: other.encode(t, allowed_special="all"), texts, SPECIAL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--megabytes", type=float, default=4, help="text for each of the two main tokenizers")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    budget = options.megabytes * 1e6
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        pipe = build_pipe(options.build, folder)
        for name, path in variants(folder):
            other, nibble = Tokenizer.from_file(path), Nibble(pipe, path)
            share, sweep = (budget, 1) if name in ("tiny", "o200k-split", "words", "kimi") else (budget / 10, 7)
            texts = samples(options.seed, share, sweep)
            wrong += compare(
                f"{name}, added tokens", nibble, lambda t: other.encode(t, add_special_tokens=False).ids, texts, SPECIAL
            )
            if name == "tiny":
                other.encode_special_tokens = True
                texts = samples(options.seed + 1, share)
                wrong += compare(name, nibble, lambda t: other.encode(t, add_special_tokens=False).ids, texts, PLAIN)
        names = {199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain", 200005: "channel"}
        names |= {200006: "start", 200007: "end", 200008: "message", 200012: "call", 200018: "endofprompt"}
        special = {f"<|{names.get(i, f'reserved_{i}')}|>": i for i in range(199998, 200019)}
        other = tiktoken.Encoding(
            "o200k", pat_str=O200K, mergeable_ranks=load_tiktoken_bpe(RANKS), special_tokens=special
        )
        nibble = Nibble(pipe, RANKS, "o200k_harmony")
        wrong += compare("o200k", nibble, other.encode_ordinary, samples(options.seed + 2, budget), PLAIN)
        texts = samples(options.seed + 3, budget / 4, 7)
        wrong += compare("o200k, special tokens", nibble, lambda t: other.encode(t, allowed_special="all"), texts, SPECIAL)
        wrong += compare_kimi(pipe, folder, options.seed + 4, budget)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
