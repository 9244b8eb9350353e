"""Where ``start()`` was called and ``stop()`` was not yet: by thread, or by asyncio task where there is one.

Spans that are begun in one task and ended in another never mix, and what a task or thread leaves open is forgotten with it.
"""

from __future__ import annotations

import sys
from _thread import _local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, MutableMapping
    from typing import Any

    Open = dict[Hashable, list[Any]]

_of_thread = _local()
_of_tasks: MutableMapping[Any, Open] | None = None


def here() -> Open:
    """What is open in this thread or task."""
    events = sys.modules.get("asyncio.events")
    if events is not None:
        loop = events._get_running_loop()
        tasks = sys.modules.get("asyncio.tasks") if loop is not None else None
        task = tasks.current_task(loop) if tasks is not None else None
        if task is not None:
            return _of_task(task)
    try:
        found: Open = _of_thread.open
    except AttributeError:
        found = _of_thread.open = {}
    return found


def _of_task(task: Any) -> Open:
    global _of_tasks
    if _of_tasks is None:
        from weakref import WeakKeyDictionary

        _of_tasks = WeakKeyDictionary()
    found = _of_tasks.get(task)
    if found is None:
        found = _of_tasks.setdefault(task, {})
    return found


def push(key: Hashable, begun: Any) -> None:
    """Something was started."""
    here().setdefault(key, []).append(begun)


def last(key: Hashable) -> Any:
    """What was started last and is open; None if nothing is."""
    found = here().get(key)
    return found[-1] if found else None


def pop(key: Hashable) -> Any:
    """What was started last and is open, which ends with this; None if nothing is."""
    there = here()
    found = there.get(key)
    if not found:
        return None
    begun = found.pop()
    if not found:
        del there[key]
    return begun


def forget(key: Hashable) -> None:
    """Nothing of this is open any more."""
    here().pop(key, None)


__all__ = ["forget", "here", "last", "pop", "push"]
