"""lm-eval against a whole cluster: the log-likelihoods of a small task are those it gets from transformers, within 1e-2.

usage, from the root of the repository: python -m tests.clients.lm_eval_scores
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clients.tools import environment, program, served

TOLERANCE = 1e-2
QUESTIONS = [
    {"context": "Hello", "choices": [" world", " cat", "END", " the dog"], "answer": 0},
    {"context": "The cat sat on", "choices": [" one", " two three", " stop"], "answer": 1},
    {"context": "User: Hello world, 12 + 30 =", "choices": [" 42", " 4", " forty two", "\n\n42"], "answer": 0},
    {"context": "\u00e9t\u00e9 \U0001fae0 ", "choices": ["\u00e9", "abc", " world"], "answer": 2},
]
TASK = {
    "task": "small",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "{{context}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


def run(lm_eval: Path, folder: Path, name: str, model: str, arguments: str) -> list[tuple[str, float, bool]]:
    """Question, log-likelihood and whether it is what greedy decoding gives, for every choice of every question."""
    out = folder / name
    command = [str(lm_eval), "--model", model, "--model_args", arguments, "--tasks", "small", "--include_path", str(folder), "--log_samples"]
    command += ["--output_path", str(out), "--batch_size", "1", "--device", "cpu"]
    seen = environment(folder, HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf"), OPENAI_API_KEY="none")
    done = subprocess.run(command, env=seen, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"lm_eval --model {model} failed:\n{done.stderr[-4000:]}")
    (file,) = out.rglob("samples_small_*.jsonl")
    samples: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        (f"{sample['doc']['context']!r} {choice!r}", float(reply[0][0]), str(reply[0][1]) == "True")
        for sample in samples
        for choice, reply in zip(sample["doc"]["choices"], sample["resps"], strict=True)
    ]


def main() -> int:
    lm_eval = program("lm_eval", "lm_eval")
    with served("rand-byte", "--dtype", "float32") as (cluster, folder):
        (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
        task = TASK | {"dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}}}
        (folder / "small.yaml").write_text(json.dumps(task))  # JSON is YAML
        model = folder / "rand-byte"
        expected = run(lm_eval, folder, "transformers", "hf", f"pretrained={model},dtype=float32,add_bos_token=True")
        where = f"model={cluster.model},base_url={cluster.url}/v1/completions"
        found = run(lm_eval, folder, "served", "local-completions", f"{where},tokenizer={model},num_concurrent=4,max_retries=1,add_bos_token=True")
    wrong = 0
    for (question, likelihood, greedy), (_, other, other_greedy) in zip(expected, found, strict=True):
        same = abs(likelihood - other) <= TOLERANCE and greedy == other_greedy
        wrong += not same
        print(f"{'ok   ' if same else 'WRONG'} {question}: {likelihood:.4f} by transformers, {other:.4f} served")
    print(f"{len(found)} choices, {wrong} wrong")
    return int(wrong > 0 or not found)


if __name__ == "__main__":
    sys.exit(main())
