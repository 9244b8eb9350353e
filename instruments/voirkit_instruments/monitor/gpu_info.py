"""What GPUs a machine has, and what they do now: for harnesses and voirfiles, with voir's names.

NVIDIA's are read by NVML. A package may add a back end: ``BACKENDS["name"]`` holds what has ``is_installed()`` and ``DeviceSMI``.
Checked with a fake of NVML only: it has never run on a device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Protocol

    class SMI(Protocol):
        """An open back end."""

        @property
        def arch(self) -> str: ...
        @property
        def visible_devices(self) -> str | None: ...
        def get_gpus_info(self, selection: Collection[str] | None = None) -> dict[Any, dict[str, Any]]: ...
        def system_info(self) -> dict[str, Any]: ...
        def close(self) -> None: ...

    class Backend(Protocol):
        """One kind of GPU."""

        def is_installed(self) -> bool: ...
        @property
        def DeviceSMI(self) -> Callable[[], SMI]: ...


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
        """Nothing to let go of."""


class CudaSMI:
    """NVIDIA's GPUs.

    Raises:
        NotAvailable: There is no driver.
    """

    arch = "cuda"

    def __init__(self) -> None:
        import pynvml

        from voirkit_instruments.monitor.record_gpus import Gpus

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise NotAvailable(f"NVML can not be used: {exc}") from exc
        self._gpus = Gpus(pynvml, _ignore, visible=",".join(map(str, range(pynvml.nvmlDeviceGetCount()))))

    @property
    def visible_devices(self) -> str | None:
        """What CUDA is told to show programs, None for all."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def get_gpus_info(self, selection: Collection[str] | None = None) -> dict[Any, dict[str, Any]]:
        """By number; memory in MiB, utilization from 0 to 1, degrees Celsius, watts; -1 for what a GPU does not tell.

        Args:
            selection: Numbers and UUIDs, as strings; all if it is left out.
        """
        nvml, info = self._nvml, {}
        for index, now in self._gpus.sample().items():
            handle = nvml.nvmlDeviceGetHandleByIndex(int(index))
            if selection is not None and index not in selection and _text(nvml.nvmlDeviceGetUUID(handle)) not in selection:
                continue
            used, total = now["memory"]
            info[int(index)] = {
                "minor_number": _text(nvml.nvmlDeviceGetMinorNumber(handle)),
                "device": int(index),
                "product": _text(nvml.nvmlDeviceGetName(handle)),
                "memory": {"used": used, "total": total},
                "utilization": {"compute": now.get("load", -1), "memory": used / total if total else 0.0},
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
    """A back end of voirkit's own."""

    def __init__(self, smi: Callable[[], SMI], module: str = "") -> None:
        self.DeviceSMI, self._module = smi, module

    def is_installed(self) -> bool:
        return not self._module or find_spec(self._module) is not None


BACKENDS: dict[str, Backend] = {"cpu": _BuiltIn(CpuSMI), "cuda": _BuiltIn(CudaSMI, "pynvml")}
DEVICESMI: SMI | None = None  # the one that is open


def get_backends() -> Collection[str]:
    """The names of all that are known."""
    return BACKENDS.keys()


def deduce_backend() -> str:
    """The back end that finds a GPU here, or ``cpu``.

    Raises:
        NotAvailable: There are GPUs of several kinds.
    """
    suitable = [name for name, backend in BACKENDS.items() if backend.is_installed() and _has_gpus(backend)]
    if len(suitable) > 1:
        raise NotAvailable(f"there are GPUs of several kinds ({', '.join(suitable)}): name one of them")
    return suitable[0] if suitable else "cpu"


def _has_gpus(backend: Backend) -> bool:
    try:
        return len(backend.DeviceSMI().get_gpus_info()) > 0
    except NotAvailable:
        return False


def select_backend(arch: str | None = None, force: bool = False) -> SMI:
    """Open a back end: the one that is named, or the one that finds a GPU; one that is open is kept unless ``force`` is set.

    Raises:
        NotAvailable: It is not known or not installed, or has no driver.
    """
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
    """A function that returns, by GPU, ``memory`` ([used, total], MiB), ``load`` (0 to 1), ``temperature`` and ``power``."""

    def read() -> dict[Any, dict[str, Any]]:
        smi = select_backend()
        return {
            gpu["device"]: {
                "memory": [gpu["memory"]["used"], gpu["memory"]["total"]],
                "load": gpu["utilization"]["compute"],
                "temperature": gpu["temperature"],
                "power": gpu["power"],
            }
            for gpu in smi.get_gpus_info(_selection(smi)).values()
        }

    return read


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _ignore(text: str) -> None:
    """What a GPU does not tell is -1 here."""
