"""Functions with which instruments inspect the program's values safely: whether a value's elements
may be read, its plain number, and a short text of it.

FSDP, ZeRO-3 and offloading resize the storage of parameters to 0 between two uses, but keep the
shape. torch's own kernels then read at address 0, and the process dies. So every instrument calls
these functions before it reads a tensor. They call no code of the program, allocate nothing, wait
for no device (unless ``wait`` is set), make no long text, and never raise. A check takes 2 us. The
cost of inspections is recorded as overhead, not as time of the program. Checked with torch 2.1 to
2.15.
"""

from __future__ import annotations

import sys
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

# The dispatch keys of tensors in plain memory. Other keys belong to functorch wrappers, subclasses
# with ``__torch_dispatch__`` (DTensor, FakeTensor), sparse, quantized, nested and meta tensors, and
# tensors of zeros without memory.
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
    """Return the set of the dispatch keys in ``_PLAIN_KEYS`` that this torch version has."""
    core = torch._C
    keys = core.DispatchKeySet(core.DispatchKey.CPU)
    for name in _PLAIN_KEYS:
        if hasattr(core.DispatchKey, name):
            keys = keys | core.DispatchKeySet(getattr(core.DispatchKey, name))
    return keys


@cache
def _other_keys(torch: ModuleType) -> int:
    """Return the bit mask of the dispatch keys that no tensor in plain memory has."""
    return ~int(_plain_keys(torch).raw_repr())


def _has_other_keys(torch: ModuleType, tensor: Any) -> bool:
    keys = torch._C._dispatch_keys(tensor)
    if hasattr(keys, "raw_repr"):
        return bool(keys.raw_repr() & _other_keys(torch))
    plain = _plain_keys(torch)
    # In torch 2.1, sets of keys can only be compared as text. That version has no name for the key
    # of conjugate tensors, so such tensors do not count as plain in it.
    return str(keys | plain) != str(plain)


def is_readable(torch: ModuleType, tensor: Any) -> bool:
    """True if each element of a tensor lies in its storage and the storage is in memory, or if a
    plain tensor has no elements. Also works for subclasses that only have a ``__torch_function__``.
    The program's modes and wrappers do not notice the check."""
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
    except Exception:  # not a tensor, a wrapper without a storage, or an unknown kind of tensor
        return False


def _readers(torch: ModuleType) -> dict[Any, Callable[[int], float]]:
    """Return a dict from dtype to the function that reads a number at an address."""
    from ctypes import (
        c_double,
        c_float,
        c_int64,
        c_uint16,
        c_uint32,
    )  # imported late: whoever only calls ``is_readable``, as in a run without torch, needs none
    from struct import pack, unpack

    float32, float64, bits = c_float.from_address, c_double.from_address, c_uint16.from_address
    int64 = c_int64.from_address

    def read_bfloat16(address: int) -> float:
        # A bfloat16 is the upper half of a float32.
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
    """Reads one-element tensors without the program noticing. It runs no operator for a tensor in
    the CPU's memory, whereas ``item()`` is an operator, which a profiler or a dispatch mode of the
    program sees. A read takes some 1 us."""

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
        """Return the number as a float. A tensor on a device is returned detached, to be read after
        the run. Returns None if the value is not one plain element with storage, or if the program
        would notice the read."""
        kind = type(value)
        try:
            if kind is self._tensor and not self._function_modes():
                return self._read(value)
            if kind is self._tensor or (
                issubclass(kind, self._tensor) and kind.__torch_dispatch__ is self._dispatch
            ):
                with self._plainly():
                    return self._read(value)
        except Exception:  # the tensor has no storage (sparse, functorch)
            pass
        return None  # reading a subclass (DTensor, FakeTensor) would run operators of its own

    def _read(self, value: Any) -> Any:
        if value.numel() != 1:
            return None
        if not value.is_cpu:
            return self._on_device(value)
        read = self._from_memory.get(value.dtype)
        if read is None:
            return None
        # The check of ``is_readable`` for one element of a plain tensor, in half the time: it runs
        # at each step.
        offset, address = value.storage_offset(), value.data_ptr()
        if not address or (
            offset and value.untyped_storage().nbytes() < (offset + 1) * value.element_size()
        ):
            return None  # the tensor's storage was freed
        number = read(address)
        # the memory of a negated view holds the values before negation
        return -number if value.is_neg() else number

    def _on_device(self, value: Any) -> Any:
        if value.device.type == "meta" or self._modes() or self._profiles():
            return None
        if value.device.type == "cuda" and self._captures():
            return None
        return value.detach()


