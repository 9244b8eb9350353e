"""What voirkit does at a fork is done in a declared order."""

from __future__ import annotations

import sys

from conftest import Place


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
    assert place.run(sys.executable, "program.py").out == "before probes, before trace, child trace, child probes\n"
