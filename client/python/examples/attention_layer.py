"""Decodes the attention of one Llama-like layer: prefill 16 tokens, then 8 steps. Usage: attention_layer.py HOST:PORT"""

import sys

import latchd
import numpy as np

HEADS, KV_HEADS, SIZE = 32, 8, 64
random = np.random.default_rng(0)


def qkv(tokens: int) -> list[np.ndarray]:
    return [random.standard_normal((1, tokens, h * SIZE)).astype(np.float16) for h in (HEADS, KV_HEADS, KV_HEADS)]


attributes = latchd.Attributes(HEADS, KV_HEADS, SIZE, do_rotary=True)
with latchd.Client(sys.argv[1]) as client, client.open_attention(
    attributes, batch=1, capacity=128, dtype=np.float16, rope=latchd.Rope(theta=500000.0)
) as session:
    session.prefill(*qkv(16), seqlens_k=np.array([15], np.int32))
    for length in range(17, 25):
        result = session.step(*qkv(1), seqlens_k=np.array([length - 1], np.int32))
        print(length, result.variants.attention, result.variants.captured, result.output[0, 0, :3])
