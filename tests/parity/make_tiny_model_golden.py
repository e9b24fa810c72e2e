#!/usr/bin/env python3
"""Makes tests/golden/tiny_greedy.json: what the embedded model in models/tiny answers in f32.

    python3 tests/parity/make_tiny_model_golden.py

To be run again whenever models/tiny changes. Needs torch, transformers and tokenizers.
"""

from pathlib import Path

import torch
import transformers
from reference import greedy, write_json
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
COUNT = 64
ASK = "<|im_start|>user\nTell me a story about {}.<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = {
    "story": "Once upon a time there was a brave bear named Rosa. She",
    "chat": ASK.format("a fox"),
    "rare words": ASK.format("zebra Zoë's 3 naïve drones"),
    "past the end": "Rosa went home. The end.",
}


def main() -> None:
    folder = ROOT / "models/tiny"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cases = []
    for name, text in PROMPTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        result = greedy(model, ids, COUNT)
        top = result["last_logits"].topk(5)
        answer = tokenizer.decode(result["greedy_ids"], skip_special_tokens=False)
        cases.append(
            {
                "name": name,
                "prompt": text,
                "prompt_ids": ids,
                "greedy_ids": result["greedy_ids"],
                "greedy_text": answer,
                "min_gap": round(result["min_gap"], 6),
                "top_ids": top.indices.tolist(),
                "top_logits": [round(x, 6) for x in top.values.tolist()],
                "max_abs_logit": round(float(result["last_logits"].abs().max()), 6),
            }
        )
        print(f"{name}: min gap {result['min_gap']:.4f}: {answer!r}", flush=True)
    write_json(
        ROOT / "tests/golden/tiny_greedy.json",
        {
            "model": "models/tiny",
            "dtype": "f32",
            "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, CPU",
            "cases": cases,
        },
    )


if __name__ == "__main__":
    main()
