"""Which processes a cluster has, and what each is told."""

from typing import Any

import msgspec

from messages.cluster import SCHEDULER_NAME
from transport.lifetime import ProcessArgs
from transport.security import Security

# Stages of an ordered shutdown: a stage is stopped when the one before has ended.
FRONTENDS, TOKENIZERS, SCHEDULER, WORKERS = range(4)
WORKER_NAME = "worker0"
MOST_HELD = 1024
"""Sequences that a frontend holds, or its share of the line if that is less."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One process: `python -m <package>` with `args` (incarnation and death pipe are filled in at each start). It inherits `descriptors`."""

    package: str
    args: ProcessArgs
    stage: int
    descriptors: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.args.name


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `cluster start` was asked for, checked: `model_path` exists and `port` was free. `named`: the model was given a name.

    Sizes in tokens, times in seconds unless named otherwise.
    """

    model_path: str
    model_name: str
    named: bool = False
    host: str = "127.0.0.1"
    port: int
    device: str = "cpu"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    weights: str = "auto"
    deterministic: bool = False
    threads: int = 0
    kv_tokens: int = 0
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    max_slots: int = 64
    max_step_tokens: int = 512
    chunk_tokens: int = 128
    max_context: int | None = None
    max_queue: int = 1024
    max_queue_tokens: int = 4_000_000
    max_live_tokens: int = 0
    max_queue_seconds: float = 0.0
    default_timeout: float | None = None
    max_timeout: float | None = None
    run_ahead: int = 2
    prefix_cache: bool = True
    target_itl: float | None = None
    record: str | None = None
    record_tokens: bool = False
    trace: str | None = None
    access_log: str | None = None
    log_format: str = "json"
    otlp_endpoint: str | None = None
    journal: str | None = None
    chat_template: str | None = None
    generation_config: bool = True
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    dummy_weights: bool = False
    model_shape: str = ""
    tokenizers: int = 1
    frontends: int = 1
    log_level: str = "info"
    startup_timeout: float = 600.0
    hang_timeout: float = 60.0
    grace: float = 25.0
    created: int = 0
    security: Security = Security()

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the cluster."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        scheme = "http" if self.security.tls_cert is None else "https"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"


def cluster_specs(options: ClusterOptions, run_dir: str, access_fd: int = -1, journal_fd: int = -1) -> list[ProcessSpec]:
    """The table of processes of one cluster, in the order they are started. `access_fd`: where an access log without a file goes.

    `journal_fd`: the lock of the journal, which its keeper, the first frontend, holds for as long as it lives.
    """
    from frontend.args import FrontendArgs
    from scheduler.args import SchedulerArgs
    from tokenizer_proc.args import TokenizerArgs
    from worker.args import WorkerArgs

    frontends = [f"frontend{index}" for index in range(options.frontends)]
    tokenizers = [f"tokenizer{index}" for index in range(options.tokenizers)]

    def common(name: str) -> dict[str, Any]:
        return {"name": name, "incarnation": 0, "run_dir": run_dir, "log_level": options.log_level, "trace": options.trace}

    place: dict[str, Any] = {"host": options.host, "port": options.port, "model_name": options.model_name, "created": options.created}
    place |= {"security": options.security, "most_held": max(1, min(MOST_HELD, options.max_queue // options.frontends))}
    place |= {"default_timeout": options.default_timeout, "max_timeout": options.max_timeout}
    place |= {"access_log": options.access_log, "access_fd": access_fd, "log_format": options.log_format, "otlp_endpoint": options.otlp_endpoint}
    keeper = frontends[0] if options.journal is not None else ""
    front = [
        FrontendArgs(
            **common(name),
            **place,
            tokenizers=tokenizers,
            peers=tuple(other for other in frontends if other != name),
            keeper=keeper,
            journal=options.journal if name == keeper else None,
        )
        for name in frontends
    ]
    inherited = {name: tuple(fd for fd in (access_fd, journal_fd if name == keeper else -1) if fd >= 0) for name in frontends}
    text = [
        TokenizerArgs(
            **common(name),
            model=options.model_path,
            model_shape=options.model_shape,
            frontends=frontends,
            chat_template=options.chat_template,
            generation_config=options.generation_config,
            tool_parser=options.tool_parser,
            reasoning_parser=options.reasoning_parser,
        )
        for name in tokenizers
    ]
    scheduler = SchedulerArgs(
        **common(SCHEDULER_NAME),
        tokenizers=tokenizers,
        max_context=options.max_context,
        chunk_tokens=options.chunk_tokens,
        max_queue=options.max_queue,
        max_queue_tokens=options.max_queue_tokens,
        max_live_tokens=options.max_live_tokens,
        max_queue_seconds=options.max_queue_seconds,
        run_ahead=options.run_ahead,
        prefix_cache=options.prefix_cache,
        target_itl=options.target_itl,
        step_deadline=options.hang_timeout,
        record=options.record,
        record_tokens=options.record_tokens,
        self_check=options.log_level == "debug",
    )
    worker = WorkerArgs(
        **common(WORKER_NAME),
        model=options.model_path,
        device=options.device,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        weights=options.weights,
        deterministic=options.deterministic,
        threads=options.threads,
        kv_tokens=options.kv_tokens,
        gpu_memory_utilization=options.gpu_memory_utilization,
        block_size=options.block_size,
        max_slots=options.max_slots,
        max_step_tokens=options.max_step_tokens,
        max_context=options.max_context,
        dummy_weights=options.dummy_weights,
        model_shape=options.model_shape,
    )
    return [
        *(ProcessSpec(package="frontend", args=args, stage=FRONTENDS, descriptors=inherited[args.name]) for args in front),
        ProcessSpec(package="worker", args=worker, stage=WORKERS),
        *(ProcessSpec(package="tokenizer_proc", args=args, stage=TOKENIZERS) for args in text),
        ProcessSpec(package="scheduler", args=scheduler, stage=SCHEDULER),
    ]
