#!/usr/bin/env python3
"""Makes tests/golden/tiny_greedy.json: what the embedded model in models/tiny answers in f32.

    python3 tests/parity/make_tiny_model_golden.py

To be run again whenever models/tiny changes. Needs torch, transformers and tokenizers.
"""

from pathlib import Path

import torch
import transformers
from reference import write_greedy_cases
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
    out = ROOT / "tests/golden/tiny_greedy.json"
    write_greedy_cases(out, "models/tiny", model, tokenizer, PROMPTS, COUNT)


if __name__ == "__main__":
    main()
