"""Brings figures from devices to the host without waiting: they are queued behind the program's own work and read at a later step.

On the CPU they are there at once. Written against ``torch.cuda``'s events and tested with a fake of them only: it has never run on a GPU.
On other devices than CUDA's one copy a step waits for the device.
"""

from __future__ import annotations

from collections import deque

import numpy as np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MOST_PENDING = 64  # steps whose figures are not there yet; of a program that is further ahead the oldest are waited for


class Later:
    """Figures on their way.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pending: deque[tuple[list[Any], list[Any], list[Any], list[tuple[int, int, int, int]], Callable[[list[Any]], None]]] = deque()

    def bring(self, tensors: Sequence[Any], done: Callable[[list[Any]], None]) -> None:
        """Bring tensors to the host: one copy for each device.

        Args:
            tensors: Of any shape; numpy's arrays are here already. Of devices those of int64 are brought bit by bit, as doubles.
            done: Called with an array (numpy) for each of them, now or at a later step.
        """
        found: list[Any] = [None] * len(tensors)
        by_device: dict[Any, list[int]] = {}
        for at, tensor in enumerate(tensors):
            if type(tensor) is np.ndarray:
                found[at] = tensor
            elif tensor.device.type == "cpu":
                found[at] = tensor.reshape(-1).numpy()
            else:
                by_device.setdefault(tensor.device, []).append(at)
        if not by_device and not self._pending:
            done(found)
            return
        hosts: list[Any] = []
        events: list[Any] = []
        places: list[tuple[int, int, int, int]] = []
        for device, which in by_device.items():
            parts = [self._double(tensors[at]) for at in which]
            start = 0
            for at, part in zip(which, parts, strict=True):
                places.append((at, len(hosts), start, start + len(part)))
                start += len(part)
            host, event = self._copied(self._torch.cat(parts) if len(parts) > 1 else parts[0], device)
            hosts.append(host)
            events += [] if event is None else [event]
        self._pending.append((found, hosts, events, places, done))
        self.look()

    def _double(self, tensor: Any) -> Any:
        flat = tensor.reshape(-1)
        if tensor.dtype == self._torch.int64:
            return flat.view(self._torch.float64)
        return flat.to(self._torch.float64 if tensor.device.type != "mps" else self._torch.float32)

    def _copied(self, tensor: Any, device: Any) -> tuple[Any, Any]:
        if device.type != "cuda":
            return tensor.cpu(), None
        host = tensor.to("cpu", non_blocking=True)  # into pinned memory, which torch makes for it
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(device))
        return host, event

    def look(self) -> None:
        """Give out what has arrived, in the order in which it was sent; of too many the oldest are waited for."""
        pending = self._pending
        while pending:
            found, hosts, events, places, done = pending[0]
            if not all(event.query() for event in events):
                if len(pending) <= MOST_PENDING:
                    return
                for event in events:
                    event.synchronize()
            pending.popleft()
            arrays = [host.double().numpy() for host in hosts]
            for at, host, start, end in places:
                found[at] = arrays[host][start:end]
            done(found)

    def finish(self) -> None:
        """Wait for what is left, and give it out."""
        for _, _, events, _, _ in self._pending:
            for event in events:
                event.synchronize()
        self.look()
