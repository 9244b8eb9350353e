"""Cells of notebooks by their numbers."""

from __future__ import annotations

from voirkit.runs.source_names import rename_sources

NAMES = {"/tmp/ipykernel_12/4051799136.py": "cell-3", "<ipython-input-4-ab>": "cell-4"}


def test_a_file_has_its_name_wherever_it_stands() -> None:
    document = {
        "lines": {"/tmp/ipykernel_12/4051799136.py:2": 0.5, "ipykernel_12/4051799136.py:7": 0.1},
        "because": "20% of it is in 4051799136.py:2 loss.item(), and in <ipython-input-4-ab>:1.",
        "where": ["train (4051799136.py:12)", 3, None],
    }
    assert rename_sources(document, NAMES) == {
        "lines": {"cell-3:2": 0.5, "cell-3:7": 0.1},
        "because": "20% of it is in cell-3:2 loss.item(), and in cell-4:1.",
        "where": ["train (cell-3:12)", 3, None],
    }


def test_other_files_stay() -> None:
    document = {"where": "14051799136.py:2", "file": "/home/me/train.py"}
    assert rename_sources(document, NAMES) == document
    assert rename_sources(document, {}) is document
