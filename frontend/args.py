"""What the supervisor tells a frontend at its start."""

from transport.lifetime import ProcessArgs


class FrontendArgs(ProcessArgs, frozen=True, kw_only=True):
    """`port` 0 takes a free port (reported as the fact `port`). `created`: UNIX seconds shown by /v1/models. `body_limit` is in bytes.

    `peers`: names of other frontends on the same port; the kernel deals the connections out.
    """

    host: str
    port: int
    model_name: str
    tokenizers: list[str]
    created: int
    body_limit: int = 32 << 20
    peers: tuple[str, ...] = ()
