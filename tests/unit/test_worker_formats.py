"""Number formats by name, and what is said where they cannot be."""

import pytest
import torch

from worker.formats import KV_DTYPES, resolve_dtype, resolve_kv_dtype, resolve_weights

CUDA = torch.device("cuda", 0)


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA A100")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))


def test_auto_follows_the_device() -> None:
    assert resolve_dtype("auto") == torch.float32
    assert resolve_dtype("auto", CUDA) == torch.bfloat16
    assert resolve_kv_dtype("auto", torch.bfloat16) == torch.bfloat16
    assert resolve_weights("auto", torch.float32) is False


@pytest.mark.usefixtures("hopper")
def test_fp8_on_hopper() -> None:
    assert resolve_kv_dtype("fp8", torch.bfloat16, CUDA) == torch.float8_e4m3fn
    assert resolve_weights("fp8", torch.bfloat16, CUDA) is True
    with pytest.raises(ValueError, match="computes in bfloat16"):
        resolve_weights("fp8", torch.float32, CUDA)


@pytest.mark.usefixtures("ampere")
def test_fp8_needs_its_instructions() -> None:
    with pytest.raises(ValueError, match=r"--kv-dtype fp8 needs a GPU of compute capability 8\.9 or newer .*NVIDIA A100 has 8\.0: leave it out"):
        resolve_kv_dtype("fp8", torch.bfloat16, CUDA)
    with pytest.raises(ValueError, match="--weights fp8 needs a GPU of compute capability"):
        resolve_weights("fp8", torch.bfloat16, CUDA)
    assert resolve_kv_dtype("bfloat16", torch.float32, CUDA) == torch.bfloat16


def test_a_cpu_keeps_keys_in_fp8_but_not_weights() -> None:
    assert resolve_kv_dtype("fp8", torch.float32) == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="--weights fp8 needs a GPU"):
        resolve_weights("fp8", torch.float32)


def test_unknown_names_are_answered_with_the_known() -> None:
    with pytest.raises(ValueError, match=r"not one of auto, float32, bfloat16$"):
        resolve_dtype("fp8")
    with pytest.raises(ValueError, match=rf"not one of auto, {', '.join(KV_DTYPES)}$"):
        resolve_kv_dtype("int8", torch.float32)
    with pytest.raises(ValueError, match=r"not one of auto, fp8$"):
        resolve_weights("int4", torch.float32)
