"""What ptera 1.4.1, the present engine of probes, can not observe, or can not observe without changing the program.

Every refusal for the engine's sake is here and nowhere else: an engine without these limits deletes this file.
Each line of the tables was seen on ptera 1.4.1 with Python 3.11; the comments say what happens.
"""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import FunctionType

    from voirkit.probes.catalogue import Function

ENGINE = "ptera, the engine of probes,"

# How a variable may get its value without an event.
UNSEEN = {
    "with": "it is set by 'with ... as'",
    "list": "it is set in a list of targets, '[a, b] = ...'",
    "walrus": "it is set by ':=' inside the value of an assignment",
    "submodule": "it is set by 'import package.module'",
    "def": "it is set by 'def'",
    "class": "it is set by 'class'",
    "type": "it is set by 'type'",
    "comprehension": "it belongs to a comprehension",
    "handler": "it is set nowhere but in an 'except' block",  # SelectorError, or PteraNameError in the program
    "del": "it is only deleted",
    # PteraNameError in the program:
    "match": "it is set by 'case'",
    "declared": "it has a bare annotation",
    # NameError in the program: the name of ptera's helper is mangled
    "class body": "a class inside the function sets a name like it",
}

# What keeps the whole function from being probed.
CANNOT_TOOL = {
    "async": "it is an 'async def'",  # AssertionError
    "lambda": "it is a lambda",  # AssertionError
    "nonlocal": "it declares a name 'nonlocal'",  # SyntaxError
    "global": "it declares a name 'global' and only reads it",  # SyntaxError
    "starred": "it has an assignment 'a, *b = ...'",  # SyntaxError
    "for target": "it has a 'for' whose target is not a name or a tuple of names",  # NotImplementedError
    # These would fail in the program:
    "private": "it uses a private attribute, '.__name'",  # AttributeError: not mangled
    "iterator": "it unpacks an iterator, 'a, b = zip(...)'",  # TypeError: unpacking becomes indexing
    "locals": "it calls locals()",  # shows the engine's own names
}

NOT_SEEN = f"which {ENGINE} does not see"
CHANGES = f"which {ENGINE} can not watch without changing it"

