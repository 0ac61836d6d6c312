"""One sequence from its acceptance to its end, and what makes a request unacceptable."""

from dataclasses import dataclass, field
from typing import NamedTuple

from messages.admit import Admit
from messages.sampling import Pooling, SamplingParams
from messages.text import Problem
from scheduler.bias import Bias
from scheduler.errors import ContractError
from scheduler.geometry import Geometry
from scheduler.grammar import Grammar
from scheduler.lives import Moments
from transport.columns import I32, ColumnError, view_i32

WAITING = -1


@dataclass(slots=True, eq=False)
class Request:
    """One sequence (one key). `tokens` (i32) is everything known of it when it last entered the waiting line: the prompt, and after a
    preemption or a worker restart the generated tokens too; while it runs its tokens are in `Slots.history`.

    `slot` is WAITING or the slot it runs in. `score` orders the line (see `scheduler.waiting`), `order` is the order of arrival, `arrived` its
    time, and `began` when it first got a slot, None before. `salt` names the prefixes it may share, None when it shares nothing. `leader` is the
    first choice of the same prompt, None for the first itself. `fitted`: it has been checked against a worker's geometry. `ran`: it had a slot
    before. `cached`: tokens it did not have to compute when it first got one. `hit`: cached tokens last seen while it waited, None before.
    `deadline`: when it is out of time. `reserved`: the tokens, prompt and answer, that it may come to.
    `passes`: how often others went past it. `held`: it may not run in this session (see `scheduler.suspects`). `bias`: changes to its logits,
    `grammar`: what its generated tokens follow.
    `top_scores`: alternatives of its prompt's logprobs, -1 when none are wanted; those at positions below `scored` have been delivered.
    `pooling`: it wants sums of hidden states instead. `moments`: what has happened to it, for people.
    """

    key: int
    seed: int
    sampling: SamplingParams
    end_ids: list[int]
    max_tokens: int | None
    prompt_len: int
    tokens: I32
    order: int
    score: float
    arrived: float
    priority: int
    tenant: str
    salt: str | None
    tokenizer: int = 0
    fitted: bool = False
    leader: "Request | None" = None
    bias: Bias | None = None
    grammar: Grammar | None = None
    top_scores: int = -1
    scored: int = 0
    pooling: Pooling = ""
    slot: int = WAITING
    ran: bool = False
    held: bool = False
    began: float | None = None
    cached: int = 0
    preemptions: int = 0
    deadline: float | None = None
    reserved: int = 0
    hit: int | None = None
    passes: int = 0
    moments: Moments = field(default_factory=Moments)

    @property
    def matchable(self) -> bool:
        """The worker has its grammar, or it needs none."""
        return self.grammar is None or self.grammar.ready

    def limit(self, geometry: Geometry) -> int:
        """Tokens (prompt + generated) at which it ends."""
        return geometry.context if self.max_tokens is None else min(self.prompt_len + self.max_tokens, geometry.context)


class Arrival(NamedTuple):
    """Number and time of a request, and its place in the line."""

    order: int
    time: float
    score: float


def request_of(
    admit: Admit, key: int, seed: int, tokens: I32, bias: Bias | None, leader: Request | None, arrival: Arrival, cache: bool
) -> Request:  # fmt: skip
    """The request of one of the Admit's keys, of which `tokens` are known. `cache` as in `salt_of`."""
    prompt_len = len(admit.prompt) // 4
    return Request(
        key=key,
        seed=seed,
        sampling=admit.sampling,
        end_ids=admit.end_ids,
        max_tokens=admit.max_tokens,
        prompt_len=prompt_len,
        tokens=tokens,
        order=arrival.order,
        score=arrival.score,
        arrived=arrival.time,
        priority=admit.priority,
        tenant=admit.tenant,
        salt=salt_of(admit, leader, arrival.order, cache),
        leader=None if reads_prompt(admit) else leader,
        bias=bias,
        top_scores=admit.sampling.prompt_logprobs,
        pooling=admit.pooling,
        ran=tokens.size > prompt_len,
        deadline=None if admit.timeout is None else arrival.time + admit.timeout,
    )


class Beginning(NamedTuple):
    """What is known of a sequence at its first token: see `messages.tokens.Tokens`."""

    queued: float
    prefilled: float
    cached: int


def beginning(request: Request, now: float) -> Beginning:
    """At its first token. `cached` is what was there before the request came: further choices of a prompt have none."""
    began = now if request.began is None else request.began
    return Beginning(began - request.arrived, now - began, request.cached if request.leader is None else 0)


def read_admit(admit: Admit, tokenizers: dict[str, int]) -> I32:
    """The prompt of a well-formed Admit. Raises ContractError."""
    if admit.tokenizer not in tokenizers:
        raise ContractError(f"admit from an unknown tokenizer {admit.tokenizer!r}")
    if not admit.keys or len(admit.keys) != len(admit.seeds) or len(set(admit.keys)) != len(admit.keys):
        raise ContractError(f"admit with {len(admit.keys)} keys ({len(set(admit.keys))} distinct) and {len(admit.seeds)} seeds")
    try:
        return view_i32(admit.prompt)
    except ColumnError as error:
        raise ContractError(f"admit with a bad prompt column: {error}") from error


def reads_prompt(admit: Admit) -> bool:
    """It wants logprobs or hidden states of its prompt."""
    return admit.sampling.prompt_logprobs >= 0 or admit.pooling != ""


def salt_of(admit: Admit, leader: Request | None, order: int, cache: bool) -> str | None:
    """Requests of one salt share prefixes. Without the `cache` only the choices of one prompt do: `order` is that of the first.

    A request that wants logprobs or hidden states of its prompt shares nothing: they come only from computing it.
    """
    if reads_prompt(admit):
        return None
    if cache:
        return f"{len(admit.tenant)}:{admit.tenant}{admit.cache_salt}"
    if leader is not None:
        return leader.salt
    return str(order) if len(admit.keys) > 1 else None


def objection(tokens: I32, max_tokens: int | None) -> Problem | None:
    """What is wrong with a request whatever the worker, or None."""
    if tokens.size == 0:
        return Problem(status=400, code="empty_prompt", message="the prompt is empty: it must have at least one token", param="prompt")
    if max_tokens == 0:
        return Problem(status=400, code="invalid_max_tokens", message="max_tokens must be at least 1", param="max_tokens")
    return None


def misfit(tokens: I32, bias: Bias | None, geometry: Geometry) -> Problem | None:
    """Why these tokens and one more cannot run on this worker, or None."""
    if tokens.size + 1 > geometry.context:
        return Problem(
            status=400,
            code="context_length_exceeded",
            message=f"the prompt has {tokens.size} tokens; with at least one to generate the limit is {geometry.context}",
            param="prompt",
        )
    if tokens.min() < 0 or tokens.max() >= geometry.vocab:
        return Problem(status=400, code="invalid_token", message=f"token ids must be 0 to {geometry.vocab - 1}", param="prompt")
    if bias is not None and bias.largest >= geometry.vocab:
        return Problem(status=400, code="invalid_token", message=f"token ids to favour or to avoid must be 0 to {geometry.vocab - 1}")
    return None


def fit(request: Request, geometry: Geometry) -> Problem | None:
    """Note that this request has met a worker; why it cannot run there, or None. One that could run on the worker before is not to blame."""
    known, request.fitted = request.fitted, True
    problem = misfit(request.tokens, request.bias, geometry)
    if problem is not None and known:
        return Problem(status=503, code="worker_lost", message="the model came back too small for this sequence: " + problem.message)
    return problem
