"""How tensors are read by ``_calls.c``: torch's own C functions, found in its libraries and tried on tensors that are known.

They look at no attribute, so that no ``__torch_function__`` and no mode of the program sees them. Where they are not there, or say anything
but what is known, attributes are read instead. Checked with torch 2.1 to 2.15.
"""

from __future__ import annotations

from voirkit_instruments.calls.record_values import type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TENSOR, TRACED = 1, 2
_C = ("aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_dtype", "aoti_torch_get_device_type", "aoti_torch_get_device_index")
_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_SIZE_OF_IMPL = 22  # words of a TensorImpl, all that it has since torch 2.13, and fewer than before
# c10::DeviceType, a part of torch's binary interface.
_DEVICES = {
    0: "cpu", 1: "cuda", 2: "mkldnn", 6: "hip", 7: "fpga", 8: "maia", 9: "xla", 10: "vulkan", 11: "metal", 12: "xpu", 13: "mps", 14: "meta",
    15: "hpu", 16: "ve", 17: "lazy", 18: "ipu", 19: "mtia", 20: "privateuseone",
}  # fmt: skip
# c10::ScalarType, another. Not learnt from tensors: making some kinds warns, once in a process.
_DTYPES = dict(enumerate((
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool", "qint8",
    "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2",
    "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64", "uint1", "uint2", "uint3", "uint4", "uint5",
    "uint6", "uint7", "int1", "int2", "int3", "int4", "int5", "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2",
)))  # fmt: skip
_TRIED = ("float32", "int64", "bool", "float64", "uint8", "bfloat16")
# Types whose values stand for tensors while torch.compile, torch.export or torch.fx follow the program: no call of its own has them.
_TRACED = ("torch._subclasses.", "torch.fx.proxy.", "torch.fx.experimental.")


class Tensors:
    """What is known of torch's tensors.

    Attributes:
        dtypes: Names of dtypes by the number that the engine has for them.
        devices: Names of kinds of devices by number.
        way: How tensors are read: ``"c"`` or ``"attributes"``.
    """

    def __init__(self, engine: Any, torch: Any) -> None:
        self._torch = torch
        self.devices = dict(_DEVICES)
        self._plain = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}
        self.dtypes, self.way = _DTYPES, "c"
        try:
            self._read_in_c(engine)
        except Exception:  # another torch than those that are known, or one without these symbols
            self.way = "attributes"
            dtypes = {getattr(torch, name): number for number, name in _DTYPES.items() if hasattr(torch, name)}
            engine.ask(torch._C._len_torch_function_stack, {**dtypes, **{name: number for number, name in _DEVICES.items()}})

    def flags(self, kind: type) -> int:
        """Whether values of a type are tensors that may be read, or stand for tensors while the program is followed."""
        if kind in self._plain:
            return TENSOR
        if type_name(kind).startswith(_TRACED):
            return TRACED
        mro = type.__dict__["__mro__"].__get__(kind)
        if self._torch.Tensor not in mro:
            return 0
        own = {name for above in mro[: mro.index(self._torch.Tensor)] for name in vars(above)}
        return 0 if own & {"__torch_dispatch__"} or not self._is_disabled(mro) else TENSOR

    def _is_disabled(self, mro: tuple[type, ...]) -> bool:
        found = next((vars(above)["__torch_function__"] for above in mro if "__torch_function__" in vars(above)), None)
        return getattr(found, "__func__", found) is self._torch._C._disabled_torch_function_impl

    def _read_in_c(self, engine: Any) -> None:
        """Have the engine read tensors with torch's C functions.

        Raises:
            Exception: They are not to be had, or not what they should be.
        """
        import ctypes
        import os

        torch = self._torch
        lib = os.path.join(os.path.dirname(torch.__file__), "lib")
        cpu = ctypes.CDLL(os.path.join(lib, "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        c10 = ctypes.CDLL(os.path.join(lib, "libc10.so"), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        functions = [ctypes.cast(getattr(cpu, name), ctypes.c_void_p).value for name in _C]
        functions.append(ctypes.cast(getattr(c10, _GRAD), ctypes.c_void_p).value)
        with torch._C.DisableTorchFunction():
            samples = [
                torch.empty(shape, dtype=dtype, device="cpu", requires_grad=grad)
                for shape, dtype, grad in (
                    ((), torch.float32, False),
                    ((3, 5), torch.float32, True),
                    ((7, 2, 9, 4, 1, 6), torch.int64, False),
                )
            ]
            at = self._same(samples, lambda tensor: id(tensor), torch.Tensor.__basicsize__ // 8, engine, lambda tensor: tensor._cdata)
            keys = self._same(
                samples, lambda tensor: tensor._cdata, _SIZE_OF_IMPL, engine, lambda tensor: torch._C._dispatch_keys(tensor).raw_repr()
            )
            strange = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).raw_repr()
            try:
                engine.read(*functions, at, keys, strange)
                more = [torch.empty(2, dtype=getattr(torch, name), device="cpu") for name in _TRIED]
                for sample in (*samples, *more):
                    seen = engine.tensor(sample)
                    said = f"torch.{_DTYPES[seen[0]]}", _DEVICES[seen[1]], bool(seen[3]), seen[4]
                    assert said == (str(sample.dtype), "cpu", sample.requires_grad, tuple(sample.shape))
            except BaseException:
                engine.read(0, 0, 0, 0, 0, 0, 0, 0, 0)
                raise

    def _same(self, samples: list[Any], memory: Any, n: int, engine: Any, value: Any) -> int:
        """The byte at which, in the memory of each tensor, a value of it stands."""
        found = [{i for i, word in enumerate(engine.words(memory(sample), n)) if word == value(sample)} for sample in samples]
        places = set.intersection(*found)
        assert len(places) >= 1
        return 8 * min(places)
