"""The tokenizer process's conduct: what each message leads to. Runs on the event loop; text work goes to the pool."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from messages.admit import Abort
from messages.cluster import ClusterState
from messages.explain import Explain, Explained
from messages.key import Key
from messages.request import Cancel, Detokenize, FromFrontend, Generate, Tokenize
from messages.text import Detokenized, Ended, Problem, Started, Tokenized
from messages.tokens import FINISH_ERROR, FromScheduler, PromptScores, Refused, Tokens
from tokenizer_proc import problems
from tokenizer_proc.admission import Encoded, Sender, encode
from tokenizer_proc.cluster_view import ClusterView
from tokenizer_proc.detokenizer import decode
from tokenizer_proc.errors import RequestError
from tokenizer_proc.grammar_checks import GrammarChecks
from tokenizer_proc.prompts import PromptEncoder, size_of
from tokenizer_proc.sequences import Sequence, Sequences
from tokenizer_proc.step_texts import Send, StepTexts
from tokenizer_proc.stops import MAX_STOP_CHARACTERS
from tokenizer_proc.text_pool import TextPool
from tokenizer_proc.token_rows import TokenRow, read_rows, read_times
from transport.columns import ColumnError

Accepted = FromFrontend | FromScheduler


class BadMessages(Protocol):
    """Counts a message that decoded but breaks the contract (`transport.sockets.Inbox`)."""

    def reject(self, why: str) -> None: ...


@dataclass
class _Preparation:
    """A Generate whose prompt is being encoded. `keys` are those nobody has cancelled; `incarnation` is that of the frontend; `began`: when."""

    frontend: str
    incarnation: int
    keys: set[Key]
    began: float


@dataclass
class Counters:
    """Only rise. `requests` counts prompts, `aborted` sequences whose client or stop string ended them early."""

    requests: int = 0
    refused: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Service:
    """`frontends` and `scheduler` send to those processes; `inbox` is told of messages that break the contract. `clock` gives seconds."""

    sender: Sender
    encoder: PromptEncoder
    pool: TextPool
    frontends: Mapping[str, Send]
    scheduler: Send
    inbox: BadMessages
    grammars: GrammarChecks
    cluster: ClusterView = field(default_factory=ClusterView)
    sequences: Sequences = field(default_factory=Sequences)
    counters: Counters = field(default_factory=Counters)
    clock: Callable[[], float] = time.monotonic
    _preparing: dict[Key, _Preparation] = field(default_factory=dict)

    @property
    def preparing(self) -> int:
        """Sequences whose prompt is being encoded."""
        return len(self._preparing)

    def handle(self, message: Accepted) -> None:
        """One message from a frontend or the scheduler."""
        match message:
            case Tokens():
                self._tokens(message)
            case Generate():
                self._generate(message)
            case Cancel():
                self._cancel(message.keys, message.finished)
            case PromptScores():
                self._scores(message)
            case Refused():
                self._refused(message)
            case Tokenize():
                self._tokenize(message)
            case Detokenize():
                self._detokenize(message)
            case Explain():
                self._explain(message)
            case Explained():
                self._explained(message)

    def on_cluster(self, state: ClusterState) -> None:
        """What a frontend asked for ends with it. A scheduler's death is the frontends' business: they send again what they still want."""
        if not self.cluster.update(state):
            return
        of_frontends: list[tuple[Key, str, int]] = [(sequence.key, sequence.frontend, sequence.incarnation) for sequence in self.sequences]
        of_frontends += [(key, preparation.frontend, preparation.incarnation) for key, preparation in self._preparing.items()]
        self._cancel([key for key, frontend, incarnation in of_frontends if self.cluster.is_over(frontend, incarnation)])

    def shut_down(self) -> None:
        """Every request is given back to its frontend."""
        running = self.sequences.remove([sequence.key for sequence in self.sequences])
        for sequence in running:
            self._say_problem(sequence.frontend, [sequence.key], problems.shutting_down())
        if running:
            self.scheduler(Abort([sequence.key for sequence in running]))
        for key, preparation in self._preparing.items():
            preparation.keys.discard(key)
            self._say_problem(preparation.frontend, [key], problems.shutting_down())
        self._preparing.clear()

    # Requests

    def _generate(self, request: Generate) -> None:
        keys = request.keys
        if not self._knows(request.frontend):
            return
        if self.cluster.is_over(request.frontend, request.incarnation):
            return
        if not keys or len(keys) != len(request.seeds) or len(set(keys)) != len(keys) or len(request.resumed) not in (0, len(keys)):
            self.inbox.reject(f"generate with {len(keys)} keys, {len(request.seeds)} seeds, {len(request.resumed)} resumed")
            return
        if any(key in self._preparing or key in self.sequences for key in keys):
            self.inbox.reject("generate with a key in use")
            return
        self.counters.requests += 1
        context = self.cluster.context
        if context is None:
            self._refuse(request.frontend, keys, problems.not_ready())
            return
        if (refusal := self._bad_stop(request) or self._bad_constraints(request)) is not None:
            self._refuse(request.frontend, keys, refusal)
            return
        preparation = _Preparation(request.frontend, request.incarnation, set(keys), self.clock())
        self._preparing |= dict.fromkeys(keys, preparation)
        if request.constraint is None:
            self._encode(request, preparation, context, "")
        else:
            self.grammars.check(
                request.constraint,
                lambda program: self._encode(request, preparation, context, program),
                lambda problem: self._refuse(request.frontend, self._finish_preparation(request, preparation), problem),
                tenant=request.tenant,
                size=size_of(request.prompt),
                wanted=lambda: bool(preparation.keys),
            )

    def _encode(self, request: Generate, preparation: _Preparation, context: int, program: str) -> None:
        if not preparation.keys:  # while the grammar was tried everybody left
            return
        self.pool.run(
            size_of(request.prompt),
            lambda: encode(self.encoder, request, context, program),
            lambda encoded: self._admit(request, preparation, encoded),
            lambda problem: self._refuse(request.frontend, self._finish_preparation(request, preparation), problem),
        )

    def _bad_stop(self, request: Generate) -> Problem | None:
        size = self.encoder.vocabulary.size
        if any(not text or len(text) > MAX_STOP_CHARACTERS for text in request.stop.strings):
            return problems.bad_stop(f"A stop string must have 1 to {MAX_STOP_CHARACTERS} characters.")
        beyond = next((number for number in request.stop.token_ids if number >= size), None)
        return None if beyond is None else problems.unknown_token("stop_token_ids", beyond, size)

    def _bad_constraints(self, request: Generate) -> Problem | None:
        size, constraints = self.encoder.vocabulary.size, request.constraints
        if constraints is None:
            return None
        named = {"logit_bias": constraints.bias, "allowed_token_ids": constraints.allowed}
        beyond = ((field_, number) for field_, numbers in named.items() for number in numbers if number >= size)
        found = next(beyond, None)
        return None if found is None else problems.unknown_token(*found, size)

    def _finish_preparation(self, request: Generate, preparation: _Preparation) -> list[Key]:
        """The keys still wanted, in order."""
        wanted = [key for key in request.keys if key in preparation.keys]
        for key in wanted:
            del self._preparing[key]
        return wanted

    def _admit(self, request: Generate, preparation: _Preparation, encoded: Encoded) -> None:
        keys = self._finish_preparation(request, preparation)
        if not keys:
            return
        if request.timeout is not None:
            request = msgspec.structs.replace(request, timeout=max(0.0, request.timeout - (self.clock() - preparation.began)))
        closing = {key: encoded.closing[key] for key in keys if key in encoded.closing}
        keys = [key for key in keys if not isinstance(closing.get(key), Ended)]
        sent = [self.scheduler(admit) for admit in self.sender.admits(request, keys, encoded)] if keys else []
        if not all(sent):
            if any(sent):
                self.scheduler(Abort(keys))
            self._refuse(request.frontend, keys, problems.overloaded())
            return
        self.counters.prompt_tokens += encoded.tokens
        for key in keys:
            self.sequences.add(encoded.sequences[key])
        self.frontends[request.frontend](Started(request.keys[0], encoded.tokens, encoded.opened))
        for answer in closing.values():
            self.counters.completion_tokens += len(answer.ids)
            self.frontends[request.frontend](answer)

    def _cancel(self, keys: Iterable[Key], finished: bool = False) -> None:
        running = []
        for key in keys:
            preparation = self._preparing.pop(key, None)
            if preparation is not None:
                preparation.keys.discard(key)
            running += self.sequences.remove([key])
        if running:
            self.counters.aborted += len(running)
            self.scheduler(Abort([sequence.key for sequence in running], finished))

    # Answers

    def _scores(self, message: PromptScores) -> None:
        sequence = self.sequences.get(message.key)
        if sequence is None or sequence.extras is None:
            return
        try:
            sequence.extras.add(message)
        except ColumnError as error:
            self.inbox.reject(f"scores: {error}")
            step = StepTexts()
            self._lost(sequence, step, problems.incomplete())
            step.send(self.frontends)
            self.scheduler(Abort([sequence.key]))

    def _tokens(self, message: Tokens) -> None:
        try:
            rows = read_rows(message, self.encoder.vocabulary.pieces)
            times = read_times(message) if message.queued else {}
        except ColumnError as error:
            self.inbox.reject(f"tokens: {error}")
            return
        step = StepTexts()
        for key, known in times.items():
            if (sequence := self.sequences.get(key)) is not None and not sequence.tokens:
                step.begin(sequence.frontend, key, known)
        stopped = [row.key for row in rows if self._token(row, message, step)]
        step.send(self.frontends)
        if stopped:
            self.counters.aborted += len(stopped)
            self.scheduler(Abort(stopped, finished=True))

    def _token(self, row: TokenRow, message: Tokens, step: StepTexts) -> bool:
        """Act on one row, telling `step` what the frontend is to hear; True when the sequence is over but the scheduler does not know it."""
        sequence = self.sequences.get(row.key)
        if sequence is None:
            return False
        if row.finish == FINISH_ERROR:
            problem = message.problems.get(row.key) or problems.internal("The sequence failed.")
            self.sequences.remove([row.key])
            step.add(sequence.frontend, Ended(key=row.key, problem=problem, completion_tokens=sequence.tokens))
            return False
        if row.position != sequence.tokens or (not row.position and sequence.extras is not None and sequence.extras.lacks_parts):
            return self._out_of_order(sequence, row, step)
        sequence.cached = message.cached.get(row.key, sequence.cached)
        self.counters.completion_tokens += 1
        answer = sequence.take(row.token, row.finish, row.logprob)
        if answer is not None:
            step.add(sequence.frontend, answer, alone=sequence.extras is not None and sequence.extras.with_ids)
        if isinstance(answer, Ended):
            self.sequences.remove([row.key])
            return not row.finish
        return False

    def _out_of_order(self, sequence: Sequence, row: TokenRow, step: StepTexts) -> bool:
        """A token seen before is ignored; after one that was lost on the way the text would be wrong: the frontend sends the rest again."""
        self.inbox.reject(f"token {row.position} of a sequence that has {sequence.tokens}")
        if row.position < sequence.tokens:
            return False
        self._lost(sequence, step, problems.interrupted() if row.position else problems.incomplete())
        return True

    def _lost(self, sequence: Sequence, step: StepTexts, problem: Problem) -> None:
        self.sequences.remove([sequence.key])
        step.add(sequence.frontend, Ended(key=sequence.key, problem=problem, completion_tokens=sequence.tokens))

    def _refused(self, message: Refused) -> None:
        for sequence in self.sequences.remove([message.key]):
            self._refuse(sequence.frontend, [sequence.key], message.problem)

    def _refuse(self, frontend: str, keys: list[Key], problem: Problem) -> None:
        if keys:
            self.counters.refused += 1
            self._say_problem(frontend, keys, problem, refused=True)

    def _say_problem(self, frontend: str, keys: list[Key], problem: Problem, refused: bool = False) -> None:
        for key in keys:
            self.frontends[frontend](Ended(key=key, problem=problem, refused=refused))

    # Questions about sequences

    def _explain(self, question: Explain) -> None:
        """Pass it on; whoever asked gives up by himself when no answer comes."""
        if self._knows(question.frontend):
            self.scheduler(msgspec.structs.replace(question, tokenizer=self.sender.name))

    def _explained(self, answer: Explained) -> None:
        if self._knows(answer.frontend):
            self.frontends[answer.frontend](answer)

    # Text services

    def _tokenize(self, request: Tokenize) -> None:
        def work() -> Tokenized:
            ids = self.encoder.encode(request.prompt)
            of = self.encoder.vocabulary.pieces.of
            return Tokenized(request.key, ids, [of[number].decode("utf-8", "replace") for number in ids] if request.with_text else [])

        self._answer(request.frontend, request.key, size_of(request.prompt), work)

    def _detokenize(self, request: Detokenize) -> None:
        def work() -> Detokenized:
            vocabulary = self.encoder.vocabulary
            if request.ids and max(request.ids) >= vocabulary.size:
                raise RequestError(problems.unknown_token("tokens", max(request.ids), vocabulary.size))
            return Detokenized(request.key, decode(vocabulary.pieces, request.ids, request.skip_special_tokens))

        self._answer(request.frontend, request.key, len(request.ids), work)

    def _answer(self, frontend: str, key: Key, size: int, work: Callable[[], msgspec.Struct]) -> None:
        if self._knows(frontend):
            self.pool.run(size, work, lambda answer: self._sent(frontend, answer), lambda problem: self._refuse(frontend, [key], problem))

    def _sent(self, frontend: str, answer: msgspec.Struct) -> None:
        self.frontends[frontend](answer)

    def _knows(self, frontend: str) -> bool:
        if frontend in self.frontends:
            return True
        self.inbox.reject(f"a request from {frontend[:80]!r}, which is no frontend of this cluster")
        return False
