#!/usr/bin/env python3
"""Makes the seed corpus of the safetensors and GGUF fuzz targets: small, well-formed files (pip install gguf numpy)."""
import json
import pathlib
import struct

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent / "corpus"
RNG = np.random.default_rng(1)


def write_gguf(name, arch, hidden, qtype=None, extra=None):
    writer = gguf.GGUFWriter(HERE / "gguf" / name, arch)
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list(["a", "b", "c", "d"])
    writer.add_token_scores([0.0, 1.0, 2.0, 3.0])
    writer.add_token_types([1, 1, 3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_add_bos_token(True)
    if extra:
        extra(writer)

    def matrix(tensor, rows, columns):
        values = RNG.normal(0, 1, (rows, columns)).astype(np.float32)
        if qtype is None:
            writer.add_tensor(tensor, values.astype(np.float16))
            return
        elements, size = gguf.GGML_QUANT_SIZES[qtype]
        blocks = RNG.integers(0, 60, (rows, columns // elements * size), dtype=np.uint8)
        writer.add_tensor(tensor, blocks, raw_dtype=qtype)

    def vector(tensor, n):
        writer.add_tensor(tensor, np.ones(n, dtype=np.float32))

    matrix("token_embd.weight", 4, hidden)
    vector("output_norm.weight", hidden)
    vector("blk.0.attn_norm.weight", hidden)
    vector("blk.0.ffn_norm.weight", hidden)
    for tensor, rows in (("attn_q", hidden), ("attn_k", hidden // 2), ("attn_v", hidden // 2), ("attn_output", hidden),
                         ("ffn_gate", hidden), ("ffn_up", hidden), ("ffn_down", hidden)):
        matrix(f"blk.0.{tensor}.weight", rows, hidden)
    if arch == "qwen2":
        for tensor, rows in (("attn_q", hidden), ("attn_k", hidden // 2), ("attn_v", hidden // 2)):
            vector(f"blk.0.{tensor}.bias", rows)
    if arch == "qwen3":
        vector("blk.0.attn_q_norm.weight", hidden // 2)
        vector("blk.0.attn_k_norm.weight", hidden // 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors(name, tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for tensor, dtype, shape, size in tensors:
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(range(size))
    text = json.dumps(header).encode()
    (HERE / "safetensors" / name).write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    for folder in ("gguf", "safetensors"):
        (HERE / folder).mkdir(parents=True, exist_ok=True)
    write_gguf("llama_f16.gguf", "llama", 8, extra=lambda w: w.add_tensor("rope_freqs.weight", np.ones(2, np.float32)))
    write_gguf("qwen2_f16.gguf", "qwen2", 8, extra=lambda w: (w.add_string("qwen2.rope.scaling.type", "linear"),
                                                              w.add_float32("qwen2.rope.scaling.factor", 2.0)))
    write_gguf("qwen3_q8_0.gguf", "qwen3", 32, gguf.GGMLQuantizationType.Q8_0)
    write_gguf("llama_q5_1.gguf", "llama", 32, gguf.GGMLQuantizationType.Q5_1)
    write_safetensors("two.safetensors", [("a", "F32", [2, 3], 24), ("b", "BF16", [4], 8)], {"format": "pt"})
    write_safetensors("odd.safetensors", [("x", "U8", [], 1), ("y", "F16", [3], 6), ("z", "F32", [0], 0)])
    for arch in ("Llama", "Mistral", "Qwen2", "Qwen3"):
        config = {"architectures": [f"{arch}ForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1,
                  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": 4,
                  "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "eos_token_id": [2, 3],
                  "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0, "hidden_act": "silu",
                  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}
        (HERE / "safetensors" / f"config_{arch.lower()}.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
