"""ONNX element types: number, name, width, spelling in records.

Source: onnx.proto, TensorProto.DataType.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class ElementType(NamedTuple):
    """One element type.

    Attributes:
        name: as in onnx.proto.
        bits: of one element; None for strings.
        dtype: safetensors spelling; `ONNX:` and the name where that format has none.
        field: of TensorProto that holds values which are not raw.
    """

    name: str
    bits: int | None
    dtype: str
    field: str


def _type(name: str, bits: int | None, dtype: str = "", field: str = "int32_data") -> ElementType:
    return ElementType(name, bits, dtype or f"ONNX:{name}", field)


TYPES: dict[int, ElementType] = {
    1: _type("FLOAT", 32, "F32", "float_data"),
    2: _type("UINT8", 8, "U8"),
    3: _type("INT8", 8, "I8"),
    4: _type("UINT16", 16, "U16"),
    5: _type("INT16", 16, "I16"),
    6: _type("INT32", 32, "I32"),
    7: _type("INT64", 64, "I64", "int64_data"),
    8: _type("STRING", None, field="string_data"),
    9: _type("BOOL", 8, "BOOL"),
    10: _type("FLOAT16", 16, "F16"),
    11: _type("DOUBLE", 64, "F64", "double_data"),
    12: _type("UINT32", 32, "U32", "uint64_data"),
    13: _type("UINT64", 64, "U64", "uint64_data"),
    14: _type("COMPLEX64", 64, "C64", "float_data"),
    15: _type("COMPLEX128", 128, field="double_data"),
    16: _type("BFLOAT16", 16, "BF16"),
    17: _type("FLOAT8E4M3FN", 8, "F8_E4M3"),
    18: _type("FLOAT8E4M3FNUZ", 8, "F8_E4M3FNUZ"),
    19: _type("FLOAT8E5M2", 8, "F8_E5M2"),
    20: _type("FLOAT8E5M2FNUZ", 8, "F8_E5M2FNUZ"),
    21: _type("UINT4", 4),
    22: _type("INT4", 4),
    23: _type("FLOAT4E2M1", 4, "F4"),
    24: _type("FLOAT8E8M0", 8, "F8_E8M0"),
    25: _type("UINT2", 2),
    26: _type("INT2", 2),
    27: _type("FLOAT6E2M3", 6, "F6_E2M3"),
    28: _type("FLOAT6E3M2", 6, "F6_E3M2"),
}
"""By number; 0, UNDEFINED, is none."""
FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
"""Fields of TensorProto that hold values which are not raw."""


def bits(data_type: int) -> int | None:
    """Bits of one element; None for strings and unknown types."""
    known = TYPES.get(data_type)
    return known.bits if known else None


def nbytes(tensor: Any) -> int | None:
    """Bytes of a sound TensorProto as type and shape say; None where they say nothing."""
    width = bits(tensor.data_type)
    return None if width is None else (math.prod(tensor.dims) * width + 7) // 8


def type_name(data_type: int) -> str:
    """`float32`, `int64`, ...: the NumPy-like name of an element type, its number if unknown."""
    known = TYPES.get(data_type)
    name = known.name.lower() if known else str(data_type)
    return {"float": "float32", "double": "float64"}.get(name, name)


def dtype(data_type: int) -> str:
    """How records spell an element type; `ONNX:` and the number if it is unknown."""
    known = TYPES.get(data_type)
    return known.dtype if known else f"ONNX:{data_type}"
