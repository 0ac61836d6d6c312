"""What a parser says about a text. The texts of all events, in order, are the text that was parsed (but for `Arguments` that are not verbatim)."""

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Of the answer itself."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Of what is thought before the answer."""

    text: str


class Markup(msgspec.Struct, frozen=True):
    """What only says where something begins and ends: part of no field of an answer."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins; `index` counts the calls of one text from 0. `name` is one of the tools that were offered."""

    index: int
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """More of the JSON text of a call's arguments. `verbatim`: as it was written, not made from another notation."""

    index: int
    text: str
    verbatim: bool = True


class CallEnd(msgspec.Struct, frozen=True):
    """The arguments of a call are whole. A call without it was cut off."""

    index: int


Event = Content | Reasoning | Markup | CallStart | Arguments | CallEnd
