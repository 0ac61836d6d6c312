"""The tokenizer process alone: forms of answers are tried in processes of their own, and hold up nobody."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from grammar.program import program_of
from grammar.vocabulary_file import write_vocabulary
from messages.admit import Admit
from messages.constraint import Constraint
from messages.request import Cancel
from messages.text import Ended, Problem, Started
from tests.support.tokenizer_neighbours import PATIENCE, Neighbours, admitted, generate, ids_of, problem_of
from tests.support.vocabularies import TOKENS
from tokenizer_proc import grammar_child
from tokenizer_proc.grammar_child import BusyError, ChildError, GrammarChild, OverrunError, PostponedError

GOOD = Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}), "response_format")
SLOW = Constraint("json_schema", json.dumps({"type": "object", "properties": {f"property {i}": {"type": "string"} for i in range(3000)}}))
"""Takes long to compile, and its masks are too large."""


def _having(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"}}}


def trials(neighbours: Neighbours) -> list[psutil.Process]:
    """The processes in which programs are tried."""
    return psutil.Process(neighbours.process.pid).children(recursive=True)


@contextlib.contextmanager
def stopped(neighbours: Neighbours) -> Iterator[None]:
    """The processes that there are do nothing meanwhile."""
    held = trials(neighbours)
    assert held
    for process in held:
        process.suspend()
    try:
        yield
    finally:
        for process in held:
            process.resume()


def test_a_form_goes_on_as_a_program_that_was_tried(byte: Neighbours) -> None:
    assert trials(byte) == []
    admit = admitted(byte, generate(3, keys=[3, 4], constraint=GOOD))
    assert admit.program == program_of(GOOD)
    assert len(trials(byte)) == 1
    assert admitted(byte, generate(5)).program == ""
    with stopped(byte):  # it is not tried again
        assert admitted(byte, generate(6, constraint=GOOD)).program == admit.program
    assert (byte.run_dir / "vocabulary").exists()


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (Constraint("json_schema", '{"not": {}}', "guided_json"), "Unimplemented keys"),
        (Constraint("json_schema", "[", "guided_json"), "not valid JSON"),
        (Constraint("regex", "(a", "guided_regex"), "unclosed group"),
        (Constraint("lark", "start: b", "guided_grammar"), "unknown name"),
        (Constraint("json_schema", '{"$ref": "#"}'), "nothing can be said"),
        (Constraint("json_schema", json.dumps({"allOf": [{"anyOf": [_having(f"a{i}"), _having(f"b{i}")]} for i in range(12)]})), "too large"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_use_is_refused(byte: Neighbours, constraint: Constraint, why: str) -> None:
    for _ in range(2):
        problem = problem_of(byte, generate(9, constraint=constraint))
        assert (problem.status, problem.code, problem.param) == (400, "invalid_grammar", constraint.param or None)
        assert why in problem.message


def _ended(byte: Neighbours) -> Problem:
    ended = byte.hear()
    assert isinstance(ended, Ended)
    assert ended.problem is not None
    return ended.problem


def test_a_form_that_takes_long_holds_up_nobody(byte: Neighbours) -> None:
    admitted(byte, generate(19, constraint=Constraint("regex", "[a-c]+")))
    with stopped(byte):  # the process that tried it gets the next one, and does not come to an end
        byte.send(generate(20, constraint=SLOW))
        for _ in range(20):
            ids_of(byte, "a short text")
        admitted(byte, generate(21, constraint=Constraint("regex", "[0-9]+")))  # another process tries it meanwhile
        assert len(trials(byte)) == 2
    assert _ended(byte).code == "invalid_grammar"


def test_who_leaves_while_a_form_is_tried_is_not_admitted(byte: Neighbours) -> None:
    byte.send(generate(30, constraint=Constraint("json_schema", SLOW.text.replace("property", "member"))))
    byte.send(Cancel([30]))
    byte.send(generate(31, constraint=Constraint("regex", "b+")))
    admit = byte.scheduled()
    assert isinstance(admit, Admit)
    assert admit.keys == [31]
    heard = byte.hear()
    if isinstance(heard, Ended):  # its trial was over before it left
        assert heard.key == 30
        heard = byte.hear()
    assert isinstance(heard, Started)


def test_hundreds_of_new_forms_at_once_are_all_tried(byte: Neighbours) -> None:
    for number in range(256):
        byte.send(generate(1000 + number, constraint=Constraint("regex", f"x{number}y[ab]+")))
    admits = [byte.scheduled() for _ in range(256)]
    assert {key for admit in admits if isinstance(admit, Admit) for key in admit.keys} == set(range(1000, 1256))
    assert {type(byte.hear()) for _ in range(256)} == {Started}


def test_an_error_says_where_in_the_request_it_is(byte: Neighbours) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"not": {}}]}}}}
    problem = problem_of(byte, generate(50, constraint=Constraint("json_schema", json.dumps(schema), "response_format", "response_format.schema")))
    assert problem.param == "response_format"
    assert "response_format.schema.properties.a.items.anyOf[1]: " in problem.message
    rules = f"start: one | two\n// tools[0].parameters\none: %json {{}}\n// tools[4].parameters\ntwo: %json {json.dumps(schema)}"
    problem = problem_of(byte, generate(51, constraint=Constraint("lark", rules, "tools")))
    assert problem.param == "tools[4].parameters.properties.a.items.anyOf[1]"
    assert f"{problem.param}: Unimplemented keys" in problem.message
    mine = f"// a comment\nstart: %json {json.dumps(schema)}"
    problem = problem_of(byte, generate(52, constraint=Constraint("lark", mine, "structured_outputs", "structured_outputs.grammar")))
    assert problem.param == "structured_outputs"
    assert "structured_outputs.grammar: Unimplemented keys" in problem.message


def test_a_trial_that_somebody_ended_is_begun_anew(byte: Neighbours) -> None:
    admitted(byte, generate(40, constraint=Constraint("regex", "c+")))
    for process in trials(byte):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that tried a form of before may have come to an end
            process.kill()
    for number in range(41, 44):
        admitted(byte, generate(number, constraint=Constraint("regex", f"d{number}+")))


def test_its_trials_end_with_it(byte: Neighbours) -> None:
    left = trials(byte)
    assert byte.terminate() == 0
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []


@pytest.fixture
def child(run_dir: Path) -> Iterator[GrammarChild]:
    write_vocabulary(run_dir, "tokenizer0", TOKENS.of, TOKENS.special, set(TOKENS.ends))
    made = GrammarChild(run_dir)
    yield made
    made.close()


def test_a_program_has_so_much_time(child: GrammarChild, monkeypatch: pytest.MonkeyPatch) -> None:
    assert child.ask(program_of(GOOD)) == ("", "")
    monkeypatch.setattr(grammar_child, "QUICK_SECONDS", 0.02)
    with pytest.raises(PostponedError):
        child.ask(program_of(SLOW), lambda: False)
    monkeypatch.setattr(grammar_child, "TRIAL_SECONDS", 0.04)
    with pytest.raises(OverrunError, match="more than") as overrun:
        child.ask(program_of(SLOW))
    assert not overrun.value.passing
    monkeypatch.setattr(grammar_child, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(BusyError):
        child.ask(program_of(SLOW))
    monkeypatch.undo()
    assert "unknown name" in child.ask("start: foo").wrong


def test_a_program_that_ends_the_process_each_time(child: GrammarChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that takes too much memory."""
    child.ask(program_of(GOOD))
    running = child._running

    def dying() -> "subprocess.Popen[bytes]":
        process = running()
        process.kill()
        return process

    monkeypatch.setattr(child, "_running", dying)
    with pytest.raises(OverrunError, match="memory") as overrun:
        child.ask(program_of(GOOD))
    assert overrun.value.passing
    monkeypatch.undo()
    assert child.ask(program_of(GOOD)) == ("", "")


def test_a_process_that_cannot_begin(run_dir: Path) -> None:
    with pytest.raises(ChildError, match="cannot be read"):
        GrammarChild(run_dir).ask("x")
