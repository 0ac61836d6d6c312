"""The listening port: every connection is a `Connection`, and when it is left nobody who is connected already is turned away."""

import asyncio
import contextlib
import os
import socket
from typing import Any

from aiohttp import web
from aiohttp.web_server import Server

from frontend.args import FrontendArgs
from frontend.certificate import Certificate
from frontend.connections import Connections
from frontend.protocol import Connection

MAX_HEADER_BYTES = 16 << 10
BACKLOG = 1024
HANDSHAKE_SECONDS = 10.0
_CONNECTION: dict[str, Any] = {
    "access_log": None,
    "auto_decompress": False,  # frontend.compression does it, with answers of its own
    "max_line_size": MAX_HEADER_BYTES,
    "max_field_size": MAX_HEADER_BYTES,
}


class Port:
    """`runner` has been set up. aiohttp's own sites know no other protocol than theirs."""

    def __init__(self, args: FrontendArgs, runner: web.AppRunner, connections: Connections, certificate: Certificate | None) -> None:
        if runner.server is None:
            raise RuntimeError("the runner has not been set up")
        self._args = args
        self._server: Server = runner.server
        self._connections = connections
        self._tls: dict[str, Any] = {}
        if certificate is not None:
            self._tls = {"ssl": certificate.context, "ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": HANDSHAKE_SECONDS}

    def _connection(self) -> Connection:
        return Connection(self._server, self._connections, loop=asyncio.get_running_loop(), keepalive_timeout=self._args.idle_seconds, **_CONNECTION)

    async def listen(self) -> int:
        """The number of the port. Raises OSError when it cannot be bound."""
        where: dict[str, Any] = {"host": self._args.host, "port": self._args.port, "backlog": BACKLOG, "reuse_port": bool(self._args.peers) or None}
        self._listener: asyncio.Server = await asyncio.get_running_loop().create_server(self._connection, **where, **self._tls)
        return int(self._listener.sockets[0].getsockname()[1])

    async def leave(self) -> None:
        """Take in whom the kernel has connected meanwhile, for they would be reset, and close at once."""
        mine = [socket.socket(fileno=os.dup(listening.fileno())) for listening in self._listener.sockets]
        self._listener.close()
        waiting: list[socket.socket] = []
        for listening in mine:
            with contextlib.suppress(OSError):  # nobody is left, or no descriptor
                while True:
                    waiting.append(listening.accept()[0])
            listening.close()
        loop = asyncio.get_running_loop()
        for connected in waiting:
            connected.setblocking(False)
            with contextlib.suppress(OSError):  # it has gone
                await loop.connect_accepted_socket(self._connection, connected, **self._tls)
