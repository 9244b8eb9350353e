"""A module in place of ``pynvml``: two GPUs, of which the second fails at the third look and has no sensor for power."""

NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class _Figures:
    def __init__(self, **figures):
        vars(self).update(figures)


_looks = {0: 0, 1: 0}


def nvmlInit():
    pass


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetHandleByUUID(uuid):
    if uuid != "GPU-second":
        raise NVMLError("Not Found")
    return 1


def nvmlDeviceGetIndex(handle):
    return handle


def nvmlDeviceGetMemoryInfo(handle):
    _looks[handle] += 1
    if handle == 1 and _looks[handle] == 3:
        raise NVMLError("GPU is lost")
    return _Figures(used=2**30, total=2**33)


def nvmlDeviceGetUtilizationRates(handle):
    return _Figures(gpu=75, memory=10)


def nvmlDeviceGetTemperature(handle, sensor):
    return 61


def nvmlDeviceGetPowerUsage(handle):
    if handle == 1:
        raise NVMLError_NotSupported("Not Supported")
    return 250_000


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0x4 | 0x1
