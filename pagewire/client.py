"""JSON over HTTP to a frontend with the standard library alone: one request, or the events of a stream."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any


class PagewireError(Exception):
    """The server refused or failed a request. `status` is the HTTP status, `code` its short word, `param` the field at fault."""

    def __init__(self, status: int, code: str | None, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def get(url: str, key: str | None = None) -> Any:
    """The JSON answer of GET; `key`: the API key to show. Raises PagewireError."""
    with _open(urllib.request.Request(url), key) as response:
        return json.load(response)


def post(url: str, body: dict[str, Any], key: str | None = None) -> Any:
    """The JSON answer of POST; `key` as for `get`. Raises PagewireError."""
    with _open(_request(url, body), key) as response:
        return json.load(response)


def events(url: str, body: dict[str, Any], key: str | None = None) -> Iterator[Any]:
    """The JSON events of a streamed POST up to its [DONE]. Closing the iterator cancels the request. Raises PagewireError."""
    with _open(_request(url, body), key) as response:
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


def _request(url: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _open(request: urllib.request.Request, key: str | None) -> HTTPResponse:
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the cluster is on this machine: no proxy
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


def _error(status: int, answer: Any) -> PagewireError:
    detail = answer.get("error") or {}
    return PagewireError(int(detail.get("status", status)), detail.get("code"), detail.get("message", "no reason given"), detail.get("param"))
