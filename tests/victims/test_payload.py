from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from exhume.contract import ExhumeError
from exhume.models.mlp import MLP
from exhume.victims.payload import Said, check_payload, payload_from_file, payload_from_states

SHAPE = (1, 6, 6)


def network(seed=0, *, norm=False):
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(12)] if norm else []
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 12), *middle, nn.ReLU(), nn.Linear(12, 4)
    ).double()


def file_of(tmp_path, module, *, reduction="mean", change=lambda named: named, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(8, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.arange(8) % 4
    F.cross_entropy(module(inputs), labels, reduction=reduction).backward()
    named = {n: p.grad.clone() for n, p in module.named_parameters()}
    module.zero_grad()
    path = tmp_path / "update.safetensors"
    save_file(change(named), path)
    return path


def check(tmp_path, module, said, **options):
    return check_payload(
        payload_from_file(file_of(tmp_path, module, **options), module), module, said, SHAPE
    )


def test_an_honest_payload_passes(tmp_path):
    checked = check(tmp_path, network(), Said("mean", batch_size=8))
    assert "taken at these weights" in checked
    assert check(tmp_path, network(), Said("sum", batch_size=8), reduction="sum")
    assert "batch-norm mode" in check(tmp_path, network(norm=True).train(), Said())
    assert check(tmp_path, network(norm=True).eval(), Said(batch_norm="eval"))


def test_counts_are_checked_on_an_untrained_network(tmp_path):
    flat = network()
    with torch.no_grad():
        flat[3].weight.mul_(0.01)
        flat[3].bias.zero_()
    assert "reduction and batch size" in check(tmp_path, flat, Said(batch_size=8))
    with pytest.raises(ExhumeError, match="does not count 7 whole records"):
        check(
            tmp_path,
            flat,
            Said(batch_size=7),
            seed=2,
            change=lambda n: n | {"3.bias": torch.tensor([0.3, -0.3, 0.0, 0.0]).double()},
        )
    with pytest.raises(ExhumeError, match="said to be a sum, but 3.bias counts whole records only"):
        check(
            tmp_path,
            flat,
            Said("sum", batch_size=8),
            change=lambda n: n | {"3.bias": torch.tensor([0.125, -0.125, 0.0, 0.0]).double()},
        )


def test_wrong_reduction(tmp_path):
    def lopsided(named):
        return named | {"3.bias": torch.tensor([3.0, -1.0, -1.0, -1.0]).double()}

    with pytest.raises(ExhumeError, match="said to be a mean, but 3.bias .* the loss was summed"):
        check(tmp_path, network(), Said("mean"), reduction="sum", change=lopsided)


def test_wrong_loss(tmp_path):
    def shifted(named):
        return named | {"3.bias": named["3.bias"].abs() + 0.01}

    with pytest.raises(ExhumeError, match="does not sum to zero: the loss is not a cross-entropy"):
        check(tmp_path, network(), Said(), change=shifted)


@pytest.mark.parametrize(("was", "said"), [("train", "eval"), ("eval", "train")])
def test_wrong_batch_norm_mode(tmp_path, was, said):
    module = network(norm=True).train(was == "train")
    with pytest.raises(
        ExhumeError, match=f"in {said} mode, but the gradient of 1.weight is that of {was} mode"
    ):
        check(tmp_path, module, Said(batch_norm=said))


def test_missing_and_nan_and_other_models(tmp_path):
    module = network()
    with pytest.raises(ExhumeError, match="the tensors 3.bias are missing"):
        check(
            tmp_path, module, Said(), change=lambda n: {k: v for k, v in n.items() if k != "3.bias"}
        )
    with pytest.raises(ExhumeError, match="1.weight holds NaN"):
        check(
            tmp_path, module, Said(), change=lambda n: n | {"1.weight": n["1.weight"] * torch.nan}
        )
    with pytest.raises(ExhumeError, match="shape .* given, .* expected"):
        check(tmp_path, module, Said(), change=lambda n: n | {"1.bias": n["1.bias"][:3].clone()})
    path = file_of(tmp_path, module)
    with pytest.raises(ExhumeError, match="it comes from another model"):
        check_payload(payload_from_file(path, module), MLP(SHAPE, (12,), 4).build(), Said(), SHAPE)
    other = network(seed=5)
    with pytest.raises(ExhumeError, match="it was not taken at these weights"):
        check_payload(payload_from_file(path, other), other, Said(), SHAPE)


def test_files_and_settings(tmp_path):
    with pytest.raises(ExhumeError, match="there is no file"):
        payload_from_file(tmp_path / "none.safetensors", network())
    (tmp_path / "a.pt").write_bytes(b"")
    with pytest.raises(ExhumeError, match="pickles are not read"):
        payload_from_file(tmp_path / "a.pt", network())
    with pytest.raises(ExhumeError, match="'max' is not one of mean, sum"):
        Said("max")
    with pytest.raises(ExhumeError, match="'test' is not one of train, eval"):
        Said(batch_norm="test")


def test_state_dict_difference():
    before, after = network(0), network(1)
    payload = payload_from_states(
        before.state_dict(), after.state_dict(), before, rate=0.5, steps=2
    )
    expected = before[1].weight - after[1].weight  # 0.5 · 2 = 1
    torch.testing.assert_close(
        payload.layout.split(payload.values)["1.weight"][0], expected.detach()
    )
    with pytest.raises(ExhumeError, match="rate, steps: must be positive"):
        payload_from_states(before.state_dict(), after.state_dict(), before, rate=0.0)
    with pytest.raises(ExhumeError, match="the state dicts lack 1.weight"):
        payload_from_states({}, after.state_dict(), before, rate=1.0)
