#!/usr/bin/env python3
"""Compares latchd's tokenizer with the `tokenizers` package, id by id, and its chat prompts with jinja2.

Exits 77 (skipped) where the packages are missing. LATCHD_TEST_MODEL may name SmolLM2's GGUF file.
"""

import argparse
import os
import subprocess
import sys

try:
    import jinja2  # noqa: F401
    import tokenizers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import chat_parity
import tokenizer_corpus
import tokenizer_models


def dump(program, model, texts, *flags):
    records = b"".join(str(len(t.encode())).encode() + b"\n" + t.encode() for t in texts)
    done = subprocess.run([program, model, *flags], input=records, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{model}: {done.stderr.decode(errors='replace')}")
    rows = []
    for line in done.stdout.decode().splitlines():
        ids, text = line.split("\t")
        rows.append(([int(i) for i in ids.split()], bytes.fromhex(text).decode()))
    if len(rows) != len(texts):
        raise SystemExit(f"{model}: {len(texts)} texts, {len(rows)} answers")
    return rows


def compare(name, rows, texts, ids, decode, lossy):
    """Prints the first differences and returns how many texts differ. Texts without any of `lossy` must come back
    from decoding as they were; None: no such promise."""
    wrong = 0
    for text, (got, got_text), want in zip(texts, rows, ids):
        problems = []
        if got != want:
            problems.append(f"ids {got}\n  expected {want}")
        elif decode is not None and got_text != decode(want):
            problems.append(f"decoded {got_text!r}\n  expected {decode(want)!r}")
        elif lossy is not None and got_text != text and not any(s in text for s in lossy):
            problems.append(f"decoded {got_text!r}, not the text itself")
        wrong += bool(problems)
        if problems and wrong <= 3:
            print(f"{name}: {text!r}\n  " + "\n  ".join(problems))
    print(f"{name}: {len(texts)} texts, {sum(map(len, ids))} ids, {wrong} differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", required=True, help="the tokenizer_dump program")
    parser.add_argument("--work", required=True, help="folder for generated files")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--lines", type=int, default=20000, help="texts compared for each tokenizer")
    args = parser.parse_args()
    seed = tokenizer_models.fresh_seed() if args.seed is None else args.seed
    print(f"seed {seed}")

    texts = tokenizer_corpus.make(seed, args.lines, tokenizer_models.MARKS)
    wrong = 0
    families = [(n, t, lossy, texts) for n, (t, lossy) in tokenizer_models.build(seed).items()]
    variants = [(n, t, lossy, texts[:args.lines // 10]) for n, (t, lossy) in
                tokenizer_models.build_variants(seed).items()]
    for name, tok, lossy, some in families + variants:
        folder = os.path.join(args.work, name)
        os.makedirs(folder, exist_ok=True)
        tok.save(os.path.join(folder, "tokenizer.json"))
        ids = [e.ids for e in tok.encode_batch(some)]
        wrong += compare(name, dump(args.dump, folder, some), some, ids, tok.decode, lossy)

    folder = os.path.join(args.work, "sentencepiece")
    os.makedirs(folder, exist_ok=True)
    processor = tokenizer_models.train_sentencepiece(folder, seed)
    if processor is None:
        print("sentencepiece: the package is missing, GGUF scores not compared")
    else:
        # SentencePiece has no added tokens of its own, and keeps NUL for itself.
        plain = [t.replace("\0", "") for t in texts]
        gguf = os.path.join(args.work, "sentencepiece.gguf")
        tokenizer_models.sentencepiece_gguf(gguf, processor)
        plain = [t for t in plain if t]
        ids = [[processor.bos_id()] + i for i in processor.encode(plain)]
        wrong += compare("sentencepiece gguf", dump(args.dump, gguf, plain), plain, ids, None,
                         ["▁"])

    model = os.environ.get("LATCHD_TEST_MODEL", "")
    if model.endswith(".gguf"):
        metadata = tokenizer_models.read_gguf_metadata(model)
        if metadata.get("tokenizer.ggml.pre") == "smollm":
            tok = tokenizer_models.smollm_from_gguf(metadata)
            marked = tokenizer_corpus.make(seed + 3, args.lines, tokenizer_models.SPECIAL)
            ids = [e.ids for e in tok.encode_batch(marked)]
            # Its vocabulary lacks some control characters and lead bytes; both implementations drop them.
            present = set("".join(t for t in metadata["tokenizer.ggml.tokens"] if len(t) == 1))
            absent = [t for t in {c for text in marked for c in text}
                      if not set(tokenizer_models.byte_characters(t)) <= present]
            wrong += compare("SmolLM2", dump(args.dump, model, marked), marked, ids, tok.decode,
                             tokenizer_models.SPECIAL + absent)
            wrong += chat_parity.compare(args.dump, model, metadata["tokenizer.chat_template"],
                                         "<|im_start|>", "<|im_end|>")
    wrong += chat_parity.run(args.dump, args.work)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
