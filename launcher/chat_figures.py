"""What conversations come to: hit rates and times to first token, of first and later turns, and how two runs compare."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.conversations import Turn
from launcher.figures import aligned, milliseconds, percentiles

COLUMNS = ("cache", "ok", "err", "tok/s", "hits", "first hits", "later hits", "first TTFT p50", "p90", "later TTFT p50", "p90", "gap p50")


@dataclass(frozen=True, kw_only=True)
class Chats:
    """All answers of one run. `cache` is on or off when this command chose it; `cold_start` is of a private cluster (seconds)."""

    cache: str | None
    model: str
    turns: list[Turn]
    cold_start: dict[str, float] | None = None


def summarise(chats: Chats, requests: int) -> dict[str, Any]:
    """The figures of one run; `requests` that were never sent because one before had failed count as errors.

    Hit rates are cached prompt tokens by prompt tokens, `first` of turn 1 and `later` of all others; times in milliseconds.
    """
    good = [turn for turn in chats.turns if turn.outcome.error is None]
    errors = Counter(turn.outcome.error for turn in chats.turns if turn.outcome.error is not None)
    errors["not sent"] += requests - len(chats.turns)
    outcomes = [turn.outcome for turn in chats.turns]
    seconds = max(outcome.ended for outcome in outcomes) - min(outcome.due for outcome in outcomes)
    tokens = sum(turn.outcome.tokens for turn in good)
    return {
        "prefix_cache": chats.cache,
        "cold_start": chats.cold_start,
        "requests": requests,
        "ok": len(good),
        "errors": {name: count for name, count in sorted(errors.items()) if count},
        "seconds": round(seconds, 3),
        "completion_tokens": tokens,
        "total_tok_s": round(tokens / seconds, 2) if seconds > 0 else 0.0,
        "inter_token_ms": percentiles([gap for turn in good for gap in turn.outcome.gaps]),
        **_part(good),
        "first": _part([turn for turn in good if turn.number == 1]),
        "later": _part([turn for turn in good if turn.number > 1]),
    }


def _part(turns: Sequence[Turn]) -> dict[str, Any]:
    prompt, cached = (sum(getattr(turn.outcome, name) for turn in turns) for name in ("prompt_tokens", "cached_tokens"))
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit_rate": round(cached / prompt, 4) if prompt else None,
        "ttft_ms": percentiles([turn.outcome.first - turn.outcome.due for turn in turns if turn.outcome.first is not None]),
    }


def compare(runs: Sequence[dict[str, Any]], chats: Sequence[Chats]) -> dict[str, Any]:
    """How many times shorter the time to first token of later turns is in the second run than in the first (None: no such turns), and whether
    the answers are the same."""
    before, after = (run["later"]["ttft_ms"] for run in runs)
    first, second = ({(turn.user, turn.number): turn.text for turn in chat.turns if turn.outcome.error is None} for chat in chats)
    both = first.keys() & second.keys()
    different = sum(first[turn] != second[turn] for turn in both)
    return {
        "later_ttft_ratio": {name: round(before[name] / after[name], 2) for name in ("p50", "p90")} if before and after else None,
        "answers_compared": len(both),
        "answers_different": different,
        "same_texts": not different and first.keys() == second.keys(),
    }


def report_text(report: dict[str, Any]) -> str:
    """The report for people: what was measured on which machine, a line per run, and the comparison if there is one."""
    found = report["machine"]
    lines = [
        f"{report['model']} on {found['cpu']}, {found['cores']} cores",
        f"{report['users']} users, {report['turns']} turns, system prompt of about {report['system_tokens']} tokens, questions of about "
        f"{report['user_tokens']}, answers up to {report['max_tokens']}",
    ]
    lines += [f"errors with cache {run['prefix_cache'] or '-'}: {name} x{count}" for run in report["runs"] for name, count in run["errors"].items()]
    lines += ["hits: prompt tokens from the cache; first: turn 1, later: all other turns; times in ms"]
    lines += [aligned([COLUMNS, *(_row(run) for run in report["runs"])])]
    return "\n".join(lines + (_comparison_lines(report["comparison"]) if "comparison" in report else []))


def _row(run: dict[str, Any]) -> list[str]:
    rates = ["-" if rate is None else f"{rate:.0%}" for rate in (run["hit_rate"], run["first"]["hit_rate"], run["later"]["hit_rate"])]
    times = [cell for part in ("first", "later") for cell in milliseconds(run[part]["ttft_ms"], ("p50", "p90"))]
    head = [run["prefix_cache"] or "-", str(run["ok"]), str(run["requests"] - run["ok"]), f"{run['total_tok_s']:.1f}"]
    return [*head, *rates, *times, *milliseconds(run["inter_token_ms"], ("p50",))]


def _comparison_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    if ratio := found["later_ttft_ratio"]:
        lines.append(f"time to first token of later turns is {ratio['p50']:.1f} times shorter with the prefix cache (p50; p90: {ratio['p90']:.1f})")
    if found["same_texts"]:
        lines.append(f"all {found['answers_compared']} answers are the same with the cache and without")
    else:
        lines.append(f"{found['answers_different']} of {found['answers_compared']} answers that both runs gave differ")
    return lines
