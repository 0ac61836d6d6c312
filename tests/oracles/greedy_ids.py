"""Greedy token ids by transformers, float32, from a GGUF file: greedy_ids.py FILE.gguf MAX_TOKENS < prompts.json; end tokens do not end it.

Prints JSON: per prompt its ids and the generated ids.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    file, count = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    rows = []
    for prompt in json.load(sys.stdin):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=count, max_new_tokens=count, do_sample=False, eos_token_id=-1)
        rows.append({"prompt": ids[0].tolist(), "ids": out[0].tolist()[len(ids[0]) :]})
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
