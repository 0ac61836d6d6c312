"""Who may ask: the API keys, and what a request says of itself with one. Without any keys everybody may do everything."""

import logging
from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import web

from frontend.errors import ApiError
from transport.key_file import UNLIMITED, KeyFileError, KeyLimits, KeyLine, parse, read_keys, salt_of
from transport.private_file import Mark, PrivateFileError, mark

log = logging.getLogger(__name__)

OPEN_ROUTES = frozenset({"/health", "/health/live", "/health/ready", "/health/startup", "/metrics", "/", "/static/{name}"})
"""Answered without a key. For the machines that ask: health says whether, and metrics how much, never what or for whom. For browsers: the files of
the live page, which hold nothing of the cluster; / asks for a key itself where it says more."""
MAX_HEADER_CHARACTERS = 1024


class Caller(msgspec.Struct, frozen=True):
    """Who has sent a request. `name` is that of the key, `owner` whose requests it may see and end: its own, or with None everybody's.

    `limits`: how much it may ask for.
    """

    name: str = ""
    tenant: str = ""
    owner: str | None = None
    limits: KeyLimits = UNLIMITED


ANYBODY = Caller()
CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)


class Access:
    """`path`: the file of keys, or None. `lines`: further keys in the form of its lines, which count for as long as the process lives.

    A file that cannot be used at the start gives no keys, and later leaves those it gave before; the log says so.
    """

    def __init__(self, path: str | None = None, lines: Iterable[str] = ()) -> None:
        self._path = path
        self._fixed = parse(lines, "the launcher's keys", reserved=())
        self._by_salt: dict[str, KeyLine] = {}
        self._limits = {line.name: line.limits for line in self._fixed}
        self._seen: Mark | None = None
        self.wanted = path is not None or bool(self._fixed)
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed. Blocks."""
        if self._path is None or (now := mark(self._path)) == self._seen:
            return
        self._seen = now
        try:
            keys = read_keys(self._path)
        except (KeyFileError, PrivateFileError) as error:
            log.error("API keys: %s; %d keys read before stay as they are", error, len(self._by_salt))
            return
        self._by_salt = {line.salt: line for line in keys}
        self._limits = {line.name: line.limits for line in (*self._fixed, *keys)}
        log.info("API keys: %d in %s", len(keys), self._path)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Whose key the headers carry: `Authorization: Bearer KEY`, or Anthropic's `x-api-key: KEY`. Raises ApiError 401."""
        if not self.wanted:
            return ANYBODY
        key = _key(headers)
        if key is None:
            raise ApiError(401, "missing_api_key", "An API key is needed: send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`.")
        line = self._find(key)
        if line is None:
            raise ApiError(401, "invalid_api_key", "This API key is not valid here.")
        return Caller(line.name, line.tenant, None if line.admin else line.name, line.limits)

    def limits(self, name: str) -> KeyLimits:
        """Of the key of this name as they are now; none when there is no such key any more."""
        return self._limits.get(name, UNLIMITED)

    def _find(self, key: str) -> KeyLine | None:
        salt = salt_of(key)
        named = self._by_salt.get(salt) if salt is not None else None
        if named is not None and named.matches(key):
            return named
        return next((line for line in self._fixed if line.matches(key)), None)


def _key(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    key = value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key if 0 < len(key) <= MAX_HEADER_CHARACTERS else None
