"""What is checked (a package, a folder of graphs, one graph) and what a check says of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from ...checkpoint.paths import contained
from ...checkpoint.regular_file import read_all
from ...checkpoint.strict_json import load_object
from ...errors import InputError, NtoolError
from .. import layout
from ..not_a_package import no_graph, no_graphs, no_such
from ..package import MAX_MANIFEST, Package, inside

if TYPE_CHECKING:
    from ...checkpoint.onnx_external import External
    from ...checkpoint.onnx_walk import Walk
    from ..golden_file import Golden
    from .parse import Reading

READ, INFER = "read", "infer"
"""Steps of a part that are done once, for several checks."""
MAX_DEPTH = 4
"""Folder levels that are searched for graphs when there is no package.json."""
MAX_GRAPHS = 1000
MAX_BESIDE = 100
MAX_LISTED = 20
"""Findings of one check about one component; the rest is counted in one more."""


@dataclass(frozen=True)
class Finding:
    """One statement of a check.

    Attributes:
        ok: True holds, False does not, None does not apply here (the message says why).
        message: what it is about: node path, tensor or file, and what is wrong.
        expected, actual: as JSON values, where they have a meaning.
        component: name of the component, None for the package as a whole.
        reason: short stable code of the rule that was broken, where a check has several.
        warning: holds, but somebody should know.
        see: id of the check whose fault keeps this one from an answer (`ok` None).
    """

    ok: bool | None
    message: str
    expected: Any = None
    actual: Any = None
    component: str | None = None
    reason: str | None = None
    warning: bool = False
    see: str | None = None


def bad(message: str, expected: Any = None, actual: Any = None, **more: Any) -> Finding:
    """A finding that fails the check."""
    return Finding(False, message, expected, actual, **more)


def warn(message: str, expected: Any = None, actual: Any = None, **more: Any) -> Finding:
    """A finding that does not fail the check."""
    return Finding(True, message, expected, actual, warning=True, **more)


def not_applicable(message: str, **more: Any) -> Finding:
    """A finding that says why the check has no answer; `see` where another check's fault is it."""
    return Finding(None, message, **more)


def not_read(part: Part) -> Finding:
    """What a check of the package says of a component whose graph it cannot use."""
    text = f"no graph of {part.name}: see graph.parse"
    return not_applicable(text, component=part.name, see="graph.parse")


@dataclass
class Options:
    """What the user asked for, as far as checks depend on it.

    Attributes:
        standard_only: apply graph.standard whatever package.json says.
        against: SOURCE to compare weights with.
        manifest: path of a checksum list to use instead of the package's SHA256SUMS.
        writing: the package's SHA256SUMS is about to be replaced, so the old one is not compared.
        device: (`cpu` or `cuda`, index) for run.* and golden.*.
        goldens: opened files of --golden.
    """

    standard_only: bool = False
    against: str | None = None
    manifest: str | None = None
    writing: bool = False
    device: tuple[str, int] = ("cpu", 0)
    goldens: Sequence[Golden] = ()


