"""Packages whose weights stay in the checkpoint's files: clones, hard links, in place."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from ntool.lib.checkpoint import sharing, writer
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import EnvironmentProblem, InputError
from ntool.lib.package import export, in_place, linked
from ntool.lib.runtime.memory import loaded_nbytes

from ..conftest import DATA, Ended
from .relaid import relaid

Run = Callable[..., Ended]
SOURCE = DATA / "neo-chat" / "dense-conv" / "checkpoint"
MOE = DATA / "neo-chat" / "moe-mlp" / "checkpoint"
QWEN = DATA / "qwen4-exp"
FORMS = ("hardlink", "reflink", "inplace")
LINKED = {
    "neo_chat": ("f32", ["vision_encoder", "embedding", "decoder"]),
    "qwen4_exp": ("bf16", []),
}


def cloned(source: int, target: int, nbytes: int | None = None) -> None:
    """What FICLONE does, as far as anybody can read."""
    os.write(target, os.pread(source, nbytes or os.fstat(source).st_size, 0))


def unable(source: int, target: int, nbytes: int | None = None) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def plain(root: Path) -> list[str]:
    """Everything in a folder, hidden things too."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family that can be exported without changing a byte. Read only."""
    root = tmp_path_factory.mktemp("originals")
    return {
        "neo_chat": relaid(SOURCE, root / "neo_chat", "F32"),
        "qwen4_exp": relaid(QWEN / "text-half", root / "qwen4_exp", files=1),
    }


@pytest.fixture
def checkpoint(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["neo_chat"], tmp_path / "checkpoint"))


def exported(ntool: Run, source: Path, out: Path, form: str, *options: str) -> Path:
    """The package of a form, wherever it lies."""
    to = () if form == "inplace" else ("-o", out)
    ntool("export-component", source, "--data", form, *to, *options)
    return source if form == "inplace" else out


def prefilled(ntool: Run, package: Path, family: str, out: Path) -> bytes:
    ntool("run-prefill", package, "--tokens", "3,5,8,13", "-o", out, "--device", "cpu")
    header, values = out.read_bytes().split(b"}", 1)
    assert b"logits" in header + values
    start = int.from_bytes(header[:8], "little") + 8
    return out.read_bytes()[start:]  # the metadata name the package's hash


@pytest.mark.parametrize("family", LINKED)
def test_each_form_is_whole_and_gives_the_numbers_of_a_copy(
    family: str, originals: dict[str, Path], tmp_path: Path, ntool: Run, monkeypatch
) -> None:
    monkeypatch.setattr(sharing, "clone", cloned)
    dtype = LINKED[family][0]
    copy = exported(ntool, originals[family], tmp_path / "copy", "copy", "--dtype", dtype)
    wanted = prefilled(ntool, copy, family, tmp_path / "wanted")
    for form in FORMS:
        source = Path(shutil.copytree(originals[family], tmp_path / f"{form}-source"))
        before = tree(source)
        to = () if form == "inplace" else ("-o", tmp_path / form)
        done = ntool("export-component", source, "--data", form, *to, "--dtype", dtype)
        package = source if form == "inplace" else tmp_path / form
        summary = done.of("summary")[0]
        assert summary["bytes_written"] == 0 and not summary["converted"]
        data = sum(n for f, n in sizes(copy).items() if f.endswith(".safetensors"))
        assert data * 0.95 < summary["bytes_linked"] <= data  # the rest are headers
        assert {f["data"] for f in done.of("file")} == {form}
        inodes(form, source, package)
        options = ("--against", source, "--device", "cpu")
        if form != "hardlink":  # of which least is known; all forms are run below
            options += ("--no-run",)
        checks = ntool("verify-package", package, *options).of("check")
        idle = {c["id"] for c in checks if c["ok"] is not True}
        assert idle == {"data.hash", "graph.standard"}
        told = {c["id"] for c in checks if c.get("severity") == "warning"}
        assert told == ({"data.path"} if form == "hardlink" else set())
        others = any("not this component's" in c["message"] for c in checks if "orph" in c["id"])
        assert others == (family == "qwen4_exp" or form != "inplace")  # buffers; one file for all
        assert prefilled(ntool, package, family, tmp_path / f"{form}.out") == wanted
        assert {k: v for k, v in tree(source).items() if k in before} == before
        if form != "hardlink":  # which it refuses, and verify-package says so
            for graph in package.rglob("*.onnx"):
                onnx.checker.check_model(str(graph))


