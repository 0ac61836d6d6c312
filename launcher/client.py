"""A small HTTP client for the command line: JSON requests and server-sent events, on the standard library."""

import http.client
import json
import ssl
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

from launcher.errors import LauncherError, program
from launcher.rundir import Cluster, choose_cluster
from launcher.security import key_headers
from transport.tls import TlsError, pinned_context

Json = dict[str, Any]
CONNECT_SECONDS = 10.0


class ServerError(LauncherError):
    """The server refused or broke off a request. `status` is the HTTP status (0 for an error inside a stream), `kind` its error code."""

    def __init__(self, message: str, status: int, kind: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def find_server(url: str | None, port: int | None, patience: float | None = None) -> "Client":
    """The server at `url`, or the cluster running here. `patience`: see Client. Raises LauncherError when there is none."""
    return Client(url.rstrip("/").removesuffix("/v1"), patience) if url is not None else own_cluster(choose_cluster(port), patience)


def own_cluster(cluster: Cluster, patience: float | None = None) -> "Client":
    """A cluster of this user: with the key and the certificate that lie in its run directory. Raises LauncherError."""
    try:
        tls = None if cluster.info.tls_cert is None else pinned_context(cluster.info.tls_cert)
    except TlsError as error:
        raise LauncherError(str(error)) from error
    return Client(cluster.info.url, patience, cluster.key(), tls)


class Client:
    """Requests to one server. `key` is sent as a bearer token, $PAGEWIRE_API_KEY without one. `patience`: seconds to wait for an answer, or any.

    `tls`: whose certificates are trusted; None: the system's.
    """

    def __init__(self, url: str, patience: float | None = None, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise LauncherError(f"{url} is not an http:// or https:// address")
        self._url = url
        self._patience = patience
        self._headers = {"Content-Type": "application/json", **key_headers(key)}
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")

    def model(self) -> str:
        """The name of the (first) model the server offers."""
        answer = self.get("/v1/models")
        try:
            return str(answer["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise LauncherError(f"{self._url} names no model at /v1/models") from error

    def get(self, path: str) -> Json:
        return self._json("GET", path, None)

    def post(self, path: str, body: Json) -> Json:
        return self._json("POST", path, body)

    def delete(self, path: str) -> Json:
        return self._json("DELETE", path, None)

    def _json(self, method: str, path: str, body: Json | None) -> Json:
        connection, answer = self._send(method, path, body)
        try:
            document: Json = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise LauncherError(f"the connection to {self._url} broke off: {error}") from error
        except ValueError as error:
            raise LauncherError(f"{self._url}{path} did not answer with JSON; is a Pagewire server there?") from error
        finally:
            connection.close()
        return document

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        """POST with stream=true and give each event. Closing the generator closes the connection, which cancels the request."""
        connection, answer = self._send("POST", path, {**body, "stream": True})
        try:
            while line := answer.readline():
                data = line.strip().removeprefix(b"data:").strip()
                if not line.startswith(b"data:"):
                    continue
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise _error(event, 0)
                yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LauncherError(f"the connection to {self._url} broke off: {error}") from error
        finally:
            connection.close()
        raise LauncherError(f"{self._url} ended the answer early")

    def events(self, path: str) -> Generator[tuple[str, Any], None, None]:
        """GET a stream of named events and give each name with its data, for as long as the server sends any."""
        connection, answer = self._send("GET", path, None)
        name = ""
        try:
            while line := answer.readline():
                field, _, value = line.strip().partition(b": ")
                if field == b"event":
                    name = value.decode()
                elif field == b"data":
                    yield name, json.loads(value)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LauncherError(f"the connection to {self._url} broke off: {error}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls)

    def _send(self, method: str, path: str, body: Json | None) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection()
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(self._patience)  # a long prompt may take its time
            connection.request(method, self._prefix + path, None if body is None else json.dumps(body).encode(), self._headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise LauncherError(f"cannot reach {self._url}: {error}. Is a cluster running? {program()} cluster status") from error
        if answer.status >= 400:
            text = answer.read()
            connection.close()
            try:
                document = json.loads(text)
            except ValueError:
                document = None
            raise _error(document, answer.status)
        return connection, answer


def _error(document: Any, status: int) -> ServerError:
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return ServerError(f"the server answered with status {status}", status, "")
    return ServerError(str(error.get("message") or "the server failed"), status, str(error.get("code") or ""))


def sampling_fields(args: Any) -> Json:
    """The request fields of the sampling options that were given on the command line."""
    names = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop"]
    return {name: value for name in names if (value := getattr(args, name)) is not None}
