"""How instruments inspect what the program has: whether the elements of a value may be read, as
plain numbers, and in few words; and what such an inspection costs, so that it counts for none of
the program's.

FSDP, ZeRO-3 and offloading resize the storage of parameters to 0 between two uses and leave their
shape as it was: torch's own kernels then read at address 0, and the process dies. So every
instrument asks here before it reads a tensor. Nothing of the program is called, nothing is
allocated, no device is waited for (but where ``wait`` says so), no long text is made, and nothing
raises. 2 us. Checked with torch 2.1 to 2.15.
"""

from __future__ import annotations

import sys
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

# What torch dispatches the operators of a tensor by that has plain memory. Those of a functorch
# wrapper, a subclass with ``__torch_dispatch__`` (DTensor, FakeTensor), a sparse, quantized, nested
# or meta tensor, and one of zeros without memory have others.
_PLAIN_KEYS = (
    "CPU",
    "CUDA",
    "HIP",
    "XPU",
    "MPS",
    "HPU",
    "MTIA",
    "PrivateUse1",
    "ADInplaceOrView",
    "Conjugate",
    "Negative",
    "AutogradCPU",
    "AutogradCUDA",
    "AutogradHIP",
    "AutogradXPU",
    "AutogradMPS",
    "AutogradHPU",
    "AutogradMTIA",
    "AutogradPrivateUse1",
    "AutocastCPU",
    "AutocastCUDA",
    "AutocastXPU",
    "AutocastMPS",
    "AutocastHPU",
    "AutocastMTIA",
    "AutocastPrivateUse1",
)


@cache
def _plain_keys(torch: ModuleType) -> Any:
    """The set of all these."""
    core = torch._C
    keys = core.DispatchKeySet(core.DispatchKey.CPU)
    for name in _PLAIN_KEYS:
        if hasattr(core.DispatchKey, name):
            keys = keys | core.DispatchKeySet(getattr(core.DispatchKey, name))
    return keys


@cache
def _other_keys(torch: ModuleType) -> int:
    """The bits of a set of dispatch keys that no tensor in plain memory has."""
    return ~int(_plain_keys(torch).raw_repr())


def _has_other_keys(torch: ModuleType, tensor: Any) -> bool:
    keys = torch._C._dispatch_keys(tensor)
    if hasattr(keys, "raw_repr"):
        return bool(keys.raw_repr() & _other_keys(torch))
    plain = _plain_keys(torch)
    # torch 2.1 compares no sets but by their texts. It does not name the key of conjugates, which
    # count as others there.
    return str(keys | plain) != str(plain)


def is_readable(torch: ModuleType, tensor: Any) -> bool:
    """Whether each element of a tensor lies in its storage, and this in memory. True of a plain
    tensor without elements. Of subclasses that only have a ``__torch_function__`` too; other modes
    and wrappers of the program see nothing of it."""
    core = torch._C
    try:
        with core.DisableTorchFunction():
            if _has_other_keys(torch, tensor):
                return False
            n = tensor.numel()
            if not n:
                return True
            last = (
                n - 1
                if tensor.is_contiguous()
                else sum(
                    (size - 1) * step
                    for size, step in zip(tensor.shape, tensor.stride(), strict=True)
                )
            )
            needed: int = (tensor.storage_offset() + last + 1) * tensor.element_size()
            return needed <= int(tensor.untyped_storage().nbytes())
    except Exception:  # no tensor, a wrapper without a storage, or one of torch's that is not known
        return False


def _readers(torch: ModuleType) -> dict[Any, Callable[[int], float]]:
    """By type, what reads a number at an address."""
    from ctypes import (
        c_double,
        c_float,
        c_int64,
        c_uint16,
        c_uint32,
    )  # not for those who only ask whether: a run without torch is one of them
    from struct import pack, unpack

    float32, float64, bits = c_float.from_address, c_double.from_address, c_uint16.from_address
    int64 = c_int64.from_address

    def read_bfloat16(address: int) -> float:
        # It is the upper half of a float32.
        return c_float.from_buffer(c_uint32(bits(address).value << 16)).value

    def read_float16(address: int) -> float:
        (value,) = unpack("e", pack("H", bits(address).value))
        return float(value)

    def read_int64(address: int) -> float:
        return float(int64(address).value)

    return {
        torch.float32: lambda address: float32(address).value,
        torch.float64: lambda address: float64(address).value,
        torch.int64: read_int64,
        torch.bfloat16: read_bfloat16,
        torch.float16: read_float16,
    }