def sizes(root: Path) -> dict[str, int]:
    return {name: len(content) for name, content in tree(root).items()}


def inodes(form: str, source: Path, package: Path) -> None:
    """Files of a package are those of the checkpoint, or have nothing to do with them."""
    manifest = json.loads((package / "package.json").read_text())
    for name, entry in manifest["components"].items():
        assert entry["data_form"] == form
        for file in entry["data"]:
            same = (package / file).samefile(source / Path(file).name)
            assert same == (form != "reflink"), (name, file)
        graph = f"{name}.onnx" if form == "inplace" else f"{name}/model.onnx"
        assert entry["graph"] == graph


def test_a_picture_is_drawn_from_each_form(checkpoint: Path, tmp_path: Path, ntool: Run) -> None:
    pictures = []
    for form in ("copy", "hardlink", "inplace"):
        package = exported(ntool, checkpoint, tmp_path / form, form)
        options = ("--steps", 1, "--size", "64x64", "--cfg", 1, "--no-metadata", "--device", "cpu")
        out = tmp_path / f"{form}.png"
        ntool("sample-image", package, "--prompt", "a", "-o", out, *options)
        pictures.append(out.read_bytes())
    assert len(set(pictures)) == 1


def test_two_exports_are_equal(checkpoint: Path, tmp_path: Path, ntool: Run) -> None:
    one = exported(ntool, checkpoint, tmp_path / "one", "hardlink")
    assert tree(one) == tree(exported(ntool, checkpoint, tmp_path / "two", "hardlink"))
    first = tree(exported(ntool, checkpoint, tmp_path, "inplace"))
    assert first == tree(exported(ntool, checkpoint, tmp_path, "inplace", "--force"))


def test_auto_clones_where_it_can(
    checkpoint: Path, tmp_path: Path, ntool: Run, monkeypatch
) -> None:
    def forms(source: Path, out: str) -> dict[str, str]:
        done = ntool("export-component", source, "-o", tmp_path / out)
        return {k: v["data"] for k, v in done.of("summary")[0]["components"].items()}

    monkeypatch.setattr(sharing, "clone", cloned)
    assert set(forms(checkpoint, "small").values()) == {"copy"}
    monkeypatch.setattr(linked, "WORTH_IT", 0)
    monkeypatch.setattr(sharing, "clone", unable)
    assert set(forms(checkpoint, "a").values()) == {"copy"}
    monkeypatch.setattr(sharing, "clone", cloned)
    assert set(forms(checkpoint, "b").values()) == {"reflink"}
    mixed = forms(SOURCE, "c")  # where understanding is BF16, and has to change
    assert (mixed["decoder"], mixed["image_gen_embedding"]) == ("copy", "reflink")
    ntool("verify-package", tmp_path / "c", "--against", SOURCE, "--no-run")


def test_bytes_that_stay_go_through_the_kernel_or_not(
    checkpoint: Path, tmp_path: Path, ntool: Run, monkeypatch
) -> None:
    def broken(*arguments: object) -> int:
        raise OSError(errno.EXDEV, "no")

    calls: list[int] = []
    real = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda *a: calls.append(1) or real(*a))
    kernel = exported(ntool, checkpoint, tmp_path / "kernel", "copy")
    assert calls
    monkeypatch.setattr(os, "copy_file_range", broken)
    assert tree(kernel) == tree(exported(ntool, checkpoint, tmp_path / "bands", "copy"))


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("source", "component", "options", "words"),
    [
        (SOURCE, "decoder", [], ["decoder", "layers.0", "found BF16, expected F32"]),
        (MOE, "decoder", ["--dtype", "bf16"], ["experts.gate_proj.weight", "joined from 6"]),
        (QWEN / "text", "decoder", ["--dtype", "bf16"], ["experts.gate_up_proj", "joined from 16"]),
        (
            QWEN / "text-fp8", "decoder", ["--text-only", "--dequantize", "--dtype", "bf16"],
            ["found F8_E4M3, expected BF16"],
        ),
    ],
)  # fmt: skip
def test_weights_that_cannot_stay(
    form: str, source: Path, component: str, options: list[str], words: list[str],
    tmp_path: Path, ntool: Run,
) -> None:  # fmt: skip
    before = plain(source)
    to = [] if form == "inplace" else ["-o", tmp_path / "p"]
    done = ntool("export-component", source, component, "--data", form, *to, *options, code=5)
    for word in words:
        assert word in done.err
    assert f"--data {form}" in done.err and "hint: --data copy" in done.err
    assert len(done.err.splitlines()) == 2
    assert not (tmp_path / "p").exists() and plain(source) == before


