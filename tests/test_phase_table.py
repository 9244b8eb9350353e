"""The table of phases, and what reads it."""

import pytest

from voirkit.phase_table import (
    BY_NAME,
    COMPUTE,
    PARTS,
    PHASES,
    TABLE,
    label_of,
    phase_of_function,
)

MODULE = "/lib/torch/nn/modules/module.py"
LOADER = "/lib/torch/utils/data/dataloader.py"


def test_each_row_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(TABLE)


def test_a_part_lies_in_a_phase() -> None:
    assert {row.parent for row in TABLE if row.parent} <= set(PHASES)


def test_what_has_no_name_comes_last() -> None:
    assert (PHASES[-1], PARTS[-1]) == ("other", "rest")


def test_a_span_is_of_one_phase() -> None:
    spans = [span for row in TABLE for span in row.spans]
    assert len(spans) == len(set(spans))


def test_every_phase_has_a_label_a_verdict_and_colours() -> None:
    for name in PHASES:
        row = BY_NAME[name]
        assert all((row.label, row.verdict, row.page_colours, row.terminal_colour)), name


def test_what_computes() -> None:
    assert COMPUTE == ("forward", "backward", "optimizer")


def test_a_label_of_no_phase_is_its_name() -> None:
    assert (label_of("optimizer"), label_of("augment")) == ("the optimizer's step", "augment")


@pytest.mark.parametrize(
    ("file", "function", "phase"),
    [
        (LOADER, "__next__", "wait"),
        (LOADER, "_MultiProcessingDataLoaderIter._next_data", "wait"),
        (LOADER, "__len__", ""),
        (MODULE, "Module._call_impl", "forward"),
        (MODULE, "Module.parameters", ""),
        ("C:\\lib\\torch\\nn\\modules\\module.py", "_call_impl", "forward"),
        ("/lib/torch/_tensor.py", "Tensor.backward", "backward"),
        ("/lib/torch/autograd/graph.py", "_engine_run_backward", "backward"),
        ("/lib/torch/optim/adam.py", "Adam.step", "optimizer"),
        ("/lib/torch/optim/optimizer.py", "Optimizer.zero_grad", "zero_grad"),
        ("/lib/torch/optim/lr_scheduler.py", "LRScheduler.step", ""),
        ("/lib/torch/distributed/distributed_c10d.py", "all_reduce", "communication"),
        ("/lib/torch/distributed/checkpoint/state_dict_saver.py", "save", "checkpoint"),
        ("/lib/torch/serialization.py", "save", "checkpoint"),
        ("/home/me/main.py", "backward", ""),
    ],
)
def test_functions_of_a_phase(file: str, function: str, phase: str) -> None:
    assert phase_of_function(file, function) == phase
