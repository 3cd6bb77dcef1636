"""One file a subcommand: parse, call `lib`, print records."""

COMMANDS: tuple[str, ...] = (
    "inspect-headers",
    "census",
    "convert-fp8",
    "convert-experts",
    "export-component",
    "run-prefill",
    "sample-image",
    "verify-package",
    "doctor",
    "patchgen",
    "completion",
)
"""The subcommands, in the order in which a pipeline uses them."""

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "patchgen": (
        "List, generate and check patched modelling files, and see what they rest on.",
        ("contract", "check", "list", "generate"),
    ),
}
"""Commands that have commands of their own: what each is for, and the names of those. `list` of
`patchgen` is the function `patchgen_list` in `patchgen_list.py`."""
