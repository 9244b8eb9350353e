"""The detectors of data and ranks find their bug in what was recorded, with its line, and not in what looks like it and is healthy."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit_instruments.checks.analyse import DETECTORS
from voirkit_instruments.checks.analyse_facts import Fact, Facts

RANDOM, IN_ORDER, DISTRIBUTED = (
    f"torch.utils.data.{name}"
    for name in (
        "sampler.RandomSampler",
        "sampler.SequentialSampler",
        "distributed.DistributedSampler",
    )
)
OWN = "__main__.Mine"


class Trained:
    """What training over loaders recorded, a microsecond a fact."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.now = 0

    def add(
        self, name: str, value: int = 0, rank: int = 0, began: int | None = None, **args: Any
    ) -> Trained:
        """One more fact."""
        self.now += 1000
        self.facts.append(
            Fact(
                name,
                self.now + 500,
                value,
                args,
                rank,
                7 + rank,
                7,
                self.now if began is None else began,
            )
        )
        return self

    def epoch(
        self,
        order: int = 1,
        rank: int = 0,
        steps: int = 4,
        optimizer: int = 0,
        loader: int = 0,
        **more: Any,
    ) -> Trained:
        """A pass over a loader of 64 samples, with so many steps in it."""
        began = self.now + 1000
        for _ in range(steps):
            self.add("step", 0, rank, where="main.py:12", optimizer=optimizer)
        number = sum(fact.name == "epoch" and fact.rank == rank for fact in self.facts)
        known = {
            "where": "main.py:10", "made": "main.py:5", "iterator": number, "turn": 0, "shuffle": None, "map": True, "dataset": "Points",
            "sampler": RANDOM, "replacement": False, "replicas": -1, "workers": 2, "batch_size": 8,
            "size": 64, "ordered": True, "said": -1, "batches": 8, "exhausted": True, "n": 64, "distinct": 64,
            "order": order, "sequential": False, "set": 1, "at_seams": 0, "missed": 0, "missed_first": -1, "content": order,
        }  # fmt: skip
        return self.add("epoch", loader, rank, began, **{**known, **more})

    def drew(
        self, worker: int, before: int, after: int, iterator: int = 0, which: str = "numpy.random"
    ) -> Trained:
        """A worker's dataset has drawn from a generator."""
        return self.add(
            "drawn",
            iterator=iterator,
            turn=0,
            worker=worker,
            which=which,
            before=before,
            after=after,
            batch=1,
        )

    def weights(self, n: int, *sizes: float, shapes: tuple[int, ...] = ()) -> Trained:
        """How large a parameter was on each rank after a step."""
        for rank, size in enumerate(sizes):
            self.add(
                "weights",
                n,
                rank,
                where="main.py:12",
                optimizer=0,
                shapes=shapes[rank] if shapes else 1,
                parameters=2,
                sizes=f"1.0,{size}",
            )
        return self

    def says(self, name: str) -> dict[str, Any]:
        """What a detector says of it."""
        (detector,) = [detector for detector in DETECTORS if detector.name == name]
        return detector.examine(Facts(self.facts))

    def found(self, name: str) -> object:
        """Whether it finds something."""
        return self.says(name)["found"]


def told(said: dict[str, Any], where: str) -> None:
    assert (said["found"], said["where"]) == (True, where), said
    assert said["because"]
    assert said["next"]
    assert said["evidence"]


# augmentation


def test_workers_that_draw_the_same_numbers() -> None:
    told(Trained().drew(0, 5, 6).drew(1, 5, 6).epoch().says("same-augmentation"), "main.py:10")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("told apart", (5, 6), (7, 8)),
        ("seeded by the sample", (5, 6), (5, 9)),
        ("alike in the end alone", (5, 6), (7, 6)),
    ],
)
def test_workers_that_do_not(name: str, first: tuple[int, int], second: tuple[int, int]) -> None:
    assert Trained().drew(0, *first).drew(1, *second).epoch().found("same-augmentation") is False


def test_workers_that_draw_nothing() -> None:
    assert Trained().epoch().found("same-augmentation") is False


def test_a_worker_that_draws_the_same_in_each_epoch() -> None:
    told(
        Trained().drew(0, 5, 6).epoch().drew(0, 5, 6, 1).epoch().says("same-augmentation"),
        "main.py:10",
    )
    assert (
        Trained().drew(0, 5, 6).epoch().drew(0, 6, 7, 1).epoch().found("same-augmentation") is False
    )


