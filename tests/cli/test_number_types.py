"""Numbers of the command line: plain, in range, and refused in one short line."""

from __future__ import annotations

import pytest
import typer

from ntool.lib import plain_numbers
from ntool.number_types import number, whole

LENIENT = [
    "1_0",
    " 5",
    "5 ",
    "٤",
    "",
    "-",
    "+",
    "0x10",
    "1e",
    "e5",
    "1.5.2",
    "nan",
    "inf",
    "1,5",
    "½",
]


@pytest.mark.parametrize("text", [*LENIENT, "1.5", "9" * 5000, "11", "-1"])
def test_whole_numbers(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a whole number from 0 to 10") as e:
        whole(0, 10)(text)
    assert len(str(e.value)) < 300


@pytest.mark.parametrize("text", [*LENIENT, "1" * 5000, "1e400", "1e99999", "1e999999", "1001"])
def test_numbers(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"expected a number from 0\.001 to 1000") as e:
        number(1e-3, 1e3)(text)
    assert len(str(e.value)) < 300


def test_what_is_taken() -> None:
    assert [whole(-5, 2**64)(t) for t in ("0", "+7", "-5", "007", 3)] == [0, 7, -5, 7, 3]
    assert [number(-10, 10)(t) for t in ("1", "-.5", "1.", "2e-3", 0.25)] == [
        1,
        -0.5,
        1,
        2e-3,
        0.25,
    ]
    assert plain_numbers.decimal("1e400") == float("inf")


DRAW = ("sample-image", "x", "-o", "y", "--prompt", "x")
WRONG = [
    (*DRAW, "--steps", "1_0"),
    (*DRAW, "--steps", "10001"),
    (*DRAW, "--cfg", "٤"),
    (*DRAW, "--cfg", "nan"),
    (*DRAW, "--shift", "1e308"),
    (*DRAW, "--shift", "1e-320"),
    (*DRAW, "--shift", "1" * 5000),
    (*DRAW, "--t-eps", "1e-320"),
    (*DRAW, "--seed", str(2**64)),
    (*DRAW, "--seed", "-1"),
    (*DRAW, "--threads", str(2**40)),
    (*DRAW, "--count", "0"),
    (*DRAW, "--min-pixels", str(2**70)),
    (*DRAW, "--max-pixels", str(2**70)),
    (*DRAW, "--size", "1" * 5000),
    (*DRAW, "--size", "٤x٤"),
    (*DRAW, "--cfg-interval", "0_1,1"),
    (*DRAW, "--cfg-interval", "0,1e300"),
    (*DRAW, "--seed", str(2**64 - 1), "--count", "2"),
    ("run-prefill", "x", "--prompt", "x", "--decode", str(2**70)),
    ("inspect-headers", "demo:shapes", "--max-header", "1_000"),
    ("census", "demo:shapes", "--max-header", "٤"),
    ("sample-image", "--" + "x" * 5000),
]


@pytest.mark.parametrize("arguments", WRONG, ids=lambda a: " ".join(a[-2:])[:40])
def test_commands(ntool, arguments: tuple[str, ...]) -> None:
    done = ntool(*arguments, code=2)
    assert arguments[-2] in done.err or "--seed" in done.err or arguments[0] in done.err
    assert all(len(line) < 600 for line in done.err.splitlines())
