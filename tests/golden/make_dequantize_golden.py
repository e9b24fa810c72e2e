#!/usr/bin/env python3
"""Makes the expected values of the dequantisation tests with the reference package `gguf` (pip install gguf numpy).

  make_dequantize_golden.py                writes dequantize.bin: random blocks of each type and their f32 values
  make_dequantize_golden.py MODEL.gguf     writes smollm2_q4_1.json: digests of some tensors of SmolLM2's Q4_1 file

dequantize.bin, little-endian, per type: uint32 ggml type, uint32 blocks, uint32 elements, then the blocks, then f32.
"""
import hashlib
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Byte offsets of the f16 scales in a block: random bytes there would make infinities and NaN.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}


def random_blocks(rng, name, count):
    qtype = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    if name in ("F32", "F16"):
        values = rng.normal(0, 1, count).astype(np.float32 if name == "F32" else np.float16)
        return values.view(np.uint8).reshape(count, size)
    if name == "BF16":
        values = rng.normal(0, 1, count).astype(np.float32).view(np.uint32) >> 16
        return values.astype(np.uint16).view(np.uint8).reshape(count, size)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in SCALES[name]:
        scale = rng.normal(0, 0.05, count).astype(np.float16)
        blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks


def write_blocks():
    rng = np.random.default_rng(20240607)
    with open(HERE / "dequantize.bin", "wb") as out:
        for name in TYPES:
            qtype = gguf.GGMLQuantizationType[name]
            elements, _ = gguf.GGML_QUANT_SIZES[qtype]
            count = 1024 // elements if elements < 256 else 6
            blocks = random_blocks(rng, name, count)
            raw = blocks.reshape(1, -1)
            if name in ("F32", "F16"):
                values = raw.view(np.float32 if name == "F32" else np.float16).astype(np.float32)
            else:
                values = gguf.quants.dequantize(raw, qtype)
            out.write(struct.pack("<III", qtype, count, count * elements))
            out.write(blocks.tobytes())
            out.write(np.ascontiguousarray(values, dtype=np.float32).tobytes())


def write_model_digests(path):
    reader = gguf.GGUFReader(path)
    wanted = ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.7.attn_k.weight",
              "blk.13.ffn_down.weight", "blk.29.ffn_gate.weight", "blk.29.attn_output.weight"]
    digests = {}
    for tensor in reader.tensors:
        if tensor.name in wanted:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            digests[tensor.name] = {
                "type": tensor.tensor_type.name,
                "shape": [int(n) for n in reversed(tensor.shape)],
                "sha256_f32": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(),
            }
    with open(HERE / "smollm2_q4_1.json", "w") as out:
        json.dump(digests, out, indent=1, sort_keys=True)
        out.write("\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_model_digests(sys.argv[1])
    else:
        write_blocks()