def test_a_second_training_from_the_same_seed_draws_the_same_on_purpose() -> None:
    assert (
        Trained()
        .drew(0, 5, 6)
        .epoch()
        .drew(0, 5, 6, 1)
        .epoch(optimizer=1)
        .found("same-augmentation")
        is None
    )


def test_an_evaluation_that_draws_the_same_each_time() -> None:
    assert (
        Trained()
        .epoch()
        .drew(0, 5, 6, 1)
        .drew(1, 5, 6, 1)
        .epoch(steps=0, loader=1)
        .found("same-augmentation")
        is False
    )


# samples


def test_samples_that_a_sampler_of_ones_own_never_gives() -> None:
    missing = {"sampler": OWN, "missed": 3, "distinct": 61, "n": 61}
    told(Trained().epoch(**missing).epoch(2, **missing).says("samples-missed"), "main.py:5")


def test_a_loader_that_says_more_than_it_gives() -> None:
    told(
        Trained()
        .epoch(sampler=OWN, missed=32, distinct=32, n=32, batches=4, said=8)
        .says("samples-missed"),
        "main.py:5",
    )


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        ([{"missed": 4}, {"missed": 4}], False),  # torch's own sampler: drop_last, a subset
        (
            [{"sampler": OWN, "missed": 3, "set": 1}, {"sampler": OWN, "missed": 3, "set": 2}],
            None,
        ),  # others each time
        ([{"sampler": OWN, "missed": 3}], None),  # once
        ([{"sampler": OWN, "missed": 32, "distinct": 32}] * 2, None),  # a part that was chosen
        (
            [
                {"sampler": OWN, "missed": 3},
                {"sampler": OWN, "missed": 3},
                {"steps": 0, "loader": 1, "set": 9},
            ],
            None,
        ),  # left to a validation
        ([{"sampler": OWN, "missed": None, "size": -1}] * 2, None),
        ([{"sampler": OWN, "exhausted": False}] * 2, None),
        ([{}], False),
    ],
)
def test_samples_that_are_left_out_on_purpose(
    epochs: list[dict[str, Any]], says: bool | None
) -> None:
    trained = Trained()
    for epoch in epochs:
        trained.epoch(**epoch)
    assert trained.found("samples-missed") is says


def stream(*held: tuple[int, int]) -> Trained:
    trained = Trained()
    for worker, batches in enumerate(held):
        for digest in batches:
            trained.add("held", digest, iterator=0, turn=0, worker=worker)
    return trained.epoch(map=False, n=None, workers=len(held))


def test_workers_that_read_the_same_stream() -> None:
    told(stream((1, 2), (1, 2)).says("samples-twice"), "main.py:5")


def test_workers_that_read_parts_of_a_stream() -> None:
    assert stream((1, 2), (3, 4)).found("samples-twice") is False


def test_a_stream_whose_samples_are_all_alike_or_can_not_be_compared() -> None:
    assert stream((1, 1), (1, 1)).found("samples-twice") is None
    assert Trained().epoch(map=False, n=None).found("samples-twice") is None


def test_batches_that_overlap() -> None:
    told(Trained().epoch(sampler=OWN, n=71, at_seams=7).says("samples-twice"), "main.py:5")


@pytest.mark.parametrize(
    ("epoch", "says"),
    [
        ({"sampler": OWN, "n": 71, "at_seams": 1}, None),
        ({"replacement": True, "n": 64, "distinct": 40}, False),
        ({"sampler": DISTRIBUTED, "n": 65}, False),
        ({}, False),
    ],
)
def test_samples_that_are_seen_again_on_purpose(epoch: dict[str, Any], says: bool | None) -> None:
    assert Trained().epoch(**epoch).found("samples-twice") is says


# order

ORDERED = {
    "sampler": IN_ORDER,
    "sequential": True,
    "labels": 64,
    "classes": 4,
    "runs": 4,
    "random_runs": 49.0,
}


def test_classes_one_after_another() -> None:
    told(Trained().epoch(**ORDERED).epoch(**ORDERED).says("not-shuffled"), "main.py:5")


