"""Greedy decode with Hugging Face transformers in f32: what the expected files hold."""

import json
from pathlib import Path

import torch
import transformers

MADE_WITH = f"transformers {transformers.__version__}, torch {torch.__version__}, CPU"


@torch.no_grad()
def greedy(model, prompt_ids: list[int], count: int) -> dict:
    """Decodes `count` tokens, EOS or not.

    Returns last_logits [vocab] of the last prompt position, greedy_ids [count], and min_gap: the
    smallest distance between the best and the second logit. A port whose logits are off by less
    than half of it must choose the same tokens.
    """
    output = model(torch.tensor([prompt_ids]), use_cache=True)
    last = output.logits[0, -1]
    tokens, gap, logits = [], float("inf"), last
    for step in range(count):
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        if step + 1 < count:
            output = model(
                torch.tensor([[tokens[-1]]]),
                past_key_values=output.past_key_values,
                use_cache=True,
            )
            logits = output.logits[0, -1]
    return {"last_logits": last, "greedy_ids": tokens, "min_gap": gap}


def write_greedy_cases(path: Path, name: str, model, tokenizer, prompts: dict, count: int) -> None:
    """Writes what `model` answers to each of `prompts` (case name -> text), `count` tokens each.

    `name` is how the file calls the model. Prompts are encoded as they are: no BOS is added. top_ids
    and top_logits [5] are of the last prompt position; with min_gap they tell a reader of a failing
    test how far off the logits may be.
    """
    cases = []
    for case, text in prompts.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        result = greedy(model, ids, count)
        top = result["last_logits"].topk(5)
        answer = tokenizer.decode(result["greedy_ids"], skip_special_tokens=False)
        cases.append(
            {
                "name": case,
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
        print(f"{case}: min gap {result['min_gap']:.4f}: {answer!r}", flush=True)
    write_json(path, {"model": name, "dtype": "f32", "made_with": MADE_WITH, "cases": cases})


def write_json(path: Path, value: dict) -> None:
    """Indented, but with each list of numbers on one line, so that a change reads as one."""
    lists: list[str] = []

    def fold(v):
        if isinstance(v, dict):
            return {k: fold(x) for k, x in v.items()}
        if isinstance(v, list) and v and not isinstance(v[0], (dict, list)):
            lists.append(json.dumps(v))
            return f"@@{len(lists) - 1}@@"
        return [fold(x) for x in v] if isinstance(v, list) else v

    text = json.dumps(fold(value), indent=2, ensure_ascii=False)
    for i, line in enumerate(lists):
        text = text.replace(f'"@@{i}@@"', line)
    path.write_text(text + "\n")
