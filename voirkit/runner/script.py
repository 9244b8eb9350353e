"""Loads and runs the user's script as python would.

The script is one module, ``__main__``, run from its first statement to its last. It is only paused
once: after the statements at its beginning that do nothing but define (imports, functions, classes,
plain constants), so that instruments can look at what is defined before anything starts. Must never
change what the script sees: ``sys.argv``, ``sys.path[0]``, ``__main__`` and what is in it.
"""

from __future__ import annotations
import __future__

import _ast as ast  # the nodes alone: the module ast takes 2 ms of the start
import builtins
import io
import marshal
import os
import sys
import warnings
import zipimport  # python has it loaded
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib._bootstrap_external import MAGIC_NUMBER  # importlib.util takes 6 ms
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from voirkit.errors import CommandLineError, did_you_mean
from voirkit.imports import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Decorators of imported libraries that call what they decorate at once (sacred, checked with 0.8).
_RUNNERS = frozenset({"automain"})


def _nothing() -> None:
    """Stands where no instrument has put a callback."""


class Program:
    """What the user wants run: a script, a module or a function of a module.

    Attributes:
        name: As the user typed it.
        path: Absolute path of its source file, or None if it has none.
        argv: What ``sys.argv`` is while it runs.
        folder: What ``sys.path[0]`` is while it runs.
        source: Its source text's bytes, or None.
        begins, ends: Called right before what ``run`` runs, and right after, however it ends; an
            instrument may put a function here.
        source_names: What its user calls files of code by, other than their names.
        defines: Called when functions and classes have been defined at the outermost level of what
            ``run`` runs, and something else follows; None if nobody wants to know.
    """

    def __init__(self, name: str, path: str | None, argv: Sequence[str], folder: str) -> None:
        self.name, self.path, self.argv, self.folder = name, path, list(argv), folder
        self.source: bytes | None = None
        self.source_names: Mapping[str, str] = {}
        self.tree: ast.Module | None = None  # its syntax tree, or None if it has no source
        self.function: tuple[str, str] | None = None
        self._code: CodeType | None = None
        self._module: ModuleType | None = None
        self._main: Callable[[], ModuleType] = lambda: ModuleType("__main__")
        self._split = 0
        self._names_id = 0  # of the module's dictionary
        self.begins: Callable[[], object] = _nothing
        self.ends: Callable[[], object] = _nothing
        self.defines: Callable[[], object] | None = None

    # before it runs

    def compile(self) -> None:
        """Compile the whole source, so that what python would refuse is refused before anything
        runs."""
        if self.source is None or self.path is None:
            return
        self._code = compile(self.source, self.path, "exec", dont_inherit=True)
        try:
            with warnings.catch_warnings():  # the compiler has given its warnings once
                warnings.simplefilter("ignore")
                tree = compile(self.source, self.path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
                assert isinstance(tree, ast.Module)
                compile(tree, self.path, "exec", dont_inherit=True)
            self.tree, self._split = tree, defining_part(tree.body)
        except RecursionError:
            # a long chain of elif or operators: python compiles it from source, but
            # not from a tree
            self.tree, self._split = None, 0

    def defer(self, names: Sequence[str] = ()) -> bool:
        """Leave the first statement that sets one of these variables (all, if none are named), and
        all after it, to ``run``. A probe is to see it. Returns whether at least one such statement
        is left."""
        body = self.tree.body if self.tree is not None else []
        setting = [
            i
            for i, statement in enumerate(body)
            if not names or not _set_in(statement).isdisjoint(names)
        ]
        if self._module is None:
            self._split = min([self._split, *setting])
        return not setting or setting[-1] >= self._split

    def enter(self) -> None:
        """Make ``sys.argv`` and ``sys.path`` those of the program."""
        sys.argv[:] = self.argv
        enter_folder(self.folder)

    # running

    def load(self) -> None:
        """Run the statements at the beginning that only define."""
        if self.function is not None:
            module, name = self.function
            target = _import(module)
            for part in name.split("."):
                if not hasattr(target, part):
                    raise CommandLineError(
                        f"{module} has no {part!r}.",
                        where="-m",
                        next=did_you_mean(part, dir(target)),
                    )
                target = getattr(target, part)
            if not callable(target):
                raise CommandLineError(f"{module}:{name} is not a function.", where="-m")
            self._call = target
            return
        # The module is kept, not its dictionary: python clears the one when it ends, so that what
        # the script holds is deleted as ever.
        self._module = sys.modules["__main__"] = self._main()
        self._names_id = id(self._module.__dict__)
        if self.tree is not None and self._split:
            body = self.tree.body
            # all in the other part
            if self._are_annotations_lazy() and any(map(_annotates, body[self._split :])):
                self._split = next(
                    (i for i in range(self._split) if _annotates(body[i])), self._split
                )
            exec(self._part(body[: self._split]), self._module.__dict__)

    def run(self) -> Any:
        """Run the rest. Returns what the function returned with ``module:function``, else None."""
        parts = self._rest() if self.function is None else []
        # as many objects as the script has words, which each garbage collection in it would look at
        self.tree = None
        self.begins()
        try:
            if self.function is not None:
                return self._call()
            for n, code in enumerate(parts):
                if n and self.defines is not None:
                    self.defines()
                assert self._module is not None
                exec(code, self._module.__dict__)
            return None
        finally:
            self.ends()

    def _rest(self) -> list[CodeType]:
        """The code that is left to run; in parts if somebody wants to know what it defines."""
        if self.tree is None:
            assert self._code is not None
            return [self._with_taps(self._code, None)]
        statements = self.tree.body[self._split :]
        if self._split and not statements:
            return []
        parts = [statements] if self.defines is None else _after_definitions(statements)
        if self._are_annotations_lazy():
            annotated = max(
                (i for i, part in enumerate(parts) if any(map(_annotates, part))), default=0
            )
            parts[: annotated + 1] = [
                [statement for part in parts[: annotated + 1] for statement in part]
            ]
        return [self._part(part) for part in parts]

    def _are_annotations_lazy(self) -> bool:
        """Whether those of the module's variables are a function, which code makes where it begins:
        one part has to have them all."""
        assert self._code is not None
        return (
            sys.version_info >= (3, 14)
            and not self._code.co_flags & __future__.annotations.compiler_flag
        )

    def _part(self, statements: list[ast.stmt]) -> CodeType:
        """The code of some of its statements, with the taps of probes on what they define."""
        assert self._code is not None
        assert self.path is not None
        assert self.tree is not None
        code = self._code
        if len(statements) < len(self.tree.body):
            future = self._code.co_flags & _FUTURE
            with quiet(self.path):
                code = compile(
                    ast.Module(body=statements, type_ignores=[]),
                    self.path,
                    "exec",
                    future,
                    dont_inherit=True,
                )
        return self._with_taps(code, statements)

    def _with_taps(self, code: CodeType, statements: list[ast.stmt] | None) -> CodeType:
        """Code of some statements, or of the whole source, with the taps of probes."""
        probes = sys.modules.get("voirkit.probes.live_functions")  # loaded only if there are probes
        woven: CodeType = (
            code if probes is None else probes.woven_script(statements, code, self.source)
        )
        return woven

    def release(self) -> None:
        """Let go of the module, so that python deletes what is in it when it would have."""
        self._module = None

    def own_part(self, tb: TracebackType | None) -> TracebackType | None:
        """A traceback from the first frame on that is the script's module level, or the function
        that was requested."""
        while tb is not None and not self._is_own(tb.tb_frame):
            tb = tb.tb_next
        return tb

    def _is_own(self, frame: Any) -> bool:
        if self.function is not None:
            return frame.f_code is getattr(getattr(self, "_call", None), "__code__", None)
        return id(frame.f_globals) == self._names_id and frame.f_code.co_name == "<module>"


# The `from __future__` imports of the first part hold for the second; these are those that still
# change how code compiles.
_FUTURE = __future__.annotations.compiler_flag | __future__.barry_as_FLUFL.compiler_flag


# finding it


def script(name: str, arguments: Iterable[str]) -> Program:
    """The program of ``python NAME ARGUMENTS``: a file, or a folder or archive with a
    ``__main__.py``."""
    if not os.path.exists(name):
        folder = os.path.dirname(name) or "."
        siblings = os.listdir(folder) if os.path.isdir(folder) else []
        near = did_you_mean(
            os.path.basename(name),
            [n for n in siblings if n.endswith(".py") or os.path.isdir(os.path.join(folder, n))],
        )
        raise CommandLineError(
            f"there is no script {name!r}.", next=near or f"Looked in {os.path.abspath(folder)}."
        )
    if os.path.isdir(name) or _is_archive(name):
        return _container(name, arguments)
    # as python: not normalized
    path = name if os.path.isabs(name) else os.path.join(current_folder(), name)
    folder = os.path.dirname(os.path.realpath(path))  # python follows the link
    program = Program(name, path, [name, *arguments], folder)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as exc:
        raise CommandLineError(f"the script {name!r} cannot be read: {exc.strerror}.") from None
    if source[:4] == MAGIC_NUMBER:  # compiled already
        program._code = marshal.loads(source[16:])
    else:
        program.source = source

    def main() -> ModuleType:
        loader = SourceFileLoader("__main__", path)
        return _main_module(
            None, __loader__=loader, __file__=path, __builtins__=builtins, __package__=None
        )

    program._main = main
    return program


def module(name: str, arguments: Iterable[str]) -> Program:
    """The program of ``python -m NAME ARGUMENTS``, or a function of a module with
    ``NAME:FUNCTION``."""
    cwd = current_folder()
    if ":" in name:
        module_name, function = name.split(":", 1)
        program = Program(name, None, [name, *arguments], cwd)
        program.function = (module_name, function)
        return program
    program = Program(name, None, ["-m", *arguments], cwd)
    program.enter()
    import runpy

    try:
        _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]  # what python -m itself calls
    except ImportError as exc:
        if exc.name is not None and not f"{name}.".startswith(f"{exc.name}."):
            raise  # what the package imports is missing: its own failure
        raise CommandLineError(
            f"{str(exc).rstrip('.')}.", where=f"-m {name}", next=_near_module(name)
        ) from None
    except Exception as exc:  # runpy's private error, by its name
        if type(exc).__name__ == "_Error":
            raise CommandLineError(f"{str(exc).rstrip('.')}.", where=f"-m {name}") from None
        raise
    return _from_spec(program, spec, code, [spec.origin or name, *arguments])


