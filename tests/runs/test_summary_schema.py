"""The JSON Schema of summary.json describes all that is in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from conftest import Place

from voirkit import __version__
from voirkit.plugins import parts_of_summary
from voirkit.runs.summary import empty, summary_schema

SCHEMA = summary_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SCRIPT = """
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.full((3, 8, 8), float(i)), i % 4

if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 4))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Images(), batch_size=4, num_workers=2)
    for inp, target in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inp), target).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for inp, target in loader:
            model(inp)
    torch.save(model.state_dict(), f"model{os.environ.get('RANK', '')}.pt")
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
"""


def schemas(part: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key of a schema, with its place."""
    for name, below in {**part.get("properties", {}), **part.get("$defs", {})}.items():
        yield f"{path}.{name}", below
        yield from schemas(below, f"{path}.{name}")
    for word in ("additionalProperties", "items"):
        if isinstance(part.get(word), dict):
            yield f"{path}.<{word}>", part[word]
            yield from schemas(part[word], f"{path}.<{word}>")


def unknown_keys(value: Any, part: dict[str, Any], path: str = "") -> Iterator[str]:
    """The places in a document that the schema says nothing of."""
    if "$ref" in part:
        part = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]]
    if isinstance(value, dict) and part.get("additionalProperties") is not True and "type" in part:
        for key, below in value.items():
            described = part.get("properties", {}).get(key) or part.get("additionalProperties")
            yield from (
                unknown_keys(below, described, f"{path}.{key}") if described else (f"{path}.{key}",)
            )
    elif isinstance(value, list) and "items" in part:
        for below in value:
            yield from unknown_keys(below, part["items"], f"{path}[]")


def check(document: dict[str, Any]) -> None:
    assert sorted(set(unknown_keys(document, SCHEMA))) == []
    assert [
        f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)
    ] == []


def test_it_is_a_json_schema() -> None:
    VALIDATOR.check_schema(SCHEMA)


def test_every_key_has_a_description_and_a_shape_that_exists() -> None:
    keys = list(schemas(SCHEMA))
    assert len(keys) > 500
    assert [
        path
        for path, part in keys
        if not part.get("description", "").endswith((".", ":")) and "$ref" not in part
    ] == []
    assert [
        path
        for path, part in keys
        if "$ref" in part and part["$ref"].rpartition("/")[2] not in SCHEMA["$defs"]
    ] == []


def test_every_figure_that_is_a_time_a_size_or_a_share_has_its_unit() -> None:
    named = {"_s": "s", "_share": "share", "bytes": "bytes"}
    wrong = [
        path
        for path, part in schemas(SCHEMA)
        for ending, unit in named.items()
        if path.endswith(ending)
        and part.get("type") in ("number", ["number", "null"], "integer")
        and part.get("unit") != unit
    ]
    assert wrong == []


def test_every_key_that_each_run_has_is_in_it() -> None:
    assert [
        key
        for key in {**empty(__version__), **parts_of_summary()}
        if key not in SCHEMA["properties"]
    ] == []


def test_an_empty_summary_fulfils_it() -> None:
    check(empty(__version__))


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        [
            "--loader",
            "--checks",
            "--calls",
            "--parameters",
            "--parameters-of",
            "buffers,state",
            "--monitor=0.1",
            "--memory-snapshot",
        ],
        ["--torch-profile=1:0:2", "--flame", "--verify", "--options", "--train-rate"],
    ],
    ids=lambda options: options[0],
)
def test_a_run_with_many_instruments_has_no_key_without_a_description(
    place: Place, options: list[str]
) -> None:
    ended = place.write(main=SCRIPT).voirkit(*options, "main.py")
    assert ended.code == 0, ended.err
    check(ended.summary)


@pytest.mark.torch
@pytest.mark.long
def test_neither_has_a_run_of_two_ranks(place: Place) -> None:
    place.write(main=SCRIPT)
    ended = place.python(
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "main.py",
    )
    assert ended.code == 0, ended.err
    summary = ended.summary
    assert summary["collectives"]
    check(summary)
