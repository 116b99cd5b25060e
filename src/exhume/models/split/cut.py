"""A network cut at two points: the client keeps head and tail, the server computes the body.

`cut` takes an `nn.Sequential` apart by the names of its children, and any other module through
`torch.fx`, by the names of its submodules; where they cannot be traced, its children are taken whole. A
point can be cut if nothing but that layer's output crosses it; a residual connection around it, for
instance, would cross as well.
"""

from __future__ import annotations

import copy
import difflib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, fx, nn

from exhume.core.contract import ExhumeError, Key

_HALVES = 24  # times that the numbers of an input are halved
_ROUNDING = 1e-6  # relative: a smaller change is none


@dataclass(frozen=True, eq=False)
class Split:
    """Three modules whose composition is the whole network. They own copies of its weights."""

    head: nn.Module
    body: nn.Module
    tail: nn.Module
    first: str  # name of the last layer of the head
    second: str  # name of the last layer of the body

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.tail(self.body(self.head(inputs)))
        return outputs

    @property
    def whole(self) -> nn.ModuleDict:
        """All three, by name, to be trained, saved or put to rest together."""
        return nn.ModuleDict({"head": self.head, "body": self.body, "tail": self.tail})

    def feature_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what one input sends to the server."""
        return _outline(self.head, input_shape)


def points(module: nn.Module, whole: Sequence[str] = ()) -> tuple[str, ...]:
    """Names at which the module may be cut, in order. whole: containers that are taken as one layer."""
    if isinstance(module, nn.Sequential):
        return tuple(name for name, _ in module.named_children())[:-1]
    graph = _traced(module, whole).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    return tuple(name for name in names[:-1] if not _crossing(graph, name))


def layer_named(module: nn.Module, name: str) -> str:
    """The layer that is meant: the name itself, or the last layer of a container of that name.

    A container that does something behind its last layer (a sum, an activation) is a layer by itself.
    """
    if isinstance(module, nn.Sequential):
        return name
    graph = _traced(module).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    within = [one for one in names if one.startswith(f"{name}.")]
    if name in names or not within or not _ends(graph, name, within[-1]):
        return name
    return within[-1]


def _ends(graph: fx.Graph, container: str, last: str) -> bool:
    """Whether the container's output is that of its last layer."""
    nodes = [node for node in graph.nodes if container in _owners(node)]
    return bool(nodes[-1].op == "call_module" and nodes[-1].target == last)


def _owners(node: fx.Node) -> list[str]:
    """Names of the modules in whose forward a node was made."""
    return [str(name) for name, _ in (node.meta.get("nn_module_stack") or {}).values()]


def cut(module: nn.Module, first: str, second: str) -> Split:
    """Head up to and with `first`, body up to and with `second`, tail the rest."""
    whole = copy.deepcopy(module)
    if isinstance(whole, nn.Sequential):
        parts = _cut_chain(whole, first, second)
    else:
        parts = _cut_graph(_traced(whole, (first, second)), first, second)
    head, body, tail = parts
    return Split(head, body, tail, first, second)


def _cut_chain(chain: nn.Sequential, first: str, second: str) -> list[nn.Module]:
    names = [name for name, _ in chain.named_children()]
    at = [_place(names, name) for name in (first, second)]
    _in_order(at, names, first, second)
    bounds = [0, at[0] + 1, at[1] + 1, len(names)]
    return [
        nn.Sequential(OrderedDict((n, chain.get_submodule(n)) for n in names[start:stop]))
        for start, stop in pairwise(bounds)
    ]


def _in_order(at: Sequence[int], names: Sequence[str], first: str, second: str) -> None:
    if at[0] >= at[1]:
        raise ExhumeError(
            f"split: {second!r} does not come after {first!r}; the body would be empty"
        )
    if at[1] == len(names) - 1:
        raise ExhumeError(f"split: nothing comes after {second!r}; the client would keep no tail")


def _place(names: Sequence[str], name: str) -> int:
    if name in names:
        return names.index(name)
    close = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
    raise ExhumeError(f"split: the network has no layer {name!r}{hint}")


class _Tracer(fx.Tracer):
    """Does not look into containers that are to be taken whole; children: into none of the module's."""

    def __init__(self, whole: Sequence[str], *, children: bool = False) -> None:
        super().__init__()
        self.whole, self.children = whole, children

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.whole:
            return True
        if self.children:
            return not isinstance(m, nn.Sequential | nn.ModuleList)
        return super().is_leaf_module(m, module_qualified_name)


def _traced(
    module: nn.Module, whole: Sequence[str] = (), *, children: bool = False
) -> fx.GraphModule:
    try:
        return fx.GraphModule(module, _Tracer(whole, children=children).trace(module))
    except Exception as error:  # whatever the forward does under tracing
        if not children:
            return _traced(module, whole, children=True)
        raise ExhumeError(
            f"split: {type(module).__name__} cannot be traced ({error}); "
            "give it as an nn.Sequential of the parts to cut between"
        ) from error


def _node(graph: fx.Graph, name: str) -> fx.Node:
    called = [node for node in graph.nodes if node.op == "call_module"]
    names = [str(node.target) for node in called]
    node: fx.Node = called[_place(names, name)]
    if names.count(name) > 1:
        raise ExhumeError(f"split: {name!r} is used {names.count(name)} times; cut elsewhere")
    return node


