"""The work folder of a conversion: hidden beside the output until the output is whole.

    .NAME.ntool-work/state.json     what is being made
    .NAME.ntool-work/rows.jsonl     a row of the report for each source tensor
    .NAME.ntool-work/done/SHARD     a JSON object for each finished shard: what was measured
    .NAME.ntool-work/data/          the output; renamed to NAME when nothing is missing

The output appears by one rename, so no reader ever sees a part of it. A process that is killed
leaves the work folder; `--resume` goes on with it, and several processes may share it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..checkpoint import strict_json
from ..checkpoint.output_file import cannot_write, sync_folder
from ..checkpoint.regular_file import read_file
from ..checkpoint.writer import DataFile, take_place, write_bytes
from ..errors import EnvironmentProblem, InputError, SourceNotFound, UsageProblem
from .plan import json_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SCHEMA = "ntool-conversion/1"
MAX_STATE = 256_000_000
"""Largest state file that is read, bytes; one of 150,000 tensors has 20 MB, its index."""
_STATE = {"fingerprint": str, "options": dict, "shards": list, "report_name": str, "report": dict}


def work_folder(out: Path) -> Path:
    """Where the output `out` is made."""
    real = Path(os.path.realpath(out))
    return real.parent / f".{real.name}.ntool-work"


class Work:
    """A work folder that exists.

    Args:
        out: the output folder as the user named it.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = work_folder(out)
        self.data, self.done = self.root / "data", self.root / "done"

    def state(self) -> dict[str, Any]:
        """What is being made: `fingerprint`, `shards` [name, nbytes], `companions`, `index`,
        `report`.

        Raises:
            SourceNotFound: there is no work folder.
            InputError: its state is damaged.
        """
        path = self.root / "state.json"
        if not self.root.is_dir():
            raise SourceNotFound(f"{self.out}: no conversion is under way")
        text, fault = strict_json.decode(read_file(str(path), MAX_STATE))
        value, faults = strict_json.parse(text) if text is not None else (None, [fault])
        if (
            faults
            or not isinstance(value, dict)
            or value.get("schema") != SCHEMA
            or not all(isinstance(value.get(k), kind) for k, kind in _STATE.items())
            or not all(
                isinstance(row, list) and list(map(type, row)) == [str, int]
                for row in value["shards"]
            )
        ):
            raise InputError(f"{path}: not the state of a conversion", expected=SCHEMA)
        return value

    def is_done(self, shard: DataFile, companions: Iterable[str] = ()) -> bool:
        """Whether a shard is finished: its file has the planned size and header, and what is made
        together with it is there."""
        return self.finished(shard.name, shard.nbytes, shard.header, companions)

    def finished(
        self,
        name: str,
        nbytes: int,
        header: bytes | None = None,
        companions: Iterable[str] = (),
    ) -> bool:
        """The same by name and size, for `merge`, which has no plan."""
        path = self.data / name
        try:
            if path.stat().st_size != nbytes or self.measured(name) is None:
                return False
            if not all((self.data / c).is_file() for c in companions):
                return False
            if header is None:
                return True
            with open(path, "rb") as f:
                return f.read(len(header)) == header
        except FileNotFoundError:
            return False

    def temporary(self, name: str) -> Path:
        """Where this process writes a file of the output before it is whole."""
        return self.root / f"{name.replace('/', '.')}.{os.getpid()}.tmp"

    def write_companion(self, name: str, content: bytes) -> None:
        """A small file of the output, whole or not at all; written again it is replaced."""
        self._replace(self.data / name, self.temporary(name), content)

    def note(self, name: str, measured: dict[str, Any]) -> None:
        """What was measured while a shard was written; two processes may write the same one."""
        self._replace(
            self.done / name, self.temporary(f"done/{name}"), json.dumps(measured).encode()
        )

    def _replace(self, path: Path, temporary: Path, content: bytes) -> None:
        temporary.unlink(missing_ok=True)
        write_bytes(temporary, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, path)

    def measured(self, name: str) -> dict[str, Any] | None:
        """What was measured while a finished shard was written; None of one that is not finished,
        or whose note is damaged."""
        try:
            value = json.loads((self.done / name).read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def finish(self, state: dict[str, Any], *, replace: str | None) -> None:
        """Write report and index, and let the output take its place.

        Args:
            replace: a file that an existing output holds if it may be replaced; None keeps it.
        """
        measured: dict[str, Any] = {}
        for name, _ in state["shards"]:
            measured.update(self.measured(name) or {})
        with naming(self.out, self.root):
            self._report(state, measured)
            if state.get("index_name") is not None:
                (self.data / state["index_name"]).unlink(missing_ok=True)
                write_bytes(self.data / state["index_name"], state["index"].encode())
            for folder in {(self.data / name).parent for name, _ in state["shards"]}:
                sync_folder(folder)
            sync_folder(self.data)
            take_place(self.data, Path(os.path.realpath(self.out)), self.out, replace)
            sync_folder(self.root.parent)
            self.remove()

    def _report(self, state: dict[str, Any], measured: dict[str, Any]) -> None:
        """The report, row by row: it may have 150,000."""
        path = self.data / state["report_name"]
        path.unlink(missing_ok=True)
        head = json_text(state["report"], 1).removesuffix(b"\n}")
        with open(self.root / "rows.jsonl", "rb") as rows, open(path, "xb") as out:
            out.write(head + b',\n "tensors": [')
            for i, line in enumerate(rows):
                row = json.loads(line)
                if row["name"] in measured:
                    row["statistics"] = measured[row["name"]]
                out.write((b",\n  " if i else b"\n  ") + json_text(row))
            out.write(b"\n ]\n}\n")
            out.flush()
            os.fsync(out.fileno())

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether the output is still to be finished; one process at a time is told so."""
        try:
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            yield False
            return
        try:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(fd, fcntl.LOCK_EX)
            yield self.data.is_dir()
        finally:
            os.close(fd)

    def forget_if_renamed(self) -> None:
        """Remove what a process left that was killed after the output had taken its place."""
        if self.root.is_dir() and not self.data.is_dir():
            self.remove()

    def remove(self) -> None:
        """Remove the work folder and what is in it."""
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def naming(out: Path, root: Path) -> Iterator[None]:
    """Errors of the system inside the work folder, told by the names that the user knows."""
    try:
        yield
    except OSError as e:
        if isinstance(e, BrokenPipeError):
            raise
        where = str(e.filename or root)
        if not where.startswith((str(root), str(root.parent))):
            raise  # of the source, not of the output
        if isinstance(e, FileNotFoundError):
            raise UsageProblem(f"output '{out}': another conversion is at work there") from e
        shown = where.replace(str(root / "data"), str(out)).replace(str(root), str(out))
        raise EnvironmentProblem(f"{shown}: cannot write: {e.strerror or e}") from e


def begin(
    out: Path,
    state: dict[str, Any],
    files: Iterator[tuple[str, bytes]],
    rows: Iterable[dict[str, Any]],
    *,
    share: bool,
    force: bool,
) -> tuple[Work, bool]:
    """The work folder for a conversion, made or found; and whether it was made now.

    Args:
        state: `fingerprint` and the rest; a folder with another fingerprint is another conversion.
        files: name and content of what stands beside the shards.
        rows: of the report, one for each source tensor.
        share: go on with a folder that is there (`--resume`, `--part`).
        force: replace one that is another conversion's, or that nobody asked to go on with.
    Raises:
        UsageProblem: an unfinished conversion is there.
        EnvironmentProblem: it cannot be written.
    """
    work = Work(out)
    work.forget_if_renamed()
    if work.root.is_dir():
        old = _fingerprint(work)
        if old == state["fingerprint"] and share:
            return work, False
        if not force:
            same = old == state["fingerprint"]
            what = "the same" if same else "another"
            told = "" if same else _difference(work, state)
            hint = (
                "--resume goes on with it, --force begins anew"
                if same
                else "--force removes it, parts of others included, and begins anew"
            )
            raise UsageProblem(
                f"output '{out}': {what} conversion is unfinished there{told}", hint=hint
            )
        work.remove()
    own = work.root.parent / f"{work.root.name}.{os.getpid()}"
    with naming(out, work.root):
        try:
            with cannot_write(str(out)):
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(own, ignore_errors=True)
                for folder in (own / "data", own / "done"):
                    folder.mkdir(parents=True)
            for name, content in files:
                write_bytes(own / "data" / name, content)
            with open(own / "rows.jsonl", "xb") as f:
                for row in rows:
                    f.write(json_text(row) + b"\n")
            write_bytes(own / "state.json", json.dumps({"schema": SCHEMA, **state}).encode())
            with suppress(OSError):
                os.rename(own, work.root)
                return work, True
        except BaseException:
            shutil.rmtree(own, ignore_errors=True)
            raise
    shutil.rmtree(own, ignore_errors=True)  # another process was first
    if share and _fingerprint(work) == state["fingerprint"]:
        return work, False
    raise UsageProblem(f"output '{out}': another conversion is at work there")


def _difference(work: Work, state: dict[str, Any]) -> str:
    """How the conversion that is there differs, as far as its options tell."""
    try:
        old = work.state()["options"]
    except (InputError, SourceNotFound):
        return ""
    new = json.loads(json.dumps(state["options"]))
    differ = [f"{k}: {old.get(k)}, not {v}" for k, v in new.items() if old.get(k) != v]
    return f" ({'; '.join(differ)})" if differ else " (of another or a changed source)"


def _fingerprint(work: Work) -> str | None:
    try:
        found = work.state().get("fingerprint")
    except (InputError, SourceNotFound):
        return None
    return found if isinstance(found, str) else None
