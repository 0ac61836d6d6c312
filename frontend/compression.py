"""Content-Encoding of request bodies: which ones are taken, and decoding within a bound."""

import zlib

from frontend.errors import ApiError, invalid, too_large

IDENTITY = "identity"
_GZIP, _ZLIB, _RAW = 31, 15, -15
_ZLIB_METHOD = 8
_ENCODINGS = {"": IDENTITY, IDENTITY: IDENTITY, "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
"""By their names; x-gzip is another one of gzip (RFC 9110, 8.4.1.3)."""


def content_encoding(headers: list[str]) -> str:
    """The one encoding that these Content-Encoding headers name, identity without any. Raises ApiError 415 for what is not decoded here."""
    name = ", ".join(headers).strip().lower()
    if name not in _ENCODINGS:
        raise ApiError(415, "unsupported_encoding", f"Content-Encoding {name[:64]!r} is not supported; use gzip, deflate or none.")
    return _ENCODINGS[name]


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` decoded from gzip or deflate (in the zlib wrapper or bare). Raises ApiError: 413 above `limit` bytes, 400 if it does not decode."""
    stream = zlib.decompressobj(_GZIP if encoding == "gzip" else _deflate_bits(body))
    try:
        text = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise _undecodable(encoding) from error
    if len(text) > limit:
        raise too_large(limit)
    if not stream.eof or stream.unused_data:
        raise _undecodable(encoding)
    return text


def _deflate_bits(body: bytes) -> int:
    return _ZLIB if body[:1] and body[0] & 15 == _ZLIB_METHOD else _RAW


def _undecodable(encoding: str) -> ApiError:
    return invalid(f"The request body is not one complete {encoding} stream, as its Content-Encoding says.", code="invalid_encoding")
