"""What the sampler is asked for a step, and its further answers on their way to the host."""

from torch import Tensor

from kernels.reference.sampling import Sampled, SamplingBatch
from worker.resident.parcel import Parcel
from worker.resident.reader import Asked
from worker.resident.wishes import Wishes


def batch_of(columns: tuple[Tensor, ...], filtered: bool) -> SamplingBatch:
    """Of rows with these sampling columns, all of them drawn as the device reads the columns."""
    temperature, top_p, min_p, top_k, seed, position = columns
    return SamplingBatch(
        temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k, seed=seed, position=position,
        random=[0], filtered=[0] if filtered else [],
    )  # fmt: skip


def ask(parcel: Parcel, out: Sampled, wishes: Wishes) -> Asked | None:
    if out.chosen is None or out.top is None or out.top_ids is None:
        return None
    chosen, top, top_ids = parcel.fetch("asked", [out.chosen, out.top, out.top_ids])
    return Asked(rows=wishes.logprob_rows, counts=wishes.logprob_counts, chosen=chosen, top=top, top_ids=top_ids)
