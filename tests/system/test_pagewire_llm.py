"""The public package with a cluster of its own: started, used, gone."""

import json
from pathlib import Path

import psutil
import pytest

from pagewire import LLM, PagewireError, SamplingParams
from tests.support.certificates import make_certificate


def processes(folder: Path) -> list[psutil.Process]:
    """The supervisor and the processes of the one cluster below `folder`."""
    (info,) = folder.glob("*/*/info.json")
    supervisor = psutil.Process(json.loads(info.read_bytes())["pid"])
    return [supervisor, *supervisor.children(recursive=True)]


def test_llm_starts_generates_and_leaves_nothing(models: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over https: it trusts the certificate of its own cluster, which no authority has signed."""
    monkeypatch.setattr("tempfile.tempdir", str(run_dir))
    prompts: list[str | list[int]] = ["ab", "x", [97, 98]]
    greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    certificate, key = (str(path) for path in make_certificate(tmp_path, "example"))
    with LLM(str(models / "chain-byte"), kv_tokens=4096, threads=1, tls_cert=certificate, tls_key=key) as llm:
        assert llm.url.startswith("https://")
        started = processes(run_dir)
        assert len(started) == 5
        first, second, third = llm.generate(prompts, greedy)
        assert first.usage["completion_tokens"] == 8
        assert first.finish_reason == "length"
        assert "".join(llm.stream("ab", greedy)) == first.text
        assert [item.text for item in llm.generate("x", greedy)] == [second.text]
        assert third.usage["prompt_tokens"] == 2
        assert llm.models() == ["chain-byte"]
        with pytest.raises(PagewireError, match="temperature") as refused:
            llm.generate("x", SamplingParams(temperature=-1))
        assert (refused.value.status, refused.value.param) == (400, "temperature")
        url = llm.url
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert list(run_dir.iterdir()) == []
    with LLM(url=url) as gone, pytest.raises(OSError, match="refused"):
        gone.models()
