#!/usr/bin/env python3
"""make_random_model.py SHAPE OUT [--layers N]: a Llama of a known shape with random bf16 weights.

SHAPE is 1b (Llama-3.2-1B), 8b (Llama-3.1-8B) or 135m (SmolLM2). No tokenizer: the daemon then
serves token ids. Needs numpy; writes two bytes a parameter.
"""

import argparse
import json
from pathlib import Path

import numpy as np

# hidden, layers, q_heads, kv_heads, head_dim, feed_forward, vocab, tied
SHAPES = {
    "135m": (576, 30, 9, 3, 64, 1536, 49152, True),
    "1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
}


def tensors(shape, layers):
    """(name, shape) of every tensor, in the order they are written."""
    hidden, _, q_heads, kv_heads, head_dim, ff, vocab, tied = shape
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (q_heads * head_dim, hidden)
        yield at + "self_attn.k_proj.weight", (kv_heads * head_dim, hidden)
        yield at + "self_attn.v_proj.weight", (kv_heads * head_dim, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, q_heads * head_dim)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (ff, hidden)
        yield at + "mlp.up_proj.weight", (ff, hidden)
        yield at + "mlp.down_proj.weight", (hidden, ff)
    yield "model.norm.weight", (hidden,)
    if not tied:
        yield "lm_head.weight", (vocab, hidden)


def bf16(values: np.ndarray) -> np.ndarray:
    """f32 -> bf16 bits, rounded to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, help="fewer layers, for a quick look")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    layers = args.layers or shape[1]
    hidden, _, q_heads, kv_heads, head_dim, ff, vocab, tied = shape
    args.out.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": q_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": args.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
    }
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    header, offset = {}, 0
    for name, dims in tensors(shape, layers):
        size = 2 * int(np.prod(dims))
        where = [offset, offset + size]
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": where}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # One block of noise, read from a random place for each tensor: as fast as the disk, and no
    # bandwidth measurement can tell it from fresh noise.
    rng = np.random.default_rng(args.seed)
    noise = bf16(rng.standard_normal(1 << 25, dtype=np.float32) * 0.02)
    with open(args.out / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dims in tensors(shape, layers):
            count = int(np.prod(dims))
            if "norm" in name:
                file.write(bf16(np.ones(count)).tobytes())
            while "norm" not in name and count > 0:
                start = int(rng.integers(len(noise) // 2))
                part = noise[start : start + count]
                file.write(part.tobytes())
                count -= len(part)
    print(f"{args.out}: {layers} layers, {offset / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
