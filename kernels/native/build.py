"""Compiles the C files beside it for this machine, once, into the user's cache, and loads them."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

log = logging.getLogger(__name__)

HEADERS, SOURCES = ("lanes.h",), ("quant_linear.c", "one_order.c")
HERE = Path(__file__).parent
COMPILERS = ("gcc", "cc", "clang")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fopenmp", "-fPIC", "-w")
SWITCH = "PAGEWIRE_NATIVE"
SECONDS = 60
CPUINFO = Path("/proc/cpuinfo")


class BuildError(Exception):
    """The kernel cannot be compiled or loaded here; the text says why and what would help."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None, with a line in the log, where there can be none. PAGEWIRE_NATIVE=0 turns it off."""
    if os.environ.get(SWITCH) == "0":
        log.info("%s=0: quantised weights are expanded to float32", SWITCH)
        return None
    try:
        path = compile_source()
        try:
            return load(path)
        except (OSError, AttributeError):  # damaged, as after a full disk
            path.unlink()
            return load(compile_source())
    except (BuildError, OSError, AttributeError, RuntimeError) as error:  # RuntimeError: no home folder
        log.warning("no native kernel, so quantised weights are expanded to float32, which is slower: %s", error)
        return None


def load(path: Path) -> ctypes.CDLL:
    """The functions of a compiled file, with their types. Raises OSError, or AttributeError when it is another file."""
    found = ctypes.CDLL(str(path))
    pointer, size, number = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    found.pagewire_quant_linear.argtypes = [number, pointer, pointer, pointer, pointer, size, size, size, size, number]
    found.pagewire_quant_linear.restype = number
    found.pagewire_quant_rows.argtypes = [number, pointer, pointer, pointer, size, size, size]
    found.pagewire_quant_rows.restype = number
    found.pagewire_norm.argtypes = [pointer, pointer, pointer, size, size, ctypes.c_float, number]
    found.pagewire_gate.argtypes = [pointer, pointer, size, size, number]
    found.pagewire_norm.restype = found.pagewire_gate.restype = None
    found.pagewire_attend.argtypes = [*(pointer,) * 7, *(size,) * 7, ctypes.c_float, number]
    found.pagewire_attend.restype = number
    return found


def compile_source(extra: Sequence[str] = (), folder: Path | None = None) -> Path:
    """Path of the shared library, compiled when `folder` (default: the cache) has none for this source, compiler, processor and flags.

    Any number of processes may do this at once. Raises BuildError, or OSError when the folder cannot be written.
    """
    compiler = _compiler()
    flags = [*FLAGS, *extra]
    texts = [(HERE / name).read_text() for name in (*HEADERS, *SOURCES)]
    name = hashlib.sha256("\0".join([*texts, *flags, *_identity(compiler)]).encode()).hexdigest()[:32]
    folder = folder or cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise BuildError(f"others can write to {folder}, from which code is loaded; make it yours alone (chmod 700) or set PAGEWIRE_CACHE")
    target = folder / f"{name}.so"
    if not target.is_file():
        with tempfile.TemporaryDirectory(dir=folder) as private:
            os.replace(_build(compiler, flags, Path(private)), target)
    return target


def cache_folder() -> Path:
    """PAGEWIRE_CACHE, or the user's cache folder, and in it `native`."""
    own = os.environ.get("PAGEWIRE_CACHE")
    root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagewire"
    return root.absolute() / "native"


def _compiler() -> str:
    asked = os.environ.get("CC")
    for name in (asked,) if asked else COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(f"{asked or 'a C compiler'} was not found; install gcc (for example: apt install gcc libc6-dev)")


def _identity(compiler: str) -> Iterator[str]:
    """What the compiled file depends on besides source and flags."""
    yield _run([compiler, "--version"])
    yield f"{compiler} {platform.machine()} torch {torch.__version__} {_gomp()}"
    if CPUINFO.is_file():
        yield next((line for line in CPUINFO.read_text().splitlines() if line.startswith(("flags", "Features"))), "")


def _gomp() -> Path | None:
    """The OpenMP runtime torch brought along: with the same one there is one pool of threads."""
    return next(iter(sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))), None)


def _build(compiler: str, flags: Sequence[str], folder: Path) -> Path:
    target = folder / "kernel.so"
    objects = [folder / f"{name}.o" for name in SOURCES]
    for name, compiled in zip(SOURCES, objects, strict=True):
        _run([compiler, *flags, "-c", str(HERE / name), "-o", str(compiled)])
        if not compiled.is_file():
            raise BuildError(f"{compiler} made no object file; install gcc")
    link = [compiler, "-shared", "-o", str(target), *map(str, objects), "-lm"]
    gomp = _gomp()
    try:
        _run([*link, "-Wl,--no-undefined", str(gomp)] if gomp else [*link, "-fopenmp"])
    except BuildError:
        if gomp is None:
            raise
        _run([*link, "-fopenmp"])  # the compiler's own runtime: a second pool of threads, which only costs some speed
    return target


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}; install gcc") from error
    if done.returncode:
        said = (done.stderr.strip() or "nothing said").splitlines()
        raise BuildError(f"{command[0]} failed ({said[0]}); install a complete C compiler (for example: apt install gcc libc6-dev)")
    return done.stdout
