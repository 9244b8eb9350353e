"""Lines for a voirfile that a script's source suggests: where its loss, batches, model and loader are.

Reads the catalogue of the source only; never runs it. A guess by the names and shapes of ordinary training scripts: a
loop that calls ``.backward()``, variables called ``model``, ``train_loader``, ``device``.
"""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from voirkit.probes.catalogue import Catalogue, Function

NAMES = {
    "use_cuda": ("use_cuda", "use_gpu", "cuda", "with_cuda", "on_gpu"),
    "model": ("model", "net", "network", "module"),
    "loader": ("train_loader", "trainloader", "train_dataloader", "loader", "dataloader", "data_loader", "train_dl"),
}


class Candidates:
    """What a script offers for each reading.

    Args:
        catalogue: The script's.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._functions = [f for f in catalogue.functions if not f.is_lambda]
        self._learning = next(((f, call) for f in self._functions for call in _calls(f.node, "backward")), None)
        self._loop = self._training_loop()

    def line(self, reading: str) -> str | None:
        """The line to write into an instrument of the voirfile, or None if nothing in the script looks like it.

        Args:
            reading: ``loss``, ``step+batch``, ``compute_start/end``, ``use_cuda``, ``model`` or ``loader``.
        """
        if reading == "loss":
            name = self._loss_name()
            return _probe(f"{_reference(self._learning[0])} > {_as(name, 'loss')}") if self._learning and name else None
        if reading in ("step+batch", "compute_start/end"):
            if self._loop is None:
                return None
            function, x = self._loop
            where, batch = _reference(function), _as(x, "batch")
            if reading == "step+batch":
                return _probe(f"{where}({batch}) > #endloop_{x} as step")
            return _probe(f"{where}({batch}, !#loop_{x} as compute_start, !!#endloop_{x} as compute_end)")
        if reading == "use_cuda":
            return self._variable(reading) or self._device()
        return self._variable(reading)

    def _training_loop(self) -> tuple[Function, str] | None:
        """The loop around ``.backward()``, or around the call of the function that does it; and its batch's name."""
        callee = "backward"
        for _ in range(3):  # backward in step(), step() in epoch(), and so on
            found = [(f, call) for f in self._functions for call in _calls(f.node, callee)]
            for function, call in found:
                loops = [n for n in ast.walk(function.node) if isinstance(n, ast.For)]
                around = [loop for loop in loops if any(n is call for n in ast.walk(loop))]
                if around:
                    name = _batch_name(max(around, key=lambda loop: loop.lineno))  # the innermost
                    return (function, name) if name else None
            if not found:
                return None
            callee = found[0][0].path[-1]
        return None

    def _loss_name(self) -> str | None:
        if self._learning is None:
            return None
        function, call = self._learning
        names = [n.id for n in ast.walk(call) if isinstance(n, ast.Name) and n.id in function.own_names]
        return next((n for n in names if "loss" in n.lower()), names[0] if names else None)

    def _variable(self, reading: str) -> str | None:
        for name in NAMES[reading]:
            for functions in ([f.variables for f in self._functions], [f.parameters for f in self._functions]):
                for function, own in zip(self._functions, functions, strict=True):
                    if name in own:
                        return _probe(f"{_reference(function)} > {_as(name, reading)}")
        return None

    def _device(self) -> str | None:
        owner = next((f for f in self._functions if "device" in f.own_names), None)
        if owner is None:
            return None
        device = f'ov.probe("{_reference(owner)} > device")["device"]'
        return f'{device}.map(lambda device: {{"use_cuda": "cuda" in str(device)}}).give()'


def _calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of that name, without those in nested functions (which have their own entry)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.Call) and name == getattr(child.func, "attr", getattr(child.func, "id", None)):
            yield child
        yield from _calls(child, name)


def _batch_name(loop: ast.For) -> str | None:
    """The first name of the loop's target that is not the counter of an ``enumerate``."""
    names = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
    counted = any(isinstance(n, ast.Name) and n.id == "enumerate" for n in ast.walk(loop.iter))
    if counted and isinstance(loop.target, ast.Tuple) and len(names) > 1:
        names = [name for name in names if name != getattr(loop.target.elts[0], "id", None)]
    return names[0] if names else None


def _reference(function: Function) -> str:
    return "//" + "/".join(function.path)


def _as(name: str, wanted: str) -> str:
    return name if name == wanted else f"{name} as {wanted}"


def _probe(selector: str) -> str:
    return f'ov.probe("{selector}").give()'
