"""Ways a command can end, as real processes: exit code, message, and the last record."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ntool import failure
from ntool.console import console
from ntool.guard import run
from ntool.lib import errors

NTOOL = [sys.executable, "-m", "ntool"]
LINUX = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def ntool(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*NTOOL, *arguments], capture_output=True, timeout=60, **options)


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.decode().splitlines()]


@pytest.fixture
def other_family(tmp_path: Path) -> Path:
    """A sound checkpoint of a family that ntool does not know."""
    header = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    header += b" " * (-len(header) % 8)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    (tmp_path / "config.json").write_text('{"model_type":"unheard_of"}')
    return tmp_path


def test_0_done() -> None:
    done = ntool("census", "demo:shapes")
    assert (done.returncode, done.stderr) == (0, b"")
    assert records(done.stdout)[-1]["kind"] == "end"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export",), "ntool: No such command 'export'. Did you mean 'export-component'?"),
        (("patchgen", "gen"), "ntool patchgen: No such command 'gen'. Did you mean 'generate'?"),
        (("censsu",), "ntool: No such command 'censsu'. Did you mean 'census'?"),
        (("zzz",), "ntool: No such command 'zzz'."),
    ],
)
def test_2_a_command_by_its_beginning(words: tuple[str, ...], message: str) -> None:
    done = ntool(*words)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0] == message


def test_1_difference(tmp_path: Path) -> None:
    wrong = tmp_path / "expected.json"
    wrong.write_text('{"tensors":1}')
    done = ntool("census", "demo:shapes", "--expect", str(wrong))
    assert done.returncode == 1
    assert done.stderr.startswith(b"ntool census: demo:shapes: ") and done.stderr.count(b"\n") == 1
    assert [r["kind"] for r in records(done.stdout)][-3:] == ["problem", "summary", "end"]


@pytest.mark.parametrize(
    ("arguments", "command", "hint"),
    [
        (["nonsense"], "ntool", "ntool --help"),
        (["census"], "ntool census", "ntool census --help"),
        (["census", "demo:shapes", "--nonsense"], "ntool census", "ntool census --help"),
        (["census", "demo:shapes", "--format", "xml"], "ntool census", "ntool census --help"),
        (["census", "demo:shapes", "--progress", "no"], "ntool census", "ntool census --help"),
        (["inspect-headers", "x", "--max-header", "1"], "ntool inspect-headers", None),
    ],
)
def test_2_wrong_use(arguments: list[str], command: str, hint: str | None) -> None:
    done = ntool(*arguments)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, b"", 2)
    assert lines[0].startswith(f"{command}: ")
    assert lines[1].startswith("hint: ") and (hint is None or lines[1] == f"hint: {hint}")


def test_2_no_arguments_shows_the_help() -> None:
    done = ntool()
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Usage: ntool") and b"\n  inspect-headers" in done.stderr


def test_3_malformed() -> None:
    done = ntool("census", "-", input=b'{"kind":"begin","schema":"ntool/1"}\n')
    assert done.returncode == 3
    assert done.stderr.startswith(b"ntool census: standard input: the stream stops after line 1")
    assert done.stderr.count(b"\n") == 1


def test_4_not_found() -> None:
    done = ntool("census", "demo:nope")
    assert (done.returncode, done.stderr) == (4, b"ntool census: demo:nope: expected demo:shapes\n")
    assert records(done.stdout)[-1] == {
        "kind": "error",
        "code": 4,
        "class": "SourceNotFound",
        "message": "demo:nope: expected demo:shapes",
    }


def test_5_not_supported(other_family: Path) -> None:
    done = ntool("export-component", str(other_family), "--dry-run")
    assert done.returncode == 5
    assert done.stderr.startswith(b"ntool export-component: ") and b"'unheard_of'" in done.stderr
    last = records(done.stdout)[-1]
    assert (last["kind"], last["code"], last["class"]) == ("error", 5, "Unsupported")


@LINUX
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["census", "demo:shapes"]])
def test_6_no_space_for_the_output(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*NTOOL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    name = " ".join(["ntool", *(a for a in arguments if a == "census")])
    assert (done.returncode, done.stderr) == (6, f"{name}: No space left on device\n")


def test_6_standard_output_closed() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *NTOOL, "census", "demo:shapes"],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (6, b"ntool: standard output is closed\n")


def test_standard_error_closed_keeps_messages_out_of_the_records() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *NTOOL, "census", "demo:nope"],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert [r["kind"] for r in records(done.stdout)] == ["begin", "error"]


BUG = """
import sys
from ntool.guard import run
from ntool.lib import inspection
def broken(*_, **__):
    raise KeyError("oh")
