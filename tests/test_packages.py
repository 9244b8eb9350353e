"""What is published: the source distribution and the wheels of ``make packages``, looked into and installed.

They are in the folder that ``$VOIRKIT_DIST`` names; nothing is built here.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import CLEAN

import voirkit

ROOT = Path(__file__).parent.parent
DIST = Path(os.environ.get("VOIRKIT_DIST", ""))
PACKAGES = {"voirkit": "voirkit", "instruments/voirkit_instruments": "voirkit_instruments"}
MADE = {"__pycache__", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", "voirkit-runs"}
LIBRARY = re.compile(r"\.cpython-\d+-[\w-]+\.so$")
EXTENSIONS = (
    "voirkit/trace/_recorder",
    "voirkit/probes/_entry",
    "voirkit_instruments/calls/_calls",
    "voirkit_instruments/steps/_steps",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "VOIRKIT_DIST" not in os.environ, reason="needs what `make packages` builds"
    ),
]


def only(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def files_below(folder: str) -> set[str]:
    """What a checkout has there, but for what is made in it."""
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    kept = (
        path
        for path in found
        if not MADE.intersection(path.parts) and path.suffix not in (".so", ".pyc", ".new")
    )
    return {
        str(path)
        for path in kept
        if not path.match("examples/*/images/**/*") and not path.match("examples/*/images/*/*")
    }


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def text(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"voirkit-{voirkit.__version__}.{name}").decode()


@pytest.fixture(params=["*-none-any.whl", "*-cp*-cp*-*.whl"], ids=["pure", "compiled"])
def wheel(request: pytest.FixtureRequest) -> Path:
    return only(request.param)


def test_a_wheel_has_the_two_packages_whole_without_sources_in_c(wheel: Path) -> None:
    expected = {
        package + path.removeprefix(folder)
        for folder, package in PACKAGES.items()
        for path in files_below(folder)
        if not path.endswith((".c", ".h", "follow.pth"))
    }
    found = {
        name
        for name in names(wheel)
        if name.startswith(tuple(f"{package}/" for package in PACKAGES.values()))
        and not LIBRARY.search(name)
    }
    assert found == expected
    assert {"voirkit/py.typed", "voirkit_instruments/py.typed"} <= found


def test_a_wheel_has_beside_them_what_python_and_shells_look_for_and_no_more(wheel: Path) -> None:
    found = {name for name in names(wheel) if name.partition("/")[0] not in PACKAGES.values()}
    info, data = (
        f"voirkit-{voirkit.__version__}.dist-info",
        f"voirkit-{voirkit.__version__}.data/data",
    )
    described = {
        f"{info}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    shared = {f"{data}/{path}" for path in files_below("share")}
    assert found == {"voirkit_follow.pth", *described, *shared}
    assert {path.rpartition("/")[2] for path in shared} == {
        "voirkit",
        "_voirkit",
        "voirkit.fish",
        "voirkit.1",
    }


def test_the_compiled_wheel_has_the_four_libraries_and_no_path_of_the_machine_that_built_it() -> (
    None
):
    wheel = only("*-cp*-cp*-*.whl")
    libraries = {name for name in names(wheel) if LIBRARY.search(name)}
    assert {LIBRARY.sub("", name) for name in libraries} == set(EXTENSIONS)
    with zipfile.ZipFile(wheel) as archive:
        for name in libraries:
            assert os.fsencode(ROOT) not in archive.read(name), name


def test_the_pure_wheel_has_no_library_and_fits_every_python_and_machine() -> None:
    wheel = only("*-none-any.whl")
    assert wheel.name == f"voirkit-{voirkit.__version__}-py3-none-any.whl"
    assert not [name for name in names(wheel) if name.endswith(".so")]


def test_the_metadata_says_version_licence_and_entry_points(wheel: Path) -> None:
    metadata = email.message_from_string(text(wheel, "dist-info/METADATA"))
    assert metadata["Version"] == voirkit.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert not [
        line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")
    ]
    entries = text(wheel, "dist-info/entry_points.txt")
    assert "[console_scripts]\nvoirkit = voirkit.cli:main" in entries
    assert "[voirkit.instruments]" in entries
    assert "[voirkit.aliases]" in entries


def test_the_source_distribution_has_what_tests_need_and_nothing_that_was_made() -> None:
    folders = ("voirkit", "instruments", "share", "examples", "tests", "docs", "benchmarks")
    alone = {
        "Makefile",
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
        "hatch_build.py",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    with tarfile.open(only("*.tar.gz")) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        path
        for path in set().union(*map(files_below, folders))
        if not path.startswith("docs/news/")
    }
    assert found == alone | needed


# installed


@pytest.fixture(scope="module")
def uv() -> str:
    found = os.environ.get("UV") or shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    return found


def installed(uv: str, wheel: Path, folder: Path) -> Path:
    """The python of a new environment that has the wheel, and what it requires, alone."""
    for words in (
        ["venv", "--python", sys.executable, str(folder)],
        ["pip", "install", "--python", str(folder / "bin" / "python"), str(wheel)],
    ):
        done = subprocess.run([uv, *words], env=CLEAN, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def check(python: Path, expected: str, folder: Path, path: str) -> None:
    command = [str(python), str(ROOT / "tests" / "installed.py"), expected]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**CLEAN, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compiled_wheel_works_in_an_environment_of_its_own(uv: str, tmp_path: Path) -> None:
    python = installed(uv, only("*-cp*-cp*-*.whl"), tmp_path / "environment")
    check(python, "--with-extensions", tmp_path, os.environ["PATH"])
    manual = tmp_path / "environment" / "share" / "man" / "man1" / "voirkit.1"
    assert manual.read_text() == (ROOT / "share" / "man" / "man1" / "voirkit.1").read_text()


TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(160, 8), torch.randn(160, 1)), batch_size=8)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""


@pytest.mark.torch
def test_the_pure_wheel_works_where_there_is_no_compiler_with_numpy_and_with_torch(
    uv: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    python = installed(uv, only("*-none-any.whl"), tmp_path / "environment")
    path = str(python.parent)
    assert shutil.which("cc", path=path) is shutil.which("gcc", path=path) is None
    check(python, "--pure", tmp_path, path)
    # torch out of the environment of the tests: a folder that a .pth file names is searched last, and its own .pth files are not read.
    place = next((tmp_path / "environment" / "lib").glob("python3*")) / "site-packages"
    (place / "torch_of_tests.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    (tmp_path / "train.py").write_text(TRAINING)
    for words in (["train.py"], ["--loader", "--checks", "--parameters", "train.py"]):
        folder = f"run{len(words)}"
        command = [str(python.parent / "voirkit"), "--run-dir", folder, *words]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**CLEAN, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / folder / "summary.json").read_text())
        assert (summary["steps"]["n"], summary["steps"]["items"], summary["warnings"]) == (
            40,
            320,
            [],
        ), done.stderr
        assert sum(
            phase["share"] for phase in summary["steps"]["phases"].values()
        ) == pytest.approx(1)
    assert summary["parameters"]
    assert summary["loader"]
