"""FP8 weights and their scales, paired and judged by headers alone. Standard library only.

A scale belongs to a weight by its name. Its shape must fit the block size of the config: a block is
never derived by dividing a weight by its grid, which goes wrong with a partial last block.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice, repeat
from operator import gt, itemgetter

from ..checkpoint.tensor import Problem, Tensor
from .settings import Settings

FP8 = frozenset(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"))
SCALE_DTYPES = frozenset(("BF16", "F16", "F32", "F8_E8M0", "U8"))
"""What a scale is stored as; U8 holds the exponents of E8M0 as plain bytes."""
AFTER = ("_scale_inv", "_scale")
"""Ends of scale names, put after the whole name of a weight: `X.weight_scale_inv`."""
INSTEAD = (".scale", ".qscale_weight", ".weight_qscale")
"""Ends of scale names that stand in place of `.weight`."""
_ENDS = (*AFTER, *INSTEAD)
_CERTAIN = ("weight_scale_inv", "weight_scale", "_scale_inv", ".qscale_weight", ".weight_qscale")
"""Ends that nothing but a weight's scale has: one without its weight is an orphan."""
_PLAIN = ".scale"
SHARD = re.compile(r"\.shards?[._][0-9]{1,15}(?=\.weight$)")
_NAME, _DTYPE, _SHAPE = map(itemgetter, (0, 1, 2))
Shape = tuple[int, ...]
_MAX_LISTED = 100
_SHOWN = 8


@dataclass
class Pairs:
    """The pairs of a checkpoint.

    Attributes:
        settings: by which they were judged.
        scale_of: weight name -> the name of its scale.
        forms: number of pairs by form: `block`, `channel`, `tensor`.
        shared: scale name -> number of weights, for scales of more than one.
        unpaired: FP8 weights without a scale.
        orphans: scales without a weight.
        scales: name -> tensor, those in `scale_of`.
        problems: everything wrong.
    """

    settings: Settings
    scale_of: dict[str, str] = field(default_factory=dict)
    forms: Counter[str] = field(default_factory=Counter)
    shared: dict[str, int] = field(default_factory=dict)
    unpaired: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    scales: dict[str, Tensor] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def is_scale(name: str) -> bool:
    """Whether a name ends as those of scales do."""
    return name.endswith(_ENDS)


def pair(tensors: Sequence[Tensor], settings: Settings) -> Pairs:
    """Pair the FP8 weights of a checkpoint with their scales, and judge each pair."""
    out = Pairs(settings, problems=list(settings.problems))
    # columns: a line of Python for each of 150,000 tensors takes three times as long
    named = list(map(str.endswith, map(_NAME, tensors), repeat(_ENDS)))
    scales = {t[0]: t for t in compress(tensors, named)}
    in_fp8 = map(FP8.__contains__, map(_DTYPE, tensors))
    weights = list(compress(tensors, map(gt, in_fp8, named)))
    found = list(map(scales.get, map(str.__add__, map(_NAME, weights), repeat("_scale_inv"))))
    users: Counter[str] = Counter()
    for i, scale in enumerate(found):
        if scale is None:
            scale = found[i] = _scale_for(weights[i].name, scales)
            if scale is not None and SHARD.search(weights[i].name):
                users[scale.name] += 1
    out.shared = {name: n for name, n in users.items() if n > 1}
    lone = [w for w, s in zip(weights, found, strict=True) if s is None]
    if lone:
        out.unpaired = [w.name for w in lone]
        for w in lone[:_MAX_LISTED]:
            message = f"{w.dtype} without a scale: expected {_expected(w.name)}"
            out.problems.append(Problem("missing-scale", message, file=w.file, name=w.name))
        _more(out, "missing-scale", len(lone))
        weights = [w for w, s in zip(weights, found, strict=True) if s is not None]
    paired = [s for s in found if s is not None]
    out.scale_of = dict(zip(map(_NAME, weights), map(_NAME, paired), strict=True))
    out.scales = dict(zip(map(_NAME, paired), paired, strict=True))
    _judge(out, weights, paired, frozenset(users))
    _orphans(out, scales, tensors)
    return out


