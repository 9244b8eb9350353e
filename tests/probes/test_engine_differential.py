"""The engine beside ptera 1.4.1, on functions and selectors that hypothesis makes up, where ptera is right.

They meet in a process of their own: ptera looks at every object there is, and other tests leave some that do not like it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voirkit import probing

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses what python 3.12 deprecates
    ptera = pytest.importorskip("ptera")

VARIABLES = ["a", "b", "c"]
values = st.sampled_from(["n", "1", "n + 2", "h(n)", "a", "b + a", "h(a)"])


@st.composite
def blocks(draw: Any, depth: int = 0) -> list[str]:
    """A few statements."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(
            st.sampled_from(
                ["set", "set", "add", "if", "for", "try"] if depth < 2 else ["set", "add"]
            )
        )
        name = draw(st.sampled_from(VARIABLES))
        if kind == "set":
            lines.append(f"{name} = {draw(values)}")
        elif kind == "add":
            lines.append(f"{name} += 1")
        else:
            inner = [f"    {line}" for line in draw(blocks(depth + 1))]
            loop = f"for {'ij'[depth]} in range({draw(st.integers(0, 2))}):"
            head = {"if": f"if n > {draw(st.integers(0, 2))}:", "for": loop, "try": "try:"}[kind]
            lines += [head, *inner]
            if kind == "try":
                lines += ["finally:", f"    {name} = 5"]
    return lines


@st.composite
def programs(draw: Any) -> str:
    """A function f and one that it calls."""
    body = ["a = n", "b = 0", "c = 1", *draw(blocks()), "return a"]
    lines = "\n".join(f"    {line}" for line in body)
    return f"def h(x):\n    y = x * 2\n    return y\n\n\ndef f(n):\n{lines}\n"


context = st.lists(st.sampled_from(["n", *VARIABLES]), unique=True, max_size=2)
focus = st.sampled_from([*VARIABLES, "#enter", "#exit", "#value", "#error"])


@st.composite
def selectors(draw: Any) -> tuple[str, dict[str, Any]]:
    """A selector and the options of a probe."""
    names, at = draw(context), draw(focus)
    inside = f"({', '.join(n for n in names if n != at)})" if any(n != at for n in names) else ""
    kind = draw(st.sampled_from(["one", "one", "calls", "total", "condition"]))
    if kind == "one":
        return f"f{inside} > {at}", {}
    if kind == "calls":
        return f"f{inside} > h > y", {}
    if kind == "total":
        return f"f({', '.join(names or ['a'])})", {"raw": True}
    return f"f(n={draw(st.integers(0, 2))}) > {at}", {}


def shown(value: Any) -> Any:
    """A value, or what a capture holds, or the type of an exception."""
    if hasattr(value, "values") and hasattr(value, "capture"):
        return list(value.names), list(value.values)
    return type(value) if isinstance(value, BaseException) else value


def run(
    probe_of: Any, source: Path, selector: str, options: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    events: list[Any] = []
    results: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe_of(selector, env=vars(module), **options) as probe:
            probe.subscribe(lambda event: events.append({k: shown(v) for k, v in event.items()}))
            for n in range(4):
                try:
                    results.append(module.f(n))
                except Exception as error:
                    results.append(type(error))
    return events, results


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), selectors())
def compare(program: str, selector: tuple[str, dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"program_{abs(hash(program))}.py"
        source.write_text(program)
        assert run(probing, source, *selector) == run(ptera.probing, source, *selector)


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="ptera 1.4.1 uses ast.Str, which python 3.14 no longer has"
)
def test_events_and_results_are_those_of_ptera() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    compare()
