"""What ``--parameters`` costs: beside Adam.step over tensors of ResNet-18's sizes, what other ways would, and bytes a record.

    python benchmarks/parameters.py [--rounds 5] [--every 50] [--only steps|ways|bytes]

Steps: blocks of EVERY optimizer steps, a whole round of looks in each, without and with the watch by turns in one process, one thread;
CPU time of the thread. What is printed of each round is the ratio of the two blocks after it. TrainCheck's figure is its own sweep over the
same tensors, 290 ms (package traincheck 0.2.0, torch 2.13); it is not run here.
Ways: CPU time of one pass over all 62 tensors, behind an Adam.step, whose data is in the caches (the median of several).
Bytes: the trace of the blocks with the watch, in segments and at rest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import zlib
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

import torch

TRAINCHECK_MS = 290.0


def resnet18() -> list[Any]:
    """Parameters of the sizes of ResNet-18's, with gradients: 62 tensors, 11.7 million floats."""
    generator = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for channels in (64, 128, 256, 512):
        for block in range(2):
            shapes += [
                (channels, before, 3, 3),
                (channels,),
                (channels,),
                (channels, channels, 3, 3),
                (channels,),
                (channels,),
            ]
            if not block and channels != 64:
                shapes += [(channels, before, 1, 1), (channels,), (channels,)]
            before = channels
    shapes += [(1000, 512), (1000,)]
    parameters = [
        torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02) for shape in shapes
    ]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--only", choices=["steps", "ways", "bytes"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only in (None, "steps"):
        steps(options.rounds, options.every)
    if options.only in (None, "ways"):
        ways(options.rounds)
    if options.only in (None, "bytes"):
        size(options.every)


def watch_of(every: int) -> Any:
    """A watch that records into the trace plane."""
    from voirkit.trace import recorder
    from voirkit_instruments.parameters.record import Watch

    return Watch(torch, recorder, every, print)


def block(optimizer: Any, watch: Any, steps: int) -> tuple[float, float]:
    """(milliseconds of the steps themselves, of what is done around them), a step, after writing every gradient as a backward does."""
    own = around = 0
    for _ in range(steps):
        for group in optimizer.param_groups:
            torch._foreach_mul_([parameter.grad for parameter in group["params"]], 1.0)
        began = thread_time_ns()
        if watch is not None:
            watch.before_step(optimizer)
        before = thread_time_ns()
        optimizer.step()
        after = thread_time_ns()
        if watch is not None:
            watch.after_step(optimizer)
        around += before - began + thread_time_ns() - after
        own += after - before
    return own / steps / 1e6, around / steps / 1e6


def steps(rounds: int, every: int) -> None:
    """Print what a step costs without and with the watch."""
    from voirkit.trace import recorder

    parameters = resnet18()
    kinds: dict[str, dict[str, Any]] = {
        "Adam": {},
        "Adam, foreach": {"foreach": True},
        "Adam, fused": {"fused": True},
    }
    print(
        f"{len(parameters)} tensors, {sum(map(torch.Tensor.numel, parameters)) / 1e6:.2f} M floats, a look every {every} steps"
    )
    print(
        f"{'milliseconds a step':16} {'without':>9} {'with':>9} {'watch':>9} {'first':>9}   share of each round"
    )
    with tempfile.TemporaryDirectory() as place:
        recorder.begin(place)
        for name, how in kinds.items():
            optimizer, watch = torch.optim.Adam(parameters, **how), watch_of(every)
            _, first = block(optimizer, watch, 1)
            rows = []
            for _ in range(rounds):
                without, _ = block(optimizer, None, every)
                rows.append((without, *block(optimizer, watch, every)))
            without, within, around = (
                statistics.median(column) for column in zip(*rows, strict=True)
            )
            shares = "  ".join(
                f"{(own + more) / plain - 1:.1%} ({more / plain:.1%})" for plain, own, more in rows
            )
            print(
                f"{name:16} {without:9.2f} {within + around:9.2f} {around:9.2f} {first:9.2f}   {shares}"
            )
        recorder.end()
    print(
        f"{'TrainCheck':16} {'':9} {'':9} {TRAINCHECK_MS:9.2f}   a sweep, as the reference has measured it"
    )


