"""What names a repository on the Hub: `OWNER/NAME[@REV]`, `hf://OWNER/NAME[@REV][/FILE]`.

Standard library only: every SOURCE is looked at here before it is known to be local.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import Unsupported, UsageProblem
from .paths import path_fault

SCHEME = "hf://"
DEFAULT_REVISION = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")

# two dots or hyphens in a row are not allowed in names; `--` is the cache's separator
_NAME = r"[A-Za-z0-9_](?:\w|-(?!-)|\.(?!\.))*"
_SHORT = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>\S+))?", re.ASCII)
_LONG = re.compile(
    rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]*))?"
    r"(?:/(?P<file>.*))?",
    re.ASCII | re.DOTALL,
)
_OTHER_KINDS = ("datasets", "spaces", "kernels", "buckets")
"""First segments of an `hf://` address of something other than models."""


class Address(NamedTuple):
    """A repository of models, what of its history, and what in it; None is the default of each."""

    repo: str
    revision: str | None = None
    file: str | None = None


def short(source: str) -> Address | None:
    """`OWNER/NAME[@REV]`, or None of a text that cannot be one. It may be a relative path too."""
    match = _SHORT.fullmatch(source)
    return Address(match["repo"], match["revision"]) if match else None


def long(source: str) -> Address:
    """`hf://OWNER/NAME[@REV][/FILE]`, also with `models/` before OWNER and in capitals `HF://`.

    A revision with a slash that is no `refs/pr/N` or `refs/convert/NAME` has `%2F` for it.

    Raises:
        Unsupported: data sets and other kinds of repositories.
        UsageProblem: not such an address.
    """
    rest = source[len(SCHEME) :]
    kind, _, after = rest.partition("/")
    if kind in _OTHER_KINDS:
        raise Unsupported(f"{source}: {kind}", expected="a repository of models")
    if kind == "models" and after.count("/"):
        rest = after
    match = _LONG.fullmatch(rest)
    if match is None:
        raise UsageProblem(source, expected="hf://OWNER/NAME[@REV][/FILE]")
    revision, file = match["revision"], match["file"] or None
    if revision is not None:
        revision = unquote(revision)
    fault = path_fault(file) if file else None
    if fault:
        raise UsageProblem(f"{source}: the file's name {fault}")
    return Address(match["repo"], revision, file)


def with_revision(source: str, address: Address, revision: str | None) -> Address:
    """The address with the revision of `--revision`, checked.

    Raises:
        UsageProblem: it and `@REV` differ, or the revision cannot be one.
    """
    if None not in (revision, address.revision) and revision != address.revision:
        raise UsageProblem(f"{source}: --revision", found=revision, expected=address.revision)
    chosen = revision if address.revision is None else address.revision
    # it becomes a path in the cache and a part of a URL
    fault = path_fault(chosen) if chosen is not None else None
    if fault:
        raise UsageProblem(f"{source}: the revision {fault}")
    return address._replace(revision=chosen)
