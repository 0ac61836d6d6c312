"""What importing costs and what it must not bring in; and the surfaces that change only on purpose: CLI flags and HTTP routes."""

import argparse
import ast
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    "bench", "checkpoint", "dialects", "frontend", "grammar", "kernels", "launcher", "messages", "pagewire", "scheduler", "simulator",
    "tokenizer_proc", "transport", "worker",
]  # fmt: skip
SOURCES = [ROOT / "launch.py", *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
BARRED = {"transformers", "pickle", "cloudpickle", "marshal", "shelve"}
HELP_CPU_SECONDS = 0.3
SLOW_MACHINE = 3.0

ENGINE = (
    "--chunk-tokens --deterministic --device --dtype --dummy-weights --gpu-memory-utilization --json --kv-dtype --kv-tokens --max-context "
    "--max-slots --max-step-tokens --model --model-shape --run-ahead --runs --threads --trace --weights"
)
SAMPLING = "--max-tokens --min-p --port --seed --stop --system --temperature --top-k --top-p --url"
CLI = {
    "bench chat": (
        "--compare --json --max-tokens --model --port --seed --start --start-args --system-tokens --timeout --trace --turns --url --user-tokens "
        "--users"
    ),
    "bench batch64": ENGINE,
    "bench kernels": "--json --only --seconds",
    "bench offline": f"{ENGINE} --workload",
    "bench frontend": "--big-prompt --frontends --json --rates --seconds --streams",
    "bench grammars": "--device --json --model",
    "bench overload": (
        "--capacity --json --loads --max-tokens --model --paced --port --prompt-tokens --queue-seconds --seconds --seed --slots --start --start-args "
        "--streams --timeout --trace --ttft --url"
    ),
    "bench scheduler": "--json --no-growth --rows --run-ahead --steps",
    "bench single": ENGINE,
    "bench serve": (
        "--chunk-tokens --concurrency --deterministic --device --dtype --dummy-weights --frontends --gpu-memory-utilization --json --kill-worker "
        "--kv-dtype --kv-tokens --max-context --max-slots --max-step-tokens --max-tokens --model --model-shape --paced --port --prompt-tokens --rate "
        "--requests --run-ahead --runs --seed --start --start-args --streams --threads --timeout --tokenizers --trace --url --weights --workload"
    ),
    "chat": SAMPLING,
    "top": "--interval --once --port --url",
    "cluster cancel": "--all --port request",
    "cluster drain": "--port --wait",
    "cluster reload": (
        "--block-size --cancel --chat-template --chunk-tokens --deterministic --device --dtype --dummy-weights --generation-config "
        "--gpu-memory-utilization --kv-dtype --kv-tokens --max-context --max-slots --max-step-tokens --model --now --port --prefix-cache "
        "--reasoning-parser --run-ahead --served-model-name --target-itl --threads --tool-parser --wait --weights"
    ),
    "cluster restart": "--port --wait",
    "cluster resume": "--port",
    "cluster start": (
        "--access-log --api-keys --block-size --chat-template --chunk-tokens --cors-origin --default-timeout --detach --deterministic --device "
        "--dtype --dummy-weights --frontends --generation-config --gpu-memory-utilization --grace --hang-timeout --host --journal --kv-dtype "
        "--kv-tokens --log-format --log-level --max-connections --max-context --max-live-tokens --max-queue --max-queue-seconds --max-queue-tokens "
        "--max-slots --max-step-tokens --max-timeout --max-unsent-bytes --model --model-shape --otlp-endpoint --port --prefix-cache "
        "--reasoning-parser --record --record-tokens --run-ahead --served-model-name --startup-timeout --target-itl --threads --tls-cert --tls-key "
        "--tokenizers --tool-parser --trace --weights"
    ),
    "cluster status": "--json --port",
    "cluster stop": "--drain --port --timeout",
    "doctor": "--json",
    "generate": f"--chat --ignore-eos --json {SAMPLING} prompt",
    "keys add": "--admin --file --requests --rpm --tenant --tpm name",
    "keys limit": "--file --requests --rpm --tpm name",
    "keys list": "--file",
    "keys remove": "--file name",
    "model inspect": "--json model",
    "model list": "--json",
    "model pull": "--wheel name",
    "replay": "--device --model --threads --timeout file",
    "simulate": (
        "--answer-tokens --block-size --blocks --chunk-tokens --cost-model --fit --json --max-context --max-live-tokens --max-queue "
        "--max-queue-seconds --max-queue-tokens --max-slots --max-step-tokens --max-tokens --plot --prefix-cache --prompt-tokens --rate --replay "
        "--requests --run-ahead --seed --slots --speed --system-tokens --target-itl --think --turns --user-tokens --users --workload recording"
    ),
    "trace steps": "--count --first --json --kind file",
    "trace summary": "--json --rows file",
}
ROUTES = [
    "DELETE /v1/requests",
    "DELETE /v1/requests/{id}",
    "DELETE /v1/responses/{id}",
    "GET /",
    "GET /docs",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /health/startup",
    "GET /live/events",
    "GET /metrics",
    "GET /openapi.json",
    "GET /static/{name}",
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /v1/requests",
    "GET /v1/requests/{id}",
    "GET /v1/responses/{id}",
    "GET /v1/responses/{id}/input_items",
    "GET /version",
    "POST /detokenize",
    "POST /live/drain",
    "POST /live/resume",
    "POST /tokenize",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/{id}/cancel",
]


def loaded_after(code: str) -> set[str]:
    """Top-level names in sys.modules of a fresh interpreter after `code`."""
    code += "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("frontend.service", "torch triton transformers tokenizers jinja2 gguf safetensors checkpoint scheduler worker tokenizer_proc launcher"),
        ("frontend.server", "torch triton transformers tokenizers jinja2 gguf safetensors checkpoint scheduler worker tokenizer_proc launcher"),
        ("scheduler.service", "torch triton transformers tokenizers aiohttp gguf safetensors checkpoint frontend worker tokenizer_proc launcher"),
        ("messages.plan", "torch numpy zmq transport"),
        ("transport.sockets", "torch aiohttp checkpoint"),
        ("checkpoint.config", "torch transformers tokenizers zmq messages transport"),
        ("launcher.cli", "torch numpy zmq aiohttp asyncio transformers tokenizers"),
        ("launcher.supervisor", "torch transformers tokenizers aiohttp"),
        ("launcher.trace_summary, launcher.bench_kernels", "torch numpy zmq aiohttp transformers"),
        ("launcher.load", "torch transformers tokenizers numpy"),
        ("launcher.simulate, launcher.bench_scheduler", "numpy msgspec zmq aiohttp simulator scheduler"),
        ("simulator.bench, simulator.plot, simulator.recorded", "torch triton transformers tokenizers aiohttp checkpoint frontend worker launcher"),
        ("frontend.args, scheduler.args, tokenizer_proc.args, worker.args", "torch transformers tokenizers aiohttp"),
    ],
)
def test_importing_brings_in_no(module: str, absent: str) -> None:
    assert not loaded_after(f"import {module}") & set(absent.split())


