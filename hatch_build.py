"""Builds what is written in C with the compiler that is there; without one voirkit is installed all the same,
and does it in Python, but for ``--calls``, which it then refuses.

An editable install gets it beside its source, a wheel inside. ``VOIRKIT_NO_EXTENSION=1`` leaves it out.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Each source, and the folder in a wheel that the library goes to.
SOURCES = {
    "voirkit/trace/_recorder.c": "voirkit/trace",
    "voirkit/probes/_entry.c": "voirkit/probes",
    "instruments/voirkit_instruments/calls/_calls.c": "voirkit_instruments/calls",
    "instruments/voirkit_instruments/steps/_steps.c": "voirkit_instruments/steps",
}
ONLY_IN_C = ("voirkit/probes/_entry.c", "instruments/voirkit_instruments/calls/_calls.c")


class Libraries(BuildHookInterface):  # type: ignore[type-arg]
    """The build hook; hatchling finds it as the only one in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and say where the results go."""
        self._places: list[Path] = []
        if self.target_name != "wheel" or not _is_possible():
            return
        for source, folder in SOURCES.items():
            self._make(source, folder, version == "editable", build_data)

    def _make(self, source: str, folder: str, editable: bool, build_data: dict[str, Any]) -> None:
        place = Path(tempfile.mkdtemp(prefix="voirkit-build-"))
        self._places.append(place)
        try:
            built = _build(Path(self.root) / source, place)
        except (Exception, SystemExit) as exc:  # whatever a compiler driver may raise
            without = (
                "--calls will record nothing"
                if source in ONLY_IN_C
                else "voirkit does in Python what it is for"
            )
            self.app.display_warning(f"{source} could not be built ({exc}); {without}.")
            return
        if editable:
            # A new file each time: the old one may be mapped by a program that runs.
            beside = Path(self.root) / Path(source).parent / built.name
            shutil.copyfile(built, f"{beside}.new")
            os.replace(f"{beside}.new", beside)
        else:
            build_data["force_include"][str(built)] = f"{folder}/{built.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)


def _is_possible() -> bool:
    return (
        os.environ.get("VOIRKIT_NO_EXTENSION") != "1"
        and os.name == "posix"
        and sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")  # it relies on the GIL
    )


def _build(source: Path, place: Path) -> Path:
    """Compile; returns the library."""
    from setuptools import Distribution, Extension

    name = source.stem
    # From inside its folder and without debug information (-g is among Python's own flags): no path of this machine is in the library.
    before = os.getcwd()
    os.chdir(source.parent)
    try:
        threads = "-pthread"  # pthread_key_create is in a library of its own before glibc 2.34
        extension = Extension(
            name,
            [source.name],
            extra_compile_args=["-O2", "-g0", threads],
            extra_link_args=[threads],
        )
        distribution = Distribution({"name": name, "ext_modules": [extension]})
        command: Any = distribution.get_command_obj("build_ext")
        command.build_lib = command.build_temp = str(place)
        command.ensure_finalized()
        command.run()
        return Path(command.get_ext_fullpath(name))
    finally:
        os.chdir(before)
