"""What is checked (a package, a folder of graphs, one graph) and what a check says of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from ...checkpoint.paths import contained
from ...checkpoint.regular_file import read_all
from ...checkpoint.strict_json import load_object
from ...errors import InputError, NtoolError, SourceNotFound
from .. import layout
from ..package import MAX_MANIFEST, Package, inside

if TYPE_CHECKING:
    from ...checkpoint.onnx_external import External
    from ...checkpoint.onnx_walk import Walk
    from ..golden_file import Golden
    from .parse import Reading

MAX_DEPTH = 4
"""Folder levels that are searched for graphs when there is no package.json."""
MAX_GRAPHS = 1000
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
    """

    name: str
    file: str
    path: str | None
    folder: str
    entry: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None

    @cached_property
    def reading(self) -> Reading:
        """What graph.parse made of the file; with findings, the rest is not used further."""
        from .parse import Reading, read_model

        if self.path is None:
            return Reading([bad(f"{self.file}: {self.refused}")])
        return read_model(self.path, self.file)

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

        return shape_inference.infer_shapes(self.model)


class Subject:
    """A package folder, a folder of graphs or one graph.

    Attributes:
        root: absolute folder, links resolved only where the user named one.
        manifest: content of package.json, None without one.
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
        if not path or "\0" in path or not os.path.exists(path):
            hint = _export_hint(path) if path.startswith(("demo:", "hf://")) else None
            raise SourceNotFound(f"{path}: no such file or folder", hint=hint)
        if not os.path.isdir(path):
            self.root, name = os.path.split(os.path.abspath(path))
            if not path.lower().endswith(".onnx"):
                raise SourceNotFound(
                    f"{path}: no package here",
                    expected="a folder or a .onnx file",
                    hint=_export_hint(path),
                )
            # a link that the user names is followed, wherever it leads
            self.parts = [Part(name, name, os.path.realpath(path), self.root)]
            return
        self.root = os.path.abspath(path)
        if os.path.lexists(os.path.join(self.root, layout.MANIFEST)):
            self._read_manifest(path)
            self.parts = self._components()
        else:
            self.parts = self._loose(path)

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

    def _loose(self, given: str) -> list[Part]:
        found: list[str] = []
        for folder, folders, files in os.walk(self.root):
            depth = os.path.relpath(folder, self.root).count(os.sep) + 1
            folders[:] = sorted(folders) if depth < MAX_DEPTH else []
            found += [os.path.join(folder, f) for f in sorted(files) if f.lower().endswith(".onnx")]
            if len(found) > MAX_GRAPHS:
                raise InputError(f"{given}: graphs", found=f"more than {MAX_GRAPHS}")
        if not found:
            raise SourceNotFound(
                f"{given}: no package here ({layout.MANIFEST} and *.onnx are missing)",
                hint=_export_hint(given),
            )
        parts = []
        for path in found:
            file = os.path.relpath(path, self.root).replace(os.sep, "/")
            real, problem = contained(self.root, file)
            why = problem.message if problem else None
            parts.append(Part(file, file, None if why else real, os.path.dirname(path), {}, why))
        return parts


def _export_hint(given: str) -> str:
    """What makes a package of a checkpoint, for who names the checkpoint."""
    return f"ntool export-component {shlex.quote(given)} -o PKG"


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
