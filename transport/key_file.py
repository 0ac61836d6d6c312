"""API keys as they are kept: a file with a line for each, `name:sha256$SALT$HASH`, and options with commas behind a colon:
`admin`, `tenant=T`, `requests=N`, `rpm=N`, `tpm=N`.

A key is `pw-SALT-SECRET`; its hash is SHA-256 over salt and key. The secret has 256 bits from the system's generator, so there is no
dictionary to try and nothing that a slow hash (scrypt, Argon2) would add but its cost in every request. The salt is each key's own: no table can
be made ahead, equal hashes do not show, and it is the name by which a key is found among thousands.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from transport.private_file import read_private

MAX_KEYS = 10_000
SALT_BYTES, SECRET_BYTES = 8, 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
NAME_RULE = "letters, digits and . _ @ -, at most 64, a letter or digit first"
GIVEN_KEY = re.compile(r"[!-~]{16,512}")
"""A key that somebody has thought out: printable ASCII without spaces."""
FROM_ENVIRONMENT, OWN = "environment", "launcher"
"""Names of the launcher's own keys. Requests belong to the name of their key, so no line of a file may have one of these."""
ADMIN, TENANT = "admin", "tenant="
LIMITS = {"requests=": "requests", "rpm=": "rpm", "tpm=": "tpm"}
MOST = 10**12 - 1
_BOUND = re.compile(r"(requests=|rpm=|tpm=)([1-9][0-9]{0,11})", re.ASCII)
_KEY = re.compile(r"pw-([0-9a-f]{16})-[A-Za-z0-9_-]{43}")
_HASH = re.compile(r"sha256\$([0-9a-f]{16})\$([0-9a-f]{64})")


class KeyFileError(ValueError):
    """Keys that cannot be used. The text says where and why, and never quotes what may be a key."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may use: `requests` at once, `rpm` requests and `tpm` tokens (of prompts and answers) a minute. 0: as much as it likes."""

    requests: int = 0
    rpm: int = 0
    tpm: int = 0

    def __bool__(self) -> bool:
        return self != UNLIMITED

    def options(self) -> list[str]:
        """As they stand in the file."""
        return [f"{option}{value}" for option, name in LIMITS.items() if (value := getattr(self, name))]


UNLIMITED = KeyLimits()


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """A key without the key. `tenant`: keys with the same share the machine as one and see each other's prefix cache."""

    name: str
    salt: str
    digest: str
    tenant: str
    admin: bool = False
    limits: KeyLimits = UNLIMITED

    def matches(self, key: str) -> bool:
        """Whether this is the key. The time it takes says nothing about how much of it was right."""
        return hmac.compare_digest(_digest(self.salt, key), self.digest)

    def text(self) -> str:
        """The line in the file."""
        options = [ADMIN] * self.admin + [TENANT + self.tenant] * (self.tenant != self.name) + self.limits.options()
        return f"{self.name}:sha256${self.salt}${self.digest}" + (":" + ",".join(options) if options else "")


def _digest(salt: str, key: str) -> str:
    return hashlib.sha256(f"{salt}:{key}".encode("utf-8", "surrogatepass")).hexdigest()


def new_key(name: str, tenant: str | None = None, admin: bool = False, limits: KeyLimits = UNLIMITED) -> tuple[str, KeyLine]:
    """A key that nobody has had before, to be shown once, and what is kept of it. Raises KeyFileError for a name or tenant of another form."""
    salt = secrets.token_hex(SALT_BYTES)
    key = f"pw-{salt}-{secrets.token_urlsafe(SECRET_BYTES)}"
    return key, _line(name, salt, _digest(salt, key), tenant or name, admin, limits)


def given_key(name: str, key: str) -> KeyLine:
    """What is kept of an administrator's key of any form. Raises KeyFileError for one that is too short or cannot stand in a header."""
    if GIVEN_KEY.fullmatch(key) is None:
        raise KeyFileError("a key must have 16 to 512 printable ASCII characters and no spaces")
    salt = secrets.token_hex(SALT_BYTES)
    return _line(name, salt, _digest(salt, key), name, admin=True)


def salt_of(key: str) -> str | None:
    """By which a key made here is found; None for one of another form."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


def parse(lines: Iterable[str], source: str, reserved: Collection[str] = (FROM_ENVIRONMENT, OWN)) -> list[KeyLine]:
    """The keys of these lines; blank ones and those that begin with # are skipped. Raises KeyFileError, also for a name or salt that comes twice,
    and for one that is `reserved`."""
    found: list[KeyLine] = []
    for number, text in enumerate(lines, 1):
        if text.strip() and not text.startswith("#"):
            found.append(_parsed(text.strip(), f"{source}, line {number}"))
    if len(found) > MAX_KEYS:
        raise KeyFileError(f"{source}: more than {MAX_KEYS} keys")
    for line in found:
        if taken := sorted({line.name, line.tenant} & set(reserved)):
            raise KeyFileError(f"{source}: {taken[0]!r} is the name of a key that the launcher has itself; give the key another name or tenant")
    for field in ("name", "salt"):
        seen: set[str] = set()
        for line in found:
            value = getattr(line, field)
            if value in seen:
                raise KeyFileError(f"{source}: the {field} of the key {line.name!r} comes twice")
            seen.add(value)
    return found


def _parsed(text: str, where: str) -> KeyLine:
    name, _, rest = text.partition(":")
    kept, _, more = rest.partition(":")
    digest = _HASH.fullmatch(kept)
    if digest is None:
        raise KeyFileError(f"{where}: expected name:sha256$SALT$HASH, as `keys add` writes it")
    options = [option for option in more.split(",") if option]
    tenants = [option.removeprefix(TENANT) for option in options if option.startswith(TENANT)]
    bounds = [found for option in options if (found := _BOUND.fullmatch(option))]
    if len(tenants) > 1 or len({found[1] for found in bounds}) + len(tenants) + (ADMIN in options) != len(options):
        known = ", ".join([ADMIN, TENANT + "T", *(option + "N" for option in LIMITS)])
        raise KeyFileError(f"{where}: the options of a key are {known} (N from 1 to {MOST}), each at most once, with commas between them")
    limits = KeyLimits(**{LIMITS[found[1]]: int(found[2]) for found in bounds})
    try:
        return _line(name, digest[1], digest[2], tenants[0] if tenants else name, ADMIN in options, limits)
    except KeyFileError as error:
        raise KeyFileError(f"{where}: {error}") from error


def _line(name: str, salt: str, digest: str, tenant: str, admin: bool, limits: KeyLimits = UNLIMITED) -> KeyLine:
    for what, value in (("name", name), ("tenant", tenant)):
        if NAME.fullmatch(value) is None:
            raise KeyFileError(f"the {what} of a key is of {NAME_RULE}")
    return KeyLine(name=name, salt=salt, digest=digest, tenant=tenant, admin=admin, limits=limits)


def read_keys(path: str | Path) -> list[KeyLine]:
    """The keys of a file that is closed to others. Raises KeyFileError or PrivateFileError."""
    try:
        text = read_private(path).decode("ascii")
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path}: not a file of keys") from error
    return parse(text.splitlines(), str(path))