inspection.read = broken
sys.exit(run(sys.argv[1:]))
"""


def test_70_bug() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG, "census", "demo:shapes"], capture_output=True, timeout=60
    )
    assert done.returncode == 70
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "ntool census: bug in ntool: KeyError: 'oh'"
    assert lines[1].startswith("Traceback") and lines[-1] == "KeyError: 'oh'"
    last = records(done.stdout)[-1]
    assert (last["kind"], last["code"], last["class"]) == ("error", 70, "KeyError")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals(number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*NTOOL, "census", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # what starts the tests in the background may have it ignored
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        assert b'"begin"' in process.stdout.readline()  # it waits for standard input now
        time.sleep(0.2)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (code, b"")
    assert b'"end"' not in out


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("format", ["jsonl", "table", "csv"])
def test_141_reader_closed(unbuffered: str, format: str) -> None:
    process = subprocess.Popen(
        [*NTOOL, "inspect-headers", *["demo:shapes"] * 40, "--format", format],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), err) == (141, b"")


def test_141_in_a_shell_pipeline() -> None:
    """With pipefail a shell sees 141 from `| head`, as from any program that SIGPIPE ends."""
    script = 'set -o pipefail; "$@" | head -n 1 >/dev/null; echo "${PIPESTATUS[*]}"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *NTOOL, "inspect-headers", *["demo:shapes"] * 40],
        capture_output=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (b"141 0\n", b"")


def test_quiet_keeps_errors_and_drops_notes(tmp_path: Path) -> None:
    out = tmp_path / "package"
    loud = ntool("export-component", "demo:shapes", "embedding", "-o", str(out))
    assert loud.returncode == 0 and loud.stderr.startswith(b"ntool export-component: wrote ")
    quiet = ntool("export-component", "demo:shapes", "embedding", "-o", str(out), "--force", "-q")
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    error = ntool("census", "demo:nope", "-q")
    assert error.stderr == b"ntool census: demo:nope: expected demo:shapes\n"


def test_verbose_shows_the_traceback() -> None:
    done = ntool("census", "demo:nope", "-v")
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 4
    assert lines[0] == "ntool census: demo:nope: expected demo:shapes"
    assert lines[1].startswith("Traceback") and len(lines) > 4


def test_table() -> None:
    done = ntool("census", "demo:shapes", "--by", "dtype", "--format", "table")
    head, first = done.stdout.decode().splitlines()[:2]
    assert head.split() == ["by", "key", "tensors", "params", "nbytes", "dtypes"]
    assert first.split() == ["dtype", "F32", "82", "1,793,312", "7,173,248", "F32:82"]
    assert b"\nsummary\n" in done.stdout and b'"kind"' not in done.stdout


@pytest.mark.parametrize(("format", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_delimited(format: str, delimiter: str) -> None:
    done = ntool("inspect-headers", "demo:shapes", "--format", format)
    rows = list(csv.reader(io.StringIO(done.stdout.decode()), delimiter=delimiter))
    assert rows[0] == ["name", "dtype", "shape", "params", "nbytes", "file", "offset"]
    assert len(rows) == 155 and {len(r) for r in rows} == {7}
    assert "fm_modules.fm_head.conv1.weight" in {r[0] for r in rows}


def test_delimited_errors_are_told_once() -> None:
    done = ntool("census", "demo:nope", "--format", "csv")
    assert done.stdout == b"by,key,tensors,params,nbytes,dtypes\n"
    assert done.stderr == b"ntool census: demo:nope: expected demo:shapes\n"


@pytest.mark.parametrize("arguments", [["--help"], ["census", "--help"], ["census", "demo:nope"]])
def test_no_colour_off_a_terminal(arguments: list[str]) -> None:
    forced = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "PY_COLORS": "1", "TERM": "xterm-256color"}
    done = ntool(*arguments, env={**os.environ, **forced})
    assert b"\x1b" not in done.stdout + done.stderr and done.stdout


def test_records_are_utf8_in_any_locale(tmp_path: Path) -> None:
    source = tmp_path / "gr\u00f6\u00dfe"
    env = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}
    done = ntool("census", str(source), env=env)
    assert done.returncode == 4
    assert records(done.stdout)[0]["source"] == str(source)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.CheckFailed("a"), 1, "a"),
        (errors.UsageProblem("a", found=1), 2, "a: found 1"),
        (errors.InputError("a", found=1, expected=2), 3, "a: found 1, expected 2"),
        (FileNotFoundError(2, "No such file or directory", "x"), 4, "x: No such file or directory"),
        (errors.Unsupported("a"), 5, "a"),
        (PermissionError(13, "Permission denied", "x"), 6, "x: Permission denied"),
        (OSError(28, "No space left on device"), 6, "No space left on device"),
        (ConnectionResetError(104, "Connection reset"), 6, "Connection reset"),
        (MemoryError(), 6, "not enough memory"),
        (ModuleNotFoundError("x", name="onnx.y"), 6, "Python package 'onnx' is not installed"),
        (ModuleNotFoundError("x", name="ntool.y"), 70, "bug in ntool: ModuleNotFoundError: x"),
        (OSError(22, "Invalid argument"), 70, "bug in ntool: OSError: [Errno 22] Invalid argument"),
        (ZeroDivisionError("x"), 70, "bug in ntool: ZeroDivisionError: x"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (SystemExit(143), 143, ""),
    ],
)
def test_codes_of_exceptions(error: BaseException, code: int, message: str) -> None:
    found = failure.failure(error)
    assert (found.code, found.message, found.bug) == (code, message, code == 70)


def test_names_from_files_cannot_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["census", "no\x1b[31m\nforged: line\u202e"]) == 4
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\u202e" not in err and err.count("\n") == 1
    assert "\\x1b[31m\\x0aforged" in err


def test_options_of_one_run_do_not_reach_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    run(["census", "demo:nope", "-v", "--format", "csv"])
    capsys.readouterr()
    assert run(["nonsense"]) == 2
    assert capsys.readouterr().err.splitlines()[0].startswith("ntool: No such command")


def test_warnings_of_libraries_are_details(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    from ntool import guard

    def warn(arguments: list[str]) -> int:
        console.command, console.verbose = "census", "-v" in arguments
        warnings.warn("overflow\nencountered", RuntimeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(guard, "_invoke", warn)
    shown = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run([]) == 0
        assert capsys.readouterr().err == ""
        assert run(["-v"]) == 0
    told = capsys.readouterr().err
    assert told == "ntool census: RuntimeWarning: overflow\\x0aencountered\n"
    assert warnings.showwarning is shown


def test_long_words_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["census", "x" * 10_000]) in (4, 6)
    assert run(["census", "demo:shapes", "--" + "x" * 10_000]) == 2
    assert run(["x" * 10_000]) == 2
    assert all(len(line) < 2200 for line in capsys.readouterr().err.splitlines())
