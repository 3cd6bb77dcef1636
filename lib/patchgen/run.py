"""Loads a config module by running its file, and turns what it registered into a plan."""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ..errors import InputError, printable
from .discover import SUFFIX, Found
from .model import Code, Plan, name_of, plan_of
from .shim import shim
from .source import SourceModule, compiled, first_line, read_text


class NoConfig(InputError):
    """The module has no PatchConfig of the name that was asked for."""


class Loaded:
    """A config module that was run.

    Attributes:
        plans: variable -> plan of each PatchConfig that the module holds under its own source.
    """

    def __init__(self, found: Found, module: ModuleType, files: Files) -> None:
        self._found, self._module, self._files = found, module, files

    def plan(self, variable: str) -> Plan:
        """The plan of a variable.

        Raises:
            NoConfig: no such variable.
            InputError: it is no PatchConfig, or a part of it cannot be used.
        """
        config = self._module.__dict__.get(variable)
        file = str(self._found.file)
        if config is None:
            raise NoConfig(f"{file}: no variable '{variable}'", expected="a PatchConfig")
        if not is_config(config):
            name = type(config).__name__
            raise InputError(f"{file}: '{variable}'", found=name, expected="a PatchConfig")
        return plan_of(config, file, self._found.module, variable, self._files.locate)

    @property
    def target_files(self) -> set[str]:
        """Names of the files that the configs of this module write, under whatever variable."""
        return {
            c.target_file
            for c in self._module.__dict__.values()
            if is_config(c) and isinstance(c.target_file, str)
        }


def is_config(obj: Any) -> bool:
    """Whether this is a PatchConfig, of ntool or of the reference tool."""
    return type(obj).__name__ == "PatchConfig" and hasattr(obj, "source_module")


class Session:
    """Runs config modules in this process, with the project on the import path.

    A context manager: afterwards the import path is what it was, and modules that came from the
    project are forgotten. What a config does to the process itself, only one of its own survives:
    config_process.py.

    Args:
        roots: folders to put on the import path.
        shim_modules: see `shim`.
    """

    def __init__(self, shim_modules: Sequence[str] = ()) -> None:
        self._shim_modules = tuple(shim_modules)
        self._roots: set[Path] = set()

    def __enter__(self) -> Session:
        self._path = list(sys.path)
        self._before = set(sys.modules)
        self._bytecode = sys.dont_write_bytecode
        sys.dont_write_bytecode = True  # running a config leaves nothing beside it
        return self

    def __exit__(self, *_: object) -> None:
        sys.path[:] = self._path
        sys.dont_write_bytecode = self._bytecode
        for name in set(sys.modules) - self._before:
            if self._of_project(sys.modules.get(name)):
                del sys.modules[name]

    def _of_project(self, module: ModuleType | None) -> bool:
        places = [getattr(module, "__file__", None), *_search_path(module)]
        own = [Path(p).resolve() for p in places if isinstance(p, str)]
        return any(p.is_relative_to(root.resolve()) for p in own for root in self._roots)

    def load(self, found: Found, roots: Sequence[Path]) -> Loaded:
        """Run a config module.

        Args:
            roots: folders to put on the import path.
        Raises:
            InputError: it cannot be read, is not Python, or raises, whatever it raises.
        """
        self._roots |= set(roots)
        sys.path[:] = [*dict.fromkeys(map(str, roots)), *self._path]
        code = compiled(read_text(found.file), found.file)
        module = _new_module(found)
        files = Files()
        with shim(self._shim_modules), _registered(module), _aside():
            self._run(code, module, found)
            loaded = Loaded(found, module, files)
            files.know(module)
        return loaded

    @staticmethod
    def _run(code: CodeType, module: ModuleType, found: Found) -> None:
        try:
            exec(code, module.__dict__)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            line = _line_in(e, str(found.file))
            where = f"{found.file}: line {line}" if line else str(found.file)
            what = f"{type(e).__name__}: {printable(e)}"
            raise InputError(f"{where}: the config cannot be loaded ({what})") from e


