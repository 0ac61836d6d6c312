"""A tokenizer process passes questions about sequences on, and what the scheduler must know of a request."""

from pathlib import Path

from messages.admit import Admit
from messages.explain import WAITING, Explain, Explained, Standing
from messages.request import TextPrompt, Tokenize
from messages.text import Started, Tokenized
from tests.support.tokenizer_neighbours import NAME, Neighbours, generate


def test_a_question_goes_to_the_scheduler_and_its_answer_back(run_dir: Path, models: Path) -> None:
    with Neighbours(run_dir, models / "chain-byte") as neighbours:
        neighbours.start()
        neighbours.send(generate(5))
        assert isinstance(neighbours.scheduled(), Admit)
        assert neighbours.hear() == Started(5, 2)
        neighbours.send(Explain(key=9, frontend="frontend1", keys=[5, 6]))
        assert neighbours.scheduled() == Explain(key=9, frontend="frontend1", keys=[5, 6], tokenizer=NAME)
        answer = Explained(key=9, frontend="frontend1", standings=[Standing(key=5, state=WAITING, prompt_tokens=2, place=1, waits_for="slot")])
        neighbours.send(answer)
        assert neighbours.hear("frontend1") == answer

        neighbours.send(Explain(key=9, frontend="nobody", keys=[5]))
        neighbours.send(Explained(key=9, frontend="nobody", standings=[]))
        neighbours.send(Explain(key=9, frontend="frontend0", keys=list(range(257))))
        assert neighbours.nothing_scheduled()
        neighbours.report(lambda report: report.counters.get("bad_frames") == 3)
        neighbours.send(Tokenize(frontend="frontend0", key=1, prompt=TextPrompt("A")))
        assert neighbours.hear() == Tokenized(1, [292, 32])


def test_tenant_and_salt_reach_the_scheduler(run_dir: Path, models: Path) -> None:
    with Neighbours(run_dir, models / "chain-byte") as neighbours:
        neighbours.start().send(generate(5, tenant="t", cache_salt="s", priority=3))
        admit = neighbours.scheduled()
        assert isinstance(admit, Admit)
        assert (admit.tenant, admit.cache_salt, admit.priority) == ("t", "s", 3)
