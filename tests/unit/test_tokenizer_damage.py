"""Damaged and hostile tokenizers: loading ends soon, with a vocabulary that can be used or an error that says what is wrong, and nothing else."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.errors import CheckpointError
from tests.support.gguf_files import write_twin
from tests.support.lean import lean
from tests.unit.test_checkpoint_damage import EDITS, JSON, NUMBERS, edited
from tokenizer_proc.errors import RequestError, VocabularyError
from tokenizer_proc.templates import load_template
from tokenizer_proc.vocabulary import load_vocabulary

FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
TALK = [{"role": "user", "content": "Hello"}]
FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"]
TEXT = '{% for m in messages %}{{ m.content }}{% endfor %}'
KEYS = st.sampled_from([
    "add_bos_token", "add_eos_token", "bos_token", "eos_token", "unk_token", "chat_template", "added_tokens_decoder", "eos_token_id", "vocab_size",
])  # fmt: skip
PIECES = st.sampled_from([TEXT, "{{ messages }}", "{% for", "{{ 1 / 0 }}", "", "\0", "x" * 1000])


@pytest.fixture(scope="module")
def folder(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound folder to copy from; also as a GGUF file beside it."""
    folder = tmp_path_factory.mktemp("sound") / "model"
    folder.mkdir()
    for name in FILES:
        if (models / "chain-byte" / name).exists():
            shutil.copy(models / "chain-byte" / name, folder)
    write_twin(models / "chain-byte", folder.parent / "twin.gguf", kind="Q8_0")
    return folder


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """However many damaged files were read, memory has not grown by much."""
    with lean():
        yield


def use(path: Path) -> None:
    """What a tokenizer process does at its start, and with a first request."""
    vocabulary = load_vocabulary(path)
    template = load_template(vocabulary.template, None, vocabulary.names)
    text = "Hello world" if template is None else template.render(TALK, True)
    vocabulary.tokenizer.decode(vocabulary.tokenizer.encode(text[:1000]).ids)


def survives(path: Path, action: Callable[[Path], object] = use) -> None:
    message, started = "worked well", time.process_time()
    try:
        action(path)
    except (CheckpointError, VocabularyError) as error:
        message = str(error)
    except RequestError as error:
        message = error.problem.message
    assert time.process_time() - started < 10
    assert 8 < len(message) < 5000


def copy(folder: Path, tmp_path: Path) -> Path:
    for file in tmp_path.iterdir():
        file.unlink()
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def paths_in(value: Any) -> list[list[str | int]]:
    """Where something can be changed in a JSON value; long lists and objects only at their ends."""
    found: list[list[str | int]] = []
    places: list[Any] = list(value.items())[:40] if isinstance(value, dict) else list(enumerate(value))[:4] if isinstance(value, list) else []
    for name, inner in places:
        found += [[name], *([name, *rest] for rest in paths_in(inner))]
    return found


def changed(document: Any, path: list[str | int], value: Any) -> Any:
    copied = json.loads(json.dumps(document))
    at = copied
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return copied


def check_bytes(folder: Path, tmp_path: Path, name: str, edits: list[tuple[float, int, int]], keep: float) -> None:
    model = copy(folder, tmp_path)
    if not (model / name).exists():
        (model / name).write_text("{}    ")
    raw = (model / name).read_bytes()
    (model / name).write_bytes(edited(raw, edits, len(raw), keep) if len(raw) > 8 else raw[: int(len(raw) * keep)])
    survives(model)


def check_value(folder: Path, tmp_path: Path, place: float, value: Any) -> None:
    model = copy(folder, tmp_path)
    document = json.loads((model / "tokenizer.json").read_text())
    places = paths_in(document)
    (model / "tokenizer.json").write_text(json.dumps(changed(document, places[int(place * len(places))], value)))
    survives(model)


