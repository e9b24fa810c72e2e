"""Small tokenizers for the parity test, trained on the spot with the `tokenizers` package."""

import json
import os
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_corpus

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORD_CLASSES = r"\w+|[^\w\s]+|\s+\b|\s"  # what PCRE2 and Oniguruma read differently
VOCAB = 3000

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPM_SPECIAL = ["<unk>", "<s>", "</s>"]
MARKS = SPECIAL + ["<think>", "[LSTRIP]", "[RSTRIP]", "[BOTH]", "[WORD]", "[NORM é]", "日本"]


def add_marks(tok):
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIAL])
    tok.add_tokens([
        AddedToken("<think>", normalized=False),
        AddedToken("[LSTRIP]", lstrip=True, normalized=False),
        AddedToken("[RSTRIP]", rstrip=True, normalized=False),
        AddedToken("[BOTH]", lstrip=True, rstrip=True, normalized=False),
        AddedToken("[WORD]", single_word=True, normalized=False),
        AddedToken("[NORM é]", normalized=True),
        AddedToken("日本", normalized=False),
    ])


def byte_level(texts, pre, normalizer=None, bos=False, vocab=VOCAB, **bpe):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tok.train_from_iterator(texts, trainer)
    if bpe:
        data = json.loads(tok.to_str())
        data["model"].update(bpe)
        tok = Tokenizer.from_str(json.dumps(data))
    add_marks(tok)
    if bos:
        one = tok.token_to_id("<|im_start|>")
        template = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", one)])
        tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tok


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior, invert=invert),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece_vocab(texts):
    """Llama 2's layout as tokenizer.json: <unk>, <s>, </s>, 256 bytes, then pieces of U+2581 text."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB, limit_alphabet=400, show_progress=False))
    data = json.loads(tok.to_str())
    names = SPM_SPECIAL + [f"<0x{b:02X}>" for b in range(256)]
    names += [t for t, _ in sorted(data["model"]["vocab"].items(), key=lambda item: item[1]) if t not in names]
    data["model"].update(vocab={t: i for i, t in enumerate(names)}, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    data["pre_tokenizer"] = None
    return json.dumps(data)


def sentencepiece_style(vocab, normalizer, pre):
    tok = Tokenizer.from_str(vocab)
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre is not None:
        tok.pre_tokenizer = pre
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in SPM_SPECIAL])
    add_marks(tok)
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def build(seed):
    """The common families: {name: (tokenizer, the parts that a text must not have for decode(encode(x)) = x,
    or None when it does not hold)}."""
    texts = tokenizer_corpus.make(seed + 1, 4000, [" "])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    spm_normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    eaten = SPECIAL + ["[LSTRIP]", "[RSTRIP]", "[BOTH]"]
    return {
        "gpt2": (byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=False)), eaten),
        "llama3": (byte_level(texts, split(Regex(LLAMA3)), bos=True, ignore_merges=True), eaten),
        "qwen2": (byte_level(texts, split(Regex(QWEN2)), normalizer=normalizers.NFC()), None),
        "smollm": (byte_level(texts, digits), eaten),
        # Each stretch between added tokens gets a blank of its own, and U+2581 is a blank.
        "llama2": (sentencepiece_style(sentencepiece_vocab(texts), spm_normalizer, None), MARKS + SPM_SPECIAL + ["▁", "<0x41>"]),
    }


def build_variants(seed):
    """Every other component and option that is supported, as build()."""
    texts = tokenizer_corpus.make(seed + 1, 1000, [" "])
    small = {"vocab": 600}
    out = {
        "gpt2_prefix": byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=True), **small),
        "nfkc": byte_level(texts, split(Regex(QWEN2)), normalizer=normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(r"\d+"), "#")]), **small),
        "nfd": byte_level(texts, split(Regex(QWEN2)), normalizer=normalizers.NFD(), **small),
        "tekken": byte_level(texts, split(Regex(TEKKEN)), **small),
        "word_classes": byte_level(texts, split(Regex(WORD_CLASSES)), **small),
        "digits_together": byte_level(texts, pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)]), **small),
        "split_literal": byte_level(texts, split(". "), **small),
    }
    vocab = sentencepiece_vocab(texts)
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=cut)
            out[f"metaspace_{scheme}_{cut}"] = sentencepiece_style(vocab, None, metaspace)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            out[f"split_{behavior}_{invert}"] = byte_level(texts, split(Regex(r"[\s\d]"), behavior, invert), **small)
    return {name: (tok, None) for name, tok in out.items()}


def train_sentencepiece(folder, seed):
    """A BPE tokenizer.model with byte fallback; the processor, or None without the package."""
    try:
        import sentencepiece
    except ImportError:
        return None
    texts = [t.replace("\0", "") for t in tokenizer_corpus.make(seed + 2, 4000, [" "])]
    prefix = os.path.join(folder, "tokenizer")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=prefix, model_type="bpe", vocab_size=VOCAB, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_by_whitespace=True, allow_whitespace_only_pieces=True, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")


def write_gguf(path, fields):
    """A GGUF v3 file of metadata alone. Values: str, bool, int (uint32), or (type, list)."""
    def string(s):
        raw = s.encode()
        return struct.pack("<Q", len(raw)) + raw

    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    for key, value in fields.items():
        out += string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + string(value)
        elif isinstance(value, bool):
            out += struct.pack("<IB", 7, value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        else:
            kind, items = value
            out += struct.pack("<IIQ", 9, {"str": 8, "f32": 6, "i32": 5}[kind], len(items))
            out += b"".join(string(i) if kind == "str" else struct.pack("<f" if kind == "f32" else "<i", i)
                            for i in items)
    with open(path, "wb") as f:
        f.write(out)


def sentencepiece_gguf(path, processor):
    kinds = [2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i)
             else 5 if processor.is_unused(i) else 1 for i in range(len(processor))]
    write_gguf(path, {
        "general.architecture": "llama", "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ("str", [processor.id_to_piece(i) for i in range(len(processor))]),
        "tokenizer.ggml.scores": ("f32", [processor.get_score(i) for i in range(len(processor))]),
        "tokenizer.ggml.token_type": ("i32", kinds),
        "tokenizer.ggml.bos_token_id": processor.bos_id(), "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    })


def read_gguf_metadata(path):
    """The metadata of a GGUF file, as Python values."""
    plain = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as f:
        def number(c):
            return struct.unpack("<" + c, f.read(struct.calcsize("<" + c)))[0]

        def value(kind):
            if kind == 8:
                return f.read(number("Q")).decode()
            if kind == 9:
                inner, count = number("I"), number("Q")
                return [value(inner) for _ in range(count)]
            return number(plain[kind])

        assert f.read(4) == b"GGUF" and number("I") in (2, 3)
        number("Q")
        count, out = number("Q"), {}
        for _ in range(count):
            key = value(8)
            out[key] = value(number("I"))
    return out


def smollm_from_gguf(metadata):
    """SmolLM2's tokenizer.json, rebuilt from the vocabulary and merges in its GGUF file."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in metadata["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    return tok


def byte_characters(text):
    """GPT-2's spelling of a text's bytes."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(word for word, _ in words)


def fresh_seed():
    return random.SystemRandom().randrange(1 << 31)
