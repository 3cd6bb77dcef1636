"""Geometry of a qwen4exp GGUF model, from its metadata alone. Standard library only.

Keys are those of the public converter, without their prefix `qwen4exp.`. Nothing is guessed: what
decides a name or a dimension must be there and possible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...checkpoint.tensor import Problem

PREFIX = "qwen4exp."
TOKENS = "tokenizer.ggml.tokens"
MAX_SIZE = 1 << 40
"""Largest size that is believed: products of a few of them stay exact and quick."""
MAX_BLOCKS = 10_000


@dataclass(frozen=True)
class Geometry:
    """Sizes, with the symbols that the equations use.

    Attributes:
        L, H, V: blocks, width, vocabulary.
        N, r: residual streams, low rank of their mixers.
        nh, nkv, D, Dv: heads of queries, of keys; width of a key and of a value.
        gk, gv, dk, dv, K: heads of the delta net's keys and values, their widths, taps.
        E, I, Is: experts, their width, that of the shared one.
        nx, Dx: heads of the indexer, their width.
        sparse: for each block whether it is one of sparse attention.
        ple: blocks with n-gram embeddings, from zero; the sizes after it are 0 without any.
        n, hp, kp, width: longest n-gram, heads for each length, taps, width of a table row.
        rows: rows of the n-gram table that the heads use; the table may be padded.
    """

    L: int
    H: int
    V: int
    N: int
    r: int
    nh: int
    nkv: int
    D: int
    Dv: int
    gk: int
    gv: int
    dk: int
    dv: int
    K: int
    E: int
    I: int  # noqa: E741 (the symbol of the equations)
    Is: int
    nx: int
    Dx: int
    sparse: tuple[bool, ...]
    ple: tuple[int, ...]
    n: int
    hp: int
    kp: int
    width: int
    rows: int

    def fields(self) -> dict[str, Any]:
        """For the `gguf` record: sizes in plain words."""
        out: dict[str, Any] = {
            "blocks": self.L,
            "sparse_attention_blocks": sum(self.sparse),
            "delta_net_blocks": self.L - sum(self.sparse),
            "width": self.H,
            "vocabulary": self.V,
            "residual_streams": self.N,
            "attention_heads": self.nh,
            "key_value_heads": self.nkv,
            "head_width": self.D,
            "experts": self.E,
            "expert_width": self.I,
            "shared_expert_width": self.Is,
            "indexer_heads": self.nx,
            "indexer_head_width": self.Dx,
            "ngram_blocks": list(self.ple),
        }
        if self.ple:
            out |= {"ngram_rows": self.rows, "ngram_row_width": self.width}
        return out


class _Values:
    """Metadata, checked as it is asked for; what is wrong is noted, and stands as 0 or ()."""

    def __init__(self, values: dict[str, Any], file: str | None) -> None:
        self._values, self._file = values, file
        self.problems: list[Problem] = []

    def wrong(self, key: str, found: Any, expected: str, severity: str = "error") -> None:
        """Note that a value is missing (None) or impossible."""
        code = "missing-key" if found is None else "bad-geometry"
        shown = "none" if found is None else repr(found)[:60]
        message = f"{PREFIX}{key}: found {shown}, expected {expected}"
        self.problems.append(Problem(code, message, severity, file=self._file))

    def has(self, key: str) -> bool:
        return PREFIX + key in self._values

    def get(self, key: str) -> Any:
        return self._values.get(PREFIX + key)

    def size(self, key: str, most: int = MAX_SIZE) -> int:
        value = self.get(key)
        if type(value) is int and 1 <= value <= most:
            return value
        self.wrong(key, value, f"an integer from 1 to {most}")
        return 0

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers >= 0, or None."""
        value = self.get(key)
        if isinstance(value, list) and all(type(v) is int and v >= 0 for v in value):
            return tuple(value)
        self.wrong(key, value, "an array of integers from 0")
        return None

    def vocabulary(self) -> int:
        """`vocab_size`; without it the number of tokens, as converters of other families do."""
        tokens = self._values.get(TOKENS)
        count = len(tokens) if isinstance(tokens, list) else getattr(tokens, "length", None)
        if not self.has("vocab_size") and count:
            return int(count)
        size = self.size("vocab_size")
        if size and count and count > size:
            self.wrong("vocab_size", size, f"at least {count}, the length of {TOKENS}")
        return size


