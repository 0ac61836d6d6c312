"""`model inspect`: what a checkpoint is made of and the memory it needs, without torch."""

import argparse
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from launcher import models
from launcher.errors import APP_ROOT, LauncherError, program

BYTES = {"float32": 4, "bfloat16": 2}
MIB = 1 << 20
CHECK_SECONDS = 120.0
Report = dict[str, Any]


def run(args: argparse.Namespace) -> int:
    """Entry point of `model inspect`: 0 when the checkpoint can be served, 1 when something is wrong with it."""
    found = models.resolve(args.model)
    if found.path is None:
        raise LauncherError(f"{args.model} is not in the model cache yet; fetch it first: {program()} model pull {args.model}")
    report = inspect(found.name, found.path)
    print(json.dumps(report, indent=2) if args.json else text(report))
    return 1 if report["problem"] else 0


def inspect(name: str, path: Path) -> Report:
    """Everything `model inspect` says. Raises LauncherError when the configuration cannot be read."""
    from checkpoint.config import read_config
    from checkpoint.errors import CheckpointError
    from checkpoint.tensors import check_tensors, expected_tensors, open_tensors

    try:
        config = read_config(path)
    except CheckpointError as error:
        raise LauncherError(str(error)) from error
    problem, unused, kinds, ignored = "", [], {}, []
    try:
        source = open_tensors(path, config)
        try:
            tensors = source.names()
            kinds = dict(Counter(info.kind for info in tensors.values()))
            unused = check_tensors(source, config)
            ignored = sorted(set(tensors) - set(expected_tensors(config)) - set(unused))
        finally:
            source.close()
    except CheckpointError as error:
        problem = str(error)
    parameters = sum(math.prod(shape) for shape in expected_tensors(config).values())
    per_token = 2 * config.layers * config.kv_heads * config.head_dim
    return {
        "name": name,
        "path": str(path),
        "format": "safetensors" if path.is_dir() else "gguf",
        "disk_bytes": _disk_bytes(path),
        "parameters": parameters,
        "config": msgspec.to_builtins(config),
        "tensor_kinds": kinds,
        "weight_bytes": {dtype: parameters * size for dtype, size in BYTES.items()},
        "kv_bytes_per_token": {dtype: per_token * size for dtype, size in BYTES.items()},
        **_text_parts(path),
        "unused_tensors": unused,
        "ignored_tensors": ignored,
        "problem": "; ".join(filter(None, [problem, _tokenizer_problem(path)])),
    }


def _tokenizer_problem(path: Path) -> str:
    """What keeps a tokenizer process from using the model, empty when nothing does. Asked of that package in a process of its own."""
    command = [sys.executable, "-P", "-m", "tokenizer_proc.check", str(path)]
    environment = os.environ | {"PYTHONPATH": str(APP_ROOT)}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"reading the tokenizer takes longer than {CHECK_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or (done.stderr.strip().splitlines() or [f"the check of the tokenizer ended with exit code {done.returncode}"])[-1]


def _disk_bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _text_parts(path: Path) -> Report:
    """The tokenizer's kind and whether there is a chat template; 'missing' when there is no tokenizer."""
    if path.is_file():
        from checkpoint.gguf_file import read_header

        metadata = read_header(path).metadata
        return {"tokenizer": str(metadata.get("tokenizer.ggml.model", "missing")), "chat_template": "tokenizer.chat_template" in metadata}
    kinds = {"tokenizer.json": "tokenizers", "tokenizer.model": "model file"}
    kind = next((kind for file, kind in kinds.items() if (path / file).is_file()), "missing")
    return {"tokenizer": kind, "chat_template": (path / "chat_template.jinja").is_file() or _configured_template(path / "tokenizer_config.json")}


def _configured_template(path: Path) -> bool:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and bool(document.get("chat_template"))


def text(report: Report) -> str:
    """The report for people."""
    config = report["config"]
    rope = config["rope"]
    window = f", sliding window {config['window']} in {sum(config['window_layers'])} layers" if config["window"] else ""
    extras = [word for word in ("tied_head", "qk_norm", "qkv_bias", "output_bias", "mlp_bias") if config[word]]
    scaling = "" if rope["kind"] == "default" else f", scaled by {rope['factor']:g}"
    rows = [
        ("model", report["name"]),
        ("path", report["path"]),
        ("format", f"{report['format']}, {report['disk_bytes'] / MIB:.1f} MiB on disk, {_kinds(report)}"),
        ("architecture", f"{config['family']}, {report['parameters'] / 1e6:,.1f} million parameters" + (f" ({', '.join(extras)})" if extras else "")),
        ("layers", f"{config['layers']} x hidden {config['hidden']}, MLP {config['mlp']}"),
        ("attention", f"{config['heads']} heads, {config['kv_heads']} KV heads, {config['head_dim']} wide{window}"),
        ("context", f"{config['context']} tokens, vocabulary {config['vocab']}"),
        ("rope", f"{rope['kind']}, theta {rope['theta']:g}{scaling}"),
        ("checkpoint dtype", config["dtype"]),
        ("end tokens", ", ".join(map(str, config["end_ids"])) or "none"),
        ("tokenizer", report["tokenizer"]),
        ("chat template", "yes" if report["chat_template"] else "no: chat needs --chat-template"),
        ("weights in memory", _sizes(report["weight_bytes"], MIB, "MiB")),
        ("KV memory per token", _sizes(report["kv_bytes_per_token"], 1024, "KiB")),
        ("unused tensors", ", ".join(report["unused_tensors"]) or "none"),
        ("ignored tensors", ", ".join(report["ignored_tensors"]) or "none"),
        ("problem", report["problem"] or "none"),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label.ljust(width)}  {value}" for label, value in rows)


def _kinds(report: Report) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in report["tensor_kinds"].items()) or "tensors not readable"


def _sizes(sizes: dict[str, int], unit: int, name: str) -> str:
    return ", ".join(f"{size / unit:,.1f} {name} as {dtype}" for dtype, size in sizes.items())
