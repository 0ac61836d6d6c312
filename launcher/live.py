"""The running and waiting requests of a cluster, as `cluster status` shows them."""

from typing import Any

from launcher.client import own_cluster
from launcher.errors import LauncherError
from launcher.rundir import Cluster
from messages.cluster import READY, ClusterState

PATIENCE_SECONDS = 4.0
MAX_ROWS = 40
HEAD = ("REQUEST", "STATE", "PLACE", "WAITS FOR", "AGE", "PROMPT", "CACHED", "COMPUTED", "OUTPUT", "PREEMPTED", "FIRST TOKEN")
_ORDER = {"decode": 0, "prefill": 1, "waiting": 2}

Json = dict[str, Any]


def live_requests(cluster: Cluster, state: ClusterState) -> Json | None:
    """The answer of GET /v1/requests; None when no frontend is there to ask, or it does not answer in time."""
    if not any(process.name.startswith("frontend") and process.phase == READY for process in state.processes):
        return None
    try:
        answer = own_cluster(cluster, PATIENCE_SECONDS).get("/v1/requests")
    except (LauncherError, OSError):
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("data"), list) else None


def requests_table(answer: Json) -> str:
    """One line per choice: running ones first, then the line in its order. Empty without requests that are known."""
    rows = [(request, choice) for request in answer["data"] for choice in request["choices"]]
    silent = answer.get("unanswered") or []
    missing = [f"{' and '.join(silent)} did not answer: what they have is not shown"] if silent else []
    if not rows:
        return "".join(missing)
    rows.sort(key=lambda row: (_ORDER.get(row[1]["state"], 3), row[1]["place"] or 0))
    lines = [HEAD, *(_cells(*row) for row in rows[:MAX_ROWS])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if len(rows) > MAX_ROWS or answer.get("has_more"):
        table.append(f"... and more: {len(rows[:MAX_ROWS])} are shown")
    notes = {request["note"] for request in answer["data"] if request["note"]}
    return "\n".join([*table, *sorted(notes), *missing])


def _cells(request: Json, choice: Json) -> tuple[str, ...]:
    name = request["id"] if len(request["choices"]) == 1 else f"{request['id']} [{choice['index']}]"
    first = choice["first_token_seconds"]
    numbers = [choice[field] for field in ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "preemptions")]
    return (
        name,
        choice["state"],
        _shown(choice["place"]),
        _shown(choice["waits_for"]),
        f"{choice['age_seconds']:.1f} s",
        *map(_shown, numbers),
        "-" if first is None else f"in {first:.1f} s",
    )


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
