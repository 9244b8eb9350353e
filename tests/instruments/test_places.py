"""A place is a line of the program: of a file that is in no installed package, however packages are found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any

import pytest
from conftest import CLEAN

import voirkit
from voirkit_instruments.places import Owner, Places, file_owner


def install(folder: Path, package: str, *, editable: bool = False) -> Path:
    """A package with the metadata of its distribution beside it, as pip leaves them. Returns its module."""
    (folder / package).mkdir(parents=True)
    module = folder / package / "module.py"
    for file in (folder / package / "__init__.py", module):
        file.write_text("")
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "RECORD").write_text(
        f"{package}/__init__.py,,\n{package}/module.py,,\n{metadata.name}/RECORD,,\n"
    )
    if editable:
        (metadata / "direct_url.json").write_text(
            json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})
        )
    return module


def test_a_package_with_metadata_beside_it_is_installed(tmp_path: Path) -> None:
    assert file_owner(str(install(tmp_path / "libs", "trainer"))) is Owner.PACKAGE


def test_a_namespace_package_on_the_path_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = install(tmp_path / "libs", "trainer")
    (module.parent / "__init__.py").unlink()
    monkeypatch.syspath_prepend(tmp_path / "libs")
    assert file_owner(str(module)) is Owner.PACKAGE


def test_torch_with_metadata_beside_it_is_torch(tmp_path: Path) -> None:
    assert file_owner(str(install(tmp_path / "libs", "torch"))) is Owner.TORCH


def test_what_no_distribution_names_is_the_programs_also_beside_packages(tmp_path: Path) -> None:
    install(tmp_path, "trainer")
    (tmp_path / "own").mkdir()
    assert file_owner(str(tmp_path / "main.py")) is Owner.PROGRAM
    assert file_owner(str(tmp_path / "own" / "module.py")) is Owner.PROGRAM


def test_a_distribution_without_a_record_is_known_by_its_name(tmp_path: Path) -> None:
    module = install(tmp_path, "trainer")
    (tmp_path / "trainer-1.0.dist-info" / "RECORD").unlink()
    assert file_owner(str(module)) is Owner.PACKAGE
    assert file_owner(str(tmp_path / "trainer.py")) is Owner.PACKAGE


def test_what_was_installed_to_be_edited_is_the_programs(tmp_path: Path) -> None:
    assert file_owner(str(install(tmp_path, "project", editable=True))) is Owner.PROGRAM


def test_a_link_in_site_packages_is_what_it_points_to(tmp_path: Path) -> None:
    module = install(tmp_path / "checkout", "project", editable=True)
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site / "project").symlink_to(module.parent)
    assert file_owner(str(site / "project" / "module.py")) is Owner.PROGRAM


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", Owner.PACKAGE),
        ("/home/a/.local/lib/python3.9/site-packages/torch/optim/sgd.py", Owner.TORCH),
        ("/opt/env/lib/python3.9/threading.py", Owner.PYTHON),
        ("lib/python3.9/site-packages/torch/_tensor.py", Owner.TORCH),
        ("<frozen importlib._bootstrap>", Owner.PYTHON),
        ("/opt/eggs/trainer-1.0-py3.9.egg/trainer/fit.py", Owner.PACKAGE),
        ("/home/a/torch/train.py", Owner.PROGRAM),
        ("train.py", Owner.PROGRAM),
    ],
)
def test_a_path_of_another_machine_is_judged_by_its_folders(path: str, owner: Owner) -> None:
    assert file_owner(path) is owner


def test_python_and_voirkit_are_known() -> None:
    assert file_owner(str(Path(sysconfig.get_path("stdlib")) / "threading.py")) is Owner.PYTHON
    assert file_owner(str(voirkit.__file__)) is Owner.VOIRKIT


def test_an_archive_that_does_not_hold_the_script_is_packages(tmp_path: Path) -> None:
    archive = tmp_path / "deps.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("trainer.py", "")
    assert file_owner(str(archive / "trainer.py")) is Owner.ARCHIVE


def test_the_place_is_the_line_that_calls_a_package(tmp_path: Path) -> None:
    frames: list[FrameType] = []
    names: dict[str, Any] = {"take": lambda: frames.append(sys._getframe(1))}
    package = install(tmp_path / "libs", "trainer")
    exec(compile("def fit():\n    take()\n", str(package), "exec"), names)
    exec(compile("\n\nfit()\n", str(tmp_path / "main.py"), "exec"), names)
    assert Places().of(frames[0]) == "main.py:3"


TRAINER = """
    def fit(model, optimizer, batches):
        for x in batches:
            model(x).pow(2).mean().backward()  # never cleared
            optimizer.step()
    """
MAIN = """
    import torch
    from {package}.module import fit

    model = torch.nn.Linear(4, 2)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(6, 8, 4))
    """


@pytest.mark.long
@pytest.mark.parametrize("installed", [True, False])
def test_checks_name_a_line_of_the_program_however_packages_are_found(
    tmp_path: Path, installed: bool
) -> None:
    """In an environment that finds torch through a ``.pth`` and a link, beside the system's packages; and the trainer through PYTHONPATH."""
    torch = pytest.importorskip("torch")
    environment, run = tmp_path / "env", tmp_path / "run"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", environment],
        check=True,
        timeout=120,
    )
    (tmp_path / "deps").symlink_to(Path(torch.__file__).parent.parent)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    checkout = {
        str(Path(str(sys.modules[name].__file__)).parent.parent)
        for name in ("voirkit", "voirkit_instruments")
    }
    hook = environment / "lib" / version / "site-packages" / "deps.pth"
    hook.write_text("\n".join([str(tmp_path / "deps"), *checkout]))
    module = install(tmp_path / "libs", "trainer")
    module.write_text(dedent(TRAINER).lstrip())
    if not installed:
        shutil.rmtree(tmp_path / "libs" / "trainer-1.0.dist-info")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text(dedent(MAIN).lstrip().format(package="trainer"))
    command = [
        environment / "bin" / "python",
        "-m",
        "voirkit",
        "--checks",
        "--quiet",
        "--run-dir",
        run,
        "main.py",
    ]
    env = {**CLEAN, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "libs")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    checks = json.loads((run / "summary.json").read_text())["checks"]
    where = {check["name"]: check["where"] for check in checks if check["found"]}
    assert where == {"missing-zero-grad": "main.py:5" if installed else "module.py:3"}