def test_a_file_system_that_cannot(
    checkpoint: Path, tmp_path: Path, ntool: Run, monkeypatch
) -> None:
    monkeypatch.setattr(sharing, "clone", unable)
    kind = sharing.file_system(str(tmp_path))
    options = ("--data", "reflink", "-o", tmp_path / "p")
    done = ntool("export-component", checkpoint, *options, code=6)
    assert f"file system {kind}" in done.err and "hint: --data copy" in done.err
    assert ntool("export-component", checkpoint, *options, "--dry-run", code=6).err == done.err
    assert not (tmp_path / "p").exists()


def test_the_file_system_here_clones_or_says_why(checkpoint: Path, tmp_path: Path) -> None:
    """The real request, whatever this machine answers."""
    shard = str(next(checkpoint.glob("*.safetensors")))
    fault = sharing.clone_fault(shard, tmp_path)
    target = tmp_path / "clone"
    if fault is None:
        sharing.clone_file(shard, "shard", target)
        assert target.read_bytes() == Path(shard).read_bytes()
        assert os.stat(target).st_nlink == 1
        return
    assert fault.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS)
    with pytest.raises(EnvironmentProblem, match="cannot be cloned: file system"):
        sharing.clone_file(shard, "shard", target)


def test_two_file_systems(checkpoint: Path, tmp_path: Path, ntool: Run, monkeypatch) -> None:
    shard = next(checkpoint.glob("*.safetensors"))
    other = OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    monkeypatch.setattr(sharing, "link_fault", lambda source, folder: other)
    options = ("--data", "hardlink", "-o", tmp_path / "p")
    done = ntool("export-component", checkpoint, *options, code=6)
    assert "two file systems" in done.err and shard.suffix in done.err
    assert not (tmp_path / "p").exists()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system to try")
def test_hard_links_do_not_reach_another_file_system(checkpoint: Path, tmp_path: Path) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("temporary files are in /dev/shm")
    fault = sharing.link_fault(str(next(checkpoint.glob("*.safetensors"))), Path("/dev/shm/new"))
    assert fault is not None and fault.errno == errno.EXDEV


def test_wrong_use(checkpoint: Path, tmp_path: Path, ntool: Run) -> None:
    def refused(code: int, *arguments: object) -> str:
        return ntool("export-component", *arguments, code=code).err

    assert "inplace" in refused(2, checkpoint, "-o", tmp_path / "p", "--data", "symlink")
    assert "no output" in refused(2, checkpoint, "--data", "hardlink")
    assert "or no -o" in refused(2, checkpoint, "-o", tmp_path / "p", "--data", "inplace")
    assert "part of this program" in refused(2, "demo:shapes", "--data", "inplace")
    os.rename(checkpoint / "part-0.safetensors", tmp_path / "blob")
    os.link(tmp_path / "blob", checkpoint / "other")
    (checkpoint / "part-0.safetensors").symlink_to("other")
    assert "is a symbolic link" in refused(5, checkpoint, "--data", "inplace")


def test_a_dry_run_tells_and_writes_nothing(checkpoint: Path, tmp_path: Path, ntool: Run) -> None:
    before = plain(tmp_path)
    for form in ("inplace", "hardlink"):
        to = () if form == "inplace" else ("-o", tmp_path / "p")
        done = ntool("export-component", checkpoint, "--data", form, *to, "--dry-run")
        summary = done.of("summary")[0]
        assert summary["bytes_linked"] > 0 and summary["bytes_planned"] == 0
        assert plain(tmp_path) == before


# -- failures leave nothing -----------------------------------------------------------------------


def failing_at(count: int, real: Callable[..., Any], error: OSError) -> Callable[..., Any]:
    calls: Iterator[int] = iter(range(1, 1000))

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == count:
            raise error
        return real(*arguments, **options)

    return call


def test_a_link_that_fails_at_the_end(checkpoint: Path, tmp_path: Path, ntool: Run, monkeypatch):
    before = plain(tmp_path)
    done = ntool(
        "export-component", checkpoint, "--data", "hardlink", "-o", tmp_path / "p", "--dry-run"
    )
    denied = OSError(errno.EPERM, os.strerror(errno.EPERM))
    monkeypatch.setattr(os, "link", failing_at(len(done.of("file")), os.link, denied))
    done = ntool("export-component", checkpoint, "--data", "hardlink", "-o", tmp_path / "p", code=6)
    assert "cannot be linked" in done.err and "not permitted" in done.err
    assert plain(tmp_path) == before
    assert {p.stat().st_nlink for p in checkpoint.iterdir()} == {1}


