"""A family's ABI (`lib/families/NAME/abi.py`, data) against what a package has."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from ..families import MODULES
from . import layout
from .checks.subject import Finding, bad

FLOATS = ("float32", "float16", "bfloat16")


def family_module(family: str | None, name: str) -> ModuleType | None:
    """A module of a family's folder, or None if family or module do not exist."""
    if family not in MODULES.values():
        return None
    full = f"{__package__.rsplit('.', 1)[0]}.families.{family}.{name}"
    try:
        return import_module(full)
    except ModuleNotFoundError as e:
        if e.name != full:
            raise
        return None


def abi_findings(
    manifest: dict[str, Any], component: str, found: dict[str, list[dict[str, Any]]], file: str
) -> list[Finding]:
    """Differences between a component's ports and those of its family.

    Args:
        found: `inputs` and `outputs` of the graph as {name, dtype, shape}.
        file: name of the graph for messages.
    """
    abi = family_module(manifest.get("family"), "abi")
    if abi is None or manifest.get("kind") == layout.WEIGHTS:
        return []
    every = abi.ports(manifest)
    if component not in every:
        text = f"{file}: component '{component}' is not one of {manifest['family']}"
        return [bad(text, list(every), component, reason="component")]
    findings = []
    if "outputs" in abi.CACHE_PORTS.get(component, ()):
        found_faults = abi.cache_faults(manifest)
        findings = [bad(f"{layout.MANIFEST}: {t}", w, h, reason="abi") for t, w, h in found_faults]
    for side, ports in every[component].items():
        wanted = dict(ports)
        if side in abi.CACHE_PORTS.get(component, ()):
            key = side[:-1]
            # who only reads the cache may have another float type: an edge's cast says so
            makes = "outputs" in abi.CACHE_PORTS[component]
            wanted |= {
                e[key]: (e["dtype"] if makes else "float", _cache_shape(e, key))
                for e in manifest["cache"]
            }
        have = {p["name"]: p for p in found[side]}
        for name in [*wanted, *(n for n in have if n not in wanted)]:
            text = f"{file}: {side[:-1]} '{name}' of {manifest['family']}'s {component}"
            if name not in wanted:
                findings.append(bad(text, "not there", have[name], reason="abi"))
            elif name not in have:
                if name not in abi.OPTIONAL_PORTS:
                    findings.append(bad(text, _said(*wanted[name]), None, reason="abi"))
            elif not _fits(have[name], *wanted[name]):
                want = _said(*wanted[name])
                actual = [have[name]["dtype"], have[name]["shape"]]
                findings.append(bad(text, want, actual, reason="abi"))
    return findings


_ANY: dict[Any, str] = {None: "any fixed size", ...: "any name"}
"""Dimensions that are not one value, in words."""


def _said(dtype: str, shape: tuple[Any, ...]) -> list[Any]:
    return [dtype, [_ANY.get(d, d) for d in shape]]


def _cache_shape(entry: dict[str, Any], side: str) -> tuple[Any, ...]:
    """A growing axis has another name on the way out; which one, the workflow's edges say."""
    shape = list(entry["shape"])
    grows = entry.get("grows")
    if side == "output" and isinstance(grows, int) and 0 <= grows < len(shape):
        shape[grows] = ...
    return tuple(shape)


def _fits(port: dict[str, Any], dtype: str, shape: tuple[Any, ...]) -> bool:
    floats = FLOATS if dtype == "float" else (dtype,)
    if port["dtype"] not in floats or len(port["shape"]) != len(shape):
        return False
    return all(
        isinstance(have, str)
        if want is ...
        else isinstance(have, int)
        if want is None
        else have == want
        for have, want in zip(port["shape"], shape, strict=True)
    )
