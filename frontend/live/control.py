"""What an administrator may ask of the supervisor on the live page: to take no more requests, and to take them again."""

import msgspec

from frontend.access import Caller
from frontend.errors import ApiError
from messages.change import Declined, DrainCommand, ResumeCommand
from transport.command import NoAnswerError, ask

RETRY_SECONDS = 2.0


class Intake(msgspec.Struct):
    """What was asked for: new requests are refused, or taken."""

    draining: bool


def require_admin(caller: Caller, keys: bool) -> None:
    """Raises ApiError 403 for everybody but an admin's key. Without `keys` nobody is told from a page elsewhere that a browser shows."""
    if not keys or caller.owner is not None:
        raise ApiError(403, "not_allowed", "This needs an administrator's API key, and a server that was started with API keys.")


def order(run_dir: str, command: DrainCommand | ResumeCommand) -> None:
    """Blocks. Raises ApiError: 409 when the supervisor declines, 503 when it does not answer in time."""
    try:
        answer = ask(run_dir, command)
    except NoAnswerError as error:
        raise ApiError(503, "no_answer", "The supervisor does not answer.", retry_after=RETRY_SECONDS) from error
    if isinstance(answer, Declined):
        raise ApiError(409, "declined", f"Not now: {answer.reason}.")
