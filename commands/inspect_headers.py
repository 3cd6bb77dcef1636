"""inspect-headers: what a checkpoint holds, read from its headers alone.

Reads: safetensors files, index, config; GGUF files. Writes, one stream a SOURCE: `begin`, `gguf`,
`config`, `file`, `tensor`, `metadata`, `problem`, `end` (with `bytes_read` and `requests`).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ..console import console
from ..options import Exclude, Include, MaxHeader, Revision


def inspect_headers(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files, folders, demo:shapes, OWNER/NAME[@REV] on the Hub, or addresses.",
            show_default=False,
        ),
    ],
    include: Include = None,
    exclude: Exclude = None,
    full: Annotated[
        bool, typer.Option("--full", help="Long lists of metadata and config in full.")
    ] = False,
    max_header: MaxHeader = 100_000_000,
    revision: Revision = None,
    no_index: Annotated[
        bool,
        typer.Option("--no-index", help="List the files of the folder, whatever its index says."),
    ] = False,
) -> None:
    """List every tensor of a checkpoint from its headers, without reading the weights.

    A malformed file still lists what is sound; what is wrong with it follows as problems, and the
    exit code is 3. A tensor that the index promises and its file lacks, or that two files hold,
    gives 1.
    """
    from ..lib import inspection
    from ..lib.checkpoint.source import local_wins, open_checkpoint
    from ..lib.checkpoint.strict_json import no_collector
    from ..lib.checkpoint.tensor import exit_code, first_of
    from ..lib.families import gguf
    from ..lib.suggestions import unmatched

    code = 0
    patterns = {"--include": include, "--exclude": exclude}
    for source in sources:
        with (
            no_collector(),
            console.stream(main="tensor", source=source, hold=True) as stream,
        ):
            if (note := local_wins(source)) is not None:
                console.note(note)
            checkpoint = open_checkpoint(
                source,
                revision=revision,
                max_header=max_header,
                use_index=not no_index,
                full=full,
                beside=True,
            )
            stream.begin(format=checkpoint.format, revision=checkpoint.revision)
            for note in unmatched(patterns, partial(inspection.names, checkpoint)):
                console.note(note)
            records, found = gguf.described(checkpoint.gguf, checkpoint.tensors.values())
            checkpoint.problems += found
            stream.write_all("gguf", records)
            inspection.write_records(
                stream, checkpoint, include=include, exclude=exclude, full=full
            )
            stream.end(bytes_read=checkpoint.bytes_read, requests=checkpoint.requests)
            problems = checkpoint.problems
            del checkpoint  # or the collector walks all of it in vain as soon as it is back
        warning = first_of(problems, "warning", source)
        if warning is not None:
            console.note(f"warning: {warning}")
        error = first_of(problems, "error", source)
        if error is not None:
            console.say(error)
        code = max(code, exit_code(problems))
    if code:
        raise typer.Exit(code)
