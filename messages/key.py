"""The name of one sequence."""

from typing import Annotated

import msgspec

Key = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Names one sequence (or one question) everywhere inside the cluster. Made by the frontend (random base + counter), never by a client."""
