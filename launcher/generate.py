"""`generate`: one prompt in, its text out as it comes."""

import argparse
import json
import sys
from typing import Any

from launcher.client import find_server, sampling_fields
from launcher.errors import LauncherError


def run(args: argparse.Namespace) -> int:
    """Entry point of `generate`: 0 when the text ended, 1 when the server refused or failed."""
    if args.system is not None and not args.chat:
        raise LauncherError("--system is for chat messages: add --chat", 2)
    client = find_server(args.url, args.port)
    path, body = request(args, client.model())
    if args.json:
        print(json.dumps(client.post(path, body), indent=2, ensure_ascii=False))
        return 0
    ended = True
    for event in client.stream(path, body):
        for choice in event.get("choices", []):
            text = choice["delta"].get("content") or "" if args.chat else choice.get("text") or ""
            sys.stdout.write(text)
            sys.stdout.flush()
            ended = text.endswith("\n") if text else ended
    if not ended:
        sys.stdout.write("\n")
    return 0


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise LauncherError("standard input is not UTF-8") from error


def request(args: argparse.Namespace, model: str) -> tuple[str, dict[str, Any]]:
    """The path and body of the request the options describe."""
    prompt = _standard_input() if args.prompt == "-" else args.prompt
    body: dict[str, Any] = {"model": model, **sampling_fields(args)}
    if args.ignore_eos:
        body["ignore_eos"] = True
    if not args.chat:
        return "/v1/completions", {**body, "prompt": prompt}
    messages = [{"role": "system", "content": args.system}] if args.system is not None else []
    return "/v1/chat/completions", {**body, "messages": [*messages, {"role": "user", "content": prompt}]}
