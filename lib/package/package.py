"""Opening a package: its manifest, checked as far as running it needs."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.paths import contained, path_fault
from ..checkpoint.regular_file import read_file
from ..checkpoint.strict_json import has_lone_surrogate, load_object, read_object
from ..errors import InputError, SourceNotFound, Unsupported
from ..suggestions import did_you_mean
from . import layout, schema

MAX_MANIFEST = 64 << 20


@dataclass(frozen=True)
class Package:
    """A package folder.

    Attributes:
        manifest: content of package.json.
        digest: SHA-256 of its bytes; prefix files carry it, so that a prefix meets its own package
            only.
    """

    root: Path
    manifest: dict[str, Any]
    digest: str

    def graph(self, component: str) -> Path:
        """Path of a component's graph.

        Raises:
            SourceNotFound: the package has no such component.
        """
        components = self.manifest["components"]
        if component not in components:
            raise SourceNotFound(
                f"{self.root}: component '{component}'",
                expected=f"one of {', '.join(components)}",
                hint=did_you_mean(component, components),
            )
        return self.root / inside(components[component]["graph"], f"{self.root}: {layout.MANIFEST}")

    def check_data(self, component: str) -> None:
        """Refuse a component whose data files are not all there; a runtime says it less plainly.

        Raises:
            InputError: names the file.
        """
        files = self.manifest["components"].get(component, {}).get("data", [])
        for name in files if isinstance(files, list) else []:
            if not (self.root / inside(name, f"{self.root}: {layout.MANIFEST}")).is_file():
                raise InputError(
                    f"{self.root}: data file '{name}' is missing",
                    hint=f"ntool verify-package {self.root}",
                )

    def tokenizer_folder(self) -> str:
        """Path of the tokenizer's folder.

        Raises:
            SourceNotFound: the package has no tokenizer; there was none in its checkpoint.
            InputError: it is not in the package, or a link leads elsewhere.
        """
        where = f"{self.root}: {layout.MANIFEST}"
        name = inside(self._asset("tokenizer"), where)
        _, problem = contained(os.path.abspath(self.root), name)
        if problem is not None:
            raise InputError(f"{self.root}: {name}: {problem.message}")
        return str(self.root / name)

    def manifest_processor(self) -> dict[str, Any]:
        """Content of processor.json.

        Raises:
            SourceNotFound: the package has none: it is for text alone, or its checkpoint does not
                say how pictures become input.
            SourceNotFound, InputError: it is missing, or not as the schema says.
        """
        name = inside(self._asset("processor"), f"{self.root}: {layout.MANIFEST}")
        path = str(self.root / name)
        found = read_object(path, path, MAX_MANIFEST)
        schema.require(found, path, "processor")
        return found

    def _asset(self, key: str) -> object:
        """The path of an asset that a package may lack."""
        path = self.manifest.get(key)
        if path is None:
            raise SourceNotFound(f"{self.root}: the package has no {key}")
        return path


def inside(path: object, where: str) -> str:
    """A path of the manifest, refused unless it stays in the package.

    Raises:
        InputError: absolute, with `..`, empty parts, backslashes or control characters.
    """
    fault = path_fault(path) if isinstance(path, str) else "is no string"
    if fault is None and ":" in str(path):
        fault = "holds a colon"
    if fault is not None:
        raise InputError(f"{where}: path {fault}", found=repr(path), expected="a relative path")
    assert isinstance(path, str)
    return path


def is_package(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a package.json."""
    return os.path.isfile(os.path.join(path, layout.MANIFEST))


def open_package(path: str | os.PathLike[str]) -> Package:
    """The package in a folder, for running it: its package.json is all that the schema asks for.

    Raises:
        SourceNotFound: no folder, or no package.json in it.
        InputError: package.json is not what the schema says; names the JSON path.
        Unsupported: another schema version, or a package of weights.
    """
    root = Path(path)
    file = root / layout.MANIFEST
    if not file.is_file():
        raise SourceNotFound(f"{path}: no package here ({layout.MANIFEST} is missing)")
    raw = read_file(str(file), MAX_MANIFEST)
    manifest = load_object(raw, str(file))
    if manifest.get("schema") != layout.SCHEMA:
        raise Unsupported(
            f"{file}: schema", found=repr(manifest.get("schema")), expected=layout.SCHEMA
        )
    if has_lone_surrogate(json.dumps(manifest, ensure_ascii=False)):
        raise InputError(f"{file}: a string holds a lone surrogate")
    schema.require(manifest, str(file))
    if manifest.get("kind") == layout.WEIGHTS:
        raise Unsupported(f"{path}: a package of weights, which cannot be run by itself",
                          expected="a package of export-component")  # fmt: skip
    for key in ("tokenizer", "processor"):
        if manifest[key] is not None:
            inside(manifest[key], f"{file}: $.{key}")
    for name, c in manifest["components"].items():
        for key, paths in (("graph", [c["graph"]]), ("data", c["data"])):
            for relative in paths:
                inside(relative, f"{file}: $.components.{name}.{key}")
    return Package(root, manifest, hashlib.sha256(raw).hexdigest())
