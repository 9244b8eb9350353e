"""The rollup keeps the steps of a device."""

import os

import numpy as np
import pytest
from conftest import Place

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.run_steps import _rolled_up, roll_up
from voirkit.analysis.steps import DeviceTable, Steps, Table
from voirkit.phase_table import COLUMNS
from voirkit.runs.opened import Run


def table(n, time):
    own = np.full((n, len(COLUMNS)), time // len(COLUMNS))
    return Table(np.arange(n) * time, own.sum(axis=1), np.full(n, 4), own, np.arange(n))


@pytest.mark.parametrize("launching", [None, 50])
def test_what_is_rolled_up_is_read_again(place: Place, launching):
    place.write(main="print()")
    place.voirkit("--quiet", "main.py")
    device = None if launching is None else DeviceTable(table(6, 2000), np.full(6, launching))
    rank = Rank(
        0,
        "here",
        Steps(table(6, 1000), table(3, 500), True, device, saving_between_ns=70),
        {"workers": 2},
    )
    with Run(str(place.folder / "run")) as run:
        roll_up(run, rank)
        (read,) = _rolled_up(run)
    assert figures([read]) == figures([rank])
    assert read.steps.train.end_ns.tolist() == rank.steps.train.end_ns.tolist()
    assert (read.steps.device is None) == (launching is None)
    assert read.facts == {"workers": 2}


def test_a_part_that_an_older_voirkit_did_not_know_is_no_time_beside_roll_ups_that_have_it(
    tmp_path,
):
    (tmp_path / "run.json").write_text("{}")
    collecting = table(4, 1000)
    with Run(str(tmp_path)) as run:
        for number in (0, 1):
            roll_up(run, Rank(number, "here", Steps(collecting, table(0, 1), True)))
        old = str(tmp_path / "steps" / "rank=1.parquet")
        facts = bytes(
            run.database().execute(f"SELECT value FROM parquet_kv_metadata('{old}')").fetchone()[0]
        ).decode()
        chosen = f"SELECT * EXCLUDE (gc_ns) FROM read_parquet('{old}')"
        run.database().execute(
            f"COPY ({chosen}) TO '{old}.new' (FORMAT parquet, KV_METADATA {{voirkit: '{facts}'}})"
        )
        os.replace(f"{old}.new", old)
        first, second = _rolled_up(run)
    collected = COLUMNS.index("gc")
    assert first.steps.train.own_ns.tolist() == collecting.own_ns.tolist()
    assert second.steps.train.own_ns[:, collected].tolist() == [0] * 4
    assert second.steps.train.own_ns[:, 0].tolist() == collecting.own_ns[:, 0].tolist()
