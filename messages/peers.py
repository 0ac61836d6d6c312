"""Between the frontends on one port: a client's question about a request may reach another one than the request did."""

import msgspec

from messages.key import Key


class FindRequests(msgspec.Struct, frozen=True, kw_only=True, tag="find_requests"):
    """What do you know of the request called `name`? Without a name: of the `limit` newest that run. `cancel` ends the one named.
    `owner`: only requests of the API key of this name count; None: all.

    Answered with `FoundRequests` to `frontend`.
    """

    frontend: str
    key: Key
    name: str | None = None
    limit: int = 0
    cancel: bool = False
    owner: str | None = None


class FoundRequests(msgspec.Struct, frozen=True, kw_only=True, tag="found_requests"):
    """`cards`: a JSON list of what /v1/requests says of each, empty when none is known. `more`: older ones run too."""

    key: Key
    cards: bytes
    more: bool = False


FromPeer = FindRequests | FoundRequests
