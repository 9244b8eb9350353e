"""Decodes the bytes that ``_calls_summary.h`` writes about a call's arguments and result into the
JSON of a record, and names types.

Of the program's objects, only the types are accessed here.
"""

from __future__ import annotations

import json
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from voirkit_instruments.calls.record_functions import Function


BOUND = 1
END: Any = object()  # returned for a value that is missing because the bytes had no room for it

_u16, _i64, _f64 = Struct("<H"), Struct("<q"), Struct("<d")
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode
_CONSTANTS: dict[str, Any] = {
    "N": None,
    "T": True,
    "F": False,
    "j": {"type": "int"},
    "g": {"type": "float"},
    "w": {"type": "str"},
}
# full name of a class: its name as users write it
_TORCH = {
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.nn.parameter.Buffer": "torch.nn.Buffer",
}


def type_name(kind: type) -> str:
    """Return ``module.qualname`` of a type, without ``builtins``; runs no code of a metaclass."""
    name = type.__dict__["__qualname__"].__get__(kind)
    namespace = type.__dict__["__dict__"].__get__(kind)
    is_of_python = type.__dict__["__flags__"].__get__(kind) & 1 << 9
    module = (
        namespace.get("__module__") if is_of_python else type.__dict__["__module__"].__get__(kind)
    )
    if type(module) is not str or module == "builtins":
        return str(name)
    return _TORCH.get(f"{module}.{name}", f"{module}.{name}")


def is_of(value: object, kind: type) -> bool:
    """True if the value's real type is ``kind`` or a subclass. Unlike ``isinstance``, it ignores a
    ``__class__`` that the value defines."""
    return kind in type.__dict__["__mro__"].__get__(type(value))


class Vocabulary:
    """Names of types and of keyword arguments, to which the bytes refer by number."""

    def __init__(self) -> None:
        # names of types by number; 0 stands for all types for which no number was left
        self.types: list[str] = ["object"]
        self.words: list[str] = ["(keyword)"]  # names of keyword arguments by number

    def as_json(self, key: bytes) -> str:
        """Return the arguments of a record as JSON: see docs/calls.md."""
        return _dumps(_Reader(self, key).read())


class _Reader:
    def __init__(self, vocabulary: Vocabulary, key: bytes) -> None:
        self._vocabulary, self._key, self._offset = vocabulary, key, 5

    def read(self) -> dict[str, Any]:
        key = self._key
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        result: dict[str, Any] = {}
        while self._offset < len(key):
            tag = chr(key[self._offset])
            if tag == "K":
                self._offset += 1
                value, word = END, self._word()
                value = self._value()
                if value is not END:
                    kwargs[word] = value
            elif tag == "R":
                self._offset += 1
                value = self._value()
                if value is not END and value is not None:
                    result["returns"] = value
            elif tag == "E":
                self._offset += 1
                result["error"] = self._type()
            else:
                value = self._value()
                if value is not END:
                    args.append(value)
        parts = {"args": args, "kwargs": kwargs, **result, "bound": bool(key[4] & BOUND)}
        return {
            name: value
            for name, value in parts.items()
            if name == "returns" or value not in ([], {}, False)
        }

    def _number(self, of: Struct) -> Any:
        (number,) = of.unpack_from(self._key, self._offset)
        self._offset += of.size
        return number

    def _type(self) -> str:
        number: int = self._number(_u16)
        return self._vocabulary.types[number]

    def _word(self) -> str:
        number: int = self._number(_u16)
        return self._vocabulary.words[number]

    def _text(self) -> str:
        size = self._key[self._offset]
        self._offset += 1 + size
        return self._key[self._offset - size : self._offset].decode()

    def _value(self) -> Any:
        if self._offset >= len(self._key):
            return END
        tag = chr(self._key[self._offset])
        self._offset += 1
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == "i":
            return self._number(_i64)
        if tag == "f":
            return self._number(_f64)
        if tag == "s":
            return self._text()
        if tag == "S":
            return {"type": "str", "n": self._number(_i64)}
        if tag in "ty":
            return self._tensor(tag)
        if tag == "z":
            return {"tensor": self._type()}
        if tag in "lud":
            return self._many(tag)
        return {"type": self._type()}

    def _tensor(self, tag: str) -> dict[str, Any]:
        kind = self._type()
        dtype, device, index, grad, ndim = self._key[self._offset : self._offset + 5]
        self._offset += 5
        where = _DEVICES.get(device, f"device {device}")
        tensor: dict[str, Any] = {"tensor": kind, "dtype": _DTYPES.get(dtype, f"dtype {dtype}")}
        if tag == "t":
            tensor["shape"] = [self._number(_i64) for _ in range(min(ndim, 8))]
        if tag == "y" or ndim > 8:
            tensor["dims"] = ndim
        return {
            **tensor,
            "device": where if index == 255 else f"{where}:{index}",
            "grad": bool(grad),
        }

    def _many(self, tag: str) -> dict[str, Any]:
        several: dict[str, Any] = {"type": self._type()}
        n, count = self._number(_i64), self._key[self._offset]
        self._offset += 1
        if n >= 0:
            several["n"] = n
        items: list[tuple[str, Any]] = []
        for _ in range(count):
            name = self._text() if tag == "d" else ""
            items.append((name, self._value()))
        items = [(name, value) for name, value in items if value is not END]
        if items:
            several["items"] = dict(items) if tag == "d" else [value for _, value in items]
        return several


