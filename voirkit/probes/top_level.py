"""The top level of a module as something with taps: the body of a function that stands for it, and is never compiled itself.

What is about calls (``#enter``, ``#value``, parameters) has no meaning there; ``grammar.py`` refuses it.
"""

from __future__ import annotations

import ast

from voirkit.probes.grammar import TOP


def as_function(statements: list[ast.stmt]) -> ast.FunctionDef:
    """A function with these statements for its body, to be looked at or tapped in the module's stead."""
    nothing = ast.arguments(posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[])
    function = ast.FunctionDef(name=TOP, args=nothing, body=statements, decorator_list=[], returns=None)
    function.lineno, function.col_offset = 1, 0
    return function


def is_top(node: ast.AST) -> bool:
    """Whether a function only stands for a module."""
    return isinstance(node, ast.FunctionDef) and node.name == TOP


def is_future(statement: ast.stmt) -> bool:
    """Whether it is an import from ``__future__``."""
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__" and not statement.level
