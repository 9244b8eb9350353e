"""Loads and runs the user's script as Python would.

The script is one module, ``__main__``, executed from its first statement to its last. It is paused
only once: after the statements at its beginning that only define things (imports, functions,
classes, plain constants). So instruments can inspect the definitions before other code runs. This
module must never change what the script sees: ``sys.argv``, ``sys.path[0]``, and ``__main__`` with
its content.
"""

from __future__ import annotations
import __future__

import _ast as ast  # only the node classes: importing ast takes 2 ms of the start
import builtins
import io
import marshal
import os
import sys
import warnings
import zipimport  # Python has loaded it already
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib._bootstrap_external import MAGIC_NUMBER  # importing importlib.util takes 6 ms
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from voirkit.errors import CommandLineError, did_you_mean
from voirkit.imports import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Decorators of libraries that call the decorated function at once (sacred, checked with 0.8).
_RUNNERS = frozenset({"automain"})


def _nothing() -> None:
    """Do nothing; the default callback."""


class Program:
    """The program that the user wants to run: a script, a module or a function of a module.

    Attributes:
        name: The program's name as the user typed it.
        path: The absolute path of its source file, or None.
        argv: ``sys.argv`` while it runs.
        folder: ``sys.path[0]`` while it runs.
        source: The bytes of its source text, or None.
        tree: The syntax tree of the source, or None.
        begins: A callback for instruments, called right before ``run`` executes the program.
        ends: A callback for instruments, called right after that, even if the program raises.
        source_names: Names to display for source files, by path, if they differ from the path.
        defines: A callback, called during ``run`` after top-level definitions of functions and
            classes, before the next other statement; None if not needed.
    """

    def __init__(self, name: str, path: str | None, argv: Sequence[str], folder: str) -> None:
        self.name, self.path, self.argv, self.folder = name, path, list(argv), folder
        self.source: bytes | None = None
        self.source_names: Mapping[str, str] = {}
        self.tree: ast.Module | None = None
        self.function: tuple[str, str] | None = None
        self._code: CodeType | None = None
        self._module: ModuleType | None = None
        self._main: Callable[[], ModuleType] = lambda: ModuleType("__main__")
        self._split = 0
        self._names_id = 0  # id() of the dictionary of the module ``__main__``
        self.begins: Callable[[], object] = _nothing
        self.ends: Callable[[], object] = _nothing
        self.defines: Callable[[], object] | None = None

    # preparation of the program

    def compile(self) -> None:
        """Compile the whole source, so that syntax errors are raised before any of it runs."""
        if self.source is None or self.path is None:
            return
        self._code = compile(self.source, self.path, "exec", dont_inherit=True)
        try:
            with warnings.catch_warnings():  # the compilation above has shown the warnings
                warnings.simplefilter("ignore")
                tree = compile(self.source, self.path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
                assert isinstance(tree, ast.Module)
                compile(tree, self.path, "exec", dont_inherit=True)
            self.tree, self._split = tree, defining_part(tree.body)
        except RecursionError:
            # a long chain of elif or operators: Python can compile it from source, but
            # not from a tree
            self.tree, self._split = None, 0

    def defer(self, names: Sequence[str] = ()) -> bool:
        """Leave the first statement that sets one of these variables, and all later ones, to
        ``run``, so that a probe sees them.

        Args:
            names: The variables. If empty, all statements are left to ``run``.

        Returns:
            False if all statements that set one of the variables have been executed already.
        """
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
        """Set ``sys.argv`` and ``sys.path[0]`` as the program expects them."""
        sys.argv[:] = self.argv
        enter_folder(self.folder)

    # execution of the program

    def load(self) -> None:
        """Execute the statements at the beginning that only define things. For
        ``module:function``, import the function instead."""
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
        # Keep the module, not its dictionary: Python clears the module at exit, so that the
        # script's objects are deleted as usual.
        self._module = sys.modules["__main__"] = self._main()
        self._names_id = id(self._module.__dict__)
        if self.tree is not None and self._split:
            body = self.tree.body
            # If the second part annotates module variables, all annotated ones must be in it: see
            # ``_are_annotations_lazy``.
            if self._are_annotations_lazy() and any(map(_annotates, body[self._split :])):
                self._split = next(
                    (i for i in range(self._split) if _annotates(body[i])), self._split
                )
            exec(self._part(body[: self._split]), self._module.__dict__)

    def run(self) -> Any:
        """Execute the rest of the program. Returns the result of the function for
        ``module:function``, otherwise None."""
        parts = self._rest() if self.function is None else []
        # free the tree: every garbage collection of the script would visit its many objects
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
        """Return the code that is left to execute; if ``defines`` is set, in parts that end after
        definitions."""
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
        """True if the code compiles the annotations of module variables into a function (Python
        3.14). A code object makes this function at its start, so one part must have all of them."""
        assert self._code is not None
        return (
            sys.version_info >= (3, 14)
            and not self._code.co_flags & __future__.annotations.compiler_flag
        )

    def _part(self, statements: list[ast.stmt]) -> CodeType:
        """Return the code of some statements, with taps of probes on the functions that they
        define."""
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
        """Return code with the taps of probes. It was compiled from ``statements``, or from the
        whole source if that is None."""
        probes = sys.modules.get("voirkit.probes.live_functions")  # loaded only if there are probes
        woven: CodeType = (
            code if probes is None else probes.woven_script(statements, code, self.source)
        )
        return woven

    def release(self) -> None:
        """Drop the reference to the module, so that Python deletes its content as usual."""
        self._module = None

    def own_part(self, tb: TracebackType | None) -> TracebackType | None:
        """Return a traceback without voirkit's frames: from the script's module level, or the
        requested function, on. None if it contains no such frame."""
        while tb is not None and not self._is_own(tb.tb_frame):
            tb = tb.tb_next
        return tb

    def _is_own(self, frame: Any) -> bool:
        if self.function is not None:
            return frame.f_code is getattr(getattr(self, "_call", None), "__code__", None)
        return id(frame.f_globals) == self._names_id and frame.f_code.co_name == "<module>"


# Flags of the `from __future__` imports that still change compilation. Such an import in the first
# part of the script applies to the later parts too, which are compiled separately.
_FUTURE = __future__.annotations.compiler_flag | __future__.barry_as_FLUFL.compiler_flag


# finding the program


def script(name: str, arguments: Iterable[str]) -> Program:
    """Return the program of ``python NAME ARGUMENTS``: a file, or a folder or archive with a
    ``__main__.py``. Raises CommandLineError if there is no such script."""
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
    # ``python SCRIPT`` does not normalize the path either
    path = name if os.path.isabs(name) else os.path.join(current_folder(), name)
    folder = os.path.dirname(os.path.realpath(path))  # Python resolves symbolic links
    program = Program(name, path, [name, *arguments], folder)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as exc:
        raise CommandLineError(f"the script {name!r} cannot be read: {exc.strerror}.") from None
    if source[:4] == MAGIC_NUMBER:  # a compiled file (.pyc)
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
    """Return the program of ``python -m NAME ARGUMENTS``; with ``NAME:FUNCTION`` it is a function
    of a module. Raises CommandLineError if the module cannot be found."""
    cwd = current_folder()
    if ":" in name:
        module_name, function = name.split(":", 1)
        if not module_name or not all(part.isidentifier() for part in function.split(".")):
            raise CommandLineError(
                f"{name!r} names no function of a module.",
                where="-m",
                next="Write: -m MODULE:FUNCTION",
            )
        program = Program(name, None, [name, *arguments], cwd)
        program.function = (module_name, function)
        program.enter()
        _check_package(module_name)
        return program
    program = Program(name, None, ["-m", *arguments], cwd)
    program.enter()
    import runpy

    try:
        # the function that ``python -m`` itself calls
        _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
    except ImportError as exc:
        if exc.name is not None and not f"{name}.".startswith(f"{exc.name}."):
            raise  # a module that the package imports is missing: the package's own error
        raise CommandLineError(
            f"{str(exc).rstrip('.')}.", where=f"-m {name}", next=_near_module(name)
        ) from None
    except Exception as exc:  # runpy's error class is private, so it is identified by name
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
    """Complete a program whose module spec and code the import system has found."""
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
    """Return the module ``__main__`` with the names that Python would set; ``cached`` is the path
    of its bytecode file."""
    module = ModuleType("__main__")
    module.__dict__.update(names)
    if sys.version_info < (3, 15):
        module.__dict__["__cached__"] = cached
    # since Python 3.14 a module creates ``__annotations__`` when it is first read
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    return module


def current_folder() -> str:
    """Return the current folder, even if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.environ.get("PWD", os.sep)


def shorten(path: str) -> str:
    """Return a path relative to the current folder, if it is inside that folder; otherwise
    unchanged."""
    return path.removeprefix(current_folder() + os.sep)


_behind: list[str] = []  # the folder that ``put_last`` has moved to the end of ``sys.path``


def put_last(folder: str) -> None:
    """Move the program's folder to the end of ``sys.path`` until the program starts, so that it
    hides no module that voirkit has yet to import."""
    if _has_folder():
        sys.path[:1] = []
        sys.path.append(folder)
        _behind.append(folder)


def enter_folder(folder: str) -> None:
    """Set ``sys.path[0]`` to a folder, unless Python was started without this entry (-P, -I,
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
    """Return ``sys.path[0]`` for a script: its folder. For a module (None) it is the current
    folder."""
    if script is None:
        return current_folder()
    path = os.path.join(current_folder(), script)
    return path if os.path.isdir(path) else os.path.dirname(os.path.realpath(path))


def _is_archive(name: str) -> bool:
    """True if a file is a zip archive, possibly with other data before it. False for a pipe, which
    is not read."""
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
            raise _missing_module(exc.name, name) from None
        raise


def _check_package(name: str) -> None:
    """Check that the outermost package of a module is there, without importing it.

    Raises:
        CommandLineError: There is no such package.
    """
    from importlib.util import find_spec

    package = name.partition(".")[0]
    if package not in sys.modules and find_spec(package) is None:
        raise _missing_module(package, name)


def _missing_module(missing: str, name: str) -> CommandLineError:
    """Return the error for a module ``name`` that cannot be run because ``missing``, the module or
    its package, does not exist."""
    return CommandLineError(
        f"there is no module {missing!r}.", where=f"-m {name}", next=_near_module(name)
    )


def _near_module(name: str) -> str:
    import pkgutil

    return did_you_mean(name, [m.name for m in pkgutil.iter_modules()])


# statements that only define things


def _walk(node: ast.AST) -> list[ast.AST]:
    """Return a node and all its descendants, without recursion."""
    nodes = [node]
    for each in nodes:  # the list grows during the loop
        for name in each._fields:
            value = getattr(each, name, None)
            nodes += [
                below
                for below in (value if isinstance(value, list) else (value,))
                if isinstance(below, ast.AST)
            ]
    return nodes


def _set_in(statement: ast.stmt) -> set[str]:
    """Return the names that a statement may set, including those in functions inside it."""
    names: set[str] = set()
    for node in _walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:  # a function, a class, an exception handler, a pattern
            names.update(
                name
                for name in (getattr(node, "name", None), getattr(node, "rest", None))
                if type(name) is str
            )
    return names


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def defining_part(body: list[ast.stmt]) -> int:
    """Return the number of statements at the beginning of a module that only define things.

    These are imports, functions, classes, and assignments of values without a call. A decorator may
    call the decorated function: those of the script itself are assumed to do so, those of imported
    libraries are not, except for a few known ones.
    """
    own_names: set[str] = set()  # functions and classes that the script itself defines
    for i, statement in enumerate(body):
        if not _defines(statement, own_names):
            return i
        own_names.update(n.name for n in _walk(statement) if isinstance(n, _DEFINITIONS))
    return len(body)


def _annotates(statement: ast.stmt) -> bool:
    """True if a statement of a module contains an annotation of a module variable."""
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
    """Split statements into parts; all but the last end after definitions of functions or classes.
    No part begins with a string, since that would become ``__doc__``."""
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
    """True if a statement only defines things. In the body of a class, calls of libraries are
    allowed, such as those that make fields and descriptors."""
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
    """True if the definition of a function or class calls no function or class of the script."""
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
    """True if an expression calls a function or class that the script itself defines."""
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
