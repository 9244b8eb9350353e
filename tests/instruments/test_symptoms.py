"""What is recorded of common causes while torch runs, and what is told of them from the records of a training."""

from __future__ import annotations

import copy
import gc
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from phases import Kept, Watched
from planted import MS, Loop, Points, Seen, clock, seen
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from voirkit.analysis.phases import Records
from voirkit.analysis.symptoms import rises
from voirkit_instruments import resources
from voirkit_instruments.steps.events import LOSS, StepEvents
from voirkit_instruments.symptoms.analyse import drawn_at_start_s
from voirkit_instruments.symptoms.census import Census, growth
from voirkit_instruments.symptoms.record import (
    SAMPLE_PERIOD,
    LearningRate,
    Symptoms,
    count_objects,
    private_bytes,
)

Marks = Callable[[str], list[dict[str, Any]]]


@contextmanager
def recorded() -> Iterator[Marks]:
    """torch under the steps instrument and the symptoms beside it."""
    watch = Watched(kept := Kept())
    symptoms = Symptoms(watch.overseer, kept)
    symptoms.start(torch)
    events = watch.overseer.shared(StepEvents)
    events.subscribe(
        LOSS, before=lambda _: setattr(events.here, "stepped", 0)
    )  # as those do who keep the losses
    watch.steps.start(torch)
    try:
        yield lambda name: kept.seen(f"symptom.{name}")
    finally:
        watch.steps.end()
        symptoms.end()
    assert watch.overseer.warned == []


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    )


@pytest.fixture
def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(torch.ones(4, 4)), torch.zeros(4, dtype=torch.long))


