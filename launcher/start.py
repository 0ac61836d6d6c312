"""`cluster start`: find the model, check the port, make the run directory, supervise here or in a detached process."""

import argparse
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from checkpoint.shapes import SHAPES
from launcher import models
from launcher.display import Event, PipeAudience, TerminalAudience, status_key
from launcher.errors import APP_ROOT, LauncherError
from launcher.journal import journal_from, journal_lock
from launcher.machine import cores
from launcher.new_file import new_file
from launcher.options import check_formats
from launcher.progress import StatusLine
from launcher.rundir import LOG, ClusterInfo, RunDir, belongs_to_cluster
from launcher.security import security_from, with_own_key
from launcher.serving import Offers
from launcher.sizes import sizes_from
from launcher.specs import ClusterOptions, cluster_specs
from launcher.watching import access_descriptor, watching_from

DETACHED_VARIABLE = "PAGEWIRE_DETACHED"


class DetachedStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the detached supervisor inherits: its options, its locked run directory, and the pipe on which it tells how it goes."""

    options: ClusterOptions
    folder: str
    lock_fd: int
    report_fd: int
    program: str


def run(args: argparse.Namespace) -> int:
    """Entry point of `cluster start`; returns the exit code."""
    options = options_from(args)
    run_dir = RunDir.create(options.port)
    return _start_detached(options, run_dir) if args.detach else serve(options, run_dir)


def options_from(args: argparse.Namespace) -> ClusterOptions:
    """Checked options; fetches the model when it is a catalogue name. Raises LauncherError."""
    sizes = sizes_from(args)
    check_formats(args)
    template = template_from(args.chat_template)
    record = _new_recording(args.record, args.record_tokens)
    trace = None if args.trace is None else new_file("--trace", args.trace, "a trace")
    security = security_from(args)
    watching = watching_from(args)
    journal = journal_from(args.journal)
    port = free_port(args.host, args.port)
    path, name = _model(args)
    return ClusterOptions(
        model_path=path,
        model_shape=args.model_shape,
        model_name=args.served_model_name or name,
        named=args.served_model_name is not None,
        host=args.host,
        port=port,
        device=args.device,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype,
        weights=args.weights,
        deterministic=args.deterministic,
        threads=threads_from(args.threads),
        kv_tokens=args.kv_tokens,
        gpu_memory_utilization=args.gpu_memory_utilization,
        block_size=args.block_size,
        max_slots=sizes.max_slots,
        max_step_tokens=sizes.max_step_tokens,
        chunk_tokens=sizes.chunk_tokens,
        max_context=args.max_context,
        max_queue=args.max_queue,
        max_queue_tokens=args.max_queue_tokens,
        max_live_tokens=args.max_live_tokens,
        max_queue_seconds=args.max_queue_seconds,
        default_timeout=_default_timeout(args),
        max_timeout=args.max_timeout,
        run_ahead=sizes.run_ahead,
        prefix_cache=args.prefix_cache == "on",
        target_itl=args.target_itl / 1000 if args.target_itl is not None else None,
        record=record,
        record_tokens=args.record_tokens,
        trace=trace,
        journal=journal,
        chat_template=template,
        generation_config=args.generation_config == "on",
        tool_parser=args.tool_parser,
        reasoning_parser=args.reasoning_parser,
        dummy_weights=args.dummy_weights,
        tokenizers=args.tokenizers,
        frontends=args.frontends,
        log_level=args.log_level,
        startup_timeout=args.startup_timeout,
        hang_timeout=args.hang_timeout,
        grace=args.grace,
        created=int(time.time()),
        security=security,
        **watching,
    )


def template_from(name: str | None) -> str | None:
    """The whole path of the file of a chat template. Raises LauncherError."""
    if name is not None and not Path(name).is_file():
        raise LauncherError(f"--chat-template: there is no file {name}", 2)
    return None if name is None else str(Path(name).resolve())


def _model(args: argparse.Namespace) -> tuple[str, str]:
    """Path and name of what is served; of a shape only the name. Fetches a catalogue's model. Raises LauncherError."""
    if args.model_shape:
        if args.model_shape not in SHAPES or not args.dummy_weights:
            raise LauncherError(f"--model-shape is one of {', '.join(SHAPES)}, with --dummy-weights", 2)
        return "", args.model_shape
    found = models.resolve(args.model)
    return str(found.path if found.path is not None else models.pull(args.model)), found.name


def _new_recording(name: str | None, tokens: bool) -> str | None:
    """The whole path of a file that can be made; raises LauncherError."""
    if name is None:
        if tokens:
            raise LauncherError("--record-tokens says what a recording holds: name its file with --record FILE", 2)
        return None
    return new_file("--record", name, "a recording")


def _default_timeout(args: argparse.Namespace) -> float | None:
    if args.default_timeout is not None and args.max_timeout is not None and args.default_timeout > args.max_timeout:
        raise LauncherError("--default-timeout must not be above --max-timeout", 2)
    default: float | None = args.default_timeout
    return default


