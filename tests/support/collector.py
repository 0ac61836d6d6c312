"""A collector of OpenTelemetry spans over HTTP, in this process."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span:
    """One span, with plain values. Times in nanoseconds."""

    def __init__(self, told: Any, resource: dict[str, Any]) -> None:
        self.name: str = told.name
        self.trace: str = told.trace_id.hex()
        self.id: str = told.span_id.hex()
        self.parent: str = told.parent_span_id.hex()
        self.begin: int = told.start_time_unix_nano
        self.end: int = told.end_time_unix_nano
        self.error: bool = told.status.code == 2
        self.attributes = _plain(told.attributes)
        self.resource = resource


def _plain(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(told: Any) -> Any:
    kind = told.WhichOneof("value")
    return [_value(each) for each in told.array_value.values] if kind == "array_value" else getattr(told, kind)


class Collector:
    """`spans` in the order they came. `url` is what --otlp-endpoint takes."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.spans: list[Span] = []
        self.url = f"http://127.0.0.1:{server.server_address[1]}"

    def wait(self, count: int, name: str = "") -> list[Span]:
        """So many spans whose name begins so, or more."""
        limit = time.monotonic() + 30
        while len(found := [span for span in self.spans if span.name.startswith(name)]) < count:
            assert time.monotonic() < limit, [span.name for span in self.spans]
            time.sleep(0.02)
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Until the end of the block, where the port is closed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                known = _plain(resource.resource.attributes)
                collector.spans.extend(Span(span, known) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
