"""What the machine's NVIDIA GPUs do, by NVML (``nvidia-ml-py``; checked with a fake of 12 and 13 only: it has never run on a device).

Looks at those that ``CUDA_VISIBLE_DEVICES`` lets the program see. Never creates a CUDA context.
"""

from __future__ import annotations

import os
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Bits of NVML's reasons for a lower clock; an idle GPU and clocks that the user has set are none.
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
_MIB = 1 << 20


class Gpus:
    """The GPUs of this machine.

    Args:
        nvml: The module ``pynvml``.
        warn: Told of one that can not be read, once.
        visible: What ``CUDA_VISIBLE_DEVICES`` holds, or None.
    """

    def __init__(self, nvml: Any, warn: Callable[[str], None], visible: str | None = None) -> None:
        self._nvml, self._warn = nvml, warn
        self._handles: dict[str, Any] = {}
        self._lacks: set[tuple[str, str]] = set()
        self._is_open = False
        try:
            nvml.nvmlInit()
            self._is_open = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return  # no driver: there is no GPU here
        for word in _chosen(os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible, count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(int(word)) if word.isdigit() else nvml.nvmlDeviceGetHandleByUUID(word)
                self._handles[str(nvml.nvmlDeviceGetIndex(handle)) if not word.isdigit() else word] = handle
            except nvml.NVMLError as exc:
                warn(f"monitor: GPU {word} can not be read and is left out ({exc}).")

    def sample(self) -> dict[str, dict[str, Any]]:
        """By GPU: ``memory`` ([used, total], MiB), ``load`` (0 to 1), ``temperature`` (°C), ``power`` (W), ``throttle`` (reasons).

        What a GPU does not tell is left out; one that fails is left out from then on, which is told once.
        """
        found = {}
        for index, handle in list(self._handles.items()):
            try:
                found[index] = self._one(index, handle)
            except self._nvml.NVMLError as exc:
                del self._handles[index]
                self._warn(f"monitor: GPU {index} can not be read any more and is left out ({exc}).")
        return found

    def close(self) -> None:
        """Let go of the driver."""
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # the driver has gone

    def _one(self, index: str, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        found: dict[str, Any] = {"memory": [memory.used / _MIB, memory.total / _MIB]}
        asked: dict[str, Callable[[], Any]] = {
            "load": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "temperature": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "throttle": lambda: reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }
        for key, ask in asked.items():
            if (index, key) not in self._lacks:
                try:
                    found[key] = ask()
                except (nvml.NVMLError_NotSupported, AttributeError):
                    self._lacks.add((index, key))  # this model has no such sensor
        return found


def reasons(mask: int) -> list[str]:
    """Why a GPU runs slower than it could, of NVML's bits."""
    return [text for bit, text in REASONS.items() if mask & bit]


def _chosen(visible: str | None, count: int) -> list[str]:
    """Numbers or UUIDs of the GPUs that CUDA shows the program; what follows a word that names none is not seen, as by CUDA."""
    if visible is None:
        return [str(i) for i in range(count)]
    found = []
    for word in visible.split(","):
        word = word.strip()
        if word.startswith("MIG-"):
            continue  # a part of a GPU, of which NVML tells neither utilisation nor power
        if not word.startswith("GPU-") and not (word.isdigit() and int(word) < count):
            break
        found.append(word)
    return found
