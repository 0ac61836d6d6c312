"""`read_config`: the one description of a model, from a folder with config.json or from a .gguf file."""

from pathlib import Path

from checkpoint.config_gguf import config_from_gguf
from checkpoint.config_json import config_from_folder
from checkpoint.errors import CheckpointError
from checkpoint.structs import ModelConfig, RopeConfig

__all__ = ["ModelConfig", "RopeConfig", "read_config"]


def read_config(path: Path) -> ModelConfig:
    """The configuration of the checkpoint at `path`. Raises CheckpointError when there is none or it is not supported."""
    if path.is_dir():
        return config_from_folder(path)
    if path.is_file():
        return config_from_gguf(path)
    raise CheckpointError(f"{path}: no such file or folder; give a folder with config.json and *.safetensors, or a .gguf file")