def ways(rounds: int) -> None:
    """Print what one pass over all tensors costs in several ways."""
    parameters = resnet18()
    optimizer = torch.optim.Adam(parameters)
    with torch.no_grad():
        data = [parameter.detach() for parameter in parameters]
        random = [torch.randn(one.numel()) for one in data]
        odd = [
            torch.randint(-(2**31), 2**31 - 1, (one.numel(),), dtype=torch.int32) | 1
            for one in data
        ]
        copies = [one.clone() for one in data]
        integers = [one.view(-1).view(torch.int32) for one in data]
        tried: dict[str, tuple[Callable[[], Any], str]] = {
            "versions": (lambda: [one._version for one in data], "fused steps, .data, numpy"),
            "sample of 64": (
                lambda: torch.cat([one.as_strided((64,), (one.numel() // 64,)) for one in data]),
                "most single elements",
            ),
            "norms": (lambda: torch._foreach_norm(data), "signs, permutations, 1 ulp"),
            "sum of floats": (lambda: [one.sum() for one in data], "permutations"),
            "projection": (
                lambda: [torch.dot(one.view(-1), r) for one, r in zip(data, random, strict=True)],
                "1 ulp",
            ),
            "sum of int32": (lambda: [one.sum() for one in integers], "permutations"),
            "dot of int32 with odd weights": (
                lambda: [torch.dot(one, w) for one, w in zip(integers, odd, strict=True)],
                "pairs of signs",
            ),
            "weighted sum of int32": (
                lambda: [(one * w).sum() for one, w in zip(integers, odd, strict=True)],
                "pairs of signs, half the time",
            ),
            "copy": (lambda: torch._foreach_copy_(copies, data), "-"),
            "difference from a copy": (lambda: torch._foreach_sub_(copies, data), "nothing"),
            "crc32": (lambda: [zlib.crc32(one.numpy()) for one in data], "one change in 2^32"),
            "adler32": (
                lambda: [zlib.adler32(one.numpy()) for one in data],
                "little tensors: few bits",
            ),
        }
        if hasattr(torch, "hash_tensor"):
            tried["torch.hash_tensor"] = (
                lambda: [torch.hash_tensor(one) for one in data],
                "zeros for ones, signs, permutations",
            )
    print(f"\n{'one pass over all, milliseconds':34} {'behind Adam':>12} {'again':>9}   misses")
    for name, (way, misses) in tried.items():
        cold, warm = [], []
        for _ in range(rounds):
            optimizer.step()
            with torch.no_grad():
                began = thread_time_ns()
                way()
                between = thread_time_ns()
                way()
                cold.append(between - began)
                warm.append(thread_time_ns() - between)
        print(
            f"{name:34} {statistics.median(cold) / 1e6:12.3f} {statistics.median(warm) / 1e6:9.3f}   {misses}"
        )


def size(every: int) -> None:
    """Print how many bytes the records take."""
    from voirkit.runs import compaction
    from voirkit.trace import recorder

    optimizer, watch = torch.optim.SGD(resnet18(), 1e-3), watch_of(every)
    steps = 10 * every
    with tempfile.TemporaryDirectory() as place:
        recorder.begin(place)
        block(optimizer, watch, steps)
        watch.finish()
        events = recorder.end().events
        raw = _bytes(place)
        compaction.compact(place, ended=[os.getpid()])
        rest = _bytes(place)
    print(
        f"\n{events:,} records of {steps} steps: {raw / events:.1f} bytes each in segments, {rest / events:.1f} at rest"
    )


def _bytes(place: str) -> int:
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(place)
        for name in names
    )


if __name__ == "__main__":
    main()
