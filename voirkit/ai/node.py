"""Node of the tree of annotations: the spans that it records, and the arguments and switch that it
inherits.

``update``, ``enable`` and ``disable`` take the same time however large the tree is. They store the
value and a tick (a counter of settings), and a node looks up its path to the root before it is
recorded. Of several values for an argument on this path the latest counts. No value of an argument
can make an annotation raise in the program.
"""

from __future__ import annotations

import sys
import time
from _thread import _local
from itertools import count
from weakref import WeakKeyDictionary

from voirkit.ai.decorate import timed
from voirkit.ai.values import PLAIN, key, mapping, real, whole
from voirkit.trace import recorder
from voirkit.trace.recorder import Span, changed, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
    from typing import Any, TypeVar, overload

    T = TypeVar("T")
    F = TypeVar("F", bound=Callable[..., Any])
    Entry = tuple[float, Any]  # (tick at which the value was set, value)
    Open = dict[Hashable, list[Any]]

GONE = object()  # the value of an argument that was removed
ALWAYS = float("inf")  # a tick later than all others
ON: tuple[float, bool] = (0, True)
UNSET: tuple[float, bool] = (-1, True)

_tick = count(1).__next__


class _State:
    """The state that all nodes share."""

    __slots__ = ("is_allowed", "latest")

    def __init__(self) -> None:
        self.latest = 0  # the tick of the last setting
        self.is_allowed = True


_state = _State()


