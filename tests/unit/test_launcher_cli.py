"""The command line: bounds, messages, and that it starts quickly. Its commands and options are pinned in `test_imports.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

import pagewire
from launcher.bench import start_arguments
from launcher.cli import build_parser, main
from launcher.errors import program
from launcher.start import threads_from

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--port", "65536", "65536 is not from 0 to 65535"),
        ("--port", "http", "'http' is not a whole number"),
        ("--max-slots", "0", "0 is not from 1 to 4096"),
        ("--block-size", "-1", "-1 is not from 1 to 1024"),
        ("--startup-timeout", "nan", "nan is not from 1 to 86400"),
        ("--device", "tpu", "neither cpu nor cuda"),
        ("--served-model-name", "", "'' is not a name"),
        ("--served-model-name", "a\nb", "without line breaks"),
        ("--hang-timeout", "-1", "-1 is not from 0 to 86400"),
        ("--frontends", "65", "65 is not from 1 to 64"),
        ("--max-connections", "0", "0 is not from 1 to 1000000"),
        ("--cors-origin", "https://chat.example/", "is not an origin"),
        ("--cors-origin", "chat.example", "is not an origin"),
        ("--run-ahead", "0", "0 is not from 1 to 8"),
        ("--run-ahead", "9", "9 is not from 1 to 8"),
        ("--prefix-cache", "yes", "invalid choice: 'yes'"),
        ("--target-itl", "0", "0 is not from 1 to 60000"),
        ("--max-queue-tokens", "0", "0 is not from 1 to 2147483647"),
    ],
)
def test_values_out_of_bounds(option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "start", f"{option}={value}"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chunk-tokens", "513"], "--chunk-tokens 513 is over --max-step-tokens 512"),
        (["--max-slots", "300", "--max-step-tokens", "256"], "--max-slots 300 is over --max-step-tokens 256"),
        (["--chat-template", "/no/such/file"], "there is no file /no/such/file"),
        (["--record", "/no/such/file"], "there is no folder /no/such"),
        (["--record", __file__], "a recording is never written over"),
        (["--trace", "/no/such/file"], "--trace: there is no folder /no/such"),
        (["--trace", __file__], "a trace is never written over"),
        (["--journal", "/no/such/file"], "--journal: there is no folder /no/such"),
        (["--journal", __file__], "is open to others, and holds prompts and answers"),
        (["--record-tokens"], "name its file with --record FILE"),
        (["--weights", "fp8"], "--weights fp8 needs a GPU"),
        (["--deterministic", "--dtype", "bfloat16"], "--deterministic on a CPU computes in float32"),
        (["--deterministic", "--kv-dtype", "fp8"], "--deterministic on a CPU computes in float32"),
        (["--weights", "fp8", "--device", "cuda", "--deterministic"], "--deterministic has no products with FP8 weights"),
        (["--weights", "fp8", "--device", "cuda", "--dtype", "float32"], "--weights fp8 computes in bfloat16"),
    ],
)
def test_options_that_do_not_fit(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--port", "0", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["bench", "serve"], "--trace needs --start"),
        (["bench", "chat", "--compare"], "--trace needs --start"),
        (["bench", "serve", "--start"], "--trace: there is no folder /no/such"),
        (["bench", "chat", "--start"], "--trace: there is no folder /no/such"),
    ],
)
def test_only_what_a_bench_starts_is_traced(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--trace", "/no/such/file"]) == 2
    assert message in capsys.readouterr().err


def test_a_private_cluster_is_told_of_its_trace() -> None:
    args = build_parser("bench").parse_args(["bench", "serve", "--start", "--trace", "t", "--model", "m", "--start-args", "--threads 2"])
    assert start_arguments(args) == ["--model", "m", "--trace", "t", "--threads", "2"]


def test_a_model_that_is_none_says_what_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--port", "0", "--model", "gpt-9"]) == 1
    error = capsys.readouterr().err
    assert "gpt-9" in error
    assert "smollm2-135m-instruct" in error
    assert "config.json" in error


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pagewire {pagewire.__version__}\n"


@pytest.mark.parametrize(("model", "message"), [("", "--model is empty"), ("/dev/null", "neither a file nor a folder")])
def test_arguments_that_name_no_model(model: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--port", "0", "--model", model]) in {1, 2}
    assert message in capsys.readouterr().err


def test_threads_are_no_more_than_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert threads_from(1) == 1
    assert threads_from(4096) < 4096
    assert "warning: --threads 4096 is over" in capsys.readouterr().err


def test_commands_to_type_name_the_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["launch.py"])
    monkeypatch.setattr("sys.executable", str(ROOT / ".venv/bin/python"))
    monkeypatch.chdir(ROOT)
    assert program() == ".venv/bin/python launch.py"
    monkeypatch.chdir(tmp_path)
    assert program() == f"{ROOT}/.venv/bin/python {ROOT}/launch.py"
    monkeypatch.setattr("sys.argv", ["/usr/bin/pagewire"])
    assert program() == "pagewire"


@pytest.mark.parametrize("arguments", [["doctor"], ["cluster", "status"]], ids=["doctor", "status"])
def test_a_missing_dependency_is_one_sentence(arguments: list[str]) -> None:
    command = [sys.executable, "-S", "launch.py", *arguments]  # -S: without site-packages
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "the module msgspec is not installed" in done.stderr
    assert ".venv/bin/python launch.py" in done.stderr


def test_the_launcher_needs_no_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, launcher\n"
        "names = [m.name for m in pkgutil.iter_modules(launcher.__path__)]\n"
        "[importlib.import_module('launcher.' + name) for name in names]\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'huggingface_hub')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=100).returncode == 0
