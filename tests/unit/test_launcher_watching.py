"""What `cluster start` is told of access logs and spans, and what it makes of it."""

import importlib.util
import os
from pathlib import Path

import pytest

from frontend.args import FrontendArgs
from launcher.cli import build_parser, main
from launcher.specs import ClusterOptions, cluster_specs
from launcher.watching import access_descriptor, watching_from


def watching(*options: str) -> dict[str, object]:
    return watching_from(build_parser("cluster").parse_args(["cluster", "start", *options]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log-format", "text"], "name its file with --access-log FILE"),
        (["--access-log", "/no/such/file"], "/no/such/file cannot be written: No such file or directory"),
        (["--access-log", "/"], "/ is not a file"),
        (["--otlp-endpoint", "127.0.0.1:4318"], "is not the URL of a collector"),
        (["--otlp-endpoint", "grpc://127.0.0.1:4317"], "is not the URL of a collector"),
        (["--otlp-endpoint", "http://"], "is not the URL of a collector"),
        (["--otlp-endpoint", "http://h:99999"], "is not the URL of a collector"),
        (["--otlp-endpoint", "http://h/?key=x"], "is not the URL of a collector"),
        (["--otlp-endpoint", "http://me:secret@h:4318"], "OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "secret" not in error


def test_without_the_extra_spans_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("opentelemetry") else find(name))
    assert main(["cluster", "start", "--port", "0", "--otlp-endpoint", "http://127.0.0.1:4318"]) == 1
    assert "pip install 'pagewire[otel]'" in capsys.readouterr().err


def test_a_log_file_is_made_readable_for_its_owner_or_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert watching("--access-log", "new") == {"access_log": str(tmp_path / "new"), "log_format": "json", "otlp_endpoint": None}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    (tmp_path / "old").write_text("a line\n")
    watching("--access-log", "old", "--log-format", "text")
    assert (tmp_path / "old").read_text() == "a line\n"
    assert watching()["access_log"] is None


def test_standard_output_is_inherited_by_the_frontends_alone() -> None:
    options = ClusterOptions(model_path="/m", model_name="m", port=8000, frontends=2, access_log="", log_format="text", otlp_endpoint="http://h")
    with access_descriptor(options.access_log) as descriptor:
        assert os.fstat(descriptor) == os.fstat(1)
        specs = cluster_specs(options, "/run", descriptor)
    for spec in specs:
        if isinstance(spec.args, FrontendArgs):
            assert (spec.args.access_log, spec.args.access_fd, spec.args.log_format, spec.args.otlp_endpoint) == ("", descriptor, "text", "http://h")
            assert spec.descriptors == (descriptor,)
        else:
            assert spec.descriptors == ()
    with access_descriptor("/file") as nothing:
        assert nothing == -1
