"""What the launcher shows: progress lines, the ready text, the status table, and how a process ended."""

import io
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.child import describe_exit
from launcher.cli import build_parser
from launcher.display import TerminalAudience, ready_text, status_key, status_text
from launcher.errors import LauncherError
from launcher.progress import ByteBar, StatusLine
from launcher.rundir import Cluster, ClusterInfo
from launcher.specs import ClusterOptions, cluster_specs
from launcher.start import free_port, options_from
from launcher.status import duration, status_document, status_table
from messages.cluster import SAMPLE, ClusterState, ProcessState
from scheduler.args import SchedulerArgs
from transport.security import Security


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def process(name: str, phase: str = "ready", **rest: object) -> ProcessState:
    return ProcessState(name=name, incarnation=1, pid=7, phase=phase, **rest)  # type: ignore[arg-type]


def state(*processes: ProcessState, ready: bool = True, reason: str = "") -> ClusterState:
    return ClusterState(ready=ready, phase="ready" if ready else "loading", reason=reason, model="m", started=0.0, processes=list(processes))


def test_a_plain_stream_gets_a_line_per_change_of_the_key() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    for percent in (1, 2, 2, 3):
        text = f"loading weights {percent} %"
        line.show(text, status_key(text))
    line.show("allocating")
    line.line("a log line")
    line.clear()
    assert stream.getvalue() == "loading weights 1 %\nallocating\na log line\n"


def test_a_terminal_line_is_rewritten_and_log_lines_pass_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    line = StatusLine(stream)
    line.show("loading 1 %")
    line.show("loading 1 %")
    line.line("a log line")
    line.clear()
    assert stream.getvalue() == "\r\x1b[Kloading 1 %\r\x1b[Ka log line\n\r\x1b[Kloading 1 %\r\x1b[K"


def test_a_stream_that_is_closed_does_not_matter() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    stream.close()
    line.line("lost")
    line.show("lost too")


def test_the_bar_never_passes_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    bar = ByteBar(StatusLine(stream), "fetching", 4 << 20)
    bar.update(1 << 20)
    bar.update(9 << 20)
    text = stream.getvalue()
    assert "[######------------------]  25%  1.0 of 4.0 MiB" in text
    assert "[########################] 100%  4.0 of 4.0 MiB" in text


def test_the_start_names_what_is_still_missing() -> None:
    loading = process("worker0", "loading", detail="loading weights 43 %", progress=0.43)
    assert status_text(state(process("frontend0"), process("scheduler", "loading"), loading)) == (
        "starting: worker0 loading weights 43 %, scheduler loading"
    )


def test_ready_text_fits_the_model_and_the_shell() -> None:
    options = ClusterOptions(model_path="/m", model_name="it's", host="::", port=8001)
    small = ready_text(options, state(process("scheduler", facts={"context": 64, "wanted_context": 2048})))
    assert "context 64 tokens instead of 2048: the KV memory holds no more, see --kv-tokens)" in small
    chat = ready_text(options, state(process("scheduler", facts={"context": 64, "wanted_context": 64}), process("tokenizer0", facts={"chat": True})))
    assert "Pagewire is ready at http://[::1]:8001 (model it's, context 64 tokens)" in chat
    assert "curl http://[::1]:8001/v1/chat/completions" in chat
    assert "it'\\''s" in chat
    plain = ready_text(options, state(process("tokenizer0", facts={"chat": False})))
    assert "/v1/completions" in plain
    assert '"prompt"' in plain


def test_status_table() -> None:
    facts: dict[str, int | float | str] = {"blocks": 10, "block_size": 16, "slots": 4, "context": 64}
    gauges = {"slots_used": 1.0, "waiting": 2.0, "waiting_tokens": 9.0, "blocks_used": 3.0, "blocks_cached": 2.0}
    counters = {"prefix_queries": 12_000.0, "prefix_hits": 9_000.0, "evicted_blocks": 5.0, "preemptions": 3.0}
    numbers = {"facts": facts, "gauges": gauges, "counters": counters}
    scheduler = process("scheduler", "loading", detail="waiting for the worker", age=0.25, restarts=2, **numbers)
    info = ClusterInfo(pid=5, host="127.0.0.1", port=8000, url="http://127.0.0.1:8000", model="m", started=0.0)
    text = status_table(Cluster(Path("/nowhere"), info), state(scheduler, ready=False, reason="scheduler waiting for the worker"))
    assert "m at http://127.0.0.1:8000: loading (scheduler waiting for the worker)" in text
    assert "slots 1 of 4 in use, queue 2 (9 tokens), blocks 3 of 10 in use (16 tokens each), 2 cached, context 64 tokens" in text
    assert "prefix cache: 75% of 12,000 prompt tokens found, 5 blocks evicted; preemptions 3" in text
    assert "2         waiting for the worker" in text


def test_the_status_document_has_no_pid_for_the_dead_and_no_samples_of_metrics() -> None:
    info = ClusterInfo(pid=5, host="127.0.0.1", port=8000, url="http://127.0.0.1:8000", model="m", started=0.0)
    dead = ProcessState(name="worker0", incarnation=1, pid=0, phase="dead")
    front = process("scheduler", counters={"bad_frames": 1.0, SAMPLE + '["pagewire_x_total",{}]': 2.0})
    document = status_document(Cluster(Path("/nowhere"), info), state(front, dead, ready=False))
    assert document["processes"][0]["counters"] == {"bad_frames": 1.0}
    assert document["running"] is True
    assert [told["pid"] for told in document["processes"]] == [7, None]


