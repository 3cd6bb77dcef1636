"""The types of GGUF: of values in its metadata, and of tensors (ggml's, with their blocks).

Numbers and block sizes are those of ggml's `enum ggml_type` and of its quantisation table; the
tests compare them with the `gguf` package.
"""

from __future__ import annotations

from typing import NamedTuple


class ValueType(NamedTuple):
    """A type of metadata values of fixed size.

    Attributes:
        name: as the `gguf` package spells it.
        code: of one value, for `struct`.
        nbytes: of one value.
    """

    name: str
    code: str
    nbytes: int


VALUES: dict[int, ValueType] = {
    0: ValueType("UINT8", "B", 1),
    1: ValueType("INT8", "b", 1),
    2: ValueType("UINT16", "H", 2),
    3: ValueType("INT16", "h", 2),
    4: ValueType("UINT32", "I", 4),
    5: ValueType("INT32", "i", 4),
    6: ValueType("FLOAT32", "f", 4),
    7: ValueType("BOOL", "B", 1),
    10: ValueType("UINT64", "Q", 8),
    11: ValueType("INT64", "q", 8),
    12: ValueType("FLOAT64", "d", 8),
}
BOOL, STRING, ARRAY = 7, 8, 9
VALUE_NAMES = {**{n: t.name for n, t in VALUES.items()}, STRING: "STRING", ARRAY: "ARRAY"}


class TensorType(NamedTuple):
    """A type of tensors: elements are stored in blocks along the innermost dimension.

    Attributes:
        name: as in ggml.
        elements, nbytes: of one block.
    """

    name: str
    elements: int
    nbytes: int

    @property
    def dtype(self) -> str:
        """Spelling in records: that of safetensors where it has the type, else `GGUF:Q8_0`."""
        return self.name if self.name in PLAIN else f"GGUF:{self.name}"


PLAIN = frozenset(("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"))
"""Types that are no blocks; safetensors spells them the same."""

TENSORS: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}
REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers that ggml has given up: files with them need a ggml of their time."""


def unknown_type(number: int) -> str:
    """What is said of a tensor's type that is not in TENSORS."""
    if number in REMOVED:
        return f"found {number} ({REMOVED[number]}, removed from ggml), expected one that ggml has"
    return f"found {number}, expected one that this version knows (0 to {max(TENSORS)})"
