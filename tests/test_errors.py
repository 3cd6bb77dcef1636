"""Messages stay short whatever they repeat."""

from __future__ import annotations

from ntool.lib.errors import MAX_ECHO, MAX_WHAT, InputError, shorten


def test_found_and_expected_are_cut() -> None:
    e = InputError("a", found="x" * 10**7, expected="\ud800" * 10**7)
    assert e.message.startswith("a: found xxx") and "..., expected \\ud800" in e.message
    assert len(e.message) < 2 * MAX_ECHO + 50


def test_the_thing_and_the_hint_are_cut_later() -> None:
    e = InputError("x" * 10**7, hint="y" * 10**7)
    assert len(e.message) == MAX_WHAT and e.hint is not None and len(e.hint) == MAX_WHAT
    assert InputError("a" * 1000).message == "a" * 1000


def test_a_number_of_thousands_of_digits_can_be_found() -> None:
    assert "digits" in InputError("a", found=10**5000).message


def test_shorten() -> None:
    assert shorten("abcdef", 6) == "abcdef" and shorten("abcdefg", 6) == "abc..."
