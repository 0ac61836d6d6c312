"""`doctor`: looks at this machine and says what is missing for serving a model, and what to do about it."""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from launcher import models, rundir
from launcher.errors import APP_ROOT, LauncherError, program
from launcher.machine import cores

OK, WARN, FAIL = "ok", "warn", "fail"
GIB = 1 << 30
PYTHON_WANTED = (3, 11)
MEMORY_WANTED, DISK_WANTED, FILES_WANTED = 2 * GIB, 1 * GIB, 1024
PORT = 8000
USEFUL_ISA = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX", "asimd": "NEON", "bf16": "BF16"}
COMPILERS = ("gcc", "cc", "clang")
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at. `level`: ok, warn (works, but) or fail (must be put right); `advice` says what to do."""

    topic: str
    level: str
    text: str
    advice: str = ""


def run(args: argparse.Namespace) -> int:
    """Entry point of `doctor`: 1 when something that is needed is missing."""
    found = [finding for check in CHECKS for finding in check()]
    if args.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        width = max(len(finding.topic) for finding in found)
        for finding in found:
            print(f"{finding.level.upper():<5} {finding.topic.ljust(width)}  {finding.text}")
            if finding.advice:
                print(f"      {' ' * width}  -> {finding.advice}")
    return 1 if any(finding.level == FAIL for finding in found) else 0


def check_python() -> list[Finding]:
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON_WANTED:
        return [Finding("python", FAIL, text, "Python 3.11 or newer is needed")]
    return [Finding("python", OK, text)]


def check_dependencies() -> list[Finding]:
    """The installed versions against the lock; an installed copy carries no lock, its metadata has been resolved by pip."""
    lock = APP_ROOT / "requirements.lock"
    if not lock.is_file():
        return _declared_dependencies()
    wanted = dict(REQUIREMENT.findall(lock.read_text()))
    installed = {name: _version(name) for name in wanted}
    findings = []
    missing = [name for name, version in installed.items() if version is None and name != "triton"]
    different = {name: have for name, have in installed.items() if have is not None and have.partition("+")[0] != wanted[name]}
    if missing:
        findings.append(Finding("dependencies", FAIL, f"missing: {', '.join(missing)}", f"{sys.executable} -m pip install -r {lock}"))
    if different:
        other = [f"{name} {have} (lock: {wanted[name]})" for name, have in different.items()]
        findings.append(Finding("dependencies", WARN, f"other than in the lock: {', '.join(other)}", f"{sys.executable} -m pip install -r {lock}"))
    return findings or [Finding("dependencies", OK, f"{len(wanted)} packages as in the lock")]


def _declared_dependencies() -> list[Finding]:
    try:
        declared = importlib.metadata.requires("pagewire") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("dependencies", WARN, "no lock file and no installed package to compare with")]
    names = [re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0] for text in declared if "extra ==" not in text and not text.startswith("triton")]
    missing = [name for name in names if _version(name) is None]
    if missing:
        return [Finding("dependencies", FAIL, f"missing: {', '.join(missing)}", f"{sys.executable} -m pip install --upgrade pagewire")]
    return [Finding("dependencies", OK, f"{len(names)} packages are here")]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_torch() -> list[Finding]:
    try:
        import torch
    except ImportError as error:
        return [Finding("torch", FAIL, f"cannot be imported: {error}", "install the locked requirements")]
    findings = [Finding("torch", OK, f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")]
    if not torch.cuda.is_available():
        return [*findings, Finding("gpu", OK, "none that torch can use; models run on the CPU")]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        findings.append(Finding("gpu", OK, f"cuda:{index} {device.name}, {device.total_memory / GIB:.1f} GiB"))
    return findings


def check_cpu() -> list[Finding]:
    flags: set[str] = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        line = next((line for line in cpuinfo.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
        flags = set(line.partition(":")[2].split())
    known = [name for flag, name in USEFUL_ISA.items() if flag in flags]
    text = f"{cores()} cores for this process, {platform.machine()}" + (f", {', '.join(known)}" if known else "")
    if platform.machine() in {"x86_64", "AMD64"} and flags and "avx2" not in flags:
        return [Finding("cpu", WARN, text, "without AVX2 answers will be slow")]
    return [Finding("cpu", OK, text)]


def check_compiler() -> list[Finding]:
    """As kernels.native.build looks for one; that it works shows when a worker starts."""
    if os.environ.get("PAGEWIRE_NATIVE") == "0":
        return [Finding("compiler", OK, "not used: PAGEWIRE_NATIVE=0")]
    asked = os.environ.get("CC")
    found = next((path for name in ([asked] if asked else COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        return [
            Finding(
                "compiler",
                WARN,
                f"{asked or 'gcc'} was not found",
                "with gcc quantised models answer about three times faster: apt install gcc libc6-dev",
            )
        ]
    return [Finding("compiler", OK, f"{found}, for the kernel that computes with quantised weights")]


def check_memory() -> list[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < MEMORY_WANTED:
        return [Finding("memory", WARN, text, "close other programs, or start with a small --kv-tokens and --dtype bfloat16")]
    return [Finding("memory", OK, text)]


def check_disk() -> list[Finding]:
    folder = models.models_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / GIB:.1f} GiB free for the model cache {folder}"
    if not existing.is_dir():
        text = f"{existing} is not a folder, so the model cache {folder} cannot be made"
        return [Finding("disk", FAIL, text, "set PAGEWIRE_CACHE to a folder of yours")]
    if not os.access(existing, os.W_OK):
        return [Finding("disk", FAIL, f"{existing} cannot be written to", "set PAGEWIRE_CACHE to a folder of yours")]
    return [Finding("disk", OK, text) if free >= DISK_WANTED else Finding("disk", WARN, text, "make room or set PAGEWIRE_CACHE")]


def check_models() -> list[Finding]:
    findings = []
    for entry in models.list_models():
        if entry.path is not None:
            findings.append(Finding("model", OK, f"{entry.name}, {entry.size / (1 << 20):.1f} MiB"))
        else:
            advice = f"{program()} model pull {entry.name}   (cluster start does it too)"
            findings.append(Finding("model", WARN, f"{entry.name} is not fetched yet", advice))
    return findings


def check_port() -> list[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            ours = any(cluster.info.port == PORT for cluster in rundir.running_clusters())
            if ours:
                return [Finding("port", OK, f"{PORT} belongs to a running Pagewire cluster")]
            return [Finding("port", WARN, f"{PORT} is used by another program", "choose another with --port")]
    return [Finding("port", OK, f"{PORT} is free")]


def check_limits() -> list[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    shown = "no limit on" if processes == resource.RLIM_INFINITY else str(processes)
    text = f"{files} open files, {shown} processes"
    if files < FILES_WANTED:
        return [Finding("limits", WARN, text, f"each client needs an open file: ulimit -n {FILES_WANTED * 4}")]
    return [Finding("limits", OK, text)]


def check_clusters() -> list[Finding]:
    root = rundir.root_path()
    findings = []
    try:
        rundir.secure_root()
    except LauncherError as error:
        return [Finding("run directory", FAIL, str(error))]
    for cluster in rundir.running_clusters():
        findings.append(Finding("cluster", OK, f"{cluster.info.model} at {cluster.info.url}, pid {cluster.info.pid}"))
    for folder in rundir.stale_run_dirs():
        findings.append(Finding("run directory", WARN, f"{folder} is left of a cluster that was killed", "the next cluster start removes it"))
    return findings or [Finding("run directory", OK, f"{root}: no cluster runs, nothing is left over")]


CHECKS: list[Callable[[], list[Finding]]] = [
    check_python,
    check_dependencies,
    check_torch,
    check_cpu,
    check_compiler,
    check_memory,
    check_disk,
    check_models,
    check_port,
    check_limits,
    check_clusters,
]
