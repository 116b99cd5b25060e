"""A split network as it is read: what is refused, what is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from exhume.auditing.kinds.split_files import read_split, sizes_of
from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.own import module_named
from exhume.settings import Brief


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"defend": "prayer"}, "defend: 'prayer' is not one of channel, ensembler"),
        ({"model": ""}, "model, data: both are needed"),
        ({"bodies": 0}, "bodies: 0 given, at least 1 needed"),
        ({"held": -1}, "held: -1 given, at least 0 needed"),
        ({"rate": 0.0}, "a rate above 0 needed"),
        ({"first": ("0", "0")}, "first: 0, 0 names a layer twice"),
    ],
)
def test_settings_that_mean_nothing(change, sentence, settings):
    with pytest.raises(ExhumeError, match=sentence):
        replace(settings, **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first": ("9",)}, "the network has no layer '9'"),
        ({"first": ("1",), "second": "0"}, "'0' does not come after '1'"),
        ({"first": ("2",), "second": "2"}, "the body would be empty"),
        ({"targets": 5}, "5 records for the part target, at least 10 needed"),
        ({"held": 1000}, "records needed"),
        ({"model": "pair", "weights": ""}, "fewer than two|must be"),
        ({"model": "narrow", "weights": "", "first": ()}, "fewer than two points"),
        ({"model": "nothing"}, "has no nothing"),
    ],
)
def test_splits_that_cannot_be(change, sentence, settings, records):
    if "model" in change:
        change = {**change, "model": settings.model.replace(":net", f":{change['model']}")}
    with pytest.raises(ExhumeError, match=sentence):
        read_split(replace(settings, **change), records)


def test_weights_that_do_not_fit(settings, records, tmp_path):
    state = module_named(settings.model, Key.from_seed(0)).state_dict()
    save_file({**state, "3.bias": torch.zeros(4)}, tmp_path / "a.safetensors")
    with pytest.raises(ExhumeError, match=r"3.bias has shape \(4,\) in the file and \(3,\)"):
        read_split(replace(settings, weights=str(tmp_path / "a.safetensors")), records)
    save_file({**state, "3.bias": torch.full((3,), torch.nan)}, tmp_path / "b.safetensors")
    with pytest.raises(ExhumeError, match="3.bias holds NaN"):
        read_split(replace(settings, weights=str(tmp_path / "b.safetensors")), records)
    with pytest.raises(ExhumeError, match="weights: there is no file"):
        read_split(replace(settings, weights="nowhere.pt"), records)


def test_records_that_do_not_fit(settings):
    flat = Records(torch.rand(300, 64), torch.arange(300) % 3, ("a", "b", "c"))
    with pytest.raises(ExhumeError, match="only images and texts are covered so far"):
        read_split(settings, flat)
    many = Records(torch.rand(300, 1, 8, 8), torch.arange(300) % 4, tuple("abcd"))
    with pytest.raises(ExhumeError, match="4 classes, but the network has 3 outputs"):
        read_split(settings, many)
    colour = Records(torch.rand(300, 3, 8, 8), torch.arange(300) % 3, tuple("abc"))
    with pytest.raises(ExhumeError, match=r"cannot take records of shape \(3, 8, 8\)"):
        read_split(settings, colour)


def test_depths_are_chosen_where_none_is_named(settings, records):
    owned = read_split(replace(settings, first=(), weights=""), records)
    assert (owned.first, owned.second) == (("0", "1"), "2")
    assert "as the factory made it" in owned.notes[0]


def test_points_before_the_one_in_use(settings, records):
    assert read_split(settings, records).shallower() == ()
    assert read_split(replace(settings, first=("1", "0")), records).shallower() == ("0",)


def test_sizes_and_folder(settings):
    sizes = sizes_of(replace(settings, targets=30), 1000)
    assert (sizes.fixed, sizes.target, sizes.shadow, sizes.public, sizes.test) == (
        *(0, 30, 300, 100),
        100,
    )
    assert sizes_of(replace(settings, defend="single", train=70), 1000).fixed == 70
    other = Brief.of(replace(settings, seed=1)).folder()
    assert Brief.of(settings).folder() == Brief.of(settings).folder() != other
