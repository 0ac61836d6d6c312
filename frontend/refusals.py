"""Fields of the OpenAI and vLLM APIs that are not honoured here: accepted at their neutral value, refused with 400 at any other.

The rule is 'never ignored in silence': a field either takes effect, or has a value that changes nothing, or is refused by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from frontend.errors import invalid

Schema = dict[str, Any]


@dataclass(frozen=True)
class Neutral:
    """Which JSON values of a field change nothing, as a test and (None: there are none, or none worth describing) as a JSON Schema."""

    check: Callable[[Any], bool]
    schema: Schema | None = None

    def __call__(self, value: Any) -> bool:
        return self.check(value)


def _only(*values: Any) -> Neutral:
    """Neutral at exactly these JSON values (1 and 1.0 are the same, 1 and true are not)."""

    def check(value: Any) -> bool:
        return any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in values)

    return Neutral(check, {"enum": list(values)})


_text = Neutral(lambda value: isinstance(value, str), {"type": "string"})
_labels = Neutral(
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    {"type": "object", "additionalProperties": {"type": "string"}},
)
_never = Neutral(lambda value: False)


# Fields that only identify or label: any value of the right type changes nothing about the answer.
_LABELS: dict[str, Neutral] = {"user": _text, "safety_identifier": _text, "prompt_cache_key": _text, "metadata": _labels}

_COMMON: dict[str, Neutral] = {
    **_LABELS,
    "store": _only(False),
    "prompt_cache_retention": _only("in_memory", "in-memory"),
    "service_tier": _only("auto", "default"),
    "length_penalty": _only(1),
    "use_beam_search": _only(False),
    "early_stopping": _only(False),
    "spaces_between_special_tokens": _only(True),
    "detokenize": _only(True),
    "return_tokens_as_token_ids": _only(False),
    "logits_processors": _only([]),
    "vllm_xargs": _only({}),
    "kv_transfer_params": _never,
    "request_id": _never,
    "typical_p": _only(1),
}

CHAT: dict[str, Neutral] = {
    **_COMMON,
    "functions": _only([]),
    "function_call": _only("none", "auto"),
    "modalities": _only(["text"]),
    "audio": _never,
    "prediction": _never,
    "include_reasoning": _only(True),
    "verbosity": _only("medium"),
    "web_search_options": _never,
    "echo": _only(False),
    "best_of": _only(1),
    "add_special_tokens": _only(False),
    "continue_final_message": _only(False),
    "chat_template": _never,
    "mm_processor_kwargs": _only({}),
    "documents": _only([]),
}

COMPLETION: dict[str, Neutral] = {**_COMMON, "suffix": _only("")}

EMBEDDING: dict[str, Neutral] = {**_LABELS, "dimensions": _never, "normalize": _only(True)}

TOKENIZE: dict[str, Neutral] = {
    "continue_final_message": _only(False),
    "chat_template": _never,
    "mm_processor_kwargs": _only({}),
}

DETOKENIZE: dict[str, Neutral] = {}

# Of /v1/responses, whose `metadata` is kept and given back.
RESPONSES: dict[str, Neutral] = {
    "user": _text,
    "safety_identifier": _text,
    "prompt_cache_key": _text,
    "prompt_cache_retention": _only("in_memory"),
    "prompt_cache_options": _only({}),
    "service_tier": _only("auto", "default"),
    "max_tool_calls": _never,
    "truncation": _only("disabled"),
    "context_management": _only([]),
    "background_options": _only({}, {"completion_window": "soonest"}),
    "conversation": _never,
    "prompt": _never,
    "moderation": _never,
}

_EMPTY = _only("", [], {})

# Of one message. What a server answers may come back as it is: its fields that carry nothing are empty.
MESSAGE: dict[str, Neutral] = {
    "name": _EMPTY,
    "tool_calls": _EMPTY,
    "tool_call_id": _EMPTY,
    "function_call": _EMPTY,
    "refusal": _EMPTY,
    "reasoning": _EMPTY,
    "reasoning_content": _EMPTY,
    "annotations": _EMPTY,
    "audio": _EMPTY,
}

# Of a tool of /v1/responses.
FUNCTION_TOOL: dict[str, Neutral] = {
    "allowed_callers": _only(["direct"]),
    "async": _only(False),
    "defer_loading": _only(False),
    "output_schema": _never,
}

# Of the items of /v1/responses, and of one part of their content. What a response has may come back as it is.
_ITEM: dict[str, Neutral] = {"id": _text, "status": _only("in_progress", "completed", "incomplete")}
_OF_CALLS: dict[str, Neutral] = {**_ITEM, "namespace": _never, "caller": _only({"type": "direct"}), "created_by": _never}
INPUT_MESSAGE: dict[str, Neutral] = {**_ITEM, "phase": _never}
INPUT_REASONING: dict[str, Neutral] = {**_ITEM, "summary": _only([]), "encrypted_content": _never}
INPUT_CALL: dict[str, Neutral] = {**_OF_CALLS, "async": _only(False)}
INPUT_RESULT: dict[str, Neutral] = {**_OF_CALLS, "name": _text}
INPUT_PART: dict[str, Neutral] = {
    "annotations": _EMPTY,
    "logprobs": Neutral(lambda value: isinstance(value, list)),
    "prompt_cache_breakpoint": _never,
}


def strip(fields: dict[str, Any], known: tuple[str, ...], neutral: dict[str, Neutral], where: str = "") -> dict[str, Any]:
    """`fields` without nulls and neutral values. Raises ApiError for a field that is unknown or not honoured at its value.

    `where` goes before a field's name in the error: "messages[0]." for the fields of a message.
    """
    kept = {}
    for name, value in fields.items():
        if name in known:
            if value is not None:
                kept[name] = value
        elif name not in neutral:
            raise invalid(f"Unknown field {where + name[:64]!r}.", where + name[:64], "unknown_parameter")
        elif value is not None and not neutral[name](value):
            raise invalid(f"{where}{name} is not supported at this value; leave it out.", where + name, "unsupported_parameter")
    return kept
