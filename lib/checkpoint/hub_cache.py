"""The cache of huggingface_hub, read and never written: `models--OWNER--NAME/` with `refs/` (branch
or tag -> commit), `snapshots/COMMIT/` and the `blobs/` that snapshots link to.
"""

from __future__ import annotations

import os

from ..errors import EnvironmentProblem, InputError
from .folder import LocalFolder
from .hub_address import COMMIT, DEFAULT_REVISION, Address
from .paths import read_inside

_MAX_REF = 1000


def snapshot(cache: str, repo: str, commit: str) -> LocalFolder | None:
    """The snapshot of a commit, or None. It may lack files."""
    path = os.path.join(_home(cache, repo), "snapshots", commit)
    if not os.path.isdir(path):
        return None
    folder = LocalFolder(path)
    folder.revision = commit
    return folder


def offline(cache: str, address: Address, source: str) -> LocalFolder:
    """The snapshot that an address means, without a network.

    Raises:
        EnvironmentProblem: the cache has no such repository, revision or snapshot.
        InputError: a file of `refs/` that does not hold a commit.
    """
    home = _home(cache, address.repo)
    revision = address.revision or DEFAULT_REVISION
    found = None
    if not os.path.isdir(home):
        missing = "the repository"
    else:
        commit = revision if COMMIT.fullmatch(revision) else _ref(home, revision)
        missing = f"revision {revision}"
        if commit is not None:
            found = snapshot(cache, address.repo, commit)
            missing = f"a snapshot of {commit}"
    if found is None:
        raise EnvironmentProblem(
            f"{source}: HF_HUB_OFFLINE is set, and {missing} is not in the cache ({cache})",
            hint=f"without HF_HUB_OFFLINE: hf download {address.repo} --revision {revision}",
        )
    return found


def _home(cache: str, repo: str) -> str:
    return os.path.join(os.path.abspath(cache), "models--" + repo.replace("/", "--"))


def _ref(home: str, revision: str) -> str | None:
    """The commit that a branch or tag was when it was last asked for; None if it never was."""
    name = f"refs/{revision}"
    if not os.path.isfile(os.path.join(home, name)):
        return None
    raw = read_inside(home, name, _MAX_REF, f"Hub cache: {name}")
    commit = (raw or b"").decode("ascii", "replace").strip()
    if not COMMIT.fullmatch(commit):
        raise InputError(f"Hub cache: {name}", found=commit, expected="a commit")
    return commit
