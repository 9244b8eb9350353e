"""Pickles functions with taps by value as they are without: for joblib, dask, Ray, Spark, multiprocess; and marshals their code (Keras).

Taps are constants of a function's code, and stand for objects of this process.  Who pickles code (the ``cloudpickle`` that these libraries
have, each its own, and ``dill``) is made to take the program's own.  Never imports them: each is patched when it has been imported.
Checked with cloudpickle 3.1, joblib 1.4 and 1.6, dill 0.4.
"""

from __future__ import annotations

import functools
import marshal
from types import CodeType
from typing import TYPE_CHECKING, Any

from voirkit.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

CLOUDPICKLES = (
    "cloudpickle.cloudpickle",
    "joblib.externals.cloudpickle.cloudpickle",
    "ray.cloudpickle.cloudpickle",
    "pyspark.cloudpickle.cloudpickle",
)

_watching = False


def watch(own_code: Callable[[CodeType], CodeType]) -> None:
    """From now on code is pickled as the program's own, which a function tells."""
    global _watching
    if _watching:
        return
    _watching = True

    def patch_cloudpickle(module: ModuleType) -> None:
        table: Any = getattr(getattr(module, "Pickler", None), "dispatch_table", None)
        table = table if table is not None else getattr(getattr(module, "CloudPickler", None), "dispatch_table", None)
        maps: Any = getattr(table, "maps", None)
        reduce = maps[0].get(CodeType) if maps else None
        if reduce is not None:  # else another cloudpickle than those that were checked
            maps[0][CodeType] = lambda code: reduce(own_code(code))
            for name in ("_extract_code_globals", "_find_imported_submodules"):  # taps may name what the program's own code does not
                look = getattr(module, name, None)
                if look is not None:
                    setattr(module, name, _at_own_code(look, own_code))

    def patch_dill(module: ModuleType) -> None:
        table: Any = getattr(getattr(module, "Pickler", None), "dispatch", {})
        save = table.get(CodeType)
        if save is not None:
            table[CodeType] = lambda pickler, code: save(pickler, own_code(code))

    for name in ("dumps", "dump"):
        setattr(marshal, name, _of_own_code(getattr(marshal, name), own_code))
    for name in CLOUDPICKLES:
        when_imported(name, patch_cloudpickle)
    when_imported("dill._dill", patch_dill)


def _at_own_code(look: Callable[..., Any], own_code: Callable[[CodeType], CodeType]) -> Callable[..., Any]:
    @functools.wraps(look)
    def looked(code: CodeType, *args: Any) -> Any:
        return look(own_code(code), *args)

    return looked


def _of_own_code(dump: Callable[..., Any], own_code: Callable[[CodeType], CodeType]) -> Callable[..., Any]:
    @functools.wraps(dump)
    def marshalled(value: Any, *args: Any) -> Any:
        return dump(own_code(value) if type(value) is CodeType else value, *args)

    return marshalled
