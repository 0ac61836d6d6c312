"""Unit tests have no patience of their own: what a thread or another task does in time on any machine, it does here however late it runs."""

import importlib

import pytest

LIMITS = {
    "frontend.access_log": "CLOSE_SECONDS",
    "frontend.explain": "ANSWER_SECONDS",
    "frontend.keepers": "PATIENCE_SECONDS",
    "frontend.peers": "PATIENCE_SECONDS",
    "frontend.responses.journal": "CLOSE_SECONDS",
    "frontend.responses.journal_file": "LOCK_SECONDS",
    "frontend.responses.links": "ANSWER_SECONDS",
    "frontend.spans": "CLOSE_SECONDS",
    "launcher.journal": "PATIENCE_SECONDS",
    "launcher.live": "PATIENCE_SECONDS",
    "scheduler.record_file": "CLOSE_SECONDS",
    "transport.trace": "CLOSE_SECONDS",
}
"""Of who waits for somebody else, by module. A test of the limit sets its own."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in LIMITS.items():
        monkeypatch.setattr(importlib.import_module(name), limit, 60.0)
