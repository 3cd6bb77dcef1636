"""What the page of a check shows beside its records: sizes, precision, versions, pictures.

The package may be a stranger's and broken: what cannot be read is left out, and the checks say why.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from ...version import VERSION
from ..checkpoint.onnx_types import dtype as dtype_of
from ..checkpoint.onnx_types import nbytes as nbytes_of
from ..checkpoint.strict_json import read_object
from ..errors import NtoolError
from . import layout
from .checks.loading_report import MAX_REPORT
from .checks.subject import Part, Subject

MAX_SIDE = 1024
"""Pixels of the longer side of a picture on the page."""
LIBRARIES = ("onnx", "onnxruntime", "onnxruntime-gpu", "numpy")


@dataclass
class Size:
    """A component's weights and how it was made.

    Attributes:
        dtypes: type -> (tensors, bytes); None where the graph could not be read.
        about: words of its entry of package.json, in order.
    """

    name: str
    dtypes: dict[str, tuple[int, int]] | None
    about: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(n for _, n in (self.dtypes or {}).values())


@dataclass
class Precision:
    """Tensors of one component that went from one type to another."""

    component: str
    stored: str
    written: str
    tensors: int = 0
    nbytes: int = 0
    largest: float | None = None
    flushed: int = 0
    subnormal: int = 0


@dataclass(frozen=True)
class Shown:
    """A picture of the page: its file, its bytes as PNG, and words of its recipe."""

    path: str
    png: str
    size: tuple[int, int]
    recipe: dict[str, str]


@dataclass
class Facts:
    """All of a page but the records.

    Attributes:
        about: words on the package as a whole.
        left: reason -> source tensors that are not in the package.
        run: versions and device, and what was asked for.
    """

    title: str
    about: dict[str, str]
    sizes: list[Size]
    precision: list[Precision]
    left: dict[str, int]
    run: dict[str, str]
    pictures: list[Shown]


def gather(
    subject: Subject, title: str, asked: dict[str, str], pictures: Iterable[Shown] = ()
) -> Facts:
    """What the page says of a package that was checked.

    Args:
        title: the package as the user named it.
        asked: options of the run, in words.
    """
    manifest = subject.manifest or {}
    about: dict[str, str] = {}
    for key in ("family", "schema"):
        _put(about, key, manifest.get(key))
    variant = manifest.get("variant")
    if isinstance(variant, dict):
        _put(about, "variant", "/".join(str(v) for v in variant.values()))
    source = manifest.get("source")
    for key in ("uri", "requested_revision", "resolved_revision", "config_hash", "schema_hash"):
        if isinstance(source, dict):
            _put(about, "source" if key == "uri" else key.replace("_", " "), source.get(key))
    if subject.is_package:
        import hashlib

        about["SHA-256 of package.json"] = hashlib.sha256(subject.raw_manifest).hexdigest()
    precision, left = _precision(subject)
    return Facts(
        title,
        about,
        [_size(part) for part in subject.parts],
        precision,
        left,
        {**versions(), **asked},
        list(pictures),
    )


def versions() -> dict[str, str]:
    """Versions that decide what a check finds."""
    found = {"ntool": VERSION, "Python": ".".join(map(str, sys.version_info[:3]))}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _put(words: dict[str, str], key: str, value: Any) -> None:
    if isinstance(value, str | int) and value != "":
        words[key] = str(value)


def _size(part: Part) -> Size:
    about: dict[str, str] = {"graph": part.file}
    for key in ("opset", "ir_version", "execution_provider", "weight_dtype", "compute_dtype"):
        _put(about, key.replace("_", " "), part.entry.get(key))
    if part.path is None or part.reading.walk is None:
        return Size(part.name, None, about)
    dtypes: dict[str, tuple[int, int]] = {}
    for _, tensor in part.reading.walk.tensors:
        size = nbytes_of(tensor)
        kind = dtype_of(tensor.data_type)
        count, total = dtypes.get(kind, (0, 0))
        dtypes[kind] = (count + 1, total + (size or 0))
    return Size(part.name, dtypes, about)


def _precision(subject: Subject) -> tuple[list[Precision], dict[str, int]]:
    """From the loading report: types before and after, and what was left out."""
    real, _ = subject.resolve(layout.REPORT) if subject.is_package else (None, None)
    if real is None:
        return [], {}
    try:
        rows = read_object(real, layout.REPORT, MAX_REPORT).get("tensors")
    except NtoolError:
        return [], {}
    found: dict[tuple[str, str, str], Precision] = {}
    left: dict[str, int] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict):
            continue
        source, targets = row.get("source"), row.get("targets")
        stored = source.get("dtype") if isinstance(source, dict) else None
        if row.get("action") == "excluded":
            reason = str(row.get("reason"))
            left[reason] = left.get(reason, 0) + 1
        for t in targets if isinstance(targets, list) else ():
            if isinstance(t, dict):
                key = (str(t.get("component")), str(stored), str(t.get("dtype")))
                _count(found.setdefault(key, Precision(*key)), t)
    order = {part.name: i for i, part in enumerate(subject.parts)}
    rows_found = sorted(
        found.values(), key=lambda p: (order.get(p.component, len(order)), p.stored, p.written)
    )
    return rows_found, dict(sorted(left.items(), key=lambda kv: (-kv[1], kv[0])))


def _count(row: Precision, target: dict[str, Any]) -> None:
    row.tensors += 1
    row.nbytes += _whole(target.get("nbytes"))
    met = target.get("range")
    if not isinstance(met, dict):
        return
    largest = met.get("largest")
    if isinstance(largest, int | float):
        row.largest = max(row.largest or 0.0, float(largest))
    row.flushed += _whole(met.get("flushed_to_zero"))
    row.subnormal += _whole(met.get("subnormal"))


def _whole(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def picture(path: str) -> Shown:
    """A picture for the page: decoded, made smaller where it is large, and encoded again, so that
    nothing of a stranger's file but its pixels gets there.

    Raises:
        SourceNotFound, InputError, Unsupported: what `load_image` refuses; a recipe that is none.
    """
    from ..sampling.image import PNG_SIGNATURE, load_image, read_png_recipe

    image = load_image(path).convert("RGB")
    size = image.size
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    data = io.BytesIO()
    image.save(data, "PNG")
    recipe: dict[str, str] = {}
    with open(path, "rb") as f:
        is_png = f.read(len(PNG_SIGNATURE)) == PNG_SIGNATURE
    for key, value in ((read_png_recipe(path) if is_png else None) or {}).items():
        if key in ("prompt", "seed", "steps", "cfg", "compute_dtype"):
            recipe[key] = str(value)
    return Shown(path, base64.b64encode(data.getvalue()).decode("ascii"), size, recipe)
