"""One request in all the company and in all the pieces that a scheduler may give it: what it gets must be the same bits every time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from messages.plan import StepPlan
from messages.result import StepResult
from tests.support.engines import tokens_of
from tests.support.plans import Chunk, Planner, Row
from transport.columns import view_i32

Play = Callable[[Sequence[StepPlan]], list[StepResult]]
Bits = list[tuple[int, bytes]]
"""Of every step that gave the row a token: it, and all that was said of logprobs."""
SUBJECT = 0


@dataclass(frozen=True, kw_only=True)
class Size:
    """`rows` in all, `blocks` of 16 tokens each; the subject's `prompt` and how many tokens it gets."""

    rows: int
    blocks: int
    prompt: int
    tokens: int


def prompt_of(slot: int, length: int, vocab: int) -> list[int]:
    return [(37 * token + 11 * slot + token * token % 7) % vocab for token in range(length)]


def subject(size: Size, vocab: int, **sampling: float) -> Row:
    return Row(
        slot=SUBJECT, prompt=prompt_of(SUBJECT, size.prompt, vocab), blocks=range(size.blocks), seed=4242, logprobs=4,
        **{"temperature": 1.0, **sampling},  # type: ignore[arg-type]
    )  # fmt: skip


def company(size: Size, vocab: int, first: int = 1) -> list[Row]:
    """Other rows: greedy, drawn, filtered, with penalties, by turns."""
    filtered = {"temperature": 1.1, "top_k": 20, "top_p": 0.9}
    kinds: list[dict[str, float]] = [{}, {"temperature": 0.9}, filtered, {"temperature": 0.7, "frequency": 0.3}]
    return [
        Row(
            slot=slot, prompt=prompt_of(slot, 1 + slot * 13 % (size.prompt + 20), vocab), seed=slot,
            blocks=range(slot * size.blocks, (slot + 1) * size.blocks), **kinds[slot % 4],  # type: ignore[arg-type]
        )
        for slot in range(first, size.rows)
    ]  # fmt: skip


def bits_of(results: Sequence[StepResult]) -> Bits:
    """Of the subject."""
    found: Bits = []
    for result in results:
        slots = view_i32(result.slot).tolist()
        if SUBJECT not in slots:
            continue
        place, said = slots.index(SUBJECT), b""
        if result.logprobs is not None and place in (rows := view_i32(result.logprobs.row).tolist()):
            number, counts = rows.index(place), view_i32(result.logprobs.count).tolist()
            piece = slice(4 * sum(counts[:number]), 4 * sum(counts[: number + 1]))
            said = result.logprobs.chosen[4 * number : 4 * number + 4] + result.logprobs.top_ids[piece] + result.logprobs.top[piece]
        found.append((tokens_of(result)[place], said))
    return found


def cut(row: Row, cuts: Sequence[int], start: int = 0) -> list[Chunk]:
    """Its prompt from `start` on, in chunks that end at `cuts` and at the end."""
    ends = [*(end for end in sorted({*cuts}) if start < end < len(row.prompt)), len(row.prompt)]
    begins = [start, *ends[:-1]]
    return [Chunk(row.slot, begin, row.prompt[begin:end], end == len(row.prompt)) for begin, end in zip(begins, ends, strict=True)]


def alone(row: Row, tokens: int, cuts: Sequence[int] = ()) -> list[StepPlan]:
    planner, chunks = Planner(), cut(row, cuts)
    found = [planner.plan(admit=[] if number else [row], chunks=[chunk]) for number, chunk in enumerate(chunks)]
    return [*found, *(planner.plan(decode=None if step else [row.slot]) for step in range(tokens - 1))]


def accompanied(row: Row, others: Sequence[Row], tokens: int, cuts: Sequence[int] = ()) -> list[StepPlan]:
    """Half of the others are there first; the rest comes one by one while it decodes, and half of all go one by one."""
    planner, half = Planner(), len(others) // 2
    there, coming = list(others[:half]), list(others[half:])
    found = [planner.plan(admit=there, chunks=[Chunk(other.slot, 0, other.prompt, True) for other in there])] if there else []
    for number, chunk in enumerate(cut(row, cuts)):
        found.append(planner.plan(admit=[] if number else [row], chunks=[chunk], decode=[other.slot for other in there]))
    for step in range(tokens - 1):
        new, gone = [coming.pop()] if coming else [], [there.pop(0)] if step > tokens // 3 and there else []
        running = [row.slot, *(other.slot for other in there)]
        chunks = [Chunk(other.slot, 0, other.prompt, True) for other in new]
        found.append(planner.plan(release=[other.slot for other in gone], admit=new, chunks=chunks, decode=sorted(running)))
        there += new
    return found


def shared(row: Row, others: Sequence[Row], tokens: int, blocks: int) -> list[StepPlan]:
    """Another row with the same prompt is there first; the subject begins with that one's blocks, as the prefix cache gives them."""
    planner, first = Planner(), replace(others[0], prompt=row.prompt)
    own = replace(row, blocks=[*list(first.blocks)[:blocks], *list(row.blocks)[blocks:]])
    chunk = Chunk(row.slot, 16 * blocks, row.prompt[16 * blocks :], True)
    found = [planner.start(first), planner.plan(admit=[own], chunks=[chunk], decode=[first.slot])]
    return [*found, *(planner.plan(decode=None if step else sorted((row.slot, first.slot))) for step in range(tokens - 1))]


def resumed(row: Row, given: Sequence[int], others: Sequence[Row], tokens: int, cuts: Sequence[int]) -> list[StepPlan]:
    """After a preemption or a crash: the row comes with the tokens it has, which are now prefilled, in pieces."""
    again = replace(row, prompt=[*row.prompt, *given], prompt_length=len(row.prompt))
    return accompanied(again, others, tokens - len(given), cuts)


def scenarios(size: Size, vocab: int, plain: Bits, row: Row) -> Iterator[tuple[str, list[StepPlan], int]]:
    """Name, plans, and from which of the subject's tokens on they give it. `plain`: what it gets alone."""
    others, tokens = company(size, vocab), [token for token, _ in plain]
    yield "alone again", alone(row, size.tokens), 0
    yield "chunks", alone(row, size.tokens, [1, 2, 17, 33, size.prompt - 1]), 0
    for count in (1, 2, 6, 15, 16, 40, len(others)):
        if count <= len(others):
            yield f"beside {count}", accompanied(row, others[:count], size.tokens), 0
    yield "chunks beside all", accompanied(row, others, size.tokens, range(3, size.prompt, 7)), 0
    yield "cached prefix", shared(row, others, size.tokens, (size.prompt - 1) // 16), 0
    cuts = [5, size.prompt, size.prompt + 1]
    for done in (1, size.tokens // 2, size.tokens - 2):
        yield f"again alone after {done}", resumed(row, tokens[:done], [], size.tokens, []), done
        yield f"again in pieces beside some after {done}", resumed(row, tokens[:done], others[:9], size.tokens, cuts), done


def differing(play: Play, size: Size, vocab: int, row: Row) -> list[str]:
    """What gives other bits than the subject gets alone; each is played in a session of its own."""
    plain = bits_of(play(alone(row, size.tokens)))
    assert len(plain) == size.tokens
    assert len({token for token, _ in plain}) > size.tokens // 3  # not stuck in a loop
    return [name for name, plans, first in scenarios(size, vocab, plain, row) if bits_of(play(plans)) != plain[first:]]
