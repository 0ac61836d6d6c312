"""JSON over HTTP to a frontend with the standard library alone: one request, or the events of a stream."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPResponse
from typing import Any


class PagewireError(Exception):
    """The server refused or failed a request. `status` is the HTTP status, `code` its short word, `param` the field at fault."""

    def __init__(self, status: int, code: str | None, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True)
class Server:
    """Where requests go: `url` without /v1. `key`: the API key to show.

    `certificate`: the file of the only one that is trusted, under any name, in place of the system's; it is read for each request, as the server
    takes a new one when the file changes.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    certificate: str | None = None

    def get(self, path: str) -> Any:
        """The JSON answer of GET. Raises PagewireError."""
        with self._open(urllib.request.Request(self.url + path)) as response:
            return json.load(response)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer of POST. Raises PagewireError."""
        with self._open(_request(self.url + path, body)) as response:
            return json.load(response)

    def events(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The JSON events of a streamed POST up to its [DONE]. Closing the iterator cancels the request. Raises PagewireError."""
        with self._open(_request(self.url + path, body)) as response:
            for line in response:
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data:"):
                    event = json.loads(data)
                    if "error" in event:
                        raise _error(500, event)
                    yield event
        raise PagewireError(502, "stream_cut", "the stream ended before its [DONE]")

    def _open(self, request: urllib.request.Request) -> HTTPResponse:
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]  # the cluster is on this machine: no proxy
        if self.certificate is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_pinned(self.certificate)))
        opener = urllib.request.build_opener(*handlers)
        try:
            response: HTTPResponse = opener.open(request)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            try:
                answer = json.loads(text)
            except ValueError:
                answer = {"error": {"message": text.decode(errors="replace")}}
            raise _error(error.code, answer) from error
        return response


def _request(url: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _pinned(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context


def _error(status: int, answer: Any) -> PagewireError:
    detail = answer.get("error") or {}
    return PagewireError(int(detail.get("status", status)), detail.get("code"), detail.get("message", "no reason given"), detail.get("param"))
