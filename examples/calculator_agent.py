"""An agent with one tool, a calculator: asks a Pagewire server, runs the calls that come back, and asks again until there is an answer.

    python launch.py cluster start --model NAME        # a model whose chat template knows tools
    python examples/calculator_agent.py "What is 12.5 * (3 + 4)?"

Needs nothing but Python's standard library.
"""

import argparse
import ast
import json
import operator
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

MAX_TURNS = 8
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out an arithmetic expression with + - * / and parentheses.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "for example 2 * (3 + 4)"}},
            "required": ["expression"],
        },
    },
}
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> float:
    """The value of an expression of numbers, + - * / and parentheses. Raises ValueError for anything else."""
    try:
        return _value(ast.parse(expression[:1000], mode="eval").body)
    except (SyntaxError, RecursionError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("only numbers, + - * / and parentheses are known")


def run_call(call: dict[str, Any]) -> str:
    """What the model is told of one call: the result, or what was wrong with it."""
    try:
        return f"{calculate(json.loads(call['function']['arguments'])['expression']):g}"
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: {error}"


def ask(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's next message."""
    body = json.dumps({"messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": 1024}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


def solve(url: str, question: str) -> str:
    """The answer, after as many calls as the model wants. Raises RuntimeError when it goes on calling."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        message = ask(url, messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return str(message["content"])
        for call in calls:
            result = run_call(call)
            print(f"{call['function']['name']}({call['function']['arguments']}) = {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result})
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main() -> int:
    parser = argparse.ArgumentParser(description="An agent with a calculator.")
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    args = parser.parse_args()
    print(solve(args.url, args.question))
    return 0


if __name__ == "__main__":
    sys.exit(main())
