"""Limits of API keys on a clock of the test's own: what is let through, what is told, and when one who waits as long is let through."""

from dataclasses import dataclass
from itertools import count

import pytest

from frontend.accounts import CONCURRENT, MAX_IDLE, REQUESTS, TOKENS, Accounts, duration
from frontend.errors import ApiError
from transport.key_file import KeyLimits


@dataclass(eq=False)
class Request:
    began: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Bench:
    """The accounts of one frontend, and requests that last until they are ended."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.accounts = Accounts(lambda: self.now)

    def begin(self, limits: KeyLimits, name: str = "alice") -> "Running":
        return Running(self, name, limits)

    def refusal(self, limits: KeyLimits, name: str = "alice") -> tuple[str | None, int]:
        """The code and the header of a request that is not let through."""
        with pytest.raises(ApiError) as error:
            self.begin(limits, name)
        assert error.value.status == 429
        return error.value.code, int(error.value.headers()["Retry-After"])


class Running:
    def __init__(self, bench: Bench, name: str, limits: KeyLimits) -> None:
        self.used = Request(bench.now)
        self._bench, self._name = bench, name
        bench.accounts.enter(name, limits, self.used)

    def end(self, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        self.used.prompt_tokens, self.used.completion_tokens = prompt_tokens, completion_tokens
        self._bench.accounts.leave(self._name, self.used)


def test_requests_at_once() -> None:
    bench, limits = Bench(), KeyLimits(requests=2)
    first, second = bench.begin(limits), bench.begin(limits)
    assert bench.refusal(limits) == (CONCURRENT, 1)
    bench.begin(limits, "bob")
    bench.now += 20.0
    first.end()
    third = bench.begin(limits)
    second.end()
    third.end()
    for _ in range(30):
        running = bench.begin(limits)
        bench.now += 20.0
        running.end()
    bench.begin(limits)
    bench.begin(limits)
    bench.now += 5.0
    code, seconds = bench.refusal(limits)
    assert (code, seconds) == (CONCURRENT, 15), "the oldest has run for 5 s, and requests of this key take 20 s"
    bench.now += 60.0
    assert bench.refusal(limits) == (CONCURRENT, 1)
    assert bench.accounts.headers("alice") == {}, "there is no header for that"


@pytest.mark.parametrize("rpm", [1, 7, 60, 1000])
def test_requests_a_minute(rpm: int) -> None:
    bench, limits = Bench(), KeyLimits(rpm=rpm)
    for _ in range(rpm):
        bench.begin(limits).end()
    code, seconds = bench.refusal(limits)
    assert code == REQUESTS
    assert 60 / rpm <= seconds < 60 / rpm + 1
    assert bench.refusal(limits) == (code, seconds), "who is refused uses nothing"
    bench.now += seconds
    bench.begin(limits).end()
    bench.now += 600.0
    let_in = 0
    for _ in range(3 * rpm):
        try:
            bench.begin(limits).end()
            let_in += 1
        except ApiError:
            bench.now += 60.0 / rpm / 2
    assert rpm <= let_in <= 2.1 * rpm + 1, "a minute's worth at once, then the rate"


def test_tokens_a_minute_are_owed_when_there_were_more() -> None:
    bench, limits = Bench(), KeyLimits(tpm=600)
    running = bench.begin(limits)
    running.used.prompt_tokens = 400
    assert bench.accounts.headers("alice")["x-ratelimit-remaining-tokens"] == "200"
    other = bench.begin(limits)
    running.used.completion_tokens = 500
    code, seconds = bench.refusal(limits)
    assert code == TOKENS
    assert seconds == 31, "300 are owed, and 10 come back a second"
    assert bench.accounts.headers("alice") == {
        "x-ratelimit-limit-tokens": "600", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30s",
    }  # fmt: skip
    running.end(400, 500)
    other.end()
    bench.now += seconds
    bench.begin(limits).end(5, 5)


def test_limits_that_are_changed_count_from_the_next_request() -> None:
    bench, limits = Bench(), KeyLimits(rpm=2, tpm=100)
    bench.begin(limits).end(10, 80)
    bench.begin(limits).end(10, 80)
    assert bench.refusal(limits)[0] == REQUESTS
    assert bench.refusal(KeyLimits(rpm=4, tpm=100))[0] == TOKENS
    bench.begin(KeyLimits(rpm=4, tpm=1000)).end()
    bench.begin(KeyLimits(rpm=4)).end()
    assert bench.refusal(KeyLimits(rpm=4))[0] == REQUESTS, "what was used stays used"
    assert bench.accounts.headers("alice")["x-ratelimit-limit-requests"] == "4"


def test_what_was_free_is_not_owed_once_there_is_a_limit() -> None:
    bench = Bench()
    for _ in range(500):
        bench.begin(KeyLimits(tpm=1000)).end()
    bench.begin(KeyLimits(rpm=2, tpm=1000)).end()
    bench.begin(KeyLimits(rpm=2, tpm=1000)).end()
    assert bench.refusal(KeyLimits(rpm=2, tpm=1000)) == (REQUESTS, 30)


def test_accounts_that_owe_nothing_are_forgotten() -> None:
    bench, limits, names = Bench(), KeyLimits(rpm=10, tpm=10), (f"key{number}" for number in count())
    held = bench.begin(limits, "held")
    for _ in range(MAX_IDLE):
        bench.begin(limits, next(names)).end()
    bench.now += 60.0
    bench.begin(limits, next(names)).end()
    assert sorted(bench.accounts._accounts) == ["held", f"key{MAX_IDLE}"]
    held.end()


def test_accounts_without_rates_owe_nothing() -> None:
    bench = Bench()
    for number in range(MAX_IDLE + 1):
        bench.begin(KeyLimits(requests=1), f"key{number}").end()
    assert list(bench.accounts._accounts) == [f"key{MAX_IDLE}"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.1204, "120ms"), (1.0, "1s"), (8.64, "8.64s"), (59.7, "59.7s"), (360.0, "6m0s"), (3725.2, "62m5s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
