"""Any address that fsspec knows (`s3://`, `gs://`, `memory://`), as a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ..errors import EnvironmentProblem, SourceNotFound, Unsupported
from .folder import NotReadable, Readable
from .parallel import in_order
from .remote_file import RemoteFile

T = TypeVar("T")


class _Bytes(NamedTuple):
    data: bytes
    total: int | None
    identity: str


def open_remote(url: str) -> tuple[RemoteFolder, str | None]:
    """The folder of an address, and the name of a file in it, if the address is one.

    Raises:
        Unsupported: fsspec does not know the scheme.
        EnvironmentProblem: its driver is not installed, or it cannot reach its storage.
        SourceNotFound: nothing is there.
    """
    import fsspec

    scheme = url.split("://", 1)[0].lower()
    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as e:  # it names the package: "Install s3fs to access S3"
        raise EnvironmentProblem(f"{scheme}://: no driver: {e}", hint=_install(scheme)) from e
    except ValueError as e:
        if scheme in fsspec.available_protocols():
            raise EnvironmentProblem(f"{scheme}://: {e}") from e
        raise Unsupported(
            f"{scheme}://: no such kind of source", expected="hf, http, https, or one of fsspec"
        ) from e
    except Exception as e:  # drivers raise what they like
        raise EnvironmentProblem(f"{scheme}://: {type(e).__name__}: {e}") from e
    folder = RemoteFolder(files, path.rstrip("/"), scheme)
    if folder.names():
        return folder, None
    inside, _, name = path.rstrip("/").rpartition("/")
    parent = RemoteFolder(files, inside, scheme)
    if not name or not parent.exists(name):
        raise SourceNotFound(f"{scheme}://{path}: no such file or folder")
    return parent, name


def _install(scheme: str) -> str:
    from fsspec.registry import known_implementations

    known = known_implementations.get(scheme, {})
    return f"pip install 'fsspec[{scheme}]'" if not known.get("err") else str(known["err"])


class RemoteFolder:
    """A folder of a file system of fsspec.

    Args:
        files: the file system.
        path: of the folder in it.
        scheme: of its addresses.
    """

    local = False
    revision: str | None = None

    def __init__(self, files: Any, path: str, scheme: str) -> None:
        self._files, self._path = files, path
        self.root = f"{scheme}://{path}"
        self.requests = self.bytes_read = 0
        self._lock = threading.Lock()
        self._listings: dict[str, dict[str, Any]] = {}

    def names(self, inside: str = "") -> list[str]:
        """Names in the folder, or in a folder of it, sorted; listed once."""
        return sorted(self._listing(inside))

    def exists(self, name: str) -> bool:
        """Whether its folder lists it."""
        inside, _, last = name.rpartition("/")
        return last in self._listing(inside)

    def is_folder(self, name: str) -> bool:
        """Whether its folder lists it as a folder."""
        inside, _, last = name.rpartition("/")
        return self._listing(inside).get(last, {}).get("type") == "directory"

    @contextmanager
    def open(self, name: str, expect: int = 0) -> Iterator[Readable]:
        """Open a file, without a request yet where the listing has its size.

        Raises:
            NotReadable: the listing does not have it.
        """
        inside, _, last = name.rpartition("/")
        entry = self._listing(inside).get(last)
        if entry is None or entry.get("type") == "directory":
            raise NotReadable(name, "missing-shard", "no such file")
        path, nbytes = entry["name"], entry.get("size")
        if type(nbytes) is not int:
            nbytes = self._asked(name, self._files.size, path)
        if type(nbytes) is not int:
            raise EnvironmentProblem(f"{self.root}/{name}: the storage does not tell its size")

        def fetch(offset: int, count: int) -> _Bytes:
            data = self._asked(name, self._files.cat_file, path, start=offset, end=offset + count)
            with self._lock:
                self.bytes_read += len(data)
            return _Bytes(data, None, "")

        yield RemoteFile(name, fetch, nbytes, expect)

    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            NotReadable: it is not there.
        """
        with self.open(name) as f:
            return f.nbytes

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
        """`function(name)` of all names, in their order; sixteen at a time where the driver is made
        for it (others need not bear threads)."""
        if not getattr(self._files, "async_impl", False):
            return map(function, names)
        return in_order(function, names, lambda future: future.result())

    def _listing(self, inside: str) -> dict[str, Any]:
        """Entries of a folder by name; none where there is no folder."""
        if inside not in self._listings:
            path = f"{self._path}/{inside}" if inside else self._path
            found = self._asked(inside, self._list, path)
            self._listings[inside] = {e["name"].rstrip("/").rpartition("/")[2]: e for e in found}
        return self._listings[inside]

    def _list(self, path: str) -> list[dict[str, Any]]:
        try:
            entries: list[dict[str, Any]] = self._files.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # of a file some drivers list the file itself
        return [e for e in entries if e["name"].strip("/") != path.strip("/")]

    def _asked(self, name: str, ask: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What the driver answers; its errors, which may be of any kind, as errors of ours."""
        with self._lock:
            self.requests += 1
        try:
            return ask(*arguments, **named)
        except FileNotFoundError as e:
            raise NotReadable(name, "missing-shard", "no such file") from e
        except Exception as e:
            where = f"{self.root}/{name}" if name else self.root
            raise EnvironmentProblem(f"{where}: {type(e).__name__}: {e}") from e