def test_shuffling_is_switched_off_for_classes_without_order() -> None:
    mixed = {**ORDERED, "runs": 50}
    told(
        Trained().epoch(**mixed, shuffle=False).epoch(**mixed, shuffle=False).says("not-shuffled"),
        "main.py:5",
    )


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        ([{**ORDERED, "runs": 50}] * 2, None),  # may have been shuffled beforehand
        ([{**ORDERED, "runs": 50, "shuffle": False}], None),  # one epoch
        ([{**ORDERED, "runs": 20, "shuffle": False}] * 2, None),  # neighbours are alike: a series
        ([{**ORDERED, "ordered": False}] * 2, None),  # of a shuffled Subset
        ([{"sampler": IN_ORDER, "sequential": True}] * 2, None),  # no classes
        ([{**ORDERED}, {"order": 2}], False),  # a curriculum
        ([{**ORDERED, "steps": 0, "loader": 1}, {}], False),  # the validation
        ([{**ORDERED, "batches": 1}] * 2, None),
        ([{}, {"order": 2}], False),
    ],
)
def test_data_in_order_on_purpose(epochs: list[dict[str, Any]], says: bool | None) -> None:
    trained = Trained()
    for epoch in epochs:
        trained.epoch(**epoch)
    assert trained.found("not-shuffled") is says


def test_data_that_is_shuffled_into_the_same_order() -> None:
    said = Trained().epoch(sampler=DISTRIBUTED).epoch(sampler=DISTRIBUTED).says("same-order")
    told(said, "main.py:10")
    assert "set_epoch" in said["because"]


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        ([{}, {"order": 2}], False),
        ([{}], None),
        ([{}, {"optimizer": 1}], None),  # two trainings from the same seed
        ([{}, {"loader": 1}], None),
        ([{"sampler": OWN}] * 2, None),
        ([{"sampler": IN_ORDER, "sequential": True}] * 2, None),
    ],
)
def test_data_in_the_same_order_on_purpose(epochs: list[dict[str, Any]], says: bool | None) -> None:
    trained = Trained()
    for epoch in epochs:
        trained.epoch(**epoch)
    assert trained.found("same-order") is says


# ranks


def test_ranks_that_train_on_the_same_samples() -> None:
    told(
        Trained()
        .epoch()
        .add("parallel")
        .epoch(rank=1)
        .add("parallel", rank=1)
        .says("ranks-same-data"),
        "main.py:5",
    )


def test_ranks_that_do_not_or_that_may_want_to() -> None:
    assert (
        Trained()
        .epoch()
        .add("parallel")
        .epoch(2, 1)
        .add("parallel", rank=1)
        .found("ranks-same-data")
        is False
    )
    assert (
        Trained()
        .epoch()
        .add("parallel")
        .epoch(1, 1, content=2)
        .add("parallel", rank=1)
        .found("ranks-same-data")
        is False
    )
    assert Trained().epoch().epoch(rank=1).found("ranks-same-data") is None
    assert (
        Trained()
        .epoch()
        .add("parallel")
        .epoch(rank=1, content=None)
        .add("parallel", rank=1)
        .found("ranks-same-data")
        is None
    )
    assert Trained().epoch().found("ranks-same-data") is False


def dealt() -> Trained:
    return (
        Trained()
        .epoch(1, 0, sampler=DISTRIBUTED, replicas=2)
        .epoch(2, 1, sampler=DISTRIBUTED, replicas=2)
    )


def test_ranks_whose_parameters_go_apart() -> None:
    told(
        dealt()
        .weights(1, 3.0, 3.0)
        .weights(2, 3.0, 3.1)
        .weights(4, 3.0, 3.2)
        .says("ranks-diverge"),
        "main.py:12",
    )


def test_ranks_whose_parameters_stay_together_or_go_apart_on_purpose() -> None:
    assert dealt().weights(1, 3.0, 3.0).weights(2, 3.0, 3.000001).found("ranks-diverge") is False
    assert dealt().weights(1, 3.0, 3.1).weights(2, 3.1, 3.1).found("ranks-diverge") is None
    assert dealt().weights(1, 3.0, 3.1).add("collective").found("ranks-diverge") is None
    assert dealt().weights(1, 3.0, 3.1, shapes=(1, 2)).found("ranks-diverge") is None
    assert Trained().epoch().epoch(rank=1).weights(1, 3.0, 3.1).found("ranks-diverge") is None
    assert Trained().epoch().found("ranks-diverge") is False


def test_ranks_that_go_apart_although_their_model_is_parallel() -> None:
    both = Trained().epoch().add("parallel").epoch(2, 1).add("parallel", rank=1)
    told(both.weights(1, 3.0, 3.1).add("collective").says("ranks-diverge"), "main.py:12")


def test_a_rank_whose_others_recorded_elsewhere() -> None:
    alone = Trained().add("world", 2).epoch()
    assert (alone.found("ranks-same-data"), alone.found("ranks-diverge")) == (None, None)
