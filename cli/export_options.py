"""Options of export-component."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .lib.package.export import Limit

Components = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[COMPONENT]...", help="Which components. Default: all.", show_default=False
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="auto, f32, f16 or bf16.")]
SetDtype = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="COMPONENT=DTYPE", help="Another dtype for one component. Repeatable."
    ),
]
Provider = Annotated[
    str,
    typer.Option(
        "--ep", metavar="PROVIDER", help="Meant for: default, cpu, cuda or onnx-standard."
    ),
]
ForceF16 = Annotated[
    bool,
    typer.Option("--force-f16", help="Allow f16 for generation, which ends as NaN. To try."),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="HOW",
        help="How weights get there: auto, copy, reflink, hardlink or inplace.",
    ),
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        "--shard-size",
        metavar="SIZE",
        help="Largest data file, for example 5GB. Default: by family.",
    ),
]
MaxShardSize = Annotated[
    str | None,
    typer.Option("--max-shard-size", metavar="SIZE", help="Another name of --shard-size."),
]
ExternalData = Annotated[
    str,
    typer.Option(
        "--external-data", metavar="FORMAT", help="Of the data files: there is safetensors."
    ),
]
TextOnly = Annotated[
    bool,
    typer.Option("--text-only", help="Of a model of text and pictures the text model alone."),
]
Dequantize = Annotated[
    bool, typer.Option("--dequantize", help="FP8 weights as dense ones, codes times scales.")
]
ScaleReading = Annotated[
    str,
    typer.Option(
        "--scale-reading", metavar="HOW", help="Scales of FP8 weights that stay: exact or bf16."
    ),
]


def parse_size(shard_size: str | None, max_shard_size: str | None) -> Limit | None:
    """Bytes from `5GB`, `200MB`, `1GiB` or a plain number, by the one option that is given.

    Raises:
        UsageProblem: anything else, or nothing, or both options; names the option.
    """
    from .lib.errors import UsageProblem
    from .lib.package.export import Limit

    if shard_size is not None and max_shard_size is not None:
        raise UsageProblem("--shard-size and --max-shard-size", expected="one of them")
    text = shard_size if max_shard_size is None else max_shard_size
    if text is None:
        return None
    option = "--shard-size" if max_shard_size is None else "--max-shard-size"
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    match = re.fullmatch(r"([0-9]{1,12})\s*([KMG]i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise UsageProblem(option, found=text, expected="for example 5GB")
    return Limit(int(match[1]) * units[(match[2] or "").upper()], option)
