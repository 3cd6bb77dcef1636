"""Lines of a prompts file: what is wrong is told by line before anything is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError, UsageProblem
from ntool.lib.families.neo_chat import jobs, request
from ntool.lib.families.neo_chat.request import Request

BASE = jobs.Job(Request("text-to-image", prompt="x"), 42, "out.png")
HUGE = 10**399
SURROGATE = "\ud800"
BAD: list[tuple[dict[str, Any], str]] = [
    *(({name: HUGE}, name) for name in ("cfg", "img_cfg", "shift", "t_eps", "seed", "steps")),
    *(({name: -HUGE}, name) for name in ("cfg", "img_cfg", "shift", "t_eps", "seed", "steps")),
    *(({name: True}, name) for name in ("cfg", "shift", "seed", "steps")),
    ({"shift": 1e-320}, "shift"),
    ({"shift": 1e308}, "shift"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -1}, "seed"),
    ({"steps": 0}, "steps"),
    ({"output": ""}, "output"),
    ({"output": "-"}, "output"),
    ({"output": "a\0b"}, "output"),
    ({"output": SURROGATE}, "output"),
    ({"output": None}, "output"),
    ({"prompt": SURROGATE}, "prompt"),
    ({"system": SURROGATE}, "system"),
    ({"images": ["a\0b"]}, "images"),
    ({"images": [""]}, "images"),
    ({"images": [3]}, "images"),
    ({"images": [SURROGATE]}, "images"),
    ({"size": "1" * 5000}, "--size"),
    ({"size": "64"}, "--size"),
    ({"cfg_interval": "1,x"}, "--cfg-interval"),
    ({"cfg_interval": "0,1e300"}, "--cfg-interval"),
    ({"think": 1}, "think"),
]


def lines(tmp_path: Path, *rows: dict[str, Any]) -> str:
    path = tmp_path / "lines"
    path.write_text("".join(json.dumps({"prompt": "x", **row}) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(("row", "words"), BAD, ids=lambda x: str(x)[:40])
def test_a_bad_value_names_the_line(tmp_path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as e:
        jobs.from_lines(lines(tmp_path, {}, row), BASE)
    assert "lines: line 2: " in e.value.message and words in e.value.message
    assert len(e.value.message) < 800


def test_numbers_that_are_taken(tmp_path) -> None:
    row = {"cfg": 4, "shift": 1, "t_eps": 1, "seed": 2**64 - 1, "cfg_interval": "0,0.5"}
    (job,) = jobs.from_lines(lines(tmp_path, row), BASE)
    assert job.seed == 2**64 - 1 and job.options["cfg_interval"] == (0, 0.5)
    assert job.line.endswith("line 1")


@pytest.mark.parametrize(
    "row", [{"size": "33x32"}, {"size": "0x32"}, {"cfg_norm": "loud"}, {"cfg_interval": "1,0"}]
)
def test_what_the_package_decides_names_the_line_too(demo_package, tmp_path, ntool, row) -> None:
    path = lines(tmp_path, {}, row)
    done = ntool("sample-image", demo_package, "--prompts", path, "-o", tmp_path / "p.png", code=3)
    assert "lines: line 2: " in done.err and not list(tmp_path.glob("*.png"))


def test_an_option_of_the_command_line_is_no_fault_of_a_line(demo_package, tmp_path, ntool) -> None:
    path, out = lines(tmp_path, {}), tmp_path / "p.png"
    ntool("sample-image", demo_package, "--prompts", path, "--size", "33x32", "-o", out, code=2)


def test_seeds_in_a_row_end_with_the_last_seed() -> None:
    last = jobs.Job(BASE.request, 2**64 - 2, "out.png")
    assert [j.seed for j in jobs.counted(last, 2)] == [2**64 - 2, 2**64 - 1]
    with pytest.raises(UsageProblem, match="--seed with --count 3"):
        jobs.counted(last, 3)


@pytest.mark.parametrize(
    "text", ["1,,2", "1,2,", ",1", "1, ,2", "1_0", "٤", "", ",", "1 , , 2", "-1"]
)
def test_token_lists_without_a_number_between_commas(text: str) -> None:
    with pytest.raises(InputError, match="--tokens: token id"):
        request.parse_tokens(text)


def test_token_lists() -> None:
    for text in ("1,2,3", "1, 2 ,3", "1 2\n3", " 1,\n2,\n3\n"):
        assert request.parse_tokens(text) == (1, 2, 3)


def test_text_that_is_not_utf8_names_its_option() -> None:
    for option in ("prompt", "query", "system"):
        options: dict[str, Any] = {"prompt": "x"} if option == "system" else {}
        with pytest.raises(InputError, match=f"--{option}: not UTF-8"):
            request.from_options("text-to-image", **{**options, option: "a\udcff"})


@pytest.mark.parametrize(
    "row", [{"text": SURROGATE}, {"images": ["a\0"]}, {"images": [SURROGATE]}, {"images": [""]}]
)
def test_messages_hold_text_and_paths(tmp_path, row: dict[str, Any]) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps([{"role": "user", "text": "x", **row}]))
    with pytest.raises(InputError, match=r"m\.json: message 0"):
        request.read_messages(path)
