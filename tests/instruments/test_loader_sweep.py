"""``--loader-sweep``: settings are measured by running the script as it is, and the best is recommended beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Place

from voirkit_instruments.loader_sweep.record import (
    Measurement,
    candidate_workers,
    measure,
    parse_setting,
    replace_arguments,
    sweep,
)

pytestmark = pytest.mark.long

PREDICTED = [{"workers": n, "rate": min(100.0 * max(n, 0.8), 400.0)} for n in range(9)]


TRAINS = """
    import torch
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    """


def measured(
    rates: Callable[[int, int | None], float | None], now: int = 2
) -> tuple[list[str], list[dict[str, int]]]:
    """A sweep over a script whose rates are known; the lines that it tells, and the settings that it ran."""
    asked: list[dict[str, int]] = []

    def run(**setting: int) -> Measurement:
        asked.append(setting)
        if not setting:
            return Measurement(
                200.0,
                0.5,
                {"predicted": PREDICTED, "workers": now, "best_workers": 4, "dataset": "Images"},
            )
        rate = rates(setting["num_workers"], setting.get("prefetch_factor"))
        return Measurement(why_not="the script raised") if rate is None else Measurement(rate, 0.25)

    return list(sweep(run, 4)), asked


def test_the_fewest_workers_that_are_as_good_as_the_best_are_recommended() -> None:
    told, asked = measured(lambda n, prefetch: min(90.0 * max(n, 0.8), 360.0) + n)
    assert [one["num_workers"] for one in asked[1:] if "prefetch_factor" not in one] == [
        0,
        1,
        2,
        4,
        6,
        8,
    ]
    assert [one for one in asked if "prefetch_factor" in one] == [
        {"num_workers": 4, "prefetch_factor": n} for n in (1, 4, 8)
    ]
    assert "Recommended: num_workers=4: 364 items/s instead of 182 (+100%)." in told
    assert told[-1].startswith("Predicted were 4 workers; the rates measured were ")
    assert any(line.endswith("(now)") and line.split()[:2] == ["2", "own"] for line in told)


def test_more_prefetching_is_recommended_where_it_gains() -> None:
    told, _ = measured(lambda n, prefetch: 50.0 * n + (200.0 if prefetch == 8 else 0.0))
    assert (
        "Recommended: num_workers=8, prefetch_factor=8: 600 items/s instead of 100 (+500%)." in told
    )


def test_a_setting_that_is_best_already_is_left() -> None:
    told, _ = measured(lambda n, prefetch: 100.0)
    assert "Recommended: num_workers=0: 100 items/s instead of 100 (+0%)." in told
    told, _ = measured(lambda n, prefetch: 200.0 if n >= 2 else 100.0)
    assert "Recommended: num_workers=2, as it is: no other setting gains more than 3%." in told


def test_a_setting_that_fails_is_told_and_the_rest_goes_on() -> None:
    told, _ = measured(lambda n, prefetch: None if n == 8 else 100.0 + n)
    assert next(line for line in told if line.split()[0] == "8").endswith("the script raised")
    assert any(line.startswith("Recommended") for line in told)


def test_a_script_without_a_loader_is_told() -> None:
    def run(**setting: int) -> Measurement:
        return Measurement(200.0, 0.5)

    assert list(sweep(run, 4)) == ["The script could not be measured: no loader was seen in it."]


def test_high_rates_are_written_out() -> None:
    told, _ = measured(lambda n, prefetch: 12345.6 if n == 4 and prefetch is None else 100.0)
    assert "Recommended: num_workers=4: 12,346 items/s instead of 100 (+12246%)." in told


def test_a_script_that_trains_without_a_loader_is_told_that_it_has_none(place: Place) -> None:
    place.write({"train.py": TRAINS})
    said = measure(str(place.folder), [str(place.folder / "train.py")], 4)
    assert (said.rate, said.why_not) == (None, "no loader was seen in it")


def test_the_numbers_that_are_measured_are_few() -> None:
    assert candidate_workers(2, 1, 3) == [0, 1, 2, 3, 4]
    assert candidate_workers(64, 8, 12) == [0, 1, 2, 8, 12, 32, 64, 96, 128]


def made(setting: dict[str, int], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What a loader is made with."""
    found: dict[str, Any] = {}

    def init(
        dataset: Any,
        batch_size: int = 1,
        num_workers: int = 0,
        timeout: float = 0,
        *,
        prefetch_factor: Any = None,
        **rest: Any,
    ) -> None:
        found.update(
            dataset=dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            timeout=timeout,
            prefetch=prefetch_factor,
            **rest,
        )

    replace_arguments(setting, {"loaders": 0})(init, None, args, kwargs)
    return found


def test_a_loaders_arguments_are_replaced_and_the_others_kept() -> None:
    assert made({"num_workers": 3, "prefetch_factor": 4}, "data", 8, 1)["num_workers"] == 3
    assert made({"num_workers": 3, "prefetch_factor": 4}, "data", 8, 1)["prefetch"] == 4
    assert (
        made({"num_workers": 3}, "data", batch_size=8, num_workers=1, prefetch_factor=5)["prefetch"]
        == 5
    )
    none = made({"num_workers": 0}, "data", 8, 2, 30.0, prefetch_factor=5)
    assert (none["num_workers"], none["prefetch"], none["timeout"], none["batch_size"]) == (
        0,
        None,
        0,
        8,
    )
    assert made({"steps": 9}, "data", 8, 2)["num_workers"] == 2


@pytest.mark.parametrize("text", ["workers=2", "num_workers", "num_workers=-1", "", "steps=1.5"])
def test_a_setting_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is none of"):
        parse_setting(text)


SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Naps(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i):
        time.sleep(0.005)
        return torch.full((4,), i / 96), i % 3

def main():
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for x, y in DataLoader(Naps(), 4, num_workers=1, prefetch_factor=2):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("trained")

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
def test_a_child_runs_the_unedited_script_with_another_setting_for_some_steps(place: Place) -> None:
    ended = place.write(main=SCRIPT).voirkit(
        "--loader-setting", "num_workers=0,steps=12", "main.py"
    )
    assert ended.code == 0
    assert "trained" not in ended.out
    assert ended.summary["loader_setting"] == {"num_workers": 0, "steps": 12, "loaders": 1}
    assert ended.summary["steps"]["loader"]["workers"] == 0
    assert 10 <= ended.summary["steps"]["n"] <= 12


@pytest.mark.torch
@pytest.mark.slow
def test_the_sweep_recommends_more_workers_for_a_loader_that_waits(place: Place) -> None:
    ended = place.write(main=SCRIPT).python(
        "-m", "voirkit", "--loader-sweep=16", "main.py", timeout=280
    )
    assert ended.code == 0, ended.err
    assert "Recommended: num_workers=" in ended.out
    assert "num_workers=1," not in ended.out
    assert not (place.folder / "voirkit-runs").exists(), "the script itself was not run here"
