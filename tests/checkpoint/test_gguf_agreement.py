"""The GGUF reader agrees with the `gguf` package, reads what is written, and judges any bytes.

Q49 of the notes on Qwen4-Exp: a verdict on every file.
"""

from __future__ import annotations

import json
import math
import random
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ntool.lib.checkpoint.gguf_header import read_gguf
from ntool.lib.checkpoint.gguf_types import REMOVED, TENSORS, VALUE_NAMES

from .gguf_files import (
    ARCH,
    ARRAY,
    BIG,
    BOOL,
    F32,
    LITTLE,
    STRING,
    U8,
    U32,
    A,
    Maker,
    T,
    found,
    read,
)

GOLDEN = Path(__file__).parents[1] / "data" / "qwen4-exp" / "gguf"
M = LITTLE


def test_types_are_those_of_the_gguf_package() -> None:
    sizes = gguf.GGML_QUANT_SIZES
    theirs = {t.value: (t.name, *sizes[t]) for t in gguf.GGMLQuantizationType}
    ours = {n: tuple(t) for n, t in TENSORS.items()}
    assert {n: ours[n] for n in theirs} == theirs
    assert ours.keys() - theirs.keys() <= {42}  # newer than the package
    assert not REMOVED.keys() & ours.keys()
    assert {t.value: t.name for t in gguf.GGUFValueType} == VALUE_NAMES


@pytest.mark.parametrize("part", range(3))
def test_golden_set_exactly(part: int) -> None:
    want = json.loads((GOLDEN / "expected_headers.json").read_text())["shards"][part]
    got = read_gguf(str(GOLDEN / want["file"]), want["file"], full=True)
    assert got.problems == []
    assert (got.nbytes, got.version, got.tensor_count, got.pair_count, got.data_offset) == (
        want["bytes"],
        want["version"],
        want["tensor_count"],
        want["kv_count"],
        want["data_offset"],
    )
    kv = {
        key: (f"ARRAY[{v['element_type']}]", v["values"]) if isinstance(v, dict) else (kind, v)
        for key, (kind, v) in ((k, (x["type"], x["value"])) for k, x in want["kv"].items())
    }
    assert {k: (got.types[k], got.metadata[k]) for k in got.metadata} == kv
    assert list(got.metadata) == list(want["kv"])
    rows = [
        {
            "name": t.name,
            "dims": list(t.shape[::-1]),
            "type": t.dtype.removeprefix("GGUF:"),
            "offset": t.offset - want["data_offset"],
        }
        for t in got.tensors
    ]
    assert rows == want["tensors"]


# --- second opinion -------------------------------------------------------------------------------

KINDS = list(gguf.GGMLQuantizationType)


