"""layout.*: the folder and package.json."""

from __future__ import annotations

import json
import os
from typing import Any

from ...checkpoint.paths import contained
from ...checkpoint.regular_file import open_regular
from ...checkpoint.strict_json import has_lone_surrogate, read_object
from ...errors import InputError, NtoolError, Unsupported
from ...families import MODULES
from .. import layout, sums
from ..abi import family_module
from ..schema import faults, sampler_faults
from .subject import MAX_LISTED, Check, Finding, Subject, bad

MAX_PROCESSOR = 1 << 20


def expected_files(subject: Subject) -> dict[str, str | None]:
    """{file that package.json names or a package always has: component or None}."""
    manifest = subject.manifest or {}
    files: dict[str, str | None] = {layout.MANIFEST: None, layout.REPORT: None}
    if isinstance(manifest.get("processor"), str):
        files[manifest["processor"]] = None
    tokenizer = manifest.get("tokenizer")
    if isinstance(tokenizer, str):
        known, required = layout.tokenizer_files(subject.family)
        for name in known:
            file = f"{tokenizer}/{name}"
            there = os.path.lexists(os.path.join(subject.root, file))
            if there or name in required:
                files[file] = None
    listed = manifest.get("files")
    for name in listed if isinstance(listed, list) else ():
        if isinstance(name, str):
            files[name] = None
    for part in subject.parts:
        files[part.file] = part.name
        for name in part.entry.get("data", ()):
            if isinstance(name, str):
                files[name] = part.name
    return files


def files(subject: Subject) -> list[Finding]:
    """What package.json names is there, regular and inside; nothing unknown is there."""
    findings = []
    expected = expected_files(subject)
    for name, component in expected.items():
        real, why = subject.resolve(name)
        if real is None:
            text = f"{name}: {why}"
            findings.append(
                bad(text, "a file in the package", component=component, reason="missing")
            )
            continue
        try:
            with open_regular(real, name):
                pass
        except (NtoolError, OSError) as e:
            text = e.message if isinstance(e, NtoolError) else f"{name}: {e.strerror or e}"
            findings.append(bad(text, component=component, reason="not-regular"))
    if all("/" in part.file for part in subject.parts):
        # graphs in the top folder: exported into a checkpoint's own folder, which holds more
        findings += _unknown(subject, set(expected))
    return findings


def _unknown(subject: Subject, expected: set[str]) -> list[Finding]:
    known = expected | set(layout.OPTIONAL_FILES)
    tokenizer = (subject.manifest or {}).get("tokenizer")
    known |= {f"{tokenizer}/{name}" for name in layout.tokenizer_files(subject.family)[0]}
    try:
        there = sums.files(subject.root)
    except NtoolError as e:
        return [bad(e.message, reason="too-many")]
    unknown = [name for name in there if name not in known]
    findings = [
        bad(
            f"{name}: package.json does not name it",
            "known files only",
            name,
            reason="unknown-file",
        )
        for name in unknown[:MAX_LISTED]
    ]
    if len(unknown) > MAX_LISTED:
        findings.append(bad(f"and {len(unknown) - MAX_LISTED} more unknown files"))
    for name in there:
        path = os.path.join(subject.root, name)
        if name in layout.OPTIONAL_FILES and os.path.islink(path):
            _, problem = contained(subject.root, name)
            if problem is not None:
                findings.append(bad(f"{name}: {problem.message}", reason="symlink-out"))
    return findings


def against_schema(subject: Subject) -> list[Finding]:
    """package.json is what its JSON Schema says, of a known version and family."""
    manifest: dict[str, Any] = subject.manifest or {}
    version = manifest.get("schema")
    if version != layout.SCHEMA:
        text = f"{layout.MANIFEST}: schema {json.dumps(version)[:80]}"
        return [bad(text, layout.SCHEMA, version, reason="version")]
    if has_lone_surrogate(json.dumps(manifest, ensure_ascii=False)):
        return [bad(f"{layout.MANIFEST}: a lone surrogate in a string", reason="not-utf8")]
    findings = _faults(layout.MANIFEST, manifest)
    if not findings and not subject.weights_only:
        pixels = manifest["workflow"].get("positions", {}).get("token_pixels", 1)
        for place, found, expected in sampler_faults(manifest["defaults"], pixels):
            text = f"{layout.MANIFEST}: defaults.{place}"
            findings.append(bad(text, expected, found, reason="defaults"))
    if subject.family is not None and subject.family not in MODULES.values():
        text = f"{layout.MANIFEST}: family '{subject.family}'"
        findings.append(bad(text, sorted(set(MODULES.values())), subject.family, reason="family"))
    return findings or ([] if subject.weights_only else _processor(subject))


def _processor(subject: Subject) -> list[Finding]:
    """processor.json is a JSON object whose sizes agree with package.json."""
    manifest = subject.manifest or {}
    name = manifest["processor"]
    real, _ = subject.resolve(name)
    if real is None:
        return []  # layout.files says so
    try:
        values = read_object(real, name, MAX_PROCESSOR)
    except NtoolError as e:
        return [bad(e.message, reason="processor")]
    findings = _faults(name, values, "processor")
    pixels = manifest["workflow"].get("positions", {}).get("token_pixels")
    if findings:
        return findings
    sizes = (values["patch_size"] * values["merge_size"], values["resize"]["factor"])
    if pixels is not None and sizes != (pixels, pixels):
        text = f"{name}: patch_size x merge_size and resize.factor"
        return [bad(text, [pixels, pixels], list(sizes), reason="processor")]
    module = family_module(subject.family, "processor")
    if module is not None:
        try:
            module.check_processor(values, name)
        except (InputError, Unsupported) as e:
            return [bad(e.message, reason="processor")]
    return []


def _faults(name: str, value: Any, part: str | None = None) -> list[Finding]:
    found = faults(value, part)
    findings = [
        bad(f"{name}: {place}: {message}", reason=keyword)
        for place, message, keyword in found[:MAX_LISTED]
    ]
    if len(found) > MAX_LISTED:
        findings.append(bad(f"{name}: and {len(found) - MAX_LISTED} more"))
    return findings


CHECKS = (
    Check(
        "layout.files",
        "all files of package.json are there, and no others",
        files,
        package=True,
    ),
    Check("layout.schema", "package.json is valid", against_schema, package=True),
)