def test_gradients_that_are_cleared_before_a_step_are_counted(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    with recorded() as marks:
        for batch in range(8):
            optimizer.zero_grad()
            loss_of(model).backward()
            if batch % 4 == 3:
                optimizer.step()
    (mark,) = marks("cleared")
    assert (mark["value"], mark["zero_grads"]) == (6, 8)
    assert "test_symptoms.py:" in mark["where"]


def test_gradients_that_a_model_clears_are_counted(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    with recorded() as marks:
        for batch in range(8):
            model.zero_grad()
            loss_of(model).backward()
            if batch % 4 == 3:
                optimizer.step()
    (mark,) = marks("cleared")
    assert (mark["value"], mark["zero_grads"]) == (6, 8)


@pytest.mark.parametrize("model_first", [True, False])
def test_what_optimizer_and_model_clear_is_counted_once(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, model_first: bool
) -> None:
    first, second = (model, optimizer) if model_first else (optimizer, model)
    with recorded() as marks:
        for batch in range(8):
            first.zero_grad(set_to_none=False)
            second.zero_grad(set_to_none=False)
            loss_of(model).backward()
            if batch % 4 == 3:
                optimizer.step()
    (mark,) = marks("cleared")
    assert (mark["value"], mark["zero_grads"]) == (6, 8)


def test_gradients_that_a_model_clears_after_a_step_are_not(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    with recorded() as marks:
        for _ in range(8):
            loss_of(model).backward()
            optimizer.step()
            model.zero_grad()
    assert marks("cleared") == []


def test_gradients_that_are_cleared_after_a_step_are_not(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    with recorded() as marks:
        for batch in range(8):
            loss_of(model).backward()
            if batch % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert marks("cleared") == []


def test_a_census_tells_which_tensors_have_become_more_and_where() -> None:
    kept = [(step, torch.ones(3, 300 + step % 2)) for step in range(40)]
    before = Census(torch)
    kept += [(step, torch.ones(3, 300 + step % 2)) for step in range(60)]
    more = growth(before, Census(torch, before))
    assert more["tensors"]["more"] == 60
    assert more["tensors"]["of"].startswith("about float32[3, 30")
    assert more["tensors"]["bytes"] == pytest.approx(60 * 3 * 300.5 * 4)
    assert more["container"] == {"type": "list", "length": 100, "more": 60, "holds": "Tensor"}


def test_a_census_tells_which_list_of_other_things_has_grown_and_calls_nothing_of_them() -> None:
    class Strict:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

    kept: list[Any] = [Strict() for _ in range(50)]
    before = Census(torch)
    kept += [Strict() for _ in range(5000)]
    more = growth(before, Census(torch, before))
    assert more["container"] == {"type": "list", "length": 5050, "more": 5000, "holds": "Strict"}


def test_tensors_with_graphs_are_told_as_such() -> None:
    weight = torch.ones(7, requires_grad=True)
    before = Census(torch)
    kept = [(weight * 2).sum() for _ in range(500)]
    assert growth(before, Census(torch, before))["tensors"] == {
        "of": "float32[] with their graphs",
        "more": len(kept),
        "bytes": 4 * len(kept),
    }


def test_a_census_makes_so_few_objects_that_no_garbage_is_looked_for() -> None:
    gc.collect()
    before = gc.get_count()[0]
    census = Census(torch)
    assert gc.get_count()[0] - before < 400
    assert census.lengths


def test_where_nothing_is_kept_no_tensor_has_become_more() -> None:
    kept = [torch.ones(11, 11) for _ in range(40)]
    before = Census(torch)
    kept[0] = torch.ones(11, 11)
    assert "tensors" not in growth(before, Census(torch, before))


def test_weights_that_are_loaded_onto_themselves_are_marked(model: torch.nn.Module) -> None:
    with recorded() as marks:
        model.load_state_dict(model.state_dict())
    (mark,) = marks("own_weights")
    assert mark["value"] == mark["tensors"] == 9
    assert "test_symptoms.py:" in mark["where"]


def test_a_copy_of_the_weights_is_not(model: torch.nn.Module) -> None:
    with recorded() as marks:
        model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert marks("own_weights") == []


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def test_weights_that_are_kept_by_reference_are_marked_where_they_are_saved_or_loaded(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    other = copy.deepcopy(model)
    with recorded() as marks:
        update(model, optimizer)
        best = {"score": 1.0, "model": model.state_dict()}
        update(model, optimizer)
        torch.save(best, io.BytesIO())
        other.load_state_dict(best["model"])
    saved, loaded = marks("kept_weights")
    assert (saved["how"], loaded["how"]) == (
        "torch.save() was given",
        "load_state_dict() was given",
    )
    assert "test_symptoms.py:" in saved["where"]


def test_weights_that_are_copied_or_saved_at_once_or_follow_the_training_from_its_beginning_are_not(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    other, follows = copy.deepcopy(model), model.state_dict()
    with recorded() as marks:
        followed = {"model": model.state_dict()}
        for _ in range(2):
            update(model, optimizer)
            weights = model.state_dict()
            torch.save([weights, followed, follows], io.BytesIO())
            other.load_state_dict(weights)
        kept = copy.deepcopy(weights), {name: weight.clone() for name, weight in weights.items()}
        update(model, optimizer)
        torch.save(kept, io.BytesIO())
    assert marks("kept_weights") == []


def test_the_epoch_of_a_distributed_sampler_is_marked_for_each_iterator() -> None:
    data = TensorDataset(torch.ones(8, 4))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    loader = DataLoader(data, 2, sampler=sampler)
    with recorded() as marks:
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            list(loader)
    assert [mark["value"] for mark in marks("sampler_epoch")] == [0, 1]


def test_the_epoch_is_marked_of_one_that_is_a_part_of_another_sampler() -> None:
    class Sampler(DistributedSampler):
        """A class of the script's own."""

    data = TensorDataset(torch.ones(8, 4))
    sampler = Sampler(data, num_replicas=2, rank=0)
    loader = DataLoader(data, sampler=BatchSampler(sampler, 2, False), batch_size=None)
    with recorded() as marks:
        for _ in range(2):
            list(loader)
    assert [mark["value"] for mark in marks("sampler_epoch")] == [0, 0]


def test_memory_is_sampled_at_a_zero_grad_in_so_many(optimizer: torch.optim.Optimizer) -> None:
    with recorded() as marks:
        for _ in range(2 * SAMPLE_PERIOD):
            optimizer.zero_grad()
    samples = marks("memory")
    assert len(samples) == 2
    assert all(sample["bytes"] > 1e6 for sample in samples)


def test_a_learning_rate_may_be_a_tensor() -> None:
    rate = LearningRate()
    for updates, value in ((1, 0.1), (8, torch.tensor(1e-5)), (15, torch.tensor(1e-6))):
        rate.add(updates, [{"lr": value}])
    assert (rate.highest, rate.low_since) == (0.1, 8)


def falls(updates: int, after: int) -> None:
    """An optimizer of a function whose learning rate falls to nothing after so many updates."""
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], 0.1)
    for update in range(updates):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.05 if update < after else 1e-9


def test_a_learning_rate_is_told_of_an_optimizer_that_is_gone_from_its_first_value_on() -> None:
    with recorded() as marks:
        falls(200, after=20)
    (mark,) = marks("learning_rate")
    assert (mark["highest"], mark["last"]) == (0.1, 1e-9)
    assert mark["updates"] == pytest.approx(20, abs=SAMPLE_PERIOD)
    assert mark["value"] == pytest.approx(200, abs=SAMPLE_PERIOD)


def test_how_long_it_is_low_is_counted_while_the_optimizer_is_used() -> None:
    with recorded() as marks:
        for _ in range(3):  # as in folds, each with its own schedule
            falls(150, after=120)
    for mark in marks("learning_rate"):
        assert mark["updates"] == pytest.approx(120, abs=2 * SAMPLE_PERIOD)
        assert mark["value"] == pytest.approx(150, abs=2 * SAMPLE_PERIOD)


def test_what_a_launcher_has_held_is_not_taken_for_the_memory_of_the_process(
    optimizer: torch.optim.Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "max_rss", lambda whose: 10**15)
    with recorded() as marks:
        for _ in range(SAMPLE_PERIOD):
            optimizer.zero_grad()
    (sample,) = marks("memory")
    assert 1e6 < sample["bytes"] < 1e12


class Described(torch.utils.data.Dataset):
    """Samples that are described by objects of Python."""

    def __init__(self) -> None:
        self.descriptions = [{"name": f"{number}", "box": [1.0, 2.0]} for number in range(1000)]

    def __len__(self) -> int:
        return len(self.descriptions)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.descriptions[index]["box"])


def test_objects_of_a_dataset_are_estimated_by_a_few_elements() -> None:
    assert count_objects(Described()) == 1 + 1000 * (1 + 1 + 3), (
        "a dictionary, a name, and a list of two numbers each"
    )
    assert count_objects(TensorDataset(torch.ones(1000))) < 10


@pytest.mark.skipif(private_bytes(os.getpid()) is None, reason="the system does not tell")
def test_the_memory_of_workers_is_looked_at_when_they_end() -> None:
    loader = DataLoader(Described(), 100, num_workers=1, multiprocessing_context="fork")
    with recorded() as marks:
        list(loader)
    (mark,) = marks("worker_memory")
    assert mark["value"] > 0
    assert (mark["workers"], mark["dataset"]) == (1, "Described")


class Stream(torch.utils.data.IterableDataset):
    """A few samples for each worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.skipif(private_bytes(os.getpid()) is None, reason="the system does not tell")
def test_so_is_that_of_workers_that_end_before_their_iterator() -> None:
    loader = DataLoader(Stream(), 4, num_workers=2, multiprocessing_context="fork")
    with recorded() as marks:
        list(loader)
    first, second = marks("worker_memory")
    assert first["value"] > 0
    assert second["value"] > 0


def test_what_fails_is_said_once_and_costs_the_program_nothing(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watched(kept := Kept())
    symptoms = Symptoms(watch.overseer, kept)
    symptoms.start(torch)
    monkeypatch.setattr("voirkit_instruments.symptoms.record.tensors_of", lambda _: 1 / 0)
    try:
        model.load_state_dict(model.state_dict())
        model.load_state_dict(model.state_dict())
    finally:
        symptoms.end()
    assert watch.overseer.warned == [
        "symptoms: nothing more is looked at (ZeroDivisionError: division by zero)."
    ]


# what is told from the records of a training


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], dict[str, Any]]:
    """The symptoms of a script."""

    def tell(script: Callable[[], object]) -> dict[str, Any]:
        result: Seen = seen(script, monkeypatch)
        found: dict[str, Any] = result.rank.facts.get("symptoms", {})
        return found

    return tell


Told = Callable[[Callable[[], object]], dict[str, Any]]


def epoch(loop: Loop) -> None:
    for batch in loop.loader:
        loop.train_on(batch)


def evaluate(loop: Loop, model: torch.nn.Module) -> None:
    model.eval()
    for x, _ in loop.held_out:
        model(x)


def test_evaluation_with_gradients_on_builds_graphs(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        epoch(loop)
        evaluate(loop, loop.model)

    assert told(script)["evaluation_graphs"] == {"batches": 2, "batches_of": 2}


def test_evaluation_of_a_frozen_copy_builds_none(told: Told) -> None:
    loop = Loop()
    average = copy.deepcopy(loop.model).requires_grad_(False)

    def script() -> None:
        epoch(loop)
        evaluate(loop, average)

    assert "evaluation_graphs" not in told(script)


def test_losses_of_a_loop_that_are_walked_through_after_it_are_no_evaluation(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        epoch(loop)
        loop.optimizer.zero_grad()
        torch.stack([loop.model(x).mean() for x, _ in loop.held_out]).sum().backward()
        loop.optimizer.step()

    assert not told(script).keys() & {"evaluation_graphs", "evaluated_in_training"}


@pytest.fixture
def dropping() -> Loop:
    """A training whose model has dropout."""
    loop = Loop()
    loop.model.linear.append(torch.nn.Dropout(0.5))
    return loop


def test_a_model_with_dropout_that_is_evaluated_in_training_mode_is_told(
    told: Told, dropping: Loop
) -> None:
    def script() -> None:
        epoch(dropping)
        with torch.no_grad():
            for x, _ in dropping.held_out:
                dropping.model(x)

    assert told(script)["evaluated_in_training"] == {"batches": 2, "batches_of": 2}


def test_without_gradients_switched_off_that_builds_graphs_too(told: Told, dropping: Loop) -> None:
    def script() -> None:
        epoch(dropping)
        for x, _ in dropping.held_out:
            dropping.model(x)

    figures = told(script)
    assert (
        figures["evaluated_in_training"]
        == figures["evaluation_graphs"]
        == {"batches": 2, "batches_of": 2}
    )


def test_a_model_without_such_layers_may_be_evaluated_in_training_mode(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        epoch(loop)
        with torch.no_grad():
            for x, _ in loop.held_out:
                loop.model(x)

    assert "evaluated_in_training" not in told(script)


def test_so_may_one_that_is_evaluated_in_both_modes(told: Told, dropping: Loop) -> None:
    def script() -> None:
        epoch(dropping)
        for training in (True, False):
            dropping.model.train(training)
            with torch.no_grad():
                for x, _ in dropping.held_out:
                    dropping.model(x)

    assert "evaluated_in_training" not in told(script)


def test_so_may_one_that_looks_at_the_batches_of_its_training_without_gradients(
    told: Told, dropping: Loop
) -> None:
    def script() -> None:
        with torch.no_grad():
            for x, _ in dropping.loader:
                dropping.model(x)
        epoch(dropping)

    assert "evaluated_in_training" not in told(script)


def test_so_may_one_that_is_called_several_times_on_a_batch(told: Told, dropping: Loop) -> None:
    def script() -> None:
        epoch(dropping)
        with torch.no_grad():
            for x, _ in dropping.held_out:
                torch.stack([dropping.model(x) for _ in range(3)]).std(0)

    assert "evaluated_in_training" not in told(script)


def test_features_that_a_head_is_trained_on_after_their_loop_are_no_evaluation(
    told: Told, dropping: Loop
) -> None:
    head = torch.nn.Linear(3, 1)

    def script() -> None:
        epoch(dropping)
        features = torch.cat([dropping.model(x) for x, _ in dropping.held_out])
        head(features).mean().backward()
        dropping.optimizer.step()

    assert not told(script).keys() & {"evaluation_graphs", "evaluated_in_training"}


def test_training_that_stays_in_evaluation_mode_is_told_with_its_first_step(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        epoch(loop)
        evaluate(loop, loop.model)
        epoch(loop)

    assert told(script)["evaluation_mode"] == {"first_step": 5, "steps_in_eval": 5, "steps": 10}


def test_training_that_stays_in_it_to_the_end_of_an_epoch_is_told(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        for _ in range(2):
            loop.model.train()
            for number, batch in enumerate(loop.loader):
                loop.train_on(batch)
                if number == 2:
                    evaluate(loop, loop.model)

    assert told(script)["evaluation_mode"] == {"first_step": 3, "steps_in_eval": 4, "steps": 10}


def test_training_that_changes_its_mode_without_an_evaluation_does_so_on_purpose(
    told: Told,
) -> None:
    loop = Loop()

    def script() -> None:
        evaluate(loop, loop.model)
        for number, batch in enumerate(loop.loader):
            loop.model.train(number % 2 == 0)
            loop.train_on(batch)

    assert "evaluation_mode" not in told(script)


def test_training_that_goes_back_is_not(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        for _ in range(2):
            epoch(loop)
            evaluate(loop, loop.model)
            loop.model.train()

    assert "evaluation_mode" not in told(script)


def test_iterators_that_give_one_batch_each_are_counted(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        for _ in range(6):
            loop.train_on(next(iter(loop.loader)))

    iterators = told(script)["iterators"]
    assert (iterators["single"], iterators["iterators"]) == (6, 6)


def test_iterators_of_an_evaluation_within_a_step_are_none_of_trainings(told: Told) -> None:
    loop = Loop()
    loop.held_out = DataLoader(Points(4), batch_size=4)

    def script() -> None:
        for batch in loop.loader:
            loop.evaluate()
            loop.train_on(batch)

    assert not told(script).keys() & {"iterators", "first_batches_s"}


class SlowToBegin(torch.utils.data.Sampler[int]):
    """Takes 100 ms to draw its indices."""

    def __iter__(self) -> Iterator[int]:
        clock.spend(100)
        yield from range(20)


def test_first_batches_that_are_late_are_told_with_what_they_take_longer(told: Told) -> None:
    loop = Loop(sampler=SlowToBegin())

    def script() -> None:
        for _ in range(3):
            epoch(loop)

    waits = told(script)["first_batches_s"]
    assert waits["loops"] == 3
    assert waits["first"] == pytest.approx(0.104, abs=1e-3)
    assert waits["later"] == pytest.approx(0.004, abs=1e-3)
    assert waits["again"] == pytest.approx(0.3, abs=1e-3)


def test_first_indices_are_drawn_from_the_making_of_an_iterator_but_for_the_start_of_its_workers() -> (
    None
):
    rows = [
        ("iter", 0, 900, 0),
        ("start_workers", 50, 150, 3),
        ("fetch", 900, 50, 0),
        ("iter", 2000, 300, 1),
        ("iter", 3000, 500, 2),
    ]
    name, start_ns, duration_ns, args = zip(*rows, strict=True)
    names = [("dataloader", "iter"), ("dataloader", "start_workers"), ("dataloader", "fetch")]
    columns = [[names.index(("dataloader", one)) for one in name], args, [0] * 5, [0] * 5, [1] * 5]
    phases = Records(
        *(np.array(column) * MS for column in (start_ns, duration_ns)), *map(np.array, columns), names,
        [{"episode": 0}, {"episode": 1}, {"episode": 2}, {"loader": 0}], [(0, "here", 1)],
    )  # fmt: skip
    drawn_ns = np.array([800 * MS, 850 * MS, 2250 * MS, 3100 * MS, np.iinfo(np.int64).max])
    assert drawn_at_start_s(phases, drawn_ns, {0, 1}) == pytest.approx(0.65 + 0.25)
    assert drawn_at_start_s(phases, drawn_ns[-1:], {0, 1}) == 0, "no indices are known"


def test_steps_that_get_slower_are_told_with_the_phase(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        for turn in range(12):
            for batch in loop.loader:
                clock.spend(5 * turn)
                loop.train_on(batch)

    slower = told(script)["slower"]
    assert slower["phase"] == "other"
    assert slower["fifths_s"] == sorted(slower["fifths_s"])
    assert slower["fifths_s"][-1] > 2 * slower["fifths_s"][0]


@pytest.mark.parametrize(
    ("values", "is_rise"),
    [
        ([1, 2, 3, 4, 5], True),
        ([13.7, 33.1, 56.0, 108.2, 101.7], True),
        ([1, 2, 3, 4, 3], False),
        ([1, 2, 1.9, 4, 3.9], False),
    ],
    ids=["each is longer", "one is a little shorter", "one is much shorter", "two are shorter"],
)
def test_one_fifth_may_be_a_little_shorter_than_the_one_before(
    values: list[float], is_rise: bool
) -> None:
    assert rises(values) == is_rise


def test_steps_that_take_as_long_at_the_end_are_not(told: Told) -> None:
    loop = Loop()

    def script() -> None:
        for _ in range(12):
            epoch(loop)

    assert "slower" not in told(script)
