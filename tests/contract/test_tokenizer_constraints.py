"""The tokenizer process alone: constraints on tokens and logprobs of prompts on their way to the scheduler and back."""


import msgspec
import pytest

from messages.admit import Abort, Admit
from messages.request import Cancel, TextPrompt, TokenPrompt
from messages.sampling import Constraints, SamplingParams, StopRules
from messages.text import Ended, Started
from messages.tokens import FINISH_LENGTH, PromptScores
from tests.support.tokenizer_neighbours import Neighbours, generate, tokens
from transport.columns import pack_f32, pack_i32


def admitted(neighbours: Neighbours) -> Admit:
    """What was sent last reaches the scheduler, and the frontend hears so."""
    admit = neighbours.scheduled()
    assert isinstance(admit, Admit), admit
    assert isinstance(neighbours.hear(), Started)
    return admit


def test_constraints_go_on_as_tokens(byte: Neighbours) -> None:
    constraints = Constraints(bias={5: 1.0}, allowed=[6, 7], min_tokens=2, bad_words=["a", "ab"])
    byte.send(generate(3, constraints=constraints, truncate=1))
    admit = admitted(byte)
    assert (admit.constraints, admit.banned, len(admit.prompt)) == (constraints, [[64], [220, 64], [64, 65], [220, 64, 65]], 4)
    byte.send(Cancel([3]))
    assert byte.scheduled() == Abort([3])
    refused = {
        "logit_bias": Constraints(bias={312: 1.0}),
        "allowed_token_ids": Constraints(allowed=[312]),
        "bad_words": Constraints(bad_words=["a" * 17]),
    }
    for param, bad in refused.items():
        byte.send(generate(4, constraints=bad))
        ended = byte.hear()
        assert isinstance(ended, Ended)
        assert ended.problem is not None
        assert (ended.problem.status, ended.problem.param) == (400, param)


def test_logprobs_of_a_long_prompt_are_bounded(byte: Neighbours) -> None:
    byte.know(1_000_000)
    for top, length in ((1, 50_000), (0, 100_000)):
        for more in (1, 0):
            request = generate(3, TokenPrompt([64] * (length + more)))
            byte.send(msgspec.structs.replace(request, sampling=SamplingParams(prompt_logprobs=top)))
            if more:
                ended = byte.hear()
                assert isinstance(ended, Ended)
                assert ended.problem is not None
                assert (ended.problem.status, ended.problem.code) == (400, "too_many_logprobs")
            else:
                admitted(byte)
                byte.send(Cancel([3]))
                assert byte.scheduled() == Abort([3])
    twice = generate(3, TokenPrompt([64] * 60_000), keys=[3, 4])
    byte.send(msgspec.structs.replace(twice, sampling=SamplingParams(prompt_logprobs=0)))
    for _ in twice.keys:
        ended = byte.hear()
        assert isinstance(ended, Ended)
        assert ended.problem is not None
        assert "2 times" in ended.problem.message
    byte.know(2048)


@pytest.mark.parametrize("fault", ["", "early token", "gap"])
def test_logprobs_of_a_prompt(byte: Neighbours, fault: str) -> None:
    request = generate(3, TextPrompt("AB"), echo=True)
    request = msgspec.structs.replace(request, sampling=SamplingParams(prompt_logprobs=1), stop=StopRules(max_tokens=0))
    byte.send(request)
    admit = admitted(byte)
    assert (admit.max_tokens, admit.sampling.prompt_logprobs) == (1, 1)
    for start, chosen in ((0, -0.5), (2 if fault == "gap" else 1, -0.25)):
        if fault != "early token" or not start:
            value, rank = pack_f32([chosen]), pack_i32([start + 7])
            byte.send(PromptScores(key=3, start=start, top=1, chosen=value, ranks=rank, top_ids=pack_i32([64]), top_values=value))
    byte.send(PromptScores(key=99, start=0, top=0, chosen=pack_f32([0.0]), ranks=pack_i32([1]), top_ids=b"", top_values=b""))
    byte.send(tokens((3, 64, FINISH_LENGTH, 0)))
    ended = byte.hear()
    assert isinstance(ended, Ended)
    if fault:
        assert ended.problem is not None
        assert ended.problem.status == 500
        assert byte.scheduled() == Abort([3], finished=fault == "early token")
        return
    assert (ended.text, ended.completion_tokens, ended.problem) == ("AB", 0, None)
    assert [(entry.token, entry.hidden, entry.logprob, entry.rank, entry.top) for entry in ended.prompt[1:]] == [
        (32, False, -0.5, 7, [(64, b"a", -0.5)]),
        (33, False, -0.25, 8, [(64, b"a", -0.25)]),
    ]
    assert (ended.prompt[0].token, ended.prompt[0].hidden) == (292, True)