class _Arguments:
    """The arguments of one or more nodes: an ``Entry`` for each name."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.id = -1  # id in the trace; -1 until the arguments are recorded there

    def intern(self) -> int:
        self.id = recorder.arguments(
            {name: value for name, (_, value) in self.entries.items() if value is not GONE}
        )
        return self.id


_NONE = _Arguments({})


def _invalidate() -> None:
    """Make every node look up its path to the root at its next record: a setting has changed."""
    _state.latest = _tick()
    changed()


def allow(allowed: bool) -> None:
    """Set whether annotations are recorded at all, even if they are enabled."""
    if allowed != _state.is_allowed:
        _state.is_allowed = allowed
        _invalidate()


class Node(Span):
    """An annotation: a decorator, a context manager, and more.

    Use it as ``@node``, ``with node:``, ``for x in node.iter(xs):``, ``node.start()`` …
    ``node.stop()``.  A node may be entered again while it is open: by recursion, in other threads,
    in interleaved coroutines and generators.  Each entry is recorded as a span of its own.

    Args:
        cat: The category.
        name: The name; by default the category.
        parent: The node above, from which this node inherits arguments and switch.
        word: The attribute of the parent that holds this node; with a dot in front for a node made
            by ``derive``.

    Attributes:
        cat: The category of the node's spans.
        name: The name of the node's spans.
    """

    def __init__(
        self, cat: str, name: str | None = None, parent: Node | None = None, word: str = ""
    ) -> None:
        self.cat, self.name = str(cat), str(name or cat)
        super().__init__(recorder.name(self.cat, self.name))
        self._parent, self._word = parent, word
        self._derived: dict[str, Node] = {}
        self._own: dict[str, Entry] = {}
        self._own_is_new = False
        self._switch = UNSET
        self._built_on = self._built = self._arguments = _NONE
        self._on = ON
        # ``_knows``: the tick of the last setting that ``_arguments`` and ``_on`` include;
        # ``_shows``: the same for ``args`` and ``enabled``
        self._knows = self._shows = -1

    # looking up the settings of this node and the nodes above it

    def _look_up(self, latest: int) -> None:
        """Update the arguments and the switch of this node and of all nodes above it."""
        parent = self._parent
        if parent is None:
            arguments, on = _NONE, ON
        else:
            if parent._knows != latest:
                parent._look_up(latest)
            arguments, on = parent._arguments, parent._on
        if self._own:
            if self._own_is_new or self._built_on is not arguments:
                # Reset before the copy is made: if another thread updates meanwhile, it sets the
                # flag again, and the update is not lost.
                self._own_is_new = False
                entries = arguments.entries.copy()
                for name, entry in self._own.copy().items():
                    if name not in entries or entry[0] >= entries[name][0]:
                        entries[name] = entry
                self._built_on, self._built = arguments, _Arguments(entries)
            arguments = self._built
        self._arguments = arguments
        self._on = self._switch if self._switch[0] >= on[0] else on
        self._knows = latest

    def refresh(self) -> None:
        """Update ``args`` and ``enabled``; the recorder calls this if settings may have changed
        since the last record."""
        latest = _state.latest
        if self._knows != latest:
            self._look_up(latest)
        arguments = self._arguments
        # If no setting has changed since the last call, the recorder has begun a new file. The
        # arguments are recorded again, because the new file does not have them.
        self.args = (
            arguments.id if arguments.id >= 0 and self._shows != latest else arguments.intern()
        )
        self.enabled = _state.is_allowed and self._on[1]
        self._shows = latest

    # recording spans

    if TYPE_CHECKING:

        @overload
        def __call__(
            self,
            fn: F,
            *,
            enable: bool | None = None,
            epoch: Any = None,
            step: Any = None,
            image_idx: Any = None,
            image_size: Any = None,
            args: Mapping[str, Any] | None = None,
        ) -> F: ...

        @overload
        def __call__(
            self,
            fn: None = None,
            *,
            enable: bool | None = None,
            epoch: Any = None,
            step: Any = None,
            image_idx: Any = None,
            image_size: Any = None,
            args: Mapping[str, Any] | None = None,
        ) -> Node: ...

    def __call__(
        self,
        fn: Any = None,
        *,
        enable: bool | None = None,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        args: Mapping[str, Any] | None = None,
    ) -> Any:
        """``@node``, ``@node(...)`` or ``with node(...)``: arguments in parentheses apply to this
        use only.

        Args:
            fn: A function to decorate: sync, async, or a generator.
            enable: True: this use is recorded even while the node is disabled; False: it is never
                recorded; None: it follows the node.
            epoch: An integer.
            step: An integer.
            image_idx: An integer.
            image_size: A number.
            args: Further arguments by name: numbers, strings, booleans, None; other values are
                recorded as text.

        Returns:
            The decorated function, or, without ``fn``, a new node that inherits from this node.
        """
        if fn is not None and all(
            given is None for given in (enable, epoch, step, image_idx, image_size, args)
        ):
            return timed(fn, self)
        use = Use(self)
        # ``update`` is not used, because it would make every node look up its path
        set_arguments(use._own, ALWAYS, epoch, step, image_idx, image_size, args)
        use._own_is_new = True
        if enable is not None:
            use._switch = (ALWAYS, bool(enable))
        return use if fn is None else timed(fn, use)

    def iter(
        self,
        iterator: Iterable[T],
        *,
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> Generator[T, None, None]:
        """Iterate over the same items, and record two spans for each item: the wait for the item,
        and the body of the loop.

        Both spans have ``count``, from 1.  The wait is written when the item arrives, the body when
        it ends, also by ``break``, ``return`` or an exception.

        Args:
            iterator: The items.
            include_block: Whether to record ``<name>.block``, the body.
            include_iter: Whether to record ``<name>.iter``, the wait.
            iter_name: Another name for the wait.
            block_name: Another name for the body.
        """
        wait = _loop_name(iter_name, self.name, ".iter") if include_iter else ""
        body = _loop_name(block_name, self.name, ".block") if include_block else ""
        return self._loop(iterator, wait, body, "count")

    def _loop(
        self, iterator: Iterable[T], wait: str, body: str, value_key: str
    ) -> Generator[T, None, None]:
        wait_id = recorder.name(self.cat, wait, value=value_key) if wait else 0
        body_id = recorder.name(self.cat, body, value=value_key) if body else 0
        number, record = 0, self.record
        start_ns = now()
        advance = iter(iterator).__next__
        while True:
            try:
                item = advance()
            except StopIteration:
                return
            come = now()
            number += 1
            if wait_id:
                record(start_ns, come, number, wait_id)
            try:
                yield item
            finally:
                start_ns = now()
                if body_id:
                    record(come, start_ns, number, body_id)
            del item  # release the item before the next is requested

    def start(self, metadata: bool = False) -> None:
        """Begin a span that ``stop()`` ends in the same thread or asyncio task. The span that was
        begun last ends first.

        Args:
            metadata: Instead record an instant event ``<name>.start``.
        """
        if metadata:
            self._write_mark(".start")
        else:
            push_open(self.name_id, (now() if self.is_on() else 0, self))

    def stop(self, metadata: bool = False) -> None:
        """End the span that was begun last by ``start()``; do nothing if none is open.

        Args:
            metadata: Instead record an instant event ``<name>.end``.
        """
        if metadata:
            self._write_mark(".end")
            return
        end = now()
        opened = pop_open(self.name_id)
        if opened is not None and opened[0]:
            start, node = opened
            node.record(start, end)

    def _write_mark(self, ending: str) -> None:
        if self.is_on():
            recorder.mark(recorder.name("dftracer", self.name + ending, "meta"), now())

    def reset(self) -> None:
        """Discard this node's open spans that ``start()`` has begun in this thread or task; keep
        the arguments."""
        _open_spans().pop(self.name_id, None)

    def get_time(self) -> int:
        """Return the wall clock time in microseconds since 1970."""
        return time.time_ns() // 1000

    # settings for this node and all nodes below it

    def update(
        self,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        args: Mapping[str, Any] | None = None,
    ) -> Node:
        """Set arguments for the spans of this node and of all nodes below it, until they are set
        again or removed by ``forget``.

        Args:
            epoch: An integer; None leaves the value unchanged.
            step: An integer; None as for ``epoch``.
            image_idx: An integer; None as for ``epoch``.
            image_size: A number; None as for ``epoch``.
            args: Further arguments by name; here None is a value.

        Returns:
            This node.
        """
        # a fast path, without another function call, for the arguments that are set at every step
        if image_idx is None and image_size is None and args is None:
            entries, time_ns = self._own, self._now()
            if epoch is not None:
                entries["epoch"] = (time_ns, epoch if type(epoch) is int else whole(epoch))
            if step is not None:
                entries["step"] = (time_ns, step if type(step) is int else whole(step))
        else:
            set_arguments(self._own, self._now(), epoch, step, image_idx, image_size, args)
        self._own_is_new = True
        _state.latest = _tick()
        changed()
        return self

    def forget(self, *names: str) -> Node:
        """Remove arguments, such as ``"epoch"``, from the spans of this node and of all nodes below
        it; returns this node."""
        time_ns = self._now()
        for name in names:
            self._own[key(name)] = (time_ns, GONE)
        self._own_is_new = True
        _invalidate()
        return self

    def enable(self) -> None:
        """Record this node and all nodes below it from now on, everywhere in the program."""
        self._switch = (self._now(), True)
        _invalidate()

    def disable(self) -> None:
        """Stop recording this node and all nodes below it, everywhere in the program."""
        self._switch = (self._now(), False)
        _invalidate()

    def _now(self) -> float:
        return _tick()

    # nodes below this node

    def derive(self, name: str) -> Node:
        """Return the node ``<name of this node>.<name>`` below this node; always the same object
        for a name."""
        name = key(name)
        node = self._derived.get(name)
        return node or self._derived.setdefault(name, self._make_below(name))

    def _make_below(self, name: str) -> Node:
        return Node(self.cat, f"{self.name}.{name}", self, f".{name}")

    @property
    def init(self) -> Node:
        """The node ``<name of this node>.init`` below this node, for initialisation code, as
        ``@node.init`` or ``with node.init``."""
        return self.derive("init")

    def __repr__(self) -> str:
        return f"<annotation {self.name} of {self.cat}>"

    def __reduce__(self) -> Any:
        if self._parent is not None and self._word:
            return _below, (self._parent, self._word)
        return Node, (self.cat, self.name)


def _below(parent: Node, word: str) -> Node:
    """Return the node below a parent by its word; a word that begins with a dot names a node made
    by ``derive``."""
    node: Node = parent.derive(word[1:]) if word.startswith(".") else getattr(parent, word)
    return node


class Use(Node):
    """One use of a node, with arguments or a switch of its own, which override those of the tree;
    all other settings are inherited from the node."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.cat, node.name, node)

    def _now(self) -> float:
        return ALWAYS

    def _make_below(self, name: str) -> Node:
        """Return a use of the derived node in the tree, with the same arguments and switch as this
        use."""
        assert self._parent is not None
        return use_of(self._parent.derive(name), self._own, self._switch)

    def __reduce__(self) -> Any:
        return use_of, (
            self._parent,
            {name: value for name, value in self._own.items() if type(value[1]) in PLAIN},
            self._switch,
        )


