"""The rollup keeps the steps of a device."""

import numpy as np
import pytest
from conftest import Place

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.run_steps import _rolled_up, roll_up
from voirkit.analysis.steps import PARTS, PHASES, DeviceTable, Steps, Table
from voirkit.runs.opened import Run

COLUMNS = (*PHASES[:-1], *PARTS)


def table(n, time):
    own = np.full((n, len(COLUMNS)), time // len(COLUMNS))
    return Table(np.arange(n) * time, own.sum(axis=1), np.full(n, 4), own)


@pytest.mark.parametrize("launching", [None, 50])
def test_what_is_rolled_up_is_read_again(place: Place, launching):
    place.write(main="print()")
    place.voirkit("--quiet", "main.py")
    device = None if launching is None else DeviceTable(table(6, 2000), np.full(6, launching))
    rank = Rank(0, "here", Steps(table(6, 1000), table(3, 500), True, device, saving_between_ns=70), {"workers": 2})
    with Run(str(place.folder / "run")) as run:
        roll_up(run, rank)
        (read,) = _rolled_up(run)
    assert figures([read]) == figures([rank])
    assert (read.steps.device is None) == (launching is None)
    assert read.facts == {"workers": 2}