def test_a_failure_is_shown_once_and_last(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.display.set_up_logging", lambda audience: None)
    audience = TerminalAudience(ClusterOptions(model_path="/m", model_name="m", port=8000))
    audience.failed("worker0 ended")
    audience.line("scheduler ends")
    audience.close()
    assert capsys.readouterr().err == "scheduler ends\nerror: worker0 ended\n"


@pytest.mark.parametrize(("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-63, "killed by signal 63")])
def test_how_a_process_ended(code: int, text: str) -> None:
    assert describe_exit(code) == text


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (42.9, "42 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_table_of_processes() -> None:
    options = ClusterOptions(model_path="/m", model_name="m", port=8000, tokenizers=2, max_context=99, chat_template="/t", max_queue=7, kv_tokens=640)
    specs = {spec.name: spec for spec in cluster_specs(options, "/run")}
    assert [(name, spec.package, spec.stage) for name, spec in specs.items()] == [
        ("frontend0", "frontend", 0),
        ("worker0", "worker", 3),
        ("tokenizer0", "tokenizer_proc", 1),
        ("tokenizer1", "tokenizer_proc", 1),
        ("scheduler", "scheduler", 2),
    ]
    assert {spec.args.run_dir for spec in specs.values()} == {"/run"}
    told = {name: {field: getattr(spec.args, field) for field in spec.args.__struct_fields__} for name, spec in specs.items()}
    assert told["frontend0"]["tokenizers"] == told["scheduler"]["tokenizers"] == ["tokenizer0", "tokenizer1"]
    assert told["tokenizer1"]["frontends"] == ["frontend0"]
    assert (told["tokenizer0"]["chat_template"], told["scheduler"]["max_queue"], told["worker0"]["kv_tokens"]) == ("/t", 7, 640)
    assert told["scheduler"]["max_context"] == told["worker0"]["max_context"] == 99


def scheduler_args(**options: Any) -> SchedulerArgs:
    specs = cluster_specs(ClusterOptions(model_path="/m", model_name="m", port=8000, **options), "/run")
    args = next(spec.args for spec in specs if spec.name == "scheduler")
    assert isinstance(args, SchedulerArgs)
    return args


def test_what_the_scheduler_is_told() -> None:
    args = scheduler_args()
    default = SchedulerArgs(name="scheduler", incarnation=0, run_dir="/run", tokenizers=["tokenizer0"])
    assert args == default
    args = scheduler_args(run_ahead=1, prefix_cache=False, target_itl=0.05, max_queue_tokens=9, log_level="debug", hang_timeout=7.0)
    assert args.step_deadline == 7.0
    assert (args.run_ahead, args.prefix_cache, args.target_itl, args.max_queue_tokens, args.self_check) == (1, False, 0.05, 9, True)


def test_scheduling_options_of_cluster_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = ["cluster", "start", "--model", str(tmp_path), "--port", "0"]
    options = options_from(build_parser().parse_args(given))
    assert (options.run_ahead, options.prefix_cache, options.target_itl, options.max_queue_tokens) == (2, True, None, 4_000_000)
    given += ["--run-ahead", "8", "--prefix-cache", "off", "--target-itl", "12.5", "--max-queue-tokens", "100_000"]
    options = options_from(build_parser().parse_args(given))
    assert (options.run_ahead, options.prefix_cache, options.target_itl, options.max_queue_tokens) == (8, False, 0.0125, 100_000)


def test_recording_options_of_cluster_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    given = ["cluster", "start", "--model", str(tmp_path), "--port", "0"]
    assert options_from(build_parser().parse_args(given)).record is None
    options = options_from(build_parser().parse_args([*given, "--record", "a.rec", "--record-tokens"]))
    assert (options.record, options.record_tokens) == (str(tmp_path / "a.rec"), True)
    args = scheduler_args(record=options.record, record_tokens=True)
    assert (args.record, args.record_tokens) == (str(tmp_path / "a.rec"), True)


def test_a_recording_is_a_new_file_that_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.new_file.os.access", lambda path, mode: False)
    with pytest.raises(LauncherError, match="no permission to make a file in"):
        options_from(build_parser().parse_args(["cluster", "start", "--record", str(tmp_path / "r")]))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LauncherError, match="exists already"):
        options_from(build_parser().parse_args(["cluster", "start", "--record", str(tmp_path / "link")]))
    monkeypatch.undo()
    with pytest.raises(LauncherError, match="--trace: /proc/pagewire cannot be made"):
        options_from(build_parser().parse_args(["cluster", "start", "--trace", "/proc/pagewire"]))


def test_any_free_port() -> None:
    port = free_port("127.0.0.1", 0)
    assert free_port("127.0.0.1", port) == port


@pytest.mark.skipif(sys.platform != "linux", reason="a bound port that others may listen on")
def test_a_free_port_is_kept_for_the_frontends() -> None:
    port = free_port("127.0.0.1", 0)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port), reuse_port=True), socket.create_server(("127.0.0.1", port), reuse_port=True):
            pass


def test_ready_text_says_how_to_get_in() -> None:
    security = Security(api_keys="/k", tls_cert="/my cert.pem", tls_key="/key.pem")
    shown = ready_text(ClusterOptions(model_path="m", model_name="m", port=1, security=security), state())
    assert "curl https://127.0.0.1:1/v1/" in shown
    assert "-H \"Authorization: Bearer $PAGEWIRE_API_KEY\" --cacert '/my cert.pem' -d '" in shown