def test_help_is_quick() -> None:
    """Under 300 ms of CPU on an ordinary machine; the best of five, and a margin for slow ones."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, str(ROOT / "launch.py"), "--help"], check=True, capture_output=True, timeout=100)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < HELP_CPU_SECONDS * SLOW_MACHINE


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, relative level) of every import statement of a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_barred_and_no_relative_import(path: Path) -> None:
    found = list(imports(path))
    assert [name for name, _ in found if name.partition(".")[0] in BARRED] == []
    assert [name for name, level in found if level] == []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None = None) -> set[str]:
    """Distributions named in pyproject.toml's dependencies, or those of an `extra`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return {normal(re.split(r"[<>=;\s]", entry)[0]) for entry in entries}


def locked(name: str) -> dict[str, str]:
    """Distribution -> exact version of a lock. Fails on a line that is no exact pin."""
    pins = {}
    for line in (ROOT / name).read_text().splitlines():
        if line and not line.startswith(("#", "-r ")):
            found = re.fullmatch(r"([\w.-]+)==([\w.]+)(; .*)?", line)
            assert found, line
            pins[normal(found[1])] = found[2]
    return pins


def test_every_import_is_a_declared_dependency_and_the_other_way_round() -> None:
    distributions = packages_distributions()
    names = {name.partition(".")[0] for path in SOURCES for name, level in imports(path) if not level}
    foreign = names - set(sys.stdlib_module_names) - {*PACKAGES, "launch"}
    found = {normal(distributions[name][0]) for name in foreign - {"opentelemetry"}}
    assert found == declared()


def test_opentelemetry_is_imported_by_one_module_alone() -> None:
    """It is an extra, whose two distributions share one name."""
    users = [path.name for path in SOURCES if any(name.partition(".")[0] == "opentelemetry" for name, _ in imports(path))]
    assert users == ["spans.py"]
    assert "opentelemetry" not in loaded_after("import frontend.server")


def test_locks_are_exact_and_hold_every_dependency() -> None:
    run, dev = locked("requirements.lock"), locked("requirements-dev.lock")
    assert declared() <= run.keys()
    assert not run.keys() & dev.keys()
    assert declared("otel") <= dev.keys()
    assert {"transformers", "openai", "pytest", "mypy", "ruff"} <= dev.keys()
    assert (run["torch"], run["triton"]) == ("2.13.0", "3.7.1")


def flags(parser: argparse.ArgumentParser, command: str = "") -> Iterator[tuple[str, str]]:
    """(command, its sorted options and arguments) of every command below `parser`."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        named = [flag for action in parser._actions for flag in (action.option_strings or [action.dest]) if flag not in ("-h", "--help")]
        yield command, " ".join(sorted(named))
    for action in below:
        for name, child in action.choices.items():
            yield from flags(child, f"{command} {name}".strip())


def test_command_line_is_pinned() -> None:
    assert dict(flags(build_parser())) == CLI


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from helps(child)


def test_every_command_has_a_help_that_prints() -> None:
    """A % in a help text is argparse's."""
    assert all(text.startswith("usage: ") for text in helps(build_parser()))


def test_http_routes_are_pinned() -> None:
    from frontend.service import make_app

    core: Any = SimpleNamespace(args=SimpleNamespace(body_limit=1))
    routes = {f"{route.method} {route.resource.canonical}" for route in make_app(core).router.routes() if route.resource is not None}
    assert sorted(route for route in routes if not route.startswith("HEAD ")) == ROUTES