def geometry(values: dict[str, Any], file: str | None) -> tuple[Geometry | None, list[Problem]]:
    """The geometry, and what is wrong with the metadata; None if sizes are missing or impossible.

    Args:
        values: `GgufFacts.values`.
        file: for the problems.
    """
    v = _Values(values, file)
    blocks = v.size("block_count", MAX_BLOCKS)
    gv, inner = v.size("ssm.time_step_rank"), v.size("ssm.inner_size")
    if gv and inner % gv:
        v.wrong("ssm.inner_size", inner, f"a multiple of {gv}, ssm.time_step_rank")
    sparse = _sparse(v, blocks)
    ple = _ple_blocks(v, blocks, sparse)
    n = v.size("ple.ngram_size", 64) if ple else 0
    hp = v.size("ple.heads_per_ngram", 4096) if ple else 0
    g = Geometry(
        L=blocks,
        H=v.size("embedding_length"),
        V=v.vocabulary(),
        N=v.size("hyper_connection.count"),
        r=v.size("hyper_connection.low_rank"),
        nh=v.size("attention.head_count"),
        nkv=v.size("attention.head_count_kv"),
        D=v.size("attention.key_length"),
        Dv=v.size("attention.value_length"),
        gk=v.size("ssm.group_count"),
        gv=gv,
        dk=v.size("ssm.state_size"),
        dv=inner // gv if gv else 0,
        K=v.size("ssm.conv_kernel"),
        E=v.size("expert_count"),
        I=v.size("expert_feed_forward_length"),
        Is=v.size("expert_shared_feed_forward_length"),
        nx=v.size("attention.indexer.head_count"),
        Dx=v.size("attention.indexer.key_length"),
        sparse=sparse,
        ple=ple,
        n=n,
        hp=hp,
        kp=v.size("ple.conv_kernel") if ple else 0,
        width=v.size("embedding_length_per_layer_input") if ple else 0,
        rows=_rows(v, (n - 1) * hp, len(ple)) if ple else 0,
    )
    derivable = not any(p.severity == "error" for p in v.problems)
    if derivable:
        _relations(v, g)
    _unshaped(v, g)
    return (g if derivable else None), v.problems


def _sparse(v: _Values, blocks: int) -> tuple[bool, ...]:
    """Which blocks have sparse attention: every `full_attention_interval`-th, the last of each."""
    interval = v.size("full_attention_interval")
    if not interval:
        return ()
    sparse = tuple((i + 1) % interval == 0 for i in range(blocks))
    if v.has("attention.compress_ratios"):
        ratios = v.integers("attention.compress_ratios")
        if ratios is not None and blocks and tuple(map(bool, ratios)) != sparse:
            expected = f"{blocks} numbers, above 0 for each {interval}th block and 0 for the others"
            v.wrong("attention.compress_ratios", list(ratios), expected)
    else:
        v.wrong("attention.compress_ratios", None, "a number for each block", "warning")
    return sparse


def _ple_blocks(v: _Values, blocks: int, sparse: tuple[bool, ...]) -> tuple[int, ...]:
    """Blocks with n-gram embeddings; none where no key speaks of them."""
    if not v.has("ple.layers") and not v.has("embedding_length_per_layer_input"):
        return ()
    layers = v.integers("ple.layers")
    if not layers:
        return ()
    if list(layers) != sorted(set(layers)) or (blocks and layers[-1] >= blocks):
        v.wrong("ple.layers", list(layers), f"rising numbers of blocks below {blocks}")
        return ()
    if sparse and any(sparse[i] for i in layers):
        v.wrong("ple.layers", list(layers), "blocks without sparse attention")
    return layers


