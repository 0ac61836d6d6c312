"""The bounds of a journal's records are checked when they are decoded."""

from typing import Any

import msgspec
import pytest

from messages.journal import Concluded, Deleted, Record
from tests.support.journal_records import accepted, concluded, name_of

RECORDS: list[Record] = [accepted(1, "ä\ud7ff\U0001fae0"), concluded(1), Deleted(id=name_of(1))]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    frame = msgspec.msgpack.encode(record)
    again = msgspec.msgpack.decode(frame, type=Record)
    assert type(again) is type(record)
    assert msgspec.msgpack.encode(again) == frame


@pytest.mark.parametrize("name", ["", "resp_", "resp_" + "A" * 34, "resp_" + "0" * 35, "../../etc/passwd"])
def test_ids_are_ours(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Deleted(id=name)), type=Record)


@pytest.mark.parametrize("change", [{"key": "k" * 257}, {"body": b"x" * ((64 << 20) + 1)}, {"work": None}], ids=["key", "body", "work"])
def test_what_is_out_of_bounds_is_none(change: dict[str, Any]) -> None:
    frame = msgspec.msgpack.encode(msgspec.structs.asdict(accepted(1)) | {"type": "accepted"} | change)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(frame, type=Record)


def test_no_record_holds_a_secret() -> None:
    """The names of all fields: a key's name is there, the key is not."""
    assert set(accepted(1).__struct_fields__) == {"id", "key", "body", "items", "work"}
    assert set(Concluded.__struct_fields__) == {"id", "body"}
