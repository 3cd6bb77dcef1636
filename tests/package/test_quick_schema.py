"""The quick yes to a schema: it says what the library says, or nothing."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export, manifest, schema
from ntool.lib.package.quick_schema import Unknown, accepts

GOOD: dict[str, Any] = json.loads(
    json.dumps(manifest.package(export.plan(open_checkpoint("demo:shapes"))))
)
WHOLE = schema.schema()
ODD = [None, True, False, 0, 1, -1, 1.0, 0.5, 1e300, "", "x", "../x", [], ["a", "a"], [1, 1], {}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places of a JSON value; of long lists the first two entries."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for i, entry in enumerate(value[:2]):
            yield from places(entry, (*path, i))


def changed(place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    made = copy.deepcopy(GOOD)
    at = made
    for key in place[:-1]:
        at = at[key]
    if value is ...:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    return made


def agrees(value: Any) -> bool | None:
    """The quick answer, None if there was none; compared with the library's."""
    try:
        quick = accepts(value, WHOLE, WHOLE["$defs"])
    except Unknown:
        return None
    assert quick == (not schema.in_words(value))
    return quick


PLACES = sorted(places(GOOD), key=repr)


def test_a_good_package_is_accepted() -> None:
    assert agrees(GOOD) is True


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from([*ODD, ...]))
def test_as_the_library_says(place: tuple[Any, ...], value: Any) -> None:
    agrees(changed(place, value if place else {}))


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(PLACES),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=3), s, max_size=3),
        max_leaves=6,
    ),
)
def test_as_the_library_says_of_anything(place: tuple[Any, ...], value: Any) -> None:
    agrees(changed(place, value))


def test_every_required_key_and_every_type() -> None:
    """Without chance: each key gone, each value of another type."""
    answers = set()
    for place in PLACES[1:60]:
        for value in (..., [[]]):
            answers.add(agrees(changed(place, value)))
    assert answers >= {True, False}


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (1, {"const": 1}),
        ([1, True], {"uniqueItems": True}),
        ("x", {"format": "uri"}),
        ("x", {"$ref": "#/$defs/nowhere"}),
        ({"a": 1}, {"patternProperties": {}}),
        (1, {"not": {}}),
    ],
)
def test_what_is_not_known_is_said(value: Any, rule: dict[str, Any]) -> None:
    with pytest.raises(Unknown):
        accepts(value, rule, {})


def test_the_library_stays_out_of_a_good_check(tmp_path: Path) -> None:
    out = tmp_path / "pkg"
    export.write(export.plan(open_checkpoint("demo:shapes"), ["embedding"]), out)
    code = (
        "import sys; from ntool import guard; "
        f"code = guard.run(['verify-package', {str(out)!r}, '--check', 'layout.*']); "
        "assert code == 0 and 'jsonschema' not in sys.modules, code"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
