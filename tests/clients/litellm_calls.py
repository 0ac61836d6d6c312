"""litellm, unmodified, against a cluster on a fixture whose answers are known: chat, streams, text completions, logprobs, n, embeddings, errors.

usage, from the root of the repository: python -m tests.clients.litellm_calls
"""

import subprocess
import sys

from tests.clients.tools import environment, program, served

CALLS = r"""
import sys
import litellm

url, name = sys.argv[1:]
where = {"model": f"openai/{name}", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
ask = {"messages": [{"role": "user", "content": "A"}], "temperature": 0, **where}

answer = litellm.completion(**ask)
assert answer.choices[0].message.content == " the cat", answer
assert (answer.choices[0].finish_reason, answer.usage.prompt_tokens, answer.usage.completion_tokens) == ("stop", 5, 3), answer
chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == " the cat", chunks
answer = litellm.completion(**ask, n=2, max_tokens=2, logprobs=True, top_logprobs=3)
assert [choice.message.content for choice in answer.choices] == [" the cat"] * 2, answer
assert len(answer.choices[0].logprobs.content) == 2, answer
answer = litellm.completion(**ask, max_tokens=2, logit_bias={"270": -100}, extra_body={"min_tokens": 2, "return_token_ids": True})
assert " cat" not in answer.choices[0].message.content, answer
text = litellm.text_completion(prompt="A", temperature=0, max_tokens=10, **{**where, "model": f"text-completion-openai/{name}"})
assert text.choices[0].text == "Hello worldEND", text
vectors = litellm.embedding(input=["A", "B"], encoding_format="float", **where)
assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) == 512, vectors
try:
    litellm.completion(**{**ask, "model": "openai/nope"})
except litellm.NotFoundError as error:
    assert "nope" in str(error)
else:
    raise AssertionError("an unknown model was answered")
try:
    litellm.completion(**{**ask, "messages": [{"role": "user", "content": "a" * 5000}]})
except litellm.ContextWindowExceededError:
    pass
print("litellm", "ok")
"""


def main() -> int:
    python = program("litellm", "python")
    with served("chain-byte") as (cluster, folder):
        command = [str(python), "-c", CALLS, cluster.url, cluster.model]
        seen = environment(folder, LITELLM_LOCAL_MODEL_COST_MAP="True")
        return subprocess.run(command, env=seen, cwd=folder, timeout=300, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
