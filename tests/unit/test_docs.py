"""What README.md, CONTRIBUTING.md, docs/ and bench/ say of files, commands, options, fields, routes and dependencies is what there is."""

import argparse
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from frontend.access_line import Line
from frontend.operations import OPERATIONS
from frontend.schema import ChatRequest, CompletionRequest
from launcher.cli import build_parser
from launcher.sizes import CPU, GPU

ROOT = Path(__file__).resolve().parents[2]
README, COMMANDS_PAGE, HTTP_PAGE = ROOT / "README.md", ROOT / "docs" / "commands.md", ROOT / "docs" / "http.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "bench").glob("*.md"))]
page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
INSTALLED = "pagewire/app"
"""A folder of the wheel."""
OFF = ("off", "none")


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    """What is set as code in it."""
    return re.findall(r"`([^`\n]+)`", text)


def table(path: Path, header: str) -> Iterator[list[str]]:
    """The cells of each row of the table whose header line begins so."""
    lines = iter(path.read_text("utf-8").splitlines())
    assert any(line.startswith(f"| {header}") for line in lines), f"{path.name} has no table {header}"
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def parsers(parser: argparse.ArgumentParser, command: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command below `parser`, and its own."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield command, parser
    for action in below:
        for name, child in action.choices.items():
            yield from parsers(child, f"{command} {name}".strip())


COMMANDS = dict(parsers(build_parser()))


@page
def test_files_that_are_named_are_there(page: Path) -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    named = {span.rstrip("/") for span in spans(prose(page)) if re.fullmatch(r"\w+(/[\w.*-]+)*/?", span) and "/" in span}
    assert [name for name in sorted(named) if name.partition("/")[0] in folders and name != INSTALLED and not list(ROOT.glob(name))] == []
    modules = [found[1] for span in spans(page.read_text("utf-8")) if (found := re.match(r"python -m ([\w.]+)", span))]
    assert [name for name in modules if not list(ROOT.glob(f"{name.replace('.', '/')}*")) and name != "pip"] == []


@page
def test_sections_that_are_named_are_there(page: Path) -> None:
    text = prose(page)
    named = [(ROOT / other, section) for other, section in re.findall(r'`(docs/\w+\.md)`\)?, "([^"]+)"', text)]
    named += [(page, section) for section in re.findall(r'see "([^"]+)"', text)]
    assert [(path.name, section) for path, section in named if section not in headings(path)] == []


def headings(path: Path) -> set[str]:
    """Of sections, and of paragraphs that begin with one."""
    found = re.findall(r"^(?:#+ |(?:- )?\*\*)([^*\n]+)", path.read_text("utf-8"), re.MULTILINE)
    return {heading.rstrip(".") for heading in found}


@pytest.mark.parametrize(
    ("name", "header", "folder"),
    [("docs/scheduler.md", "File | Noun", "scheduler"), ("docs/architecture.md", "File in `messages/`", "messages")],
)
def test_tables_of_files_have_each_of_them_once(name: str, header: str, folder: str) -> None:
    listed = [span for row in table(ROOT / name, header) for span in spans(row[0])]
    assert sorted(listed) == sorted(path.name for path in (ROOT / folder).glob("*.py") if not path.name.startswith("__"))


@page
def test_options_that_are_named_are_there(page: Path) -> None:
    there = {name for parser in COMMANDS.values() for name in parser._option_string_actions}
    ours = [span for span in spans(prose(page)) if not span.startswith(("python -m", ".venv/bin/"))]
    assert sorted({name for span in ours for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)} - there) == []


@page
def test_commands_of_fenced_blocks_are_understood(page: Path) -> None:
    lines = re.findall(r"^(?:\.venv/bin/python )?launch\.py (.*)$", page.read_text("utf-8").replace("\\\n", ""), re.MULTILINE)
    for line in lines:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
            build_parser().parse_args(shlex.split(line, comments=True))
        assert said.getvalue() == "", line


def test_the_commands_of_the_docs_are_all_there_are() -> None:
    listed = {}
    for row in table(COMMANDS_PAGE, "Command | Does"):
        for span in spans(row[0]):
            command = max((name for name in COMMANDS if f"{span} ".startswith(f"{name} ")), key=len, default=None)
            assert command is not None, span
            listed[command] = row
            options = set(re.findall(r"--[a-z][\w-]*", span))
            assert options <= COMMANDS[command]._option_string_actions.keys(), span
    assert listed.keys() == COMMANDS.keys()


def test_defaults_of_the_docs_and_of_the_help_are_right() -> None:
    actions = COMMANDS["cluster start"]._option_string_actions
    for option, default, *_ in table(COMMANDS_PAGE, "Option | Default"):
        names = [span.split()[0] for span in spans(option)]
        cells = default.split(", ")
        if "; on a GPU " in default:
            cpu, gpu = (part.split(", ") for part in default.split("; on a GPU "))
            told = [(name, int(one), int(other)) for name, one, other in zip(names, cpu, gpu, strict=True)]
            fields = [name.strip("-").replace("-", "_") for name in names]
            assert told == [(name, getattr(CPU, field), getattr(GPU, field)) for name, field in zip(names, fields, strict=True)]
            continue
        for name, cell in zip(names, cells if len(cells) > 1 else cells * len(names), strict=True):
            assert cell in shown(actions[name]), f"{name}: {cell}"
    for name, action in actions.items():
        for told in re.findall(r"\((\d+)\)$", action.help or ""):
            assert action.default is None or float(told) == action.default, name


def shown(action: argparse.Action) -> tuple[str, ...]:
    """How the default of an option may be written."""
    if not action.default:
        return (*OFF, *re.findall(r"\(([^()]+)\)$", action.help or ""))
    return (f"{action.default:g}" if isinstance(action.default, float) else str(action.default),)


def fields(*kinds: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}


def test_every_field_of_a_request_is_in_the_docs() -> None:
    listed = {span for row in table(HTTP_PAGE, "Field | Default") for cell in row for span in spans(cell)}
    assert sorted(fields(ChatRequest, CompletionRequest) - listed) == []
    words = {word for span in spans(HTTP_PAGE.read_text("utf-8")) for word in re.findall(r"\w+", span)}
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    assert sorted(fields(*bodies) - words) == []


def test_every_route_is_in_the_docs() -> None:
    there = spans(HTTP_PAGE.read_text("utf-8"))
    named = [span.split()[-1].removeprefix("...") for span in there if re.fullmatch(r"([A-Z]+ )?(\.\.\.)?/[\w/{}.]*", span)]
    assert sorted({operation.path for operation in OPERATIONS if not any(operation.path.endswith(path) for path in named)}) == []


def test_the_fields_of_the_access_log_are_in_its_table() -> None:
    listed = {span for row in table(ROOT / "docs" / "metrics.md", "Field | Is") for span in spans(row[0])}
    assert listed == fields(Line)


def test_every_dependency_has_its_reason() -> None:
    listed = {name for row in table(ROOT / "docs" / "architecture.md", "Dependency | Used by") for name in row[0].split(", ")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *(entry for extra in project["optional-dependencies"].values() for entry in extra)]
    assert {re.split(r"[<>=;\s]", entry)[0] for entry in needed} <= listed


@page
def test_variables_of_the_environment_are_read(page: Path) -> None:
    source = "".join(path.read_text("utf-8") for path in ROOT.glob("*/*.py"))
    named = {span for span in spans(page.read_text("utf-8")) if re.fullmatch(r"PAGEWIRE_\w+", span)}
    assert [name for name in sorted(named) if f'"{name}"' not in source] == []
