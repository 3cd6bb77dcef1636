"""External data of a graph: which bytes of which file each parameter is."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, TensorProto

from ..checkpoint.writer import Placed


def point_at(model: ModelProto, placed: Mapping[str, Placed]) -> None:
    """Let every external initializer of the main graph point at its bytes, by its name."""
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        at = placed[tensor.name]
        del tensor.external_data[:]
        for key, value in (("location", at.file), ("offset", at.offset), ("length", at.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
