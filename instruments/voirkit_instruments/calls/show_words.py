"""Calls in words: as a line of code would show them, and what is different between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit_instruments.calls.show import short

_MISSING = object()
_LONGEST = 100  # characters of a call


def call(module: str, name: str, given: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> str:
    """``F.dropout(float32 [4, 8], p=0.1) -> float32 [4, 8]``; without the result if that is left out."""
    args = given.get("args", [])
    words = [value(one) for one in (args[1:] if given.get("bound") else args)]
    words += [f"{key}={value(one)}" for key, one in given.get("kwargs", {}).items()]
    said = f"{short(f'{module}.{name}')}({_cut(', '.join(words))})"
    if result and "error" in result:
        return f"{said} raised {result['error']}"
    return f"{said} -> {value(result['returns'])}" if result and result.get("returns") is not None else said


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def value(one: Any) -> str:
    """A summary of a value, as short as it can be told."""
    if not isinstance(one, dict):
        return repr(one)
    if "tensor" in one:
        device = one.get("device", "cpu")
        return f"{one.get('dtype')} {one.get('shape')}" + (f" on {device}" if device != "cpu" else "")
    kind, items = str(one.get("type", "?")).rpartition(".")[2], one.get("items")
    if isinstance(items, list) and len(items) == one.get("n"):
        inner = ", ".join(map(value, items))
        return f"[{inner}]" if kind == "list" else f"({inner})" if kind == "tuple" else f"{kind}({inner})"
    if isinstance(items, dict) and len(items) == one.get("n"):
        return "{" + ", ".join(f"{key}: {value(inner)}" for key, inner in items.items()) + "}"
    return f"{kind} of {one['n']}" if "n" in one else f"a {kind}"


def given_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """``with p=0.5, in the other run with p=0.1``: what two calls of a function were given that is not the same; three things at most."""
    differences = [*_given(first, second)]
    some = differences[:3]
    more = f" (and {len(differences) - len(some)} more differences)" if len(differences) > len(some) else ""
    return f"{' and '.join(a for a, _ in some)}, in the other run {' and '.join(b for _, b in some)}{more}"


def _given(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    skip = 1 if first.get("bound") and second.get("bound") else 0
    ones, others = first.get("args", []), second.get("args", [])
    for at in range(max(len(ones), len(others))):
        one, other = (args[at] if at < len(args) else _MISSING for args in (ones, others))
        where = f"argument {at + 1 - skip}" if at >= skip else "self"
        yield from _of_one(one, other, lambda text, where=where: f"with {text} as {where}", f"without {where}")
    ones, others = first.get("kwargs", {}), second.get("kwargs", {})
    for key in dict.fromkeys([*ones, *others]):
        one, other = ones.get(key, _MISSING), others.get(key, _MISSING)
        yield from _of_one(one, other, lambda text, key=key: f"with {key}={text}", f"without {key}")


def _of_one(one: Any, other: Any, said: Any, without: str) -> Iterator[tuple[str, str]]:
    from voirkit_instruments.calls.analysis.divergence import same

    if one is _MISSING or other is _MISSING:
        yield tuple(without if value_ is _MISSING else said(value(value_)) for value_ in (one, other))  # type: ignore[misc]  # two
    elif not same(one, other):
        a, b = apart(one, other)
        yield said(a), said(b)


def apart(one: Any, other: Any) -> tuple[str, str]:
    """Two values that are not the same, each in words that tell them apart."""
    if isinstance(one, dict) and isinstance(other, dict) and "tensor" in one and "tensor" in other:
        a, b = value(one), value(other)
        for key, name in (("grad", "requires_grad"), ("device", "device"), ("tensor", "type")):
            if one.get(key) != other.get(key) and not (key == "device" and a != b):
                a, b = f"{a}, {name}={one.get(key)}", f"{b}, {name}={other.get(key)}"
        return a, b
    a, b = value(one), value(other)
    return (a, b) if a != b else (str(one), str(other))


def result_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """``returned float32 [4], in the other run float32 [8]``, or which exceptions were raised."""
    errors = first.get("error"), second.get("error")
    if errors[0] and errors[1]:
        return f"raised {errors[0]}, in the other run {errors[1]}"
    if errors[0] or errors[1]:
        return f"raised {errors[0]}, in the other run it did not" if errors[0] else f"returned, in the other run it raised {errors[1]}"
    a, b = apart(first.get("returns"), second.get("returns"))
    return f"returned {a}, in the other run {b}"
