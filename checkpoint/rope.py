"""Rotary settings from config.json, read as transformers 5 reads them."""

from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields
from checkpoint.structs import RopeConfig

KINDS = ("default", "linear", "llama3", "yarn", "dynamic")
THETA_LIMITS = (1.001, 1e12)
FACTOR_LIMITS = (1.0, 4096.0)
MAX_CONTEXT = 1 << 26


def refuse_partial(fields: Fields) -> None:
    """Raises CheckpointError when only a part of each head is rotated."""
    value = fields.get("partial_rotary_factor")
    if value is not None and value != 1.0:
        raise fields.fail("partial_rotary_factor", "1.0: rotating a part of each head is not supported")


def kind_of(table: Fields) -> str:
    """The rope type under its new key or its old one."""
    key = "rope_type" if table.has("rope_type") else "type"
    kind = table.text(key, "default")
    if kind not in KINDS:
        raise table.fail(key, f"one of {', '.join(KINDS)}: other rope types are not supported")
    return kind


def theta_of(table: Fields, top: Fields) -> float:
    """The base: inside the table first, then at the top of the config, then 10000."""
    source = table if table.has("rope_theta") else top
    return source.number("rope_theta", *THETA_LIMITS, default=10_000.0)


def original_context(table: Fields, top: Fields, context: int) -> int:
    """The context before scaling; as in transformers a value at the top of the config goes first."""
    source = top if top.has("original_max_position_embeddings") else table
    return source.integer("original_max_position_embeddings", 1, MAX_CONTEXT, default=context)


def llama3(table: Fields, top: Fields, context: int, theta: float) -> RopeConfig:
    """Llama 3.1's scaling by wavelength."""
    low, high = table.number("low_freq_factor", 1e-3, 1e6), table.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise table.fail("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=table.number("factor", *FACTOR_LIMITS),
        original_context=original_context(table, top, context),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def yarn(table: Fields, top: Fields, context: int, theta: float) -> RopeConfig:
    """YaRN (arXiv 2309.00071)."""
    original = original_context(table, top, context)
    fast = table.number("beta_fast", 1e-6, 1e6) if table.get("beta_fast") else 32.0
    slow = table.number("beta_slow", 1e-6, 1e6) if table.get("beta_slow") else 1.0
    if fast < slow:
        raise table.fail("beta_fast", f"at least beta_slow ({slow:g})")
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=table.number("factor", *FACTOR_LIMITS, default=context / original),
        original_context=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=table.flag("truncate", True),
        attention_factor=table.optional_number("attention_factor", 1e-3, 1e3),
        mscale=table.optional_number("mscale", 0.0, 1e3),
        mscale_all_dim=table.optional_number("mscale_all_dim", 0.0, 1e3),
    )


def parse_table(table: Fields, top: Fields, context: int) -> RopeConfig:
    """One of `rope_parameters` and `rope_scaling`. `context` is max_position_embeddings."""
    refuse_partial(table)
    nested = [key for key, value in table.values.items() if isinstance(value, dict)]
    if nested:
        raise CheckpointError(f"{table.source}: separate rope settings per layer type ({', '.join(nested)[:80]}) are not supported")
    kind, theta = kind_of(table), theta_of(table, top)
    if kind == "llama3":
        return llama3(table, top, context, theta)
    if kind == "yarn":
        return yarn(table, top, context, theta)
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = table.number("factor", *FACTOR_LIMITS)
    return RopeConfig(theta=theta, kind=kind, factor=factor, original_context=context if kind == "dynamic" else 0)


def read_rope(top: Fields, context: int) -> RopeConfig:
    """The rotary settings of a config.json whose max_position_embeddings is `context`.

    `rope_theta` inside `rope_parameters` goes before one at the top of the config. `rope_parameters` and `rope_scaling` may both be there when they
    say the same; transformers would drop one of them, so a difference is an error.
    """
    refuse_partial(top)
    tables = [table for key in ("rope_parameters", "rope_scaling") if (table := top.table(key)) is not None]
    found = [parse_table(table, top, context) for table in tables]
    if not found:
        return RopeConfig(theta=theta_of(top, top))
    if found[0] != found[-1]:
        raise CheckpointError(f"{top.source}: `rope_parameters` and `rope_scaling` contradict each other; keep one of them")
    return found[0]


def scaled_context(rope: RopeConfig, context: int) -> int:
    """The longest context that the rope settings are made for, in tokens; `context` is max_position_embeddings.

    As in vLLM: linear, dynamic and yarn stretch the context that they start from by their factor; llama3 checkpoints state the stretched one.
    """
    if rope.kind == "yarn":
        return min(MAX_CONTEXT, max(context, int(rope.original_context * rope.factor)))
    if rope.kind in ("linear", "dynamic"):
        return min(MAX_CONTEXT, int(context * rope.factor))
    return context
