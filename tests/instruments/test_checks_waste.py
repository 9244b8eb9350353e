"""--checks sees work that is in vain: padding in batches, and embeddings of which few rows have a gradient; and nothing that looks like it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from conftest import CLEAN

from voirkit_instruments.checks.analyse_facts import Fact, Facts
from voirkit_instruments.checks.analyse_waste import embeddings, padding
from voirkit_instruments.checks.rules import findings

torch: Any = pytest.importorskip("torch")

from voirkit_instruments.checks.record_padding import inspect_padding  # noqa: E402  # it is of no use without torch


def ragged(side: str = "end", pad: int = 0, rows: int = 16, columns: int = 40) -> Any:
    """Token ids in rows of 5 to 40."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((rows, columns), pad)
    for row, length in enumerate(
        torch.randint(5, columns + 1, (rows,), generator=generator).tolist()
    ):
        tokens = torch.randint(10, 1000, (length,), generator=generator)
        ids[row, :length] = tokens
        if side == "begin":
            ids[row] = ids[row].roll(columns - length)
    return ids


# what is seen in a batch


@pytest.mark.parametrize("side", ["end", "begin"])
@pytest.mark.parametrize("pad", [0, 2])
def test_padding_is_counted_exactly(side: str, pad: int) -> None:
    ids = ragged(side, pad)
    rows = inspect_padding(torch, ids)
    assert rows is not None
    assert (rows.padding, rows.tokens, rows.token, rows.side) == (
        int((ids == pad).sum()),
        ids.numel(),
        pad,
        side,
    )


def test_padding_is_found_in_what_collate_functions_give() -> None:
    class Encoding:
        """As that of transformers."""

        def __init__(self, data: dict[str, Any]) -> None:
            self.data = data

    ids = ragged()
    fields = {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": ids.masked_fill(ids == 0, -100),
    }
    named = namedtuple("named", "x ids")(torch.rand(16, 3), ids)
    for batch in (
        fields,
        OrderedDict(fields),
        Encoding(fields),
        [ids, torch.arange(16)],
        (torch.rand(16, 3), [ids]),
        named,
    ):
        rows = inspect_padding(torch, batch)
        assert rows is not None
        assert rows.padding == int((ids == 0).sum())


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(64),  # labels
        torch.randint(0, 3, (64, 4)),  # a few labels each
        torch.randint(0, 255, (16, 784), dtype=torch.uint8),
        torch.randint(0, 9, (4, 32, 32)),  # images of classes
        (ragged() > 0).long(),  # a mask
        ragged().masked_fill(ragged() == 0, -100),  # labels that the loss ignores
        torch.nn.functional.one_hot(torch.arange(16) % 10, 1000),
        torch.rand(16, 40),
        "text",
        [[1, 2, 3]],
    ],
    ids=[
        "labels",
        "few",
        "uint8",
        "classes",
        "mask",
        "ignored",
        "one-hot",
        "floats",
        "text",
        "list",
    ],
)
def test_what_holds_no_token_ids_has_no_padding(batch: Any) -> None:
    assert inspect_padding(torch, batch) is None


