"""What one frontend counts, in vLLM's shapes under the prefix `pagewire_`, so that dashboards port by renaming. `docs/metrics.md` has them all.

Counting rules. A *sequence* is one choice. It is accepted when its first token has been computed or when it ends otherwise than by a refusal, and
ends exactly once in `request_success_total{finished_reason}`: stop, length, abort (the client went away) or error. Refused requests are never
accepted and count in `requests_refused_total` only. A prompt counts once however many choices share it; tokens of aborted sequences count as far as
they arrived.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric

from frontend.access_log import AccessLog, AccessLogCollector
from frontend.accounts import CONCURRENT, REQUESTS, TOKENS
from frontend.by_model import Follower, ModelCounter, ModelGauge, ModelHistogram
from frontend.cluster import ClusterView
from frontend.cluster_metrics import ClusterCollector
from frontend.histogram import TokenHistogram
from frontend.metric_names import PREFIX
from frontend.shared_metrics import LostSequences, Sum
from frontend.streams import SLOW_READER
from messages.text import DEADLINE_EXCEEDED, FINISH_LENGTH, FINISH_STOP, QUEUE_FULL, QUEUE_TOO_SLOW

if TYPE_CHECKING:
    from frontend.streams import Group, Run, Sequence

F = TypeVar("F", bound=Follower)

FINISH_REASONS = (FINISH_STOP, FINISH_LENGTH, "abort", "error")
LIMITED = frozenset({QUEUE_FULL, QUEUE_TOO_SLOW, CONCURRENT, REQUESTS, TOKENS})
"""Codes of 429."""
STARTED, ENDED = PREFIX + "sequences_started", PREFIX + "request_success"

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_PART = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_E2E = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_CHOICES = (1, 2, 5, 10, 20, 64)


class Metrics:
    """All numbers of one frontend in `registry`. A scrape has those of the others on its port added, and the cluster's. `name` is its own.

    `model`: what is served now, which everything that has no other label counts for.
    """

    def __init__(self, model_name: str, view: ClusterView, name: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.model = model_name
        self._followers: list[Follower] = []
        self.received = self._counter("requests_received", "Requests to the generating endpoints.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests.")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Prompt tokens of finished requests that the prefix cache had.")
        self.generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._started = self._counter("sequences_started", "Sequences (choices) that were accepted.")
        self.first_token = self._histogram("time_to_first_token_seconds", "Seconds from arrival to a sequence's first token.", _TTFT)
        self.inter_token = TokenHistogram(PREFIX + "inter_token_latency_seconds", "Seconds between tokens of a sequence.", _ITL, model_name)
        self.registry.register(self.inter_token)
        self._followers.append(self.inter_token)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean seconds between tokens of a finished sequence.", _ITL)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Seconds from arrival to the end of a sequence.", _E2E)
        self._queue = self._histogram("request_queue_time_seconds", "Seconds a finished sequence waited for its slot.", _PART)
        self._prefill = self._histogram("request_prefill_time_seconds", "Seconds of a finished sequence from its slot to its first token.", _PART)
        self._decode = self._histogram("request_decode_time_seconds", "Seconds of a finished sequence from its first token to its end.", _PART)
        self._inference = self._histogram("request_inference_time_seconds", "Seconds of a finished sequence from its slot to its end.", _PART)
        self._request_prompt = self._histogram("request_prompt_tokens", "Tokens of each accepted prompt.", _TOKENS)
        self._request_computed = self._histogram("request_prefill_kv_computed_tokens", "Those of a finished one that were computed.", _TOKENS)
        self._request_generation = self._histogram("request_generation_tokens", "Generated tokens of each ended sequence.", _TOKENS)
        self._params_n = self._histogram("request_params_n", "Choices for each prompt of an accepted request.", _CHOICES)
        self._params_max = self._histogram("request_params_max_tokens", "max_tokens of the accepted requests that have it.", _TOKENS)
        self._finished = self._labelled("request_success", "Ended sequences by reason.", "finished_reason")
        self._refused = self._labelled("requests_refused", "Requests to the generating endpoints answered with an error.", "status")
        self._limited = self._labelled("requests_limited", "Those answered with 429 by what was exhausted.", "reason")
        self._expired = self._counter("requests_expired", "Requests that did not end within their timeout, streamed or not.")
        self._slow = self._counter("slow_readers", "Streams that were cut because their clients did not read them.")
        self._show_reasons()
        self._http = self._labelled("http_requests", "Ended HTTP requests; 499: the client went away.", "handler", "method", "status")
        self.requests_live = self._gauge("requests_live", "Requests to the generating endpoints that have not ended.")
        self.live = self._gauge("frontend_live_sequences", "Sequences and questions about text that the frontend waits for.")
        self._accepted_live = self._gauge("sequences_live", "Accepted sequences that have not ended.")
        latencies = CollectorRegistry(auto_describe=False)
        latencies.register(self.first_token)
        latencies.register(self.inter_token)
        self._latencies = Sum(latencies, view, name)
        self._scraped = CollectorRegistry(auto_describe=False)
        self._scraped.register(Sum(self.registry, view, name))
        self._scraped.register(LostSequences(view, self, STARTED, ENDED))
        self._scraped.register(ClusterCollector(self, view))

    def serve(self, model: str) -> None:
        """From now on this model is served. May be called again."""
        if model != self.model:
            self.model = model
            for follower in self._followers:
                follower.serve(model)
            self._show_reasons()

    def _show_reasons(self) -> None:
        """All of them, also those that nothing has ended for."""
        for reason in FINISH_REASONS:
            self._finished.labels(self.model, reason)

    def accepted(self, group: "Group") -> None:
        """The sequences of one prompt run. May be called again."""
        if group.counted:
            return
        group.counted = True
        tokens, run = group.prompt_tokens or 0, group.sequences[0].run
        self._started.inc(len(group.sequences))
        self._accepted_live.inc(len(group.sequences))
        self._prompt_tokens.inc(tokens)
        self._request_prompt.observe(tokens)
        if sum(other.counted for other in run.groups) == 1:
            self._request(run)

    def _request(self, run: "Run") -> None:
        self._params_n.observe(run.n)
        if run.max_tokens is not None:
            self._params_max.observe(run.max_tokens)

    def ended(self, sequence: "Sequence", reason: str) -> None:
        """Once for each accepted sequence."""
        self._accepted_live.dec()
        self._finished.labels(self.model, reason if reason in FINISH_REASONS else "error").inc()
        self._e2e.observe(sequence.ended - sequence.run.arrived)
        self._request_generation.observe(sequence.tokens)
        if reason in (FINISH_STOP, FINISH_LENGTH):
            self._finished_well(sequence)

    def _finished_well(self, sequence: "Sequence") -> None:
        group = sequence.group
        if group is not None and sequence is group.sequences[0]:
            self._cached_tokens.inc(group.cached_tokens)
            self._request_computed.observe((group.prompt_tokens or 0) - group.cached_tokens)
        if sequence.tokens > 1 and sequence.first_token is not None and sequence.last_token is not None:
            self._per_token.observe((sequence.last_token - sequence.first_token) / (sequence.tokens - 1))
        if sequence.begun is not None:
            decode = sequence.ended - sequence.begun
            self._queue.observe(sequence.queued)
            self._prefill.observe(sequence.prefilled)
            self._decode.observe(decode)
            self._inference.observe(sequence.prefilled + decode)

    def watch_log(self, log: AccessLog) -> None:
        """Show what becomes of the lines of an access log."""
        self.registry.register(AccessLogCollector(log, self))

    def refused(self, status: int) -> None:
        self._refused.labels(self.model, str(status)).inc()

    def limited(self, code: str | None) -> None:
        """A request was answered with 429; `code` is that of its error."""
        self._limited.labels(self.model, code if code in LIMITED else "other").inc()

    def went_wrong(self, code: str | None) -> None:
        """A request is over; `code` is that of what went wrong with it, before its answer or in the middle of it."""
        if code == DEADLINE_EXCEEDED:
            self._expired.inc()
        elif code == SLOW_READER.code:
            self._slow.inc()

    def http(self, handler: str, method: str, status: int) -> None:
        """An HTTP request has ended. `handler` is one of the routes, `method` one of HTTP's."""
        self._http.labels(self.model, handler, method, str(status)).inc()

    def latencies(self) -> Iterable[Metric]:
        """Of all frontends: the histograms of the seconds to the first token, and between tokens."""
        return self._latencies.collect()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._scraped)

    def _labelled(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, help_text, ["model_name", *labels], registry=self.registry)

    def _counter(self, name: str, help_text: str) -> ModelCounter:
        return self._following(ModelCounter(self._labelled(name, help_text), self.model))

    def _gauge(self, name: str, help_text: str) -> ModelGauge:
        return self._following(ModelGauge(Gauge(PREFIX + name, help_text, ["model_name"], registry=self.registry), self.model))

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> ModelHistogram:
        family = Histogram(PREFIX + name, help_text, ["model_name"], buckets=buckets, registry=self.registry)
        return self._following(ModelHistogram(family, self.model))

    def _following(self, metric: F) -> F:
        self._followers.append(metric)
        return metric