def threads_from(asked: int) -> int:
    """As many as asked for, but not more than there are cores for this process."""
    most = cores()
    if asked <= most:
        return asked
    print(f"warning: --threads {asked} is over the {most} cores of this process; using {most}", file=sys.stderr)
    return most


def free_port(host: str, port: int) -> int:
    """`port` if nobody listens there, any free one for 0, which is kept. Raises LauncherError naming the cluster that has it."""
    try:
        where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(where[0], where[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where[4])
            probe.listen(1)
            found = probe.getsockname()
        if port == 0:
            _keep(host, found[1])
        return int(found[1])
    except socket.gaierror as error:
        raise LauncherError(f"--host {host}: {error.strerror}", 2) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LauncherError(_port_taken(host, port)) from error
        raise LauncherError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _keep(host: str, port: int) -> None:
    """Until this process ends the system gives this port to nobody who asks for any free one. Who names it, as a frontend does, may listen there."""
    if sys.platform == "linux":
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        keeper = socket.socket(family)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            keeper.bind(place)
        keeper.detach()


def _port_taken(host: str, port: int) -> str:
    return belongs_to_cluster(port) or f"port {port} on {host} is used by another program. Choose another with --port (0 takes any free one)"


def serve(options: ClusterOptions, run_dir: RunDir, report_fd: int = -1) -> int:
    """Supervise a cluster in this process until it ends; the run directory goes with it. Returns the exit code."""
    import setproctitle

    from launcher.supervisor import Supervisor
    from launcher.tracing import traced

    setproctitle.setproctitle(f"pagewire supervisor {options.port}")
    audience = PipeAudience(options, report_fd) if report_fd >= 0 else TerminalAudience(options)
    _keep(options.host, options.port)
    code = 1
    try:
        key, security = with_own_key(options.security)
        run_dir.write_key(key)
        info = _info(options)
        run_dir.write_info(info)
        timeouts = (options.startup_timeout, options.hang_timeout, options.grace)
        with traced(options.trace) as trace, access_descriptor(options.access_log) as access, journal_lock(options.journal) as journal:
            started = msgspec.structs.replace(options, trace=trace, security=security)
            offers = Offers(
                started,
                lambda chosen: cluster_specs(chosen, str(run_dir.folder), access, journal),
                lambda adopted: run_dir.write_info(msgspec.structs.replace(info, model=adopted.model_name)),
            )
            code = Supervisor(offers, run_dir.folder, audience, *timeouts).run()
    finally:
        if code != 0:
            run_dir.keep_log(options.port)
        run_dir.keep_poison(options.port)
        run_dir.remove()
        audience.close()
    return code


def _info(options: ClusterOptions) -> ClusterInfo:
    where: dict[str, Any] = {"host": options.host, "port": options.port, "url": options.url, "tls_cert": options.security.tls_cert}
    return ClusterInfo(pid=os.getpid(), model=options.model_name, started=time.time(), **where)


def _start_detached(options: ClusterOptions, run_dir: RunDir) -> int:
    report_read, report_write = os.pipe()
    start = DetachedStart(options=options, folder=str(run_dir.folder), lock_fd=run_dir.lock_fd, report_fd=report_write, program=sys.argv[0])
    environment = os.environ | {"PYTHONPATH": str(APP_ROOT), DETACHED_VARIABLE: msgspec.json.encode(start).decode()}
    log = run_dir.folder / LOG
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.detached"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            pass_fds=(run_dir.lock_fd, report_write),
            start_new_session=True,
        )
    os.close(report_write)
    os.close(run_dir.lock_fd)
    for signum in (signal.SIGTERM, signal.SIGHUP):  # the same as Ctrl-C: what was begun is ended
        signal.signal(signum, signal.default_int_handler)
    try:
        outcome = _follow(report_read)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        return 130
    if outcome is not None and outcome.kind == "ready":
        print(f"{outcome.text}\n  log:         {log}", flush=True)
        return 0
    return _report_failure(process, outcome, run_dir, options.port)


def _follow(report_read: int) -> Event | None:
    """Show a detached start until it is ready or has failed; the last event, or None when the supervisor died without a word."""
    line = StatusLine()
    outcome = None
    with open(report_read, "rb") as events:
        for text in events:
            event = msgspec.json.decode(text, type=Event)
            if event.kind == "status":
                line.show(event.text, status_key(event.text))
            else:
                outcome = event
                break
    line.clear()
    return outcome


def _report_failure(process: "subprocess.Popen[bytes]", outcome: Event | None, run_dir: RunDir, port: int) -> int:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    text = outcome.text if outcome is not None else "the supervisor ended without saying why"
    kept = run_dir.folder.parent / f"failed-{port}.log"
    where = next((path for path in (kept, run_dir.folder / LOG) if path.is_file()), None)
    print((f"the whole log: {where}\n" if where is not None else "") + f"error: {text}", file=sys.stderr)
    return 1
