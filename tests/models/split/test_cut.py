from __future__ import annotations

import pytest
import torch
from torch import nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.split.cut import cut, layer_named, points
from exhume.models.split.networks import VGG16, ResNet18


class Own(nn.Module):
    """Somebody's network: not a chain, with a residual connection in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.left = nn.Conv2d(4, 4, 3, padding=1)
        self.right = nn.Conv2d(4, 4, 3, padding=1)
        self.mix = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = self.right(torch.relu(self.left(x))) + x
        return self.fc(self.mix(x).mean((2, 3)))


def test_stages_of_the_paper(key):
    net = ResNet18(width=4).module(key).eval()
    assert points(net) == ("conv1", "block1", "block2", "block3", "block4", "pool")
    for first, wide, side in (("conv1", 4, 16), ("block1", 4, 16), ("block2", 8, 8)):
        assert cut(net, first, "pool").feature_shape((3, 32, 32)) == (wide, side, side)
    without = ResNet18(width=64, max_pool=False, outputs=100).module(key)
    assert cut(without, "conv1", "pool").feature_shape((3, 32, 32)) == (64, 32, 32)
    full = ResNet18().module(key)
    assert sum(p.numel() for p in full.parameters()) == 11_173_962  # the usual CIFAR ResNet-18


def test_vgg_has_thirteen_convolutions(key):
    net = VGG16(width=4).module(key).eval()
    assert points(net) == (*(f"conv{i}" for i in range(1, 14)), "pool")
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    full = VGG16().module(key)
    assert (
        sum(p.numel() for p in full.parameters()) == 14_724_042
    )  # 13 convolutions, their norms, one dense layer


@pytest.mark.parametrize(
    ("module", "first", "second"),
    [
        (ResNet18(width=4).module(Key.from_seed(0)), "conv1", "pool"),
        (ResNet18(width=4).module(Key.from_seed(0)), "block2", "block4"),
        (VGG16(width=4).module(Key.from_seed(0)), "conv6", "conv13"),
        (Own(), "stem", "mix"),
    ],
)
def test_the_parts_compute_the_whole(module, first, second):
    module.eval()
    parts = cut(module, first, second)
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(parts(x), module(x))
    names = {n for part in (parts.head, parts.body, parts.tail) for n, _ in part.named_parameters()}
    assert names == {n for n, _ in module.named_parameters()}
    before = [p.clone() for p in module.parameters()]
    for parameter in parts.head.parameters():
        nn.init.zeros_(parameter)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_the_same_key_the_same_weights_and_the_global_generator_alone(key):
    torch.manual_seed(3)
    untouched = torch.rand(1)
    torch.manual_seed(3)
    one, two = (ResNet18(width=4).module(key) for _ in range(2))
    assert torch.equal(torch.rand(1), untouched)
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    other = ResNet18(width=4).module(key.fold("other"))
    assert not torch.equal(other.conv1[0].weight, one.conv1[0].weight)


def test_points_of_a_traced_module_leave_out_the_inside_of_a_residual_connection():
    assert points(Own()) == ("stem", "mix")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("conv2", "pool", "no layer 'conv2'; did you mean 'conv1'?"),
        ("head", "pool", "no layer 'head'; there are conv1"),
        ("block2", "block1", "'block1' does not come after 'block2'; the body would be empty"),
        ("conv1", "fc", "nothing comes after 'fc'; the client would keep no tail"),
    ],
)
def test_wrong_points(first, second, said, key):
    with pytest.raises(ExhumeError, match=said):
        cut(ResNet18(width=4).module(key), first, second)


def test_wrong_points_of_a_traced_module():
    with pytest.raises(ExhumeError, match="'left' is no split point, 'relu' is made before it"):
        cut(Own(), "left", "mix")
    with pytest.raises(ExhumeError, match="'stem' does not come after 'mix'"):
        cut(Own(), "mix", "stem")

    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ExhumeError, match="Branching cannot be traced"):
        cut(Branching(), "a", "b")


def test_illegal_sizes():
    with pytest.raises(ExhumeError, match="channels x height x width"):
        ResNet18((3, 32))
    with pytest.raises(ExhumeError, match="at least 1"):
        ResNet18(width=0)
    with pytest.raises(ExhumeError, match="a side at least 32"):
        VGG16((3, 16, 16))
    with pytest.raises(ExhumeError, match="at least 1"):
        VGG16(outputs=0)


def test_asking_for_the_shape_of_features_leaves_every_layer_in_its_mode(key):
    """The parts of a new cut are new modules in training mode, with layers in eval mode."""
    chain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    chain.append(nn.Linear(72, 3))
    parts = cut(chain.eval(), "1", "3")
    modes = [layer.training for layer in parts.head.modules()]
    assert parts.feature_shape((1, 8, 8)) == (2, 6, 6)
    assert [layer.training for layer in parts.head.modules()] == modes
    inputs = torch.rand(8, 1, 8, 8, generator=key.generator())
    torch.testing.assert_close(parts.head(inputs)[:1], parts.head(inputs[:1]))


class Summed(nn.Module):
    """It adds behind its last layer, and asks what cannot be traced if told so."""

    def __init__(self, *, asks):
        super().__init__()
        self.a, self.b, self.asks = nn.Linear(4, 4), nn.Linear(4, 4), asks

    def forward(self, x):
        if self.asks and x.sum() > 1e9:
            return x
        return self.a(x) + self.b(x)


class Holding(nn.Module):
    def __init__(self, *, asks):
        super().__init__()
        self.stem, self.two = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Summed(asks=asks)
        self.mid, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.mid(self.two(self.stem(x))))


@pytest.mark.parametrize("asks", [False, True])
def test_a_container_that_computes_behind_its_last_layer_is_a_layer_by_itself(asks):
    whole = Holding(asks=asks)
    assert layer_named(whole, "stem") == "stem.1"
    assert layer_named(whole, "two") == "two"
    parts, x = cut(whole, "two", "mid"), torch.rand(3, 4)
    assert torch.equal(parts(x), whole(x))
    assert torch.equal(parts.head(x), whole.two(whole.stem(x)))
    assert points(whole, ("two",)) == ("stem.0", "stem.1", "two", "mid")