def _crossing(graph: fx.Graph, name: str) -> list[str]:
    """What else than this layer's output is made before the point and used behind it."""
    nodes, at = list(graph.nodes), _node(graph, name)
    before = set(nodes[: nodes.index(at)])
    behind = nodes[nodes.index(at) + 1 :]
    return sorted({used.name for node in behind for used in node.all_input_nodes if used in before})


def _cut_graph(whole: fx.GraphModule, first: str, second: str) -> list[nn.Module]:
    graph = whole.graph
    nodes = list(graph.nodes)
    if sum(node.op == "placeholder" for node in nodes) != 1:
        raise ExhumeError(
            "split: the network takes several inputs; give one that takes a single one"
        )
    ends = [_node(graph, name) for name in (first, second)]
    at = [nodes.index(end) for end in ends]
    if at[0] >= at[1]:
        raise ExhumeError(
            f"split: {second!r} does not come after {first!r}; the body would be empty"
        )
    for name in (first, second):
        crossing = _crossing(graph, name)
        if crossing:
            raise ExhumeError(
                f"split: {name!r} is no split point, {crossing[0]!r} is made before it and used behind it"
            )
    bounds = [-1, *at, len(nodes) - 1]
    return [
        _piece(whole, nodes[start + 1 : stop + 1], None if start < 0 else nodes[start])
        for start, stop in pairwise(bounds)
    ]


def _piece(whole: fx.GraphModule, nodes: list[fx.Node], entry: fx.Node | None) -> fx.GraphModule:
    """The nodes as a module of their own; `entry` is the node whose output they are given."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    if entry is not None:
        made[entry] = graph.placeholder("features")
    for node in nodes:
        made[node] = graph.node_copy(node, lambda used: made[used])
    if nodes[-1].op != "output":
        graph.output(made[nodes[-1]])
    piece = fx.GraphModule(whole, graph)
    piece.delete_all_unused_submodules()
    return piece


@torch.no_grad()
def wider_tail(split: Split, body: nn.Module, shape: tuple[int, ...], times: int) -> nn.Module:
    """A tail for several answers side by side: its first dense layer reads so many times as much.

    shape: of the features that the body is given. The tail's weights are repeated.
    """
    answer = _outline(body, shape)
    tail = copy.deepcopy(split.tail)
    dense = [(name, m) for name, m in tail.named_modules() if isinstance(m, nn.Linear)]
    if len(answer) != 1 or not dense or dense[0][1].in_features != answer[0]:
        raise ExhumeError(
            f"split: the tail after {split.second!r} does not begin with a dense layer, so answers cannot "
            "be put side by side; cut after the pooling"
        )
    name, layer = dense[0]
    biased = layer.bias is not None
    with torch.device("meta"):
        wide = nn.Linear(times * layer.in_features, layer.out_features, bias=biased)
    wide = wide.to_empty(device=layer.weight.device)
    wide.weight.copy_(layer.weight.repeat(1, times))
    if biased:
        wide.bias.copy_(layer.bias)
    if not name:  # the tail is that layer
        return wide
    tail.set_submodule(name, wide)
    return tail


@torch.no_grad()
def mixes(head: nn.Module, inputs: Tensor) -> bool:
    """Whether what a head sends is no longer the input, number by number: a number of it depends on several.

    inputs: (n, *shape), two or more, as they are usual. A random half of an input's numbers is exchanged for
    another input's, then the other half; what changes both times depends on numbers of both. Not so are
    permutations, scales and tables of single numbers, and heads that send the input beside something else.
    """
    generator = Key.from_seed(0).fold("halves").generator()
    rows = len(inputs)
    shape, numbers = inputs.shape[1:], inputs[0].numel()
    changes, mixed = None, None
    for _ in range(_HALVES):
        one, other = (inputs[torch.randint(rows, (1,), generator=generator)] for _ in range(2))
        half = (torch.rand(numbers, generator=generator) < 0.5).view(1, *shape).to(inputs.device)
        before = head(one)
        near = _ROUNDING * before.abs().amax()
        first, second = (
            ((head(torch.where(part, other, one)) - before).abs() > near).flatten()
            for part in (half, ~half)
        )
        changes = first | second if changes is None else changes | first | second
        mixed = first & second if mixed is None else mixed | (first & second)
    assert changes is not None  # there are some rounds
    assert mixed is not None
    alone, several = int((changes & ~mixed).sum()), int(mixed.sum())
    return several > 0 and 2 * alone < min(numbers, int(changes.sum()))


def device_of(module: nn.Module) -> torch.device:
    """Where its weights are; the cpu if it has none."""
    held = (*module.parameters(), *module.buffers())
    return held[0].device if held else torch.device("cpu")


@torch.no_grad()
def _outline(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    modes = {part: part.training for part in module.modules()}  # they need not be the same
    inputs = torch.zeros(1, *input_shape, device=device_of(module))
    shape = tuple(module.eval()(inputs).shape[1:])
    for part, training in modes.items():
        part.training = training
    return shape
