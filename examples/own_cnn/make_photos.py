"""A folder of images to audit with: `python make_photos.py` writes photos/0 to photos/9.

They are scikit-learn's small handwritten digits, so that nothing has to be downloaded. Put your own images
in their place: one folder a class, all of one size.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def main(folder: Path) -> None:
    digits = load_digits()
    for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255 / 16).astype(np.uint8)).save(place / f"{index}.png")


if __name__ == "__main__":
    main(Path("photos"))
