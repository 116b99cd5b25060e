"""A bank publishes a scikit-learn credit model. Does it give away a customer? `python credit.py [FOLDER]`

Whoever has the model and knows every customer but one solves for that one: its age, its income, its job,
and whether it defaulted. No training, no guessing; one sum over the other customers.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from exhume import readers
from exhume.attacks.informed.glm import GlmClosedForm
from exhume.core.contract import Key, Knowledge
from exhume.core.records import cells_of
from exhume.readers.fitted import release_of_fitted
from exhume.store.shards import NullStore

JOBS = ("clerk", "cook", "driver", "nurse", "teacher")


def write_customers(path: Path, count: int = 1000) -> None:
    """Made-up people; those with little income and much debt default more often."""
    draw = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["age", "income", "debt", "job", "default"])
        for _ in range(count):
            age = int(draw.integers(18, 80))
            income = int(draw.lognormal(10.3, 0.4))
            debt = int(draw.exponential(15_000))
            risk = 1 / (1 + np.exp(-(debt / 15_000 - income / 20_000)))
            defaults = "yes" if draw.random() < risk else "no"
            table.writerow([age, income, debt, draw.choice(JOBS), defaults])


def main(folder: Path, tolerance: float = 1e-8, customers: int = 5) -> float:
    """Prints some customers beside what the model gave away; returns the share that came back."""
    folder.mkdir(parents=True, exist_ok=True)
    write_customers(folder / "customers.csv")
    records = readers.table(folder / "customers.csv", "default")
    model = LogisticRegression(tol=tolerance, max_iter=10_000)
    model.fit(records.inputs.double().numpy(), records.labels.numpy())

    release, recipe = release_of_fitted(model, records.shape)  # what the bank publishes
    exact = 0
    for one in range(customers):
        others = torch.arange(len(records)) != one  # what the adversary knows
        knowledge = Knowledge(
            architecture=recipe.architecture, recipe=recipe, fixed=records[others]
        )
        attack = GlmClosedForm().prepare(knowledge, key=Key.from_seed(0), store=NullStore())
        found = attack.run(release)
        assert found.labels is not None
        label = records.classes[int(found.labels[0, 0])]
        guess = cells_of(found.candidates[0, 0], records.columns) | {"default": label}
        truth = cells_of(records.inputs[one], records.columns)
        truth |= {"default": records.classes[int(records.labels[one])]}
        close = (found.candidates[0, 0] - records.inputs[one]).abs().max() < 0.01
        exact += bool(close) and guess["default"] == truth["default"]
        print(f"customer {one}:  {truth}")
        print(f"   came back: {guess}")
        print(f"   the answer's own check: {found.observed['certificate_worst']:.1e}")
    print(f"{exact} of {customers} customers came back within 1% of every column's range")
    return exact / customers


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "credit"))
