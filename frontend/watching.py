"""Who is told of every request that has ended: the access log and the spans, where they were asked for."""

from collections.abc import Callable

from frontend.access_line import formatter
from frontend.access_log import AccessLog
from frontend.args import FrontendArgs
from frontend.metrics import Metrics
from frontend.record import Record, Watcher


class Watching:
    """`served`: the model now. `close` writes and sends what is left."""

    def __init__(self, args: FrontendArgs, metrics: Metrics, served: Callable[[], str]) -> None:
        self._log = None if args.access_log is None else AccessLog(args.access_log or None, args.access_fd)
        self._format = formatter(args.log_format, args.name)
        self._spans = None
        watchers: list[Watcher] = []
        if self._log is not None:
            metrics.watch_log(self._log)
            watchers.append(self._write)
        if args.otlp_endpoint is not None:
            from frontend.spans import Spans  # an optional extra, and slow to import

            self._spans = Spans(args.otlp_endpoint, args.name, served)
            watchers.append(self._spans.ended)
        self.watchers = tuple(watchers)

    def _write(self, record: Record) -> None:
        if self._log is not None:
            self._log.add(self._format(record))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._spans is not None:
            self._spans.close()
