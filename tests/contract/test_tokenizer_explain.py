"""A tokenizer process passes questions about sequences on, and what the scheduler must know of a request."""

from messages.admit import Admit
from messages.explain import WAITING, Explain, Explained, Standing
from messages.request import TextPrompt, Tokenize
from messages.text import Started, Tokenized
from tests.support.tokenizer_neighbours import NAME, Neighbours, generate


def test_a_question_goes_to_the_scheduler_and_its_answer_back(byte: Neighbours) -> None:
    byte.send(generate(5))
    assert isinstance(byte.scheduled(), Admit)
    assert byte.hear() == Started(5, 2)
    byte.send(Explain(key=9, frontend="frontend1", keys=[5, 6]))
    assert byte.scheduled() == Explain(key=9, frontend="frontend1", keys=[5, 6], tokenizer=NAME)
    answer = Explained(key=9, frontend="frontend1", standings=[Standing(key=5, state=WAITING, prompt_tokens=2, place=1, waits_for="slot")])
    byte.send(answer)
    assert byte.hear("frontend1") == answer

    byte.send(Explain(key=9, frontend="nobody", keys=[5]))
    byte.send(Explained(key=9, frontend="nobody", standings=[]))
    byte.send(Explain(key=9, frontend="frontend0", keys=list(range(257))))
    assert byte.nothing_scheduled()
    byte.report(lambda report: report.counters.get("bad_frames") == 3)
    byte.send(Tokenize(frontend="frontend0", key=1, prompt=TextPrompt("A")))
    assert byte.hear() == Tokenized(1, [292, 32])


def test_tenant_and_salt_reach_the_scheduler(byte: Neighbours) -> None:
    byte.send(generate(7, tenant="t", cache_salt="s", priority=3))
    admit = byte.scheduled()
    assert isinstance(admit, Admit)
    assert (admit.tenant, admit.cache_salt, admit.priority) == ("t", "s", 3)
