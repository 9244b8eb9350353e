"""Graphs that are kept alive from step to step, or grow, and ReLU layers of which most units are dead."""

from __future__ import annotations

from itertools import pairwise

from voirkit_instruments.checks.detectors.facts import Fact, Facts
from voirkit_instruments.checks.detectors.finding import LEAST_LOOKS, Detector, Finding

_KEPT = 6  # graphs before the last two: a few are kept by buffers and by garbage that is not collected yet
_DEAD, _DOUBTFUL = 0.9, 0.75
_ROWS = 32  # of a layer's output


def _by_line(facts: list[Fact]) -> dict[str | None, list[Fact]]:
    found: dict[str | None, list[Fact]] = {}
    for fact in facts:
        found.setdefault(fact.where, []).append(fact)
    return found


def _kept(facts: Facts) -> Finding:
    for process in facts.processes():
        for looks in _by_line(process.of("graph")).values():
            kept = [look for look in looks if look.args["kept"] >= _KEPT]
            most = max(look.args["kept"] for look in looks)
            if len(kept) >= LEAST_LOOKS and kept[-1] is looks[-1]:
                return Finding(
                    True,
                    f"The graphs of earlier steps are still alive when the next are made ({most} at once, of those looked at): "
                    "memory grows with each step.",
                    kept[0],
                    "Keep numbers, not tensors with a history: total += loss.item(), or loss.detach() where that would wait for a device.",
                    {"looked_at": len(looks), "kept": most},
                    looks=len(kept),
                )
            growth = _growth(looks)
            if growth:
                return Finding(
                    True,
                    f"Each backward pass goes through {growth:g} nodes more than the one before ({looks[1].args['nodes']} at pass "
                    f"{looks[1].value}, {looks[-1].args['nodes']} at pass {looks[-1].value}): all earlier graphs are in it.",
                    looks[1],
                    "Cut what is carried from step to step: state.detach(), and no retain_graph=True.",
                    {"looked_at": len(looks), "nodes_a_step": growth},
                    looks=len(looks) - 1,
                )
    return Finding(False, "No graphs were seen that outlive their step.")


def _growth(looks: list[Fact]) -> float:
    """By how many nodes a graph grows with each pass, if it does so at all looks alike (but the first); else 0."""
    later = [(look.value, look.args["nodes"]) for look in looks[1:]]
    slopes = {(b - a) / (m - n) for (n, a), (m, b) in pairwise(later) if m > n}
    return slopes.pop() if len(later) > LEAST_LOOKS and len(slopes) == 1 and min(slopes) > 0 else 0.0


def _dead(facts: Facts) -> Finding:
    doubtful = ""
    for process in facts.processes():
        for looks in _by_line(process.of("units")).values():
            last = looks[-1]
            share = last.args["dead"] / last.args["units"]
            if last.value < LEAST_LOOKS or last.args["rows"] < _ROWS or share < _DOUBTFUL:
                continue
            after = f" after {last.args['after']}" if last.args["after"] else ""
            said = f"{last.args['dead']} of {last.args['units']} units of the ReLU{after} gave nothing but 0, "
            said += f"for all {last.args['rows']:,} rows at {last.value} looks"
            if share < _DEAD:
                doubtful = f"{said}: features that are rare on purpose look alike."
                continue
            return Finding(
                True,
                f"{said}: they are dead, no gradient comes through them.",
                last,
                "Lower the learning rate, look at the initialization and at the scale of the inputs, or use LeakyReLU or GELU.",
                {"dead": last.args["dead"], "units": last.args["units"], "rows": last.args["rows"], "looked_at": last.value},
                looks=last.value,
            )
    return Finding(None, doubtful) if doubtful else Finding(False, "No ReLU layer was seen of which most units are dead.")


KEPT = Detector("graph-kept", _kept, ("graph",))
DEAD = Detector("dead-units", _dead, ("graph",))
