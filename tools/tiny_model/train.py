#!/usr/bin/env python3
"""Makes the embedded default model: text, tokenizer, training, Hugging Face folder, samples.

    python3 tools/tiny_model/train.py --out DIR [--seed 0] [--steps N] [--device cuda|cpu]

Needs torch, numpy, tokenizers and safetensors; no network. Settings: settings.json in this folder.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import stories
from model import Llama

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PROMPTS = [
    "Once upon a time",
    "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nTell me a story about a lost kite.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
]


def make_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(all tokens, where each document begins); each document ends with <|endoftext|>."""
    flat, starts = [], []
    end = tokenizer.token_to_id(SPECIAL[0])
    for encoding in tokenizer.encode_batch_fast(texts):
        starts.append(len(flat))
        flat += encoding.ids + [end]
    return np.array(flat, dtype=np.int64), np.array(starts)


class Batches:
    """Rows of context + 1 tokens that begin at a document, as a prompt does; kept on the device."""

    def __init__(self, flat: np.ndarray, starts: np.ndarray, context: int, device: str, seed: int):
        self.flat = torch.from_numpy(flat).to(device)
        self.starts = torch.from_numpy(starts[starts < len(flat) - context - 1]).to(device)
        self.offsets = torch.arange(context + 1, device=device)
        self.rng = torch.Generator().manual_seed(seed)

    def next(self, rows: int) -> torch.Tensor:
        pick = torch.randint(len(self.starts), (rows,), generator=self.rng).to(self.flat.device)
        return self.flat[self.starts[pick][:, None] + self.offsets]


def loss_of(model, rows: torch.Tensor) -> torch.Tensor:
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def train(model: Llama, data: Batches, held_out: Batches, s: dict, device: str) -> None:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": s["weight_decay"]},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=s["learning_rate"],
        betas=(0.9, 0.95),
        fused=device == "cuda",
    )
    begin = time.time()
    for step in range(s["steps"]):
        warm = min(1.0, (step + 1) / s["warmup_steps"])
        cosine = 0.5 * (1 + math.cos(math.pi * step / s["steps"]))
        for group in optimizer.param_groups:
            group["lr"] = s["learning_rate"] * warm * (0.02 + 0.98 * cosine)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(model, data.next(s["batch"]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0 or step == s["steps"] - 1:
            with torch.no_grad():
                check = loss_of(model, held_out.next(min(s["batch"], 32)))
            print(
                f"step {step:5d}/{s['steps']}  loss {loss.item():.4f}  "
                f"held out {check.item():.4f}  {time.time() - begin:.0f} s",
                flush=True,
            )


@torch.no_grad()
def generate(
    model: Llama, tokenizer: Tokenizer, prompt: str, temperature: float, count: int, seed: int
) -> str:
    rng = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    ids = tokenizer.encode(prompt).ids
    ends = {tokenizer.token_to_id(SPECIAL[0]), tokenizer.token_to_id(SPECIAL[2])}
    begin = len(ids)
    for _ in range(count):
        logits = model(torch.tensor([ids], device=device))[0, -1].float().cpu()
        token = (
            int(logits.argmax())
            if temperature == 0
            else int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=rng))
        )
        if token in ends:
            break
        ids.append(token)
    return tokenizer.decode(ids[begin:])


def write_folder(model: Llama, tokenizer: Tokenizer, s: dict, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: p.detach().to("cpu", torch.bfloat16).contiguous()
        for name, p in model.named_parameters()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    end, start, turn_end = (tokenizer.token_to_id(t) for t in SPECIAL)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": s["hidden"],
        "intermediate_size": s["feed_forward"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["q_heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": s["head_dim"],
        "vocab_size": s["vocab"],
        "max_position_embeddings": s["context"],
        "rms_norm_eps": s["norm_eps"],
        "rope_theta": s["rope_theta"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": start,
        "eos_token_id": [end, turn_end],
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": s["context"],
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"bos_token_id": start, "eos_token_id": [end, turn_end], "pad_token_id": end}
    for name, value in (
        ("config", config),
        ("tokenizer_config", tokenizer_config),
        ("generation_config", generation),
    ):
        (out / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")
    # One line: an indented tokenizer.json is three times as large, and the repository holds it.
    (out / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps", type=int, help="instead of the settings' steps, for a smoke test"
    )
    parser.add_argument(
        "--batch", type=int, help="instead of the settings' batch, for a smoke test"
    )
    parser.add_argument(
        "--stories", type=int, help="instead of the settings' stories, for a smoke test"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    s = json.loads(Path(__file__).with_name("settings.json").read_text())
    s |= {k: v for k in ("steps", "batch", "stories") if (v := getattr(args, k)) is not None}
    torch.manual_seed(args.seed)

    begin = time.time()
    texts = stories.corpus(s["stories"], args.seed)
    held_out = stories.corpus(max(200, s["stories"] // 100), args.seed + 1_000_003)
    print(
        f"{len(texts)} documents, {len(set(texts))} distinct, {time.time() - begin:.0f} s",
        flush=True,
    )
    tokenizer = make_tokenizer(texts[: s["tokenizer_stories"]], s["vocab"])
    if tokenizer.get_vocab_size() != s["vocab"]:
        parser.error(
            f"the text yields {tokenizer.get_vocab_size()} tokens, "
            f"settings.json wants {s['vocab']}: use more stories or a smaller vocab"
        )
    flat, starts = encode(tokenizer, texts)
    print(
        f"{len(flat)} tokens, {len(flat) / len(texts):.0f} a document, vocabulary {s['vocab']}, "
        f"{time.time() - begin:.0f} s",
        flush=True,
    )

    model = Llama(s).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters on {args.device}", flush=True)
    train(
        model,
        Batches(flat, starts, s["context"], args.device, args.seed),
        Batches(*encode(tokenizer, held_out), s["context"], args.device, args.seed + 1),
        s,
        args.device,
    )
    # The samples come from the weights as they are written: bf16.
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
    write_folder(model, tokenizer, s, args.out)
    (args.out / "model.safetensors").chmod(0o644)
    samples = []
    for prompt in PROMPTS:
        for temperature in (0.0, 0.7):
            text = generate(
                model, tokenizer, prompt, temperature, min(200, s["context"] - 40), args.seed
            )
            samples.append(f"=== {prompt!r} temperature {temperature}\n{text}\n")
    (args.out / "samples.txt").write_text("\n".join(samples))
    print("\n".join(samples))
    size = sum(f.stat().st_size for f in args.out.iterdir())
    print(f"wrote {args.out}: {size / 1e6:.2f} MB, {time.time() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
