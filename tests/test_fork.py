"""What voirkit does at a fork is done in a declared order."""

from __future__ import annotations

import sys
import weakref

from conftest import Place

from voirkit import fork
from voirkit.fork import at_fork


def test_parts_are_called_in_their_order_and_before_the_fork_in_reverse(place: Place) -> None:
    place.write(
        program="""
        import os
        from voirkit.fork import at_fork
        called = []
        for part in ("probes", "trace"):
            at_fork(part, before=lambda part=part: called.append(f"before {part}"), in_child=lambda part=part: called.append(f"child {part}"))
        if os.fork() == 0:
            print(*called, sep=", ", flush=True)
            os._exit(0)
        os.wait()
        """
    )
    assert (
        place.run(sys.executable, "program.py").out
        == "before probes, before trace, child trace, child probes\n"
    )


def test_a_method_is_called_as_long_as_its_object_lives_and_keeps_it_not_alive() -> None:
    class Forked:
        def after_fork(self) -> None:
            called.append(1)

    called: list[int] = []
    forked = Forked()
    at_fork("instruments", in_child=forked.after_fork)
    (*_, (_, _, hook)) = fork._hooks["instruments"]
    assert hook is not None
    hook()
    gone = weakref.ref(forked)
    del forked
    hook()
    assert (called, gone()) == ([1], None)
    fork._hooks["instruments"].pop()
