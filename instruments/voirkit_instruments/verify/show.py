"""What ``--verify`` says at the end: a table of the readings, with a line to paste for what is missing."""

from __future__ import annotations

from voirkit.probes.selector.suggestions import Candidates
from voirkit.report.cells import GREEN, PLAIN, RED, YELLOW, TerminalStyle, styled
from voirkit.report.sections import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def report(result: dict[str, Any], script: str, terminal: bool) -> str:
    """The whole text.

    Args:
        result: What the summary holds under ``verify``.
        script: Path of the script, whose source suggests what to add; empty or unreadable if there is none.
        terminal: Whether to draw with colours.
    """
    rows = [*_readings(result), *_checks(result)]
    return "\n".join(
        ["--verify", _table(rows, TerminalStyle(color=terminal)), *_without_probes(result["without_probes"]), *_missing(result, script)]
    )


def _readings(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for name, reading in result["readings"].items():
        origin = "; ".join(f"{p['selector']}  {p['where']}".rstrip() for p in reading["probes"])
        if not reading["events"]:
            fired = any(p["events"] for p in reading["probes"])
            origin = f"{origin}  {'fired, but gave no such event' if fired else 'never fired'}" if origin else ""
            rows.append((name, "missing", origin))
        else:
            unprobed = "voirkit's recorder, without a probe" if reading["recorded"] else "no probe: the script or an instrument gave it"
            rows.append((name, str(reading["events"]), origin or unprobed))
    return rows


def _checks(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    loss = result["loss"]
    if loss["decreases"] is None:
        because = "needs two losses that are numbers"
    elif loss["first"] is None or loss["last"] is None:
        because = "it is not finite"
    else:
        because = f"{loss['first']:.4g} -> {loss['last']:.4g}, means of the first and the last quarter of {loss['n']}"
    verdict = {True: "yes", False: "no", None: "unknown"}[loss["decreases"]]
    rows = [("loss decreases", verdict, because)]
    needs = {"train_rate": "step+batch twice", "loading_rate": "loader", "compute_rate": "compute_start/end with batch"}
    for name, value in result["rates"].items():
        found = (f"{value:.4g}", "items/s") if value is not None else ("missing", f"needs {needs[name]}")
        rows.append((name, *found))
    return rows


def _table(rows: list[tuple[str, str, str]], terminal: TerminalStyle) -> str:
    heads = [("reading", "events", "from"), *rows]
    first, second = (max(len(row[n]) for row in heads) for n in (0, 1))
    colours = {"missing": RED, "no": RED, "unknown": YELLOW, "events": PLAIN}
    lines = (f"  {name:<{first}}  {styled(f'{n:>{second}}', colours.get(n, GREEN), terminal)}  {origin}" for name, n, origin in heads)
    return "\n".join(line.rstrip() for line in lines)


def _without_probes(readings: dict[str, Any]) -> list[str]:
    """What voirkit has read of torch itself, and what only a probe can tell."""
    known = [_reading_text(name, value) for name, value in readings.items() if value is not None]
    if not known:
        return ["  Without a probe nothing is known: no training step of torch was seen."]
    unknown = [name for name, value in readings.items() if value is None]
    return [f"  Known without a probe: {', '.join(known)}.", *([f"  Only a probe tells: {', '.join(unknown)}."] if unknown else [])]


def _reading_text(name: str, value: Any) -> str:
    if name in ("model", "use_cuda"):
        return f"{name} {value}"
    if name.endswith("_rate"):
        return f"{name} {written(value, 'items/s')}"
    return f"{name} {value:,}x"


def _missing(result: dict[str, Any], script: str) -> list[str]:
    missing = result["missing"]
    if not missing:
        return ["  All readings are there."]
    candidates = _candidates(script)
    lines = {name: candidates.line(name) for name in missing if name != "options"} if candidates else {}
    found = [line for line in lines.values() if line]
    said = []
    if found:
        said += ["  To add to the voirfile, as far as the script shows it:", "    def instrument_readings(ov):"]
        said += [f"        {line}" for line in found]
    unknown = [name for name in missing if name != "options" and not lines.get(name)]
    if unknown:
        said.append(f"  Nothing in the script looks like {', '.join(unknown)}: probe it where it is set, or give it.")
    if "options" in missing:
        said.append("  options: with --options, if the script uses argparse.")
    return said


def _candidates(script: str) -> Candidates | None:
    from voirkit.probes.selector.catalogue import catalogue

    try:
        with open(script, "rb") as file:
            return Candidates(catalogue(file.read(), script))
    except (OSError, SyntaxError, ValueError):
        return None
