"""`LLM`: a model in a private cluster of its own, for scripts and notebooks."""

import atexit
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from pagewire.client import PagewireError, Server
from pagewire.cluster import PrivateCluster
from pagewire.sampling import SamplingParams

__all__ = ["LLM", "Completion", "PagewireError"]

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
IN_FLIGHT = 64


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer. `prompt_index` is the place of its prompt in the call, `index` its number among that prompt's `n`.

    `usage` has the token counts of the whole request (all `n` together); `logprobs` is as the HTTP API gives it.
    """

    text: str
    finish_reason: str
    prompt_index: int
    index: int
    usage: Mapping[str, Any] = field(default_factory=dict)
    logprobs: Mapping[str, Any] | None = None


SWITCHES = {"generation_config", "prefix_cache"}
"""Options that are on or off."""


class LLM:
    """Starts a cluster with `model` and ends it with `close()`, with the end of a `with` block, or with the program.

    `model` is anything `cluster start --model` takes (None: the default model); `options` are that command's options by name:
    `LLM("m.gguf", max_context=2048, dummy_weights=True)`. With `url` a running server is used instead and left alone.
    Raises RuntimeError when the cluster does not start.
    """

    def __init__(self, model: str | None = None, *, url: str | None = None, **options: str | float | bool) -> None:
        """`model`: a folder, .gguf file, catalogue name or pulled hub id; None: the default model, fetched when it is not in the cache.

        `url`: base URL of a running server (without /v1); `model` and `options` are then not used. It gets the API key in $PAGEWIRE_API_KEY.
        `options`: the long options of `cluster start` with underscores, such as `threads=2`, `max_context=2048`, `kv_tokens=65536`,
        `dtype="bfloat16"`; True sets a flag (`dummy_weights=True`), False leaves it out; `prefix_cache=False`
        and `generation_config=False` turn those off. `host`, `port` and `detach` are set here.
        `launch.py cluster start --help` lists them all.
        Returns when the cluster is ready. Raises RuntimeError with its last words when it does not start.
        """
        self._cluster = None if url else PrivateCluster(_arguments(model, options))
        server = self._cluster.server if self._cluster else Server((url or "").rstrip("/"))
        self._server = replace(server, key=server.key or os.environ.get("PAGEWIRE_API_KEY"))
        self.url = server.url
        atexit.register(self.close)

    def generate(self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None) -> list[Completion]:
        """Continue each prompt (text or token ids) as it stands, all at once; `n` completions per prompt, in order. Raises PagewireError."""
        batch = _batch(prompts)
        body = (params or SamplingParams()).body(chat=False)
        with ThreadPoolExecutor(max_workers=max(1, min(IN_FLIGHT, len(batch)))) as pool:
            answers = list(pool.map(lambda prompt: self._server.post("/v1/completions", {**body, "prompt": prompt}), batch))
        return [completion for number, answer in enumerate(answers) for completion in _completions(number, answer)]

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> list[Completion]:
        """Answer a conversation through the model's chat template; `n` completions. Raises PagewireError."""
        body = (params or SamplingParams()).body(chat=True)
        return _completions(0, self._server.post("/v1/chat/completions", {**body, "messages": list(messages)}))

    def stream(self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None) -> Iterator[str]:
        """Pieces of one answer as they come: to a conversation (a list of messages) or as the continuation of text or token ids.

        Closing the iterator cancels the request. Raises ValueError for n > 1 and PagewireError for what the server refuses.
        """
        params = params or SamplingParams()
        if (params.n or 1) > 1:
            raise ValueError("stream gives one answer: leave n out")
        chat = not isinstance(prompt, str) and any(isinstance(item, Mapping) for item in prompt)
        path, name = ("/v1/chat/completions", "messages") if chat else ("/v1/completions", "prompt")
        given = prompt if isinstance(prompt, str) else list(prompt)
        for event in self._server.events(path, {**params.body(chat), name: given, "stream": True}):
            for choice in event["choices"]:
                if text := (choice["delta"].get("content") if chat else choice["text"]):
                    yield text

    def models(self) -> list[str]:
        """The names the server answers to."""
        return [entry["id"] for entry in self._server.get("/v1/models")["data"]]

    def close(self) -> None:
        """Stop the private cluster. A second call does nothing."""
        atexit.unregister(self.close)
        if self._cluster is not None:
            self._cluster.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _arguments(model: str | None, options: Mapping[str, str | float | bool]) -> list[str]:
    """Options by name as command line arguments: True is a bare flag, False and None are left out; one of SWITCHES is on or off."""
    arguments = [] if model is None else ["--model", model]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name in SWITCHES and isinstance(value, bool):
            arguments += [flag, "on" if value else "off"]
        elif value is True:
            arguments.append(flag)
        elif value is not False and value is not None:
            arguments += [flag, str(value)]
    return arguments


def _batch(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [list(prompts)]
    return [item if isinstance(item, str | int) else list(item) for item in prompts]


def _completions(number: int, answer: Mapping[str, Any]) -> list[Completion]:
    return [
        Completion(
            text=(choice["message"]["content"] or "") if "message" in choice else choice["text"],
            finish_reason=choice["finish_reason"],
            prompt_index=number,
            index=choice["index"],
            usage=answer.get("usage") or {},
            logprobs=choice.get("logprobs"),
        )
        for choice in answer["choices"]
    ]
