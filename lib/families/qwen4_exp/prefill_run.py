"""What run-prefill does with a request: a prefix file, and greedy tokens of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...checkpoint.output_file import check_new_files
from ...errors import UsageProblem
from ...package.cache import folder_of
from ...package.package import Package
from ...runtime.session import Settings
from .pipeline import Pipeline
from .request import Request, from_options

Row = tuple[str, dict[str, Any]]
"""Kind and fields of a record."""
READ = ("prompt_file", "messages")
"""Options that name a file to read."""


def read_request(o: Mapping[str, Any]) -> Request:
    """The request that run-prefill's options give, by their names.

    Raises:
        UsageProblem: options that contradict each other, or an output that is an input.
        SourceNotFound, EnvironmentProblem: an output that cannot be written.
    """
    if str(o["output"]) == "-":
        raise UsageProblem("-o -: arrays are not piped", expected="a file name")
    if o["raw"] and not o["decode"]:
        raise UsageProblem("--raw without --decode", hint="--decode N")
    request = from_options(o)
    if o["raw"] and request.rows > 1:  # a text may have lines of its own
        raise UsageProblem(
            "--raw", found=f"{request.rows} rows", expected="one row: records say whose a text is"
        )
    if o["output"] is not None:
        read = [str(o[k]) for k in READ if o[k] is not None]
        if o["tokens"] is not None and o["tokens"].startswith("@"):
            read.append(o["tokens"][1:])
        read += [str(path) for path in request.pictures]
        check_new_files([str(o["output"])], read, folder_of(o["package"]))
    return request


def run(
    package: Package,
    settings: Settings,
    request: Request,
    o: Mapping[str, Any],
    on_step: Callable[[Any], None],
) -> Iterator[Row]:
    """Run a request; yields records in the order in which things happen.

    With several rows each record of tokens, text or summary says of which `row` it is.

    Args:
        on_step: not called; families that draw have steps.
    """
    output = o["output"]
    if output is not None:  # again: the cache was not known before
        check_new_files([str(output)], folders=[str(package.root)])
    pipeline = Pipeline(package, settings)
    if o["raw"]:
        pipeline.reader.need_tokenizer("--raw")
    for component in pipeline.workflow.each_token:
        pipeline.sessions.expect(component, o["decode"] or 0, request.rows)
    # 16-bit arrays are read where they lie, so a file is written from host memory
    keep = output is None or settings.device[0] == "cpu"
    prefix = pipeline.prefill(request, all_logits=o["all_logits"], keep=keep)
    if output is not None:
        for fields in pipeline.save(prefix, output):
            yield "tensor", {**fields, "file": str(output)}
    best = prefix.logits[:, -1].argmax(axis=-1).tolist()
    lengths = prefix.mask.sum(axis=1).tolist()
    for b, token in enumerate(best):
        summary = {
            "task": o["task"],
            "tokens": lengths[b],
            "images": len(request.pictures),
            "next_token": token,
            "next_text": pipeline.reader.text([token]),
            "output": str(output) if output else None,
        }
        yield "summary", {**summary, **_row(request, b)}
    if not o["decode"]:
        return
    picked: list[list[int]] = [[] for _ in best]
    for chosen in pipeline.decode(prefix, o["decode"]):
        for b, one in enumerate(chosen):
            if one is None:
                continue
            fields = {"index": len(picked[b]), "id": one, "text": pipeline.reader.text([one])}
            picked[b].append(one)
            yield "token", {**fields, **_row(request, b)}
    for b, ids in enumerate(picked):
        text = pipeline.reader.text(
            [i for i in ids if i not in pipeline.workflow.stop], skip_special=True
        )
        if text is not None:
            yield "text", {"text": text.strip(), **_row(request, b)}


def _row(request: Request, b: int) -> dict[str, int]:
    return {"row": b} if request.rows > 1 else {}
