"""What exit codes mean, in the words of docs/exit-codes.md; the man pages have the same."""

from __future__ import annotations

MEANINGS = {
    0: "done; all checks held",
    1: "a check ran to its end and found a difference",
    2: "wrong use of the command line",
    3: "malformed or truncated file or stream; a value that is not finite",
    4: "no such file, folder, repository, tensor or component",
    5: "well formed, but ntool does not do it",
    6: "environment: device, Python package, memory, disk, permission, network, closed standard "
    "input or output",
    70: "a bug in ntool; the traceback is shown",
    129: "ended by SIGHUP (the terminal has gone), after temporary files were removed",
    130: "interrupted (Ctrl-C)",
    141: "the reader of standard output went away (`ntool ... | head`); nothing is said",
    143: "ended by SIGTERM, after temporary files were removed",
}

OF_COMMAND = {
    "inspect-headers": {
        0: "sound",
        1: "a tensor that the index promises is missing, two files hold one name, experts are "
        "incomplete, or a GGUF model breaks the contract of its architecture",
        2: "wrong use, or a folder with several models or indexes",
        3: "a file cannot be read as its format, or a part of a split set is missing",
        4: "no such source",
        5: "a form of source that is not read",
        6: "a remote source that cannot be reached, a driver that is not installed",
    },
    "census": {
        0: "counted, whole, and equal to what it was compared with",
        1: "something is missing, doubled, or differs from `--expect` or `--against`; experts, "
        "scales or skip list are not whole; a tensor in two files with `--repair-index`",
        2: "wrong use, a file to write that exists, without `--force`, or one that is read",
        3: "malformed file or stream; with findings of both kinds 3 wins",
        4: "no such source",
        5: "not supported, such as `--repair-index` of a GGUF model",
        6: "matplotlib is not installed, a file cannot be written, a source cannot be reached",
    },
    "convert-fp8": {
        0: "converted, or planned",
        1: "`--verify` found a difference",
        2: "wrong use; the output exists, is or holds the source, or is being made by another "
        "conversion; parts are missing",
        3: "a checkpoint that is refused or malformed, a value beyond the range, a source that "
        "changed meanwhile",
        4: "no such source; nothing to merge",
        5: "not a safetensors checkpoint, a quantisation that is not FP8",
        6: "no space, no permission",
    },
    "convert-experts": {
        0: "converted, or planned",
        1: "the experts are not whole, a conversion is refused, or `--verify` found a difference",
        2: "wrong use; an output that exists, or is being made by another conversion",
        3: "malformed file",
        4: "no such source, or no experts in it",
        5: "not a safetensors checkpoint",
        6: "disk full or not writable",
    },
    "export-component": {
        0: "exported, or planned",
        2: "no output, an output that is the source, one that exists without `--force`, or an "
        "unknown dtype, provider or form of data",
        3: "malformed checkpoint, a shape that contradicts the config, a value beyond the range of "
        "the dtype",
        4: "no such source, component or tensor",
        5: "a model, variant or dtype that is not exported, weights that cannot be linked",
        6: "no space, no permission, a file system without such links",
    },
    "run-prefill": {
        0: "ran",
        2: "none or several of the prompt options, options that the task does not have, pictures "
        "and placeholders that differ in number, an output that is also an input",
        3: "malformed picture, package, text, conversation or latent",
        4: "no such file, no such component in the package, no tokenizer for a text",
        5: "not supported, video",
        6: "no such device, no kernel, no memory, an output that cannot be written",
    },
    "sample-image": {
        0: "drawn, or planned",
        2: "contradicting options, a size that is no multiple of 32, an output that is also an "
        "input, a number out of range",
        3: "malformed package, prefix, picture, latent or prompts; a value that is not finite",
        4: "no such file or component",
        5: "not supported",
        6: "no such device, no kernel, no memory, no space",
    },
    "verify-package": {
        0: "nothing failed",
        1: "a check failed, or nothing was checked",
        2: "wrong use, or no check with that id",
        3: "a file that cannot be read as its format (package.json, a golden, a picture)",
        4: "no such package, checkpoint, list of sums, golden or picture, "
        "or no folder for an output",
        5: "a golden of a form that is not run again",
        6: "no such device, or a report that cannot be written",
    },
    "doctor": {
        0: "nothing that ntool needs is missing",
        2: "wrong use",
        6: "a package that ntool needs is missing",
    },
    "patchgen": {
        0: "done, clean, or nothing to do",
        1: "findings of level error, drift",
        2: "wrong use, wrong or missing settings",
        3: "a config or source that cannot be found, read or loaded; the others are still worked "
        "on, and with findings of both kinds 3 wins",
        6: "libcst is not installed, the formatter fails, or a file cannot be written",
    },
    "completion": {
        0: "printed",
        2: "another shell",
    },
}
"""Command -> code -> when; the pages of the commands have these tables, and so have the man pages.
What may end every command (70 and above) is in MEANINGS alone."""