@dataclass(eq=False)
class Part:
    """One graph. Two are the same only if they are one object.

    Attributes:
        name: of the component; without package.json the path of the graph.
        file: path of the graph relative to the root, for messages.
        path: absolute and resolved, or None when it may not or cannot be read (`refused` says why).
        folder: absolute folder that locations of external data are relative to.
        entry: the component's entry of package.json, {} without one.
        watch: what surrounds a step (`READ`, `INFER`) that several checks use and that may end the
            process: that is not the fault of the check that comes first.
        ends: the steps that have ended a process, and what is to be said of it.
    """

    name: str
    file: str
    path: str | None
    folder: str
    entry: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    watch: Callable[[str], AbstractContextManager[object]] = nullcontext
    ends: dict[str, Finding] = field(default_factory=dict)

    @cached_property
    def reading(self) -> Reading:
        """What graph.parse made of the file; with findings, the rest is not used further."""
        from .parse import Reading, read_model

        if self.path is None:
            return Reading([bad(f"{self.file}: {self.refused}")])
        if READ in self.ends:
            return Reading([self.ends[READ]])
        with self.watch(READ):
            return read_model(self.path, self.file)

    @cached_property
    def dtypes(self) -> dict[str, tuple[int, int]] | None:
        """{element type: (tensors, bytes)}; None where the graph cannot be read."""
        from ...checkpoint.onnx_types import dtype, nbytes

        if self.path is None or self.reading.walk is None:
            return None
        found: dict[str, tuple[int, int]] = {}
        for _, tensor in self.reading.walk.tensors:
            kind = dtype(tensor.data_type)
            count, total = found.get(kind, (0, 0))
            found[kind] = (count + 1, total + (nbytes(tensor) or 0))
        return found

    @property
    def is_linked(self) -> bool:
        """Whether its data files are those of the checkpoint, with tensors of others in them."""
        return self.entry.get("data_form") in layout.LINKED

    @property
    def is_in_place(self) -> bool:
        """Whether the package lies in the checkpoint's own folder."""
        return self.entry.get("data_form") == layout.INPLACE

    @property
    def model(self) -> ModelProto:
        """The parsed model; only for checks that need graph.parse."""
        model = self.reading.model
        assert model is not None, f"{self.name}: a check uses the model without needing graph.parse"
        return model

    @property
    def walk(self) -> Walk:
        """All graphs, nodes and tensors of the model."""
        walk = self.reading.walk
        assert walk is not None, f"{self.name}: a check uses the model without needing graph.parse"
        return walk

    @cached_property
    def externals(self) -> list[External]:
        """All tensors whose bytes are in other files."""
        from ...checkpoint.onnx_external import externals

        return externals(self.walk.tensors)

    @cached_property
    def typed(self) -> ModelProto:
        """The model with inferred types, not strict: what can be inferred is there."""
        from onnx import shape_inference

        if INFER in self.ends:
            return self.model
        with self.watch(INFER):
            return shape_inference.infer_shapes(self.model)


