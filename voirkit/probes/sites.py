"""What happens where in a function, and what those who want to be called there must have.

A site is a place in a function where something happens; a listener says which taps it wants at a site.  Nothing here
changes a function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Site:
    """A place in a function where something happens.

    Attributes:
        kind: ``set`` (a variable), ``declared`` (``x: int``; nothing happens), ``read`` (a name from outside, at entry), ``attribute``,
            ``stored`` (an attribute, set by what shows no value: it is read afterwards), ``each`` (a comprehension's variable gets its
            next value), ``unset``, ``enter``, ``exit``, ``value``, ``error``, ``yield``, ``receive``, ``loop``, ``endloop``.
        name: The variable, or the hash variable such as ``#loop_i``.
        tags: Names of the tags that the assignment has.
        unset: Names that count as not set yet, whatever their variables hold.
        is_expression: The tap is called with the value, and returns it.
        loops: Names of the loops around it.
        is_deep: It is in a comprehension, before python 3.12 code of its own, where the function's variables can not be named.
        inner: Variables of the comprehensions around it.
    """

    __slots__ = ("inner", "is_deep", "is_expression", "kind", "loops", "name", "tags", "unset")

    def __init__(
        self, kind: str, name: str, unset: Iterable[str] = (), tags: frozenset[str] = frozenset(), is_expression: bool
        = False,
        loops: Iterable[str] = (), is_deep: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.name, self.tags, self.is_expression, self.is_deep = kind, name, tags, is_expression, is_deep
        self.unset, self.loops = frozenset(unset), frozenset(loops)
        self.inner: frozenset[str] = frozenset()

    @property
    def has_value(self) -> bool:
        """Whether the tap is called with a value first."""
        return self.is_expression or self.kind in ("set", "read", "stored", "each")


class CanNot(Exception):
    """A selector asks for what can not be seen in this function; says what, to follow the function's name."""


class Tap(Protocol):
    """What a listener wants called at a site.

    Attributes:
        reads: Names of the variables that it is to be called with.
        replaces: Whether what it returns is to be the variable's value.
    """

    reads: tuple[str, ...]
    replaces: bool

    def make(self, reads: Sequence[str]) -> Callable[..., Any]:
        """The function to call with those of the variables that are bound (after the value, if the site has one)."""
        ...

    def slow(self) -> Callable[..., Any]:
        """The function to call without the variables; it looks for them in the calling frame."""
        ...

    def one_by_one(self) -> tuple[Callable[[], None], Callable[[str], Callable[[Any], None]], Callable[..., Any]]:
        """Functions to call at the site instead: to begin, with each variable that is bound (made from its name), and at last."""
        ...


class Listener(Protocol):
    """One who wants taps in a function.

    Attributes:
        overridable: Whether its taps may replace values.
        is_awake: Whether it wants them now; they can wait until somebody listens.
        names: The variables that it is about.
        wanted: All that it captures by name.
        foci: Those whose setting makes an event; ``""`` for any variable.
        is_total: Whether its event comes at the end of a call of this function.
    """

    overridable: bool
    is_awake: bool
    names: Sequence[str]
    wanted: Sequence[str]
    foci: Sequence[str]
    is_total: bool

    def taps(self, site: Site) -> Sequence[Tap]:
        """What it wants called at a site, in order."""
        ...
