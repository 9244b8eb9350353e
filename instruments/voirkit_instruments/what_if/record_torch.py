"""What-ifs that are one switch of torch: checksums of checkpoints, threads, pinned memory, copies that are not waited for.

Nothing here imports torch. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit_instruments.what_if.record_changes import Ceiling, ceiling_of_phases, ceiling_of_saving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.intercept import Patches

_NO_GPU = "there is no CUDA device here, and nothing is copied to one."


class _Switch:
    """What the changes here have in common.

    Attributes:
        exact: Results must be bit-equal.
        touched: How many times something was changed.
        because: Why nothing was, if that can be told.
    """

    exact = True

    def __init__(self, argument: str | None) -> None:
        self.touched = 0
        self.because = ""

    def end(self) -> None:
        """Nothing goes on."""

    def facts(self) -> dict[str, Any]:
        """How often something was changed."""
        return {"touched": self.touched, **({"because": self.because} if self.because else {})}


class CheckpointNoCrc(_Switch):
    """``torch.serialization.set_crc32_options(False)``: torch.save writes no checksums, which torch.load does not look at.

    Strict readers do: ``zipfile`` reports such a file as bad, and other libraries have refused them.
    """

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self._put_back: Callable[[], object] | None = None

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """The time in torch.save."""
        return ceiling_of_saving(summary)

    def install(self, patches: Patches) -> None:
        """Switch it off as soon as torch is there."""
        self.because = "torch was not imported."

        def switch(torch: ModuleType) -> None:
            module = torch.serialization
            if not hasattr(module, "set_crc32_options"):
                self.because = "this torch always writes checksums (2.6 and later can leave them out)."
                return
            self.because = "" if module.get_crc32_options() else "the checksums were switched off already."
            self.touched += not self.because
            module.set_crc32_options(False)
            self._put_back = lambda: module.set_crc32_options(True)

        when_imported("torch", switch)

    def end(self) -> None:
        """Checksums are written again."""
        if self._put_back is not None:
            self._put_back()


class NumThreads(_Switch):
    """``torch.set_num_threads(N)`` as soon as torch is there; what the program itself sets later holds."""

    exact = False  # sums are taken in another order

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        if argument is None or not (argument.isascii() and argument.isdigit() and 0 < int(argument) <= 4096):
            raise ValueError(f"num-threads needs a whole number of threads of at least 1, not {argument or 'nothing'!r}.")
        self._n = int(argument)
        self._torch: Any = None

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """The time of computing, where that is done by the CPU."""
        if (summary.get("what_if_run") or {}).get("threads") == self._n:
            return Ceiling(0.0, f"the script computes with {self._n} thread{'s' if self._n > 1 else ''} as it is.")
        if (summary.get("steps") or {}).get("time_of") == "device":
            return Ceiling(None, "the steps are computed by a GPU, which has nothing of it; the host's own work may.")
        return ceiling_of_phases(summary, "computing (forward, backward, optimizer)", "forward", "backward", "optimizer")

    def install(self, patches: Patches) -> None:
        """Set the number."""
        self.because = "torch was not imported."

        def switch(torch: ModuleType) -> None:
            self._torch = torch
            torch.set_num_threads(self._n)

        when_imported("torch", switch)

    def end(self) -> None:
        """See whether it has held."""
        if self._torch is not None:
            threads = self._torch.get_num_threads()
            self.touched = int(threads == self._n)
            self.because = "" if self.touched else f"the program itself has set {threads} threads."


class PinMemory(_Switch):
    """``DataLoader(pin_memory=True)``, where the program leaves it out."""

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """The time of copies to the GPU."""
        if not (summary.get("what_if_run") or {}).get("cuda"):
            return Ceiling(0.0, _NO_GPU)
        return ceiling_of_phases(summary, "copying from one device to another (transfer)", "transfer")

    def install(self, patches: Patches) -> None:
        """Have the program's loaders made so."""
        self.because = "no loader was made that does not pin its batches already."

        def switch(module: ModuleType) -> None:
            patches.wrap(module.DataLoader, "__init__", self._make)

        when_imported("torch.utils.data.dataloader", switch)

    def _make(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from inspect import signature

        try:
            bound = signature(wrapped).bind(*args, **kwargs)
        except TypeError:  # torch says what is wrong with it
            return wrapped(*args, **kwargs)
        if not bound.arguments.get("pin_memory"):
            bound.arguments["pin_memory"] = True
            self.touched += 1
            self.because = ""
        return wrapped(*bound.args, **bound.kwargs)


class NonBlocking(_Switch):
    """``non_blocking=True`` for copies from pinned memory to a GPU by ``Tensor.to`` and ``Tensor.cuda``.

    Only such copies: from other memory it gains nothing, and to the CPU the program could read what has not arrived. What the program
    writes into the pinned tensor right after the copy may arrive too: the losses are compared for that.
    """

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """The time of copies to the GPU."""
        if not (summary.get("what_if_run") or {}).get("cuda"):
            return Ceiling(0.0, _NO_GPU)
        return ceiling_of_phases(summary, "copying from one device to another (transfer)", "transfer")

    def install(self, patches: Patches) -> None:
        """Put something before both methods, around what others have put there."""
        self.because = "nothing was copied from pinned memory to a GPU."

        def switch(torch: ModuleType) -> None:
            for name in ("to", "cuda"):
                patches.put(torch.Tensor, name, self._method(torch, name))

        when_imported("torch", switch)

    def _method(self, torch: ModuleType, name: str) -> Any:
        original = getattr(torch.Tensor, name)
        is_tensor = torch.Tensor

        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if type(tensor) is is_tensor and "non_blocking" not in kwargs and self._to_gpu(torch, name, args, kwargs) and _pinned(tensor):
                self.touched += 1
                self.because = ""
                kwargs["non_blocking"] = True
            return original(tensor, *args, **kwargs)

        copy.__name__ = copy.__qualname__ = name
        return copy

    def _to_gpu(self, torch: ModuleType, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments are a GPU and nothing else that could be ``non_blocking``: ``to`` takes it by place as well."""
        if any(type(given) is bool for given in args) or len(args) > 2:
            return False
        device = kwargs.get("device", args[0] if args else None)
        if name == "cuda":
            return True
        if isinstance(device, torch.Tensor):
            return bool(device.is_cuda)
        if type(device) is int:
            return True
        return str(device).partition(":")[0] == "cuda" if isinstance(device, str | torch.device) else False


def _pinned(tensor: Any) -> bool:
    try:
        return bool(tensor.device.type == "cpu" and tensor.is_pinned())
    except Exception:  # a tensor without memory of its own
        return False
