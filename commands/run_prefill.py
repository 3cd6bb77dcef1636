"""Records written: `tensor` for each array of the prefix file, `token` and `text` with --decode,
`summary`; for task interleave `token`, `step` and `file` as they come, then `text`. Records of one
of several rows have its number, `row`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .. import sampler_options as o
from ..console import console
from ..options import Device, Runnable, Seed


def run_prefill(
    package: Runnable,
    prompt: o.PromptRows = None,
    prompt_file: o.PromptFile = None,
    messages: o.Messages = None,
    query: o.Query = None,
    tokens: o.Tokens = None,
    image: o.Images = None,
    task: o.Task = "chat",
    system: o.System = None,
    think: o.Think = False,
    min_pixels: o.MinPixels = None,
    max_pixels: o.MaxPixels = None,
    pad: o.Pad = None,
    decode: o.Decode = None,
    raw: o.Raw = False,
    all_logits: o.AllLogits = False,
    size: o.Sizes = None,
    steps: o.Steps = None,
    cfg: o.Cfg = None,
    img_cfg: o.ImgCfg = None,
    cfg_norm: o.CfgNorm = None,
    cfg_interval: o.CfgInterval = None,
    shift: o.Shift = None,
    t_eps: o.TEps = None,
    seed: Seed = 42,
    rng: o.Rng = "portable",
    latent: o.LatentFile = None,
    device: Device = "auto",
    threads: o.Threads = 0,
    low_memory: o.LowMemory = False,
    output: o.PrefixOutput = None,
) -> None:
    """Run a prompt through the understanding branch: logits, key/value cache, greedy decoding.

    Task interleave goes on to write text and pictures in turn, OUT-0.png, OUT-1.png, ...; the
    sampler's options (--size to --latent) are for it alone. Several prompts, or several rows of
    tokens, make one batch, where the model's family takes one.
    """
    options: dict[str, Any] = dict(locals())
    from importlib import import_module

    from ..lib import families
    from ..lib.package.cache import find
    from ..lib.runtime.session import Settings, resolve_device

    main = "text" if raw else "token"
    with console.stream(main=main, source=package, alone=raw, format="prefix") as out:
        source = find(package)
        family = import_module(f"{families.__name__}.{source.family}.prefill_run")
        request = family.read_request(options)
        settings = Settings(
            resolve_device(device, console.note), threads, low_memory, note=console.note
        )
        found = source.package(console.note)

        def on_step(step: Any) -> None:
            out.write("step", **asdict(step))

        for kind, row in family.run(found, settings, request, options, on_step):
            out.write(kind, **row)
