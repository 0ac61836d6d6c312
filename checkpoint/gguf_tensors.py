"""The tensors of a GGUF file under the names and in the row order that Hugging Face uses."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkpoint.errors import CheckpointError
from checkpoint.gguf_file import GgufTensorInfo, map_file, parse_header
from checkpoint.gguf_kinds import PLAIN, check_supported, dequantise
from checkpoint.source import RawTensor, TensorInfo
from checkpoint.structs import ModelConfig

GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PATTERN = re.compile(r"(?:blk\.(0|[1-9]\d{0,5})\.)?([a-z_]+)\.(weight|bias)")
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name with no counterpart stays as it is."""
    match = PATTERN.fullmatch(name)
    if match is None:
        return name
    layer, part, suffix = match.groups()
    if layer is None:
        return f"{GLOBAL[part]}.{suffix}" if part in GLOBAL else name
    return f"model.layers.{layer}.{LAYER[part]}.{suffix}" if part in LAYER else name


def rotate_half_rows(heads: int, rows: int) -> NDArray[np.intp]:
    """The order that undoes llama.cpp's row shuffle: within a head, pairs (2i, 2i+1) go back to (i, i + head_dim/2). Shape [rows]."""
    half = rows // heads // 2
    return np.arange(rows).reshape(heads, half, 2).swapaxes(1, 2).reshape(-1)


class GgufTensors:
    """A TensorSource over one GGUF file. For the llama architecture the rows of the q and k projections are put back in Hugging Face order."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.path = path
        self.config = config
        self.data = map_file(path)
        header = parse_header(self.data, str(path))
        self.shuffled = header.metadata.get("general.architecture") == "llama"
        self.stored: dict[str, GgufTensorInfo] = {}
        for name, info in header.tensors.items():
            check_supported(info.kind, name)
            if hf_name(name) in self.stored:
                raise CheckpointError(f"{path}: two tensors stand for {hf_name(name)}")
            self.stored[hf_name(name)] = info

    def names(self) -> dict[str, TensorInfo]:
        """All tensors by name."""
        return {name: TensorInfo(info.shape, DTYPES.get(info.kind, "float32"), info.kind) for name, info in self.stored.items()}

    def info(self, name: str) -> GgufTensorInfo:
        """The tensor's place in the file."""
        if name not in self.stored:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        return self.stored[name]

    def order(self, name: str) -> NDArray[np.intp] | None:
        """The row order to apply to a stored tensor, None for most."""
        heads = {"q_proj": self.config.heads, "k_proj": self.config.kv_heads}.get(name.split(".")[-2] if "." in name else "")
        if not self.shuffled or heads is None:
            return None
        rows = self.info(name).shape[0]
        if rows % (2 * heads):
            raise CheckpointError(f"{self.path}: {name} has {rows} rows, which {heads} heads do not divide")
        return rotate_half_rows(heads, rows)

    def stored_bytes(self, info: GgufTensorInfo) -> NDArray[np.uint8]:
        """A view of the tensor's bytes."""
        return np.frombuffer(self.data, np.uint8, info.nbytes, info.offset)

    def read(self, name: str) -> NDArray[np.generic]:
        """The values: float32, float16, or uint16 holding bfloat16; quantised ones dequantised to float32."""
        info, order = self.info(name), self.order(name)
        raw = self.stored_bytes(info)
        plain = info.kind in PLAIN
        values: NDArray[np.generic] = raw.view(PLAIN[info.kind]).reshape(info.shape) if plain else dequantise(raw, info.kind, info.shape)
        return values if order is None else values[order]

    def read_raw(self, name: str) -> RawTensor:
        """The stored bytes, uint8 [rows, bytes]; a vector is one row."""
        info, order = self.info(name), self.order(name)
        rows = info.shape[0] if len(info.shape) > 1 else 1
        data = self.stored_bytes(info).reshape(rows, -1)
        return RawTensor(info.kind, info.shape, data if order is None or rows == 1 else data[order])

    def close(self) -> None:
        """Lets go of the file; the operating system unmaps it when the last array is gone."""
        self.stored = {}
