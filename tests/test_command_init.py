"""``voirkit init``: the voirfile that it writes loads, and gives what it says when the script runs with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from conftest import Ended, Place

pytestmark = pytest.mark.long

pytest.importorskip("torchvision")

EXAMPLES = Path(__file__).parent.parent / "examples"
DATA = """
    import torch
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset

    def data():
        return DataLoader(TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,))), batch_size=4)
"""
TRAINER = """
    class Trainer:
        def __init__(self, network, batches):
            self.network, self.batches = network, batches
            self.optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        def fit(self, epochs):
            for epoch in range(epochs):
                for i, (x, y) in enumerate(self.batches):
                    self.training_step(x, y)

        def training_step(self, x, y):
            error = F.cross_entropy(self.network(x), y)
            error.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    if __name__ == "__main__":
        Trainer(torch.nn.Linear(4, 2), data()).fit(2)
"""
FLAT = """
    device = "cpu"
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = data()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
VALIDATION = """
    @torch.no_grad()
    def validate(model, held_out):
        for x, y in held_out:
            loss = F.cross_entropy(model(x), y)
        return loss

    def train(model, batches, optimizer, device):
        for x, y in batches:
            loss = F.cross_entropy(model(x.to(device)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def main():
        device = torch.device("cpu")
        net = torch.nn.Linear(4, 2)
        training, held_out = data(), data()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(2):
            train(net, training, optimizer, device)
            validate(net, held_out)

    main()
"""
ACCUMULATION = """
    def main():
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(data()):
            for part in zip(*(one.chunk(2) for one in batch)):
                loss = F.cross_entropy(model(part[0]), part[1])
                loss = loss / 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    main()
"""
GET_BATCH = """
    def get_batch(split):
        return torch.randn(4, 4), torch.randint(0, 2, (4,))

    gradient_accumulation_steps = 4
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iter_num = 0
    X, Y = get_batch("train")
    while iter_num < 3:
        for micro_step in range(gradient_accumulation_steps):
            loss = F.cross_entropy(model(X), Y)
            loss = loss / gradient_accumulation_steps
            X, Y = get_batch("train")
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        iter_num += 1
"""
WHILE = """
    class Trainer:
        def __init__(self, model):
            self.model = model

        def run(self):
            model = self.model
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            train_loader = data()
            data_iter = iter(train_loader)
            iter_num = 0
            while True:
                try:
                    batch = next(data_iter)
                except StopIteration:
                    data_iter = iter(train_loader)
                    batch = next(data_iter)
                x, y = batch
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                iter_num += 1
                if iter_num >= 8:
                    break

    def eval_split(model):
        loader = data()
        for x, y in loader:
            model(x)

    model = torch.nn.Linear(4, 2)
    Trainer(model).run()
    eval_split(model)
"""
ROLLOUTS = """
    def main(batch_size=24, minibatch_size=8):
        agent = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
        for iteration in range(2):
            b_obs, b_actions = torch.randn(batch_size, 4), torch.randint(0, 2, (batch_size,))
            b_inds = torch.randperm(batch_size)
            for start in range(0, batch_size, minibatch_size):
                end = start + minibatch_size
                mb_inds = b_inds[start:end]
                loss = F.cross_entropy(agent(b_obs[mb_inds]), b_actions[mb_inds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    main()
"""
SCRIPTS = {
    "trainer": TRAINER, "flat": FLAT, "validation": VALIDATION, "accumulation": ACCUMULATION, "get_batch": GET_BATCH, "while": WHILE,
    "rollouts": ROLLOUTS,
}  # fmt: skip
# For each script: the words after its name, and how often each reading comes.
EXPECTED: dict[str, tuple[list[str], dict[str, int | None]]] = {
    "mlp": (
        ["--epochs", "2", "--items", "256", "--batch-size", "64"],
        {"use_cuda": 1, "model": 1, "loader": 1, "loss": 8, "step": 8},
    ),
    "resnet": (
        [
            "--size",
            "33",
            "--epochs",
            "1",
            "--batch-size",
            "4",
            "--limit",
            "3",
            "--workers",
            "0",
            "--data",
            "images",
        ],
        {"use_cuda": 1, "model": 1, "loader": 1, "loss": 3, "step": 3},
    ),
    "sentiment": (
        ["--steps", "5", "--sentences", "64", "--batch-size", "8", "--test-sentences", "16"],
        {"use_cuda": 1, "model": 1, "loader": 1, "loss": 5, "step": 5},
    ),
    "trainer": ([], {"model": 1, "loader": 1, "loss": 12, "step": 12}),
    "flat": ([], {"use_cuda": 1, "model": 1, "loader": 1, "loss": 6, "step": 6}),
    "validation": ([], {"use_cuda": 1, "model": 1, "loader": 1, "loss": 12, "step": 12}),
    "accumulation": ([], {"model": 1, "loss": 6, "step": 6}),
    "get_batch": ([], {"model": 1, "loader": None, "loss": 12, "step": 12}),
    "while": ([], {"loader": 1, "loss": 8, "step": None}),
    "rollouts": ([], {"loader": None, "loss": 6, "step": 6}),
}