def place(kind: int, index: int, item: int, words: Sequence[str]) -> str:
    """Return the path of a tensor in a call: ``args.0``, ``kwargs.weight``, ``returns.1``."""
    word = words[index] if index < len(words) else "?"
    path = (f"args.{index}", f"kwargs.{word}", "returns")[kind]
    return f"{path}.{item - 1}" if item else path


CATEGORY, KIND = "call", "call"


class CallRecords:
    """Writes calls into the trace: names of functions, their arguments, and the paths of the
    tensors among them.

    The C code (``_calls.c``) calls this class when it meets a function, a type, a keyword or a set
    of arguments for the first time. A failure is reported once, and leaves a record without
    arguments.
    """

    def __init__(self, recorder: Any, warn: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._warn = warn
        self._failed = False
        self.functions: list[Function] = []
        self.vocabulary = Vocabulary()
        self.tensors: Tensors | None = None
        self.operand = recorder.name(CATEGORY, "operand", kind="operand", value="id")

    def install(self, engine: Any, tick: Callable[[int], None] | None) -> None:
        api = getattr(self._recorder.engine, "api", None)
        callbacks = (
            self.type_number,
            self.word_number,
            self.name,
            self.class_name,
            self.set_number,
            self.place_number,
        )
        engine.install(
            api, self._recorder.span, *(self._guarded(function) for function in callbacks), tick
        )

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        """Wrap a callback so that its first failure is reported and it returns 0. An exception that
        a signal handler of the program raises meanwhile is passed on."""

        def guarded(*values: Any) -> int:
            try:
                return function(*values)
            except RecursionError:
                return 0
            except Exception as exc:  # an unusual type of the program: its call has no arguments
                trace = exc.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
                if not where.startswith(("voirkit", "json")):
                    raise
                if not self._failed:
                    self._failed = True
                    self._warn(
                        f"calls: something of a call could not be recorded ({type(exc).__name__}:"
                        f" {exc}); this is reported once."
                    )
                return 0

        return guarded

    def type_number(self, kind: type) -> int:
        """Add a type, and return its number, with the flags of its values in the upper 16 bits."""
        types = self.vocabulary.types
        if len(types) >= 1 << 16:
            return 0
        flags = self.tensors.flags(kind) if self.tensors is not None else 0
        types.append(type_name(kind))
        return len(types) - 1 | flags << 16

    def word_number(self, word: str) -> int:
        words = self.vocabulary.words
        words.append(str.__str__(word) if len(word) <= 100 else "(keyword)")
        return len(words) - 1

    def name(self, number: int) -> int:
        function = self.functions[number]
        return int(self._recorder.name(function.category, function.name, kind=KIND, value="object"))

    def class_name(self, kind: type) -> int:
        """Return the recorder's number for the name of a module's call, which contains its
        class."""
        name = str(type.__dict__["__qualname__"].__get__(kind))
        module = type_name(kind)[: -len(name) - 1]
        return int(self._recorder.name(module, f"{name}.__call__", kind=KIND, value="object"))

    def set_number(self, key: bytes) -> int:
        """Return the recorder's number of a call's arguments and result."""
        return int(self._recorder.arguments_as_json(self.vocabulary.as_json(key)))

    def place_number(self, kind: int, index: int, item: int) -> int:
        """Return the recorder's number for the path of a tensor in a call."""
        arguments = {"at": place(kind, index, item, self.vocabulary.words)}
        text = json.dumps(arguments, separators=(",", ":"))
        return int(self._recorder.arguments_as_json(text))


TENSOR, TRACED = 1, 2
_C = (
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
)
_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
# number of 8-byte words of a TensorImpl that are searched: all of them since torch 2.13, a part of
# them in earlier versions
_SIZE_OF_IMPL = 22
# c10::DeviceType, a part of torch's binary interface.
_DEVICES = {
    0: "cpu",
    1: "cuda",
    2: "mkldnn",
    6: "hip",
    7: "fpga",
    8: "maia",
    9: "xla",
    10: "vulkan",
    11: "metal",
    12: "xpu",
    13: "mps",
    14: "meta",
    15: "hpu",
    16: "ve",
    17: "lazy",
    18: "ipu",
    19: "mtia",
    20: "privateuseone",
}
# c10::ScalarType, also part of torch's binary interface. The numbers are not read from tensors,
# because creating tensors of some types makes torch warn, once per process.
_DTYPES = dict(
    enumerate(
        (
            "uint8",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "float32",
            "float64",
            "complex32",
            "complex64",
            "complex128",
            "bool",
            "qint8",
            "quint8",
            "qint32",
            "bfloat16",
            "quint4x2",
            "quint2x4",
            "bits1x8",
            "bits2x4",
            "bits4x2",
            "bits8",
            "bits16",
            "float8_e5m2",
            "float8_e4m3fn",
            "float8_e5m2fnuz",
            "float8_e4m3fnuz",
            "uint16",
            "uint32",
            "uint64",
            "uint1",
            "uint2",
            "uint3",
            "uint4",
            "uint5",
            "uint6",
            "uint7",
            "int1",
            "int2",
            "int3",
            "int4",
            "int5",
            "int6",
            "int7",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        )
    )
)
_TRIED = ("float32", "int64", "bool", "float64", "uint8", "bfloat16")
# Types that stand for tensors while torch.compile, torch.export or torch.fx trace the program. The
# program's own calls never have such values.
_TRACED = ("torch._subclasses.", "torch.fx.proxy.", "torch.fx.experimental.")


class Tensors:
    """Reads tensors for ``_calls.c`` with torch's own C functions, which are found in its libraries
    and tested on tensors with known properties.

    These functions access no Python attribute, so neither ``__torch_function__`` nor a mode of the
    program notices them. If they are missing, or give wrong results, attributes are read instead.
    Checked with torch 2.1 to 2.15.
    """

    def __init__(self, engine: Any, torch: Any) -> None:
        self._torch = torch
        self._plain = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}
        try:
            self._read_in_c(engine)
        except Exception:
            # an unknown version of torch, or one whose libraries lack the C functions
            dtypes = {
                getattr(torch, name): number
                for number, name in _DTYPES.items()
                if hasattr(torch, name)
            }
            engine.ask(
                torch._C._len_torch_function_stack,
                {**dtypes, **{name: number for number, name in _DEVICES.items()}},
            )

    def flags(self, kind: type) -> int:
        """Return ``TENSOR`` if values of a type are tensors that may be read, and ``TRACED`` if
        they stand for tensors while the program is traced; otherwise 0."""
        if kind in self._plain:
            return TENSOR
        if type_name(kind).startswith(_TRACED):
            return TRACED
        mro = type.__dict__["__mro__"].__get__(kind)
        if self._torch.Tensor not in mro:
            return 0
        subclasses = mro[: mro.index(self._torch.Tensor)]
        if any("__torch_dispatch__" in vars(kind) for kind in subclasses):
            return 0
        return TENSOR if self._is_disabled(mro) else 0

    def _is_disabled(self, mro: tuple[type, ...]) -> bool:
        """True if the class uses torch's disabled ``__torch_function__``, which does nothing."""
        methods = [
            vars(kind)["__torch_function__"] for kind in mro if "__torch_function__" in vars(kind)
        ]
        method = methods[0] if methods else None
        return getattr(method, "__func__", method) is self._torch._C._disabled_torch_function_impl

    def _read_in_c(self, engine: Any) -> None:
        """Let the engine read tensors with torch's C functions. Raises Exception: the functions are
        missing, or give wrong results."""
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
            impl_offset = self._find_offset(
                samples,
                lambda tensor: id(tensor),
                torch.Tensor.__basicsize__ // 8,
                engine,
                lambda tensor: tensor._cdata,
            )
            keys_offset = self._find_offset(
                samples,
                lambda tensor: tensor._cdata,
                _SIZE_OF_IMPL,
                engine,
                lambda tensor: torch._C._dispatch_keys(tensor).raw_repr(),
            )
            strange = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).raw_repr()
            try:
                engine.read(*functions, impl_offset, keys_offset, strange)
                more = [torch.empty(2, dtype=getattr(torch, name), device="cpu") for name in _TRIED]
                for sample in (*samples, *more):
                    dtype, device, _, requires_grad, shape = engine.tensor(sample)[:5]
                    assert f"torch.{_DTYPES[dtype]}" == str(sample.dtype)
                    assert _DEVICES[device] == "cpu"
                    assert bool(requires_grad) == sample.requires_grad
                    assert shape == tuple(sample.shape)
            except BaseException:  # also after Ctrl-C, the engine must read no tensors
                engine.read(0, 0, 0, 0, 0, 0, 0, 0, 0)
                raise

    def _find_offset(self, samples: list[Any], memory: Any, n: int, engine: Any, value: Any) -> int:
        """Return the byte offset, in the memory of each sample tensor, at which a value is
        stored."""
        places = set(range(n))
        for sample in samples:
            words = enumerate(engine.words(memory(sample), n))
            places &= {i for i, word in words if word == value(sample)}
        assert len(places) >= 1
        return 8 * min(places)
