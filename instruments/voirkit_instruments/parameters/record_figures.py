"""Figures of tensors for ``--parameters``: norms, digests and flags, computed in batches under
no_grad without waiting for a device.

The results are small tensors on the same device; ``Later`` copies them to the host. Checked with
torch 2.1 and 2.15.
"""

from __future__ import annotations

import ctypes
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from voirkit_instruments.parameters.record_plan import (
    GRAD_INF,
    GRAD_NAN,
    GRAD_NOT_ZERO,
    GRAD_ZERO,
    INF,
    NAN,
)
from voirkit_instruments.values import is_readable

NOT_ZERO, IS_NAN, IS_INF = 1, 2, 4  # bit flags; those of an element are called its code
_CHUNK = 1 << 20  # elements that torch digests at a time: 8 MiB of memory
_MULTIPLIER = -7046029254386353131  # an odd number of 64 bits without a pattern (from splitmix64)
_SHIFTED = 29


class Figures:
    """Calculator of norms, flags, changes and digests of tensors."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.tensor = torch.Tensor
        self._integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self._low = {getattr(torch, name, None) for name in ("float16", "bfloat16")} - {None}
        self._float8 = {getattr(torch, name) for name in dir(torch) if name.startswith("float8_")}
        self._weights: dict[Any, Any] = {}
        self._norm_as: bool | None = None

    def is_readable(self, tensor: Any) -> bool:
        """True if a tensor's elements are in memory. The other methods take only such tensors."""
        return is_readable(self._torch, tensor)

    # norms

    def norms(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the 2-norms of tensors on one device, each as a tensor without dimensions: float64
        for a float64 tensor, otherwise float32. The norm is None for a tensor that is neither
        floating-point nor complex."""
        torch = self._torch
        norms: list[Any] = [None] * len(tensors)
        by_kind: dict[Any, list[int]] = {}
        parts = [self._floating(tensor) for tensor in tensors]
        for index, part in enumerate(parts):
            if part is None:
                continue
            if not part.numel():
                norms[index] = torch.zeros((), device=part.device)
            else:
                by_kind.setdefault(part.dtype, []).append(index)
        for kind, indices in by_kind.items():
            norms_of_kind = self._batched([parts[index] for index in indices], kind)
            for index, norm in zip(indices, norms_of_kind, strict=True):
                norms[index] = norm
        return norms

    def norms_on_devices(
        self, category: str, tensors: Mapping[int, Any]
    ) -> Iterator[tuple[str, int, Any]]:
        """Yield (category, key, norm) for each readable tensor that is not on the CPU."""
        on_devices = {
            key: tensor
            for key, tensor in tensors.items()
            if tensor.device.type != "cpu" and self.is_readable(tensor)
        }
        norms = self.norms(list(on_devices.values()))
        for key, norm in zip(on_devices, norms, strict=True):
            if norm is not None:
                yield category, key, norm

    def _floating(self, tensor: Any) -> Any:
        if tensor.dtype in self._float8:
            return tensor.float()
        if tensor.dtype.is_complex:
            return self._torch.view_as_real(tensor.resolve_conj())
        return tensor if tensor.dtype.is_floating_point else None

    def _batched(self, tensors: list[Any], kind: Any) -> Sequence[Any]:
        torch = self._torch
        if kind not in self._low:
            return torch._foreach_norm(tensors)  # type: ignore[no-any-return]
        if self._norm_as is not False:
            try:  # float32, since a norm in half precision overflows at 65504
                norms: Sequence[Any] = torch._foreach_norm(tensors, 2, dtype=torch.float32)
                self._norm_as = True
                return norms
            except TypeError:  # torch before 2.4 has no ``dtype``
                self._norm_as = False
        return [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]

    def exact_norm(self, tensor: Any) -> float:
        """Return the norm in float64, for tensors on the CPU whose squares are too small or too
        large for float32."""
        part = self._floating(tensor)
        if part is None:
            return 0.0
        return float(self._torch.linalg.vector_norm(part, dtype=self._torch.float64))

    def is_dense(self, tensor: Any) -> bool:
        """True if the memory from a tensor's first element to its last holds nothing but its
        elements."""
        if tensor.is_contiguous():
            return True
        ends = 0
        dimensions = zip(tensor.shape, tensor.stride(), strict=True)
        for size, stride in sorted(dimensions, key=lambda pair: pair[1]):
            if size != 1:
                if stride != max(ends, 1):
                    return False
                ends = max(ends, 1) * size
        return True

    def bits(self, tensor: Any) -> Any:
        """Return the bits of the elements as integers, in the same memory."""
        if tensor.dtype.is_complex:
            tensor = self._torch.view_as_real(tensor.resolve_conj())
        return tensor.view(self._integers[tensor.element_size()])

    # codes of elements

    def _marked(self, mask: Any, code: int) -> Any:
        return mask.view(self._torch.uint8) * code

    def codes_of_all(self, tensor: Any) -> Any:
        """Return the combined code of all elements of a tensor: their bit flags, as one number on
        the tensor's device."""
        torch = self._torch
        if tensor.element_size() == 1 and tensor.dtype.is_floating_point:
            tensor = tensor.float()
        code = self._marked((tensor != 0).any(), NOT_ZERO)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            code = code + self._marked(torch.isnan(tensor).any(), IS_NAN)
            code = code + self._marked(torch.isinf(tensor).any(), IS_INF)
        return code

    @staticmethod
    def data_flags(code: int) -> int:
        """Convert the code of a parameter's data to the flags of a record."""
        return (NAN if code & IS_NAN else 0) | (INF if code & IS_INF else 0)

    @staticmethod
    def gradient_flags(code: int) -> int:
        """Convert the code of a gradient to the flags of a record."""
        return (
            (GRAD_NOT_ZERO if code & NOT_ZERO else GRAD_ZERO)
            | (GRAD_NAN if code & IS_NAN else 0)
            | (GRAD_INF if code & IS_INF else 0)
        )

    # changes of tensors

    def same(self, before: Any, after: Any) -> bool:
        """True if two tensors on the CPU have the same bits. Returns at once if the first elements
        differ."""
        return bool(self._torch.equal(self.bits(before), self.bits(after)))

    def difference(self, before: Any, after: Any) -> Any:
        """Return ``after - before``, in the memory of ``before``; for elements of eight bits, in
        float32."""
        if before.element_size() == 1:
            return after.float() - before.float()
        return self._torch.sub(after, before, out=before)

    # digests

    def flat(self, tensor: Any) -> Any:
        """Return the elements of a tensor in one dimension: a view in memory order if the tensor is
        dense, otherwise a copy in index order."""
        if self.is_dense(tensor):
            return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
        return tensor.reshape(-1).contiguous()

    def digest(self, tensor: Any) -> Any:
        """Return the digest of a tensor: an integer for a tensor on the CPU, otherwise an int64
        tensor without dimensions. On the CPU it is ``zlib.crc32`` of the bytes in memory order;
        elsewhere it is ``sum64``."""
        flat = self.flat(tensor)
        if flat.device.type != "cpu":
            return self.sum64(flat)
        if not flat.numel():
            return 0
        bits = self.bits(flat)
        size = bits.numel() * bits.element_size()
        # Not through a numpy array, which would forever keep the program from resizing the storage.
        return zlib.crc32((ctypes.c_ubyte * size).from_address(bits.data_ptr()))

    def sum64(self, flat: Any) -> Any:
        """Return the sum, modulo 2^64, of each element's bits times an odd number that depends on
        its position. A change of any single element changes the sum."""
        torch = self._torch
        if flat.dtype.is_complex:
            flat = torch.view_as_real(flat).reshape(-1)
        bits = self.bits(flat)
        weights = self._weights.get(flat.device)
        count = min(flat.numel(), _CHUNK)
        if weights is None:
            weights = self._weights[flat.device] = self._odd_numbers(count, flat.device)
        elif len(weights) < count:
            weights = self._weights[flat.device] = self._odd_numbers(_CHUNK, flat.device)
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for i, start in enumerate(range(0, flat.numel(), _CHUNK)):
            part = bits[start : start + _CHUNK].to(torch.int64)
            # The factor is odd, since 2^63 and 2^64 are even. ``weights`` (the numbers that depend
            # on the position) are odd too. So each element is multiplied by an odd number, and a
            # change of one element always changes the sum modulo 2^64.
            factor = ((2 * i + 1) * 0x5851F42D4C957F2D + 2**63) % 2**64 - 2**63
            total += (part * weights[: len(part)]).sum() * factor
        return total

    def _odd_numbers(self, count: int, device: Any) -> Any:
        """Return odd numbers without a pattern, the same on every device. No random number
        generator of the program is used."""
        torch = self._torch
        numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _MULTIPLIER
        numbers ^= numbers >> _SHIFTED
        numbers *= -4658895280553007687
        numbers ^= numbers >> 32
        return numbers | 1


# maximum number of steps whose figures are being copied to the host; with more, the oldest are
# waited for
MOST_PENDING = 64


class _Pending(NamedTuple):
    """Figures of a step that are being copied to the host."""

    arrays: list[Any]  # each array that is on the host already; None for the others
    hosts: list[Any]  # for each device, the copy on the host
    events: list[Any]  # CUDA events that complete with the copies
    places: list[tuple[int, int, int, int]]  # (index of the array, index of the host, start, end)
    receive: Callable[[list[Any]], None]


class Later:
    """Copier of figures from devices to the host that does not wait: copies are queued behind the
    program's own work and read at a later step.

    On the CPU, figures are available at once. On devices other than CUDA, one copy per step waits
    for the device. Written against ``torch.cuda``'s events and tested only with a fake of them: it
    has never run on a GPU.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pending: deque[_Pending] = deque()

    def bring(self, tensors: Sequence[Any], receive: Callable[[list[Any]], None]) -> None:
        """Bring tensors to the host, with one copy for each device.

        Args:
            tensors: Tensors of any shape; numpy arrays are on the host already. int64 tensors on
                devices are brought bit by bit, as doubles.
            receive: Called with a numpy array for each of the tensors, now or at a later step.
        """
        arrays: list[Any] = [None] * len(tensors)
        by_device: dict[Any, list[int]] = {}
        for index, tensor in enumerate(tensors):
            if type(tensor) is np.ndarray:
                arrays[index] = tensor
            elif tensor.device.type == "cpu":
                arrays[index] = tensor.reshape(-1).numpy()
            else:
                by_device.setdefault(tensor.device, []).append(index)
        if not by_device and not self._pending:
            receive(arrays)
            return
        hosts: list[Any] = []
        events: list[Any] = []
        places: list[tuple[int, int, int, int]] = []
        for device, indices in by_device.items():
            parts = [self._double(tensors[index]) for index in indices]
            start = 0
            for index, part in zip(indices, parts, strict=True):
                places.append((index, len(hosts), start, start + len(part)))
                start += len(part)
            joined = self._torch.cat(parts) if len(parts) > 1 else parts[0]
            host, event = self._copy_to_host(joined, device)
            hosts.append(host)
            if event is not None:
                events.append(event)
        self._pending.append(_Pending(arrays, hosts, events, places, receive))
        self.deliver()

    def _double(self, tensor: Any) -> Any:
        flat = tensor.reshape(-1)
        if tensor.dtype == self._torch.int64:
            return flat.view(self._torch.float64)
        return flat.to(self._torch.float64 if tensor.device.type != "mps" else self._torch.float32)

    def _copy_to_host(self, tensor: Any, device: Any) -> tuple[Any, Any]:
        if device.type != "cuda":
            return tensor.cpu(), None
        host = tensor.to("cpu", non_blocking=True)  # into pinned memory, which torch allocates
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(device))
        return host, event

    def deliver(self) -> None:
        """Pass on the figures that have arrived, in the order in which they were sent. If more than
        ``MOST_PENDING`` steps are pending, wait for the oldest."""
        pending = self._pending
        while pending:
            arrays, hosts, events, places, receive = pending[0]
            if not all(event.query() for event in events):
                if len(pending) <= MOST_PENDING:
                    return
                for event in events:
                    event.synchronize()
            pending.popleft()
            copies = [host.double().numpy() for host in hosts]
            for index, host, start, end in places:
                arrays[index] = copies[host][start:end]
            receive(arrays)

    def finish(self) -> None:
        for pending in self._pending:
            for event in pending.events:
                event.synchronize()
        self.deliver()
