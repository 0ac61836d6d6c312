"""Time as a process has seen it pass."""

from transport.clock import MOST_SECONDS, Clock


def test_a_late_look_counts_a_second_at_most() -> None:
    times = iter([100.0, 100.5, 500.0, 500.25])
    clock = Clock(lambda: next(times))
    assert clock.now == 100.0
    assert [clock.look(), clock.look(), clock.look()] == [100.5, 100.5 + MOST_SECONDS, 100.75 + MOST_SECONDS]
    assert clock.now == 101.75
