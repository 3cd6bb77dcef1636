"""A typed builder of ONNX graphs: every node is checked and its types inferred as it is added.

A wrong graph therefore fails at the line that wrote it, with its layer path, and not in a checker
run over thousands of nodes afterwards. Scopes spell checkpoint names, so parameters need no table
of renames.

    g = Graph("decoder", weights)
    x = g.input("x", FLOAT, ["batch", 64])
    y = g.at("layers.3").linear(x, "mlp.gate_proj", 96)     # parameter
    layers.3.mlp.gate_proj.weight g.output("y", y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper, numpy_helper, shape_inference

OPSET = 23
"""RMSNormalization, RotaryEmbedding and blocked DequantizeLinear are standard from here on."""
IR_VERSION = 11
FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL

Dim = int | str | None
Shape = tuple[Dim, ...]
NARROW = (FLOAT16, BFLOAT16)
MOVES = frozenset((
    *("Cast", "Concat", "ConstantOfShape", "DequantizeLinear", "Gather", "GatherElements"),
    *("GatherND", "Identity", "If", "Loop", "Reshape", "Scan", "ScatterElements", "ScatterND"),
    *("Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
))  # fmt: skip
"""Operators that do not compute with their values, and have kernels for every type."""


@dataclass(frozen=True)
class Value:
    """A tensor in the graph: its name, ONNX element type, and shape (None: a dimension not
    known)."""

    name: str
    dtype: int
    shape: Shape


class GraphError(Exception):
    """The graph that is being written is wrong: a bug in the model code, never in the input."""


class WeightSource(Protocol):
    """Where parameters come from; `claim` is told each name, shape and element type that a graph
    uses."""

    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        """Take a parameter into account; returns the location of its bytes.

        Raises:
            NtoolError: the source has nothing that can be this parameter.
        """


class Graph:
    """A graph (or a body of If, Loop, Scan) under construction, seen from one scope.

    `at(scope)` gives the same graph with a longer scope. Attribute access adds a node:
    `g.MatMul(a, b)`, `g.Split(x, axis=-1, num_outputs=2, outputs=2)`. Inputs may be Values, None
    (an optional input left out), NumPy arrays, integers or lists of integers (int64 constants) and
    floats (constants of the first Value's element type).
    """

    def __init__(
        self,
        name: str,
        weights: WeightSource | None = None,
        *,
        opset: int = OPSET,
        rounded: bool = False,
    ) -> None:
        """An empty graph.

        Args:
            rounded: arithmetic of 16-bit values is written out as float32 arithmetic whose results
                are rounded to 16 bits, operator by operator. A runtime without 16-bit kernels then
                computes what one with them does; left to itself, ONNX Runtime's CPU provider keeps
                float32 between operators, and has no bfloat16 at all.
        """
        self.name, self.opset, self.scope = name, opset, ""
        self.rounded = rounded
        self.weights = weights
        self.domains: set[str] = set()
        self.root: Graph = self
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.values: dict[str, Value] = {}
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._constants: dict[tuple[int, tuple[int, ...], bytes], Value] = {}
        self._names: dict[str, int] = {}

    def at(self, scope: str) -> Graph:
        """The same graph, with `scope.` in front of every name written through it."""
        view = object.__new__(Graph)
        view.__dict__ = dict(self.__dict__)
        view.scope = f"{self.scope}{scope}."
        return view

    def body(self, name: str) -> Graph:
        """An empty graph for an attribute of If, Loop or Scan. It may use every value of this
        graph."""
        child = Graph(name, self.weights, opset=self.opset, rounded=self.rounded)
        child.root, child.scope, child._names = self.root, self.scope, self._names
        child._constants = {}
        return child

    def input(self, name: str, dtype: int, shape: Sequence[Dim]) -> Value:
        """A graph input."""
        return self._remember(Value(name, dtype, tuple(shape)), self.inputs)

    def output(self, name: str, value: Value, shape: Sequence[Dim] | None = None) -> Value:
        """Give a value its public name as a graph output; `shape` may name dimensions left open."""
        named = self.op("Identity", value, name=name, shape=shape)
        self.outputs.append(named)
        return named

    def parameter(self, name: str, shape: Sequence[int], dtype: int = FLOAT) -> Value:
        """The checkpoint tensor `scope + name`, whose shape must be `shape`."""
        full, root = self.scope + name, self.root
        if full in root.initializers:
            return root.values[full]
        if root.weights is None:
            raise GraphError(f"{self.name}: parameter '{full}' but the graph has no weights")
        proto = TensorProto(name=full, data_type=dtype, dims=list(shape))
        proto.data_location = TensorProto.EXTERNAL
        location = root.weights.claim(full, tuple(shape), dtype)
        proto.external_data.add(key="location", value=location)
        root.initializers[full] = proto
        return root._remember(Value(full, dtype, tuple(shape)))

    def constant(self, array: Any, origin: str = "constant of the graph") -> Value:
        """A small array stored in the graph itself; `origin` says where its numbers come from."""
        array = np.asarray(array)
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
        key = (tensor.data_type, array.shape, tensor.raw_data)
        root = self.root
        if key not in root._constants:
            tensor.name = root._unique("const")
            entry = tensor.metadata_props.add()
            entry.key, entry.value = "ntool.origin", origin
            root.initializers[tensor.name] = tensor
            root._constants[key] = root._remember(
                Value(tensor.name, tensor.data_type, tuple(array.shape))
            )
        return root._constants[key]

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_") or not op_type[0].isupper():
            raise AttributeError(op_type)
        return lambda *inputs, **attributes: self.op(op_type, *inputs, **attributes)

    def op(
        self,
        op_type: str,
        *inputs: Any,
        outputs: int = 1,
        name: str | None = None,
        shape: Sequence[Dim] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Add a node; returns its Value, or a tuple of Values when `outputs` > 1.

        Args:
            name: name of the (first) output; by default made from scope and operator.
            shape: what the author knows of the output's shape. It fills in dimensions that
                inference leaves open and must agree with those it finds.
        Raises:
            GraphError: unknown operator or attribute, wrong types, a rank or dimension that
                contradicts `shape`.
        """
        path = self.scope + op_type
        values = [self._value(v, inputs, path) for v in inputs]
        if self.rounded and op_type not in MOVES:
            narrow = next((v.dtype for v in values if v and v.dtype in NARROW), None)
            if narrow is not None:
                given = (op_type, values, narrow, outputs, name, shape, domain, attributes)
                return self._rounded(*given)
        names = [name or self._unique(path)]
        names += [self._unique(f"{path}.{i}") for i in range(1, outputs)]
        bodies = {k: v for k, v in attributes.items() if isinstance(v, Graph)}
        plain = {k: v.proto() if isinstance(v, Graph) else v for k, v in attributes.items()}
        node = helper.make_node(
            op_type, [v.name if v else "" for v in values], names, names[0], domain=domain, **plain
        )
        if bodies:
            types = _body_types(op_type, values, bodies, attributes)
        elif domain:  # no schema of it here: the first input gives the type, the author the shape
            types = [(v.dtype, None) for v in values[:1] if v]
            self.root.domains.add(domain)
        else:
            types = self._infer(node, [v for v in values if v], path)
        self.nodes.append(node)
        result = []
        for i, n in enumerate(names):
            dtype, found = types[i] if i < len(types) else (0, None)
            if not dtype:
                raise GraphError(f"{self.name}: {path}: output {i} has no inferred type")
            merged = _merge(found, shape if i == 0 else None, f"{self.name}: {path}")
            result.append(self._remember(Value(n, dtype, merged)))
        return result[0] if outputs == 1 else tuple(result)

    def _rounded(
        self,
        op_type: str,
        values: Sequence[Value | None],
        narrow: int,
        outputs: int,
        name: str | None,
        shape: Sequence[Dim] | None,
        domain: str,
        attributes: dict[str, Any],
    ) -> Any:
        """An operator on 16-bit values in float32, its float32 results rounded to 16 bits."""
        wide = [self.op("Cast", v, to=FLOAT) if v and v.dtype in NARROW else v for v in values]
        found = self.op(op_type, *wide, outputs=outputs, shape=shape, domain=domain, **attributes)
        each = found if outputs > 1 else (found,)
        back = [self.op("Cast", v, to=narrow) if v.dtype == FLOAT else v for v in each]
        if name:
            back[0] = self.op("Identity", back[0], name=name)
        return tuple(back) if outputs > 1 else back[0]

    def linear(self, x: Value, name: str, out: int, bias: bool = False) -> Value:
        """x W^T + b on a 2-D x [N, in] -> [N, out], as Gemm on the checkpoint's own [out, in]
        matrix.

        No transposed copy is made, on disk or in memory (docs/architecture.md, "Linear layers").
        """
        inner = x.shape[-1]
        if len(x.shape) != 2 or not isinstance(inner, int):
            raise GraphError(
                f"{self.name}: {self.scope}{name}: linear wants [N, in], got {x.shape}"
            )
        weights = [self.parameter(f"{name}.weight", [out, inner], x.dtype)]
        if bias:
            weights.append(self.parameter(f"{name}.bias", [out], x.dtype))
        return self.at(name).op("Gemm", x, *weights, transB=1)  # [N, out]

    def proto(self) -> onnx.GraphProto:
        """The graph with the inferred type of every value."""
        outer = {v.name for v in (*self.inputs, *self.outputs)} | set(self.initializers)
        return helper.make_graph(
            self.nodes,
            self.name,
            [_info(v) for v in self.inputs],
            [_info(v) for v in self.outputs],
            initializer=list(self.initializers.values()),
            value_info=[_info(v) for v in self.values.values() if v.name not in outer],
        )

    def model(self, metadata: dict[str, str] | None = None) -> onnx.ModelProto:
        """The finished model; `metadata` becomes its `metadata_props`."""
        model = helper.make_model(
            self.proto(),
            opset_imports=[
                helper.make_opsetid("", self.opset),
                *(helper.make_opsetid(domain, 1) for domain in sorted(self.domains)),
            ],
            ir_version=IR_VERSION,
            producer_name="ntool",
        )
        if metadata:
            helper.set_model_props(model, metadata)
        return model

    def _infer(self, node: onnx.NodeProto, values: list[Value], path: str) -> list[tuple[int, Any]]:
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, node.domain)
        except onnx.defs.SchemaError as e:
            raise GraphError(f"{self.name}: {path}: no operator in opset {self.opset}") from e
        known = schema.attributes
        for attribute in node.attribute:
            if attribute.name not in known:
                raise GraphError(f"{self.name}: {path}: no attribute '{attribute.name}'")
        data = {
            v.name: self.root.initializers[v.name]
            for v in values
            if v.name in self.root.initializers and self.root.initializers[v.name].raw_data
        }
        try:
            onnx.checker.check_node(node, self.root._context())
            types = shape_inference.infer_node_outputs(
                schema,
                node,
                {v.name: _type(v) for v in values},
                data,
                opset_imports=[helper.make_opsetid("", self.opset)],
                ir_version=IR_VERSION,
            )
        except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as e:
            shapes = ", ".join(f"{v.name} {list(v.shape)}" for v in values)
            raise GraphError(f"{self.name}: {path}: {str(e).strip()} (inputs: {shapes})") from e
        return [_found(types[n]) if n in types else (0, None) for n in node.output]

    def _context(self) -> Any:
        if not hasattr(self, "_checker"):
            context = onnx.checker.C.CheckerContext()
            context.ir_version = IR_VERSION
            context.opset_imports = {"": self.opset, "com.microsoft": 1}
            self.__dict__["_checker"] = context
        return self.__dict__["_checker"]

    def _value(self, value: Any, inputs: Sequence[Any], path: str) -> Value | None:
        if value is None or isinstance(value, Value):
            return value
        if isinstance(value, float):
            first = next((v for v in inputs if isinstance(v, Value)), None)
            if first is None:
                raise GraphError(f"{self.name}: {path}: a float constant needs a Value beside it")
            return self.constant(np.asarray(value, helper.tensor_dtype_to_np_dtype(first.dtype)))
        if isinstance(value, bool | str):
            raise GraphError(f"{self.name}: {path}: cannot take {value!r} as an input")
        if isinstance(value, int | list | tuple):
            return self.constant(np.asarray(value, np.int64))
        return self.constant(value)

    def _unique(self, path: str) -> str:
        count = self._names.get(path, 0)
        self._names[path] = count + 1
        return f"{path}_{count}" if count or path == "const" else path

    def _remember(self, value: Value, also: list[Value] | None = None) -> Value:
        if value.name in self.values:
            raise GraphError(f"{self.name}: two values named '{value.name}'")
        self.values[value.name] = value
        if also is not None:
            also.append(value)
        return value


