"""What the supervisor tells a frontend at its start."""

from transport.lifetime import ProcessArgs
from transport.security import Security


class FrontendArgs(ProcessArgs, frozen=True, kw_only=True):
    """`port` 0 takes a free port (reported as the fact `port`). `created`: UNIX seconds shown by /v1/models. `body_limit` is in bytes.

    `security`: keys, TLS, and what clients may take. `head_seconds` and `body_seconds`: how long the headers and the body of a request may take to
    arrive; `idle_seconds`: how long a connection may be without a request, and `stall_seconds` how long a client may read nothing of what was written
    for it. `default_timeout` and `max_timeout`: seconds that requests may take. `refresh_seconds`: between two looks at the files of keys and TLS.

    `peers`: names of other frontends on the same port; the kernel deals the connections out. `access_log`: a file to append to, or "" for the open
    descriptor `access_fd`; None for no such log. `log_format`: see `frontend.access_line`. `otlp_endpoint`: where spans go.

    `most_held`: sequences that wait here at once while there is no way to a scheduler, or another model is loaded.

    `keeper`: which frontend has the journal of background responses; "" for none. `journal`: its file, told to that one alone.
    """

    host: str
    port: int
    model_name: str
    tokenizers: list[str]
    created: int
    body_limit: int = 32 << 20
    peers: tuple[str, ...] = ()
    security: Security = Security()
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    idle_seconds: float = 75.0
    stall_seconds: float = 60.0
    default_timeout: float | None = None
    max_timeout: float | None = None
    refresh_seconds: float = 1.0
    access_log: str | None = None
    access_fd: int = -1
    log_format: str = "json"
    otlp_endpoint: str | None = None
    most_held: int = 1024
    keeper: str = ""
    journal: str | None = None