@pytest.mark.parametrize("kind", ["image", "counts", "full", "star"])
def test_what_looks_like_tokens_and_is_not_padded_has_none(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.zeros(16, 28, 28, dtype=torch.long)
    image[:, 6:20, 6:20] = torch.randint(0, 256, (16, 14, 14), generator=generator)
    counts = torch.randint(0, 1000, (16, 400), generator=generator) * (
        torch.rand(16, 400, generator=generator) < 0.05
    )
    star = torch.stack([torch.zeros(50, dtype=torch.long), torch.arange(1, 51)])  # edges of a graph
    batch = {
        "image": image.flatten(1),
        "counts": counts,
        "star": star,
        "full": torch.randint(1, 1000, (16, 40), generator=generator),
    }[kind]
    rows = inspect_padding(torch, batch)
    assert rows is not None
    assert rows.padding < 0.1 * rows.tokens


def test_a_large_batch_is_looked_at_in_a_few_rows() -> None:
    rows = inspect_padding(torch, ragged(rows=1000))
    assert rows is not None
    assert rows.tokens <= 64 * 40


# what is said of it


def looked(name: str, *looks: dict[str, Any]) -> Facts:
    return Facts(
        [Fact(name, 1000 * n, 0, {"where": "main.py:7", **args}) for n, args in enumerate(looks, 1)]
    )


def padded(share: float, longest: int = 40, shortest: int = 5) -> dict[str, Any]:
    return {
        "tokens": 1000, "padding": round(1000 * share), "columns": 40, "longest": longest, "shortest": shortest, "token": 0, "side": "end",
    }  # fmt: skip


def kinds(facts: Facts) -> list[str]:
    return [
        finding.kind
        for finding in findings(
            {"token_padding": padding(facts), "dense_embeddings": embeddings(facts)}
        )
    ]


def test_padding_is_a_finding_without_a_figure_of_time() -> None:
    (finding,) = findings({"token_padding": padding(looked("padding", *[padded(0.4)] * 3))})
    assert finding.because.startswith(
        "40% of the tokens that are trained on are padding: id 0 at the end of rows of 40"
    )
    assert (finding.gain, finding.where, finding.evidence["share"]) == (None, "main.py:7", 0.4)


def test_padding_to_a_fixed_length_is_said() -> None:
    (finding,) = findings(
        {"token_padding": padding(looked("padding", *[padded(0.8, longest=10)] * 3))}
    )
    assert "94% of it is beyond the longest row of its batch" in finding.because


@pytest.mark.parametrize(
    "looks",
    [
        [padded(0.4)] * 2,  # too few looks
        [padded(0.2)] * 5,
        [padded(0.6), *[padded(0.0)] * 9],
        [padded(0.5, 20, 20)] * 5,  # columns that are never used are not padding
    ],
)
def test_little_padding_or_few_looks_are_no_finding(looks: list[dict[str, Any]]) -> None:
    assert kinds(looked("padding", *looks)) == []


def table(graded: int = 1, rows: int = 100_000, held: int = 1_600_000) -> dict[str, Any]:
    return {
        "optimizer": 0,
        "name": "items.weight",
        "rows": rows,
        "columns": 16,
        "held": held,
        "sampled": 1000,
        "graded": graded,
    }


def test_a_dense_gradient_of_few_rows_is_a_finding_without_a_figure_of_time() -> None:
    (finding,) = findings({"dense_embeddings": embeddings(looked("embedding", *[table()] * 3))})
    assert finding.because.startswith(
        "Of the 100,000 rows of items.weight 0.10% have a gradient in a step"
    )
    assert finding.gain is None


def test_a_gradient_of_which_no_row_was_sampled_has_a_bound() -> None:
    (finding,) = findings({"dense_embeddings": embeddings(looked("embedding", *[table(0)] * 4))})
    assert "fewer than 0.03% have a gradient" in finding.because


@pytest.mark.parametrize("looks", [[table()] * 2, [table(100)] * 4, [table(held=16_000_000)] * 4])
def test_many_rows_with_gradients_or_a_small_part_of_the_parameters_is_no_finding(
    looks: list[dict[str, Any]],
) -> None:
    assert kinds(looked("embedding", *looks)) == []


# in a run


def run(folder: Path, script: str) -> dict[str, Any]:
    """The summary of a script under ``--checks``; what it prints is in ``printed``."""
    (folder / "main.py").write_text(dedent(script).lstrip())
    command = [
        sys.executable,
        "-m",
        "voirkit",
        "--checks",
        "--quiet",
        "--run-dir",
        "run",
        "main.py",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**CLEAN, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "checks:" not in done.stderr
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return {**summary, "printed": done.stdout}


def in_vain(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the findings those of work in vain; a run as short as these may have others."""
    return [
        finding
        for finding in summary["findings"]
        if finding["kind"] in ("padding", "dense-embedding-gradient")
    ]


TRAINING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)


    def train(model, loader, optimizer=None):
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in loader:
            optimizer.zero_grad()
            model(batch[0]).pow(2).mean().backward()
            optimizer.step()
    """


@pytest.mark.long
def test_padding_of_a_training_is_found_with_its_share(tmp_path: Path) -> None:
    script = """

    texts = [torch.randint(1, 1000, (int(n),)) for n in torch.randint(5, 60, (128,))]
    shares = []


    def collate(texts):
        ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
        shares.append((ids == 0).float().mean().item())
        return [ids]


    train(nn.Embedding(1000, 8), DataLoader(texts, batch_size=16, collate_fn=collate, shuffle=True))
    print(sum(shares) / len(shares))
    """
    summary = run(tmp_path, dedent(TRAINING) + dedent(script))
    (finding,) = in_vain(summary)
    assert finding["kind"] == "padding"
    assert finding["evidence"]["share"] == pytest.approx(float(summary["printed"]), abs=0.1)
    assert (finding["severity"], finding["gain"], finding["where"]) == ("time", None, "main.py:26")


@pytest.mark.long
def test_batches_that_look_like_padding_are_no_finding(tmp_path: Path) -> None:
    script = """

    image = torch.zeros(64, 28, 28, dtype=torch.uint8)
    image[:, 6:22, 6:22] = torch.randint(0, 256, (64, 16, 16), dtype=torch.uint8)
    classes = torch.randint(0, 10, (64,))
    lengths = torch.randint(5, 40, (64, 1))
    texts = torch.randint(1, 100, (64, 40)) * (torch.arange(40) < lengths)


    class Inputs(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.layer = nn.Linear(n, 2)

        def forward(self, x):
            return self.layer(x.flatten(1).float() / 255)


    for inputs in (image, image.flatten(1), image.flatten(1).long(), nn.functional.one_hot(classes, 50), classes[:, None].repeat(1, 4)):
        loader = DataLoader(TensorDataset(inputs, classes), batch_size=8)
        train(Inputs(inputs[0].numel()), loader)
    with torch.no_grad():
        for (batch,) in DataLoader(TensorDataset(texts), batch_size=8):  # padded, and not trained on
            pass
    """
    assert in_vain(run(tmp_path, dedent(TRAINING) + dedent(script))) == []


@pytest.mark.long
def test_a_dense_gradient_of_a_large_embedding_is_found_with_its_share(tmp_path: Path) -> None:
    script = """

    table = nn.Embedding(100_000, 8)
    rows = torch.randint(0, 100_000, (16, 500))
    train(table, DataLoader(TensorDataset(rows), batch_size=2), torch.optim.Adam(table.parameters()))
    print((table.weight.grad != 0).any(1).float().mean().item())
    """
    summary = run(tmp_path, dedent(TRAINING) + dedent(script))
    (finding,) = in_vain(summary)
    assert finding["kind"] == "dense-embedding-gradient"
    assert finding["evidence"]["share"] == pytest.approx(float(summary["printed"]), rel=0.2)
    assert (finding["severity"], finding["gain"], finding["evidence"]["rows"]) == (
        "time",
        None,
        100_000,
    )


@pytest.mark.long
def test_sparse_small_and_tied_embeddings_are_no_finding(tmp_path: Path) -> None:
    script = """


    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(60_000, 4)

        def forward(self, ids):
            return self.table(ids) @ self.table.weight.T


    ids = DataLoader(TensorDataset(torch.randint(0, 10_000, (16, 4))), batch_size=2)
    sparse = nn.Embedding(100_000, 8, sparse=True)
    train(sparse, ids, torch.optim.SparseAdam(sparse.parameters()))
    train(nn.Embedding(10_000, 8), ids)
    train(Tied(), ids)
    """
    assert in_vain(run(tmp_path, dedent(TRAINING) + dedent(script))) == []
