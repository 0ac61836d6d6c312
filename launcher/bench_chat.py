"""`bench chat`: users who chat over several turns, and what a prefix cache saves them: time to first token, turn by turn."""

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING

from launcher.bench import COUNT, POSITIVE, SEED_TEXT, WARM_UP_TOKENS, add_place, check_trace, prepare, start_arguments, watcher
from launcher.errors import LauncherError
from launcher.options import whole
from launcher.progress import StatusLine
from launcher.rundir import choose_cluster

if TYPE_CHECKING:
    from launcher.chat_figures import Chats
    from launcher.conversations import Script, Turn
    from launcher.load import Target

TURNS = whole(1, 1000)
USERS = whole(1, 10_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench chat`."""
    where = add_place(parser)
    where.add_argument("--compare", action="store_true", help="start two private clusters, one after the other: prefix cache off and on")
    load = parser.add_argument_group("load")
    load.add_argument("--users", type=USERS, default=8, metavar="N", help="conversations at once (default 8)")
    load.add_argument("--turns", type=TURNS, default=6, metavar="N", help="questions per conversation (default 6)")
    load.add_argument("--system-tokens", type=COUNT, default=1000, metavar="N", help="about how long the common system prompt is (default 1000)")
    load.add_argument("--user-tokens", type=COUNT, default=40, metavar="N", help="about how long a question is (default 40)")
    load.add_argument("--max-tokens", type=COUNT, default=32, metavar="N", help="longest answer in tokens (default 32)")
    load.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, help="of the texts; a server may still know those of an earlier run (0)")
    load.add_argument("--timeout", type=POSITIVE, default=600.0, metavar="S", help="seconds one request may take (default 600)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when every request succeeded, else 1. Raises LauncherError when there is nothing to measure."""
    from launcher.chat_figures import compare, report_text, summarise
    from launcher.machine import commit, machine

    if (args.start or args.compare) and (args.url or args.port):
        raise LauncherError(f"--{'start' if args.start else 'compare'} makes clusters of its own: leave --url and --port out", 2)
    check_trace(args)
    chats = _all_chats(args)
    asked = {name: getattr(args, name) for name in ("users", "turns", "system_tokens", "user_tokens", "max_tokens", "seed")}
    report = {"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv), "model": chats[0].model, **asked}
    report["runs"] = [summarise(chat, args.users * args.turns) for chat in chats]
    if args.compare:
        report["comparison"] = compare(report["runs"], chats)
    print(json.dumps(report) if args.json else report_text(report))
    return 0 if all(run["ok"] == run["requests"] for run in report["runs"]) else 1


def _all_chats(args: argparse.Namespace) -> "list[Chats]":
    from launcher.chat_figures import Chats

    if args.compare:
        return [_private(args, "off"), _private(args, "on")]
    if args.start:
        return [_private(args, None)]
    url = args.url.rstrip("/") if args.url else choose_cluster(args.port).info.url
    model, turns = _talk(args, url, args.model, url)
    return [Chats(cache=None, model=model, turns=turns)]


def _private(args: argparse.Namespace, cache: str | None) -> "Chats":
    from launcher.chat_figures import Chats
    from launcher.cold import ColdCluster

    setting = ["--prefix-cache", cache] if cache else []
    label = f"prefix cache {cache}" if cache else "private cluster"
    line = StatusLine()
    line.show(f"{label}: starting")
    with ColdCluster([*start_arguments(args), *setting]) as cluster:
        url, cold_start = cluster.url, cluster.measure()
        line.clear()
        model, turns = _talk(args, url, None, label)
    return Chats(cache=cache, model=model, turns=turns, cold_start=cold_start)


def _talk(args: argparse.Namespace, url: str, model: str | None, label: str) -> "tuple[str, list[Turn]]":
    import asyncio

    return asyncio.run(_measure(args, url, model, label))


async def _measure(args: argparse.Namespace, url: str, model: str | None, label: str) -> "tuple[str, list[Turn]]":
    from launcher import conversations, load

    name, ids = await prepare(url, model)
    target = load.Target(url=url, model=name, max_tokens=args.max_tokens, timeout=args.timeout)
    await _warm_up(load.Target(url=url, model=name, max_tokens=WARM_UP_TOKENS, timeout=args.timeout))
    line = StatusLine()
    try:
        return name, await conversations.converse(target, _script(args, len(ids)), watcher(line, label, args.users * args.turns))
    finally:
        line.clear()


async def _warm_up(target: "Target") -> None:
    from launcher import conversations, load

    async with load.new_session() as session:
        _, outcome = await conversations.ask(session, target, [{"role": "user", "content": "Hello"}])
    if outcome.error is not None:
        raise LauncherError(f"the warm-up request to {target.url} failed: {outcome.error}")


def _script(args: argparse.Namespace, seed_tokens: int) -> "Script":
    """Texts of about as many tokens as asked for, from the model's own mean over SEED_TEXT."""
    from launcher.conversations import make_script

    words = SEED_TEXT.split()
    system, user = (max(1, round(tokens * len(words) / max(1, seed_tokens))) for tokens in (args.system_tokens, args.user_tokens))
    return make_script(words, args.users, args.turns, system, user, args.seed)
