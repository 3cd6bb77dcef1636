"""A repository on the Hub as a folder: its listing with the first request, files by byte ranges.

The revision is resolved to a commit first, and every later request names that commit. What the
cache has of that commit is read there; nothing is ever written into the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from ..errors import EnvironmentProblem, SourceNotFound, Unsupported
from ..suggestions import did_you_mean
from . import hub_cache, parallel
from .config import MAX_CONFIG
from .folder import Folder, LocalFolder, NotReadable, Readable
from .hub_address import COMMIT, DEFAULT_REVISION, SCHEME, Address
from .paths import path_fault
from .range_client import Part, RangeClient, Refused
from .remote_file import RemoteFile
from .strict_json import decode, parse

T = TypeVar("T")

MAX_LISTING = 128_000_000
"""Largest listing of a repository that is read, bytes: about a million files."""
_PUBLIC = "https://huggingface.co"
_LOGIN = "set HF_TOKEN, or log in with: hf auth login"


def open_hub(address: Address, source: str, *, local: bool = False) -> tuple[Folder, str | None]:
    """The folder of a repository, and the name in it that the address has, if that is a file.

    Args:
        source: as the user wrote it, for messages.
        local: only the cache will do.
    Raises:
        SourceNotFound: no such repository, revision or file.
        EnvironmentProblem: network, no access, or offline and not in the cache.
        Unsupported: it would be read over the network, and must not.
    """
    settings = _settings()
    if settings.HF_HUB_OFFLINE:
        snapshot = hub_cache.offline(settings.HF_HUB_CACHE, address, source)
        return _in_snapshot(snapshot, address, source)
    if local:
        at = f" --revision {address.revision}" if address.revision else ""
        raise Unsupported(
            f"{source}: this command reads no repository on the Hub; inspect-headers, census, "
            "convert-fp8, convert-experts and export-component do",
            hint=f"hf download {address.repo}{at} --local-dir DIR, then give DIR",
        )
    repository = _Repository(settings, address, source)
    file = address.file
    if file is None:
        return HubFolder(repository), None
    inside, _, name = file.rpartition("/")
    if file in repository.sizes:
        return HubFolder(repository, inside), name
    if HubFolder(repository).is_folder(file):
        return HubFolder(repository, file), None
    hint = did_you_mean(file, repository.sizes)
    raise SourceNotFound(f"{source}: no file '{file}' in {repository.root}", hint=hint)


def _in_snapshot(local: LocalFolder, address: Address, source: str) -> tuple[Folder, str | None]:
    """Where a file of an address lies in a snapshot."""
    file = address.file
    if file is None:
        return local, None
    inside, _, name = file.rpartition("/")
    if not local.exists(file):
        raise EnvironmentProblem(
            f"{source}: HF_HUB_OFFLINE is set, and '{file}' is not in the cache ({local.root})",
            hint=f"without HF_HUB_OFFLINE: hf download {address.repo} {file}",
        )
    if local.is_folder(file):
        inside, name = file, ""
    folder = LocalFolder(os.path.join(local.root, inside) if inside else local.root)
    folder.revision = local.revision
    return folder, name or None


def _settings() -> Any:
    """The constants of huggingface_hub, which it reads from the environment.

    Raises:
        EnvironmentProblem: one of them cannot be read.
    """
    try:
        from huggingface_hub import constants
    except ValueError as e:
        names = "HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT"
        raise EnvironmentProblem(f"{names}: expected whole seconds") from e
    return constants


def timeout() -> float:
    """Seconds without a byte after which a request fails: HF_HUB_DOWNLOAD_TIMEOUT, by default 10.

    Raises:
        EnvironmentProblem: it cannot be read.
    """
    return max(0.1, float(_settings().HF_HUB_DOWNLOAD_TIMEOUT))


def endpoint(settings: Any) -> str:
    """Address of the Hub: HF_ENDPOINT without spaces around it and slashes behind; a blank one,
    which the library keeps, is none.

    Raises:
        EnvironmentProblem: no web address.
    """
    text: str = settings.ENDPOINT.strip().rstrip("/") or _PUBLIC
    if not text.lower().startswith(("http://", "https://")):
        raise EnvironmentProblem("HF_ENDPOINT", found=text, expected="http://HOST or https://HOST")
    return text


def _token(settings: Any) -> str | None:
    """The token of the user, if there is one and it may be sent unasked.

    Raises:
        EnvironmentProblem: it could not be got, or cannot be one. It is not shown.
    """
    if settings.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    given = [os.environ.get(k) for k in ("HF_OIDC_RESOURCE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")]
    if not any(given) and not os.path.exists(settings.HF_TOKEN_PATH):
        return None  # and the library, which would say the same, is not loaded: 0.06 s
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as e:  # a log-in of the library may ask the network, and fail in many ways
        raise EnvironmentProblem(f"no token: {type(e).__name__} of huggingface_hub") from None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise EnvironmentProblem("HF_TOKEN: holds a character that no token has")
    return token or None


class _Repository:
    """A commit of a repository: its client, and size by name of all its files.

    Attributes:
        root: `hf://OWNER/NAME@COMMIT`.
        sizes: in bytes; None where the listing has none.
    """

    def __init__(self, settings: Any, address: Address, source: str) -> None:
        from ...version import VERSION

        self.repo, self._source = address.repo, source
        self._endpoint = endpoint(settings)
        token = _token(settings)
        self._has_token = token is not None
        self.client = RangeClient(timeout(), token, f"ntool/{VERSION}")
        self.commit, self.sizes = self._listing(address.revision or DEFAULT_REVISION)
        self.root = f"{SCHEME}{self.repo}@{self.commit}"
        self._cached = hub_cache.snapshot(settings.HF_HUB_CACHE, self.repo, self.commit)
        self._early: dict[str, Future[Part]] = {}

    def _listing(self, revision: str) -> tuple[str, dict[str, int | None]]:
        """Commit and files of a revision, in one request.

        Why not `HfApi.model_info`, which asks the same: it follows any redirect, reads a body of
        any size, and is half of the time that a small repository takes (0.1 s to import).
        """
        at = quote(revision, safe="")
        url = f"{self._endpoint}/api/models/{self.repo}/revision/{at}?blobs=true"
        name = f"{SCHEME}{self.repo}"
        try:
            raw = self.client.whole(url, name, MAX_LISTING)
        except Refused as e:
            raise self._refusal(e, revision) from e
        text, fault = decode(raw)
        value, faults = parse(text) if text is not None else (None, [fault])
        commit = value.get("sha") if isinstance(value, dict) else None
        siblings = value.get("siblings") if isinstance(value, dict) else None
        if faults or not isinstance(commit, str) or not isinstance(siblings, list):
            raise EnvironmentProblem(
                f"{name}: {self._endpoint} does not answer as a Hub does: its listing",
                expected="JSON with sha and siblings",
            )
        wanted = revision if COMMIT.fullmatch(revision) else "40 hexadecimal digits"
        if not COMMIT.fullmatch(commit) or wanted not in (commit, "40 hexadecimal digits"):
            raise EnvironmentProblem(f"{name}: commit", found=commit, expected=wanted)
        return commit, dict(filter(None, map(_entry, siblings)))

    def _refusal(self, e: Refused, revision: str) -> Exception:
        """What an error status about the repository means to the user."""
        code, status = e.fields.get("x-error-code", ""), e.status
        name = f"{SCHEME}{self.repo}"
        if code == "RevisionNotFound":
            return SourceNotFound(f"{self._source}: no revision '{revision}' in {name}")
        if code == "RepoNotFound" or status == 404:
            # a stranger gets the same answer about a private repository
            hint = None if self._has_token else f"if it is private: {_LOGIN}"
            return SourceNotFound(f"{self._source}: no repository {name}", hint=hint)
        return self.no_access(name, e)

    def no_access(self, name: str, e: Refused) -> EnvironmentProblem:
        """The error for a status that is no answer."""
        if e.fields.get("x-error-code") == "GatedRepo":
            hint = f"ask for access at {self._endpoint}/{self.repo}, then {_LOGIN}"
            return EnvironmentProblem(f"{name}: gated: status {e.status}", hint=hint)
        if e.status in (401, 403):
            what = "the token gives no access" if self._has_token else "no access without a token"
            return EnvironmentProblem(f"{name}: {what}: status {e.status}", hint=_LOGIN)
        return EnvironmentProblem(f"{name}: network: status {e.status} of {self._endpoint}")

    def foresee(self, path: str) -> None:
        """Begin to fetch a small file that will be read next, if there is one of that name."""
        nbytes = self.sizes.get(path)
        if (
            nbytes
            and nbytes <= MAX_CONFIG
            and path not in self._early
            and self.in_cache(path) is None
        ):
            whole = nbytes
            self._early[path] = parallel.start(lambda: self._get(path, 0, whole))

    def in_cache(self, path: str) -> LocalFolder | None:
        """The snapshot, if it has that file in the size that the listing has."""
        nbytes = self.sizes[path]
        if self._cached is None:
            return None
        try:
            found = os.path.getsize(os.path.join(self._cached.root, path))
        except OSError:
            return None
        return self._cached if nbytes in (None, found) else None

    def fetch(self, path: str, offset: int, count: int) -> Part:
        """One range of a file, as `RemoteFile` asks for it."""
        early = self._early.pop(path, None)
        if early is not None and (offset, count) == (0, self.sizes[path]):
            return self.client.wait(early)
        return self._get(path, offset, count)

    def _get(self, path: str, offset: int, count: int) -> Part:
        url = f"{self._endpoint}/{self.repo}/resolve/{self.commit}/{quote(path)}"
        try:
            part = self.client.part(url, path, offset, count)
        except Refused as e:
            if e.status in (404, 410):
                message = f"listed by the repository, but the answer is status {e.status}"
                raise NotReadable(path, "missing-shard", message) from e
            raise self.no_access(path, e) from e
        if part.commit is not None and part.commit != self.commit:
            raise EnvironmentProblem(
                f"{path}: revision moved: commit", found=part.commit, expected=self.commit
            )
        return part


def _entry(sibling: Any) -> tuple[str, int | None] | None:
    """Name and size of a file of a listing; None of one whose name no reader may use."""
    if not isinstance(sibling, dict):
        return None
    name, size = sibling.get("rfilename"), sibling.get("size")
    if not isinstance(name, str) or path_fault(name):
        return None
    return name, size if type(size) is int and size >= 0 else None


class HubFolder:
    """A repository, or a folder of it, as a `Folder`.

    Args:
        inside: the folder.
    """

    local = False

    def __init__(self, repository: _Repository, inside: str = "") -> None:
        self._repository = repository
        self._prefix = f"{inside}/" if inside else ""
        self.revision: str | None = repository.commit
        self.root = repository.root + (f"/{inside}" if inside else "")
        self._folders: dict[str, set[str]] = {}
        for path in repository.sizes:
            if not path.startswith(self._prefix):
                continue
            parts = path[len(self._prefix) :].split("/")
            for depth, part in enumerate(parts):
                self._folders.setdefault("/".join(parts[:depth]), set()).add(part)

    @property
    def requests(self) -> int:
        """Sent so far."""
        return self._repository.client.requests

    @property
    def bytes_read(self) -> int:
        """Bytes that came over the network, the listing included."""
        return self._repository.client.bytes_read

    def names(self, inside: str = "") -> list[str]:
        """Names in the folder, or in a folder of it, sorted."""
        return sorted(self._folders.get(inside, ()))

    def exists(self, name: str) -> bool:
        """Whether the listing has it."""
        return self._prefix + name in self._repository.sizes or name in self._folders

    def is_folder(self, name: str) -> bool:
        """Whether it is a folder in the listing."""
        return name in self._folders

    @contextmanager
    def open(self, name: str, expect: int = 0) -> Iterator[Readable]:
        """Open a file: in the cache if that has it whole, else by ranges; without a request yet.

        Raises:
            NotReadable: the listing does not have it.
        """
        repository, path = self._repository, self._prefix + name
        if path not in repository.sizes:
            raise NotReadable(name, "missing-shard", "no such file in the repository")
        if name.endswith(".index.json"):  # while it is parsed, what is read after it arrives
            for beside in ("config.json", "generation_config.json"):
                repository.foresee(self._prefix + beside)
        snapshot = repository.in_cache(path)
        if snapshot is not None:
            with snapshot.open(path, expect) as f:
                yield f
        else:
            nbytes = repository.sizes[path]
            yield RemoteFile(path, lambda at, n: repository.fetch(path, at, n), nbytes, expect)

    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            NotReadable: it is not there.
        """
        with self.open(name) as f:
            return f.nbytes

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
        """`function(name)` of all names, in their order, sixteen at a time."""
        return self._repository.client.in_order(function, names)
