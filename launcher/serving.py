"""What a cluster serves, and what it would serve with other options."""

import argparse
import os
import time
from collections.abc import Callable

import msgspec

from launcher.errors import LauncherError
from launcher.options import check_formats
from launcher.sizes import SIZES, sizes_from
from launcher.specs import ClusterOptions, ProcessSpec
from messages.change import ModelOptions


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The model's name, since when it has it (UNIX seconds), and all processes."""

    model: str
    created: int
    specs: list[ProcessSpec]


def changed(options: ClusterOptions, changes: ModelOptions) -> ClusterOptions:
    """The options of a cluster after `changes`. Raises LauncherError.

    Of those that are not among them a chat template goes with its model, and sizes follow a change of the kind of device.
    """
    given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
    own_name = given.pop("own_name", options.model_name)
    if "model_name" in given:
        given["named"] = True
    elif not options.named:
        given["model_name"] = own_name
    if "model_path" in given:
        given.setdefault("chat_template", None)
        given["model_shape"] = ""
    merged = msgspec.structs.replace(options, **given, created=int(time.time()))
    follows = (merged.device == "cpu") != (options.device == "cpu")
    asked = argparse.Namespace(**{name: getattr(merged, name) if name in given or not follows else None for name in SIZES})
    asked.device, asked.weights, asked.dtype = merged.device, merged.weights, merged.dtype
    asked.kv_dtype, asked.deterministic = merged.kv_dtype, merged.deterministic
    check_formats(asked)
    sizes = sizes_from(asked)
    for path in (merged.model_path or None, merged.chat_template):
        if path is not None and not os.path.exists(path):  # Path.exists raises for a null byte
            raise LauncherError(f"there is no {path}")
    return msgspec.structs.replace(merged, **{name: getattr(sizes, name) for name in SIZES})


class Offers:
    """The options a cluster runs with. `specs` makes the processes of options; `told` hears of those that are adopted."""

    def __init__(self, options: ClusterOptions, specs: Callable[[ClusterOptions], list[ProcessSpec]], told: Callable[[ClusterOptions], None]) -> None:
        self._options = options
        self._specs = specs
        self._told = told
        self._offered = options

    def now(self) -> Serving:
        """What is served."""
        self._offered = self._options
        return self._serving(self._options)

    def offer(self, changes: ModelOptions) -> Serving:
        """What would be served with these changes. Raises LauncherError."""
        self._offered = changed(self._options, changes)
        return self._serving(self._offered)

    def adopt(self) -> None:
        """What was offered last is served now."""
        self._options = self._offered
        self._told(self._options)

    def _serving(self, options: ClusterOptions) -> Serving:
        return Serving(model=options.model_name, created=options.created, specs=self._specs(options))