def _rows(v: _Values, heads: int, layers: int) -> int:
    """Rows of the n-gram table in use: the sizes of all heads together."""
    sizes = v.integers("ple.head_vocab_sizes")
    if sizes is None:
        return 0
    if heads < 1:
        v.wrong("ple.ngram_size", v.get("ple.ngram_size"), "at least 2")
        return 0
    if len(sizes) not in (heads, heads * layers) or 0 in sizes:
        v.wrong("ple.head_vocab_sizes", list(sizes), f"{heads} sizes above 0")
        return 0
    offsets = v.integers("ple.head_offsets")
    starts = tuple(sum(sizes[i - i % heads : i]) for i in range(len(sizes)))
    running = tuple(sum(sizes[:i]) for i in range(len(sizes)))
    if offsets is not None and offsets not in (starts, running):
        v.wrong("ple.head_offsets", list(offsets), "the running sums of ple.head_vocab_sizes")
    total = sum(sizes)
    if total > MAX_SIZE:
        v.wrong("ple.head_vocab_sizes", total, f"a sum of at most {MAX_SIZE}")
    return total


def _relations(v: _Values, g: Geometry) -> None:
    """What must hold between sizes that decide names and dimensions."""
    if g.N < 2:
        v.wrong("hyper_connection.count", g.N, "at least 2")
    if g.nh % g.nkv:
        v.wrong("attention.head_count", g.nh, f"a multiple of {g.nkv}, attention.head_count_kv")
    if g.gv % g.gk:
        v.wrong("ssm.time_step_rank", g.gv, f"a multiple of {g.gk}, ssm.group_count")


def _unshaped(v: _Values, g: Geometry) -> None:
    """Values that decide no dimension: they may be absent (a warning), but not impossible."""
    for key, least, most in (
        ("context_length", 1, MAX_SIZE),
        ("expert_used_count", 1, g.E or MAX_SIZE),
        ("rope.dimension_count", 2, min(g.D or MAX_SIZE, g.Dx or MAX_SIZE)),
        ("attention.indexer.top_k", 1, MAX_SIZE),
    ):
        value = v.get(key)
        if type(value) is not int or not least <= value <= most:
            severity = "warning" if value is None else "error"
            v.wrong(key, value, f"an integer from {least} to {most}", severity)
    for key in ("rope.freq_base", "attention.layer_norm_rms_epsilon"):
        value = v.get(key)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            v.wrong(key, value, "a number above 0", "warning" if value is None else "error")
    _sections(v)
    budget, ratios = v.get("attention.indexer.top_k"), v.get("attention.compress_ratios")
    if type(budget) is int and isinstance(ratios, list):
        for ratio in sorted({r for r in ratios if type(r) is int and r > 0}):
            if budget % ratio:
                expected = f"a multiple of {ratio}, of attention.compress_ratios"
                v.wrong("attention.indexer.top_k", budget, expected)
    if g.ple:
        multipliers = v.get("ple.layer_multipliers")
        count = len(multipliers) if isinstance(multipliers, list) else None
        if count not in (g.n, g.n * len(g.ple)):
            severity = "warning" if multipliers is None else "error"
            v.wrong("ple.layer_multipliers", multipliers, f"{g.n} numbers", severity)
        for key in ("ple.eos_token_id", "ple.image_token_id"):
            value = v.get(key)
            if type(value) is not int or not 0 <= value < (g.V or MAX_SIZE):
                severity = "warning" if value is None else "error"
                v.wrong(key, value, "a token of the vocabulary", severity)


def _sections(v: _Values) -> None:
    """Sections of the rotary channels: four entries, the last 0, half the rotated width."""
    sections, width = v.get("rope.dimension_sections"), v.get("rope.dimension_count")
    if sections is None:
        v.wrong("rope.dimension_sections", None, "four numbers", "warning")
        return
    whole = isinstance(sections, list) and len(sections) == 4
    whole = whole and all(type(s) is int and s >= 0 for s in sections) and sections[3] == 0
    if not whole or (type(width) is int and 2 * sum(sections) != width):
        half = f"{width // 2}" if type(width) is int else "half of rope.dimension_count"
        v.wrong("rope.dimension_sections", sections, f"four numbers, the last 0, the sum {half}")
