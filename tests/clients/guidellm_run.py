"""guidellm, unmodified, against a whole cluster: chat and text completions, streamed, four at a time; no request may fail.

usage, from the root of the repository: python -m tests.clients.guidellm_run
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clients.tools import environment, program, served

REQUESTS = 40
PROMPT_TOKENS, TOKENS = 50, 16
PATHS = ("/v1/chat/completions", "/v1/completions")


def run(guidellm: Path, url: str, model: Path, path: str, folder: Path) -> dict[str, Any]:
    """The requests of one run, by how they ended."""
    out = folder / "out.json"
    command = [
        str(guidellm), "run", "--disable-console-interactive", "--profile", "kind=concurrent,streams=4",
        "--backend", f"kind=openai_http,target={url},model={model.name},request_format={path}",
        "--constraint", f"kind=max_requests,count={REQUESTS}", "--tokenizer", f"kind=huggingface_auto,model={model}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}", "--output", f"kind=json,path={out}",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment(folder, HF_HUB_OFFLINE="1"), cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"guidellm failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    requests: dict[str, Any] = benchmark["requests"]
    return requests


def main() -> int:
    wrong, guidellm = 0, program("guidellm", "guidellm")
    with served("rand-byte") as (cluster, folder):
        for path in PATHS:
            found = run(guidellm, cluster.url, folder / cluster.model, path, folder)
            good, bad = found["successful"], [*found["errored"], *found["incomplete"]]
            lengths = {request["output_metrics"]["text_tokens"] for request in good}
            print(f"{path}: {len(good)} of {REQUESTS} answered, {len(bad)} errors, tokens {sorted(lengths)}")
            for request in bad[:1]:
                print(json.dumps(request["info"]["error"]))
            wrong += len(good) != REQUESTS or bool(bad) or lengths != {TOKENS}
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