def use_of(node: Node, own: dict[str, Entry], switch: tuple[float, bool]) -> Use:
    """Create a use of a node with arguments and a switch of its own."""
    use = Use(node)
    use._own.update(own)
    use._own_is_new, use._switch = True, switch
    return use


def set_arguments(
    own: dict[str, Entry],
    when: float,
    epoch: Any,
    step: Any,
    image_idx: Any,
    image_size: Any,
    args: Any,
) -> None:
    for name, value in (("epoch", epoch), ("step", step), ("image_idx", image_idx)):
        if value is not None:
            own[name] = (when, whole(value))
    if image_size is not None:
        own["image_size"] = (when, real(image_size))
    if args is not None:
        for name, value in mapping(args).items():
            own[name] = (when, value)


def _loop_name(given_name: Any, name: str, ending: str) -> str:
    word = given_name if type(given_name) is str else "" if given_name is None else key(given_name)
    return word or (name if name.endswith(ending) else name + ending)


# Spans that `start()` has begun and `stop()` has not ended, by asyncio task if one runs, otherwise
# by thread. So spans of different tasks never mix, and the spans that a task or thread leaves open
# are discarded with it.
_of_thread = _local()
_of_tasks: WeakKeyDictionary[Any, Open] = WeakKeyDictionary()


