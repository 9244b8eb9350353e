"""The GPUs of a machine and their current load: for ``--monitor``, and under voir's names for
harnesses and voirfiles.

NVIDIA GPUs are read through NVML (``nvidia-ml-py`` 12 and 13; checked with a fake only, never on a
device). A CUDA context is never created. A package may add a back end as
``BACKENDS["name"]``: a module or object with ``is_installed()`` and ``DeviceSMI``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class SMI(Protocol):
        """An open back end: reads the GPUs of one vendor."""

        @property
        def arch(self) -> str: ...
        @property
        def visible_devices(self) -> str | None: ...
        def get_gpus_info(
            self, selection: Collection[str] | None = None
        ) -> dict[Any, dict[str, Any]]: ...
        def system_info(self) -> dict[str, Any]: ...
        def close(self) -> None: ...


# NVML's bits for the reasons why a GPU's clock rate is lowered. An idle GPU, and clock rates that
# the user has set, are no slowdown: their bits are left out.
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
    """The NVIDIA GPUs of this machine that are read. ``visible``: their indices or UUIDs, in the
    form of ``CUDA_VISIBLE_DEVICES``; None for the value of that variable."""

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
            return  # no driver, so there is no GPU
        for word in _visible_gpus(
            os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible, count
        ):
            try:
                handle = (
                    nvml.nvmlDeviceGetHandleByIndex(int(word))
                    if word.isdigit()
                    else nvml.nvmlDeviceGetHandleByUUID(word)
                )
                self._handles[
                    str(nvml.nvmlDeviceGetIndex(handle)) if not word.isdigit() else word
                ] = handle
            except nvml.NVMLError as exc:
                warn(f"monitor: GPU {word} cannot be read and is left out ({exc}).")

    def sample(self) -> dict[str, dict[str, Any]]:
        """Return for each GPU ``memory`` ([used, total], MiB), ``load`` (0 to 1), ``temperature``
        (°C), ``power`` (W) and ``throttle`` (the reasons of a lower clock rate).

        A value that a GPU does not report is left out. A GPU that fails is left out from then on,
        with one warning."""
        gpus = {}
        for index, handle in list(self._handles.items()):
            try:
                gpus[index] = self._readings_of(index, handle)
            except self._nvml.NVMLError as exc:
                del self._handles[index]
                self._warn(f"monitor: GPU {index} cannot be read any more and is left out ({exc}).")
        return gpus

    def close(self) -> None:
        """Close NVML."""
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # the driver has been unloaded

    def _readings_of(self, index: str, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        readings: dict[str, Any] = {"memory": [memory.used / _MIB, memory.total / _MIB]}
        queries: dict[str, Callable[[], Any]] = {
            "load": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "temperature": lambda: float(
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "throttle": lambda: reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }
        for key, query in queries.items():
            if (index, key) not in self._lacks:
                try:
                    readings[key] = query()
                except (nvml.NVMLError_NotSupported, AttributeError):
                    self._lacks.add((index, key))  # this model has no such sensor
        return readings


def reasons(mask: int) -> list[str]:
    """Return the reasons why a GPU is slowed down, as strings, from NVML's bits."""
    return [text for bit, text in REASONS.items() if mask & bit]


def _visible_gpus(visible: str | None, count: int) -> list[str]:
    """Return the indices or UUIDs of the GPUs that CUDA shows the program. Like CUDA, ignores all
    words of ``visible`` from the first one that does not name a GPU."""
    if visible is None:
        return [str(i) for i in range(count)]
    indices = []
    for word in visible.split(","):
        word = word.strip()
        if word.startswith("MIG-"):
            continue  # a part of a GPU, for which NVML reports neither load nor power
        if not word.startswith("GPU-") and not (word.isdigit() and int(word) < count):
            break
        indices.append(word)
    return indices


class NotAvailable(Exception):
    """The error that a back end cannot be used: it is not known or not installed, it has no driver,
    or it is not clear which to use."""


