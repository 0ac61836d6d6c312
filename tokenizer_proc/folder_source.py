"""A tokenizer from a Hugging Face model folder: tokenizer.json and the small JSON files beside it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.source import Source, add_special, set_bos_eos

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read(folder: Path) -> Source:
    """Raises VocabularyError."""
    settings = read_settings(folder)
    tokenizer = read_tokenizer_json(folder / "tokenizer.json")
    names = special_names(settings, read_json(folder / "special_tokens_map.json"))
    _add_missing(tokenizer, settings, names)
    _apply_bos_eos(tokenizer, settings, names)
    _try_out(tokenizer)
    return Source(tokenizer, names, folder_template(folder, settings))


def read_settings(folder: Path) -> dict[str, Any]:
    return read_json(folder / "tokenizer_config.json")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or an empty one when there is no such file. Raises VocabularyError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise VocabularyError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise VocabularyError(f"{path.name} does not hold a JSON object")
    return value


def read_tokenizer_json(path: Path) -> Tokenizer:
    """Raises VocabularyError."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every fault of the file
        raise VocabularyError(f"{path.name} cannot be used: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def special_names(*sources: dict[str, Any]) -> dict[str, str]:
    """Role to token text; the first source that names a role wins. A token is written as text or as an object with `content`."""
    names: dict[str, str] = {}
    for source in sources:
        for role in ROLES:
            value = source.get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                names.setdefault(role, text)
    return names


def folder_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else `chat_template` of tokenizer_config.json: one template, or several with names. Raises VocabularyError."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise VocabularyError(f"{path.name} cannot be read: {error}") from error
    value = settings.get("chat_template")
    if value is None or isinstance(value, str):
        return value
    return _named_template(value)


def _named_template(value: object) -> str:
    """The template called `default`, or the only one."""
    entries = value if isinstance(value, list) else [value]
    named = {entry["name"]: entry["template"] for entry in entries if isinstance(entry, dict) and {"name", "template"} <= entry.keys()}
    chosen = named.get("default") or (next(iter(named.values())) if len(named) == 1 else None)
    if not isinstance(chosen, str):
        raise VocabularyError("chat_template of tokenizer_config.json has no template called 'default'")
    return chosen


def _add_missing(tokenizer: Tokenizer, settings: dict[str, Any], names: dict[str, str]) -> None:
    """Special tokens that only tokenizer_config.json or special_tokens_map.json knows."""
    present = {added.content for added in tokenizer.get_added_tokens_decoder().values()}
    listed = settings.get("added_tokens_decoder")
    for entry in _in_order(listed) if isinstance(listed, dict) else ():
        if entry["content"] not in present:
            flags = {flag: bool(entry.get(flag)) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            tokenizer.add_tokens([AddedToken(entry["content"], **flags)])
    add_special(tokenizer, list(names.values()))


def _in_order(listed: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of added_tokens_decoder by their ids. Raises VocabularyError."""
    for number, entry in listed.items():
        if not (number.isascii() and number.isdigit() and len(number) < 12 and isinstance(entry, dict) and isinstance(entry.get("content"), str)):
            raise VocabularyError(f"added_tokens_decoder of tokenizer_config.json has no token at {number[:40]!r}")
    return [listed[number] for number in sorted(listed, key=int)]


def _try_out(tokenizer: Tokenizer) -> None:
    """What the library finds wrong only when it is used, it says in a panic, which is no Exception. Raises VocabularyError."""
    try:
        tokenizer.encode("Hello world")
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise VocabularyError(f"tokenizer.json cannot be used: {error}") from error


def _apply_bos_eos(tokenizer: Tokenizer, settings: dict[str, Any], names: dict[str, str]) -> None:
    """add_bos_token and add_eos_token, where given, stand above what tokenizer.json adds."""
    if not any(isinstance(settings.get(flag), bool) for flag in ("add_bos_token", "add_eos_token")):
        return
    bos = names.get("bos_token") if settings.get("add_bos_token") else None
    eos = names.get("eos_token") if settings.get("add_eos_token") else None
    set_bos_eos(tokenizer, bos, eos)
