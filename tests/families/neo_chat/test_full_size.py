"""The three published members of the family at full size, as headers over sparse files: everything
that an export decides before it copies a byte, and what census counts."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.families.neo_chat.inventory import expected

from ...sparse_files import write_shard

DATA = Path(__file__).parents[2] / "data" / "census"
ITEM = {"BF16": 2, "F32": 4}
Row = tuple[str, str, list[int]]
"""Name, dtype and shape of a tensor."""
Change = Callable[[list[Row]], list[Row]]
SHARDS = [k for k in range(1, 17) if k not in (2, 3, 4)]
"""The published checkpoints lack these three numbers of sixteen."""


@dataclass(frozen=True)
class Sizes:
    """What a member's counts follow from, by the tables of docs/neo-chat.md 3.2.

    Attributes:
        tensors: the published number.
        own, gen: experts of the two sides; 0 is a dense MLP of width I.
        head: parameters of the pixel head.
    """

    tensors: int
    D: int
    Nl: int
    KV: int
    I: int  # noqa: E741
    own: int
    gen: int
    head: int

    def side(self, experts: int) -> tuple[int, int, int]:
        """Tensors, parameters and bound graph parameters of one side of all layers."""
        D, H, hd = self.D, 32, 128
        attention = 2 * H * hd * D + 2 * self.KV * hd * D + 4 * (hd // 2) + 2 * D
        mlp = 3 * self.I * D * (experts or 1) + experts * D
        matrices = 3 * experts + 1 if experts else 3
        # a bank of experts is one parameter of a graph, whatever the number of its tensors
        bound = 4 if experts else 3
        return self.Nl * (10 + matrices), self.Nl * (attention + mlp), self.Nl * (10 + bound)

    def components(self) -> dict[str, tuple[int, int, int]]:
        """Tensors, parameters and bound graph parameters of each component."""
        V, vh = 151_936, 1024
        words = V * self.D
        tower = vh * 768 + vh + self.D * vh * 4 + self.D
        embedder = self.D * 256 + self.D + self.D * self.D + self.D
        own, gen = self.side(self.own), self.side(self.gen)
        return {
            "vision_encoder": (4, tower, 4),
            "embedding": (1, words, 1),
            "decoder": (own[0] + 2, own[1] + self.D + words, own[2] + 2),
            "image_gen_embedding": (12, tower + 2 * embedder, 12),
            "image_gen_denoiser": (gen[0] + 5, gen[1] + self.D + self.head, gen[2] + 5),
        }

    def groups(self) -> dict[str, tuple[int, int]]:
        """Tensors and parameters of each group of the published table."""
        c = self.components()
        tower = c["vision_encoder"][:2]
        head = (4, self.head)
        own = tuple(a + b for a, b in zip(c["embedding"][:2], c["decoder"][:2], strict=True))
        gen = tuple(
            a - h + t for a, h, t in zip(c["image_gen_denoiser"][:2], head, tower, strict=True)
        )
        rest = tuple(
            a - t + h for a, t, h in zip(c["image_gen_embedding"][:2], tower, head, strict=True)
        )
        return {"understanding": own, "generation": gen, "fm_modules": rest, "vision_model": tower}


def conv_head(D: int, c1: int = 1024) -> int:
    return c1 * (D // 4) * 9 + c1 + 192 * (c1 // 4) * 9 + 192


def mlp_head(D: int, width: int = 4096) -> int:
    return width * D + width + 3072 * width + 3072


MEMBERS = {
    "u1.5-8b": Sizes(1116, 4096, 42, 8, 12288, 0, 0, conv_head(4096)),
    "u1-8b": Sizes(1116, 4096, 42, 8, 12288, 0, 0, mlp_head(4096)),
    "a3b": Sizes(24_120, 2048, 48, 4, 768, 128, 32, mlp_head(2048)),
}


def config_of(member: str) -> dict[str, Any]:
    """The published config of U1 or U1.5; that of A3B is made from U1's."""
    file = "u1.5-8b-mot" if member == "u1.5-8b" else "u1-8b-mot-sft"
    config: dict[str, Any] = json.loads((DATA / f"{file}.config.json").read_text())
    if member == "a3b":
        config["llm_config"] |= {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
            "max_window_layers": 48, "rope_theta": 1e7, "intermediate_size": 6144,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "gen_num_experts": 32, "gen_num_experts_per_tok": 8, "gen_moe_intermediate_size": 768,
        }  # fmt: skip
        config["vision_config"]["llm_hidden_size"] = 2048
    return config


