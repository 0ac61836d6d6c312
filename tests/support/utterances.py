"""What a model might say: reasoning and tool calls, for the frontend's peers to play."""

from collections.abc import Iterator

import msgspec

from messages.cluster import ClusterState
from messages.request import Generate
from messages.text import Ended, FromTokenizer, Started, TextDelta, TokenLogprob
from tests.support.frontend_peers import Message, Script, cluster_state

THOUGHT = "<think>\nTwo.\n</think>\n\n"
CALLS = 'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def with_parsers(tools: str = "hermes", reasoning: str = "think") -> ClusterState:
    state = cluster_state()
    facts: dict[str, int | float | str] = {"tool_parser": tools, "reasoning_parser": reasoning, "thinking_switch": "enable_thinking"}
    first = msgspec.structs.replace(state.processes[0], facts=facts)
    return msgspec.structs.replace(state, processes=[first, *state.processes[1:]])


def utter(text: str, opened: bool = False, size: int = 3, finish: str = "stop") -> Script:
    """Every choice says `text`, `size` characters a token, and stops."""

    def script(message: Message) -> Iterator[FromTokenizer]:
        if isinstance(message, Generate):
            parts = [text[at : at + size] for at in range(0, len(text), size)]
            yield Started(message.keys[0], 5, opened)
            for part in parts:
                yield from (TextDelta(key, part, [7], _logprobs(message, part)) for key in message.keys)
            yield from (Ended(key=key, finish=finish, completion_tokens=len(parts) + 1, tokens=1, ids=[2]) for key in message.keys)

    return script


def _logprobs(message: Generate, part: str) -> list[TokenLogprob]:
    return [TokenLogprob(7, part.encode(), -0.5, [])] if message.sampling.logprobs >= 0 else []
