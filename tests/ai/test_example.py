"""The annotated example does what the one without annotations does, and its records are those that can be counted by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from annotating import counts, rows
from recorded import OF_OTHER_RUNS

from voirkit.export import formats

pytestmark = pytest.mark.long

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
SMALL = ["--epochs", "2", "--items", "320", "--batch-size", "64"]


def test_the_annotated_example(place):
    plain = place.python(str(EXAMPLES / "mlp" / "main.py"), *SMALL)
    ended = place.voirkit("--quiet", str(EXAMPLES / "annotated" / "main.py"), *SMALL)
    assert (ended.code, ended.out, ended.err) == (0, plain.out, "")
    found = rows(place.folder / "run")
    assert counts(found) == {
        "preprocess": 1, "data.init": 1, "item": 640, "fetch.iter": 10, "fetch.block": 10, "transfer": 10, "compute": 10, "forward": 10,
        "backward": 10, "step": 10, "train": 2, "epoch.iter": 2, "epoch.block": 2,
    }  # fmt: skip
    assert [(e.args["epoch"], e.args["step"]) for e in found if e.name == "forward"] == [
        (epoch, step) for epoch in (0, 1) for step in range(5)
    ]
    for format in formats():
        if format in OF_OTHER_RUNS:
            continue
        if format == "arrow" and importlib.util.find_spec("pyarrow") is None:
            continue
        exported = place.python(
            "-m", "voirkit", "export", "run", "--format", format, "-o", f"x.{format}"
        )
        assert (exported.code, exported.out) == (0, f"x.{format}\n"), exported.err
        data = (place.folder / f"x.{format}").read_bytes()
        assert format in ("arrow", "parquet") or data.count(b"backward") >= 10
