"""The GPUs of a machine and their current load: for ``--monitor``, and under voir's names for
harnesses and voirfiles.

NVIDIA GPUs are read through NVML (``nvidia-ml-py`` 12 and 13; checked with a fake only, never on a
device). A CUDA context is never created. A package may add a back end: ``BACKENDS["name"]`` is a
module or object with ``is_installed()`` and ``DeviceSMI``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class SMI(Protocol):
        """An open back end."""

        @property
        def arch(self) -> str: ...
        @property
        def visible_devices(self) -> str | None: ...
        def get_gpus_info(
            self, selection: Collection[str] | None = None
        ) -> dict[Any, dict[str, Any]]: ...
        def system_info(self) -> dict[str, Any]: ...
        def close(self) -> None: ...


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
    """The GPUs of this machine. ``visible``: what ``CUDA_VISIBLE_DEVICES`` holds, or None."""

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
        """By GPU: ``memory`` ([used, total], MiB), ``load`` (0 to 1), ``temperature`` (°C),
        ``power`` (W), ``throttle`` (reasons). What a GPU does not tell is left out; one that fails
        is left out from then on, which is told once."""
        gpus = {}
        for index, handle in list(self._handles.items()):
            try:
                gpus[index] = self._readings_of(index, handle)
            except self._nvml.NVMLError as exc:
                del self._handles[index]
                self._warn(f"monitor: GPU {index} cannot be read any more and is left out ({exc}).")
        return gpus

    def close(self) -> None:
        """Let go of the driver."""
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # the driver has gone

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
    """Why a GPU runs slower than it could, of NVML's bits."""
    return [text for bit, text in REASONS.items() if mask & bit]


def _visible_gpus(visible: str | None, count: int) -> list[str]:
    """Numbers or UUIDs of the GPUs that CUDA shows the program; what follows a word that names none
    is not seen, as by CUDA."""
    if visible is None:
        return [str(i) for i in range(count)]
    indices = []
    for word in visible.split(","):
        word = word.strip()
        if word.startswith("MIG-"):
            continue  # a part of a GPU, of which NVML tells neither utilisation nor power
        if not word.startswith("GPU-") and not (word.isdigit() and int(word) < count):
            break
        indices.append(word)
    return indices


class NotAvailable(Exception):
    """There is no such back end here, or no driver for it."""


class CpuSMI:
    """A machine without a GPU."""

    arch = "cpu"
    visible_devices: str | None = ""

    def get_gpus_info(self, selection: Collection[str] | None = None) -> dict[Any, dict[str, Any]]:
        """None."""
        return {}

    def system_info(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing to release."""


class CudaSMI:
    """NVIDIA's GPUs. Raises NotAvailable: there is no driver."""

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
        """What CUDA is told to show programs, None for all."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def get_gpus_info(self, selection: Collection[str] | None = None) -> dict[Any, dict[str, Any]]:
        """By number; memory in MiB, utilization from 0 to 1, degrees Celsius, watts; -1 for what a
        GPU does not tell.

        Args:
            selection: Numbers and UUIDs, as strings; all if it is left out.
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
        """Versions of the driver, of CUDA and of NVML."""
        return {
            "CUDA_DRIVER": self._nvml.nvmlSystemGetCudaDriverVersion_v2(),
            "DRIVER_VERSION": _text(self._nvml.nvmlSystemGetDriverVersion()),
            "NVML_VERSION": _text(self._nvml.nvmlSystemGetNVMLVersion()),
        }

    def close(self) -> None:
        """Let go of the driver."""
        self._gpus.close()


class _BuiltIn:
    def __init__(self, smi: Callable[[], SMI], module: str = "") -> None:
        self.DeviceSMI, self._module = smi, module

    def is_installed(self) -> bool:
        from importlib.util import find_spec

        return not self._module or find_spec(self._module) is not None


BACKENDS: dict[str, Any] = {"cpu": _BuiltIn(CpuSMI), "cuda": _BuiltIn(CudaSMI, "pynvml")}
DEVICESMI: SMI | None = None  # the one that is open


def get_backends() -> Collection[str]:
    """The names of all that are known."""
    return BACKENDS.keys()


def deduce_backend() -> str:
    """The back end that finds a GPU here, or ``cpu``. Raises NotAvailable: there are GPUs of
    several kinds."""
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
    """Open a back end: the one that is named, or the one that finds a GPU; one that is open is kept
    unless ``force`` is set. Raises NotAvailable: it is not known or not installed, or has no
    driver."""
    global DEVICESMI  # voir's name for it, which its users set
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
    """``{"arch": name, "gpus": {number: what CudaSMI.get_gpus_info tells of it}}``.

    Args:
        arch: The back end; the one that is open, or finds a GPU, if it is left out.
        visible: Only the GPUs that programs are shown.
    """
    smi = select_backend(arch)
    return {"arch": smi.arch, "gpus": smi.get_gpus_info(_selection(smi) if visible else None)}


def _selection(smi: SMI) -> list[str] | None:
    return smi.visible_devices.split(",") if smi.visible_devices else None


def gpu_monitor() -> Callable[[], dict[Any, dict[str, Any]]]:
    """A function that returns, by GPU, ``memory`` ([used, total], MiB), ``load`` (0 to 1),
    ``temperature`` and ``power``."""

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
