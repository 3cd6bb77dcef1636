"""Token ids on the command line and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ntool.lib.errors import InputError, SourceNotFound
from ntool.lib.text.given import parse_rows

ROWS = {
    "1": [(1,)],
    "1,2 ,3": [(1, 2, 3)],
    "1 2\t3": [(1, 2, 3)],
    "1,2;3": [(1, 2), (3,)],
    " 1 ; 2 ": [(1,), (2,)],
}
WRONG = ("", ";", "1;", ";1", "1;;2", "1,,2", "-1", "1.0", "x", "1;٣", "9" * 19)


@pytest.mark.parametrize("text", ROWS)
def test_rows(text: str) -> None:
    assert parse_rows(text) == ROWS[text]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_row_of_ids(text: str) -> None:
    with pytest.raises(InputError, match="token id"):
        parse_rows(text)


def test_lines_of_a_file_are_rows(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_text("1,2\n\n3 4\r\n5;6\n")
    assert parse_rows(f"@{file}") == [(1, 2), (3, 4), (5,), (6,)]
    file.write_text("\n")
    with pytest.raises(InputError, match="token id"):
        parse_rows(f"@{file}")
    with pytest.raises(SourceNotFound, match="nowhere"):
        parse_rows("@nowhere")
