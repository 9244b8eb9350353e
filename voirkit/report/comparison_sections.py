"""The report sections of a comparison, which the terminal, Markdown and the HTML page draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log, sqrt

from voirkit.analysis.first_difference import RankDifference
from voirkit.analysis.significance import BETWEEN_RUNS, FEWEST_STEPS, Difference
from voirkit.phase_table import PHASES
from voirkit.report.comparison import (
    STEP,
    THROUGHPUT,
    WALL,
    Figure,
    Pairs,
    Side,
    change,
    grouped_runs,
    in_words,
    script_name,
)
from voirkit.report.comparison_values import losses_and_batches
from voirkit.report.sections import (
    AnyCell,
    Block,
    Cell,
    Column,
    InText,
    OnPage,
    Section,
    Table,
    Text,
    signed,
    written,
)

# The section that answers the comparison


def answer_section(
    first: Side, second: Side, figures: Sequence[Figure], differences: Sequence[RankDifference] = ()
) -> Section:
    """Return the section that answers the comparison: the names of the runs, whether wall time,
    throughput and step time differ by more than noise, and which losses and batches differ.

    Args:
        differences: The first differences, by rank, between the first runs of the two sides.
    """
    by_place = {figure.place: figure for figure in figures}
    blocks: list[Block] = [
        *_names(first, second),
        *_wall_time(by_place),
        *_throughput(by_place),
        *losses_and_batches(first, second, differences),
        *_step_time(first, second, by_place),
        *_phases(by_place),
        *_notes(first, second, by_place),
    ]
    return Section("answer", "", blocks)


def _names(first: Side, second: Side) -> Iterator[Text]:
    yield Text(" ".join(first.names), "first")
    yield Text(" ".join(second.names), "second")


_Figures = Mapping[tuple[str, ...], Figure]


def _wall_time(figures: _Figures) -> Iterator[Text]:
    figure = figures.get(WALL)
    if figure is None:
        return
    training = figures.get(("wall", "parts", "training", "total_s"))
    inside = (
        f"; training {_values(training)}" if training is not None and _is_known(training) else ""
    )
    judgement = (
        ""
        if figure.difference is None
        else f": {_judgement(figure.difference, 'longer', 'shorter')}"
    )
    yield Text(f"{_values(figure)}{judgement}{inside}.", "wall time", mood=_mood(figure, "lower"))


def _throughput(figures: _Figures) -> Iterator[Text]:
    figure = figures.get(THROUGHPUT)
    if figure is None:
        return
    judgement = (
        ""
        if figure.difference is None
        else f": {_judgement(figure.difference, 'faster', 'slower')}{_left_out(figure)}"
    )
    yield Text(f"{_values(figure)}{judgement}.", "throughput", mood=_mood(figure, "higher"))


# The ratio of the shown values and the ratio that is judged (``Difference.ratio``) count as equal
# up to this difference of their logarithms.
_ROUNDING = 0.01


def _left_out(figure: Figure) -> str:
    """Return a note if the judged ratio leaves out some of the time in the shown figures; otherwise
    an empty text."""
    if figure.difference is None or not figure.first or not figure.second:
        return ""
    unlike = abs(log(figure.second / figure.first / figure.difference.ratio)) > _ROUNDING
    return ", compiling and imports left out" if unlike else ""


def _step_time(first: Side, second: Side, figures: _Figures) -> Iterator[Text]:
    step = figures.get(STEP)
    if step is None or step.difference is None:
        counts = " and ".join(f"{side.median('steps', 'n') or 0:.0f}" for side in (first, second))
        yield Text(
            f"too few to say whether they differ ({counts}; {FEWEST_STEPS} are the fewest).",
            "steps",
        )
        return
    yield Text(
        f"{_judgement(step.difference, 'longer', 'shorter')}.",
        "step time",
        mood=_mood(step, "lower"),
    )


_MOST_PHASES = 3  # maximum number of phases that the answer names


def _phases(figures: _Figures) -> Iterator[Text]:
    """Yield a line with the phases of a step whose change noise does not explain, the largest
    change first."""
    steps = [figures.get(("steps", "phases", phase, "step_s")) for phase in PHASES]
    changed = [
        figure
        for figure in steps
        if figure is not None and figure.difference is not None and figure.difference.significant
    ]
    changed.sort(key=lambda figure: -abs((figure.second or 0.0) - (figure.first or 0.0)))
    if changed:
        words = [
            f"{figure.name.partition(',')[0]} {_values(figure)}"
            for figure in changed[:_MOST_PHASES]
        ]
        yield Text(f"{', '.join(words)} (medians).", "in a step")


def _is_known(figure: Figure) -> bool:
    return figure.first is not None and figure.second is not None


def _values(figure: Figure) -> str:
    return f"{written(figure.first, figure.units)} -> {written(figure.second, figure.units)}"


_TIMES = 2.0  # from this ratio on, a factor is easier to read than a percentage


def _judgement(difference: Difference, more: str, less: str) -> str:
    """Return the difference in words, such as ``12.1% shorter (95%: -14.0% .. -10.2%)`` or ``no
    significant difference: ...``."""
    interval = f"(95%: {change(difference.low)} .. {change(difference.high)})"
    ratio = difference.ratio
    if not difference.significant:
        return f"no significant difference: {change(ratio)} {interval}"
    if ratio >= _TIMES:
        return (
            f"{more} by a factor of {ratio:.3g} (95%: {difference.low:.3g} .."
            f" {difference.high:.3g})"
        )
    return f"{abs(ratio - 1):.1%} {more if ratio > 1 else less} {interval}"


def _mood(figure: Figure, better: str) -> str:
    """Return the mood of a figure: ``good`` or ``bad`` if its difference is significant, otherwise
    empty."""
    difference = figure.difference
    if difference is None or not difference.significant:
        return ""
    return "good" if (difference.ratio > 1) is (better == "higher") else "bad"


# Notes in the section that answers the comparison


def _notes(first: Side, second: Side, figures: _Figures) -> Iterator[Text]:
    yield from _other_scripts(first, second)
    yield from _other_work(first, second)
    yield from _busy(("first", first), ("second", second))
    step = figures.get(STEP)
    if step is None or step.difference is None:
        return
    if not step.difference.measured:
        between = max(first.between_runs(STEP), second.between_runs(STEP))
        assumed = f"{between:.1%}"
        if between > BETWEEN_RUNS:
            assumed += ", since other programs held up steps"
        more = "Measure it: voirkit compare A1 A2 A3 --with B1 B2 B3"
        yield Text(
            f"One run a side: how much runs themselves differ is not known (assumed: {assumed})."
            f" {more}",
            mood="note",
        )
    elif any(len(runs) > 1 for side in grouped_runs(first, second) for runs in side):
        why = (
            "Many runs of one side in a row: what changed on the machine meanwhile looks like a"
            " difference, so each half counts as one."
        )
        yield Text(f"{why} Record the sides in turn: A B A B.", mood="note")


def _other_scripts(first: Side, second: Side) -> Iterator[Text]:
    """Yield a note if the runs are of different scripts; it names one run of each script."""
    runs = [
        (name, script_name(summary))
        for side in (first, second)
        for name, summary in zip(side.names, side.summaries, strict=True)
    ]
    example = {script: name for name, script in reversed(runs) if script is not None}
    if len(example) > 1:
        words = [f"{name} ran {script}" for script, name in reversed(example.items())]
        yield Text(f"{', '.join(words)}.", "another script", mood="note")


def _other_work(first: Side, second: Side) -> Iterator[Text]:
    """Yield a note if the sides have trained different numbers of steps or items, so that their
    wall times cannot be compared."""
    amounts = []
    for unit, place in (("steps", ("steps", "n")), ("items", ("steps", "items"))):
        values = [side.median(*place) for side in (first, second)]
        if None not in values and values[0] != values[1]:
            amounts.append(f"{written(values[0], '')} and {written(values[1], '')} {unit}")
    if amounts:
        yield Text(
            f"they trained {', '.join(amounts)}: compare throughput, not wall time.",
            "other work",
            mood="note",
        )


_LEAST_CONTENTION = 0.02  # logarithm of a slowdown; a smaller one is not worth a warning


def _busy(*sides: tuple[str, Side]) -> Iterator[Text]:
    """Yield a warning for each side that other programs may have slowed down, with the possible
    slowdown."""
    for head, side in sides:
        if side.contention < _LEAST_CONTENTION:
            continue
        waited = side.median("processors", "waited_share")
        other_work = side.median("processors", "others_share")
        most = f"{exp(side.contention):.3g}"
        yield Text(
            f"the {head} side ran on a busy machine: its main thread waited for a processor"
            f" {waited:.0%} of the time, and other programs used {other_work:.0%} of the"
            " processors."
            f" The intervals are wider for that: its times may be up to {most} times those of an"
            " idle machine.",
            "busy",
            mood="warning",
        )


# The sections with the table of figures and with the other differences


def figures_section(figures: Sequence[Figure]) -> Section:
    """Return the section with a table of the compared figures, one row each."""
    rows = [_figure_row(figure) for figure in figures]
    heads: list[str | Column] = [
        Column("", left=True, cut=True),
        "first",
        "second",
        Column("second - first", narrowest=110),
        Column("ratio", narrowest=60),
        Column("95%  ", narrowest=76),
        Column("first ±", narrowest=130),
        Column("second ±", narrowest=130),
    ]
    notes: list[Block] = [OnPage([Text("+ is what the second has more.", mood="note")])]
    if any(figure.difference is not None for figure in figures):
        notes.append(Text(_DIFFERENCE, mood="note"))
    return Section("figures", "Figures", [Table(heads, rows, most=len(rows)), *notes])


def _figure_row(figure: Figure) -> Sequence[AnyCell]:
    """Return the row of a figure: its name, both values, difference, ratio and intervals."""
    difference = ""
    if figure.first is not None and figure.second is not None:
        difference = signed(figure.second - figure.first, figure.units)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
    mood = ""
    if figure.is_better is not None and ratio != "1.00x":
        mood = "good" if figure.is_better else "bad"
    return (
        figure.name,
        written(figure.first, figure.units),
        written(figure.second, figure.units),
        difference,
        Cell(ratio, mood),
        *_interval_cells(figure.difference),
    )


def _interval_cells(difference: Difference | None) -> tuple[AnyCell, AnyCell, AnyCell]:
    """Return the cells with a ratio's interval and the half-widths of both sides' intervals."""
    if difference is None:
        return Cell("", "dim"), "", ""
    interval = f"{difference.low:.2f} .. {difference.high:.2f}"
    if difference.significant:
        cell = Cell(f"{interval} *", "strong")
    else:
        cell = Cell(f"{interval}  ", "dim")
    return cell, _either_way(*difference.first), _either_way(*difference.second)


_DIFFERENCE = (
    "ratio: second / first; of rates, without compiling and imports. 95%, ±: where the true one is."
    " *: significant, noise does not explain it. Of 100 comparisons of equal runs 5 find one in the"
    " step time, and 5 in any of the others, whose intervals are wider for that."
)


def _either_way(low: float, high: float) -> str:
    """Return the half-width of an interval as a percentage of its geometric mean."""
    return f"{sqrt(high / low) - 1:.1%}"


def differences_section(different: Pairs) -> Section:
    """Return the section with all other differences, such as verdicts and the environment."""
    rows = [
        (name, in_words(first), in_words(second)) for name, (first, second) in different.items()
    ]
    lines = [Text(f"{first}  |  {second}", name) for name, first, second in rows]
    nothing = Text("Nothing that is known of both.")
    on_page = Table(("", "first", "second"), rows, left=(0, 1, 2)) if rows else nothing
    return Section("different", "What else differs", [OnPage([on_page]), InText(lines)])
