"""What the supervisor tells a frontend at its start."""

from transport.lifetime import ProcessArgs


class FrontendArgs(ProcessArgs, frozen=True, kw_only=True):
    """`port` 0 takes a free port (reported as the fact `port`). `created`: UNIX seconds shown by /v1/models. `body_limit` is in bytes.

    `peers`: names of other frontends on the same port; the kernel deals the connections out. `access_log`: a file to append to, or "" for the open
    descriptor `access_fd`; None for no such log. `log_format`: see `frontend.access_line`. `otlp_endpoint`: where spans go.
    """

    host: str
    port: int
    model_name: str
    tokenizers: list[str]
    created: int
    body_limit: int = 32 << 20
    peers: tuple[str, ...] = ()
    access_log: str | None = None
    access_fd: int = -1
    log_format: str = "json"
    otlp_endpoint: str | None = None