class ScalarReader:
    """Reads tensors of one element so that the program cannot tell: no operator runs for what lies
    in the CPU's memory. ``item()`` is an operator, which a profiler or a dispatch mode of the
    program sees. Reading takes some 1 us."""

    def __init__(self, torch: ModuleType) -> None:
        self._tensor, self._dispatch = torch.Tensor, torch.Tensor.__torch_dispatch__
        self._plainly = torch._C.DisableTorchFunction
        self._function_modes: Callable[[], int] = getattr(
            torch._C, "_len_torch_function_stack", lambda: 1
        )
        self._modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
        self._profiles: Callable[[], bool] = getattr(
            torch.autograd, "_profiler_enabled", lambda: True
        )
        self._captures: Callable[[], bool] = getattr(
            torch._C, "_cuda_isCurrentStreamCapturing", lambda: True
        )
        self._from_memory = _readers(torch)

    def read(self, value: Any) -> Any:
        """The number as a float, or for what lies on a device a tensor without a graph, to be read
        when the run is over. None for what is not one plain element with storage, or cannot be had
        without the program's noticing."""
        kind = type(value)
        try:
            if kind is self._tensor and not self._function_modes():
                return self._read(value)
            if kind is self._tensor or (
                issubclass(kind, self._tensor) and kind.__torch_dispatch__ is self._dispatch
            ):
                with self._plainly():
                    return self._read(value)
        except Exception:  # it has no storage (sparse, functorch)
            pass
        return None  # of a subclass with its own operators (DTensor, fake tensors) they would run

    def _read(self, value: Any) -> Any:
        if value.numel() != 1:
            return None
        if not value.is_cpu:
            return self._on_device(value)
        read = self._from_memory.get(value.dtype)
        if read is None:
            return None
        # What ``is_readable`` asks, for one element of a plain tensor, in half the time: this is
        # done at each step.
        offset, address = value.storage_offset(), value.data_ptr()
        if not address or (
            offset and value.untyped_storage().nbytes() < (offset + 1) * value.element_size()
        ):
            return None  # its storage was freed
        number = read(address)
        return -number if value.is_neg() else number  # of such a view the memory holds the opposite

    def _on_device(self, value: Any) -> Any:
        if value.device.type == "meta" or self._modes() or self._profiles():
            return None
        if value.device.type == "cuda" and self._captures():
            return None
        return value.detach()


_NESTED = 4  # divisions by constants inside of each other
_AS_IT_IS = ("ToCopyBackward0", "CloneBackward0")


def constant_divisor(torch: ModuleType, loss: Any, read: Callable[[Any], Any]) -> float | None:
    """By what constant a loss was divided, or multiplied by the inverse of, at the end of its
    computation; None if by none, or if that cannot be known without the program's noticing (before
    torch has ``SavedTensor.unpack_hook``).

    Args:
        read: Of a ``ScalarReader``.
    """
    divisor = 1.0
    try:
        with torch._C.DisableTorchFunction():
            node = loss.grad_fn
            for _ in range(_NESTED):
                kind = type(node).__name__
                if kind in ("DivBackward0", "MulBackward0"):
                    constant = _saved_constant(node, read)
                    if not constant:
                        break
                    divisor *= constant if kind == "DivBackward0" else 1 / constant
                elif kind not in _AS_IT_IS:
                    break
                node = node.next_functions[0][0]
    except Exception:  # a graph that was freed, or a torch that is not like any known one
        return None
    return None if abs(divisor - 1) < _PRECISION else divisor


_PRECISION = 1e-6


def _saved_constant(node: Any, read: Callable[[Any], Any]) -> float | None:
    """The number that a node of autograd's graph divides or multiplies by; None if gradients flow
    into it, or it lies on a device."""
    if node.next_functions[1][0] is not None or node._raw_saved_other.unpack_hook is not None:
        return None
    constant = read(node._saved_other)
    return constant if type(constant) is float else None


_LONGEST_TEXT = 80
_MOST_ELEMENTS = 4
_DEEPEST = 2


def number(value: Any, *, wait: bool = True) -> Any:
    """The plain number that a one-element tensor, array or numpy scalar holds; a plain number as it
    is; otherwise None.

    Args:
        value: Anything.
        wait: Whether to read from a device too. That waits until the device has computed the value.
    """
    if type(value) in (bool, int, float):
        return value
    try:
        if not may_be_read(value) or (not wait and not _on_cpu(value)):
            return None
        size = value.numel() if hasattr(value, "numel") else value.size
        plain = value.item() if size == 1 else None
        return plain if type(plain) in (bool, int, float) else None
    except Exception:  # not a tensor, or one without data (meta, fake)
        return None


def may_be_read(value: Any) -> bool:
    """True if the elements of a tensor are in memory, and for whatever is not a tensor."""
    torch = sys.modules.get("torch")
    return not isinstance(value, getattr(torch, "Tensor", ())) or is_readable(torch, value)  # type: ignore[arg-type]  # it is torch


