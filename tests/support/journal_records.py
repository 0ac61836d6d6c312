"""Records for tests of journals."""

import msgspec

from frontend.conversation import chat_prompt
from frontend.responses.body import ResponseBody
from frontend.responses.items import said
from frontend.responses.status import QUEUED
from frontend.responses.turns import turns
from messages.journal import Accepted, Concluded, Record
from messages.request import Generate
from messages.sampling import SamplingParams, StopRules


def name_of(number: int) -> str:
    return f"resp_{number:034x}"


def body_of(number: int, status: str = QUEUED) -> ResponseBody:
    return ResponseBody(
        id=name_of(number),
        created_at=1_700_000_000,
        status=status,
        background=True,
        instructions=None,
        max_output_tokens=None,
        metadata={},
        model="tiny",
        previous_response_id=None,
        store=True,
        temperature=1.0,
        top_p=1.0,
    )


def accepted(number: int, text: str = "A", key: str = "alice") -> Accepted:
    """The record of a response that asks `text` with seed `number`."""
    items = [said(text, "user")]
    work = Generate(
        frontend="",
        keys=[],
        seeds=[number],
        prompt=chat_prompt(turns(None, items), True),
        sampling=SamplingParams(),
        stop=StopRules(max_tokens=8),
        tenant=key,
    )
    return Accepted(id=name_of(number), key=key, body=msgspec.json.encode(body_of(number)), items=msgspec.json.encode(items), work=work)


def concluded(number: int, status: str = "completed", text: str = "B") -> Concluded:
    body = body_of(number, status)
    body.output = [said(text, "assistant")]
    return Concluded(id=name_of(number), body=msgspec.json.encode(body))


def plain(record: Record) -> bytes:
    """What makes two records the same, prompts that are kept as they were encoded included."""
    return msgspec.msgpack.encode(record)
