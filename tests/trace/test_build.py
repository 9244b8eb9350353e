"""What is written in C: it compiles without a warning, is built where that is possible, and is missed where it is not."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import module_at

from voirkit.trace import layout

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "voirkit" / "trace" / "_recorder.c"
SOURCES = [
    SOURCE,
    ROOT / "voirkit" / "probes" / "_entry.c",
    *(
        ROOT / "instruments" / "voirkit_instruments" / name / f"_{name}.c"
        for name in ("steps", "calls")
    ),
]
INCLUDE = sysconfig.get_paths()["include"]
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(
    not SOURCE.exists(), reason="voirkit is installed without its sources"
)
can_compile = pytest.mark.skipif(
    COMPILER is None
    or not Path(INCLUDE, "Python.h").exists()
    or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="no compiler, no headers of python, or a python without the GIL",
)


@can_compile
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_it_compiles_without_a_warning(tmp_path: Path, source: Path) -> None:
    assert COMPILER is not None
    done = subprocess.run(
        [COMPILER, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-fPIC", "-shared", f"-I{INCLUDE}",
         str(source), "-o", str(tmp_path / "it.so")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_both_sides_agree_on_the_layout() -> None:
    text = SOURCE.read_text()
    assert re.search(r"#define ENGINE (\d+)", text)[1] == str(layout.ENGINE)  # type: ignore[index]
    assert re.search(r"THREAD = (0x\w+)", text)[1] == f"{layout.THREAD:#X}".replace("X", "x")  # type: ignore[index]


class Build:
    """The build hook, without hatchling around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        pytest.importorskip("setuptools")
        interface: Any = types.ModuleType("hatchling.builders.hooks.plugin.interface")
        interface.BuildHookInterface = object
        for name in (
            "hatchling",
            "hatchling.builders",
            "hatchling.builders.hooks",
            "hatchling.builders.hooks.plugin",
        ):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, interface.__name__, interface)
        module = module_at(ROOT / "hatch_build.py")
        for source in SOURCES:
            (root / source.relative_to(ROOT).parent).mkdir(parents=True, exist_ok=True)
            for file in (source, *source.parent.glob("*.h")):
                shutil.copy(file, root / file.relative_to(ROOT))
        self.warnings: list[str] = []
        self.hook = module.Libraries()
        self.hook.root, self.hook.target_name = str(root), "wheel"
        self.hook.app = types.SimpleNamespace(display_warning=self.warnings.append)
        self.data: dict[str, Any] = {"force_include": {}}


@can_compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_the_hook_puts_it_beside_its_source_or_into_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.delenv("VOIRKIT_NO_EXTENSION", raising=False)
    build = Build(monkeypatch, tmp_path)
    build.hook.initialize(version, build.data)
    assert build.warnings == []
    assert (build.data["pure_python"], build.data["infer_tag"]) == (False, True)
    ending = sysconfig.get_config_var("EXT_SUFFIX")
    if version == "editable":
        libraries = [
            source.parent / (source.stem + ending)
            for source in (tmp_path / source.relative_to(ROOT) for source in SOURCES)
        ]
    else:
        inside = list(build.data["force_include"].values())
        folders = [
            "voirkit/trace/_recorder",
            "voirkit/probes/_entry",
            "voirkit_instruments/steps/_steps",
            "voirkit_instruments/calls/_calls",
        ]
        assert sorted(inside) == sorted(folder + ending for folder in folders)
        libraries = [Path(built) for built in build.data["force_include"]]
    assert all(library.exists() for library in libraries)
    build.hook.finalize(version, build.data, "")
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".h"]
    sources = [tmp_path / source.relative_to(ROOT) for source in SOURCES]
    assert sorted(left) == sorted([*sources, *(libraries if version == "editable" else [])])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_missing_compiler_is_told_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED") or os.name != "posix":
        pytest.skip("it is not built here in any case")
    monkeypatch.delenv("VOIRKIT_NO_EXTENSION", raising=False)
    monkeypatch.setenv("CC", "/not/there/cc")
    build = Build(monkeypatch, tmp_path)
    build.hook.initialize("standard", build.data)
    assert build.data == {"force_include": {}}
    assert len(build.warnings) == len(SOURCES)
    assert [
        warning.partition(".c ")[0].rpartition("/_")[2]
        for warning in build.warnings
        if "--calls" in warning
    ] == ["entry", "calls"]
    assert (
        sum("voirkit does in Python what it is for" in warning for warning in build.warnings) == 2
    )


def test_it_is_not_built_when_that_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VOIRKIT_NO_EXTENSION", "1")
    build = Build(monkeypatch, tmp_path)
    build.hook.initialize("standard", build.data)
    assert (build.data, build.warnings) == ({"force_include": {}}, [])


@pytest.mark.parametrize(
    ("library", "where"), [("calls._calls", "calls.record"), ("steps._steps", "steps.record_spans")]
)
def test_what_was_built_of_an_instrument_is_what_records(
    monkeypatch: pytest.MonkeyPatch, library: str, where: str
) -> None:
    monkeypatch.delenv("VOIRKIT_NO_EXTENSION", raising=False)
    built = pytest.importorskip(f"voirkit_instruments.{library}")
    assert importlib.import_module(f"voirkit_instruments.{where}").engine() is built


def test_the_recorder_in_python_is_used_where_it_is_not_there_or_from_another_voirkit(
    tmp_path: Path,
) -> None:
    program = "from voirkit.trace import recorder; print(recorder.engine.NAME)"

    def engine(before: str = "", **env: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", before + program], capture_output=True, text=True, check=True, env={**os.environ, **env}
        ).stdout.strip()  # fmt: skip

    assert engine(VOIRKIT_NO_EXTENSION="1") == "python"
    assert engine("import sys; sys.modules['voirkit.trace._recorder'] = None; ") == "python"
    assert engine("from voirkit.trace import layout; layout.ENGINE = -1; ") == "python"


def test_importing_the_recorder_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from voirkit.trace import recorder; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "threading",
        "inspect",
        "dataclasses",
        "typing",
        "pathlib",
        "duckdb",
        "rich",
        "torch",
        "subprocess",
    }