def table_problems(tensors: Sequence[Tensor]) -> list[Problem]:
    """What is wrong with tables that are stored in shards, some of them FP8: all must be, and their
    numbers must be whole. A conversion has rules of its own for them."""
    problems = []
    tables: dict[str, dict[int, Tensor]] = {}
    for t in tensors:
        if ".shard" in t[0] and (match := SHARD.search(t[0])):
            number = int(match[0].replace("_", ".").rpartition(".")[2])
            tables.setdefault(SHARD.sub("", t[0]), {})[number] = t
    for table, shards in tables.items():
        dtypes = {t.dtype for t in shards.values()}
        if not dtypes & FP8:
            continue
        if len(dtypes) > 1:
            usual, _ = Counter(t.dtype for t in shards.values() if t.dtype in FP8).most_common(1)[0]
            odd = sorted(n for n, t in shards.items() if t.dtype != usual)
            first = shards[odd[0]]
            message = f"table '{table}': found {first.dtype} in {_numbers(odd)} of {len(shards)}"
            message += f" shards, expected {usual} as in the others"
            problems.append(Problem("mixed-shards", message, "error", first.file, first.name))
        last = max(shards)
        if last + 1 != len(shards):
            gaps = islice((n for n in range(last) if n not in shards), _SHOWN + 1)
            message = f"table '{table}': found {len(shards)} shards, expected all of 0..{last}: "
            message += f"no {_numbers([*gaps])}"
            at = shards[last]
            problems.append(Problem("missing-table-shard", message, "error", at.file, at.name))
    return problems


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")


def _scale_for(name: str, scales: dict[str, Tensor]) -> Tensor | None:
    """The scale of a weight: its own, or the one that all shards of a table share."""
    scope = SHARD.sub("", name)
    for whole in dict.fromkeys((name, scope)):
        for end in AFTER:
            if scale := scales.get(whole + end):
                return scale
        stem = whole.removesuffix(".weight")
        if stem != whole:
            for end in INSTEAD:
                if scale := scales.get(stem + end):
                    return scale
    return None


def _expected(name: str) -> str:
    stem = name.removesuffix(".weight")
    ends = [name + e for e in AFTER] + ([stem + e for e in INSTEAD] if stem != name else [])
    return " or ".join(ends)


def _more(out: Pairs, code: str, count: int) -> None:
    if count > _MAX_LISTED:
        out.problems.append(Problem(code, f"and {count - _MAX_LISTED} more tensors of this kind"))


def _judge(
    out: Pairs, weights: list[Tensor], scales: list[Tensor], of_shards: frozenset[str]
) -> None:
    """Judge each kind of pair once: a checkpoint of 75,000 has a handful.

    Args:
        of_shards: names of scales that belong to the shards of a table; they are no blocks' scales.
    """

    def kinds() -> Iterator[tuple[str, Shape, str, Shape, bool]]:
        shared = map(of_shards.__contains__, map(_NAME, scales))
        of_weights = map(_DTYPE, weights), map(_SHAPE, weights)
        return zip(*of_weights, map(_DTYPE, scales), map(_SHAPE, scales), shared, strict=True)

    for kind, count in Counter(kinds()).items():
        dtype, shape, scale_dtype, grid, of_shard = kind
        block = None if of_shard else out.settings.block
        form, found = _verdict(dtype, shape, scale_dtype, grid, block)
        out.forms[form] += count
        if not found:
            continue
        same = [i for i, k in enumerate(kinds()) if k == kind]
        for code, severity, message in found:
            for i in same[:_MAX_LISTED]:
                at = weights[i] if code == "fp8-dtype" else scales[i]
                out.problems.append(Problem(code, message, severity, at.file, at.name))
            _more(out, code, len(same))


Found = list[tuple[str, str, str]]


