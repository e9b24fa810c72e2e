#!/usr/bin/env python3
"""Makes tests/golden/arch/NAME/: a random checkpoint of each architecture and what it answers.

    python3 tests/parity/make_tiny_architectures.py [--out DIR] [--only NAME]

Each folder is a Hugging Face model (config.json, *.safetensors) with expected.json beside it. The
weights are rounded to the file's dtype first; the answers are then computed from them in f32 on the
CPU. Needs torch, transformers and safetensors.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from reference import MADE_WITH, greedy, write_json
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
PROMPT_TOKENS, COUNT, VOCAB = 24, 32, 128
MIN_GAP = 0.05  # between the best and the second logit at every step
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
LLAMA = BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
LLAMA |= {"attention_bias": False, "mlp_bias": False, "head_dim": 32, "tie_word_embeddings": False}
QWEN2 = BASE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN2 |= {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}
QWEN2 |= {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "use_sliding_window": False}

# name -> (config.json as the Hub's models write it, dtype of the file, number of files)
ARCHITECTURES = {
    "llama": (LLAMA, "float16", 1),
    # As transformers 5 writes it: `dtype` and `rope_parameters`.
    "llama_tied_new_config": (
        {k: v for k, v in LLAMA.items() if k != "rope_theta"}
        | {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "bfloat16",
        1,
    ),
    "llama_rope_llama3": (
        LLAMA
        | {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        "bfloat16",
        1,
    ),
    "llama_rope_linear": (
        LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
        "float16",
        1,
    ),
    "llama_bias": (LLAMA | {"attention_bias": True, "mlp_bias": True}, "float16", 1),
    "mistral_window": (
        BASE
        | {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": 8,  # shorter than the prompt
            "head_dim": 32,
            "tie_word_embeddings": False,
        },
        "bfloat16",
        1,
    ),
    "qwen2_sharded": (QWEN2 | {"tie_word_embeddings": False}, "float32", 2),
    "qwen2_tied": (QWEN2 | {"tie_word_embeddings": True}, "float32", 1),
    "qwen3": (
        BASE
        | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": 32,
            "attention_bias": False,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        },
        "bfloat16",
        1,
    ),
}


def randomise(model: torch.nn.Module, dtype: torch.dtype, seed: int) -> None:
    """Weights so large that attention is peaked and logits are far apart. All are bf16 values, which f16 and f32 hold
    too (but for subnormals): so that an error in any dtype is arithmetic, not the rounding of weights."""
    rng = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=rng)
        if "norm" in name:
            value = 1 + 0.2 * noise
        elif p.dim() == 1:
            value = 0.5 * noise  # biases
        elif "embed_tokens" in name:
            value = 0.6 * noise
        elif "lm_head" in name:
            value = 0.5 * noise
        else:
            value = 1.6 * noise / p.shape[1] ** 0.5
        p.data = value.to(torch.bfloat16).to(dtype).float()


def answer(config: dict, dtype: torch.dtype, seed: int):
    """(model, prompt, answer of greedy())"""
    torch_config = transformers.AutoConfig.for_model(**config)
    torch_config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(torch_config).float().eval()
    randomise(model, dtype, seed)
    rng = torch.Generator().manual_seed(seed + 1)
    prompt = torch.randint(VOCAB, (PROMPT_TOKENS,), generator=rng).tolist()
    return model, prompt, greedy(model, prompt, COUNT)


def write_weights(model, config: dict, dtype: torch.dtype, files: int, out: Path) -> None:
    tensors = {
        k: v.detach().to(dtype).contiguous()
        for k, v in model.named_parameters()
        if not (config["tie_word_embeddings"] and k == "lm_head.weight")
    }
    if files == 1:
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    else:
        names = [f"model-{i + 1:05d}-of-{files:05d}.safetensors" for i in range(files)]
        where = {k: names[i % files] for i, k in enumerate(tensors)}
        for name in names:
            part = {k: v for k, v in tensors.items() if where[k] == name}
            save_file(part, out / name, metadata={"format": "pt"})
        total = sum(v.numel() * v.element_size() for v in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (out / "model.safetensors.index.json").write_text(text)
    for file in out.iterdir():
        file.chmod(0o644)


def make(name: str, out: Path) -> None:
    config, dtype, files = ARCHITECTURES[name]
    # The first seed whose choices are all clear and that does not fall into a short loop.
    for seed in range(1000):
        model, prompt, result = answer(config, DTYPES[dtype], seed)
        if result["min_gap"] >= MIN_GAP and len(set(result["greedy_ids"])) >= 12:
            break
    else:
        raise SystemExit(f"{name}: no seed gives clear choices")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config |= {"dtype" if "rope_parameters" in config else "torch_dtype": dtype}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_weights(model, config, DTYPES[dtype], files, out)
    last = result["last_logits"]
    write_json(
        out / "expected.json",
        {
            "dtype": "f32",
            "made_with": MADE_WITH,
            "seed": seed,
            "prompt_ids": prompt,
            "last_logits": [round(x, 6) for x in last.tolist()],
            "greedy_ids": result["greedy_ids"],
            "min_gap": round(result["min_gap"], 6),
        },
    )
    size = sum(f.stat().st_size for f in out.iterdir())
    print(
        f"{name}: seed {seed}, min gap {result['min_gap']:.3f}, "
        f"largest logit {last.abs().max():.2f}, {size / 1000:.0f} kB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden/arch")
    parser.add_argument("--only", choices=ARCHITECTURES, help="make one of them")
    args = parser.parse_args()
    for name in [args.only] if args.only else ARCHITECTURES:
        make(name, args.out / name)


if __name__ == "__main__":
    main()