def _container(name: str, arguments: Iterable[str]) -> Program:
    from pkgutil import get_importer

    path = os.path.abspath(name)
    importer = get_importer(path)
    spec: Any = importer.find_spec("__main__") if importer is not None else None
    if spec is None or spec.loader is None:
        raise CommandLineError(
            f"{name!r} is a folder without a __main__.py, so it cannot be run.",
            next="Name the script in it.",
        )
    program = Program(name, None, [name, *arguments], path)
    return _from_spec(program, spec, spec.loader.get_code("__main__"), program.argv, package="")


def _from_spec(
    program: Program, spec: Any, code: CodeType, argv: list[str], package: str | None = None
) -> Program:
    """A program that the import system found."""
    program.argv, program._code = argv, code
    if str(spec.origin).endswith(".py") and hasattr(spec.loader, "get_data"):
        program.path, program.source = spec.origin, spec.loader.get_data(spec.origin)

    def main() -> ModuleType:
        parent = spec.parent if package is None else package
        names = {"__loader__": spec.loader, "__spec__": spec, "__file__": spec.origin}
        return _main_module(spec.cached, **names, __builtins__=builtins, __package__=parent)

    program._main = main
    return program


def _main_module(cached: str | None, **names: Any) -> ModuleType:
    """The module that a script is, with the names that python gives it; ``cached`` is the file of
    its bytecode."""
    module = ModuleType("__main__")
    module.__dict__.update(names)
    if sys.version_info < (3, 15):
        module.__dict__["__cached__"] = cached
    # since then a module has annotations when somebody asks for them
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    return module