def _verdict(
    dtype: str,
    shape: tuple[int, ...],
    scale_dtype: str,
    grid: tuple[int, ...],
    block: tuple[int, int] | None,
) -> tuple[str, Found]:
    """Form of a pair, and (code, severity, message) of what is wrong with it."""
    found: Found = []
    if dtype.endswith("FNUZ"):
        message = f"dtype: found {dtype}, expected F8_E4M3 or F8_E5M2: the codes mean other values"
        found.append(("fp8-dtype", "error", message))
    if scale_dtype not in SCALE_DTYPES:
        message = f"dtype of a scale: found {scale_dtype}, expected BF16, F16, F32 or F8_E8M0"
        found.append(("scale-dtype", "error", message))
    if math.prod(grid) == 1:
        want = expected_grid(shape, block)
        if block and want and want != grid:
            message = (
                f"one scale for the whole of {list(shape)} in a checkpoint of "
                f"{block[0]}x{block[1]} blocks: found {list(grid)}, expected {list(want)}"
            )
            found.append(("scalar-scale", "warning", message))
        return ("tensor" if want != grid else "block"), found
    want = expected_grid(shape, block)
    if len(shape) > 3:
        message = f"scale grid of a {list(shape)} weight: found {list(grid)}, expected one value: "
        message += "blocks and rows are those of matrices and of stacks of them"
        found.append(("scale-grid", "error", message))
        return "block", found
    if block is not None and want is not None:
        if grid == want:
            return "block", found
        message = f"scale grid of a {list(shape)} weight: found {list(grid)}, expected {list(want)}"
        message += f" for blocks of {block[0]}x{block[1]}"
        found.append(("scale-grid", "error", message))
        return "block", found
    if _by_matrix(shape, grid):
        return "tensor", found
    if len(shape) >= 2 and grid in (shape[:-1], (*shape[:-1], 1)):
        return "channel", found
    message = (
        f"scale grid of a {list(shape)} weight: found {list(grid)}, expected one scale, one a row, "
        "or weight_block_size in the config"
    )
    found.append(("scale-grid", "error", message))
    return "block", found


def _by_matrix(shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """One scale for each matrix of a stack [E, R, C]: [E], [E, 1], [E, 1, 1]; or for gate and up of
    a fused one, [E, 2, 1]."""
    if len(shape) != 3 or not grid or grid[0] != shape[0]:
        return False
    rest = grid[1:]
    return math.prod(rest) == 1 or (rest == (2, 1) and shape[1] % 2 == 0)


def expected_grid(shape: tuple[int, ...], block: tuple[int, int] | None) -> tuple[int, ...] | None:
    """[ceil(R / rows), ceil(C / columns)] of the blocks of [R, C]; a stack [E, R, C] has one grid
    for each matrix. None without a block size, or for fewer than two axes."""
    if block is None or len(shape) < 2:
        return None
    rows, columns = -(-shape[-2] // block[0]), -(-shape[-1] // block[1])
    return (*shape[:-2], rows, columns)


def _orphans(out: Pairs, scales: dict[str, Tensor], tensors: Sequence[Tensor]) -> None:
    if len(out.scales) == len(scales):  # those in use are among them
        return
    unused = scales.keys() - out.scales.keys()
    left = [n for n in unused if n.endswith(_CERTAIN)]
    # norms have a `.scale` too: one is a weight's where other weights have theirs under that name
    plain = [n for n in unused if n.endswith(_PLAIN)]
    if plain and not any(n.endswith(_PLAIN) for n in out.scales):
        plain = []
    if not left and not plain:
        return
    partners = {n: _partner(n) for n in (*left, *plain)}
    wanted = set(partners.values())
    found = {t.name: t for t in tensors if t.name in wanted}
    dtypes = {name: t.dtype for name, t in found.items()}
    matrices = {name for name, t in found.items() if len(t.shape) > 1}
    orphans = []
    for name in sorted([*left, *(n for n in plain if partners[n] in matrices)]):
        dtype = dtypes.get(partners[name])
        if dtype is not None and not dtype.startswith(("BF16", "F16", "F32", "F64", "F8_E")):
            continue  # another quantisation: integers, 4-bit floats
        orphans.append(name)
        weight = f"'{partners[name]}' is {dtype}" if dtype else f"no tensor '{partners[name]}'"
        if len(orphans) <= _MAX_LISTED:
            message = f"a scale without an FP8 weight: {weight}"
            out.problems.append(Problem("orphan-scale", message, file=scales[name].file, name=name))
    out.orphans = orphans
    _more(out, "orphan-scale", len(orphans))


def _partner(scale: str) -> str:
    """The weight that a scale's name promises."""
    for end in AFTER:
        if scale.endswith(end):
            return scale.removesuffix(end)
    for end in INSTEAD:
        if scale.endswith(end):
            return scale.removesuffix(end) + ".weight"
    return scale
