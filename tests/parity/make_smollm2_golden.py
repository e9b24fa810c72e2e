#!/usr/bin/env python3
"""Makes tests/golden/smollm2_greedy.json: what SmolLM2-135M-Instruct answers in f32.

    python3 tests/parity/make_smollm2_golden.py [--model PATH.gguf] [--out FILE]

The weights are those of the GGUF file, dequantised by the `gguf` package, in Hugging Face's
LlamaForCausalLM on the CPU. Needs torch, transformers, tokenizers, gguf and numpy.
"""

import argparse
import subprocess
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from reference import write_greedy_cases
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
COUNT = 64
PROMPTS = {
    "story": "Once upon a time, in a small village by the sea,",
    "facts": "The capital of France is",
    "code": "def fibonacci(n):\n    ",
    "numbers": "In 1969, two people walked on the Moon for 2 hours and 31 minutes. Before that, ",
    "chat": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def rows_for_half_split_rope(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the row order of llama-architecture GGUF files.

    They store Q and K rows so that RoPE pairs are (2i, 2i + 1); Hugging Face pairs (i, i + D / 2).
    weight [heads * D, columns].
    """
    columns = weight.shape[1]
    pairs = weight.reshape(heads, -1, 2, columns)  # [heads, D / 2, 2, columns]
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def load_model(reader: gguf.GGUFReader) -> transformers.LlamaForCausalLM:
    field = lambda name: reader.get_field(f"llama.{name}").contents()  # noqa: E731
    q_heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    state = {
        "model.embed_tokens.weight": tensors.pop("token_embd.weight"),
        "model.norm.weight": tensors.pop("output_norm.weight"),
    }
    for name, value in tensors.items():
        block, layer, part = name.removesuffix(".weight").split(".")
        if block != "blk":
            raise SystemExit(f"unknown tensor {name}")
        if part in ("attn_q", "attn_k"):
            value = rows_for_half_split_rope(value, q_heads if part == "attn_q" else kv_heads)
        state[f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"] = value
    config = transformers.LlamaConfig(
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=q_heads,
        num_key_value_heads=kv_heads,
        vocab_size=state["model.embed_tokens.weight"].shape[0],
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    state = {k: torch.from_numpy(np.array(v, dtype=np.float32)) for k, v in state.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def load_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """The `smollm` pre-tokenizer: single digits, then GPT-2's byte-level pattern."""
    get = lambda name: reader.get_field(f"tokenizer.ggml.{name}").contents()  # noqa: E731
    if get("pre") != "smollm":
        raise SystemExit(f"pre-tokenizer {get('pre')}, expected smollm")
    tokens, types = get("tokens"), get("token_type")
    merges = [tuple(m.split(" ")) for m in get("merges")]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(t, special=True) for t, k in zip(tokens, types, strict=True) if k == 3]
    tokenizer.add_special_tokens(control)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="GGUF file; default: scripts/get-model smollm2")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden/smollm2_greedy.json")
    args = parser.parse_args()
    path = (
        args.model
        or subprocess.run(
            [ROOT / "scripts/get-model", "smollm2"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout.splitlines()[-1]
    )
    reader = gguf.GGUFReader(path)
    model, tokenizer = load_model(reader), load_tokenizer(reader)
    write_greedy_cases(
        args.out, "SmolLM2-135M-Instruct.Q4_1.gguf", model, tokenizer, PROMPTS, COUNT
    )


if __name__ == "__main__":
    main()
