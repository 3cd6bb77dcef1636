"""Records written: `tensor` for each array of the prefix file, `token` and `text` with --decode,
`summary`."""

from __future__ import annotations

import typer

from .. import sampler_options as o
from ..console import console
from ..options import Device, Package


def run_prefill(
    package: Package,
    prompt: o.Prompt = None,
    prompt_file: o.PromptFile = None,
    query: o.Query = None,
    tokens: o.Tokens = None,
    image: o.Images = None,
    task: o.Task = "chat",
    system: o.System = None,
    min_pixels: o.MinPixels = None,
    max_pixels: o.MaxPixels = None,
    decode: o.Decode = 0,
    raw: o.Raw = False,
    all_logits: o.AllLogits = False,
    device: Device = "auto",
    output: o.PrefixOutput = None,
) -> None:
    """Run a prompt through the understanding branch: logits, key/value cache, and greedy
    decoding."""
    from ..lib.errors import UsageProblem
    from ..lib.families.neo_chat.answers import answer, limits_of, parse_tokens, read_text
    from ..lib.families.neo_chat.pipeline import Pipeline
    from ..lib.package.cache import package_of
    from ..lib.runtime.session import resolve_device

    given = [x for x in (prompt, prompt_file, query, tokens) if x is not None]
    if len(given) != 1 and not (task == "unconditional" and not given):
        raise UsageProblem(
            "prompt",
            found=f"{len(given)} of them",
            expected="one of --prompt, --prompt-file, --query, --tokens",
        )
    if raw and not decode:
        raise UsageProblem("--raw without --decode")
    found = package_of(package, console.note)
    pipeline = Pipeline(found, resolve_device(device, console.note))
    text = read_text(prompt_file) if prompt_file is not None else prompt or ""
    images = image or []
    ids = parse_tokens(tokens) if tokens is not None else None
    finished = query is not None
    if query is None and ids is None:
        query = pipeline.query(task, text, len(images), system)
    limits = limits_of(len(images), min_pixels, max_pixels)
    if raw:
        prefix = pipeline.prefill(
            query, task=task, finished=finished, prompt=text, ids=ids, images=images, limits=limits
        )
        if output:
            prefix.save(output)
        typer.echo(answer(pipeline, list(pipeline.decode(prefix, decode))))
        return
    with console.stream(main="token", source=package, format="prefix") as out:
        prefix = pipeline.prefill(
            query,
            task=task,
            finished=finished,
            prompt=text,
            ids=ids,
            images=images,
            limits=limits,
            all_logits=all_logits,
        )
        if output:
            for row in prefix.save(output):
                out.write("tensor", **row, file=str(output))
        best = int(prefix.logits[0, -1].argmax())
        out.write(
            "summary",
            task=task,
            tokens=int(prefix.ids.shape[1]),
            images=len(images),
            next_token=best,
            next_text=pipeline.tokenizer.decode([best], skip_special=False),
            output=str(output) if output else None,
        )
        if decode:
            produced = []
            for index, token in enumerate(pipeline.decode(prefix, decode)):
                produced.append(token)
                word = pipeline.tokenizer.decode([token], skip_special=False)
                out.write("token", index=index, id=token, text=word)
            out.write("text", text=answer(pipeline, produced))
