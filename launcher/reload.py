"""`cluster reload` and `cluster restart`: other processes in place of those that run, while requests wait."""

import argparse
import sys
from typing import Any

from launcher import models
from launcher.drain import commanded, waited
from launcher.errors import LauncherError, program
from launcher.rundir import Cluster, choose_cluster
from launcher.start import template_from, threads_from
from messages.change import (
    ENDING,
    LOADING,
    RETURNING,
    ROLLING,
    WAITING,
    CancelCommand,
    Change,
    ModelOptions,
    ReloadCommand,
    RestartCommand,
)
from messages.cluster import READY, ClusterState

AS_GIVEN = (
    "device", "dtype", "kv_dtype", "weights", "kv_tokens", "gpu_memory_utilization", "block_size", "max_slots", "max_step_tokens", "chunk_tokens",
    "max_context", "run_ahead", "dummy_weights", "deterministic", "tool_parser", "reasoning_parser",
)  # fmt: skip
"""Options that go on as they are."""
CHANGES = {*AS_GIVEN, "model", "served_model_name", "threads", "chat_template", "target_itl", "prefix_cache", "generation_config"}


def run_reload(args: argparse.Namespace) -> int:
    """Entry point of `cluster reload`: 0 when the new processes serve, 1 when nothing was changed or those before had to come back."""
    if args.cancel:
        return _cancel(args)
    cluster = choose_cluster(args.port)
    options = changes_from(args)
    state = commanded(cluster, ReloadCommand(options=options, wait=0.0 if args.now else args.wait))
    try:
        change = _followed(cluster, state)
    except KeyboardInterrupt:
        print(f"the reload goes on; it is taken back with: {program()} cluster reload --cancel", file=sys.stderr)
        raise
    if change.error:
        raise LauncherError(f"the reload failed, and {state.model} is served as before: {change.error}")
    print(f"the cluster on port {cluster.info.port} serves {change.model}")
    return 0


def _cancel(args: argparse.Namespace) -> int:
    """0 when what was served before the reload that was going on is served again."""
    if given := sorted(CHANGES & vars(args).keys()):
        raise LauncherError(f"--cancel takes back the reload that is going on, and goes with no --{given[0].replace('_', '-')}", 2)
    cluster = choose_cluster(args.port)
    state = commanded(cluster, CancelCommand())
    change = _followed(cluster, state)
    print(f"the reload to {change.model} is over ({change.error}): the cluster on port {cluster.info.port} serves {state.model}")
    return 0


def run_restart(args: argparse.Namespace) -> int:
    """Entry point of `cluster restart`: 0 when every process has been started again."""
    cluster = choose_cluster(args.port)
    _followed(cluster, commanded(cluster, RestartCommand(wait=args.wait)))
    print(f"every process of the cluster on port {cluster.info.port} was started again")
    return 0


def changes_from(args: argparse.Namespace) -> ModelOptions:
    """The options that were given (the others are not in `args`), with whole paths. Fetches a model of the catalogue. Raises LauncherError."""
    given = vars(args)
    changes: dict[str, Any] = {name: given[name] for name in AS_GIVEN if name in given}
    if "model" in given:
        found = models.resolve(args.model)
        changes |= {"model_path": str(found.path if found.path is not None else models.pull(args.model)), "own_name": found.name}
    if "served_model_name" in given:
        changes["model_name"] = args.served_model_name
    if "threads" in given:
        changes["threads"] = threads_from(args.threads)
    if "chat_template" in given:
        changes["chat_template"] = template_from(args.chat_template)
    if "target_itl" in given:
        changes["target_itl"] = args.target_itl / 1000
    changes |= {name: given[name] == "on" for name in ("prefix_cache", "generation_config") if name in given}
    return ModelOptions(**changes)


def _followed(cluster: Cluster, begun: ClusterState) -> Change:
    """The change that has begun, once it is over and the cluster ready again. Raises LauncherError."""
    number = 0 if begun.change is None else begun.change.number
    last = begun.change

    def missing(state: ClusterState) -> str | None:
        nonlocal last
        last = state.change
        if state.stop_seconds is not None:
            raise LauncherError("the cluster was stopped meanwhile")
        if last is None or last.number != number:
            raise LauncherError("another change has begun meanwhile; see: cluster status")
        return None if last.over else told(last, state)

    waited(cluster, None, missing)
    if last is None:
        raise LauncherError("the supervisor knows nothing of the change")
    return last


def told(change: Change, state: ClusterState) -> str:
    """How far it is, in one line."""
    loads = ", ".join(f"{process.name} {process.detail or process.phase}" for process in state.processes if process.phase != READY)
    words = {
        WAITING: f"waiting for running requests: {change.note or 'asking the frontends'}",
        ENDING: "ending what runs",
        LOADING: f"loading {change.model}: {loads or READY}",
        RETURNING: f"going back ({change.error}): {loads or 'ending what runs'}",
        ROLLING: f"restarting {change.note}",
    }
    return words.get(change.phase, change.phase)