class _Errors(io.RawIOBase):
    """Standard error, whatever becomes of this object; what cannot be written is dropped."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def write(self, data: Any) -> int:
        try:
            return os.write(2, data)
        except OSError:
            return len(data)


@contextmanager
def _aside() -> Iterator[None]:
    """What is written to standard output in the block goes to standard error, however it is
    written; afterwards both and the current folder are what they were."""

    streams = {name: getattr(sys, name) for name in _STREAMS}
    folder = os.getcwd()
    _flush(streams.values())
    with ExitStack() as after:
        for fd in (1, 2):
            kept = os.dup(fd)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, fd)
        os.dup2(2, 1)
        errors = io.TextIOWrapper(
            io.BufferedWriter(_Errors()),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        vars(sys).update(dict.fromkeys(streams, errors))
        try:
            yield
        finally:
            _flush([errors, *streams.values()])
            vars(sys).update(streams)
            with suppress(OSError):  # it may be gone
                os.chdir(folder)


_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


def _flush(streams: Iterable[Any]) -> None:
    for stream in streams:
        with suppress(OSError, ValueError):  # full, closed
            if stream is not None:
                stream.flush()


def _search_path(module: ModuleType | None) -> list[Any]:
    try:
        return list(getattr(module, "__path__", ()))
    except Exception:  # a lazy module may do anything here
        return []


def _line_in(error: BaseException, file: str) -> int | None:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _new_module(found: Found) -> ModuleType:
    module = ModuleType(found.module)
    package = found.module.rpartition(".")[0]
    module.__dict__.update(__file__=str(found.file), __package__=package)
    return module


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """The module in the table of modules while it runs; no config stays there.

    One that imports a sibling may change it in place: the next gets a fresh one.
    """
    before = set(sys.modules)
    own = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and file.endswith(SUFFIX):
                del sys.modules[name]
        if own is None:
            sys.modules.pop(module.__name__, None)
        else:
            sys.modules[module.__name__] = own


class Files:
    """Files that replacements are defined in, each parsed once."""

    def __init__(self) -> None:
        self._files: dict[str, SourceModule] = {}
        self._modules: dict[str, str] = {}

    def know(self, module: ModuleType) -> None:
        """Remember where modules lie, before they are forgotten."""
        self._modules = {
            name: file
            for name, m in list(sys.modules.items())
            if isinstance(file := getattr(m, "__file__", None), str)
        }
        self._modules[module.__name__] = str(module.__file__)

    def locate(self, obj: Any) -> Code:
        """Where a class or function is defined.

        Raises:
            InputError: in no file, or inside another function.
        """
        obj = _unwrapped(obj)
        qualname = getattr(obj, "__qualname__", name_of(obj))
        what = f"{getattr(obj, '__module__', None)}.{qualname}"
        if "<locals>" in qualname or "<lambda>" in qualname:
            raise InputError(
                f"replacement {what} is made inside another function",
                expected="a class or function at module level; decorators use functools.wraps",
            )
        code = getattr(obj, "__code__", None)
        module = str(getattr(obj, "__module__", ""))
        file = code.co_filename if code is not None else self._modules.get(module)
        if file is None or not (isinstance(obj, type) or code is not None):
            raise InputError(f"replacement {what} is no class or function of a Python file")
        source = self._file(file, module)
        if code is not None:
            nodes = [
                n
                for n in source.everywhere.values()
                if n.name == code.co_name and code.co_firstlineno in (first_line(n), n.lineno)
            ]
        else:
            nodes = [*_of_class(source.tree, obj, qualname, file)]
        if not nodes:
            raise InputError(f"{file}: the definition of {what} is not found")
        return Code(file, nodes[-1].lineno, nodes[-1].name, module)

    def _file(self, file: str, module: str) -> SourceModule:
        if file not in self._files:
            self._files[file] = SourceModule(Path(file), module, read_text(file))
        return self._files[file]


_INSIDE = ("__func__", "fget", "func", "fn")
"""Where static and class methods, properties, cached properties and compiled functions keep what
they were made of."""


def _unwrapped(obj: Any) -> Any:
    for _ in range(100):
        if isinstance(obj, type):
            return obj
        inner = [getattr(obj, name, None) for name in _INSIDE if not hasattr(obj, "__code__")]
        inner = [getattr(obj, "__wrapped__", None), *inner]
        found = next((i for i in inner if callable(i)), None)
        if found is None:
            return obj
        obj = found
    return obj


def _of_class(tree: ast.Module, obj: type, qualname: str, file: str) -> list[ast.ClassDef]:
    """Definitions of a class by its qualified name; by a method's line where there are several."""
    names = qualname.split(".")
    nodes: list[ast.ClassDef] = [n for n in _classes(tree) if n.name == names[0]]
    for name in names[1:]:
        nodes = [c for n in nodes for c in _classes(n) if c.name == name]
    if len(nodes) < 2:
        return nodes
    codes = [getattr(v, "__code__", None) for v in vars(obj).values()]
    lines = [c.co_firstlineno for c in codes if c is not None and c.co_filename == file]
    inside = [n for n in nodes if any(n.lineno <= x <= (n.end_lineno or 0) for x in lines)]
    return inside or nodes


def _classes(node: ast.AST) -> Iterator[ast.ClassDef]:
    """Classes in a body, those in guards included, not those inside other definitions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case) and not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef
        ):
            yield from _classes(child)
