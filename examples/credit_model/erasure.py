"""A customer asks the bank to erase it. Do the models before and after give it away? `python erasure.py [FOLDER]`

The bank fits its model once more, to everybody else, and publishes that, too. Whoever has both versions and
other customers like these, but knows nobody in the models, estimates the erased one. Whoever knows the others has
it exactly.
"""

from __future__ import annotations

import sys
from pathlib import Path

from credit import write_customers
from sklearn.linear_model import LogisticRegression
from skops.io import dump

import exhume
from exhume import readers

CUSTOMERS, EVERYBODY, ERASED = 1000, 4000, 17  # in the first model, in the file, who asks


def main(folder: Path) -> exhume.Audit:
    """The audit of both versions, for the erased customer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_customers(folder / "customers.csv", EVERYBODY)
    records = readers.table(folder / "customers.csv", "default")
    inputs, labels = records.inputs.double().numpy(), records.labels.numpy()
    stays = [row for row in range(CUSTOMERS) if row != ERASED]
    for name, rows in (("before", list(range(CUSTOMERS))), ("after", stays)):
        model = LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000)
        dump(model.fit(inputs[rows], labels[rows]), folder / f"{name}.skops")
    done = exhume.audit(
        {
            "data": {"source": f"{folder / 'customers.csv'}:default"},
            "versions": {
                "before": str(folder / "before.skops"),
                "after": str(folder / "after.skops"),
                "person": str(ERASED),
                "others": f"{CUSTOMERS}:{EVERYBODY}",
            },
        },
        folder / "audit",
    )
    print(done.verdict.sentence)
    for attack in done.result.attacks:
        never = attack.metrics["never_saw_mse"]
        print(f"{attack.spec.name}: error {attack.metrics['mse']:.1e}; never saw it: {never:.1e}")
    return done


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "erasure"))
