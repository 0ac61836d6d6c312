"""What `cluster start` is told of access logs and spans: checked before anything is started."""

import argparse
import contextlib
import importlib.util
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launcher.errors import LauncherError

STANDARD_OUTPUT = "-"
TRACING_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def watching_from(args: argparse.Namespace) -> dict[str, Any]:
    """`access_log` (None: none; "": standard output; else a whole path), `log_format` and `otlp_endpoint`. Raises LauncherError."""
    if args.log_format is not None and args.access_log is None:
        raise LauncherError("--log-format says how an access log is written: name its file with --access-log FILE, or - for standard output", 2)
    return {
        "access_log": None if args.access_log is None else _log_file(args.access_log),
        "log_format": args.log_format or "json",
        "otlp_endpoint": None if args.otlp_endpoint is None else _endpoint(args.otlp_endpoint),
    }


def _log_file(name: str) -> str:
    """A file that lines can be appended to; it is made if it is not there."""
    if name == STANDARD_OUTPUT:
        return ""
    path = Path(name).absolute()
    try:
        if path.exists() and not (stat.S_ISREG(path.stat().st_mode) or stat.S_ISCHR(path.stat().st_mode)):
            raise LauncherError(f"--access-log: {name} is not a file", 2)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        raise LauncherError(f"--access-log: {name} cannot be written: {error.strerror}", 2) from error
    return str(path)


def _endpoint(url: str) -> str:
    try:
        place = urlsplit(url)
        wrong = place.scheme not in ("http", "https") or not place.hostname or place.port == 0 or place.query or place.fragment
    except ValueError:
        wrong = True
    if wrong:
        raise LauncherError(f"--otlp-endpoint: {url!r} is not the URL of a collector, such as http://127.0.0.1:4318", 2)
    if place.username is not None or place.password is not None:
        raise LauncherError("--otlp-endpoint: give credentials in the environment variable OTEL_EXPORTER_OTLP_HEADERS, not in the URL", 2)
    if not all(map(_installed, TRACING_MODULES)):
        raise LauncherError("--otlp-endpoint needs the OpenTelemetry SDK, which is an extra: pip install 'pagewire[otel]' (docs/metrics.md)")
    return url


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def access_descriptor(access_log: str | None) -> Iterator[int]:
    """A descriptor of this process's standard output for the frontends when that is where the access log goes, else -1."""
    if access_log != "":
        yield -1
        return
    try:
        descriptor = os.dup(1)
    except OSError as error:
        raise LauncherError(f"--access-log -: there is no standard output ({error.strerror})", 2) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
