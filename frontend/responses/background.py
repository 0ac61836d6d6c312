"""Background mode: responses that are made without a connection, and go on after a restart when there is a journal."""

import asyncio
import functools
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from frontend.core import Core
from frontend.errors import ApiError, invalid
from frontend.keepers import Place
from frontend.record import Record
from frontend.register import Entry
from frontend.responses.asking import addressed, job_of
from frontend.responses.body import ResponseBody, usage
from frontend.responses.events import EventLog
from frontend.responses.items import Item, bare
from frontend.responses.recorder import CANCELLED_CODE, Recorder
from frontend.responses.store import Kept
from frontend.responses.streaming import problem_of
from frontend.responses.volume import Volume, check
from messages.journal import MAX_JSON_BYTES, Accepted, Concluded, Deleted
from messages.peers import Stay
from messages.request import Generate
from messages.text import Problem
from transport.key_file import UNLIMITED, KeyLimits

log = logging.getLogger(__name__)
T = TypeVar("T")

PATH = "/v1/responses"
LEAST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
CANCELLED = Problem(status=499, code=CANCELLED_CODE, message="The response was cancelled.")
MISTAKE = Problem(status=500, code="internal_error", message="The server made a mistake; its log has more.")


@dataclass(eq=False)
class Job:
    """A response that is to be made: what is kept of it, what is asked of the engine, and what the access log and the spans will say.

    `place`: as what it counts for its API key, from when it is accepted until it has ended.
    """

    kept: Kept
    recorder: Recorder
    work: Generate
    record: Record
    volume: Volume
    place: Place | None = None


def make_job(core: Core, body: ResponseBody, key: str, items: list[Item], work: Generate, asked: Record | None = None) -> Job:
    """`asked`: the record of the HTTP request; None for a response that comes from the journal."""
    events = EventLog()
    volume = Volume(events)
    recorder = Recorder(body, volume.add, lambda: core.view.call_id_length)
    request_id, client, trace = (body.id, "-", {}) if asked is None else (asked.request_id, asked.client, asked.trace)
    record = Record(request_id, client, "POST", PATH, PATH, trace, core.watchers)
    kept = Kept(body, key, items, log=events, recorder=recorder)
    return Job(kept, recorder, work, record, volume)


async def accept(core: Core, job: Job, limits: KeyLimits = UNLIMITED, instead: Stay | None = None) -> None:
    """Take a response in: when this returns it runs, and is in the journal if there is one. Raises ApiError 429, 503, and 400 if it is too long.

    It counts for its key, which has these `limits`, in the place of the request (`instead`) that has brought it.
    """
    core.responses.store.check_room(job.kept.size)
    core.responses.store.begin(job.kept)
    await _to_the_end(_accepted(core, job, limits, instead))


