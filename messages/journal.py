"""In a journal file (`cluster start --journal`): the background responses that were accepted, and what became of them."""

from typing import Annotated

import msgspec

from messages.request import Generate, Label

TITLE = b"pagewire journal 1\n"
"""The file begins with it."""
MAX_JSON_BYTES = 64 << 20
ResponseId = Annotated[str, msgspec.Meta(pattern="^resp_[0-9a-f]{34}$")]
Json = Annotated[bytes, msgspec.Meta(max_length=MAX_JSON_BYTES)]


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """A response that is to be made. `key`: the name of the API key it was asked for with, never the key.

    `body`: the response object as it was first answered, `items`: the list of what the model is given besides instructions; both are JSON.
    `work`: what is asked of the engine, seed included; its `frontend` and `keys` are filled in when it is sent.
    """

    id: ResponseId
    key: Label
    body: Json
    items: Json
    work: Generate


class Concluded(msgspec.Struct, frozen=True, kw_only=True, tag="concluded"):
    """It is over, whichever way. `body`: the response object as it stays, as JSON."""

    id: ResponseId
    body: Json


class Deleted(msgspec.Struct, frozen=True, kw_only=True, tag="deleted"):
    """Nothing of it is known any more."""

    id: ResponseId


Record = Accepted | Concluded | Deleted
