"""The tensors of a folder with model.safetensors, or with shards and their index."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkpoint.errors import CheckpointError
from checkpoint.fields import decode_object, read_bounded
from checkpoint.safetensors_file import DTYPES, SafetensorsFile
from checkpoint.source import RawTensor, TensorInfo

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
SHARD = re.compile(r"[^/\\\0]{1,200}\.safetensors")
KINDS = {dtype: kind for kind, (dtype, _) in DTYPES.items()}


def weight_map(folder: Path) -> dict[str, str]:
    """Tensor name -> file name from the index; file names are plain names inside the folder."""
    path = folder / INDEX
    found = decode_object(read_bounded(path, MAX_INDEX_BYTES), str(path)).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise CheckpointError(f"{path}: `weight_map` is missing or empty")
    for name, file in found.items():
        if not isinstance(file, str) or SHARD.fullmatch(file) is None:
            raise CheckpointError(f"{path}: {name[:80]!r} is in {str(file)[:80]!r}; expected the name of a .safetensors file in the same folder")
    return found


def no_weights(folder: Path) -> CheckpointError:
    """The error for a folder without safetensors, with advice that fits what is there."""
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles:
        advice = "convert them to safetensors or use a GGUF file"
        return CheckpointError(f"{folder}: only pickled weights ({pickles[0]}), which can run code when they are loaded; {advice}")
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        return CheckpointError(f"{folder}: found {', '.join(others[:4])} but neither {SINGLE} nor {INDEX}; rename the file or add the index")
    return CheckpointError(f"{folder}: no weights; expected {SINGLE}, or shards with {INDEX}")


def open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> open file that holds it."""
    if (folder / SINGLE).is_file():
        file = SafetensorsFile(folder / SINGLE)
        return dict.fromkeys(file.entries, file)
    if not (folder / INDEX).is_file():
        raise no_weights(folder)
    index = weight_map(folder)
    names = sorted(set(index.values()))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(f"{folder}: {len(missing)} of {len(names)} shards are missing: {', '.join(missing[:8])}; download them again")
    files = {name: SafetensorsFile(folder / name) for name in names}
    return place_tensors(index, files, folder)


def place_tensors(index: dict[str, str], files: dict[str, SafetensorsFile], folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> file, refusing tensors in two shards and index entries whose shard lacks them."""
    places: dict[str, SafetensorsFile] = {}
    for file in files.values():
        for name in file.entries:
            if name in places:
                raise CheckpointError(f"{folder}: tensor {name} is in both {places[name].path.name} and {file.path.name}")
            places[name] = file
    if lost := [name for name, file_name in index.items() if places.get(name) is not files[file_name]]:
        raise CheckpointError(f"{folder}: {INDEX} names {lost[0]!r} in {index[lost[0]]}, which does not hold it ({len(lost)} such tensors)")
    return places


class SafetensorsTensors:
    """A TensorSource over one or several *.safetensors files."""

    def __init__(self, folder: Path) -> None:
        self.places = open_shards(folder)

    def names(self) -> dict[str, TensorInfo]:
        """All tensors by name."""
        entries = {name: file.entries[name] for name, file in self.places.items()}
        return {name: TensorInfo(entry.shape, entry.dtype, KINDS.get(entry.dtype, entry.dtype)) for name, entry in entries.items()}

    def file_of(self, name: str) -> SafetensorsFile:
        """The file that holds the tensor."""
        if name not in self.places:
            raise CheckpointError(f"there is no tensor {name}")
        return self.places[name]

    def read(self, name: str) -> NDArray[np.generic]:
        """The values: float32, float16, or uint16 holding bfloat16."""
        return self.file_of(name).read(name)

    def read_raw(self, name: str) -> RawTensor:
        """The values as stored, uint8 [rows, bytes]."""
        values = np.atleast_1d(self.read(name))
        rows = values.shape[0] if values.ndim > 1 else 1
        kind = KINDS[self.file_of(name).entries[name].dtype]
        return RawTensor(kind, tuple(values.shape), values.reshape(-1).view(np.uint8).reshape(rows, values.nbytes // max(rows, 1)))

    def close(self) -> None:
        """Lets go of the files; the operating system unmaps them when the last array is gone."""
        self.places = {}
