"""A stand-in for a frontend, in a thread: answers completions with numbered words, and misbehaves on request."""

import asyncio
import json
import threading
from typing import Any

from aiohttp import web

MODEL = "fake"


class FakeServer:
    """`with FakeServer() as server`. `serial_seconds` makes requests queue for a lock held that long; `trouble` picks a way to fail.

    None is answered before `at_once` of them have run together.
    """

    def __init__(self, trouble: str | None = None, serial_seconds: float = 0.0, at_once: int = 0) -> None:
        self.trouble = trouble
        self.serial_seconds = serial_seconds
        self.at_once = at_once
        self.bodies: list[dict[str, Any]] = []
        self.running = self.most_running = self.cancelled = 0
        self.url = ""
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="fake-server", daemon=True)

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *details: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        self._loop, self._stop, self._turn = asyncio.get_running_loop(), asyncio.Event(), asyncio.Lock()
        self._enough = asyncio.Event()
        runner = web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": list(range(100))})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if self.most_running >= self.at_once:
            self._enough.set()
        try:
            await self._enough.wait()
            if self.trouble == "busy":
                return web.json_response({"error": {"message": "too many", "code": "queue_full", "param": None}}, status=429)
            async with self._turn if self.serial_seconds else asyncio.Semaphore():
                await asyncio.sleep(self.serial_seconds)
                return await (self._stream(request, body) if body.get("stream") else self._whole(request, body))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _whole(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        chat = "messages" in body
        text = _said(body)
        choices = [
            {"index": index, "finish_reason": "length", "logprobs": None, **({"message": {"content": text}} if chat else {"text": text})}
            for index in range(body.get("n", 1))
        ]
        return web.json_response({"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 2}})

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        chat = "messages" in body
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        count = body.get("max_tokens", 3)
        for number in range(count):
            if self.trouble == "error" and number == 1:
                await _event(response, {"error": {"message": "gone", "code": "worker_lost"}})
                return response
            if self.trouble == "cut" and number == 1:
                return response
            if self.trouble == "hang":
                await asyncio.sleep(60)
            text = f"w{number} "
            await _event(response, {"choices": [{"index": 0, "finish_reason": None, **({"delta": {"content": text}} if chat else {"text": text})}]})
        end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        await _event(response, {"choices": [{"index": 0, "finish_reason": "length", **end}]})
        if body.get("stream_options", {}).get("include_usage"):
            told = count - 1 if self.trouble == "short" else count
            await _event(response, {"choices": [], "usage": _prompt_usage(body) | {"completion_tokens": told}})
        await response.write(b"data: [DONE]\n\n")
        return response


def _said(body: dict[str, Any]) -> str:
    return f"echo {body['messages'][-1]['content']}" if "messages" in body else f"echo {body['prompt']}"


def _prompt_usage(body: dict[str, Any]) -> dict[str, Any]:
    """A token per id or, in a chat, per word; of a chat all words but the newest message's are cached."""
    if "messages" not in body:
        return {"prompt_tokens": len(body["prompt"])}
    words = [len(message["content"].split()) for message in body["messages"]]
    return {"prompt_tokens": sum(words), "prompt_tokens_details": {"cached_tokens": sum(words[:-1])}}


async def _event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")
