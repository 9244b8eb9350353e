"""The summary as a person reads it: bounded, at any width, without colours where there is no terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from voirkit.phase_table import PHASES
from voirkit.report.terminal import LINES, draw

SPREAD = {"median": 0.0123, "p10": 0.001, "p90": 0.2}


def phases(**more: Any) -> dict[str, Any]:
    return {p: {"share": 1 / 6, "total_s": 20.0, "step_s": SPREAD, **more} for p in PHASES}


SUMMARY: dict[str, Any] = {
    "command": ["train.py", "--epochs", "3"], "exit_code": 0, "duration_s": 130.0, "world_size": 1, "ended": "normal",
    "verdict": {"kind": "input-bound", "because": "61% of a step is spent waiting for the next batch.", "next": "Use more workers."},
    "steps": {"n": 100, "items": 3200, "time_s": SPREAD, "phases": phases()},
    "rates": {"train_rate": {"value": 512.0, "median": 500.0, "p10": 400.0, "p90": 600.0, "n": 100, "units": "items/s"}},
    "memory": {"peak": 2_340_000_000, "process_peak": 2_340_000_000, "units": "bytes"},
    "monitor": {"gpu0_load": {"mean": 0.42}, "gpu0_power": {"mean": 250.0}, "rss": {"mean": 3e9, "max": 4e9}},
    "loss": {"first": 2.3, "last": None, "n": 100}, "overhead": {"share": 0.001, "events": 600, "seconds": 0.1},
    "alerts": [{"kind": "loss-not-finite", "because": "The loss is nan from loss 12 on.", "next": "Look at the step before."}],
}  # fmt: skip


def drawn(
    summary: dict[str, Any], width: int = 100, lines: int | None = LINES, **options: Any
) -> list[str]:
    file = io.StringIO()
    draw(
        summary,
        Console(file=file, width=width, highlight=False, **options),
        "voirkit-runs/one",
        lines,
    )
    return file.getvalue().splitlines()


def test_all_of_it_is_there() -> None:
    text = "\n".join(drawn(SUMMARY))
    for words in (
        "train.py --epochs 3   2.17 min, exit code 0", "input-bound  61% of", "next  Use more workers.", "loss-not-finite  The loss is nan",
        "512 items/s", "loss 2.3 -> nan", "memory  peak 2.34 GB · all processes 3 GB, at most 4 GB", "GPU  0: 42% busy, 250 W", "0.10%",
        "run directory  voirkit-runs/one",
    ):  # fmt: skip
        assert words in text, text
    assert "all of it" not in text


MUCH = {
    **SUMMARY,
    "command": ["train.py", *(f"--option-{i}=value" for i in range(40))],
    "verdict": {
        "kind": "input-bound",
        "because": "word " * 300,
        "next": "\n".join("try this" for _ in range(30)),
    },
    "alerts": [{"kind": "loss-not-finite", "because": "because " * 60, "next": "next " * 60}] * 5,
    "steps": {
        **SUMMARY["steps"],
        "phases": {
            **phases(),
            "other": {
                **phases()["other"],
                "parts": {f"part{i}": {"share": 0.01, "total_s": 1.0} for i in range(4)},
            },
        },
    },
    "ranks": [
        {"rank": r, "host": f"host{r}", "steps": 100, "time_s": SPREAD, "phases": phases()}
        for r in range(64)
    ],
    "rates": {f"rate{i}": SUMMARY["rates"]["train_rate"] for i in range(30)},
    "warnings": [f"warning {i} " * 10 for i in range(50)],
    "probes": [{"selector": f"//f > x{i}", "where": "main.py:3", "events": 0} for i in range(100)],
    "dropped": {f"name{i}": 5 for i in range(50)},
}


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_it_is_never_longer_than_its_lines_nor_wider_than_the_terminal(width: int) -> None:
    lines = drawn(MUCH, width)
    assert len(lines) == LINES
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "voirkit report" in text
    assert "input-bound" in text
    assert "optimizer" in text
    assert "step" in text


def test_a_warning_of_several_lines_has_them_indented() -> None:
    lines = drawn(
        {
            **SUMMARY,
            "warnings": [
                "--syscalls: tracefs is not mounted.\n  Mount it: mount -t tracefs",
                "py-spy is missing.\nInstall it.",
            ],
        }
    )
    assert (
        "warning  --syscalls: tracefs is not mounted.\n  Mount it: mount -t tracefs"
        in "\n".join(lines)
    )
    assert "warning  py-spy is missing.\n  Install it." in "\n".join(lines)


@pytest.mark.parametrize("width", [40, 100])
def test_a_sentence_that_is_cut_ends_with_an_ellipsis(width: int) -> None:
    summary = {**SUMMARY, "warnings": ["another " * 200 + "end"]}
    whole = drawn(summary, width, lines=None)
    cut = drawn(summary, width, lines=len(whole) - 3)
    assert [line for line in whole if "…" in line] == []
    (at,) = [i for i, line in enumerate(cut) if "…" in line]
    assert cut[at].endswith(" …")
    assert "another" in cut[at - 1]
    assert "another" not in cut[at + 1]


def test_no_number_of_a_table_that_is_cut_is_cut_short() -> None:
    for width in range(20, 120, 7):
        numbers = {word for line in drawn(MUCH, width, lines=None) for word in line.split()}
        report = [line for line in drawn(MUCH, width) if not line.startswith("left out")]
        assert {word for line in report for word in line.split()} - numbers <= {
            "…",
            "all",
            "of",
            "it",
        }


def test_the_numbers_of_rates_stand_below_each_other() -> None:
    rates = {
        name: {**SUMMARY["rates"]["train_rate"], "value": value}
        for name, value in (("train_rate", 512.0), ("loading_rate", 90210.0))
    }
    lines = drawn({**SUMMARY, "rates": rates})
    assert "train_rate       512 items/s   typically 500, 400 .. 600" in lines
    assert "loading_rate  90,210 items/s   typically 500, 400 .. 600" in lines


def test_what_monitor_saw_is_there() -> None:
    monitor = {
        "cpu": {"mean": 0.664, "max": 1.02}, "host_cpu": {"mean": 0.97}, "rss": {"mean": 3e9, "max": 4e9}, "read": {"mean": 1.0, "total": 737280.0},
        "write": {"mean": 1.0, "total": 2.4e9}, "net_received": {"total": 0}, "net_sent": {"mean": 1.0},
    }  # fmt: skip
    lines = drawn({**SUMMARY, "monitor": monitor})
    assert (
        "used  0.664 cores, at most 1.02 · the machine's processors 97% · 737 kB read · 2.4 GB written"
        in lines
    )


def test_the_report_has_all_of_it() -> None:
    text = "\n".join(drawn(MUCH, lines=None))
    assert "warning 49" in text
    assert "rate29" in text
    assert "all of it" not in text


def test_no_line_ends_with_blanks() -> None:
    assert [line for line in drawn(SUMMARY, 60) if line != line.rstrip()] == []


def test_colours_are_for_terminals() -> None:
    assert "\x1b" not in "\n".join(drawn(SUMMARY))
    assert "\x1b[" in "\n".join(drawn(SUMMARY, force_terminal=True, color_system="standard"))


def test_of_an_empty_summary_what_there_is() -> None:
    assert drawn({"command": None}) == ["(unknown command)", "run directory  voirkit-runs/one"]


def test_the_title_has_the_scripts_own_exit_code_and_that_of_a_failed_check() -> None:
    title = drawn({**SUMMARY, "exit_code": 3, "script_exit_code": 0})[0].rstrip()
    assert title.endswith("exit code 0, a check failed: exit code 3")


ADVICE = [
    {
        "do": f"Do the {nth} thing that is worth it, since it takes {words}.",
        "because": f"{nth} figure",
        "win": win,
    }
    for nth, words, win in (
        ("first", "a word " * 12, 0.4),
        ("second", "some words " * 10, 0.25),
        ("third", "more words " * 10, None),
    )
]


@pytest.mark.parametrize("width", [80, 100])
def test_verdict_and_advice_are_never_cut(width: int) -> None:
    verdict = {
        "kind": "balanced",
        "because": "No dominant bottleneck. " * 8,
        "next": f"{ADVICE[0]['do']} Estimated saving: about 40% of the run.",
    }
    lines = drawn({**MUCH, "command": ["train.py"], "verdict": verdict, "advice": ADVICE}, width)
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= LINES
    assert "Estimated saving: about 40% of the run." in text
    assert "then Do the second thing" in text
    assert "(second figure, estimated saving: about 25% of the run)" in text
    assert "(third figure)" in text
    assert text.count("Do the first thing") == 1


BUGS = [
    {
        "kind": f"bug-{n}",
        "severity": "bug",
        "because": f"step {n}, train.py:3: " + "Why it is one. " * 12,
        "next": f"Mend {n}.",
    }
    for n in range(4)
]


@pytest.mark.parametrize("width", [60, 100])
def test_a_bug_that_was_found_is_never_cut_and_stands_above_the_advice(width: int) -> None:
    lines = drawn({**MUCH, "findings": BUGS}, width)
    text = " ".join(" ".join(lines).split())
    for bug in BUGS:
        assert f"{bug['kind']} {bug['because'].strip()} next {bug['next']}" in text
    assert text.index("bug-3") < text.index("input-bound")


def test_more_bugs_than_a_screen_holds_leave_room_for_what_else_is_known() -> None:
    lines = drawn({**MUCH, "findings": [{**BUGS[0], "kind": f"bug-{n}"} for n in range(20)]})
    assert sum("bug-" in line for line in lines) == 20
    assert any("input-bound" in line for line in lines)
    assert any("optimizer" in line for line in lines)


UNCOUNTED = [
    {
        "thread": 40,
        "pid": 7,
        "rank": 0,
        "optimizer_steps": 12,
        "backward_passes": 1,
        "first_s": 3.25,
    },
    {"thread": 41, "pid": 8, "rank": 0, "optimizer_steps": 0, "backward_passes": 3, "first_s": 0.5},
]


@pytest.mark.parametrize("kind", ["busy-machine", "instrument-overhead"])
def test_what_makes_times_untrue_stands_above_the_verdict_and_is_never_cut(kind: str) -> None:
    finding = {
        "kind": kind,
        "severity": "measurement",
        "because": "Others held the processors.",
        "next": "Measure again.",
    }
    lines = drawn({**SUMMARY, "findings": [finding]}, lines=8)
    (at,) = [i for i, line in enumerate(lines) if kind in line]
    (verdict,) = [i for i, line in enumerate(lines) if "input-bound" in line]
    assert lines[at : at + 2] == [
        f"  {kind}  Others held the processors.",
        "  next  Measure again.",
    ]
    assert at < verdict


@pytest.mark.parametrize("n", [0, 100])
def test_training_that_lies_in_no_counted_step_is_said_and_never_cut(n: int) -> None:
    steps = {**MUCH["steps"], "n": n, "uncounted": UNCOUNTED}
    assert " ".join(" ".join(drawn({**MUCH, "steps": steps}, 80)).split()).count(
        "warning 12 optimizer steps and 4 backward passes lie in no counted step: 12 optimizer steps and 1 backward pass in process 7, "
        "thread 40, from 3.25 s on; 3 backward passes in process 8, thread 41, from 500 ms on."
    ) == 1  # fmt: skip


def test_of_one_place_of_uncounted_training_the_counts_are_not_said_twice() -> None:
    lines = drawn({**SUMMARY, "steps": {**SUMMARY["steps"], "uncounted": UNCOUNTED[:1]}}, 200)
    assert (
        "warning  12 optimizer steps and 1 backward pass lie in no counted step: thread 40, from 3.25 s on."
        in lines
    )


def test_a_backward_pass_whose_step_was_not_done_is_nothing_to_warn_of() -> None:
    row = {**UNCOUNTED[0], "optimizer_steps": 0}
    assert not any(
        "counted step" in line
        for line in drawn({**SUMMARY, "steps": {**SUMMARY["steps"], "uncounted": [row]}}, 200)
    )


def test_a_run_without_a_step_shows_its_evaluation_and_what_was_recorded() -> None:
    evaluation = {"n": 8, "total_s": 0.1, "time_s": {"median": 0.0125}}
    seen = {
        "model_calls": {"n": 38, "total_s": 0.02},
        "optimizer_steps": {"n": 30, "total_s": 0.001},
    }
    lines = drawn(
        {
            **SUMMARY,
            "steps": {"n": 0, "phases": {}},
            "evaluation": evaluation,
            "recorded_work": seen,
            "rates": {},
        }
    )
    assert any(line.startswith("8 evaluation batches of 12.5 ms · loss 2.3") for line in lines)
    assert "seen  model calls 38 (20 ms) · optimizer steps 30 (1 ms)" in lines
    assert any(line.startswith("memory  peak 2.34 GB") for line in lines)


def test_what_is_left_out_is_named_in_one_line() -> None:
    lines = drawn(MUCH, 200)
    assert lines[-1] == "all of it  voirkit report voirkit-runs/one"
    assert lines[-2].startswith("left out  part of command, ")
    assert ", Ranks, rates, " in lines[-2]
    assert ", part of warnings, " in lines[-2]


@pytest.mark.parametrize("lines", range(8, 40))
def test_nothing_of_a_part_is_left_but_its_headings(lines: int) -> None:
    rows = [{"rank": n, "host": f"host{n}", "last": 0.5, "late_s": 0.1} for n in range(8)]
    waited = {"share": 0.0, "time_s": 0.0}
    collectives = {
        "waited": waited, "late": {"rank": 1}, "in_backward": waited, "kinds": [], "clock_error_s": 0.0, "ranks": rows, "over_time": None,
        "groups": [{"group": "world"}],
    }  # fmt: skip
    shown = drawn({**MUCH, "collectives": collectives}, lines=lines)
    for heading in ("Ranks", "Waiting between ranks"):
        if heading in shown:
            below = shown[shown.index(heading) + 1 :]
            assert any(line.split()[:2] == ["0", "host0"] for line in below[:4])


def test_what_checks_did_not_find_is_one_line_and_one_reason_is_said_once() -> None:
    checks = [
        {"name": f"check-number-{n}", "found": False, "because": "", "next": ""} for n in range(30)
    ]
    checks += [
        {
            "name": f"unclear-{n}",
            "found": None,
            "because": "No step of an optimizer of torch.",
            "next": "",
        }
        for n in range(3)
    ]
    lines = [
        line
        for line in drawn({**SUMMARY, "checks": checks})
        if "check-number" in line or "unclear" in line
    ]
    assert len(lines) == 2
    assert (
        lines[0]
        == "cannot tell  unclear-0, unclear-1, unclear-2  No step of an optimizer of torch."
    )
    assert lines[1].startswith("not found (30)  check-number-0, check-number-1")