def tensors_of(member: str, config: dict[str, Any]) -> dict[str, list[Row]]:
    """Rows of each shard: U1.5 from its recorded listing; U1 with the names and shards of its
    published index; else what the config demands. Shapes that no listing gives are the config's,
    in BF16."""
    files: dict[str, list[Row]] = defaultdict(list)
    if member == "u1.5-8b":
        listing = json.loads(gzip.decompress((DATA / "u1.5-8b-mot.tensors.json.gz").read_bytes()))
        for t in listing["tensors"]:
            files[t["shard_guess"]].append((t["name"], t["dtype"], t["shape"]))
        return files
    demanded = {n: s for part in expected(config).values() for n, s in part.items()}
    if member == "u1-8b":
        index = json.loads(gzip.decompress((DATA / "u1-8b-mot-sft.index.json.gz").read_bytes()))
        for name, file in index["weight_map"].items():
            # a name that the config does not demand gets a shape that the dry run has to refuse
            shape = [4096 if d is None else d for d in demanded.get(name, [1])]
            files[file].append((name, "BF16", shape))
        return files
    for i, (name, shape) in enumerate(demanded.items()):
        # the one open dimension is the inner width of the MLP head
        row = name, "BF16", [4096 if d is None else d for d in shape]
        k = SHARDS[i * len(SHARDS) // len(demanded)]
        # expert tensors of the published mixture are in shards of another name
        kind = "moemodel" if ".experts." in name else "model"
        files[f"{kind}-{k:05d}-of-00016.safetensors"].append(row)
    return files


def write_member(member: str, folder: Path, change: Change = lambda rows: rows) -> None:
    folder.mkdir()
    config = config_of(member)
    files = {file: change(rows) for file, rows in tensors_of(member, config).items()}
    for file, rows in files.items():
        write_shard(folder / file, rows)
    weight_map = {name: file for file, rows in files.items() for name, _, _ in rows}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("full-size")

    def make(member: str) -> Path:
        if not (root / member).exists():
            write_member(member, root / member)
        return root / member

    return make


RUN = """
import os, sys
from ntool.guard import run
code = run(sys.argv[1:])
sys.stdout.flush()
if os.path.exists("/proc/self/io"):
    print(open("/proc/self/io").read().split()[1], file=sys.stderr)
sys.exit(code)
"""
"""ntool in a process that says at last how many bytes it has read, libraries included."""


def run(*arguments: object) -> tuple[dict[str, list[dict[str, Any]]], int, float]:
    """Records by kind, bytes read (0 where the system does not count them), seconds."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        record = json.loads(line)
        kinds[record["kind"]].append(record)
    read = re.findall(r"^\d+$", done.stderr, re.MULTILINE)
    return kinds, int(read[-1]) if read else 0, seconds


@pytest.mark.parametrize("member", MEMBERS)
def test_a_dry_run_binds_every_tensor(
    full_size: Callable[[str], Path], member: str, tmp_path: Path
) -> None:
    sizes, folder = MEMBERS[member], full_size(member)
    out, read, seconds = run("export-component", folder, "-o", tmp_path / "pkg", "--dry-run")
    (summary,) = out["summary"]
    payload = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    print(
        f"{member}: {payload:,} bytes of checkpoint, {summary['seconds']} s of {seconds:.2f} s, "
        f"peak_rss {summary['peak_rss'] / 1e6:.0f} MB, {read / 1e6:.0f} MB read"
    )
    assert summary["source_tensors"] == sizes.tensors
    bound = {name: part["bound"] for name, part in summary["components"].items()}
    assert bound == {name: row[2] for name, row in sizes.components().items()}
    assert summary["copied"] + summary["converted"] == sum(bound.values())
    # exported as float32
    planned = {name: part["nbytes"] for name, part in summary["components"].items()}
    for name, (_, parameters, _) in sizes.components().items():
        # alignment and the headers of the data files come on top
        assert 0 <= planned[name] - 4 * parameters < 0.001 * planned[name] + 65536, name
    assert summary["bytes_planned"] == sum(planned.values())
    assert summary["dry_run"] and summary["bytes_written"] == 0
    assert list(tmp_path.iterdir()) == []
    # programs and headers are all that is read
    assert read < 0.01 * payload
    assert summary["peak_rss"] < 0.01 * payload + 500e6
    held = sum(p.stat().st_blocks * 512 for p in folder.iterdir())
    assert held < 0.001 * payload, "the shards are not sparse any more"


@pytest.mark.parametrize("member", MEMBERS)
def test_census_counts_what_the_tables_say(full_size: Callable[[str], Path], member: str) -> None:
    sizes, folder = MEMBERS[member], full_size(member)
    out, _, seconds = run("census", folder, "--by", "family", "--by", "component")
    (summary,) = out["summary"]
    print(f"{member}: {summary['tensors']} tensors, {summary['params']:,} in {seconds:.2f} s")
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for group in out["group"]:
        found[group["by"]][group["key"]] = group
    components = {k: (g["tensors"], g["params"]) for k, g in found["component"].items()}
    assert components == {k: row[:2] for k, row in sizes.components().items()}
    assert {k: (g["tensors"], g["params"]) for k, g in found["family"].items()} == sizes.groups()
    for by in found.values():
        for field in ("tensors", "params", "nbytes"):
            assert sum(g[field] for g in by.values()) == summary[field]
    assert summary["tensors"] == sizes.tensors
    assert summary["components"] == dict.fromkeys(sizes.components(), True)
    assert summary["missing"] == summary["orphans"] == summary["duplicates"] == []
    assert summary["family"] == "neo_chat" and summary["tied"] is False
    if member != "u1.5-8b":  # stored as BF16 throughout
        assert summary["nbytes"] == 2 * summary["params"]
    assert not [p for p in out["problem"] if p["severity"] != "info"]


PUBLISHED = {"u1.5-8b": 17_532_854_464, "u1-8b": 17_552_340_992}
"""Parameters: an exact published count, and one published as 17.552 B."""


def test_the_arithmetic_here_is_that_of_the_published_totals() -> None:
    for member, total in PUBLISHED.items():
        assert sum(row[1] for row in MEMBERS[member].components().values()) == total
    assert {m: sum(r[0] for r in s.components().values()) for m, s in MEMBERS.items()} == {
        m: s.tensors for m, s in MEMBERS.items()
    }


EXPERT = "language_model.model.layers.47.mlp_mot_gen.experts.31.down_proj.weight"


def transposed(rows: list[Row]) -> list[Row]:
    return [(n, d, shape[::-1] if n == EXPERT else shape) for n, d, shape in rows]


def missing(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row[0] != EXPERT]


def too_many(rows: list[Row]) -> list[Row]:
    return [*rows, *((n.replace("s.31.", "s.32."), d, s) for n, d, s in rows if n == EXPERT)]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (transposed, 3, [EXPERT, "2048, 768", "768, 2048"]),
        (missing, 4, [EXPERT, "missing"]),
        (too_many, 5, ["mlp_mot_gen.experts.32.down_proj", "belongs to no component"]),
    ],
)
def test_one_tensor_of_24120_that_does_not_fit_is_named(
    tmp_path: Path, ntool, change: Change, code: int, words: list[str]
) -> None:
    write_member("a3b", tmp_path / "a3b", change)
    done = ntool("export-component", tmp_path / "a3b", "--dry-run", code=code)
    assert all(word in done.err for word in words), done.err


def test_shard_names_have_the_published_gaps(full_size: Callable[[str], Path]) -> None:
    for member in MEMBERS:
        folder = full_size(member)
        kinds = Counter(p.name.split("-")[0] for p in folder.glob("*.safetensors"))
        assert kinds["model"] and bool(kinds["moemodel"]) == (member == "a3b")
        assert not list(folder.glob("*-0000[234]-of-00016.safetensors"))
