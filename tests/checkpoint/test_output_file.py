"""Output files: judged before they are written, and written whole, through links and into pipes."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from safetensors.numpy import load

from ntool.lib.checkpoint import output_file
from ntool.lib.checkpoint.output_file import OneFile, check_new_files, write_whole
from ntool.lib.errors import EnvironmentProblem, NtoolError, SourceNotFound, UsageProblem
from ntool.lib.runtime import arrays
from ntool.lib.sampling.image import write_png

PICTURE = np.zeros((4, 4, 3), np.uint8)
ARRAYS = {"z": np.arange(6, dtype=np.float32).reshape(2, 3), "t": np.arange(3, dtype=np.int64)}


def drained(fifo: Path) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    thread.start()
    return thread, found


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    for write in (
        lambda: write_png(fifo, PICTURE),
        lambda: arrays.save(fifo, ARRAYS, {"a": 1}),
    ):
        thread, found = drained(fifo)
        write()
        thread.join(10)
        assert stat.S_ISFIFO(os.stat(fifo).st_mode) and os.listdir(tmp_path) == ["pipe"]
    np.testing.assert_array_equal(load(found[0])["z"], ARRAYS["z"])


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
@pytest.mark.parametrize(("minor", "message"), [(3, None), (7, "No space left on device")])
def test_a_character_device_is_written_through(tmp_path: Path, minor: int, message: Any) -> None:
    """Nodes of the test's own: the system's must not be in reach of a mistake."""
    device = tmp_path / "device"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    try:
        arrays.save(device, ARRAYS, {})
    except EnvironmentProblem as e:
        assert message and e.message == f"{device}: cannot write: {message}"
    except PermissionError:  # pragma: no cover -- mounted without devices
        pytest.skip("no device nodes in this folder")
    else:
        assert message is None
    assert stat.S_ISCHR(os.stat(device).st_mode) and os.listdir(tmp_path) == ["device"]
    check_new_files([str(device), str(device)])  # both may be thrown away


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "a.png", tmp_path / "link"
    if there:
        target.write_bytes(b"before")
    link.symlink_to(target)
    write_png(link, PICTURE)
    assert link.is_symlink() and target.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path / "folder") == ["a.png"]


def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")

    def fill(f: BinaryIO) -> None:
        f.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(EnvironmentProblem, match="a: cannot write: No space left on device"):
        write_whole(path, fill)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["a"]


def test_an_interruption_while_the_file_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = output_file._create

    def interrupted(path: str) -> BinaryIO:
        create(path).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(output_file, "_create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", lambda f: None)
    assert os.listdir(tmp_path) == []


def test_the_longest_names_and_what_a_killed_process_left(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 251 + ".png")
    left = tmp_path / f".{'n' * 50}.ntool-{os.getpid()}.tmp"
    left.symlink_to(tmp_path / "elsewhere")
    write_png(path, PICTURE)
    assert os.listdir(tmp_path) == [path.name]


def test_files_get_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        arrays.save(tmp_path / "a", ARRAYS, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o640


def refused(*paths: object, inputs: Any = (), folders: Any = ()) -> NtoolError:
    with pytest.raises(NtoolError) as caught:
        check_new_files(map(str, paths), map(str, inputs), list(map(str, folders)))
    return caught.value


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    assert isinstance(refused(""), UsageProblem)
    assert "is a folder" in refused(tmp_path).message
    assert isinstance(refused(tmp_path / "none" / "a"), SourceNotFound)
    (tmp_path / "loop").symlink_to("loop")
    assert "leads nowhere" in refused(tmp_path / "loop").message
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "s"))
        assert "is a socket" in refused(tmp_path / "s").message
    if os.geteuid() == 0:
        os.mknod(tmp_path / "disk", 0o600 | stat.S_IFBLK, os.makedev(7, 255))
        assert "is a block device" in refused(tmp_path / "disk").message


def test_one_file_under_two_names(tmp_path: Path) -> None:
    a = tmp_path / "a"
    a.write_bytes(b"")
    (tmp_path / "link").symlink_to(a)
    os.link(a, tmp_path / "hard")
    (tmp_path / "sub").mkdir()
    for other in ("link", "hard", "sub/../a"):
        message = refused(a, tmp_path / other).message
        assert "are one file" in message and other in message and str(a) in message
        message = refused(tmp_path / other, inputs=[a]).message
        assert message == f"output '{tmp_path / other}' and input '{a}' are one file"
    message = refused(tmp_path / "new", tmp_path / "sub/../new").message
    assert "are one file" in message
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(refused(tmp_path / "pipe", inputs=[tmp_path / "pipe"]), OneFile)


def test_nothing_is_written_into_a_folder_that_is_read(tmp_path: Path) -> None:
    package, blobs = tmp_path / "package", tmp_path / "blobs"
    package.mkdir()
    blobs.mkdir()
    (blobs / "b1").write_bytes(b"")
    (package / "model.onnx").symlink_to(blobs / "b1")
    (tmp_path / "link").symlink_to(package)
    message = refused(package / "new.png", folders=[package]).message
    assert message == f"output '{package / 'new.png'}' lies in the input '{package}'"
    assert isinstance(refused(tmp_path / "link" / "new.png", folders=[package]), OneFile)
    message = refused(blobs / "b1", folders=[package]).message
    assert "'model.onnx'" in message
    check_new_files([str(blobs / "b2")], folders=[str(package)])
    check_new_files([str(tmp_path / "package.png")], folders=[str(package)])


LIMIT = """
import sys, numpy as np, pathlib
from ntool.lib.runtime import arrays
from ntool.lib.sampling.image import write_png
from ntool.lib.errors import EnvironmentProblem
noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
for write in (lambda p: arrays.save(p, {"z": noise}, {}), lambda p: write_png(p, noise)):
    try:
        write(pathlib.Path(sys.argv[1]))
    except EnvironmentProblem as e:
        print(e.message)
"""


def test_a_limit_on_file_size_names_the_file(tmp_path: Path) -> None:
    import sys

    script = 'ulimit -f 4; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-c", LIMIT, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    line = f"{tmp_path / 'out'}: cannot write: File too large\n"
    assert (done.stdout, done.stderr) == (line * 2, "")
    assert os.listdir(tmp_path) == []
