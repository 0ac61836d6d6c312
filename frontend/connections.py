"""How many connections a frontend holds, and how long a client may take over the head of a request."""

import asyncio
import logging
import resource
import socket
import struct

log = logging.getLogger(__name__)

SPARE_DESCRIPTORS = 128
"""For everything that is no connection: sockets of the cluster, the trace, files that are read again."""


class Connections:
    """The open ones. `limit`: at most so many. `head_seconds`: from the first byte of a request to the end of its headers.
    `stall_seconds`: how long a client may read nothing of what waits for it; `stalled` counts those that did not."""

    def __init__(self, limit: int, head_seconds: float, stall_seconds: float) -> None:
        self.limit = limit
        self.head_seconds = head_seconds
        self.stall_seconds = stall_seconds
        self.stalled = 0
        self._open = 0

    def enter(self) -> bool:
        """One more; False when there are too many, and then it is not counted."""
        if self._open >= self.limit:
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        self._open -= 1


def cut(transport: asyncio.WriteTransport) -> None:
    """End a connection at once, with all that waits for its client here and in the system (a reset)."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def room_for(connections: int) -> int:
    """How many of so many connections this process can have, after raising its limit of descriptors as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(1, soft - SPARE_DESCRIPTORS)
    log.warning("%d connections at most instead of %d: this process may open %d files (ulimit -n)", room, connections, soft)
    return room
