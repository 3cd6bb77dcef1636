"""Reading and writing record streams."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntool.lib import records
from ntool.lib.errors import InputError
from ntool.lib.record_formats import Delimited, JsonLines, Table
from ntool.lib.records import Record, Stream, dumps, finite, parse_line, read

BEGIN = '{"kind":"begin","schema":"ntool/1"}'
A = '{"kind":"tensor","name":"a"}'


def stream(*lines: str) -> io.StringIO:
    return io.StringIO("".join(f"{line}\n" for line in lines))


def kinds(*lines: str) -> list[str]:
    return [r["kind"] for r in read(stream(*lines))]


def refused(*lines: str) -> str:
    with pytest.raises(InputError) as e:
        list(read(stream(*lines), "input"))
    assert "\n" not in e.value.message
    return e.value.message


def test_whole_streams() -> None:
    assert kinds(BEGIN, A, A, '{"kind":"end","count":2}') == ["begin", "tensor", "tensor", "end"]
    assert kinds(BEGIN, '{"kind":"end","count":0}') == ["begin", "end"]


def test_concatenated_streams() -> None:
    one = (BEGIN, A, '{"kind":"end","count":1}')
    assert kinds(*one, *one, "", BEGIN, '{"kind":"end","count":0}').count("begin") == 3


def test_last_line_without_a_line_feed() -> None:
    assert len(list(read(io.StringIO(BEGIN + "\n" + '{"kind":"end","count":0}')))) == 2


def test_lines_from_any_iterable() -> None:
    assert len(list(read([BEGIN, A, '{"kind":"end","count":1}']))) == 3


def test_unknown_kinds_and_fields_pass() -> None:
    future = '{"kind":"from-the-future","x":{"y":[1,null,"\\u00e9"]}}'
    found = list(read(stream(BEGIN, future, '{"kind":"end","count":1,"extra":true}')))
    assert found[1] == {"kind": "from-the-future", "x": {"y": [1, None, "é"]}}
    assert found[2]["extra"] is True


def test_truncated() -> None:
    assert refused(BEGIN, A) == "input: the stream stops after line 2 without its 'end'"
    assert refused(BEGIN) == "input: the stream stops after line 1 without its 'end'"
    assert "line 2: not a JSON record" in refused(BEGIN, A[:-3])


def test_records_before_a_truncation_are_given() -> None:
    found = []
    with pytest.raises(InputError):
        for record in read(stream(BEGIN, A)):
            found.append(record["kind"])
    assert found == ["begin", "tensor"]


def test_nothing_at_all() -> None:
    assert refused() == "input: empty: expected a record stream"
    assert refused("", "  ") == "input: empty: expected a record stream"


@pytest.mark.parametrize("count", ["0", "2", "null", '"1"', "1.0", "true"])
def test_count_differs(count: str) -> None:
    message = refused(BEGIN, A, f'{{"kind":"end","count":{count}}}')
    expected = "input: line 3: records since 'begin': found 1, expected the count of 'end', "
    assert message == expected + count
    assert "found 1" in refused(BEGIN, A, '{"kind":"end"}')


def test_structure() -> None:
    end = '{"kind":"end","count":0}'
    assert refused(A) == "input: line 1: 'tensor' outside a stream: expected 'begin' first"
    assert refused(BEGIN, end, A).startswith("input: line 3: 'tensor' outside")
    assert refused(end).startswith("input: line 1: 'end' outside")
    assert refused(BEGIN, BEGIN, end).startswith("input: line 2: 'begin' before the 'end'")


@pytest.mark.parametrize("schema", ['"ntool/2"', "null", "1"])
def test_unknown_schema(schema: str) -> None:
    message = refused(f'{{"kind":"begin","schema":{schema}}}')
    assert message.startswith("input: line 1: schema: found ") and message.endswith(
        'expected "ntool/1"'
    )


def test_error_record_says_why() -> None:
    error = '{"kind":"error","code":3,"class":"InputError","message":"x.safetensors: cut"}'
    assert refused(BEGIN, A, error) == "input: line 3: the writer stopped: x.safetensors: cut"


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "1",
        '"begin"',
        "null",
        "{}",
        '{"kind":1}',
        '{"kind":null}',
        '{"kind":"x"} {"kind":"y"}',
        "{'kind':'x'}",
        '{"kind":"x",}',
        '{"kind":"x","v":NaN}',
        '{"kind":"x","v":Infinity}',
        '{"kind":"x","v":[-Infinity]}',
        '{"kind":"x","kind":"y"}',
        '{"kind":"x","v":{"a":1,"a":1}}',
        '{"kind":"x","v":"\x01"}',
        '\ufeff{"kind":"x"}',
        '{"kind":"x","v":' + "9" * 5000 + "}",
        '{"kind":"x","v":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"kind":"x","v":' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    ],
    ids=lambda line: repr(line[:24]),
)
def test_lines_that_are_no_records(line: str) -> None:
    assert refused(BEGIN, line).startswith("input: line 2: ")


def test_duplicate_key_is_named() -> None:
    assert "duplicate key 'name'" in refused(BEGIN, '{"kind":"tensor","name":"a","name":"b"}')


def test_very_long_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_LINE", 100)
    fits = '{"kind":"x","v":"' + "a" * 80 + '"}'
    assert len(fits) + len("\n") == 100
    with pytest.raises(InputError, match="stops after line 2"):
        list(read(stream(BEGIN, fits)))
    with pytest.raises(InputError, match=r"line 2: record too long: found 101, expected <= 100"):
        list(read(stream(BEGIN, fits.replace("aa", "aaa", 1))))


def test_long_line_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_LINE", 1000)
    endless = stream(BEGIN, "x" * 1_000_000)
    with pytest.raises(InputError, match="record too long"):
        list(read(endless))
    assert endless.tell() < 5000


def test_not_utf8() -> None:
    raw = io.BytesIO(BEGIN.encode() + b'\n{"kind":"x","v":"\xff"}\n')
    with pytest.raises(InputError, match="input: not UTF-8"):
        list(read(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"), "input"))


def test_line_separators_inside_strings_do_not_end_a_record() -> None:
    line = '{"kind":"x","v":"a\u2028b\u0085c\x0b"}'.replace("\x0b", "\\u000b")
    raw = io.BytesIO(f'{BEGIN}\n{line}\n{{"kind":"end","count":1}}\n'.encode())
    found = list(read(io.TextIOWrapper(raw, encoding="utf-8", newline="\n")))
    assert found[1]["v"] == "a\u2028b\u0085c\x0b"


NASTY = '\x00\x07\x1b[31m\n\r\t\x7f\x85\u2028\u202e\u2066\ufeff\ud800 \udfff\U000e0001é漢😀"\\'


def test_escapes() -> None:
    line = dumps({"kind": "tensor", "name": NASTY})
    for c in line:
        assert c.isprintable() or c == " ", hex(ord(c))
    assert "é漢😀" in line
    assert json.loads(line) == {"kind": "tensor", "name": NASTY}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_round_trip(fields: dict[str, Any]) -> None:
    record = {**fields, "kind": "x"}
    line = dumps(record)
    assert "\n" not in line and line.encode()
    assert parse_line(line, "line 1") == record


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_any_text_is_a_record_or_an_input_error(text: str) -> None:
    try:
        record = parse_line(text, "line 1")
    except InputError:
        return
    assert isinstance(record["kind"], str)


def test_no_nan_in_output() -> None:
    record = {"kind": "step", "a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": (1.5,)}
    assert json.loads(dumps(record)) == {
        "kind": "step",
        "a": None,
        "b": [None, {"c": None}],
        "d": [1.5],
    }
    assert finite(record)["d"] == [1.5]


def test_written_streams_are_read_back() -> None:
    out = io.StringIO()
    s = Stream(JsonLines(out), source="somewhere", format="safetensors", note="more")
    s.write("tensor", name=NASTY)
    s.write_all("group", [{"by": "dtype"}, {"by": "file"}])
    s.end(requests=3)
    first, *middle, last = read(io.StringIO(out.getvalue()))
    assert list(first)[:7] == [
        "kind",
        "schema",
        "producer",
        "version",
        "source",
        "revision",
        "format",
    ]
    assert first["note"] == "more" and first["revision"] is None
    assert [r["kind"] for r in middle] == ["tensor", "group", "group"]
    assert middle[0]["name"] == NASTY
    assert last["count"] == 3 and last["requests"] == 3 and last["seconds"] >= 0


def test_error_ends_a_stream() -> None:
    out = io.StringIO()
    s = Stream(JsonLines(out), source=None)
    s.error("InputError", 3, "a\x1bb")
    last = json.loads(out.getvalue().splitlines()[-1])
    assert last == {"kind": "error", "code": 3, "class": "InputError", "message": "a\\x1bb"}


def test_table() -> None:
    out = io.StringIO()
    table = Table(out)
    table.record({"kind": "begin"})
    table.record({"kind": "check", "id": "a.b", "ok": True, "message": ""})
    table.record({"kind": "check", "id": "c", "ok": False, "message": "x\x1b[2J"})
    table.record({"kind": "check", "id": "d", "ok": None, "message": ""})
    table.record({"kind": "summary", "nbytes": 1234567, "empty": [], "none": None, "shape": [2, 3]})
    table.record({"kind": "end"})
    table.close()
    assert out.getvalue().splitlines() == [
        "ok    id   message",
        "ok    a.b",
        "FAIL  c    x\\x1b[2J",
        "-     d",
        "",
        "summary",
        "  nbytes  1,234,567",
        "  shape   2,3",
    ]


def tabled(*records: Record, width: int | None = None) -> list[str]:
    out = io.StringIO()
    table = Table(out, width)
    for record in records:
        table.record(record)
    table.close()
    return out.getvalue().splitlines()


def check(id: str, ok: bool | None, message: str, **more: object) -> Record:
    given = {"component": None, "expected": None, "actual": None, **more}
    return {"kind": "check", "id": id, "ok": ok, "message": message, **given}


def test_table_of_checks_that_hold() -> None:
    """No expected and actual, and nothing wider than the terminal."""
    long = "word " * 40
    lines = tabled(
        check("a.b", True, long, component="decoder", expected=1, actual=1),
        check("layout.files", None, "short"),
        width=60,
    )
    assert lines == [
        "ok  id            component  message",
        "ok  a.b           decoder    " + ("word " * 40)[:28] + "...",
        "-   layout.files             short",
    ]
    assert max(map(len, tabled(check("a", True, "x" * 500)))) == 100


def test_table_of_a_check_that_fails() -> None:
    """Its message is whole, on lines of its own where it is long; then what was expected."""
    long = " ".join(f"word{i}" for i in range(40)) + " " + "/path" * 30
    lines = tabled(
        check("a", True, "holds", expected=5, actual=5),
        check("a", False, long, component="decoder", expected=[1, 2], actual={"k": "v" * 200}),
        check("b", False, "short", actual=False),
        width=60,
    )
    assert lines[:3] == [
        "ok    id  component  message",
        "ok    a              holds",
        "FAIL  a   decoder",
    ]
    message = lines[3 : lines.index("      expected  1,2")]
    assert all(line.startswith("      ") for line in message)
    assert "".join(message).replace(" ", "") == long.replace(" ", "")
    found, *last = lines[-3:]
    assert found.startswith('      found     {"k":"vvv') and found.endswith("...")
    assert last == ["FAIL  b              short", "      found     false"]
    assert max(map(len, lines)) <= 60


def test_table_on_a_narrow_terminal() -> None:
    lines = tabled(check("weights.complete", True, "m" * 90, component="image_gen_x"), width=20)
    assert lines[1].endswith("m" * 17 + "...")


def test_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "44")
    for out, width in ((Terminal(), 44), (io.StringIO(), 100)):
        table = Table(out)
        table.record(check("a", True, "x" * 300))
        table.close()
        assert max(map(len, out.getvalue().splitlines())) == width


def test_summary_in_a_table() -> None:
    lines = tabled(
        {
            "kind": "summary",
            "components": {"vision_encoder": True, "decoder": False},
            "files": ["a\x1b", "b"],
            "shape": [2, 3],
            "quantization": {"fp8": {"pairs": 1234, "block": [128, 128]}, "none": None},
            "dtypes": {"F32": {"tensors": 3, "params": 9}},
            "failed_checks": ["one"],
            "many": [str(i) for i in range(14)],
            "large": {str(i): i for i in range(14)},
        }
    )
    assert lines[:10] == [
        "summary",
        "  components     vision_encoder  true",
        "                 decoder         false",
        "  files          a\\x1b",
        "                 b",
        "  shape          2,3",
        "  quantization   fp8   pairs 1,234, block 128,128",
        "                 none",
        "  dtypes         F32:3",
        "  failed_checks  one",
    ]
    assert lines[10:12] == ["  many           0", "                 1"]
    assert lines[22:24] == ["                 and 2 more", "  large          0   0"]
    assert lines[-1] == "                 and 2 more"


def test_delimited_shows_one_kind_and_hands_problems_aside() -> None:
    out, aside = io.StringIO(), []
    rows = Delimited(out, "tensor", ",", aside.append)
    rows.record({"kind": "begin"})
    rows.record({"kind": "tensor", "name": 'a,"b"\n', "shape": [], "nbytes": 4})
    rows.record({"kind": "problem", "message": "m"})
    rows.record({"kind": "error", "message": "told elsewhere"})
    rows.close()
    assert out.getvalue() == ('name,dtype,shape,params,nbytes,file,offset\n"a,""b""\\x0a",,,,4,,\n')
    assert [r["message"] for r in aside] == ["m"]


def test_delimited_without_rows_has_its_header() -> None:
    out = io.StringIO()
    Delimited(out, "token", "\t", None).close()
    assert out.getvalue() == "index\tid\ttext\trow\n"


def test_file_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(f'{BEGIN}\n{A}\n{{"kind":"end","count":1}}\n')
    with open(path, encoding="utf-8") as f:
        assert len(list(read(f, str(path)))) == 3