_NESTED = 4  # how many nested divisions by constants are followed
_AS_IT_IS = ("ToCopyBackward0", "CloneBackward0")


def constant_divisor(torch: ModuleType, loss: Any, read: Callable[[Any], Any]) -> float | None:
    """Return the constant by which a loss was divided at the end of its computation, or by whose
    inverse it was multiplied. None if there is no such constant, or if it cannot be read without
    the program noticing (torch versions without ``SavedTensor.unpack_hook``).

    Args:
        read: ``ScalarReader.read``.
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
    except Exception:  # the graph was freed, or this torch version has other attributes
        return None
    return None if abs(divisor - 1) < _PRECISION else divisor


_PRECISION = 1e-6


def _saved_constant(node: Any, read: Callable[[Any], Any]) -> float | None:
    """Return the number by which a node of the autograd graph divides or multiplies. None if the
    number needs a gradient itself, has a saved-tensor hook, or lies on a device."""
    if node.next_functions[1][0] is not None or node._raw_saved_other.unpack_hook is not None:
        return None
    constant = read(node._saved_other)
    return constant if type(constant) is float else None


_LONGEST_TEXT = 80
_MOST_ELEMENTS = 4
_DEEPEST = 2


def number(value: Any, *, wait: bool = True) -> Any:
    """Return the plain number in a one-element tensor, array or numpy scalar, or a plain number as
    it is; None for any other value.

    Args:
        value: Any object.
        wait: Whether to read a value on a device too, which waits until the device has computed it.
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
    """True if the elements of a tensor are in memory, or if the value is not a tensor."""
    torch = sys.modules.get("torch")
    return not isinstance(value, getattr(torch, "Tensor", ())) or is_readable(torch, value)  # type: ignore[arg-type]  # not None here


def _on_cpu(value: Any) -> bool:
    return str(getattr(value, "device", "cpu")) == "cpu"  # also true for arrays of numpy 2


def brief(value: Any, depth: int = 0) -> str:
    """Return a short text of a value: a number, a short string, or the type, shape, dtype and
    device of a tensor. The number in a one-element tensor is shown only if it is in the CPU's
    memory: reading from a device would wait for the device."""
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
    from argparse import Namespace  # imported late: a multiprocessing child may not need it

    if isinstance(value, Namespace):
        attributes = vars(value)
        pairs = [
            f"{name}={brief(attribute, depth + 1)}"
            for name, attribute in list(attributes.items())[:20]
        ]
        return _elements("Namespace", pairs, len(attributes))
    return kind.__qualname__ if not isinstance(value, type) else f"class {value.__qualname__}"


def _brief_array(value: Any, shape: Any, depth: int) -> str:
    """Return a short text of a tensor or array."""
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


# measuring the cost of inspections

# Set by the engine of ``--calls`` while it records. It is called with 1 to mute this thread, and
# with -1 to undo that.
mute_calls: Callable[[int], object] | None = None


class quiet:
    """Context manager in which ``--calls`` records no torch calls of this thread; may be nested."""

    __slots__ = ("_mute",)

    def __enter__(self) -> None:
        self._mute = mute_calls
        if self._mute is not None:
            self._mute(1)

    def __exit__(self, *_: object) -> None:
        if self._mute is not None:
            self._mute(-1)


class ProbeCost:
    """Records the inspections of one instrument and their time.

    Each inspection is a span ``voirkit.look`` of kind ``phase``. It is a part of ``other`` in the
    table of a step and of the overhead.

    Args:
        recorder: ``voirkit.trace.recorder``, or an object with its ``name``, ``span`` and
            ``timed``.

    Attributes:
        own_ns: Time of all inspections, in nanoseconds.
        n: Number of inspections.
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
        """Add the cost of the inspections to the run's overhead. ``records`` is the number of other
        records that the inspections have written."""
        self._recorder.timed(self.n + records, self.own_ns, "instruments")


def tensors_of(module: Any) -> Iterator[Any]:
    """Yield the parameters and buffers of a module and its submodules, each once. They are read
    from the module's attributes, because its methods may be overridden by the program."""
    return _tensors_in(module, ("_parameters", "_buffers"))


def parameters_of(module: Any) -> Iterator[Any]:
    """Yield the parameters of a module and its submodules, each once, as ``tensors_of`` does."""
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
