from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from planted_data import says

from exhume.readers import check_classes, from_dataset, load

SOURCE = """
import numpy as np, torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from exhume.core.contract import Records

class Photos(Dataset):
    classes = ["cat", "dog", "owl"]
    def __len__(self): return 4
    def __getitem__(self, i):
        return Image.fromarray(np.full((2, 3, 3), 51 * i, np.uint8)), i % 2
class Noisy(Photos):
    def __getitem__(self, i): return torch.rand(1, 2, 2) * np.random.rand(), i % 2
def photos(): return Photos()
def vectors(): return TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([7, 3, 7]))
def tokens(): return TensorDataset(torch.tensor([[5, 1, 0], [2, 2, 9]]), torch.tensor([0, 1]))
def narrow(): return TensorDataset(torch.rand(2, 3, 5, 3), torch.tensor([0, 1]))
ready = vectors()
held = Records(torch.rand(2, 3), torch.tensor([0, 1]), ("a", "b"))

class Bad(Photos):
    def __getitem__(self, i): return self.item(i)
def bad(item, **members):
    return lambda: type("Odd", (Bad,), {"item": lambda self, i: item(i), **members})()
mixed = bad(lambda i: (torch.rand(1, 3, 3 + (i > 2)), 0))
types = bad(lambda i: (torch.rand(3).to(torch.float64 if i else torch.float32), 0))
fails = bad(lambda i: [][i])
lone = bad(lambda i: torch.rand(3))
text = bad(lambda i: ("hello", 0))
deep = bad(lambda i: (torch.rand(1, 1, 2, 2), 0))
soft = bad(lambda i: (torch.rand(3), torch.rand(2)))
half = bad(lambda i: (torch.rand(3), 0.5))
minus = bad(lambda i: (torch.rand(3), -1))
beyond = bad(lambda i: (torch.rand(3), i + 1))
nan = bad(lambda i: (torch.tensor([1.0, float("nan") if i == 2 else 0.0]), 0))
wide = bad(lambda i: (torch.full((1, 2, 2), 2.5), 0))
empty = bad(None, __len__=lambda self: 0)
huge = bad(lambda i: (torch.rand(3), 0), __len__=lambda self: 10**13)
class Stream(IterableDataset):
    def __iter__(self): yield torch.rand(3), 0
def stream(): return Stream()
number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.py").write_text(SOURCE)
    yield lambda name: load(f"sets.py:{name}")
    sys.modules.pop("sets", None)


def test_images_vectors_and_tokens(own):
    photos = own("photos")
    assert photos.shape == (3, 2, 3)
    assert photos.classes == ("cat", "dog", "owl")
    assert torch.equal(photos.inputs[:, 0, 0, 0], torch.tensor([0, 51, 102, 153]) / 255)
    assert photos.labels.tolist() == [0, 1, 0, 1]
    vectors = own("vectors")
    assert vectors.inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (vectors.labels.tolist(), vectors.classes) == ([1, 0, 1], ("3", "7"))
    assert torch.equal(own("ready").inputs, vectors.inputs)
    assert own("tokens").inputs.tolist() == [[5, 1, 0], [2, 2, 9]]
    assert own("tokens").inputs.dtype == torch.int64
    assert own("tokens").vocabulary is not None
    assert own("narrow").shape == (3, 5, 3)
    assert own("held").classes == ("a", "b")
    assert len(load("sets:vectors")) == 3


def test_random_transforms_give_the_same_draw(own):
    state = torch.random.get_rng_state()
    assert torch.equal(own("Noisy").inputs, own("Noisy").inputs)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_grey_picture_in_python():
    pictures = [(Image.fromarray(np.eye(4, dtype=np.uint8) * 255), i) for i in range(2)]
    assert torch.equal(from_dataset(pictures, "pictures").inputs[1, 0], torch.eye(4))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed", "record 3 is float32 of shape (1, 3, 4), record 0 is float32 of shape (1, 3, 3)"),
        ("types", "record 1 is float64 of shape (3,), record 0 is float32 of shape (3,)"),
        ("fails", "record 0 raised IndexError: list index out of range"),
        ("lone", "record 0 is a Tensor, a pair (input, label) is needed"),
        ("text", "record 0: the input is <U5 of shape (); legal are numbers"),
        ("deep", "record 0: the input is float32 of shape (1, 1, 2, 2); legal are numbers"),
        ("soft", "record 0: the label is float32 of shape (2,); legal is one whole number"),
        ("half", "holds labels that are not whole numbers"),
        ("minus", "holds the negative label -1"),
        ("beyond", "record 3 has label 4, legal are 0 to 2"),
        ("nan", "holds NaN or infinity, first in record 2"),
        ("wide", "holds float images from 2.5 to 2.5; legal is [0, 1], or uint8"),
        ("empty", "holds no records"),
        ("huge", "10000000000000 records need 240000.0 GB"),
        ("stream", "gives a Stream, not a dataset with a length and items"),
        ("number", "sets.py:number is a int, which cannot be called"),
        ("absent", "data: sets.py has no absent"),
    ],
)
def test_what_is_wrong_is_one_sentence(own, name, message):
    text = says(lambda: own(name))
    assert text.startswith("data: sets.py")
    assert message in text


def test_a_class_without_records(own):
    text = says(lambda: check_classes(own("photos"), "photos"))
    assert text == "photos: no record of class owl; leave the class out, or add records"
    check_classes(own("vectors"), "vectors")


def test_size_is_for_folders_and_a_misspelt_set_is_no_module(own):
    assert "size: 8 given" in says(lambda: load("sets.py:photos", size=8))
    assert "did you mean 'mnist'?" in says(lambda: load("minst:folder"))
    assert "data: gone.py:x: there is no file gone.py" in says(lambda: load("gone.py:x"))
