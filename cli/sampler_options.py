"""Option types of the commands that run a package: prompts, pictures and the sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .number_types import number, whole
from .path_types import new_file

MAX_PIXELS = 64_000_000
"""As many as a picture that is read may have (`lib.sampling.image`)."""
SCALE = number(-1e6, 1e6)


def _file(name: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(name, metavar="FILE", help=help)


def _new(*names: str, help: str, metavar: str = "FILE") -> typer.models.OptionInfo:
    return typer.Option(*names, parser=new_file, metavar=metavar, help=help)


Prompt = Annotated[
    str | None, typer.Option("--prompt", metavar="TEXT", help="Text, put into the task's template.")
]
PromptRows = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Text, put into the task's template. Several make a batch.",
    ),
]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="System text of the template.")
]
Prompts = Annotated[
    str | None,
    _file("--prompts", "JSON Lines of prompt, seed, size, output, ...; - for standard input."),
]
Prefix = Annotated[Path | None, _file("--prefix", "Prefix file of the prompt.")]
PrefixUnconditional = Annotated[
    Path | None, _file("--prefix-unconditional", "Prefix file of the empty prompt.")
]
Size = Annotated[str | None, typer.Option("--size", metavar="WxH", help="Pixels, multiples of 32.")]
Steps = Annotated[
    int | None,
    typer.Option("--steps", parser=whole(1, 10_000), metavar="N", help="Euler steps."),
]
Cfg = Annotated[
    float | None,
    typer.Option("--cfg", parser=SCALE, metavar="SCALE", help="Guidance scale; 1 and below: none."),
]
CfgNorm = Annotated[
    str | None,
    typer.Option("--cfg-norm", metavar="NORM", help="none, global, channel or cfg_zero_star."),
]
CfgInterval = Annotated[
    str | None,
    typer.Option("--cfg-interval", metavar="LO,HI", help="Guidance only for t in this range."),
]
Shift = Annotated[
    float | None,
    typer.Option(
        "--shift",
        parser=number(1e-3, 1e3),
        metavar="SHIFT",
        help="Timestep shift, 0.001 to 1000; 1 is none.",
    ),
]
TEps = Annotated[
    float | None,
    typer.Option(
        "--t-eps",
        parser=number(1e-6, 1e3),
        metavar="EPS",
        help="Floor of 1 - t in the velocity.",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--count", parser=whole(1, 10_000), metavar="N", help="Pictures, with seeds in a row."
    ),
]
Rng = Annotated[
    str,
    typer.Option(
        "--rng", metavar="RNG", help="portable (the same noise on every machine) or torch-cpu."
    ),
]
LatentFile = Annotated[Path | None, _file("--latent", "Start from its tensor 'noise' or 'z'.")]
SaveLatent = Annotated[Path | None, _new("--save-latent", help="Write the unit noise.")]
Trace = Annotated[Path | None, _new("--trace", help="Write z, t and v of all steps.")]
Sheet = Annotated[
    Path | None,
    _new("--sheet", metavar="PNG", help="All pictures on one contact sheet."),
]
Preview = Annotated[
    Path | None,
    _new("--preview", metavar="PNG", help="Show the picture while it is drawn."),
]
PreviewEvery = Annotated[
    int | None,
    typer.Option(
        "--preview-every", parser=whole(1, 10_000), metavar="N", help="Steps between previews: 5."
    ),
]
NoMetadata = Annotated[bool, typer.Option("--no-metadata", help="No recipe in the PNG.")]
PromptFile = Annotated[
    Path | None, _file("--prompt-file", "File with the text; - for standard input.")
]
Query = Annotated[
    str | None,
    typer.Option(
        "--query", metavar="TEXT", help="Finished text with special tokens, taken as it is."
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        "--tokens", metavar="LIST", help="Token ids: 1,2,3 or @FILE; rows of a batch: 1,2;3,4."
    ),
]
Pad = Annotated[
    int | None,
    typer.Option(
        "--pad",
        parser=whole(0, 2**31 - 1),
        metavar="ID",
        help="Token id in front of the shorter rows of a batch.",
    ),
]
Images = Annotated[list[Path] | None, _file("--image", "Picture. May be repeated.")]
Task = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="TASK",
        help="chat, text-to-image, image-edit, images-only, unconditional or interleave.",
    ),
]
MinPixels = Annotated[
    int | None,
    typer.Option(
        "--min-pixels",
        parser=whole(1, MAX_PIXELS),
        metavar="N",
        help="Least pixels of a picture after resizing.",
    ),
]
MaxPixels = Annotated[
    int | None,
    typer.Option(
        "--max-pixels",
        parser=whole(1, MAX_PIXELS),
        metavar="N",
        help="Most pixels of a picture after resizing.",
    ),
]
Decode = Annotated[
    int | None,
    typer.Option(
        "--decode",
        parser=whole(0, 2**20),
        metavar="N",
        help="Continue greedily by up to N tokens.",
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="WxH,...", help="Pixels of each picture; the last size repeats."
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="With --decode: print the text alone.")]
AllLogits = Annotated[
    bool, typer.Option("--all-logits", help="Logits of every position, not of the last alone.")
]
PrefixOutput = Annotated[
    Path | None,
    _new(
        "--output",
        "-o",
        help="Prefix file to write (safetensors); for task interleave the pictures' name.",
    ),
]
Messages = Annotated[
    Path | None,
    _file("--messages", "Conversation: JSON list of role, text, images; - for standard input."),
]
Think = Annotated[bool, typer.Option("--think", help="Let the model think first.")]
ImgCfg = Annotated[
    float | None,
    typer.Option(
        "--img-cfg",
        parser=SCALE,
        metavar="SCALE",
        help="Guidance scale of the pictures; 1: none.",
    ),
]
PrefixImagesOnly = Annotated[
    Path | None, _file("--prefix-images-only", "Prefix file of the pictures alone.")
]
Fit = Annotated[
    bool, typer.Option("--fit", help="Take the nearest valid size instead of refusing one.")
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", parser=whole(0, 4096), metavar="N", help="CPU threads; 0 takes all cores."
    ),
]
Plan = Annotated[
    bool, typer.Option("--plan", help="Print the memory that the run needs, and stop.")
]
LowMemory = Annotated[
    bool,
    typer.Option("--low-memory", help="Leave weights in their mapped files, however often used."),
]
