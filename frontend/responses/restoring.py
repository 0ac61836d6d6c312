"""A journal is taken up when its frontend starts: what has ended can be asked for, what has not is made again."""

import asyncio
import logging

import msgspec

from frontend.core import Core
from frontend.responses.background import end, make_job, start
from frontend.responses.body import ResponseBody
from frontend.responses.items import Item
from frontend.responses.journal import Journal
from frontend.responses.journal_file import JournalError, JournalFile, Restored
from frontend.responses.store import Kept
from messages.text import Problem

log = logging.getLogger(__name__)


async def open_journal(core: Core, path: str) -> None:
    """Raises JournalError when the file at `path` cannot be used."""
    try:
        file = await asyncio.to_thread(JournalFile, path)
    except OSError as error:
        raise JournalError(f"{path} cannot be used: {error.strerror or error}") from error
    core.responses.journal = Journal(file)
    unfinished = 0
    for restored in file.restored:
        try:
            unfinished += _restore(core, restored)
        except (msgspec.DecodeError, RecursionError) as error:
            file.damaged += 1
            log.error("journal: %s cannot be read: %s", restored.accepted.id, error)
    log.info("journal %s: %d responses, %d of them unfinished; %d damaged records", path, len(file.restored), unfinished, file.damaged)
    file.restored.clear()


def _restore(core: Core, restored: Restored) -> bool:
    """Whether it is to be made again. Raises msgspec.DecodeError, and RecursionError for tools that are nested too deeply."""
    accepted, concluded = restored
    body = msgspec.json.decode((concluded or accepted).body, type=ResponseBody)
    body.detach()
    items = msgspec.json.decode(accepted.items, type=list[Item])
    if concluded is not None:
        core.responses.store.end(Kept(body, accepted.key, items, durable=True))
        return False
    job = make_job(core, body, accepted.key, items, accepted.work)
    job.kept.durable = True
    core.responses.store.begin(job.kept)
    if body.model == core.view.model:
        job.place = core.keepers.go_on(accepted.key, core.access.limits(accepted.key), job.record)
        start(core, job)
    else:
        message = f"It was accepted for the model {body.model!r}, and this server has {core.view.model!r}."
        job.recorder.accept()
        end(core, job, Problem(status=404, code="model_not_found", message=message))
    return True