class CpuSMI:
    """The back end of a machine without a GPU."""

    arch = "cpu"
    visible_devices: str | None = ""

    def get_gpus_info(self, selection: Collection[str] | None = None) -> dict[Any, dict[str, Any]]:
        """Return no GPUs."""
        return {}

    def system_info(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class CudaSMI:
    """The back end of NVIDIA's GPUs. Raises NotAvailable if there is no driver."""

    arch = "cuda"

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise NotAvailable(f"NVML cannot be used: {exc}") from exc
        self._gpus = Gpus(
            pynvml,
            lambda text: None,
            visible=",".join(map(str, range(pynvml.nvmlDeviceGetCount()))),
        )

    @property
    def visible_devices(self) -> str | None:
        """The GPUs that CUDA shows to programs, from ``CUDA_VISIBLE_DEVICES``; None for all."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def get_gpus_info(self, selection: Collection[str] | None = None) -> dict[Any, dict[str, Any]]:
        """Return the GPUs by index.

        Memory is in MiB, utilization from 0 to 1, temperature in degrees Celsius, power in watts.
        A value that a GPU does not report is -1.

        Args:
            selection: Indices and UUIDs of the GPUs to return, as strings; by default all.
        """
        nvml, info = self._nvml, {}
        for index, now in self._gpus.sample().items():
            handle = nvml.nvmlDeviceGetHandleByIndex(int(index))
            if selection is not None and index not in selection:
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                if uuid not in selection:
                    continue
            used_mib, total = now["memory"]
            memory_load = used_mib / total if total else 0.0
            minor_number = _text(nvml.nvmlDeviceGetMinorNumber(handle))
            product = _text(nvml.nvmlDeviceGetName(handle))
            info[int(index)] = {
                "minor_number": minor_number,
                "device": int(index),
                "product": product,
                "memory": {"used": used_mib, "total": total},
                "utilization": {"compute": now.get("load", -1), "memory": memory_load},
                "temperature": now.get("temperature", -1),
                "power": now.get("power", -1),
                "selection_variable": "CUDA_VISIBLE_DEVICES",
            }
        return info

    def system_info(self) -> dict[str, Any]:
        """Return the versions of the driver, of CUDA and of NVML."""
        return {
            "CUDA_DRIVER": self._nvml.nvmlSystemGetCudaDriverVersion_v2(),
            "DRIVER_VERSION": _text(self._nvml.nvmlSystemGetDriverVersion()),
            "NVML_VERSION": _text(self._nvml.nvmlSystemGetNVMLVersion()),
        }

    def close(self) -> None:
        """Close NVML."""
        self._gpus.close()


class _BuiltIn:
    def __init__(self, smi: Callable[[], SMI], module: str = "") -> None:
        self.DeviceSMI, self._module = smi, module

    def is_installed(self) -> bool:
        from importlib.util import find_spec

        return not self._module or find_spec(self._module) is not None


BACKENDS: dict[str, Any] = {"cpu": _BuiltIn(CpuSMI), "cuda": _BuiltIn(CudaSMI, "pynvml")}
DEVICESMI: SMI | None = None  # the back end that is open; None if none is


def get_backends() -> Collection[str]:
    """Return the names of all back ends."""
    return BACKENDS.keys()


def deduce_backend() -> str:
    """Return the name of the back end that finds a GPU on this machine; ``cpu`` if there is no GPU.
    Raises NotAvailable if there are GPUs of several kinds."""
    suitable = [
        name for name, backend in BACKENDS.items() if backend.is_installed() and _has_gpus(backend)
    ]
    if len(suitable) > 1:
        raise NotAvailable(
            f"there are GPUs of several kinds ({', '.join(suitable)}): name one of them"
        )
    return suitable[0] if suitable else "cpu"


def _has_gpus(backend: Any) -> bool:
    try:
        return len(backend.DeviceSMI().get_gpus_info()) > 0
    except NotAvailable:
        return False


def select_backend(arch: str | None = None, force: bool = False) -> SMI:
    """Open the back end ``arch``, or by default the one that finds a GPU. If a suitable back end is
    open already, it is returned, unless ``force`` is set.

    Raises:
        NotAvailable: The back end is not known, not installed, or has no driver.
    """
    global DEVICESMI  # a global as in voir, whose users set it
    if DEVICESMI is not None:
        if not force and arch in (None, DEVICESMI.arch):
            return DEVICESMI
        DEVICESMI.close()
        DEVICESMI = None
    name = arch or deduce_backend()
    backend = BACKENDS.get(name)
    if backend is None or not backend.is_installed():
        raise NotAvailable(f"{name} is not installed; known are {', '.join(BACKENDS)}")
    DEVICESMI = backend.DeviceSMI()
    return DEVICESMI


def get_gpu_info(arch: str | None = None, visible: bool = True) -> dict[str, Any]:
    """Return ``arch``, the name of the back end, and ``gpus``, the result of its ``get_gpus_info``.

    Args:
        arch: The back end; by default the open one, or the one that finds a GPU.
        visible: True for only the GPUs that are visible to programs.
    """
    smi = select_backend(arch)
    return {"arch": smi.arch, "gpus": smi.get_gpus_info(_selection(smi) if visible else None)}


def _selection(smi: SMI) -> list[str] | None:
    return smi.visible_devices.split(",") if smi.visible_devices else None


def gpu_monitor() -> Callable[[], dict[Any, dict[str, Any]]]:
    """Return a function that returns for each GPU ``memory`` ([used, total], MiB), ``load`` (0 to
    1), ``temperature`` (°C) and ``power`` (W)."""

    def read() -> dict[Any, dict[str, Any]]:
        smi = select_backend()
        readings = {}
        for gpu in smi.get_gpus_info(_selection(smi)).values():
            memory, load = gpu["memory"], gpu["utilization"]["compute"]
            readings[gpu["device"]] = {
                "memory": [memory["used"], memory["total"]],
                "load": load,
                "temperature": gpu["temperature"],
                "power": gpu["power"],
            }
        return readings

    return read


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