ITERATORS = {"zip", "map", "filter", "reversed", "iter", "enumerate", "set", "frozenset"}
VIEWS = {"items", "keys", "values"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def attribute(name: str) -> str:
    """The sentence for an attribute such as ``self.x``: ptera accepts it and stays silent."""
    return f"'{name}' is an attribute, and {ENGINE} sees variables only."


def without_source(function: FunctionType) -> str:
    """The same for a live function whose source can not be found or read alone: ptera rewrites sources."""
    if function.__code__.co_name == "<lambda>":
        return f"can not be probed: {CANNOT_TOOL['lambda']}, {CHANGES}."
    return f"can not be probed: its source is not there to read, and {ENGINE} needs it."


def refusal(function: Function, variables: Collection[str], hashes: Collection[str], generic: bool) -> str:
    """Why a probe on this function can not be served.

    Args:
        function: What it is to be put on.
        variables: Names of the captured variables, all known to the function.
        hashes: The captured ``#enter``, ``#value`` ...
        generic: Whether all variables are captured (``$x`` without a tag).

    Returns:
        What to say after the function's name; ``""`` if nothing is in the way.
    """
    survey = _Survey(function)
    for key, line in survey.faults:
        return f"can not be probed: {CANNOT_TOOL[key]} (line {line}), {CHANGES}."
    for name in variables:
        if name in survey.unseen:
            key, line = survey.unseen[name]
            return f"can not be probed for '{name}': {UNSEEN[key]} (line {line}), {NOT_SEEN}."
    if generic:
        for name, (key, line) in survey.unseen.items():
            if key in ("handler", "match", "declared", "class body"):
                reason = f"'{name}' is one, and {UNSEEN[key]} (line {line}), {NOT_SEEN}"
                return f"can not be probed for all variables: {reason}."
    if "#value" in hashes and not function.returns and not function.is_lambda:
        return f"has no 'return', and {ENGINE} does not see that it gives None at its end."
    if survey.unseen_yields and ("#yield" in hashes or "#receive" in hashes):
        return f"yields on the right of an assignment or by 'yield from' (line {survey.unseen_yields[0]}), {NOT_SEEN}."
    return ""


class _Survey:
    """Goes through a function's statements as ptera's transformer does, and notes what that leaves out or breaks."""

    def __init__(self, function: Function) -> None:
        self.faults: list[tuple[str, int]] = []
        self.unseen: dict[str, tuple[str, int]] = {}
        self.unseen_yields: list[int] = []
        self.seen: set[str] = set(function.parameters)
        self.in_handler: dict[str, int] = {}
        node = function.node
        if isinstance(node, ast.Lambda):
            self.faults.append(("lambda", node.lineno))
            return
        if function.is_async:
            self.faults.append(("async", node.lineno))
            return
        stack: list[tuple[ast.AST, bool]] = [(statement, False) for statement in node.body]
        while stack:
            statement, handler = stack.pop()
            stack += [(inner, handler or isinstance(statement, ast.ExceptHandler)) for inner in self.visit(statement, handler)]
        self.faults.sort(key=lambda fault: fault[1])
        if function.mangles:
            inner = _inside(*node.body, but=(ast.ClassDef,))  # which has private names of its own
            self.faults += [("private", n.lineno) for n in inner if isinstance(n, ast.Attribute) and _is_private(n.attr)]
        for name in function.globals_declared:
            if name not in self.seen | set(self.in_handler) and name in function.globals_read:
                self.faults.append(("global", node.lineno))
        if "locals" in function.globals_read:
            self.faults.append(("locals", node.lineno))
        for name, variable in function.comprehension_variables.items():
            if not function.knows(name):
                self.unseen[name] = ("comprehension", variable.line)
        for name, line in self.in_handler.items():
            if name not in self.seen:
                self.unseen.setdefault(name, ("handler", line))
        for name, variable in function.variables.items():
            if variable.forms == ("del",):
                self.unseen.setdefault(name, ("del", variable.line))

    def sets(self, name: str, line: int, handler: bool) -> None:
        if handler:
            self.in_handler.setdefault(name, line)
        else:
            self.seen.add(name)

    def misses(self, name: str, key: str, line: int) -> None:
        self.unseen.setdefault(name, (key, line))

    def visit(self, node: ast.AST, handler: bool) -> Iterable[ast.AST]:
        """Note what a statement or expression does.

        Args:
            node: The statement or expression.
            handler: Whether it stands in an ``except`` block.

        Returns:
            What in it is to be visited too.
        """
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.misses(node.name, "def", node.lineno)
                return ()  # ptera leaves it as it is
            case ast.ClassDef():
                self.misses(node.name, "class", node.lineno)
                self.class_body(node)
                return ()
            case ast.Lambda():
                return ()
            case ast.Assign():
                self.hidden(node.value)
                for target in node.targets:
                    self.target(target, node.value, handler)
                return ()
            case ast.AnnAssign():
                if node.value is not None:
                    self.hidden(node.value)
                    self.target(node.target, node.value, handler)
                elif isinstance(node.target, ast.Name):
                    self.misses(node.target.id, "declared", node.lineno)
                return ()
            case ast.AugAssign(target=ast.Name(id=name)) | ast.NamedExpr(target=ast.Name(id=name)):
                self.sets(name, node.lineno, handler)
            case ast.For() | ast.AsyncFor():
                if not all(isinstance(n, ast.Name | ast.Tuple | ast.expr_context) for n in ast.walk(node.target)):
                    self.faults.append(("for target", node.lineno))
                for name in _names(node.target):
                    self.sets(name, node.lineno, handler)
            case ast.withitem(optional_vars=ast.expr() as target):
                for name in _names(target):
                    self.misses(name, "with", target.lineno)
            case ast.ExceptHandler():
                if node.name:
                    self.sets(node.name, node.lineno, handler)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    if alias.asname or "." not in alias.name:
                        self.sets(alias.asname or alias.name, node.lineno, handler)
                    else:
                        self.misses(alias.name.split(".")[0], "submodule", node.lineno)
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
                self.misses(name, "match", node.lineno)
            case ast.Nonlocal():
                self.faults.append(("nonlocal", node.lineno))
            case ast.YieldFrom():
                self.unseen_yields.append(node.lineno)
        if type(node).__name__ == "TypeAlias":  # 3.12 and later
            self.misses(node.name.id, "type", node.lineno)  # type: ignore[attr-defined]
            return ()
        return ast.iter_child_nodes(node)

    def target(self, target: ast.expr, value: ast.expr, handler: bool, in_list: bool = False) -> None:
        match target:
            case ast.Name():
                if in_list:
                    self.misses(target.id, "list", target.lineno)
                else:
                    self.sets(target.id, target.lineno, handler)
            case ast.Tuple() if not in_list:
                if any(isinstance(element, ast.Starred) for element in target.elts):
                    self.faults.append(("starred", target.lineno))
                if _has_no_index(value):
                    self.faults.append(("iterator", target.lineno))
                for element in target.elts:
                    self.target(element, ast.Constant(None), handler)
            case ast.List() | ast.Tuple():
                for element in target.elts:
                    self.target(element, value, handler, in_list=True)
            case ast.Starred():
                self.target(target.value, value, handler, in_list)

    def hidden(self, value: ast.expr) -> None:
        """The value of an assignment: ptera does not look into it."""
        for node in _inside(value):
            if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
                self.misses(node.target.id, "walrus", node.lineno)
            elif isinstance(node, ast.Yield | ast.YieldFrom):
                self.unseen_yields.append(node.lineno)

    def class_body(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            for name in _names(statement):
                self.misses(name, "class body", statement.lineno)


def _names(node: ast.AST) -> list[str]:
    """The names that a target or statement sets, but for inner functions."""
    return [n.id for n in _inside(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _inside(*nodes: ast.AST, but: tuple[type[ast.AST], ...] = FUNCTIONS) -> Iterator[ast.AST]:
    """Nodes and all in them, without those of some kinds and what is in these."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if not isinstance(node, but):
            yield node
            stack += ast.iter_child_nodes(node)


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _has_no_index(value: ast.expr) -> bool:
    """Whether it is for sure something to iterate over that has no ``value[0]``."""
    match value:
        case ast.GeneratorExp() | ast.Set() | ast.SetComp() | ast.Dict() | ast.DictComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in ITERATORS
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]):
            return name in VIEWS
    return False
