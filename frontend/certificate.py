"""The certificate a frontend shows: taken anew when its files change, without closing a connection."""

import logging
import ssl

from transport.private_file import Mark, mark
from transport.tls import TlsError, server_context

log = logging.getLogger(__name__)


class Certificate:
    """`context` is for the listening socket. Raises TlsError when the files cannot be used at the start; later the certificate shown before stays."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (certificate, key)
        self._seen = self._marks()
        self.context = self._current = server_context(certificate, key)
        self.context.sni_callback = self._choose

    def refresh(self) -> None:
        """Read the files again if they have changed. Blocks."""
        if (now := self._marks()) == self._seen:
            return
        self._seen = now
        try:
            self._current = server_context(*self._files)
        except TlsError as error:
            log.error("TLS: %s; the certificate read before stays", error)
            return
        log.info("TLS: the certificate in %s was read again", self._files[0])

    def _marks(self) -> tuple[Mark | None, ...]:
        return tuple(map(mark, self._files))

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in every handshake, whether the client names a host or not."""
        connection.context = self._current