@pytest.mark.parametrize("seed", range(6))
def test_files_of_the_gguf_package(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    order = gguf.GGUFEndian.BIG if seed % 3 == 2 else gguf.GGUFEndian.LITTLE
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    if seed % 2:
        writer.add_custom_alignment(r.choice([8, 64, 256]))
    want: dict[str, Any] = {"general.architecture": "llama"}
    scalars = [
        ("uint8", 255), ("int8", -128), ("uint16", 65535), ("int16", -5), ("uint32", 2**32 - 1),
        ("int32", -7), ("uint64", 2**64 - 1), ("int64", -(2**63)), ("float32", 0.5),
        ("float64", 1e300), ("bool", True), ("string", "h\u00e9 \U0001f600"),
    ]  # fmt: skip
    r.shuffle(scalars)
    for kind, value in scalars:
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
        want[f"x.{kind}"] = value
    for key, items in (
        ("x.ints", [r.randrange(-9, 9) for _ in range(r.randrange(1, 40))]),
        ("x.words", [chr(r.randrange(32, 0x3000)) * r.randrange(200) for _ in range(30)]),
        ("x.flags", [bool(r.randrange(2)) for _ in range(9)]),
    ):
        writer.add_array(key, items)
        want[key] = items
    for i, kind in enumerate(KINDS):
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        shape = [r.randrange(1, 4) for _ in range(r.randrange(4))] + [block * r.randrange(1, 4)]
        raw_shape = [*shape[:-1], shape[-1] // block * nbytes]
        writer.add_tensor(f"t{i}", np.zeros(raw_shape, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    got = read_gguf(str(path), "m.gguf", full=True)
    assert found(got) == [] and found(got, "warning") == []
    assert got.big_endian == (order is gguf.GGUFEndian.BIG)
    assert {k: got.metadata[k] for k in want} == want
    theirs = gguf.GGUFReader(path).tensors
    assert [
        (t.name, t.dtype.removeprefix("GGUF:"), list(t.shape[::-1]), t.offset, t.nbytes)
        for t in got.tensors
    ] == [
        (t.name, t.tensor_type.name, [int(d) for d in t.shape], t.data_offset, t.n_bytes)
        for t in theirs
    ]


# --- properties -----------------------------------------------------------------------------------

numbers = {
    0: st.integers(0, 255), 1: st.integers(-128, 127), 2: st.integers(0, 65535),
    3: st.integers(-(2**15), 2**15 - 1), 4: st.integers(0, 2**32 - 1),
    5: st.integers(-(2**31), 2**31 - 1), 6: st.floats(width=32), 7: st.integers(0, 1),
    10: st.integers(0, 2**64 - 1), 11: st.integers(-(2**63), 2**63 - 1), 12: st.floats(),
    STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
}  # fmt: skip


def arrays(inner: st.SearchStrategy[tuple[int, Any]]) -> st.SearchStrategy[tuple[int, Any]]:
    flat = st.sampled_from(sorted(numbers)).flatmap(
        lambda k: st.lists(numbers[k], max_size=12).map(lambda v: (k, v))
    )
    nested = st.lists(inner.filter(lambda x: x[0] == ARRAY).map(lambda x: x[1]), max_size=3)
    return st.one_of(flat, nested.map(lambda v: (ARRAY, v))).map(lambda a: (ARRAY, a))


scalars = st.sampled_from(sorted(numbers)).flatmap(lambda k: numbers[k].map(lambda v: (k, v)))
values = st.recursive(scalars, arrays, max_leaves=6)
keys = st.text("abcdefghij_.0123456789", min_size=1, max_size=20).filter(
    lambda k: k != "general.alignment"
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1,
                max_size=12)  # fmt: skip
tensors = st.lists(
    st.tuples(names, st.lists(st.integers(1, 4), max_size=3), st.sampled_from(sorted(TENSORS))),
    max_size=6,
    unique_by=lambda t: t[0],
)


def plain(kind: int, value: Any) -> Any:
    """What `full` shows of a value."""
    if kind == ARRAY:
        return [plain(value[0], v) for v in value[1]]
    if kind == BOOL:
        return bool(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([LITTLE, BIG]),
    st.sampled_from([2, 3]),
    st.dictionaries(keys, values, max_size=6),
    tensors,
    st.sampled_from([None, 8, 16, 64, 4096]),
    st.booleans(),
)
def test_what_is_written_is_read(
    maker: Maker,
    version: int,
    pairs: dict[str, tuple[int, Any]],
    rows: list[tuple[str, list[int], int]],
    alignment: int | None,
    padded: bool,
) -> None:
    written = [maker.pair(k, *v) for k, v in pairs.items()]
    if alignment:
        written.append(maker.pair("general.alignment", U32, alignment))
    ts = []
    for name, outer, number in rows:
        kind = TENSORS[number]
        dims = (kind.elements * 2, *outer)
        ts.append(T(name, dims, number, 2 * math.prod(outer) * kind.nbytes))
    raw = maker.file(written, ts, version=version, alignment=alignment or 32, padded=padded)
    got = read(raw, full=True)
    assert found(got) == [] and found(got, "warning") == []
    want = {k: plain(*v) for k, v in pairs.items()}
    assert {k: v for k, v in got.metadata.items() if k != "general.alignment"} == want
    assert [(t.name, t.shape[::-1], t.nbytes) for t in got.tensors] == [
        (t.name, tuple(t.dims), t.nbytes) for t in ts
    ]
    short = read(raw)
    assert short.problems == got.problems and short.tensors == got.tensors


SMALL = M.file(
    [
        ARCH,
        M.pair("general.alignment", U32, 32),
        M.pair("w", ARRAY, (STRING, ["a", "b\u00e9", "c" * 130])),
        M.pair("n", ARRAY, (ARRAY, [(U8, [1, 2]), (BOOL, [0, 1])])),
        M.pair("f", F32, 1.0),
        M.pair("b", BOOL, 1),
    ],
    [A, T("q", (32, 2), 8, 68), T("c", (2, 2, 2, 2), 1, 32)],
)


def judged(raw: bytes) -> None:
    """Any bytes end in a verdict, in little time and memory, and what is listed is in the file."""
    got = read(raw, full=True)
    for t in got.tensors:
        assert t.nbytes > 0 and t.offset + t.nbytes <= len(raw)
    for p in got.problems:
        assert p.severity != "error" or p.malformed
    json.dumps(got.metadata, allow_nan=False)


def test_every_truncation_gets_a_verdict() -> None:
    assert read(SMALL).problems == []
    for length in range(len(SMALL)):  # the last tensor fills its last block
        got = read(SMALL[:length])
        judged(SMALL[:length])
        assert found(got), length


def test_every_single_byte_mutation_gets_a_verdict() -> None:
    tracemalloc.start()
    started = time.process_time()
    for at in range(len(SMALL)):
        for value in (0, 1, 9, 0x7F, 0x80, 0xFF, SMALL[at] ^ 1, SMALL[at] ^ 0x40):
            judged(SMALL[:at] + bytes([value]) + SMALL[at + 1 :])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert time.process_time() - started < 60  # some 4,000 files; a hang would be one of them


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_several_mutations_get_a_verdict(data: st.DataObject) -> None:
    raw = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(4, len(raw) - 9))
        word = data.draw(st.sampled_from([1, 2, 4, 8]))
        value = data.draw(st.integers(0, 2 ** (8 * word) - 1))
        raw[at : at + word] = value.to_bytes(word, "little")
    judged(bytes(raw))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["<", ">"]))
def test_any_bytes_behind_a_sound_start_get_a_verdict(tail: bytes, order: str) -> None:
    judged(b"GGUF" + struct.pack(f"{order}IQQ", 3, 1, 2) + tail)
