"""A client of /metrics that checks, at every scrape, what must hold at every moment."""

import asyncio
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from messages.cluster import INTAKE

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
FINISHED = ("stop", "length")
Labels = dict[str, str]


@dataclass(frozen=True)
class Scrape:
    """One answer of /metrics. `types` by family; `samples` by name, with their labels."""

    types: dict[str, str]
    samples: dict[str, list[tuple[Labels, float]]]

    @classmethod
    def of(cls, text: str) -> "Scrape":
        types: dict[str, str] = {}
        samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            types[family.name] = family.type
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return cls(types, samples)

    def sum(self, name: str, /, **labels: str) -> float:
        """Of the samples of pagewire_`name` that have these labels."""
        return sum(value for found, value in self.samples.get(f"pagewire_{name}", ()) if labels.items() <= found.items())

    def generating(self, **labels: str) -> float:
        """HTTP requests to the generating endpoints that have ended."""
        return sum(self.sum("http_requests_total", handler=handler, **labels) for handler in GENERATING)

    def scheduler(self, name: str) -> float:
        return self.sum("process_count_total", process="scheduler", name=name)

    def check(self) -> None:
        """What adds up at every moment, of the frontends and of the scheduler, each for itself."""
        below = [(name, labels) for name, rows in self.samples.items() for labels, value in rows if value < 0]
        assert all(labels.get("name") == INTAKE for _, labels in below), below  # of a frontend that has not heard of the cluster yet
        ended, live, lost = self.sum("request_success_total"), self.sum("sequences_live"), self.sum("sequences_lost_total")
        assert self.sum("sequences_started_total") == ended + live + lost
        assert self.sum("e2e_request_latency_seconds_count") == ended == self.sum("request_generation_tokens_count")
        well = sum(self.sum("request_success_total", finished_reason=reason) for reason in FINISHED)
        for part in ("queue", "prefill", "decode", "inference"):
            assert self.sum(f"request_{part}_time_seconds_count") == well
        assert self.sum("request_prompt_tokens_sum") == self.sum("prompt_tokens_total")
        assert self.sum("request_generation_tokens_sum") <= self.sum("generation_tokens_total")
        if not lost:
            assert self.sum("requests_received_total") == self.generating() + self.sum("requests_live")
        known = self.scheduler("finished_stop") + self.scheduler("finished_length") + self.scheduler("cancelled") + self.scheduler("errors")
        assert self.scheduler("accepted") == known + self.sum("num_requests_running") + self.sum("num_requests_waiting")
        assert self.sum("iteration_tokens_total_count") == self.scheduler("steps")
        self._check_histograms()

    def _check_histograms(self) -> None:
        for family in (name for name, kind in self.types.items() if kind == "histogram"):
            buckets = [value for _, value in self.samples[f"{family}_bucket"]]
            assert buckets == sorted(buckets), family
            assert [buckets[-1]] == [value for _, value in self.samples[f"{family}_count"]], family

    def check_risen(self, before: "Scrape") -> None:
        """No counter has fallen."""
        for name, rows in before.samples.items():
            if name.endswith(("_total", "_count", "_bucket", "_sum")):
                for labels, value in rows:
                    assert self.sum(name.removeprefix("pagewire_"), **labels) >= value - 1e-9, (name, labels)


@dataclass
class Watch:
    """Scrapes again and again over one connection, which is to say of one frontend, until `stop`."""

    session: aiohttp.ClientSession
    scrapes: int = 0
    last: Scrape | None = None
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def scrape(self) -> Scrape:
        async with self.session.get("/metrics") as response:
            assert response.status == 200
            found = Scrape.of(await response.text())
        found.check()
        if self.last is not None:
            found.check_risen(self.last)
        self.last = found
        self.scrapes += 1
        return found

    async def run(self, pause: float = 0.1) -> None:
        while not self._over.is_set():
            await self.scrape()
            await asyncio.sleep(pause)

    def stop(self) -> None:
        self._over.set()
