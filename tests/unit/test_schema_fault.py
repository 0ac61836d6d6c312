"""What looking at a client's schema costs the others of its frontend."""

import tracemalloc
from typing import Any

from frontend.schema_fault import MOST_PARTS, fault


def test_no_more_parts_are_listed_than_are_looked_at() -> None:
    schema: dict[str, Any] = {}
    inner = schema
    for _ in range(6):  # a long path
        inner["properties"] = {"x" * 64: {}}
        inner = inner["properties"]["x" * 64]
    inner["properties"] = {f"p{number}": True for number in range(20 * MOST_PARTS)}
    tracemalloc.start()
    try:
        assert fault(schema) is None
        assert tracemalloc.get_traced_memory()[1] < 1000 * MOST_PARTS
    finally:
        tracemalloc.stop()