def check_settings(folder: Path, tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    model = copy(folder, tmp_path)
    before = json.loads((model / name).read_text()) if (model / name).exists() else {}
    (model / name).write_text(json.dumps(before | settings))
    survives(model)


def check_gguf(folder: Path, tmp_path: Path, edits: list[tuple[float, int, int]], keep: float) -> None:
    raw = (folder.parent / "twin.gguf").read_bytes()
    path = tmp_path / "damaged.gguf"
    path.write_bytes(edited(raw, edits, raw.index(b"token_embd"), keep))
    survives(path)


PLACES = st.floats(0, 1, exclude_max=True)
KEEP = st.sampled_from([1.0, 1.0, 1.0, 0.999, 0.5, 0.01])
SETTINGS = st.dictionaries(KEYS, JSON | PIECES | NUMBERS, min_size=1, max_size=3)
NAMES = st.sampled_from(FILES)


def test_the_sound_ones_work(folder: Path, tmp_path: Path) -> None:
    use(copy(folder, tmp_path))
    use(folder.parent / "twin.gguf")


@pytest.mark.parametrize("number", [1 << 24, (1 << 31) - 1, (1 << 32) - 1])
def test_ids_are_bounded(folder: Path, tmp_path: Path, number: int) -> None:
    model = copy(folder, tmp_path)
    document = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps(changed(document, ["model", "vocab", "!"], number)))
    with pytest.raises(VocabularyError, match=f"token ids up to {number}"):
        load_vocabulary(model)


def test_texts_of_tokens_are_bounded(folder: Path, tmp_path: Path) -> None:
    model = copy(folder, tmp_path)
    document = json.loads((model / "tokenizer.json").read_text())
    document["decoder"] = {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 1_000_000}
    (model / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(VocabularyError, match="of one token"):
        load_vocabulary(model)


@pytest.mark.parametrize("listed", [{"": None}, {"x": {"content": "a"}}, {"5": None}, {"5": {"content": 1}}, {"9" * 5000: {"content": "a"}}])
def test_added_tokens_that_are_none(folder: Path, tmp_path: Path, listed: Any) -> None:
    model = copy(folder, tmp_path)
    (model / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    with pytest.raises(VocabularyError, match="added_tokens_decoder"):
        load_vocabulary(model)


def test_a_panic_of_the_library_is_an_error(folder: Path, tmp_path: Path) -> None:
    model = copy(folder, tmp_path)
    document = json.loads((model / "tokenizer.json").read_text())
    special = {"SpecialToken": {"id": "<nowhere>", "type_id": 0}}
    single = [special, {"Sequence": {"id": "A", "type_id": 0}}]
    document["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}}
    (model / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(VocabularyError, match=r"tokenizer\.json cannot be used"):
        load_vocabulary(model)


@FEW
@given(name=NAMES, edits=EDITS, keep=KEEP)
def test_damaged_files(folder: Path, tmp_path: Path, name: str, edits: list[tuple[float, int, int]], keep: float) -> None:
    check_bytes(folder, tmp_path, name, edits, keep)


@FEW
@given(place=PLACES, value=JSON | NUMBERS)
def test_any_value_in_tokenizer_json(folder: Path, tmp_path: Path, place: float, value: Any) -> None:
    check_value(folder, tmp_path, place, value)


@FEW
@given(name=NAMES.filter(lambda name: name != "tokenizer.json"), settings=SETTINGS)
def test_any_settings(folder: Path, tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    check_settings(folder, tmp_path, name, settings)


@FEW
@given(edits=EDITS, keep=KEEP)
def test_damaged_gguf(folder: Path, tmp_path: Path, edits: list[tuple[float, int, int]], keep: float) -> None:
    check_gguf(folder, tmp_path, edits, keep)


MANY: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "bytes": (check_bytes, {"name": NAMES, "edits": EDITS, "keep": KEEP}),
    "values": (check_value, {"place": PLACES, "value": JSON | NUMBERS}),
    "settings": (check_settings, {"name": NAMES.filter(lambda name: name != "tokenizer.json"), "settings": SETTINGS}),
    "gguf": (check_gguf, {"edits": EDITS, "keep": KEEP}),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", MANY)
def test_many_of_each(folder: Path, tmp_path: Path, what: str) -> None:
    check, strategies = MANY[what]
    settings(FEW, max_examples=1500)(given(st.fixed_dictionaries(strategies))(lambda drawn: check(folder, tmp_path, **drawn)))()
