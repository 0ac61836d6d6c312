"""A client of the HTTP API for tests that look at status, body and events as they are."""

import asyncio
import io
import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import aiohttp

from tests.support.cluster import Cluster
from tests.support.figures import idle_figures

SECONDS = 110.0


def strict(text: str) -> Any:
    """JSON by the letter: NaN and Infinity are none."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


async def ask(cluster: Cluster, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and body of one POST; the model is filled in."""
    return await post(cluster, path, json.dumps({"model": cluster.model} | body).encode())


async def post(cluster: Cluster, path: str, body: bytes | io.BytesIO) -> tuple[int, dict[str, Any]]:
    """The same for a body of any bytes; of many, as a file."""
    headers, timeout = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(cluster.url, timeout=timeout) as session, session.post(path, data=body, headers=headers) as response:
        return response.status, strict(await response.text())


async def complete(cluster: Cluster, **body: Any) -> dict[str, Any]:
    """The answer of /v1/completions, which must be a 200."""
    status, answer = await ask(cluster, "/v1/completions", **body)
    assert status == 200, answer
    return answer


async def text(cluster: Cluster, **body: Any) -> str:
    """The text of the only choice of a completion."""
    found: str = (await complete(cluster, **body))["choices"][0]["text"]
    return found


async def texts(cluster: Cluster, *bodies: dict[str, Any]) -> list[str]:
    """Completions sent at once, in order."""
    return await asyncio.gather(*(text(cluster, **body) for body in bodies))


async def stream(cluster: Cluster, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream that must end well."""
    async with aiohttp.ClientSession(cluster.url) as session, session.post(path, json={"model": cluster.model, "stream": True} | body) as response:
        assert response.status == 200, await response.text()
        lines = [line async for line in response.content if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"data: [DONE]"
    return [strict(line[6:].decode()) for line in lines[:-1]]


async def preemptions(cluster: Cluster) -> float:
    """How often rows have been preempted; nothing runs any more, and the scheduler's books are right."""
    return (await idle_figures(cluster)).counters["preemptions"]


def by_index(events: list[dict[str, Any]]) -> dict[int, str]:
    """The texts of a completion's stream, put together by choice."""
    found: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def edited(models: Path, name: str, target: Path, **config: Any) -> Path:
    """A copy of a fixture with changed JSON files: `config={...}`, `generation_config=None` deletes the file."""
    folder = target / name
    shutil.copytree(models / name, folder)
    for stem, change in config.items():
        file = folder / f"{stem}.json"
        if change is None:
            file.unlink()
        else:
            file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return folder
