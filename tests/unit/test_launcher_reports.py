"""`model inspect` and `doctor` on the tiny models and on machines that lack something."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import doctor
from launcher.cli import main


@pytest.fixture(autouse=True)
def place(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_RUN_DIR", str(run_dir / "root"))
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "cache"))


def test_inspect_a_folder(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "inspect", str(models / "dice-byte"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    config = report["config"]
    assert (report["name"], report["format"], config["layers"], config["heads"], config["head_dim"]) == ("dice-byte", "safetensors", 2, 4, 128)
    assert report["kv_bytes_per_token"] == {"float32": 2 * 2 * 4 * 128 * 4, "bfloat16": 2 * 2 * 4 * 128 * 2}
    assert report["weight_bytes"]["float32"] == 4 * report["parameters"]
    assert (report["tokenizer"], report["chat_template"], report["problem"]) == ("tokenizers", True, "")


def test_inspect_says_what_is_missing(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (models / "dice-byte").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    assert main(["model", "inspect", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "model.layers.2.self_attn.q_proj.weight" in text
    assert "--chat-template" in text
    assert "missing" in text


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [("tokenizer.json", None, "tokenizer"), ("tokenizer.json", "{", "tokenizer.json"), ("chat_template.jinja", "{% if %}", "syntax error in line 1")],
    ids=["missing", "broken", "template"],
)
def test_inspect_finds_a_tokenizer_that_cannot_start(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str | None, message: str
) -> None:
    for source in (models / "dice-byte").iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / file).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / file).write_text(text)
    assert main(["model", "inspect", str(tmp_path), "--json"]) == 1
    assert message in json.loads(capsys.readouterr().out)["problem"]


def test_a_cache_below_a_file_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "file" / "cache"))
    assert [(found.level, "is not a folder" in found.text) for found in doctor.check_disk()] == [("fail", True)]


def test_inspect_what_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "inspect"]) == 1
    (tmp_path / "config.json").write_text("{}")
    assert main(["model", "inspect", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "model pull smollm2-135m-instruct" in error
    assert "config.json" in error


def test_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_torch", list)
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"python", "dependencies", "torch", "gpu", "cpu", "memory", "disk", "model", "port", "limits", "run directory"} <= {
        f["topic"] for f in found
    }
    assert all(finding["level"] in {"ok", "warn", "fail"} for finding in found)
    model = next(finding for finding in found if finding["topic"] == "model")
    assert (model["level"], "model pull" in model["advice"]) == ("warn", True)


def test_doctor_fails_when_a_dependency_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.lock").write_text("# a lock\nmsgspec==0.0.1\nno-such-package-here==1.0\n")
    monkeypatch.setattr(doctor, "APP_ROOT", tmp_path)
    monkeypatch.setattr(doctor, "CHECKS", [doctor.check_dependencies])
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "FAIL  dependencies  missing: no-such-package-here" in text
    assert "WARN  dependencies  other than in the lock: msgspec" in text
    assert f"-m pip install -r {tmp_path / 'requirements.lock'}" in text


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        yield holder.getsockname()[1]


def test_doctor_names_a_port_in_use(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PORT", busy)
    assert [(finding.level, finding.text) for finding in doctor.check_port()] == [("warn", f"{busy} is used by another program")]


def test_start_refuses_a_port_in_use(busy: int, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--port", str(busy), "--model", str(models / "dice-byte")]) == 1
    assert f"port {busy} on 127.0.0.1 is used by another program" in capsys.readouterr().err
