"""Content-Encoding of request bodies: what decodes, what is refused, and the bound on the size."""

import gzip
import zlib

import pytest

from frontend.compression import content_encoding, inflate
from frontend.errors import ApiError

TEXT = b'{"prompt": "A"}' * 10


def bare(text: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(text) + stream.flush()


@pytest.mark.parametrize(
    ("headers", "encoding"),
    [([], "identity"), ([""], "identity"), (["identity"], "identity"), (["GZip "], "gzip"), (["x-gzip"], "gzip"), (["deflate"], "deflate")],
)
def test_known_encodings(headers: list[str], encoding: str) -> None:
    assert content_encoding(headers) == encoding


@pytest.mark.parametrize("headers", [["br"], ["zstd"], ["gzip, gzip"], ["gzip", "deflate"], ["x" * 10_000], ["gzip;q=1"]])
def test_unknown_encodings_are_415(headers: list[str]) -> None:
    with pytest.raises(ApiError, match="not supported") as caught:
        content_encoding(headers)
    assert caught.value.status == 415
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(("body", "encoding"), [(gzip.compress(TEXT), "gzip"), (zlib.compress(TEXT), "deflate"), (bare(TEXT), "deflate")])
def test_decodes_up_to_the_limit(body: bytes, encoding: str) -> None:
    assert inflate(body, encoding, len(TEXT)) == TEXT
    with pytest.raises(ApiError) as caught:
        inflate(body, encoding, len(TEXT) - 1)
    assert caught.value.status == 413
    for bad in (b"", b"{}", body[:-1], body[: len(body) // 2], body + b"x", body + body):
        with pytest.raises(ApiError) as caught:
            inflate(bad, encoding, 1 << 20)
        assert (caught.value.status, caught.value.code) == (400, "invalid_encoding")


def test_a_bomb_is_a_413() -> None:
    with pytest.raises(ApiError) as caught:
        inflate(gzip.compress(bytes(64 << 20), 1), "gzip", 1 << 20)
    assert caught.value.status == 413
