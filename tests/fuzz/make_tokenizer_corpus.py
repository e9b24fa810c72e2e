#!/usr/bin/env python3
"""Writes the seed corpus of tokenizer_json_fuzz: small tokenizers that use every component between them."""

import json
import os
import sys

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "corpus", "tokenizer_json")
LETTERS = {c: i for i, c in enumerate("abcdehlot123Ġ▁é<>s'")}
VOCAB = LETTERS | {"ab": 20, "abc": 21, "he": 22, "<0xFF>": 23, "<unk>": 24}
MERGES = ["a b", ["ab", "c"], "h e"]


def model(**more):
    return {"type": "BPE", "vocab": VOCAB, "merges": MERGES, **more}


def regex_split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


ADDED = [{"id": 30, "content": "<s>", "special": True, "lstrip": True},
         {"id": 31, "content": "hello", "rstrip": True, "single_word": True, "normalized": True}]
LLAMA3 = (r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
FILES = {
    "gpt2": {"added_tokens": ADDED, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True},
             "decoder": {"type": "ByteLevel"}, "model": model()},
    "llama3": {"added_tokens": ADDED, "normalizer": {"type": "NFC"},
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                   regex_split(LLAMA3), {"type": "ByteLevel", "use_regex": False}]},
               "post_processor": {"type": "TemplateProcessing", "single": [
                   {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                   "special_tokens": {"<s>": {"ids": [30]}}},
               "decoder": {"type": "ByteLevel"}, "model": model(ignore_merges=True)},
    "digits": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, regex_split(r"\w+\b|\W", "MergedWithNext")]},
        "normalizer": {"type": "Strip", "strip_left": True}, "decoder": {"type": "ByteLevel"}, "model": model()},
    "llama2": {"added_tokens": ADDED, "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": model(byte_fallback=True, unk_token="<unk>", fuse_unk=True)},
    "metaspace": {"normalizer": {"type": "NFKC"},
                  "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
                  "decoder": {"type": "Metaspace", "replacement": "▁"}, "model": model(unk_token="<unk>")},
}
os.makedirs(OUT, exist_ok=True)
for name, data in FILES.items():
    with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False)