@pytest.mark.parametrize("again", [False, True])
def test_a_package_in_place_takes_its_place_whole(
    again: bool, checkpoint: Path, ntool: Run, monkeypatch
) -> None:
    options = ("export-component", checkpoint, "--data", "inplace", "--force")
    if again:
        ntool(*options, "embedding", "vision_encoder")
    before = tree(checkpoint)
    renames: list[tuple[str, str]] = []
    real = os.rename
    monkeypatch.setattr(os, "rename", lambda a, b: renames.append((a, b)) or real(a, b))
    ntool(*options)
    assert Path(renames[-1][1]).name == "package.json"
    for count in (1, len(renames) // 2, len(renames)):
        for name in set(tree(checkpoint)) - set(before):
            (checkpoint / name).unlink()
        for name, content in before.items():
            (checkpoint / name).write_bytes(content)
        for folder in [p for p in checkpoint.iterdir() if p.is_dir() and not any(p.iterdir())]:
            folder.rmdir()
        denied = OSError(errno.EACCES, os.strerror(errno.EACCES), str(checkpoint / "x"))
        monkeypatch.setattr(os, "rename", failing_at(count, real, denied))
        assert "cannot write" in ntool(*options, code=6).err
        assert tree(checkpoint) == before
        assert not list(checkpoint.glob(".package*"))


def test_a_shard_that_moves_meanwhile(checkpoint: Path, tmp_path: Path) -> None:
    for form in ("hardlink", "inplace", "copy"):
        out = None if form == "inplace" else tmp_path / form
        plan = export.plan(open_checkpoint(str(checkpoint)), data=form, out=out)
        shard = checkpoint / "part-1.safetensors"
        os.utime(shard, ns=(1, os.stat(shard).st_mtime_ns + 1))
        with pytest.raises(InputError, match=r"part-1\.safetensors.*changed"):
            export.write(plan, out)
        assert not (checkpoint / "package.json").exists()
        assert plain(tmp_path) == plain(tmp_path.parent / tmp_path.name)
        assert out is None or not out.exists()


# -- in place, beside what is somebody else's -----------------------------------------------------


def test_a_second_export_in_place(checkpoint: Path, ntool: Run) -> None:
    options = ("export-component", checkpoint, "--data", "inplace")
    ntool(*options)
    done = ntool(*options, "embedding", code=2)
    assert "package already" in done.err and "--force" in done.err
    ntool("verify-package", checkpoint, "--no-run", "--write-manifest")
    ntool(*options, "embedding", "--force")
    assert [p.name for p in checkpoint.glob("*.onnx")] == ["embedding.onnx"]
    assert not (checkpoint / "SHA256SUMS").exists()  # of the package that was replaced
    ntool("verify-package", checkpoint, "--no-run")
    # still the checkpoint that it was
    ntool("export-component", checkpoint, "embedding", "-o", checkpoint.parent / "p")


@pytest.mark.parametrize("name", ["decoder.onnx", "tokenizer", "processor.json", "package.json"])
def test_what_is_in_the_way_stays(checkpoint: Path, ntool: Run, name: str) -> None:
    (checkpoint / name).write_text('{"name": "somebody\'s"}')
    before = tree(checkpoint)
    done = ntool("export-component", checkpoint, "--data", "inplace", "--force", code=2)
    assert name in done.err and "not replaced" in done.err
    assert tree(checkpoint) == before


@pytest.mark.parametrize(
    "entry",
    [
        {"graph": "part-0.safetensors", "data_form": "inplace"},
        {"graph": "../x.onnx", "data_form": "inplace"},
        {"graph": "config.json"},
        3,
    ],
)
def test_a_manifest_of_strangers_frees_nothing(checkpoint: Path, entry: object) -> None:
    """A downloaded package.json decides what --force may replace: only what an export writes."""
    manifest = {
        "schema": "ntool-package/1", "components": {"part-0": entry, "../x": entry},
        "tokenizer": "part-1.safetensors", "processor": "config.json",
    }  # fmt: skip
    (checkpoint / "package.json").write_text(json.dumps(manifest))
    ours = in_place._package(checkpoint)
    assert ours <= {"package.json", "weight-loading-report.json"}


def test_sums_that_came_with_the_checkpoint_stay(checkpoint: Path, ntool: Run) -> None:
    sums = checkpoint / "SHA256SUMS"
    ntool("export-component", checkpoint, "--data", "inplace")
    digest = hashlib.sha256((checkpoint / "config.json").read_bytes()).hexdigest()
    sums.write_text(f"{digest}  config.json\n")
    ntool("verify-package", checkpoint, "--check", "data.hash")
    ntool("export-component", checkpoint, "--data", "inplace", "--force")
    assert sums.exists()
    sums.write_text(f"{'0' * 64}  config.json\n")
    ntool("verify-package", checkpoint, "--check", "data.hash", code=1)


# -- what verify-package sees in a linked package -------------------------------------------------


def edited(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def place(tensor: onnx.TensorProto, **values: int) -> dict[str, int]:
    for e in tensor.external_data:
        if e.key in values:
            e.value = str(values[e.key])
    return {e.key: int(e.value) for e in tensor.external_data if e.key != "location"}


def external(model: onnx.ModelProto, dims: tuple[int, ...] | None = None) -> list[onnx.TensorProto]:
    found = [t for t in model.graph.initializer if t.data_location == t.EXTERNAL]
    return [t for t in found if dims is None or tuple(t.dims) == dims]


def four_bytes_on(model: onnx.ModelProto) -> None:
    t = max(external(model), key=lambda t: place(t)["length"])
    place(t, offset=place(t)["offset"] + 4)


def swapped(model: onnx.ModelProto) -> None:
    norms = [t for t in external(model) if t.name.endswith("input_layernorm.weight")]
    a, b = place(norms[0]), place(norms[1])
    place(norms[0], **b)
    place(norms[1], **a)


@pytest.mark.parametrize(
    ("change", "check"), [(four_bytes_on, "data.bounds"), (swapped, "weights.complete")]
)
def test_a_graph_that_points_elsewhere(
    checkpoint: Path, ntool: Run, change: Callable[..., None], check: str
) -> None:
    ntool("export-component", checkpoint, "decoder", "--data", "inplace")
    edited(checkpoint / "decoder.onnx", change)
    done = ntool("verify-package", checkpoint, "--no-run", code=1)
    assert check in {c["id"] for c in done.of("check") if c["ok"] is False}


def test_bytes_of_nothing_in_a_shard_are_orphans(checkpoint: Path, ntool: Run) -> None:
    ntool("export-component", checkpoint, "decoder", "--data", "inplace")
    with open(checkpoint / "part-0.safetensors", "ab") as f:
        f.write(bytes(4096))
    done = ntool("verify-package", checkpoint, "--check", "data.orphans", code=1)
    assert "trailing" in done.err or "size" in done.err or "bytes" in done.err


def test_a_tensor_of_no_component_is_an_orphan_in_a_copy(checkpoint: Path, tmp_path, ntool: Run):
    """What is information in a shard stays a fault in a file of the package's own."""
    package = exported(ntool, checkpoint, tmp_path / "p", "copy", "embedding", "vision_encoder")
    data = package / "embedding" / "model.safetensors"
    entries = [
        writer.Entry(t.name, t.dtype, t.shape, t.nbytes)
        for t in open_checkpoint(str(data)).tensors.values()
    ]
    start = int.from_bytes(data.read_bytes()[:8], "little") + 8
    payload = data.read_bytes()[start:]
    header = writer.encode_header([*entries, writer.Entry("more", "F32", (16,), 64)])
    data.write_bytes(header + payload + bytes(64))
    moved = len(header) - start

    def follow(model: onnx.ModelProto) -> None:
        for t in external(model):
            place(t, offset=place(t)["offset"] + moved)

    edited(package / "embedding" / "model.onnx", follow)
    done = ntool("verify-package", package, "--check", "data.orphans", code=1)
    assert "bytes of no tensor" in done.err


def test_memory_is_that_of_the_weights(checkpoint: Path, ntool: Run, tmp_path: Path) -> None:
    from ntool.lib.package.package import open_package

    copy = exported(ntool, checkpoint, tmp_path / "copy", "copy")
    other = exported(ntool, checkpoint, tmp_path / "linked", "hardlink")
    for name in ("embedding", "vision_encoder"):
        a, b = (loaded_nbytes(open_package(p), name, "cuda", False) for p in (copy, other))
        assert 0.9 * a < b <= a