def _on_cpu(value: Any) -> bool:
    return str(getattr(value, "device", "cpu")) == "cpu"  # numpy 2 arrays say "cpu" too


def brief(value: Any, depth: int = 0) -> str:
    """The value in few words: a number, a short text, or type, shape, dtype and device of a tensor.
    A one-element tensor shows its number only if it lies in the CPU's memory: reading another waits
    for the device."""
    try:
        return _brief(value, depth)
    except Exception:  # an object may raise from any attribute
        return type(value).__qualname__


def _brief(value: Any, depth: int) -> str:
    kind = type(value)
    if value is None:
        return "None"
    if kind in (bool, int):
        is_short = abs(value) < 10**30
        return str(value) if is_short else f"int of {value.bit_length()} bits"
    if kind is float:
        return f"{value:.6g}"
    if kind in (str, bytes):
        if len(value) <= _LONGEST_TEXT:
            return repr(value)
        return f"{value[:_LONGEST_TEXT]!r}… ({len(value)})"
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return _brief_array(value, shape, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        texts = [brief(element, depth + 1) for element in _first(value, depth)]
        return _elements(kind.__name__, texts, len(value))
    if isinstance(value, dict):
        pairs = [
            f"{brief(k, depth + 1)}: {brief(value[k], depth + 1)}" for k in _first(value, depth)
        ]
        return _elements(kind.__name__, pairs, len(value))
    from argparse import Namespace  # a process that multiprocessing starts may do without

    if isinstance(value, Namespace):
        attributes = vars(value)
        pairs = [
            f"{name}={brief(attribute, depth + 1)}"
            for name, attribute in list(attributes.items())[:20]
        ]
        return _elements("Namespace", pairs, len(attributes))
    return kind.__qualname__ if not isinstance(value, type) else f"class {value.__qualname__}"


def _brief_array(value: Any, shape: Any, depth: int) -> str:
    """A tensor or array in few words."""
    plain = number(value, wait=False)
    sizes = [int(size) for size in shape]
    dtype = str(value.dtype).removeprefix("torch.")
    text = f"{type(value).__name__}{sizes} {dtype}"
    if not _on_cpu(value):
        text += f" {value.device}"
    return text if plain is None else f"{text} = {_brief(plain, depth)}"


def _first(values: Any, depth: int) -> list[Any]:
    if depth >= _DEEPEST:
        return []
    return [value for _, value in zip(range(_MOST_ELEMENTS), values, strict=False)]


def _elements(name: str, texts: list[str], length: int) -> str:
    more = [f"… {length} in all"] if length > len(texts) else []
    return f"{name}({', '.join(texts + more)})"


# what an inspection costs

mute_calls: Callable[[int], object] | None = None  # of the engine of ``--calls``, while it records


class quiet:
    """No call of torch in this thread is recorded by ``--calls`` until its end; may be nested."""

    __slots__ = ("_mute",)

    def __enter__(self) -> None:
        self._mute = mute_calls
        if self._mute is not None:
            self._mute(1)

    def __exit__(self, *_: object) -> None:
        if self._mute is not None:
            self._mute(-1)


class ProbeCost:
    """The inspections of one instrument: each is a phase of its own, a part of ``other`` in the
    table of a step and of the overhead.

    The phase is ``voirkit.look``, of kind ``phase``.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``span`` and ``timed``.

    Attributes:
        own_ns: How long they took.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._span, self._name = recorder.span, recorder.name("voirkit", "look", kind="phase")
        self.own_ns = self.n = 0

    def add(self, began_ns: int, end_ns: int) -> None:
        """Record one inspection."""
        self._span(self._name, began_ns, end_ns, 0, 0)
        self.own_ns += end_ns - began_ns
        self.n += 1

    def report(self, records: int = 0) -> None:
        """Add their cost to the run's overhead, with the number of records of another kind that
        were made meanwhile."""
        self._recorder.timed(self.n + records, self.own_ns, "instruments")


def tensors_of(module: Any) -> Iterator[Any]:
    """The parameters and buffers of a module and those in it, each once, by the tables themselves:
    methods may be the program's."""
    return _tensors_in(module, ("_parameters", "_buffers"))


def parameters_of(module: Any) -> Iterator[Any]:
    """Its parameters alone, likewise."""
    return _tensors_in(module, ("_parameters",))


def _tensors_in(module: Any, tables: tuple[str, ...]) -> Iterator[Any]:
    ids: set[int] = set()
    modules = [module]
    while modules:
        inner = modules.pop()
        if id(inner) in ids:
            continue
        ids.add(id(inner))
        for name in tables:
            for tensor in getattr(inner, name).values():
                if tensor is not None and id(tensor) not in ids:
                    ids.add(id(tensor))
                    yield tensor
        modules += [child for child in inner._modules.values() if child is not None]
