"""Every invariant of an engine at once."""

from scheduler.errors import require
from scheduler.grammars import Grammars
from scheduler.live import Live
from scheduler.session import Session
from scheduler.tally import Tally
from scheduler.waiting import Waiting


def check(live: Live, waiting: Waiting, session: Session | None, grammars: Grammars, tally: Tally) -> None:
    """Raises InvariantError."""
    live.check()
    waiting.check()
    running: set[int] = set()
    if session is not None:
        session.check()
        running = {request.key for request in session.slots.requests if request is not None}
    in_line = {request.key for request in waiting.all()}
    facts = {
        "live keys are not running or waiting, exactly one": not running & in_line and running | in_line == set(live),
        "a row runs whose grammar the worker does not have": all(live[key].matchable for key in running & set(live)),
        "counters do not add up": tally.counts["accepted"] == tally.ended + len(live),
    }
    require(facts | grammars.facts(request.grammar for request in live.values() if request.grammar is not None))
