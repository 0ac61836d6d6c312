"""TLS contexts: of a server with its certificate and key, and of a client on the same machine that knows the certificate."""

import ssl
from pathlib import Path

from transport.private_file import PrivateFileError, read_private

LEAST = ssl.TLSVersion.TLSv1_2


class TlsError(ValueError):
    """Certificate or key cannot be used. The text says why."""


def server_context(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """For a listening socket: TLS 1.2 or newer, HTTP/1.1 only. `certificate`: a PEM file with the chain, the server's own first.

    Raises TlsError, also for a key that others may read or that has a passphrase.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = LEAST
    context.set_alpn_protocols(["http/1.1"])
    try:
        read_private(key)
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except PrivateFileError as error:
        raise TlsError(str(error)) from error
    except ssl.SSLError as error:
        raise TlsError(f"{certificate} and {key} are no certificate and key that belong together in PEM form: {error.reason or error}") from error
    except OSError as error:
        raise TlsError(f"{certificate} cannot be read: {error.strerror}") from error
    return context


def _no_passphrase() -> str:
    raise TlsError("the key has a passphrase, which nobody would be there to type; take it off or use another key")


def pinned_context(certificate: str | Path) -> ssl.SSLContext:
    """For a client that trusts this certificate alone, under any name: it runs where the file lies. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = LEAST
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(certificate)
    except OSError as error:
        raise TlsError(f"{certificate} cannot be used: {error.strerror or error}") from error
    return context
