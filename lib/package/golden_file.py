"""Golden files of `verify-package --golden`: what a component, a prompt or a recipe should give.

Three forms: arrays by the names of ports (safetensors, made by anything), a prefix file of
run-prefill, a PNG of sample-image with its recipe.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.regular_file import open_regular
from ..errors import InputError, SourceNotFound, Unsupported, UsageProblem
from ..runtime import arrays
from ..sampling.image import PNG_SIGNATURE, read_png_recipe
from ..suggestions import did_you_mean, near_path

COMPONENT = "component"
"""Metadata of a file of ports that names the component: a text of its own, or in ntool's object."""
TOKENS, LOGITS = "token_ids", "logits"
"""Tensors by which a prefix file is told."""


@dataclass(frozen=True)
class Golden:
    """One golden file, its header read.

    Attributes:
        path: as the user wrote it.
        component: whose ports are meant, or None: those of every component that has what it needs.
        arrays: of a file of arrays. recipe: of a picture.
        prefix: the arrays are a prefix file's.
    """

    path: str
    component: str | None = None
    arrays: arrays.ArrayFile | None = None
    recipe: dict[str, Any] | None = None
    prefix: bool = False


def open_goldens(given: Iterable[str], components: Collection[str]) -> list[Golden]:
    """The golden files of the command line, judged before anything is checked.

    Args:
        given: `FILE` or `COMPONENT=FILE` each.
        components: names that COMPONENT may be.
    Raises:
        SourceNotFound: no such file or component.
        InputError: a file that is neither a sound safetensors file nor a sound PNG with a recipe.
        Unsupported: a type of tensor, or a prefix with pictures.
        UsageProblem: a component for a prefix or a picture, which several components make.
    """
    return [_open(text, components) for text in given]


def _open(text: str, components: Collection[str]) -> Golden:
    component, path = _split(text, components)
    if not path:
        raise UsageProblem(f"--golden '{text}'", found="no file", expected="[COMPONENT=]FILE")
    if "\0" in path or not os.path.lexists(path):
        raise SourceNotFound(f"--golden {path}: no such file", hint=near_path(path))
    if _begins(path, PNG_SIGNATURE):
        if component is not None:
            raise UsageProblem(f"--golden {text}", expected="a picture without COMPONENT=")
        recipe = read_png_recipe(path)
        if recipe is None:
            raise InputError(
                f"{path}: PNG without a recipe", expected="a picture of ntool sample-image"
            )
        return Golden(path, recipe=recipe)
    file = arrays.load(Path(path))
    if not file.tensors:
        raise InputError(f"{path}: no tensors")
    for t in file.tensors.values():
        if t.dtype not in arrays.DTYPES:
            expected = " or ".join(arrays.DTYPES)
            raise Unsupported(f"{path}: tensor '{t.name}'", found=t.dtype, expected=expected)
    if component is None and {TOKENS, LOGITS} <= file.tensors.keys():
        if file.words.get("sizes"):
            raise Unsupported(
                f"{path}: a prefix with pictures, which are not in it",
                expected="a prefix of text, or goldens of the components",
            )
        return Golden(path, arrays=file, prefix=True)
    named = file.texts.get(COMPONENT, file.words.get(COMPONENT))
    if component is None and named is not None:
        if named not in components:
            expected = f"one of {', '.join(components)}"
            hint = did_you_mean(str(named), components)
            raise SourceNotFound(f"{path}: component", found=named, expected=expected, hint=hint)
        component = str(named)
    return Golden(path, component, file)


def _split(text: str, components: Collection[str]) -> tuple[str | None, str]:
    """(component or None, path); a file whose name has a `=` is a file."""
    head, equals, tail = text.partition("=")
    if not equals or (head not in components and os.path.lexists(text)):
        return None, text
    if not head:
        raise UsageProblem(f"--golden '{text}'", found="no component", expected="[COMPONENT=]FILE")
    if head not in components:
        expected = f"one of {', '.join(components)}"
        hint = did_you_mean(head, components)
        raise SourceNotFound(f"--golden {text}: component '{head}'", expected=expected, hint=hint)
    return head, tail


def _begins(path: str, signature: bytes) -> bool:
    with open_regular(os.path.realpath(path), path) as f:
        return f.read(0, len(signature)) == signature
