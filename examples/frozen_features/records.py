"""Two sets of digits: public ones, on which features were learned, and private ones, for the head."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

PRIVATE = 800


def _digits(rows: slice) -> TensorDataset:
    digits = load_digits()
    images = torch.from_numpy(digits.images[rows]).float().div(16)[:, None]
    return TensorDataset(images, torch.from_numpy(digits.target[rows]))


def private() -> TensorDataset:
    return _digits(slice(None, PRIVATE))


def public() -> TensorDataset:
    return _digits(slice(PRIVATE, None))