def _open_spans() -> Open:
    """Return the spans that are open in this thread or asyncio task."""
    events = sys.modules.get("asyncio.events")
    if events is not None:
        loop = events._get_running_loop()
        tasks = sys.modules.get("asyncio.tasks") if loop is not None else None
        task = tasks.current_task(loop) if tasks is not None else None
        if task is not None:
            spans: Open | None = _of_tasks.get(task)
            return _of_tasks.setdefault(task, {}) if spans is None else spans
    try:
        spans_of_thread: Open = _of_thread.open
    except AttributeError:
        spans_of_thread = _of_thread.open = {}
    return spans_of_thread


def push_open(span_id: Hashable, span: Any) -> None:
    """Add a span to the open spans of this thread or asyncio task."""
    _open_spans().setdefault(span_id, []).append(span)


def last_open(span_id: Hashable) -> Any:
    """Return the open span that was started last in this thread or asyncio task; None if none is
    open."""
    starts = _open_spans().get(span_id)
    return starts[-1] if starts else None


def pop_open(span_id: Hashable) -> Any:
    """Remove and return the open span that was started last in this thread or asyncio task; None if
    none is open."""
    spans = _open_spans()
    starts = spans.get(span_id)
    if not starts:
        return None
    opened = starts.pop()
    if not starts:
        del spans[span_id]
    return opened
