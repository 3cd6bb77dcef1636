"""Q54: the split indexer matrices of a GGUF model are rows of one, queries first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.checkpoint.folder import LocalFolder
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint, Tensor
from ntool.lib.errors import InputError, NtoolError, SourceNotFound, Unsupported
from ntool.lib.families.qwen4_exp import gguf_indexer
from ntool.lib.families.qwen4_exp.gguf_contract import check
from ntool.lib.families.qwen4_exp.gguf_geometry import Geometry, geometry

from ...conftest import DATA

SET = DATA / "qwen4-exp" / "gguf" / "tiny-qwen4exp-00001-of-00003.gguf"
GOLDEN = DATA / "qwen4-exp" / "gguf" / "indexer_fused.safetensors"
Q, K = "blk.3.indexer.q_proj.weight", "blk.3.indexer.k_proj.weight"
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return open_checkpoint(str(SET))


@pytest.fixture(scope="module")
def golden() -> Checkpoint:
    """The matrices, which are called there without `.weight`, and the one that they make."""
    return open_checkpoint(str(GOLDEN))


@pytest.fixture(scope="module")
def g(tiny: Checkpoint) -> Geometry:
    assert tiny.gguf is not None
    found, problems = geometry(tiny.gguf.values, None)
    assert found is not None and problems == []
    assert (found.nx, found.Dx, found.H, found.sparse) == (2, 64, 256, (False, False, False, True))
    return found


def payload(checkpoint: Checkpoint, name: str) -> bytes:
    return b"".join(checkpoint.bands(checkpoint.tensor(name)))


def test_the_golden_matrices(g: Geometry, golden: Checkpoint) -> None:
    named = {f"{n}.weight": t for n, t in golden.tensors.items() if n.startswith("blk.")}
    fused = gguf_indexer.fuse(g, 3, named)
    wanted = golden.tensor(fused.name)
    assert (fused.dtype, fused.shape, fused.nbytes) == ("F32", wanted.shape, wanted.nbytes)
    assert b"".join(gguf_indexer.bands(fused, golden)) == payload(golden, wanted.name)


def test_the_matrices_of_the_set(g: Geometry, tiny: Checkpoint, golden: Checkpoint) -> None:
    """Stored as BF16, in another order than they are joined in, and read piece by piece."""
    fused = gguf_indexer.fuse(g, 3, tiny.tensors)
    wanted = np.frombuffer(payload(golden, fused.name), np.float32).reshape(192, 256)
    pieces = list(gguf_indexer.bands(fused, tiny, 1000))
    assert max(map(len, pieces)) == 1000 and len(pieces) > fused.nbytes // 1000
    found = np.frombuffer(b"".join(pieces), ml_dtypes.bfloat16).reshape(fused.shape)
    assert np.array_equal(found.astype(np.float32), wanted)
    assert fused.name == "model.layers.3.self_attn.indexer.index_qk_proj.weight"


def test_rows_in_blocks_are_whole(g: Geometry, tmp_path: Path) -> None:
    """Of a type in blocks the bytes are joined just so: 256 numbers are 8 blocks of 34 bytes."""
    file = tmp_path / "m.gguf"
    raw = np.random.default_rng(5).integers(0, 256, 192 * 272, np.uint8).tobytes()
    file.write_bytes(raw[128 * 272 :] + raw[: 128 * 272])  # the key first
    tensors = {
        Q: Tensor(Q, "GGUF:Q8_0", (128, 256), file.name, 64 * 272, 128 * 272),
        K: Tensor(K, "GGUF:Q8_0", (64, 256), file.name, 0, 64 * 272),
    }
    checkpoint = Checkpoint(str(tmp_path), str(tmp_path), LocalFolder(str(tmp_path)))
    fused = gguf_indexer.fuse(g, 3, tensors)
    assert (fused.dtype, fused.shape, fused.nbytes) == ("GGUF:Q8_0", (192, 256), len(raw))
    assert b"".join(gguf_indexer.bands(fused, checkpoint)) == raw


def swapped(t: Tensors) -> None:
    """Each under the name of the other."""
    t[Q], t[K] = t[K]._replace(name=Q), t[Q]._replace(name=K)


def shaped(name: str, *shape: int) -> Callable[[Tensors], None]:
    def change(t: Tensors) -> None:
        t[name] = t[name]._replace(shape=shape)

    return change


CASES: dict[str, tuple[Callable[[Tensors], object], type[NtoolError], str]] = {
    "no queries": (lambda t: t.pop(Q), SourceNotFound,
                   f"indexer of block 3: missing '{Q}': expected shape [128, 256]"),
    "no key": (lambda t: t.pop(K), SourceNotFound,
               f"indexer of block 3: missing '{K}': expected shape [64, 256]"),
    "neither": (lambda t: (t.pop(K), t.pop(Q)), SourceNotFound, f"missing '{Q}' and '{K}'"),
    "swapped": (swapped, InputError,
                f"tensor '{Q}': shape, outermost first: found [64, 256], expected [128, 256]"),
    "split elsewhere": (shaped(Q, 96, 256), InputError, "found [96, 256], expected [128, 256]"),
    "a key for each query head": (shaped(K, 128, 256), InputError,
                                  f"tensor '{K}': shape, outermost first: found [128, 256]"),
    "turned": (shaped(Q, 256, 128), InputError, "found [256, 128], expected [128, 256]"),
    "another type": (lambda t: t.update({K: t[K]._replace(dtype="GGUF:Q8_0")}), Unsupported,
                     f"tensor '{K}': type: found GGUF:Q8_0, expected BF16 as '{Q}'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_halves_that_do_not_fit_are_named(g: Geometry, tiny: Checkpoint, case: str) -> None:
    change, error, said = CASES[case]
    tensors = dict(tiny.tensors)
    change(tensors)
    with pytest.raises(error) as e:
        gguf_indexer.fuse(g, 3, tensors)
    assert type(e.value) is error and said in e.value.message, e.value.message


@pytest.mark.parametrize("block", [-1, 0, 4])
def test_blocks_without_an_indexer(g: Geometry, tiny: Checkpoint, block: int) -> None:
    with pytest.raises(SourceNotFound, match=rf"block {block}: found none, expected one of \[3\]"):
        gguf_indexer.fuse(g, block, tiny.tensors)


def test_sizes_follow_the_geometry(g: Geometry, tiny: Checkpoint) -> None:
    """One matrix of 192 rows may be two heads of queries or five: the metadata decide."""
    with pytest.raises(InputError, match=r"found \[128, 256\], expected \[160, 256\]"):
        gguf_indexer.fuse(replace(g, nx=5, Dx=32), 3, tiny.tensors)


def test_big_endian_numbers_are_not_moved(g: Geometry) -> None:
    checkpoint = open_checkpoint(str(SET))
    assert checkpoint.gguf is not None
    checkpoint.gguf.big_endian = True
    fused = gguf_indexer.fuse(g, 3, checkpoint.tensors)
    with pytest.raises(Unsupported, match="byte order: found big, expected little"):
        next(gguf_indexer.bands(fused, checkpoint))


def test_the_contract_tells_types_that_differ(tiny: Checkpoint) -> None:
    assert tiny.gguf is not None
    other = tiny.tensors[K]._replace(dtype="GGUF:Q8_0")
    _, [problem] = check(tiny.gguf, {**tiny.tensors, K: other})
    assert (problem.code, problem.severity, problem.name) == ("other-types", "warning", K)
    assert f"found GGUF:Q8_0, expected BF16 as '{Q}'" in problem.message


def test_standard_library_only() -> None:
    code = (
        "import sys, ntool.lib.families.qwen4_exp.gguf_contract as c; "
        "assert 'ntool.lib.families.qwen4_exp.gguf_indexer' in sys.modules; "
        "assert not {'numpy', 'onnx', 'gguf', 'ml_dtypes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
