"""The repository's fixed layout, and that a built wheel puts nothing but `pagewire` at the top and works from there."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import frontend.version
import launcher.cli
import pagewire

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    "bench", "checkpoint", "dialects", "frontend", "grammar", "kernels", "launcher", "messages", "scheduler", "simulator", "tokenizer_proc",
    "transport", "worker",
]  # fmt: skip
PROCESSES = ["frontend", "scheduler", "tokenizer_proc", "worker"]
FOLDERS = {*PACKAGES, "pagewire", "tests", "docs", "examples", ".ci"}
FILES = [
    "launch.py", "pyproject.toml", "Makefile", "requirements.lock", "requirements-dev.lock", "LICENSE", "README.md", "CONTRIBUTING.md",
    "docs/architecture.md", "docs/profiling.md", "docs/security.md", "bench/RESULTS.md", ".ci/run", ".ci/audit",
]  # fmt: skip


def modules(folder: Path) -> set[str]:
    """Paths of the application's Python files below `folder`."""
    found = {str(path.relative_to(folder)) for package in PACKAGES for path in (folder / package).rglob("*.py")}
    return found | ({"launch.py"} if (folder / "launch.py").is_file() else set())


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PAGEWIRE_PROCESS")}
    return subprocess.run(command, cwd=cwd, env=kept | variables, capture_output=True, text=True, timeout=100, check=False)


def test_the_version_is_the_same_wherever_it_is_said() -> None:
    """Importing one of them from another would cost the command line its start, or the frontend its independence."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert {launcher.cli.VERSION, frontend.version.VERSION, pagewire.__version__} == {declared}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources without a network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in [*PACKAGES, "pagewire", "tests"]:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("launch.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = run(sys.executable, "-c", code, str(out), cwd=source)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, as it would be in site-packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("package", [*PACKAGES, "pagewire"])
def test_packages_are_at_the_root(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()
    assert package not in PROCESSES or (ROOT / package / "__main__.py").is_file()


@pytest.mark.parametrize("name", FILES)
def test_fixed_files(name: str) -> None:
    assert (ROOT / name).is_file()


def test_ci_runs_the_test_command() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_no_other_folder_holds_code() -> None:
    """A new top-level package has to be named here, in pyproject.toml and in docs/architecture.md."""
    done = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    if done.returncode:
        pytest.skip("not a git checkout")
    files = [Path(line) for line in done.stdout.splitlines() if line.endswith(".py")]
    assert {path.parts[0] for path in files if len(path.parts) > 1} <= FOLDERS
    assert [path.name for path in files if len(path.parts) == 1] == ["launch.py"]


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_wheel_has_one_top_level_name(site: Path) -> None:
    assert sorted(path.name for path in site.iterdir()) == ["pagewire", "pagewire-0.1.0.dist-info"]


def test_the_wheel_has_every_module_and_no_test(site: Path) -> None:
    assert modules(site / "pagewire" / "app") == modules(ROOT)
    assert {path.name for path in (site / "pagewire" / "app").iterdir()} == {*PACKAGES, "launch.py"}
    assert [path for path in site.rglob("*test*") if "latest" not in path.name] == []


def test_the_wheel_carries_data_files(site: Path) -> None:
    for package in [*PACKAGES, "pagewire"]:
        below = site / ("pagewire" if package == "pagewire" else f"pagewire/app/{package}")
        files = [path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        data = [path for path in files if path.suffix not in (".py", ".md")]
        assert [path for path in data if not (below / path.relative_to(ROOT / package)).is_file()] == []


def test_the_wheel_has_the_console_script_and_licence(site: Path) -> None:
    info = site / "pagewire-0.1.0.dist-info"
    assert "pagewire = pagewire.__main__:main" in (info / "entry_points.txt").read_text()
    assert "License-Expression: Apache-2.0" in (info / "METADATA").read_text()
    assert (info / "licenses" / "LICENSE").is_file()


def test_an_installed_copy_runs_from_anywhere(site: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "pagewire", "cluster", "start", "--help", cwd=tmp_path, PYTHONPATH=str(site))
    assert (done.returncode, done.stderr) == (0, "")
    assert "--detach" in done.stdout
    code = "import sys, pagewire.__main__ as m; sys.argv = ['pagewire', '--help']; m.main()"
    done = run(sys.executable, "-P", "-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: pagewire")


@pytest.mark.parametrize("process", PROCESSES)
def test_a_child_of_an_installed_copy_finds_its_modules(process: str, site: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-P", "-m", process, cwd=tmp_path, PYTHONPATH=str(site / "pagewire" / "app"))
    assert done.returncode == 1
    assert "PAGEWIRE_PROCESS does not hold arguments" in done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_leaks_to_the_top_of_site_packages(package: str, site: Path, tmp_path: Path) -> None:
    code = f"import importlib.util, pagewire; print(importlib.util.find_spec({package!r}) is None)"
    done = run(sys.executable, "-P", "-S", "-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.stdout.strip() == "True", done.stderr