def _type(value: Value) -> TypeProto:
    return helper.make_tensor_type_proto(value.dtype, list(value.shape))


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_value_info(value.name, _type(value))


def _found(proto: TypeProto) -> tuple[int, Shape | None]:
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        dims.append(d.dim_value if d.HasField("dim_value") else d.dim_param or None)
    return tensor.elem_type, tuple(dims)


def _merge(found: Shape | None, declared: Sequence[Dim] | None, path: str) -> Shape:
    if found is None and declared is None:
        raise GraphError(f"{path}: inference gives no rank; declare shape=[...]")
    if declared is None or found is None:
        return tuple(declared if found is None else found)  # type: ignore[arg-type]
    agree = len(found) == len(declared) and all(
        f == d or f is None or not isinstance(d, int) for f, d in zip(found, declared, strict=True)
    )
    if not agree:
        raise GraphError(f"{path}: inferred shape {list(found)}, declared {list(declared)}")
    # a name serves a dimension that inference leaves open or names itself; a number that it finds
    # stays
    return tuple(
        f if isinstance(f, int) or d is None else d for f, d in zip(found, declared, strict=True)
    )


def _body_types(
    op_type: str,
    values: Sequence[Value | None],
    bodies: dict[str, Graph],
    attributes: dict[str, Any],
) -> list[tuple[int, Shape | None]]:
    """Output types of If, Loop and Scan from their bodies (onnx infers these only for whole
    models)."""
    if op_type == "If":
        then, other = bodies["then_branch"].outputs, bodies["else_branch"].outputs
        if [(v.dtype, len(v.shape)) for v in then] != [(v.dtype, len(v.shape)) for v in other]:
            raise GraphError(f"If: branches give {then} and {other}")
        return [
            (a.dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))
            for a, b in zip(then, other, strict=True)
        ]
    body = bodies["body"]
    if op_type == "Loop":
        carried = len(body.inputs) - 2
        outs, leading = body.outputs[1:], None
    elif op_type == "Scan":
        carried = len(body.inputs) - attributes["num_scan_inputs"]
        first = values[carried]
        outs, leading = body.outputs, first.shape[0] if first else None
    else:
        raise GraphError(f"{op_type}: takes no graph")
    for given, inner in zip(values[-len(body.inputs) :], body.inputs, strict=False):
        if op_type == "Scan" and given is not None and given.dtype != inner.dtype:
            raise GraphError(f"{op_type}: '{given.name}' feeds '{inner.name}' of another type")
    return [
        (v.dtype, v.shape) if i < carried else (v.dtype, (leading, *v.shape))
        for i, v in enumerate(outs)
    ]