def init(place: Place, *words: str) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "init", *words)


def written(place: Place, source: str) -> str:
    """The voirfile for a script."""
    place.write(main=source)
    ended = init(place, "main.py")
    assert (ended.code, ended.err) == (0, "")
    return (place.folder / "voirfile.py").read_text()


def probes_in(voirfile: str) -> list[str]:
    """The lines that are not commented out."""
    return [line.strip() for line in voirfile.splitlines() if line.strip().startswith("ov.")]


# real runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What came of a script that ran with the voirfile written for it. Two at a time: importing torch takes seconds."""

    def start(name: str) -> Ended:
        place = Place(tmp_path_factory.mktemp(name))
        if name in SCRIPTS:
            place.write(main=DATA + SCRIPTS[name])
        else:
            copy(EXAMPLES / name / "main.py", place.folder)
        if name == "resnet":
            made = place.python(
                str(EXAMPLES / "resnet" / "make_images.py"), "--data", "images", "--count", "12"
            )
            assert made.code == 0, made.err
        assert init(place, "main.py").code == 0
        options = (
            [] if name in SCRIPTS else ["--options"]
        )  # which says so where no arguments are parsed
        return place.voirkit(*options, "main.py", *EXPECTED[name][0])

    with ThreadPoolExecutor(2) as pool:

        @cache
        def started() -> dict[str, Future[Ended]]:
            return {name: pool.submit(start, name) for name in EXPECTED}

        yield lambda name: started()[name].result()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_script_runs_with_its_voirfile_without_a_complaint(run: Any, name: str) -> None:
    ended = run(name)
    assert ended.code == 0, ended.err
    assert ended.summary["warnings"] == []
    assert "never fired" not in ended.err


@pytest.mark.parametrize("name", EXPECTED)
def test_what_was_found_arrives(run: Any, name: str) -> None:
    given = run(name).summary["given"]
    expected = EXPECTED[name][1]
    assert {reading: given.get(reading) for reading in expected} == expected


@pytest.mark.parametrize(
    "name", [name for name in EXPECTED if name not in ("get_batch", "while", "rollouts")]
)  # these make their batches
def test_each_turn_of_the_training_loop_is_wrapped(run: Any, name: str) -> None:
    wraps = [
        probe["events"]
        for probe in run(name).summary["probes"]
        if "compute_start" in probe["selector"]
    ]
    assert wraps == [2 * (EXPECTED[name][1]["step"] or 0)]


# what is written


def test_each_probe_stands_below_the_line_that_it_means(place: Place) -> None:
    lines = written(place, DATA + VALIDATION).splitlines()
    at = lines.index('    ov.probe("//train > loss").give()')
    assert re.fullmatch(
        r"    # main\.py:\d+: loss = F\.cross_entropy\(model\(x\.to\(device\)\), y\)", lines[at - 1]
    )


def test_a_value_is_probed_where_it_is_made(place: Place) -> None:
    found = probes_in(written(place, DATA + VALIDATION))
    assert 'ov.probe("//main > net as model").give()' in found
    assert 'ov.probe("//main > training as loader").give()' in found


def test_a_device_is_given_as_use_cuda(place: Place) -> None:
    found = probes_in(written(place, DATA + VALIDATION))
    assert found[0].startswith(
        'ov.probe("//main > device")["device"].map(lambda device: {"use_cuda":'
    )


def test_the_loop_is_the_one_that_steps(place: Place) -> None:
    found = probes_in(written(place, DATA + ACCUMULATION))
    assert 'ov.probe("//main(batch) > #endloop_batch as step").give()' in found


def test_a_loss_that_is_set_twice_is_pointed_out(place: Place) -> None:
    text = written(place, DATA + ACCUMULATION)
    assert (
        "# It is set 2 times in main: what it is at the end of each turn of the loop is given."
        in text
    )
    assert 'ov.probe("//main(loss) > #endloop_batch")["loss"].give("loss")' in text


def test_code_at_the_top_level_is_probed_there(place: Place) -> None:
    text = written(place, DATA + FLAT)
    assert [line for line in probes_in(text) if "device" not in line] == [
        'ov.probe("//<module> > model").give()',
        'ov.probe("//<module> > loader").give()',
        'ov.probe("//<module> > loss").give()',
        'ov.probe("//<module>(x as batch) > #endloop_x as step").give()',
        'ov.probe("//<module>(x as batch, !#loop_x as compute_start, !!#endloop_x as compute_end)").give()',
    ]


def test_the_next_step_that_is_proposed_passes_on_a_cpu(place: Place) -> None:
    place.write(main=DATA + FLAT.replace('device = "cpu"', ""))
    ended = init(place, "main.py")
    assert ended.out.splitlines()[-1] == "Next: voirkit --verify main.py"
    assert place.voirkit("--verify", "main.py").code == 0


