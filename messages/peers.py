"""Between the frontends on one port: a question about a request may reach another one than the request did, and the requests of a key reach all."""

from typing import Annotated

import msgspec

from messages.key import Key
from messages.request import Label
from messages.text import Problem

Units = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class FindRequests(msgspec.Struct, frozen=True, kw_only=True, tag="find_requests"):
    """What do you know of the request called `name`? Without a name: of the `limit` newest that run. `cancel` ends the one named, or without a name
    all that run or wait. `owner`: only requests of the API key of this name count; None: all. `lives`: what has happened to the one named, too.

    Answered with `FoundRequests` to `frontend`.
    """

    frontend: str
    key: Key
    name: str | None = None
    limit: int = 0
    cancel: bool = False
    owner: str | None = None
    lives: bool = False


class FoundRequests(msgspec.Struct, frozen=True, kw_only=True, tag="found_requests"):
    """`cards`: a JSON list of what /v1/requests says of each, empty when none is known. `more`: older ones run too. `cancelled`: so many were
    ended."""

    key: Key
    cards: bytes
    more: bool = False
    cancelled: Units = 0


class Stay(msgspec.Struct, frozen=True):
    """A request that counts for an API key: of which frontend, and under which number of its."""

    frontend: str
    incarnation: int
    key: Key


class EnterKey(msgspec.Struct, frozen=True, kw_only=True, tag="enter_key"):
    """To the frontend that counts for the API key called `name`: may one more request of it run? `requests`, `rpm` and `tpm` are its limits.

    `key` names the question, and the request if it may. `incarnation` is that of the frontend that asks: what an earlier one had is over.
    `accepted`: it was let in before, whatever the limits are now, and `tokens` of it have been counted. `instead`: whose place it takes, if that is
    still counted. Answered with `EnteredKey`; the request ends with a `UsedKey`, and is told of every second until then.
    """

    frontend: str
    incarnation: int
    key: Key
    name: Label
    requests: Units = 0
    rpm: Units = 0
    tpm: Units = 0
    accepted: bool = False
    tokens: Units = 0
    instead: Stay | None = None


class EnteredKey(msgspec.Struct, frozen=True, kw_only=True, tag="entered_key"):
    """It may, or `problem` says why not. `frontend`: who counts it. `headers`: what the client is told of its limits."""

    frontend: str
    key: Key
    problem: Problem | None = None
    headers: dict[str, str] = {}


class UsedKey(msgspec.Struct, frozen=True, kw_only=True, tag="used_key"):
    """A request that was let in has used so many tokens in all, and is `over` or not."""

    frontend: str
    incarnation: int
    key: Key
    tokens: Units
    over: bool = False


OfKeys = EnterKey | EnteredKey | UsedKey
FromPeer = FindRequests | FoundRequests | OfKeys
