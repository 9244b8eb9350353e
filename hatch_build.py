"""Builds the C recorder (``voirkit/trace/_recorder.c``) with the compiler that is there; without one voirkit is installed all the same.

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

SOURCE = "voirkit/trace/_recorder.c"


class Recorder(BuildHookInterface):  # type: ignore[type-arg]
    """The build hook; hatchling finds it as the only one in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and say where the result goes."""
        if self.target_name != "wheel" or not _is_possible():
            return
        place = Path(tempfile.mkdtemp(prefix="voirkit-build-"))
        try:
            built = _build(Path(self.root) / SOURCE, place)
        except (Exception, SystemExit) as exc:  # whatever a compiler driver may raise
            shutil.rmtree(place, ignore_errors=True)
            self.app.display_warning(f"{SOURCE} could not be built ({exc}); voirkit records in Python instead.")
            return
        beside = Path(SOURCE).parent / built.name
        if version == "editable":
            # A new file each time: the old one may be mapped by a program that runs.
            fresh = Path(self.root) / f"{beside}.new"
            shutil.copyfile(built, fresh)
            os.replace(fresh, Path(self.root) / beside)
            shutil.rmtree(place, ignore_errors=True)
        else:
            build_data["force_include"][str(built)] = str(beside)
            self._place = place
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        if hasattr(self, "_place"):
            shutil.rmtree(self._place, ignore_errors=True)


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

    name = "_recorder"
    # From inside its folder: a compiler is told no path of this machine, which it would write into the library.
    before = os.getcwd()
    os.chdir(source.parent)
    try:
        distribution = Distribution({"name": name, "ext_modules": [Extension(name, [source.name], extra_compile_args=["-O2"])]})
        command: Any = distribution.get_command_obj("build_ext")
        command.build_lib = command.build_temp = str(place)
        command.ensure_finalized()
        command.run()
        return Path(command.get_ext_fullpath(name))
    finally:
        os.chdir(before)
