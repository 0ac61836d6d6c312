"""Greedy continuations by transformers, float32, from a GGUF file. Run in a clean subprocess: greedy.py FILE.gguf MAX_TOKENS < prompts.json

Prints JSON: per prompt its length in tokens, the generated ids (an end token included), their text, and the smallest gap
between the best and the second logit (how near the comparison came to a tie).
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    file, max_tokens = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    rows = []
    for prompt in json.load(sys.stdin):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        gap = min(float(top[0] - top[1]) for top in (step[0].topk(2).values for step in out.logits))
        whole = out.sequences[0].tolist()
        text = tokenizer.decode(whole, skip_special_tokens=True)[len(tokenizer.decode(ids[0], skip_special_tokens=True)) :]
        rows.append({"prompt": len(ids[0]), "ids": whole[len(ids[0]) :], "text": text, "gap": round(gap, 5)})
        print(f"{len(rows)} done", file=sys.stderr)
    json.dump(rows, sys.stdout, indent=None, separators=(",", ":"))


if __name__ == "__main__":
    main()
