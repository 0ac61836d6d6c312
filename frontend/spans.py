"""OpenTelemetry spans of requests, sent over OTLP/HTTP by the SDK's own thread. Imported only with --otlp-endpoint: the SDK is an optional extra.

Each request to a generating endpoint is a span, with the attributes of the semantic conventions for generative AI, below that of the client's
`traceparent` header if there is one. Its children `queue`, `prefill` and `decode` are those of each choice. Nothing of a text goes into a span. What
a collector does not take is lost, and nothing else happens.
"""

import threading
import time
from collections.abc import Callable, Iterator

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from frontend.record import CLIENT_CLOSED, OPERATIONS, Record
from frontend.streams import Sequence
from frontend.version import VERSION
from messages.sampling import SamplingParams

SERVICE = "pagewire"
MAX_CHOICES = 16
"""Choices of one request that have spans of their own."""
MAX_STATE = 512
EXPORT_SECONDS = 5.0
CLOSE_SECONDS = 2.0

Value = str | int | float | bool | list[str]


class Spans:
    """`endpoint`: an HTTP URL; without a path, spans go to its /v1/traces. `exporter` takes them instead, in tests. `served`: the model now."""

    def __init__(self, endpoint: str, frontend: str, served: Callable[[], str], exporter: SpanExporter | None = None) -> None:
        self._served = served
        self._provider = TracerProvider(resource=_resource(frontend), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(traces_url(endpoint), timeout=EXPORT_SECONDS)))
        self._tracer = self._provider.get_tracer(SERVICE, VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, record: Record) -> None:
        """A watcher of requests."""
        operation = OPERATIONS.get(record.handler)
        if operation is None:
            return
        clock = _Clock()
        ended = record.began if record.ended is None else record.ended
        carrier = {name: value for name, value in record.trace.items() if len(value) <= MAX_STATE}
        span = self._tracer.start_span(
            f"{operation} {self._model(record)}",
            self._propagator.extract(carrier),
            SpanKind.SERVER,
            attributes=dict(self._attributes(record, operation)),
            start_time=clock.unix(record.began),
        )
        if record.problem is not None or record.status == CLIENT_CLOSED:
            span.set_attribute("error.type", record.problem or str(record.status))
        if record.status >= 500 or (record.problem is not None and record.status < 400):
            span.set_status(StatusCode.ERROR)
        if span.is_recording():
            self._choices(record, span, clock)
        span.end(clock.unix(ended))

    def _model(self, record: Record) -> str:
        return self._served() if record.entry is None else record.entry.run.model

    def _attributes(self, record: Record, operation: str) -> Iterator[tuple[str, Value]]:
        yield "gen_ai.operation.name", operation
        yield "gen_ai.provider.name", SERVICE
        yield "gen_ai.request.model", self._model(record)
        yield "gen_ai.response.model", self._model(record)
        yield "gen_ai.usage.input_tokens", record.prompt_tokens
        yield "gen_ai.usage.output_tokens", record.completion_tokens
        yield "http.request.method", record.method
        yield "http.route", record.handler
        yield "http.response.status_code", record.status
        yield "client.address", record.client
        yield "pagewire.request_id", record.request_id
        if record.entry is not None:
            run = record.entry.run
            yield "gen_ai.response.id", record.entry.id
            yield "gen_ai.usage.cache_read.input_tokens", run.cached_tokens
            yield "gen_ai.response.finish_reasons", [choice.end or "" for choice in record.choices()]
            if operation != "embeddings":
                yield "gen_ai.request.stream", record.entry.stream
                yield from _asked(run.n, run.max_tokens, run.sampling)

    def _choices(self, record: Record, span: Span, clock: "_Clock") -> None:
        context = set_span_in_context(span)
        for choice, _ in zip(record.choices(), range(MAX_CHOICES), strict=False):
            for name, begin, end in _parts(choice):
                child = self._tracer.start_span(name, context, attributes={"pagewire.choice": choice.index}, start_time=clock.unix(begin))
                child.end(clock.unix(end))

    def close(self) -> None:
        """Send what is left, but do not wait for ever for a collector that does not answer."""
        thread = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)


class _Clock:
    """Monotonic seconds as the nanoseconds of UNIX time that spans have."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def unix(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset


def _asked(n: int, max_tokens: int | None, sampling: SamplingParams | None) -> Iterator[tuple[str, Value]]:
    yield "gen_ai.request.choice.count", n
    if max_tokens is not None:
        yield "gen_ai.request.max_tokens", max_tokens
    if sampling is not None:
        yield "gen_ai.request.temperature", sampling.temperature
        yield "gen_ai.request.top_p", sampling.top_p
        if sampling.top_k:
            yield "gen_ai.request.top_k", sampling.top_k
        yield "gen_ai.request.frequency_penalty", sampling.frequency_penalty
        yield "gen_ai.request.presence_penalty", sampling.presence_penalty


def _parts(choice: Sequence) -> Iterator[tuple[str, float, float]]:
    """What a sequence did one after the other, as far as it is known: name, begin and end. The scheduler's times end where its first token came."""
    if choice.begun is None:
        return
    arrived = choice.run.arrived
    slot = max(arrived, choice.begun - choice.prefilled)
    yield "queue", max(arrived, slot - choice.queued), slot
    yield "prefill", slot, choice.begun
    yield "decode", choice.begun, max(choice.begun, choice.ended)


def _resource(frontend: str) -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count before our own name."""
    found = Resource.create({"service.version": VERSION, "service.instance.id": frontend})
    unnamed = str(found.attributes.get("service.name", "")).startswith("unknown_service")
    return found.merge(Resource({"service.name": SERVICE})) if unnamed else found


def traces_url(endpoint: str) -> str:
    """The URL that takes spans."""
    scheme, _, rest = endpoint.partition("://")
    host, _, path = rest.partition("/")
    return endpoint if path else f"{scheme}://{host}/v1/traces"
