"""One pass over a traced network that bounds how fast each of its nodes can move with the input."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from cameraready.coverage import NotCovered
from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.layers import CONVOLUTIONS, LowRank, weight_of
from cameraready.methods.compress_robust.operator_norms import channel_norm, norm_bound
from cameraready.methods.compress_robust.slopes import FUNCTION_SLOPES, METHOD_SLOPES, POOL_FUNCTIONS, slope_of

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
MEAN_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, *[getattr(nn, f"AdaptiveAvgPool{d}d") for d in (1, 2, 3)])
SUMS = (operator.add, operator.iadd, torch.add, operator.sub, operator.isub, torch.sub)
SCALE = {operator.mul: 1, operator.imul: 1, torch.mul: 1, operator.truediv: -1, operator.itruediv: -1, torch.div: -1}
ARITHMETIC_METHODS = {
    "add": operator.add,
    "add_": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


class Tracer(fx.Tracer):
    def __init__(self, leaves: set[str]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return name in self.leaves or isinstance(module, LowRank) or super().is_leaf_module(module, name)


class Walk:
    """One pass over the graph; ``at`` holds each node's bound, and nodes without one do not depend on the input."""

    def __init__(self, model: nn.Module, example: Tensor, p: Norm, known: dict[str, float]) -> None:
        self.p, self.known = p, known
        try:
            graph = Tracer(set(known)).trace(model)
            self.traced = fx.GraphModule(model, graph)
            with torch.no_grad():
                ShapeProp(self.traced).propagate(example)
                noise = torch.randn(example.shape, generator=torch.Generator().manual_seed(0)).to(example)
                same = torch.allclose(self.traced(noise), model(noise), rtol=1e-3, atol=1e-5)
        except Exception as error:  # whatever a user's forward may raise under tracing
            raise NotCovered(f"the model cannot be traced ({type(error).__name__}: {str(error)[:200]})") from error
        if not same:
            raise NotCovered(
                "the traced graph computes something else; does forward draw random numbers or change tensors in place?"
            )
        self.batch = len(example)
        self.modules = dict(self.traced.named_modules())
        self.at: dict[fx.Node, float] = {}
        self.factors: dict[fx.Node, tuple[str, float]] = {}

    def output(self) -> tuple[float, float, nn.Linear | LowRank | None]:
        """The bound of the logits, that of the last layer's input, and that layer where it is a Linear."""
        for node in self.traced.graph.nodes:
            value = self._constant(node)
            if value is not None:
                if node.meta["tensor_meta"].shape[:1] != (self.batch,):
                    raise NotCovered(f"{node.name!r} moves or mixes the examples of a batch")
                self.at[node] = value
        [output] = [node for node in self.traced.graph.nodes if node.op == "output"]
        final = output.args[0]
        if not isinstance(final, fx.Node) or final not in self.at:
            raise NotCovered("the model's output is not one tensor that depends on its input")
        last = self.modules.get(final.target) if final.op == "call_module" else None
        last = last if isinstance(last, (nn.Linear, LowRank)) and weight_of(last).ndim == 2 else None
        last = None if final.target in self.known else last
        before = self.at[final.args[0]] if last is not None else self.at[final]
        return self.at[final], before, last

    def _constant(self, node: fx.Node) -> float | None:
        """The bound of one node; None for what does not depend on the input or is not a tensor."""
        if node.op == "placeholder":
            return 1.0 if not self.at else None
        sources = [source for source in node.all_input_nodes if source in self.at]
        if node.op in ("get_attr", "output") or not sources:
            return None
        if _changes_in_place(node) and any(node < user for user in node.args[0].users):
            raise NotCovered(f"{node.name!r} changes a tensor in place that is used again")
        if node.op == "call_module":
            return self._module(node, sources[0])
        if node.op == "call_method":
            return self._method(node, sources)
        return self._function(node, sources)

    def _module(self, node: fx.Node, source: fx.Node) -> float:
        module, name = self.modules[node.target], str(node.target)
        if name in self.known:
            return self._times(node, source, name, self.known[name])
        if weight_of(module) is not None:
            if "quantized" in type(module).__module__:
                raise NotCovered(f"{name!r} rounds its input (quantised)")
            return self._times(node, source, name, norm_bound(module, self.p, _shape(source)))
        if isinstance(module, BATCH_NORMS):
            return self._batch_norm(node, source, module, name)
        return self.at[source] * self._slope(module, name, source)

    def _slope(self, module: nn.Module, name: str, source: fx.Node) -> float:
        slope = slope_of(module)
        if slope is not None:
            return slope
        if isinstance(module, MAX_POOLS):
            return self._max_pool(module.kernel_size, module.stride, module.dilation, source)
        if isinstance(module, MEAN_POOLS):
            return channel_norm(module, _shape(source)[1:], self.p)
        raise NotCovered(f"no Lipschitz constant is known for {type(module).__name__} {name!r}; name it in `constants`")

    def _batch_norm(self, node: fx.Node, source: fx.Node, module: nn.Module, name: str) -> float:
        if module.running_var is None:
            raise NotCovered(f"{name!r} normalises by the batch's own statistics")
        producer = self.modules.get(source.target) if source.op == "call_module" else None
        alone = len(source.users) == 1 and producer is not None and source.target not in self.known
        if (
            alone
            and isinstance(producer, (*CONVOLUTIONS, nn.Linear))
            and weight_of(producer).ndim == len(_shape(source)) + 1
        ):
            fuse = fuse_linear_bn_eval if isinstance(producer, nn.Linear) else fuse_conv_bn_eval
            before = source.args[0]
            del self.factors[source]
            return self._times(
                node, before, str(source.target), norm_bound(fuse(producer, module), self.p, _shape(before))
            )
        scale = (module.running_var.double() + module.eps).rsqrt()
        if module.weight is not None:
            scale = scale * module.weight.detach().double()
        return self._times(node, source, name, float(scale.abs().max()))

    def _method(self, node: fx.Node, sources: list[fx.Node]) -> float | None:
        if node.target in ("size", "dim"):
            return None
        if node.target in METHOD_SLOPES and len(sources) == 1:
            return self.at[sources[0]] * METHOD_SLOPES[node.target]
        if node.target == "mean":
            return self._mean(node, sources[0])
        if node.target in ARITHMETIC_METHODS:
            return self._arithmetic(node, ARITHMETIC_METHODS[node.target])
        raise NotCovered(f"no Lipschitz constant is known for the tensor method {node.target!r}")

    def _function(self, node: fx.Node, sources: list[fx.Node]) -> float | None:
        function = node.target
        if function is getattr:  # x.shape
            return None
        if function in FUNCTION_SLOPES and len(sources) == 1:
            return self.at[sources[0]] * FUNCTION_SLOPES[function]
        if function is functional.dropout and not node.kwargs.get("training", True):
            return self.at[sources[0]]
        if function is functional.leaky_relu:
            slope = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
            return self.at[sources[0]] * max(1.0, abs(slope))
        if function in (*SUMS, *SCALE):
            return self._arithmetic(node, function)
        if function in (torch.cat, torch.concat, torch.stack):
            bounds = [self.at[source] for source in node.args[0] if source in self.at]
            return max(bounds) if self.p == "inf" else math.hypot(*bounds)
        if function is torch.mean:
            return self._mean(node, sources[0])
        if function in POOL_FUNCTIONS:
            pool = POOL_FUNCTIONS[function](*node.args[1:], **node.kwargs)
            return self.at[sources[0]] * self._slope(pool, node.name, sources[0])
        raise NotCovered(f"no Lipschitz constant is known for the function {getattr(function, '__name__', function)}")

    def _arithmetic(self, node: fx.Node, function: Callable[..., Any]) -> float:
        if node.kwargs:
            raise NotCovered(f"{node.format_node()} has keyword arguments")
        moving = [arg for arg in node.args if isinstance(arg, fx.Node) and arg in self.at]
        if function not in SCALE:
            if any(_shape(arg) != _shape(node) for arg in moving):
                raise NotCovered("a sum that broadcasts one of its terms")
            return sum(self.at[arg] for arg in moving)
        if len(moving) > 1 or (SCALE[function] < 0 and node.args[0] not in moving):
            raise NotCovered("a product or quotient of two tensors that both depend on the input")
        other = node.args[1] if node.args[0] is moving[0] else node.args[0]
        value = self._value(other)
        size = value.abs().max() if SCALE[function] > 0 else (1 / value.abs()).max()
        if _shape(moving[0]) != _shape(node):
            raise NotCovered("a product that broadcasts the tensor that depends on the input")
        return self.at[moving[0]] * float(size)

    def _value(self, other: object) -> Tensor:
        if isinstance(other, fx.Node):
            if other.op != "get_attr":
                raise NotCovered("a factor that is computed while the model runs")
            tensor: Any = self.traced
            for part in str(other.target).split("."):
                tensor = getattr(tensor, part)
            return tensor.detach().double()
        return torch.as_tensor(other, dtype=torch.float64)

    def _mean(self, node: fx.Node, source: fx.Node) -> float:
        """An average of n values has norm 1 in l_inf and 1 / sqrt(n) in l_2."""
        shrink = math.prod(_shape(source)) / max(math.prod(_shape(node)), 1)
        return self.at[source] * (1.0 if self.p == "inf" else shrink**-0.5)

    def _max_pool(self, kernel: Any, stride: Any, dilation: Any, source: fx.Node) -> float:
        """1 in l_inf; in l_2 the root of the number of windows that can hold one pixel."""
        if self.p == "inf":
            return 1.0
        dims = len(_shape(source)) - 1
        windows = 1
        for k, s, d in zip(_tuple(kernel, dims), _tuple(stride or kernel, dims), _tuple(dilation, dims), strict=True):
            windows *= math.ceil(k / (s // math.gcd(s, d)))
        return math.sqrt(windows)

    def _times(self, node: fx.Node, source: fx.Node, name: str, factor: float) -> float:
        self.factors[node] = (name, factor)
        return self.at[source] * factor


def _changes_in_place(node: fx.Node) -> bool:
    """Sums and products only: an activation in place leaves a tensor whose bound still holds."""
    return node.target in (operator.iadd, operator.isub, operator.imul, operator.itruediv, "add_")


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims


def _shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of what a node computes, without the batch."""
    return tuple(node.meta["tensor_meta"].shape[1:])
