"""Each function of another library that voirkit changes is there, with the parameters that it needs, and names the versions that were checked.

What is changed is read from where it is declared: the ``PATCH_POINTS`` of modules, and the tables of ``Patches`` of a run.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pytest
from conftest import Place

import voirkit
import voirkit_instruments
from voirkit.imports import PatchPoint


def declared() -> list[tuple[str, PatchPoint]]:
    found = []
    for package in (voirkit, voirkit_instruments):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "PATCH_POINTS" in (
                importlib.util.find_spec(module.name).loader.get_source(module.name) or ""
            ):  # type: ignore[union-attr]
                points = getattr(importlib.import_module(module.name), "PATCH_POINTS", ())
                found += [(module.name, point) for point in points]
    return found


def release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def installed(library: str) -> tuple[int, int]:
    if library == "python":
        return sys.version_info[:2]
    try:
        return release(importlib.metadata.version(library))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")


def checked(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first and the last version of ``2.1 to 2.15``, or of ``0.11``."""
    first, _, last = text.partition(" to ")
    return release(first), release(last or first)


def is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


POINTS = declared()


def cases() -> list[Any]:
    marks = {True: [pytest.mark.torch], False: []}
    return [
        pytest.param(
            *one,
            id=f"{one[1].module}:{one[1].path}",
            marks=marks[one[1].checked.startswith("torch ")],
        )
        for one in POINTS
    ]


@pytest.mark.parametrize(("module", "point"), cases())
def test_what_a_module_changes_is_there_in_the_versions_that_it_names(
    module: str, point: PatchPoint
) -> None:
    library, _, versions = point.checked.partition(" ")
    first, last = checked(versions)
    version = installed(library)
    newest = max(
        checked(other.checked.partition(" ")[2])[1]
        for _, other in POINTS
        if other.checked.startswith(f"{library} ")
    )
    if not first <= version <= last:
        assert version <= newest or not is_there(point.module), (
            f"{library} {version} is newer than what {module} was checked with: check it, and name it"
        )
        return  # another version needs it
    owner = importlib.import_module(point.module)
    there = []
    for path in point.path.split("|"):
        try:
            there.append(attrgetter(path)(owner))
        except AttributeError:
            continue
    assert there, f"{point.module} has no {point.path}"
    for function in there:
        if point.parameters:
            assert set(point.parameters) <= set(
                inspect.signature(inspect.unwrap(function)).parameters
            )


# The tables of runs.
TABLES = """
import atexit, json, sys
from voirkit import intercept

made, init = [], intercept.Patches.__init__

def remember(self, *args, **kwargs):
    init(self, *args, **kwargs)
    made.append(self)

intercept.Patches.__init__ = remember

@atexit.register
def write():
    tables = [{"by": type(one).__module__, "checked": dict(one.checked), "table": one.table} for one in made]
    json.dump(tables, open("tables.json", "w"))
"""

# The changes of --what-if, all of them in one run.
CHANGES = """
def instrument_all_changes(ov):
    from voirkit_instruments.what_if.record import RunObserver
    from voirkit_instruments.what_if.record_changes import CHANGES, make_change
    from voirkit_instruments.steps.events import FunctionPatches

    yield ov.phases.load_script
    patches = FunctionPatches(lambda said: None)
    RunObserver().watch(patches)
    for name in CHANGES:
        make_change(name, "2" if CHANGES[name].argument else None).install(patches)
    yield ov.phases.finalize
    patches.remove()
"""

MAIN = """
import argparse, warnings
import torch
import torch.distributed, torch.distributed.checkpoint
import torch.nn.parallel.distributed
from torch.utils.data import DataLoader, TensorDataset
try:
    import torchvision.transforms, torchdata.stateful_dataloader
except ImportError:
    pass
argparse.ArgumentParser().parse_args()
data = TensorDataset(torch.randn(8, 4), torch.randint(0, 2, (8,)))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for workers in (0, 1):
    for x, y in DataLoader(data, batch_size=4, num_workers=workers, multiprocessing_context="fork" if workers else None):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    scheduler.step()
torch.save(model.state_dict(), "model.pt")
"""

FLAGS = ("--loader", "--checks", "--flame", "--options", "--train-rate", "--loading-rate")


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "changes", "least"),
    [
        (FLAGS, "", 100),
        (("--no-steps",), CHANGES, 10),
    ],
)
def test_what_instruments_change_is_there_in_versions_that_their_tables_name(
    place: Place, flags: Sequence[str], changes: str, least: int
) -> None:
    pytest.importorskip("torch")
    place.write(main=MAIN, voirfile=TABLES + changes)
    ended = place.voirkit(*flags, "main.py")
    assert ended.code == 0, ended.err
    tables = json.loads((place.folder / "tables.json").read_text())
    rows = [
        (table["by"], name, why, table["checked"])
        for table in tables
        for name, why in table["table"].items()
    ]
    assert len(rows) >= least
    unknown, unchecked, missing = set(), set(), set()
    for by, name, why, versions in rows:
        package = name.partition(".")[0]
        if package == "__main__":
            continue  # the program's own
        library = "python" if package in sys.stdlib_module_names else package
        if library not in versions:
            unknown.add((by, library))
            continue
        first, last = checked(versions[library])
        if installed(library) > last:
            unchecked.add((by, library, versions[library]))
        if (
            first <= installed(library) and why and why != "has been changed by somebody else since"
        ):  # by another change of the same run
            missing.add((by, name, why))
    assert (unknown, unchecked, missing) == (set(), set(), set())
