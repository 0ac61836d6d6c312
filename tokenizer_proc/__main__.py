"""Entry point of a tokenizer process: `python -m tokenizer_proc`, started by launch.py with its arguments in the environment."""

import asyncio
import logging
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zmq

from checkpoint.errors import CheckpointError
from checkpoint.sampling import sampling_defaults
from checkpoint.shapes import SHAPES
from grammar.vocabulary_file import write_vocabulary
from messages.cluster import DEAD, DEFAULT, LOADING, READY, SCHEDULER_NAME, STOPPING, ClusterState
from tokenizer_proc.admission import Sender
from tokenizer_proc.args import TokenizerArgs
from tokenizer_proc.dummy_source import dummy_vocabulary
from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.grammar_checks import GrammarChecks
from tokenizer_proc.prompts import PromptEncoder
from tokenizer_proc.service import Accepted, Service
from tokenizer_proc.step_texts import Send
from tokenizer_proc.templates import load_template
from tokenizer_proc.text_pool import TextPool
from tokenizer_proc.tracing import Tracing
from tokenizer_proc.vocabulary import load_vocabulary
from transport.lifetime import Lifetime, read_arguments, set_up_logging
from transport.reports import CLUSTER_FEED, Reporter
from transport.sockets import Inbox, Outbox, Subscription
from transport.trace import open_trace

log = logging.getLogger("tokenizer_proc")

TICK_SECONDS = 0.1
STUCK_SECONDS = 2.0
LINGER_MS = 300


class Process:
    """The sockets around a Service, and the tick that watches the cluster and reports numbers."""

    def __init__(self, args: TokenizerArgs, encoder: PromptEncoder, loop: asyncio.AbstractEventLoop) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox: Inbox[Accepted] = Inbox(self._context, args.run_dir, args.name, Accepted)
        self._outboxes = {name: Outbox(self._context, args.run_dir, name, LINGER_MS) for name in (*args.frontends, SCHEDULER_NAME)}
        self._feed: Subscription[ClusterState] = Subscription(self._context, args.run_dir, CLUSTER_FEED, ClusterState)
        trace = open_trace(args)
        self._tracing = None if trace is None else Tracing(trace)
        frontends = {name: self._to_frontend(name) for name in args.frontends}
        scheduler = self._outboxes[SCHEDULER_NAME].send
        texts, grammars = TextPool(loop), GrammarChecks(loop, Path(args.run_dir))
        self.service = Service(Sender(args.name, args.incarnation), encoder, texts, frontends, scheduler, self._inbox, grammars)
        self._inbox.listen(self._handle)
        self._heard = self._ready = False

    def _to_frontend(self, name: str) -> Send:
        send = self._outboxes[name].send
        return send if self._tracing is None else self._tracing.watching(send)

    def _handle(self, message: Accepted) -> None:
        """A frontend may have seen the cluster become ready since the last tick."""
        if self.service.cluster.context is None:
            self._follow()
        if self._tracing is None:
            self.service.handle(message)
            return
        begun = time.monotonic()
        self._tracing.handling(message, begun)
        self.service.handle(message)
        self._tracing.handled(message, begun)

    def _follow(self) -> None:
        """Take in the cluster's newest state, if there is one."""
        state = self._feed.latest()
        if state is not None:
            self.service.on_cluster(state)
            self._heard = True

    def tick(self, reporter: Reporter) -> None:
        self._follow()
        self._report_ready(reporter)
        service = self.service
        gauges = {"sequences": len(service.sequences), "preparing": service.preparing, "texts_waiting": service.pool.waiting}
        gauges["grammars_waiting"] = service.grammars.waiting
        dropped = sum(outbox.dropped for outbox in self._outboxes.values())
        counters = {"bad_frames": self._inbox.bad_frames, "dropped": dropped, **asdict(service.counters)}
        reporter.numbers(dict(gauges), dict(counters))

    def _report_ready(self, reporter: Reporter) -> None:
        """Ready from the first state on: a restarted process does not know the context limit before."""
        if self._heard and not self._ready:
            self._ready = True
            reporter.phase(READY)

    def close(self) -> None:
        """Tell the clients of running sequences, then close the sockets (what is queued has LINGER_MS to go out)."""
        self.service.shut_down()
        self._inbox.close()
        self._feed.close()
        for outbox in self._outboxes.values():
            outbox.close()
        if self._tracing is not None:
            self._tracing.close()
        self._context.term()


class Pulse:
    """When the event loop last turned; heartbeats stop when that is too long ago."""

    def __init__(self) -> None:
        self.last: float | None = None

    def alive(self) -> bool:
        return self.last is None or time.monotonic() - self.last < STUCK_SECONDS


async def serve(
    args: TokenizerArgs, encoder: PromptEncoder, defaults: dict[str, float], lifetime: Lifetime, reporter: Reporter, pulse: Pulse
) -> None:
    """Run until the lifetime ends. `defaults`: of the sampling fields."""
    process = Process(args, encoder, asyncio.get_running_loop())
    facts = {f"{DEFAULT}{name}": value for name, value in defaults.items()}
    reporter.facts(chat=int(encoder.template is not None), vocab=encoder.vocabulary.size, **facts)
    reporter.phase(LOADING, "waiting for the cluster's state")
    while not lifetime.stopping.is_set():
        pulse.last = time.monotonic()
        process.tick(reporter)
        await asyncio.sleep(TICK_SECONDS)
    reporter.phase(STOPPING)
    process.close()


def load_encoder(args: TokenizerArgs) -> PromptEncoder:
    """Vocabulary and chat template of the model. Raises VocabularyError or CheckpointError."""
    vocabulary = dummy_vocabulary(SHAPES[args.model_shape].vocab) if args.model_shape else load_vocabulary(Path(args.model))
    return PromptEncoder(vocabulary, load_template(vocabulary.template, args.chat_template, vocabulary.names))


def load_defaults(args: TokenizerArgs) -> dict[str, float]:
    """Sampling defaults of the model, said in the log. Raises CheckpointError."""
    defaults = sampling_defaults(Path(args.model)) if args.generation_config and not args.model_shape else {}
    if defaults:
        values = ", ".join(f"{name} {value:g}" for name, value in defaults.items())
        log.info("requests that do not say otherwise are sampled as generation_config.json says: %s (--generation-config off: not)", values)
    return defaults


def main() -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread a text; the pool's threads are the parallelism
    args = read_arguments(TokenizerArgs)
    set_up_logging(args)
    lifetime, pulse = Lifetime(args), Pulse()
    reporter = Reporter(args, pulse.alive)
    reporter.phase(LOADING, "reading the vocabulary")
    try:
        encoder, defaults = load_encoder(args), load_defaults(args)
        vocabulary = encoder.vocabulary
        write_vocabulary(Path(args.run_dir), args.name, vocabulary.pieces.of[: vocabulary.size], vocabulary.pieces.special, vocabulary.end_ids)
    except (VocabularyError, CheckpointError, OSError) as error:
        log.error("%s", error)
        reporter.phase(DEAD, str(error))
        reporter.close()
        return 1
    asyncio.run(serve(args, encoder, defaults, lifetime, reporter, pulse))
    reporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
