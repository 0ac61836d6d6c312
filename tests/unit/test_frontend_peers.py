"""Questions to the other frontends: answers are gathered, silence is waited for only so long."""

import msgspec
import pytest

from frontend import peers
from frontend.peers import Peers
from messages.peers import FindRequests, FoundRequests


class Line:
    """An outbox to a frontend that answers through `back`, or never."""

    def __init__(self, cards: bytes | None = None) -> None:
        self.back: Peers | None = None
        self.sent: list[msgspec.Struct] = []
        self._cards = cards

    def send(self, message: msgspec.Struct) -> bool:
        self.sent.append(message)
        if self.back is not None and self._cards is not None and isinstance(message, FindRequests):
            self.back.receive(FoundRequests(key=message.key, cards=self._cards))
        return True


async def test_all_are_asked_and_answers_gathered() -> None:
    lines = {"frontend1": Line(b"[1]"), "frontend2": Line(b"[2]")}
    asking = Peers("frontend0", lines)
    for line in lines.values():
        line.back = asking
    assert sorted(found.cards for found in (await asking.find("name", cancel=True)).answers) == [b"[1]", b"[2]"]
    for line in lines.values():
        (question,) = line.sent
        assert isinstance(question, FindRequests)
        assert (question.frontend, question.name, question.cancel) == ("frontend0", "name", True)


async def test_who_does_not_answer_is_left_out_and_what_comes_late_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PATIENCE_SECONDS", 0.01)
    lines = {"frontend1": Line(b"[1]"), "frontend2": Line()}
    asking = Peers("frontend0", lines)
    lines["frontend1"].back = asking
    found = await asking.find(limit=3)
    assert ([answer.cards for answer in found.answers], found.silent) == ([b"[1]"], ["frontend2"])
    (question,) = lines["frontend2"].sent
    assert isinstance(question, FindRequests)
    asking.receive(FoundRequests(key=question.key, cards=b"[2]"))
    assert await Peers("frontend0", {}).find("name") == ([], [])


async def test_a_dead_frontend_is_not_waited_for() -> None:
    lines = {"frontend1": Line(b"[1]"), "frontend2": Line(b"[2]")}
    asking = Peers("frontend0", lines, lambda name: name != "frontend2")
    lines["frontend1"].back = asking
    assert [found.cards for found in (await asking.find("name")).answers] == [b"[1]"]
    assert lines["frontend2"].sent == []


def test_only_frontends_of_this_port_are_answered() -> None:
    line = Line()
    answering = Peers("frontend0", {"frontend1": line})
    for name in ("frontend1", "frontend9"):
        answering.answer(name, FoundRequests(key=1, cards=b"[]"))
    assert line.sent == [FoundRequests(key=1, cards=b"[]")]
