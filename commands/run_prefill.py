"""Records written: `tensor` for each array of the prefix file, `token` and `text` with --decode, `summary`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from ..console import console
from ..options import Device, Package


def run_prefill(
    package: Package,
    prompt: Annotated[Optional[str], typer.Option("--prompt", help="Text, put into the task's template.")] = None,
    prompt_file: Annotated[
        Optional[Path], typer.Option("--prompt-file", help="File with the text; - for standard input.")
    ] = None,
    query: Annotated[
        Optional[str], typer.Option("--query", help="Finished text with special tokens, taken as it is.")
    ] = None,
    tokens: Annotated[
        Optional[str], typer.Option("--tokens", metavar="LIST", help="Token ids: 1,2,3 or @FILE.")
    ] = None,
    image: Annotated[
        Optional[list[Path]], typer.Option("--image", metavar="FILE", help="Picture. May be repeated.")
    ] = None,
    task: Annotated[
        str, typer.Option("--task", help="chat, text-to-image or unconditional.")
    ] = "chat",
    system: Annotated[Optional[str], typer.Option("--system", help="System text of the template.")] = None,
    min_pixels: Annotated[Optional[int], typer.Option("--min-pixels", min=1)] = None,
    max_pixels: Annotated[Optional[int], typer.Option("--max-pixels", min=1)] = None,
    decode: Annotated[int, typer.Option("--decode", min=0, metavar="N", help="Continue greedily by up to N tokens.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="With --decode: print the text alone.")] = False,
    all_logits: Annotated[bool, typer.Option("--all-logits", help="Logits of every position, not the last.")] = False,
    device: Device = "auto",
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", metavar="FILE", help="Prefix file (safetensors).")
    ] = None,
) -> None:
    """Run a prompt through the understanding branch: logits, key/value cache, and greedy decoding."""
    from ..lib.errors import UsageProblem
    from ..lib.families.neo_chat.answers import answer, limits_of, parse_tokens, read_text
    from ..lib.families.neo_chat.pipeline import Pipeline
    from ..lib.package.cache import package_of
    from ..lib.runtime.session import resolve_device

    given = [x for x in (prompt, prompt_file, query, tokens) if x is not None]
    if len(given) != 1 and not (task == "unconditional" and not given):
        raise UsageProblem(
            "prompt", found=f"{len(given)} of them", expected="one of --prompt, --prompt-file, --query, --tokens"
        )
    if raw and not decode:
        raise UsageProblem("--raw without --decode")
    found = package_of(package, console.note)
    pipeline = Pipeline(found, resolve_device(device, console.note))
    text = read_text(prompt_file) if prompt_file is not None else prompt or ""
    images = image or []
    ids = parse_tokens(tokens) if tokens is not None else None
    if query is None and ids is None:
        query = pipeline.query(task, text, len(images), system)
    limits = limits_of(len(images), min_pixels, max_pixels)
    if raw:
        prefix = pipeline.prefill(query, task=task, prompt=text, ids=ids, images=images, limits=limits)
        if output:
            prefix.save(output)
        typer.echo(answer(pipeline, list(pipeline.decode(prefix, decode))))
        return
    with console.stream(main="token", source=package, format="prefix") as out:
        prefix = pipeline.prefill(
            query, task=task, prompt=text, ids=ids, images=images, limits=limits, all_logits=all_logits
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
