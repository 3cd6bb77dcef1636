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
    "completion",
)
"""The subcommands, in the order in which a pipeline uses them."""
