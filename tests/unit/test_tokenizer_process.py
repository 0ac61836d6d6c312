"""The sockets around the tokenizer's service: what it knows of the cluster when a request comes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import zmq

from messages.admit import Admit, FromTokenizerProc
from messages.cluster import READY, ClusterState, ProcessState
from tests.support.tokenizer_neighbours import generate
from tokenizer_proc.__main__ import Process, load_encoder
from tokenizer_proc.args import TokenizerArgs
from transport.sockets import Inbox, Outbox


def ready_state() -> ClusterState:
    scheduler = ProcessState(name="scheduler", incarnation=1, pid=1, phase=READY, facts={"context": 2048})
    return ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[scheduler])


async def test_a_state_that_waits_is_read_before_a_request_is_refused(run_dir: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend follows the same feed and may be a tick ahead: what it says is ready must not be refused as not ready."""
    args = TokenizerArgs(name="tokenizer0", incarnation=1, run_dir=str(run_dir), model=str(models / "chain-byte"), frontends=["frontend0"])
    context: zmq.Context[Any] = zmq.Context()
    scheduler: Inbox[FromTokenizerProc] = Inbox(context, run_dir, "scheduler", FromTokenizerProc)
    outbox = Outbox(context, run_dir, "tokenizer0")
    process = Process(args, load_encoder(args), asyncio.get_running_loop())
    try:
        monkeypatch.setattr(process._feed, "latest", ready_state)
        outbox.send(generate(3))
        async with asyncio.timeout(60):
            while not (found := scheduler.drain()):
                await asyncio.sleep(0.01)
        assert isinstance(found[0], Admit)
    finally:
        process.close()
        outbox.close()
        scheduler.close()
        context.term()