def current_folder() -> str:
    """The current folder, also if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.environ.get("PWD", os.sep)


def shorten(path: str) -> str:
    """A path relative to the current folder, if it is below that."""
    return path.removeprefix(current_folder() + os.sep)


_behind: list[str] = []  # the folder that put_last has put there


def put_last(folder: str) -> None:
    """Put the program's folder last on ``sys.path`` until the program starts: it must hide nothing
    that voirkit has yet to import."""
    if _has_folder():
        sys.path[:1] = []
        sys.path.append(folder)
        _behind.append(folder)


def enter_folder(folder: str) -> None:
    """Make ``sys.path[0]`` the folder, unless python was told to have none (-P, -I,
    PYTHONSAFEPATH)."""
    if not _has_folder():
        return
    if _behind:
        last = _behind.pop()
        if sys.path[-1:] == [last]:
            sys.path.pop()
        sys.path.insert(0, folder)
    else:
        sys.path[:1] = [folder]


def _has_folder() -> bool:
    return not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated


def folder_of(script: str | None) -> str:
    """What ``sys.path[0]`` is for a script: its folder, or the current one for a module."""
    if script is None:
        return current_folder()
    path = os.path.join(current_folder(), script)
    return path if os.path.isdir(path) else os.path.dirname(os.path.realpath(path))


def _is_archive(name: str) -> bool:
    """Whether a file is a zip archive, with or without something before it. A pipe is none, and is
    left unread."""
    if not os.path.isfile(name):
        return False
    try:
        zipimport.zipimporter(name)
    except zipimport.ZipImportError:
        return False
    return True


def _import(name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(exc.name + ".")):
            raise CommandLineError(
                f"there is no module {exc.name!r}.", where="-m", next=_near_module(name)
            ) from None
        raise


def _near_module(name: str) -> str:
    import pkgutil

    return did_you_mean(name, [m.name for m in pkgutil.iter_modules()])


# what only defines


def _walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, however deep."""
    nodes = [node]
    for each in nodes:  # grows
        for name in each._fields:
            value = getattr(each, name, None)
            nodes += [
                below
                for below in (value if isinstance(value, list) else (value,))
                if isinstance(below, ast.AST)
            ]
    return nodes


