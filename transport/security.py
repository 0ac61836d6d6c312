"""Who may ask and how much: what the launcher has checked and frontends go by."""

import msgspec


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """`api_keys`: a file of keys (transport.key_file), read again when it changes; `key_lines`: further keys as lines of such a file. With either,
    requests need a key. `tls_cert`, `tls_key`: PEM files, read again too. `cors_origins`: pages that may read answers, "*" for all.

    `max_connections`: of each frontend; `max_unsent_bytes`: how much of a stream may wait for its client.
    """

    api_keys: str | None = None
    key_lines: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_connections: int = 4096
    max_unsent_bytes: int = 1 << 20

    @property
    def keyed(self) -> bool:
        """Whether requests need a key."""
        return self.api_keys is not None or bool(self.key_lines)
