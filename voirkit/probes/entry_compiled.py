"""Functions with rewritten code (python 3.11) under torch.compile: it sees them as they are without, and is not made to look again.

Its tracer (dynamo) reads a function's instructions in one place, where it gets those of the code below. The code of functions, also of
such as it does not read, it compares by identity ever after: from then on all keep the code that they have. Never imports torch. Checked
with torch 2.1 and 2.15.
"""

from __future__ import annotations

from voirkit.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

_READS = ("_cached_cleaned_instructions", "cleaned_instructions")  # the first that there is

_watching = False


def watch(looked_at: Callable[[CodeType], CodeType]) -> None:
    """From now on the tracer asks a function which code it is to read instead of one that it looks at."""
    global _watching
    if _watching:
        return
    _watching = True

    def patch(module: ModuleType) -> None:
        name = next((name for name in _READS if hasattr(module, name)), None)
        if name is None:
            return  # another tracer than those that were checked
        read = getattr(module, name)

        def instructions(code: CodeType, *args: Any, **kwargs: Any) -> Any:
            return read(looked_at(code), *args, **kwargs)

        setattr(module, name, instructions)

    when_imported("torch._dynamo.bytecode_transformation", patch)
