"""Sending a request again after a process on its way has died, and how long and how often one waits for that."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from frontend.cluster import Route
from frontend.search import ALONE
from messages.explain import Explain
from messages.request import Delivered, Generate
from messages.text import DEADLINE_EXCEEDED, INTERRUPTED, Problem

if TYPE_CHECKING:
    from frontend.streams import Run, Sequence

MAX_HELD = 1024
"""Sequences that have not been sent yet, at most, while there is no way for them, unless the line in the scheduler is shorter."""
HOLD_SECONDS = 60.0
"""How long a request waits that could not be sent yet. One that was sent once waits as long as it takes."""

TOO_MANY = Problem(status=503, code="not_ready", message="A part of the server restarts, and too many requests wait for it.", retry_after=2.0)
TOO_LONG = Problem(status=503, code="not_ready", message="A part of the server restarts and has not come back in time.", retry_after=2.0)
REPLACED = Problem(status=503, code="model_reloaded", message="The model is being replaced, and this answer was not waited for.", retry_after=2.0)
CUT_OFF = Problem(status=500, code=INTERRUPTED, message="Each time this request was taken up, the process that worked on it ended.")
EXPIRED = Problem(status=504, code=DEADLINE_EXCEEDED, message="The request did not end within its timeout.")
NO_ANSWER = Problem(status=503, code=INTERRUPTED, message="Where requests are was asked of a process that ended.", retry_after=1.0)


def again(request: Generate, rest: "Iterable[tuple[int, Sequence]]", sent: bool) -> Generate:
    """What is left of `request`: its choices by number, under the keys they have now, with what is here of them if it was `sent` before."""
    numbers, sequences = zip(*rest, strict=True)
    resumed = [Delivered(sequence.ids.tobytes(), sequence.cached, sequence.closing) for sequence in sequences] if sent else []
    sampling = request.sampling
    if request.score_first and numbers[0]:  # the choice that has the prompt's logprobs has ended
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
    keys, seeds = [sequence.key for sequence in sequences], [request.seeds[number] for number in numbers]
    return msgspec.structs.replace(request, keys=keys, seeds=seeds, resumed=resumed, sampling=sampling)


def hopeless(run: "Run", route: Route | None, now: float, since: float) -> Problem | None:
    """Why a request that waits to be sent is given up, or None. It could be sent, had there been a way, `since` seconds ago."""
    if run.deadline is not None and now >= run.deadline:
        return EXPIRED
    if run.lone_deaths >= ALONE:
        return CUT_OFF
    if isinstance(run.question, Explain):
        return NO_ANSWER
    return TOO_LONG if route is None and not run.sent and since > HOLD_SECONDS else None