def _to_the_end(doing: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """What is to be awaited by somebody who may go away meanwhile: what was begun is ended either way."""
    return asyncio.shield(asyncio.get_running_loop().create_task(doing))


async def _accepted(core: Core, job: Job, limits: KeyLimits, instead: Stay | None) -> None:
    try:
        job.place = await core.keepers.enter(job.kept.key, limits, job.record, instead)
        if core.responses.journal is not None:
            job.kept.durable = True
            await core.responses.journal.write(_accepted_record(job))
    except ApiError:
        core.responses.store.remove(job.kept)
        _leave(core, job)
        raise
    start(core, job)


def _leave(core: Core, job: Job) -> None:
    """It counts no longer."""
    if job.place is not None:
        core.keepers.leave(job.place)


def _accepted_record(job: Job) -> Accepted:
    """Raises ApiError 400 for one that could not be read again."""
    body, items = msgspec.json.encode(job.kept.body), msgspec.json.encode(job.kept.items)
    if max(len(body), len(items)) > MAX_JSON_BYTES:
        raise invalid("The conversation is too long for the journal.", "input")
    return Accepted(id=job.kept.id, key=job.kept.key, body=body, items=items, work=job.work)


def start(core: Core, job: Job) -> None:
    """From here on it runs, or waits for its turn."""
    job.recorder.accept()
    job.kept.stop = _Stop(core, job, asyncio.get_running_loop().create_task(_run(core, job)))


async def _run(core: Core, job: Job) -> None:
    """To its end, which is written down. When the server stops, a durable one is left as it is: it is run again by who comes next."""
    try:
        problem = await _made(core, job)
    except Exception:  # the last one who can tell: nobody waits for this task
        log.exception("making %s failed", job.kept.id)
        problem = MISTAKE
    if problem is not None and core.view.stopping and job.kept.durable and problem.code != CANCELLED_CODE:
        return
    end(core, job, problem)


async def _made(core: Core, job: Job) -> Problem | None:
    """What went wrong, or None. Nothing is wrong with a full queue or a part of the server that is away, as long as nothing was said."""
    while True:
        try:
            async with core.responses.places:
                core.view.require_accepting(accepted=True)
                await core.view.informed()
                await _attempt(core, job)
            return None
        except ApiError as error:
            if error.status not in (429, 503) or job.recorder.has_spoken or core.view.stopping:
                return problem_of(error)
            starting = core.view.refusal(accepted=True) is not None  # nobody is troubled by looking often
            await asyncio.sleep(min(max(0.0 if starting else error.retry_after or 0.0, LEAST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS))


async def _attempt(core: Core, job: Job) -> None:
    """Raises ApiError."""
    run = core.dispatcher.open()
    entry = Entry(job.kept.id, job.record.request_id, PATH, False, job.work.priority, run, job.kept.key, job.kept.body.created_at)

    def write() -> bool:
        job.recorder.take(run.taken())
        check(core.responses.store, job.kept, job.volume)
        return True

    job.record.entry = entry
    job.recorder.begin_again()
    core.register.enter(entry)
    try:
        asked = job_of(core, job.kept.body)
        make = functools.partial(addressed, core, job.kept.body.model, job.work, asked)
        run.generate(make(), make, asked.reading)
        run.writer = write
        while await run.held():
            write()
        job.recorder.conclude(usage(run))
    finally:
        run.writer = None
        run.close()
        core.register.leave(entry)


def end(core: Core, job: Job, problem: Problem | None) -> None:
    """It has ended: it is kept among those that have, and its end is written to the journal by and by."""
    kept = job.kept
    if problem is not None:
        job.recorder.fail(problem)
    _over(core, job, problem)
    core.responses.store.end(kept)
    write_end(core, kept)


def _over(core: Core, job: Job, problem: Problem | None) -> None:
    """Who reads its events, who counts for its key, the access log and the spans are told that it has ended."""
    _leave(core, job)
    if job.kept.log is not None:
        job.kept.log.end()
    job.record.status, job.record.error = (200, None) if problem is None else (problem.status, problem.code)
    job.record.end()


def write_end(core: Core, kept: Kept) -> None:
    """Of a durable one, to the journal: without log probabilities if they are too many for it."""
    if kept.durable and core.responses.journal is not None:
        body = msgspec.json.encode(kept.body)
        if len(body) > MAX_JSON_BYTES:
            body = msgspec.json.encode(msgspec.structs.replace(kept.body, output=[bare(item) for item in kept.body.output]))
        kept.written = core.responses.journal.put(Concluded(id=kept.id, body=body))


@dataclass(frozen=True)
class _Stop:
    """Ends one that runs, or waits for its turn."""

    core: Core
    job: Job
    task: "asyncio.Task[None]"

    async def __call__(self, forget: bool) -> None:
        """As a cancelled one, which is kept unless it is to be forgotten. One that has ended meanwhile stays as it is."""
        await self.halt()
        if not self.job.kept.unfinished:
            return
        if forget:
            self.job.recorder.fail(CANCELLED)
            _over(self.core, self.job, CANCELLED)
        else:
            end(self.core, self.job, CANCELLED)

    def fail(self, problem: Problem) -> None:
        """End it with this problem, unless its last token has come."""
        if (entry := self.job.record.entry) is not None and entry.run.live:
            entry.run.fail(problem)

    async def halt(self) -> None:
        """It no longer runs; nothing is said of its end."""
        self.task.cancel()
        await asyncio.wait({self.task})


async def cancel(core: Core, kept: Kept) -> None:
    """End it, unless it has ended. When this returns it stays cancelled, after a restart too. Raises ApiError 503 when that is not so yet."""
    await _to_the_end(_cancelled(core, kept))


async def _cancelled(core: Core, kept: Kept) -> None:
    if kept.stop is not None:
        await kept.stop(forget=False)
    if kept.written is None or await kept.written:
        return
    write_end(core, kept)
    if not await kept.written:
        message = "The response has ended, but this cannot be written to the journal now: after a restart it would be made again. Try again."
        raise ApiError(503, "journal_unavailable", message, retry_after=1.0)


async def delete(core: Core, kept: Kept) -> None:
    """Forget it, and end it if it runs. Raises ApiError 503 when the journal cannot be written: then nothing is done."""
    await _to_the_end(_deleted(core, kept))


async def _deleted(core: Core, kept: Kept) -> None:
    if kept.durable and core.responses.journal is not None:
        await core.responses.journal.write(Deleted(id=kept.id))
    core.responses.store.remove(kept)
    if kept.stop is not None:
        await kept.stop(forget=True)


async def close(core: Core) -> None:
    """Stop what runs, without an end, and write to the journal what is left."""
    running = [kept.stop for kept in core.responses.store.running.values() if kept.stop is not None]
    if running:
        await asyncio.gather(*(stop.halt() for stop in running))
    await core.responses.links.close()
    if core.responses.journal is not None:
        core.responses.journal.close()
