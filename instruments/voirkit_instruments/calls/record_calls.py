"""What the calls instrument writes: the names of functions, what their arguments were, and where the tensors among them stood.

The engine (``_calls.c``) asks here when it meets a function, a type, a word or a set of arguments for the first time. Whatever
fails is told once, and leaves a record without arguments.
"""

from __future__ import annotations

import json

from voirkit_instruments.calls.record_values import Vocabulary, place, type_name
from voirkit_instruments.calls.record_walk import Found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit_instruments.calls.record_tensors import Tensors

CATEGORY, KIND = "call", "call"


class CallRecords:
    """Writes calls into the trace plane.

    Args:
        recorder: ``voirkit.trace.recorder``.
        warn: Told, once, of what failed.

    Attributes:
        functions: By number: what each is called.
        vocabulary: What stands for what in the engine's bytes.
        tensors: How tensors are read; None until torch is there.
    """

    def __init__(self, recorder: Any, warn: Callable[[str], None]) -> None:
        self._recorder, self._warn = recorder, warn
        self._failed = False
        self.functions: list[Found] = []
        self.vocabulary = Vocabulary()
        self.tensors: Tensors | None = None
        self.operand = recorder.name(CATEGORY, "operand", kind="operand", value="id")

    def install(self, engine: Any, tick: Callable[[int], None] | None) -> None:
        """Have an engine ask here."""
        api = getattr(self._recorder.engine, "api", None)
        asked = (self.type_number, self.word_number, self.name, self.class_name, self.set_number, self.place_number)
        engine.install(api, self._recorder.span, *(self._guarded(function) for function in asked), tick)

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        """The same, but what fails in it is told once; what a signal handler of the program raises meanwhile comes out."""

        def guarded(*values: Any) -> int:
            try:
                return function(*values)
            except RecursionError:
                return 0
            except Exception as exc:
                trace = exc.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
                if not where.startswith(("voirkit", "json")):
                    raise
                if not self._failed:
                    self._failed = True
                    self._warn(f"calls: something of a call could not be recorded ({type(exc).__name__}: {exc}); this is told once.")
                return 0

        return guarded

    def type_number(self, kind: type) -> int:
        """The number of a type, and what its values are in the upper half."""
        types = self.vocabulary.types
        if len(types) >= 1 << 16:
            return 0
        flags = self.tensors.flags(kind) if self.tensors is not None else 0
        types.append(type_name(kind))
        return len(types) - 1 | flags << 16

    def word_number(self, word: str) -> int:
        """The number of the name of a keyword argument."""
        words = self.vocabulary.words
        words.append(str.__str__(word) if len(word) <= 100 else "(keyword)")
        return len(words) - 1

    def name(self, number: int) -> int:
        """The recorder's name of a function."""
        found = self.functions[number]
        return int(self._recorder.name(found.category, found.name, kind=KIND, value="object"))

    def class_name(self, kind: type) -> int:
        """The recorder's name of a module's call: that of its class."""
        name = str(type.__dict__["__qualname__"].__get__(kind))
        whole = type_name(kind)
        return int(self._recorder.name(whole[: -len(name) - 1], f"{name}.__call__", kind=KIND, value="object"))

    def set_number(self, key: bytes) -> int:
        """The recorder's number of what a call's arguments and result were."""
        return int(self._recorder.arguments_as_json(self.vocabulary.as_json(key)))

    def place_number(self, kind: int, index: int, item: int) -> int:
        """The recorder's number of a place of a tensor in a call."""
        return int(
            self._recorder.arguments_as_json(json.dumps({"at": place(kind, index, item, self.vocabulary.words)}, separators=(",", ":")))
        )