def _set_in(statement: ast.stmt) -> set[str]:
    """The names that a statement may set, those of functions inside it too."""
    names: set[str] = set()
    for node in _walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:  # a definition, a handler, a pattern
            names.update(
                name
                for name in (getattr(node, "name", None), getattr(node, "rest", None))
                if type(name) is str
            )
    return names


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def defining_part(body: list[ast.stmt]) -> int:
    """How many statements at the beginning of a module do nothing but define.

    Imports, functions, classes, and names bound to what needs no call. A decorator may run what it
    decorates; those of imported libraries are taken not to, but for a few that are known; those of
    the script itself are.
    """
    own_names: set[str] = set()  # names that the script itself defines
    for i, statement in enumerate(body):
        if not _defines(statement, own_names):
            return i
        own_names.update(n.name for n in _walk(statement) if isinstance(n, _DEFINITIONS))
    return len(body)


def _annotates(statement: ast.stmt) -> bool:
    """Whether a statement of a module annotates a variable of it."""
    if isinstance(statement, ast.AnnAssign):
        return bool(statement.simple)
    if isinstance(statement, _DEFINITIONS):
        return False
    blocks = (
        getattr(statement, name, ())
        for name in ("body", "orelse", "finalbody", "handlers", "cases")
    )
    return any(_annotates(below) for block in blocks for below in block)


def _after_definitions(statements: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Statements in parts, each but the last up to where something has been defined. None begins
    with a text: it would be ``__doc__``."""
    parts: list[list[ast.stmt]] = [[]]
    has_defined = False
    for statement in statements:
        if isinstance(statement, _DEFINITIONS):
            has_defined = True
        elif has_defined and not _is_text(statement):
            parts.append([])
            has_defined = False
        parts[-1].append(statement)
    return parts


def _defines(statement: ast.stmt, own_names: set[str], in_class: bool = False) -> bool:
    """True if a statement only defines. The body of a class may call libraries: fields,
    descriptors."""
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass, ast.Global)):
        return True
    if _is_text(statement):
        return True
    if isinstance(statement, _DEFINITIONS):
        return _is_harmless_definition(statement, own_names)
    if isinstance(statement, ast.Assign):
        return _is_harmless_value(statement.value, own_names, in_class) and all(
            isinstance(target, (ast.Name, ast.Tuple, ast.Starred)) for target in statement.targets
        )
    if isinstance(statement, ast.AnnAssign):
        is_harmless = _is_harmless_value(statement.value, own_names, in_class)
        return is_harmless and isinstance(statement.target, ast.Name)
    if isinstance(statement, ast.If):
        if _asks_for_main(statement.test) or _does_work(statement.test):
            return False
        return _all_define([*statement.body, *statement.orelse], own_names, in_class)
    if isinstance(statement, ast.Try):
        inner = [*statement.body, *statement.orelse, *statement.finalbody]
        for handler in statement.handlers:
            inner += handler.body
        return _all_define(inner, own_names, in_class)
    return False


def _all_define(statements: Iterable[ast.stmt], own_names: set[str], in_class: bool) -> bool:
    return all(_defines(statement, own_names, in_class) for statement in statements)


def _is_harmless_definition(
    statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, own_names: set[str]
) -> bool:
    """True if the definition of a function or class calls nothing of the script."""
    for decorator in statement.decorator_list:
        if not _is_harmless_decorator(decorator, own_names):
            return False
    values: list[ast.expr | None]
    if isinstance(statement, ast.ClassDef):
        values = [*statement.bases, *(keyword.value for keyword in statement.keywords)]
    else:
        values = [*statement.args.defaults, *statement.args.kw_defaults]
    for value in values:
        if value is not None and _calls_own(value, own_names):
            return False
    if isinstance(statement, ast.ClassDef):
        return _all_define(statement.body, own_names, in_class=True)
    return True


def _is_harmless_value(value: ast.expr | None, own_names: set[str], in_class: bool) -> bool:
    if value is None:
        return True
    return not (_calls_own(value, own_names) if in_class else _does_work(value))


def _asks_for_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in _walk(test))


_WORK = (
    ast.Call,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Subscript,
    ast.NamedExpr,
)


def _does_work(value: ast.expr) -> bool:
    return any(isinstance(n, _WORK) for n in _walk(value))


def _calls_own(value: ast.expr, own_names: set[str]) -> bool:
    """True if an expression calls what the script itself defines."""
    return any(isinstance(n, ast.Call) and _root(n.func) in own_names for n in _walk(value))


def _is_harmless_decorator(decorator: ast.expr, own_names: set[str]) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return (
        _root(function) not in own_names
        and last not in _RUNNERS
        and not _calls_own(decorator, own_names)
    )


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
