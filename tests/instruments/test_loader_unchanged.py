"""A program that loads data cannot tell that ``--loader`` is on: same samples, random numbers, exceptions in workers, objects and pickles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest
from loading_runs import Said, run, under_loader, write

pytestmark = pytest.mark.long

pytest.importorskip("torch")

HEAD = """
    import gc, inspect, multiprocessing, pickle, random, sys, traceback, warnings
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
    torch.manual_seed(0); random.seed(0); torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # nothing is below a main guard here, which the others need

    class Noise:
        def __call__(self, x):
            return x + torch.rand(()) * random.random()

    class Pictures(Dataset):
        def __init__(self, transform=None, n=8):
            self.transform, self.n = transform, n
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            x = torch.full((3,), float(i))
            return self.transform(x) if self.transform else x

    def said(loader):
        for batch in loader:
            print([x.hex() for x in torch.as_tensor(batch).flatten().tolist()])
    def failing(*loaders):
        for loader in loaders:
            try:
                said(loader)
            except Exception:
                traceback.print_exc(file=sys.stdout)
            gc.collect()  # an iterator that a worker inherits and drops complains there, whenever that is
    """

PROGRAMS = {
    "random numbers": """
        for workers in 0, 2:
            said(DataLoader(Pictures(Noise()), batch_size=2, shuffle=True, num_workers=workers))
        print(torch.rand(2).tolist(), random.random())
        """,
    "an exception in a dataset": """
        class Broken(Pictures):
            def __getitem__(self, i):
                return {}["no such picture"]
        failing(DataLoader(Broken(), num_workers=1), DataLoader(Broken()), DataLoader(Subset(Broken(), [1]), num_workers=1))
        """,
    "an exception in transforms": """
        class Crop:
            def __call__(self, x):
                raise ValueError(f"{x.shape} is too small")
        class Pipeline:
            def __init__(self, *transforms):
                self.transforms = list(transforms)
            def __call__(self, x):
                for t in self.transforms:
                    x = t(x)
                return x
        def shift(x):
            return x + "1"
        for transform in Crop(), shift, Pipeline(Noise(), Crop()), (lambda x: x[7]), torch.nn.Sequential(torch.nn.Linear(2, 2)):
            failing(DataLoader(Pictures(transform), num_workers=1), DataLoader(Pictures(transform)))
        """,
    "an exception in what collates": """
        def together(samples):
            return torch.stack(samples, dim=9)
        for collate in together, (lambda samples: samples.shape):
            failing(DataLoader(Pictures(), collate_fn=collate, num_workers=1), DataLoader(Pictures(), collate_fn=collate))
        """,
    "an exception in an iterable": """
        class Lines(IterableDataset):
            def __iter__(self):
                yield torch.zeros(1)
                raise OSError("the file is gone")
        failing(DataLoader(Lines(), num_workers=1), DataLoader(Lines()), DataLoader(Lines(), batch_size=None))
        """,
    "warnings of workers name the same lines": """
        class Warns(Pictures):
            def __getitem__(self, i):
                warnings.warn("old picture", stacklevel=2)
                return super().__getitem__(i)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said(DataLoader(Warns(n=2)))
        print([(w.filename.rpartition("/")[2], w.lineno) for w in caught])
        """,
    "objects, their classes and their pickles": """
        noise, data = Noise(), Pictures(n=2)
        data.transform = noise
        before = pickle.dumps((data, noise)), vars(Pictures).keys(), [vars(c)["__call__" if c is Noise else "__getitem__"] for c in (Noise, Pictures)]
        said(DataLoader(data, num_workers=1)); said(DataLoader(data))
        after = pickle.dumps((data, noise)), vars(Pictures).keys(), [vars(c)["__call__" if c is Noise else "__getitem__"] for c in (Noise, Pictures)]
        print(before[0] == after[0], before[1] == after[1], [a is b for a, b in zip(before[2], after[2])], data.transform is noise, vars(data).keys())
        print(inspect.getsource(Noise), inspect.signature(Pictures.__getitem__), Noise.__call__.__qualname__, noise.__call__.__name__)
        """,
    "functions by value": """
        try:
            import cloudpickle
        except ImportError:
            sys.modules["cloudpickle"] = cloudpickle = pickle
        make = lambda: (lambda x: x + 1)
        data = Pictures(make(), 2)
        said(DataLoader(data))
        print(data.transform(1))
        if cloudpickle is not pickle:
            print(cloudpickle.loads(cloudpickle.dumps(data.transform))(torch.zeros(1)))
            shift = lambda x: x + 1
            said(DataLoader(Pictures(shift, 2)))
            print(cloudpickle.dumps(shift))
        """,
    "a dataset that looks at its own variables": """
        class Looks(Pictures):
            def __getitem__(self, i):
                x = torch.zeros(1)
                print(sorted(locals()), sys._getframe().f_code.co_varnames, flush=True)
                return x
        said(DataLoader(Looks(n=1)))
        """,
    "a variable that is deleted": """
        class Deletes(Pictures):
            def __getitem__(self, i):
                x = torch.full((1,), float(i))
                del i, self
                return x
        class Drops:
            def __call__(self, x):
                y = x
                del x, self
                return y
        said(DataLoader(Deletes(n=2))); said(DataLoader(Pictures(Drops(), n=2)))
        """,
    "a transform without a name, with slots, and with attributes that may not be asked for": """
        import functools
        class Shy:
            __slots__ = ("by",)
            def __init__(self, by): self.by = by
            def __getattribute__(self, name):
                if name not in ("by", "__class__"):
                    print("asked for", name)
                return object.__getattribute__(self, name)
            def __call__(self, x): return x * self.by
        class Odd(Pictures):
            def __getattr__(self, name):
                print("asked for", name)
                raise AttributeError(name)
            @property
            def transforms(self):
                print("asked for transforms")
        said(DataLoader(Odd(Shy(2), 2))); said(DataLoader(Pictures(functools.partial(Shy(2)), 2)))
        """,
    "workers that stay, that are set up, and have no order": """
        def begin(worker):
            torch.manual_seed(worker)
        kept = DataLoader(Pictures(Noise()), batch_size=2, num_workers=2, persistent_workers=True, worker_init_fn=begin)
        for _ in range(2):
            said(kept)
        """,
    "a loader in a dataset of a loader": """
        class Nested(Pictures):
            def __getitem__(self, i):
                return sum(x.sum() for x in DataLoader(Pictures(Noise(), 2)))
        said(DataLoader(Nested(n=2))); said(DataLoader(Nested(n=2), num_workers=1))
        """,
    "a deep recursion": """
        class Deep(Pictures):
            def __getitem__(self, i):
                def down(n): return down(n + 1)
                try:
                    down(0)
                except RecursionError as exc:
                    print(type(exc).__name__, flush=True)
                return torch.zeros(1)
        said(DataLoader(Deep(n=1)))
        """,
}  # fmt: skip

ALL = """
    import importlib, sys, traceback
    sys.stderr = sys.stdout
    for number in range(%d):
        print("== program", number, flush=True)
        try:
            importlib.import_module(f"program_{number}")
        except Exception:
            traceback.print_exc()
    """

ALONE = {
    "what cannot be pickled for a worker": """
        if __name__ == "__main__":
            said(DataLoader(Pictures(lambda x: x), num_workers=1, multiprocessing_context="spawn"))
        """,
    "a worker that is started anew and fails": """
        class Crop:
            def __call__(self, x):
                raise ValueError("too small")
        if __name__ == "__main__":
            said(DataLoader(Pictures(Crop()), num_workers=1, multiprocessing_context="spawn"))
        """,
}


def placeless(text: str) -> str:
    """A text without the places of objects in memory."""
    return re.sub(r"at 0x[0-9a-f]+", "at <place>", text)


def parts(said: Said) -> dict[str, str]:
    """What each of the programs has said."""
    assert said.code == 0, said.err
    text = placeless(said.out).split("== program ")[1:]
    return {name: text.partition("\n")[2] for name, text in zip(PROGRAMS, text, strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    programs = {
        f"program_{number}": dedent(HEAD) + dedent(program)
        for number, program in enumerate(PROGRAMS.values())
    }
    return write(tmp_path_factory.mktemp("programs"), main=ALL % len(programs), **programs)


@pytest.fixture(scope="module")
def under_python(folder: Path) -> dict[str, str]:
    return parts(run(folder, "main.py"))


@pytest.fixture(scope="module")
def under_voirkit(folder: Path) -> dict[str, str]:
    return parts(under_loader(folder, "--quiet"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_does_the_same(
    under_python: dict[str, str], under_voirkit: dict[str, str], name: str
) -> None:
    assert under_voirkit[name] == under_python[name]


def test_all_of_torch_that_is_watched_was_watched(
    under_voirkit: dict[str, str], folder: Path
) -> None:
    patches = json.loads((folder / "run" / "summary.json").read_text())["patches"]
    not_seen = {patch["name"]: patch["why_not"] for patch in patches if patch["why_not"]}
    assert {name: why for name, why in not_seen.items() if not name.startswith("program_")} == {}
    assert set(not_seen.values()) <= {"asks for its own local variables"}


@pytest.mark.parametrize("name", ALONE)
def test_does_the_same_alone(tmp_path: Path, name: str) -> None:
    write(tmp_path, main=dedent(HEAD) + dedent(ALONE[name]))
    theirs, ours = run(tmp_path, "main.py"), under_loader(tmp_path, "--quiet")
    assert (ours.code, ours.out, placeless(ours.err)) == (
        theirs.code,
        theirs.out,
        placeless(theirs.err),
    )
