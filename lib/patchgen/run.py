"""Loads a config module by running its file, and turns what it registered into a plan."""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from ..errors import InputError, printable
from .discover import SUFFIX, Found
from .model import Code, Plan, name_of, plan_of
from .shim import shim
from .source import SourceModule, compiled, first_line, read_text

T = TypeVar("T")

# bound here: a config may replace them in their modules, and is no reason to stop working
_getpid, _exit, _write = os.getpid, os._exit, os.write
_gettrace, _settrace = sys.gettrace, sys.settrace
_getprofile, _setprofile = sys.getprofile, sys.setprofile
_type_name = type.__dict__["__name__"].__get__
"""Name of a class, whatever its metaclass says."""
_trace_of = BaseException.__dict__["__traceback__"].__get__


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
            InputError: it is no PatchConfig, or a part of it cannot be used or raises.
        """
        return reading(self._found.file, lambda: self._plan(variable))

    def _plan(self, variable: str) -> Plan:
        config = self._module.__dict__.get(variable)
        file = str(self._found.file)
        if config is None:
            raise NoConfig(f"{file}: no variable '{variable}'", expected="a PatchConfig")
        if not is_config(config):
            name = _type_name(type(config))
            raise InputError(f"{file}: '{variable}'", found=name, expected="a PatchConfig")
        return plan_of(config, file, self._found.module, variable, self._files.locate)

    @property
    def target_files(self) -> set[str]:
        """Names of the files that the configs of this module write, under whatever variable.

        Raises:
            InputError: a config of the module raises when it is asked.
        """
        return reading(self._found.file, self._target_files)

    def _target_files(self) -> set[str]:
        files = [c.target_file for c in [*self._module.__dict__.values()] if is_config(c)]
        return {str.__str__(f) for f in files if isinstance(f, str)}


def is_config(obj: Any) -> bool:
    """Whether this is a PatchConfig, of ntool or of the reference tool."""
    return bool(_type_name(type(obj)) == "PatchConfig") and hasattr(obj, "source_module")


class Unreadable(InputError):
    """A config, or what it holds, raises: what else it changed is not known."""


def reading(file: Path, read: Callable[[], T]) -> T:
    """What `read` gives, which asks objects of a config: their properties and texts are its code.

    Raises:
        Unreadable: it raises anything but an InputError.
    """
    try:
        return read()
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as e:
        raise Unreadable(f"{file}: what the config holds cannot be read ({_said(e)})") from e


def _said(error: BaseException) -> str:
    name = printable(_type_name(type(error)))
    try:
        return f"{name}: {printable(error)}"
    except BaseException:  # its text is code of the config, too
        return name


class Session:
    """Runs config modules in this process, with the project on the import path.

    A context manager: afterwards the import path is what it was, and modules that came from the
    project are forgotten. What a config does to the process itself, only one of its own survives:
    config_process.py.

    Args:
        roots: folders to put on the import path.
        shim_modules: see `shim`.
    Attributes:
        traced: a config left a trace or profile function, which was taken off.
    """

    traced = False

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

    def _run(self, code: CodeType, module: ModuleType, found: Found) -> None:
        pid, trace, profile = _getpid(), _gettrace(), _getprofile()
        try:
            try:
                exec(code, module.__dict__)
            finally:  # no function of Python is called here: tracing would run for it
                if _getpid() != pid:
                    _exit(0)  # a copy that the config made: it is no second ntool
                if _gettrace() is not trace:
                    _settrace(trace)
                    self.traced = True
                if _getprofile() is not profile:
                    _setprofile(profile)
                    self.traced = True
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            line = _line_in(e, str(found.file))
            where = f"{found.file}: line {line}" if line else str(found.file)
            raise Unreadable(f"{where}: the config cannot be loaded ({_said(e)})") from e


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
            return _write(2, data)
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


def _file_of(module: Any) -> str | None:
    try:
        file = getattr(module, "__file__", None)
        return str.__str__(file) if isinstance(file, str) else None
    except Exception:  # a config may put anything into the table of modules
        return None


def _line_in(error: BaseException, file: str) -> int | None:
    line, trace = None, _trace_of(error)
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
            file = _file_of(sys.modules.get(name))
            if file is not None and file.endswith(SUFFIX):
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
            name: file for name, m in list(sys.modules.items()) if (file := _file_of(m)) is not None
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