class Subject:
    """A package folder, a folder of graphs or one graph.

    Attributes:
        path: as it was given.
        root: absolute folder, links resolved only where the user named one.
        is_folder: whether a folder was named, not one graph.
        manifest: content of package.json, None without one.
        beside: of a lone graph, the other graphs in its folder, which may share its data.
    """

    def __init__(self, path: str, options: Options | None = None) -> None:
        """
        Raises:
            SourceNotFound: no such path, or no package.json and no graph in it.
            InputError: package.json cannot be read as JSON.
        """
        self.options = options or Options()
        self.manifest: dict[str, Any] | None = None
        self.raw_manifest = b""
        self.path = path
        self.beside: list[Part] = []
        if not path or "\0" in path or not os.path.exists(path):
            raise no_such(path)
        self.is_folder = os.path.isdir(path)
        if not self.is_folder:
            self.root, name = os.path.split(os.path.abspath(path))
            if not path.lower().endswith(".onnx"):
                raise no_graph(path)
            # a link that the user names is followed, wherever it leads
            self.parts = [Part(name, name, os.path.realpath(path), self.root)]
            self.beside = self._beside(name)
            return
        self.root = os.path.abspath(path)
        if os.path.lexists(os.path.join(self.root, layout.MANIFEST)):
            self._read_manifest(path)
            self.parts = self._components()
        else:
            self.parts = self._loose(path)

    @cached_property
    def scratch(self) -> str:
        """A folder for what a check has to write; gone with the subject."""
        folder = tempfile.mkdtemp(prefix="ntool-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    @property
    def is_package(self) -> bool:
        """Whether there is a package.json."""
        return self.manifest is not None

    @property
    def weights_only(self) -> bool:
        """Whether package.json says that there are weights and nothing to run them with."""
        return (self.manifest or {}).get("kind") == layout.WEIGHTS

    @property
    def family(self) -> str | None:
        """The family's name as package.json gives it."""
        family = (self.manifest or {}).get("family")
        return family if isinstance(family, str) else None

    def package(self) -> Package:
        """The package for the run-time path; only for checks that need layout.schema."""
        import hashlib
        from pathlib import Path

        assert self.manifest is not None
        return Package(
            Path(self.root), self.manifest, hashlib.sha256(self.raw_manifest).hexdigest()
        )

    def resolve(self, relative: str) -> tuple[str | None, str | None]:
        """(absolute path, None) of a file named by package.json, or (None, why it is refused)."""
        try:
            inside(relative, layout.MANIFEST)
        except InputError as e:
            return None, e.message
        real, problem = contained(self.root, relative)
        return (None, problem.message) if problem else (real, None)

    def _read_manifest(self, path: str) -> None:
        file = os.path.join(path, layout.MANIFEST)
        real, problem = contained(self.root, layout.MANIFEST)
        if problem is not None:
            raise InputError(f"{file}: {problem.message}")
        self.raw_manifest = read_all(real, file, MAX_MANIFEST)
        self.manifest = load_object(self.raw_manifest, file)

    def _components(self) -> list[Part]:
        assert self.manifest is not None
        components = self.manifest.get("components")
        parts = []
        for name, entry in components.items() if isinstance(components, dict) else ():
            graph = entry.get("graph") if isinstance(entry, dict) else None
            if not isinstance(graph, str):
                continue  # layout.schema says so
            path, why = self.resolve(graph)
            folder = os.path.dirname(os.path.join(self.root, graph)) if path else self.root
            data = entry.get("data")  # used before layout.schema has judged it
            names = [d for d in data if isinstance(d, str)] if isinstance(data, list) else []
            parts.append(Part(name, graph, path, folder, {**entry, "data": names}, why))
        return parts

    def _beside(self, name: str) -> list[Part]:
        """Other graphs in the folder of a lone one."""
        try:
            names = sorted(n for n in os.listdir(self.root) if n.lower().endswith(".onnx"))
        except OSError:
            return []
        return [self._graph(os.path.join(self.root, n)) for n in names[:MAX_BESIDE] if n != name]

    def _graph(self, path: str) -> Part:
        file = os.path.relpath(path, self.root).replace(os.sep, "/")
        real, problem = contained(self.root, file)
        why = problem.message if problem else None
        return Part(file, file, None if why else real, os.path.dirname(path), {}, why)

    def _loose(self, given: str) -> list[Part]:
        found: list[str] = []
        for folder, folders, files in os.walk(self.root):
            depth = os.path.relpath(folder, self.root).count(os.sep) + 1
            folders[:] = sorted(folders) if depth < MAX_DEPTH else []
            found += [os.path.join(folder, f) for f in sorted(files) if f.lower().endswith(".onnx")]
            if len(found) > MAX_GRAPHS:
                raise InputError(f"{given}: graphs", found=f"more than {MAX_GRAPHS}")
        if not found:
            raise no_graphs(given)
        return [self._graph(path) for path in found]


@dataclass(frozen=True)
class Check:
    """One check id.

    Attributes:
        holds: what is so when it holds; the message of its record then.
        needs: ids that must hold (of component and package) before this one has an answer.
        package: runs once for the whole package; its findings may name components.
        plain: also applies to graphs without package.json.
    """

    id: str
    holds: str
    run: Callable[..., list[Finding]]
    needs: tuple[str, ...] = ()
    package: bool = False
    plain: bool = False


def one_line(error: BaseException) -> str:
    """The message of any exception on one line of bounded length."""
    text = error.message if isinstance(error, NtoolError) else " ".join(str(error).split())
    return text if len(text) <= 400 else text[:397] + "..."
