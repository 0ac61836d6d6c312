"""What the chat template sees of a conversation of items."""

from frontend.responses.items import FunctionCall, FunctionCallOutput, Item, ReasoningItem, ReasoningText, said
from frontend.responses.turns import turns


def thought(text: str) -> ReasoningItem:
    return ReasoningItem("rs", "completed", [ReasoningText(text)])


def call(number: int) -> FunctionCall:
    return FunctionCall("fc", "completed", f"c{number}", "add", "{}")


def result(number: int) -> FunctionCallOutput:
    return FunctionCallOutput("fco", "completed", f"c{number}", "4")


def called(*numbers: int) -> list[dict[str, object]]:
    return [{"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": "{}"}} for number in numbers]


def test_one_answer_is_one_message() -> None:
    """Thoughts, text and calls of an answer go together; what comes in another order, or behind a result, begins a new message."""
    items: list[Item] = [said("A", "user"), thought("T"), said("B", "assistant"), call(1), call(2), result(1), result(2)]
    items += [thought("U"), thought("V"), call(3), result(3), said("C", "assistant"), said("D", "assistant"), thought("W"), said("E", "user")]
    assert turns("I.", items) == [
        {"role": "system", "content": "I."},
        {"role": "user", "content": "A"},
        {"role": "assistant", "reasoning_content": "T", "content": "B", "tool_calls": called(1, 2)},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "tool", "tool_call_id": "c2", "content": "4"},
        {"role": "assistant", "reasoning_content": "U\nV", "tool_calls": called(3)},
        {"role": "tool", "tool_call_id": "c3", "content": "4"},
        {"role": "assistant", "content": "C"},
        {"role": "assistant", "content": "D"},
        {"role": "assistant", "reasoning_content": "W", "content": ""},
        {"role": "user", "content": "E"},
    ]