def test_a_script_that_trains_nothing_gets_hints(place: Place) -> None:
    text = written(place, "print('hello')\n")
    assert probes_in(text) == []
    assert "Nothing in the script looks like training" in text
    assert text.count("take away the #") == 6


def test_a_closure_gives_its_loss_to_the_loop(place: Place) -> None:
    found = probes_in(
        written(
            place,
            """
            def main(optimizer, model, batches):
                calls = 0
                for batch in batches:
                    def closure():
                        nonlocal calls
                        calls += 1
                        loss = model(batch)
                        loss.backward()
                        return loss
                    loss = optimizer.step(closure)
            """,
        )
    )
    assert any(
        line in found
        for line in ('ov.probe("//main > loss").give()', 'ov.probe("//main/closure > loss").give()')
    )
    assert 'ov.probe("//main(batch) > #endloop_batch as step").give()' in found


def test_a_scaled_loss_is_found(place: Place) -> None:
    source = "def f(b, scaler):\n    for x in b:\n        cost = x.mean()\n        scaler.scale(cost).backward()\n        scaler.step()\n"
    assert 'ov.probe("//f > cost as loss").give()' in probes_in(written(place, source))


def test_batches_that_a_counting_loop_fetches_are_found(place: Place) -> None:
    source = """
        def f(model, loader):
            it = iter(loader)
            for step in range(10):
                x, y = next(it)
                loss = model(x)
                loss.backward()
                model.step()
    """
    found = probes_in(written(place, source))
    assert 'ov.probe("//f(x as batch) > #endloop_step as step").give()' in found
    assert 'ov.probe("//f > loader").give()' in found
    assert not any("compute_start" in line for line in found)


def test_other_training_loops_are_named(place: Place) -> None:
    copy(EXAMPLES / "sentiment" / "main.py", place.folder)
    assert init(place, "main.py").code == 0
    assert "not probed: pretrain_epoch (main.py:" in (place.folder / "voirfile.py").read_text()


def test_the_options_are_pointed_out(place: Place) -> None:
    text = written(place, "import argparse\nargs = argparse.ArgumentParser().parse_args()\n")
    assert "# main.py:2: args = argparse.ArgumentParser().parse_args()\n" in text


# what is said


def test_it_says_what_it_wrote_and_what_to_do_next(place: Place) -> None:
    place.write(main=DATA + VALIDATION)
    said = init(place, "main.py").out.splitlines()
    assert said[0] == "voirfile.py is written. It gives"
    assert any("//train > loss" in line and "main.py:" in line for line in said)
    assert said[-1] == "Next: voirkit --verify main.py"


def test_the_voirfile_stands_beside_the_script(place: Place) -> None:
    place.write({"deep/er/main.py": DATA + VALIDATION, "deep/voirfile.py": ""})
    assert init(place, "deep/er/main.py").code == 0
    assert (place.folder / "deep/er/voirfile.py").exists()
    assert not (place.folder / "voirfile.py").exists()


def test_a_voirfile_that_is_used_too_is_pointed_out(place: Place) -> None:
    place.write({"sub/main.py": DATA + VALIDATION, "voirfile.py": ""})
    assert "From here voirfile.py is used too." in init(place, "sub/main.py").out.splitlines()


@pytest.mark.parametrize("name", ["odd name.py", 'quo"te.py', "back\\slash.py", '""".py', "ünï.py"])
def test_whatever_the_script_is_called_the_voirfile_loads(place: Place, name: str) -> None:
    place.write({name: DATA + VALIDATION})
    ended = init(place, name)
    assert (ended.code, ended.err) == (0, "")
    compile((place.folder / "voirfile.py").read_text(encoding="utf-8"), "voirfile.py", "exec")


# what is wrong


def test_a_voirfile_is_never_overwritten(place: Place) -> None:
    place.write(main=DATA + VALIDATION, voirfile="# mine\n")
    ended = init(place, "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "voirfile.py" in ended.err
    assert (place.folder / "voirfile.py").read_text() == "# mine\n"


def test_a_dangling_link_is_not_written_through(place: Place) -> None:
    place.write(main=DATA + VALIDATION)
    (place.folder / "voirfile.py").symlink_to(place.folder / "elsewhere.py")
    assert init(place, "main.py").code == 2
    assert not (place.folder / "elsewhere.py").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mian.py"], ["mian.py", "main.py"]),
        (["torn.py"], ["torn.py:1"]),
        (["folder"], ["folder", "__main__"]),
        (["main.py", "--force"], ["--force"]),
        (["main.py", "main.py"], ["main.py"]),
        ([], ["SCRIPT"]),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    place: Place, words: list[str], said: list[str]
) -> None:
    place.write({"main.py": "x = 1\n", "torn.py": "x = (\n", "folder/x.py": ""})
    ended = init(place, *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("voirkit: ")
    assert "Traceback" not in ended.err
    assert not (place.folder / "voirfile.py").exists()
    for word in said:
        assert word in ended.err
