"""The run directory: one private folder per cluster with its sockets, its log and `info.json`. A lock file tells live ones from stale ones."""

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from launcher.errors import LauncherError, program
from messages.poison import POISON_FILES
from transport.private_file import create_private
from transport.sockets import address

LOCK, INFO, LOG, KEY = "lock", "info.json", "log", "key"
KEPT_POISON = 8
LONGEST_SOCKET_NAME = "supervisor-00"


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `info.json` says. `started` is seconds since the epoch; `tls_cert` the certificate it was started with."""

    pid: int
    host: str
    port: int
    url: str
    model: str
    started: float
    tls_cert: str | None = None


class Cluster(msgspec.Struct, frozen=True):
    """A running cluster: its folder and what it says about itself."""

    folder: Path
    info: ClusterInfo

    def key(self) -> str | None:
        """An API key of the user who runs it; None where none is needed."""
        try:
            return (self.folder / KEY).read_text("ascii")
        except OSError:
            return None


def root_path() -> Path:
    """$PAGEWIRE_RUN_DIR, or pagewire/ in $XDG_RUNTIME_DIR where there is one, or /tmp/pagewire-<uid>."""
    if chosen := os.environ.get("PAGEWIRE_RUN_DIR"):
        return Path(chosen).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime) / "pagewire"
    return Path(f"/tmp/pagewire-{os.getuid()}")


def secure_root() -> Path:
    """The root of all run directories: ours alone, made when it is missing. Raises LauncherError when somebody else could get at it."""
    root = root_path()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = root.lstat()
    except OSError as error:
        raise LauncherError(f"cannot make the run directory {root}: {error.strerror}. Set PAGEWIRE_RUN_DIR to a folder of yours.") from error
    if stat.S_ISLNK(seen.st_mode) or not stat.S_ISDIR(seen.st_mode):
        raise LauncherError(f"{root} is not a plain folder; remove it or set PAGEWIRE_RUN_DIR to a folder of yours.")
    if seen.st_uid != os.geteuid():
        raise LauncherError(f"{root} belongs to another user (uid {seen.st_uid}); set PAGEWIRE_RUN_DIR to a folder of yours.")
    if stat.S_IMODE(seen.st_mode) & 0o077:
        root.chmod(0o700)
    return root


@contextlib.contextmanager
def _root_lock(root: Path) -> Iterator[None]:
    """Nobody makes or cleans run directories while this is held."""
    with (root / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class RunDir:
    """A folder this process owns for as long as it (or a child that inherited `lock_fd`) lives."""

    def __init__(self, folder: Path, lock_fd: int) -> None:
        self.folder = folder
        self.lock_fd = lock_fd

    @classmethod
    def create(cls, port: int) -> "RunDir":
        """Clean up after dead supervisors, then make and lock `<root>/<port>-<random>`. Raises LauncherError, also when a live one has `port`."""
        root = secure_root()
        with _root_lock(root):
            _clean_stale(root)
            if (taken := belongs_to_cluster(port)) is not None:  # started at the same moment, so that it does not listen yet
                raise LauncherError(taken)
            folder = root / f"{port}-{secrets.token_hex(3)}"
            try:
                address(folder, LONGEST_SOCKET_NAME)
            except ValueError as error:
                raise LauncherError(f"{error}. Set PAGEWIRE_RUN_DIR to a shorter path.") from error
            folder.mkdir(mode=0o700)
            lock_fd = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(folder, lock_fd)

    def write_info(self, info: ClusterInfo) -> None:
        temporary = self.folder / f".{INFO}"
        temporary.write_bytes(msgspec.json.encode(info))
        temporary.replace(self.folder / INFO)

    def write_key(self, key: str | None) -> None:
        """For this user's own commands; nobody else gets into the folder."""
        if key is not None:
            with create_private(self.folder / KEY) as file:
                file.write(key.encode("ascii"))

    def keep_log(self, port: int) -> Path | None:
        """Save the log of a cluster that failed; the folder itself goes. Returns where the log is now, or None when there is none."""
        log, kept = self.folder / LOG, self.folder.parent / f"failed-{port}.log"
        if not log.is_file():
            return None
        log.replace(kept)
        return kept

    def keep_poison(self, port: int) -> None:
        """Save the steps of requests that ended the worker beside the folder, of all clusters the newest KEPT_POISON."""
        for file in sorted(self.folder.glob(POISON_FILES)):
            names = (self.folder.parent / f"poison-{port}-{number}.plan" for number in itertools.count(1))
            file.replace(next(name for name in names if not name.exists()))
        kept = sorted(self.folder.parent.glob(POISON_FILES), key=lambda path: path.stat().st_mtime)
        for old in kept[:-KEPT_POISON]:
            old.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder with everything in it and let go of the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.lock_fd)


def is_live(folder: Path) -> bool:
    """Whether a supervisor still holds this run directory."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _run_dirs(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink() and entry.name.partition("-")[0].isdigit())


def _clean_stale(root: Path) -> list[Path]:
    stale = [folder for folder in _run_dirs(root) if not is_live(folder)]
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    return stale


def stale_run_dirs() -> list[Path]:
    """Run directories whose supervisor is gone; the next `cluster start` removes them."""
    return [folder for folder in _run_dirs(root_path()) if not is_live(folder)]


def running_clusters() -> list[Cluster]:
    """Every cluster of this user whose supervisor lives, by port."""
    found = []
    for folder in _run_dirs(root_path()):
        if not is_live(folder):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append(Cluster(folder, msgspec.json.decode((folder / INFO).read_bytes(), type=ClusterInfo)))
    return sorted(found, key=lambda cluster: cluster.info.port)


def belongs_to_cluster(port: int) -> str | None:
    """The sentence about the running cluster that has this port, or None. It may be so young that it has no info.json."""
    if not any(folder.name.partition("-")[0] == str(port) and is_live(folder) for folder in _run_dirs(root_path())):
        return None
    about = next((f" (pid {cluster.info.pid}, model {cluster.info.model})" for cluster in running_clusters() if cluster.info.port == port), "")
    return (
        f"port {port} belongs to a running Pagewire cluster{about}. "
        f"Stop it with: {program()} cluster stop --port {port}   or choose another port with --port"
    )


def choose_cluster(port: int | None) -> Cluster:
    """The cluster on `port`, or the only one running. Raises LauncherError when there is none or the choice is not clear."""
    clusters = running_clusters()
    if port is not None:
        clusters = [cluster for cluster in clusters if cluster.info.port == port]
    if not clusters:
        where = "" if port is None else f" on port {port}"
        raise LauncherError(f"no cluster is running{where}. Start one with: {program()} cluster start")
    if len(clusters) > 1:
        listed = ", ".join(f"{cluster.info.port} ({cluster.info.model})" for cluster in clusters)
        raise LauncherError(f"several clusters are running; say which with --port: {listed}")
    return clusters[0]
