"""Stacks as py-spy writes them: which operation and phase each is in."""

from __future__ import annotations

from pathlib import Path

from voirkit_instruments.stacks.analyse_frames import Frame, operation_and_phase
from voirkit_instruments.stacks.analyse_native import figures
from voirkit_instruments.stacks.analyse_samples import (
    EVENT,
    count_native_stacks,
    parse_native_stack,
)

SITE = "/opt/venv/lib/python3.11/site-packages"
START = f'process 7:"python main.py";0x7fdffde4524a (/usr/lib/libc.so.6);<module> (/srv/main.py:4);fetch ({SITE}/torch/utils/data/_utils/fetch.py:52)'
ITEM = f"{START};DatasetFolder.__getitem__ ({SITE}/torchvision/datasets/folder.py:247)"
CALL = f"Module._wrapped_call_impl ({SITE}/torch/nn/modules/module.py:1787);Module._call_impl ({SITE}/torch/nn/modules/module.py:1798)"
CROP = f"{ITEM};Compose.__call__ ({SITE}/torchvision/transforms/transforms.py:95);{CALL};RandomResizedCrop.forward ({SITE}/torchvision/transforms/transforms.py:980)"
LINES = [
    f"{CROP};resize ({SITE}/PIL/Image.py:2300);_ImagingResampleHorizontal_8bpc (/project/src/libImaging/Resample.c:407) 5",
    f"{CROP};RandomResizedCrop.get_params ({SITE}/torchvision/transforms/transforms.py:944) 1",
    f"{ITEM};pil_loader ({SITE}/torchvision/datasets/folder.py:262);0x7f00 ({SITE}/pillow.libs/libjpeg-77ae51ab.so.62.4.0) 7",
    f"{ITEM};find (/srv/main.py:9) 2",
    f"{START};default_collate ({SITE}/torch/utils/data/_utils/collate.py:398);at::native::(anonymous namespace)::copy(at::Tensor&, long) ({SITE}/torch/lib/libtorch_cpu.so) 3",
    f"<module> (/srv/main.py:4);Tensor.backward ({SITE}/torch/_tensor.py:525);gemm ({SITE}/torch/lib/libtorch_cpu.so) 4",
    f"<module> (/srv/main.py:4);{CALL};Net.forward (/srv/main.py:20);{CALL};Linear.forward ({SITE}/torch/nn/modules/linear.py:134);gemm ({SITE}/torch/lib/libtorch_cpu.so) 6",
    f"<module> (/srv/main.py:4);Optimizer.profile_hook_step.<locals>.wrapper ({SITE}/torch/optim/optimizer.py:484);SGD.step ({SITE}/torch/optim/sgd.py:80) 1",
]
OPERATIONS = {"RandomResizedCrop", "Loader", "collate_fn", "ImageFolder.__getitem__"}


def test_a_line_is_frames_and_a_count() -> None:
    frames, n = parse_native_stack(
        'process 7:"x y";f (/a b/c.py:3);g<int (*)(long)>::h(char) (/lib/x (copy).so) 12\n'
    ) or ([], 0)
    assert (frames, n) == ([Frame("f", "/a b/c.py", 3), Frame("g<int (*)(long)>::h(char)", "/lib/x (copy).so", 0)], 12)  # fmt: skip
    assert parse_native_stack("") is parse_native_stack("torn in the mid") is None


def test_each_stack_counts_for_the_innermost_operation_and_phase() -> None:
    rows = {
        (row["group"], row["name"]): sum(code["events"][EVENT][0] for code in row["code"])
        for row in count_native_stacks(LINES, OPERATIONS)["rows"]
    }
    assert rows == {
        ("operation", "RandomResizedCrop"): 6, ("operation", "Loader"): 7, ("operation", "ImageFolder.__getitem__"): 2, ("operation", "collate_fn"): 3,
        ("phase", "backward"): 4, ("phase", "forward"): 6, ("phase", "optimizer"): 1,
    }  # fmt: skip


def test_the_leaf_is_the_function_and_its_file_the_library() -> None:
    counts = {
        "schema": 1,
        "tool": "py-spy",
        "version": "0",
        "frequency_hz": 100,
        "events": [EVENT],
        "user_only": True,
        "lost": 0,
    }
    found = figures([{**counts, **count_native_stacks(LINES, OPERATIONS)}])
    crop, loader = found["operations"]["RandomResizedCrop"], found["operations"]["Loader"]
    assert crop["functions"]["_ImagingResampleHorizontal_8bpc|Resample.c"]["share"] == 5 / 6
    assert list(loader["functions"]) == ["libjpeg-77ae51ab.so.62.4.0|?"]
    assert (crop["on_cpu_s"], crop["elapsed_s"], found["kernel_seen"]) == (None, None, False)


def test_without_a_class_in_the_name_it_is_looked_up_in_the_source(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "class Blur:\n    def __call__(self, x):\n        return x\n\ndef sharpen(x):\n    return x\n"
    )
    assert operation_and_phase([Frame("__call__", str(source), 3)], {"Blur", "sharpen"}) == [
        ("operation", "Blur")
    ]
    assert operation_and_phase([Frame("sharpen", str(source), 6)], {"Blur", "sharpen"}) == [
        ("operation", "sharpen")
    ]
    assert (
        operation_and_phase([Frame("other", str(source), 6), Frame("x", "/gone.py", 6)], {"Blur"})
        == []
    )


def test_an_operation_that_is_a_module_is_no_forward_pass_but_a_model_called_in_one_is() -> None:
    crop, _ = parse_native_stack(LINES[0]) or ([], 0)
    assert operation_and_phase(crop, OPERATIONS) == [("operation", "RandomResizedCrop")]
    within = crop + (parse_native_stack(LINES[6]) or ([], 0))[0][1:]
    assert operation_and_phase(within, OPERATIONS) == [
        ("operation", "RandomResizedCrop"),
        ("phase", "forward"),
    ]
