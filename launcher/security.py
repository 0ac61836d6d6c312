"""What `cluster start` is told about keys, TLS and web pages, checked before anything is started."""

import argparse
import ipaddress
import os
import sys
from pathlib import Path

import msgspec

from launcher import keys
from launcher.errors import LauncherError
from transport.key_file import FROM_ENVIRONMENT, OWN, KeyFileError, given_key, new_key
from transport.security import Security

KEY_VARIABLE = "PAGEWIRE_API_KEY"


def with_own_key(security: Security) -> tuple[str | None, Security]:
    """A key for the commands of the user who runs the cluster, and the settings that know it; no key where none is needed."""
    if not security.keyed:
        return None, security
    key, line = new_key(OWN, admin=True)
    return key, msgspec.structs.replace(security, key_lines=(*security.key_lines, line.text()))


def key_headers(key: str | None = None) -> dict[str, str]:
    """How a client shows `key`, or else that of the environment; nothing where there is none."""
    key = key or os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def security_from(args: argparse.Namespace) -> Security:
    """Checked settings; raises LauncherError. The key of the environment is gone from it afterwards: only its hash goes on to the processes."""
    if (args.tls_cert is None) != (args.tls_key is None):
        raise LauncherError("--tls-cert and --tls-key belong together: name both files", 2)
    if args.api_keys is not None:
        keys.load(args.api_keys)
    if args.tls_cert is not None:
        _check_certificate(args.tls_cert, args.tls_key)
    security = Security(
        api_keys=_whole(args.api_keys),
        key_lines=_from_environment(),
        tls_cert=_whole(args.tls_cert),
        tls_key=_whole(args.tls_key),
        cors_origins=tuple(args.cors_origin or ()),
        max_connections=args.max_connections,
        max_unsent_bytes=args.max_unsent_bytes,
    )
    if not security.keyed and not _is_local(args.host):
        print(f"warning: no API keys: whoever reaches {args.host} may use this server; see --api-keys and docs/security.md", file=sys.stderr)
    return security


def _whole(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _check_certificate(certificate: str, key: str) -> None:
    from transport.tls import TlsError, server_context

    try:
        server_context(certificate, key)
    except TlsError as error:
        raise LauncherError(f"TLS: {error}", 2) from error


def _from_environment() -> tuple[str, ...]:
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        return ()
    try:
        return (given_key(FROM_ENVIRONMENT, key).text(),)
    except KeyFileError as error:
        raise LauncherError(f"{KEY_VARIABLE}: {error}; unset it to serve without a key", 2) from error


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
