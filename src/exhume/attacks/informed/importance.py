"""How much does a trained reconstructor rely on each superparameter? Two answers (Mnemonist23).

Gradient x input: the first-order change of the reconstruction phi if a row were set to its mean,

    I_r = sqrt( mean_i sum_o ( sum_{j in r} d phi_o / d x_ij  x_ij )^2 )

with x the standardised parameters of held-out shadow i; the sum over the outputs o is estimated with
random signs u, since E_u ( sum_o u_o a_o )^2 = sum_o a_o^2. Permutation, the check: by how much the
error on held-out shadows grows when a row's values are those of other shadows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.attacks.informed.fitting import Pairs, error_on
from exhume.attacks.informed.reconn import FittedRecoNN
from exhume.attacks.informed.superparameters import Rows
from exhume.core.contract import Key

__all__ = ["gradient_importance", "permutation_importance"]


def gradient_importance(
    fitted: FittedRecoNN, rows: Rows, parameters: Tensor, key: Key, *, probes: int = 8
) -> Tensor:
    """parameters: (h, p) held-out shadows; returns (rows,), 0 for rows that are not read."""
    features = fitted.features
    inputs = features.standardised(parameters)
    mine = rows.of.to(inputs.device)[features.columns]
    total = inputs.new_zeros(rows.count, dtype=torch.float64)
    for probe in range(probes):
        leaf = inputs.detach().requires_grad_(True)
        found = fitted.network(features.projected(leaf)).flatten(1)
        generator = key.fold("probe", probe).generator()
        signs = torch.randint(0, 2, found.shape, generator=generator).to(found) * 2 - 1
        (gradient,) = torch.autograd.grad((found * signs).sum(), leaf)
        effect = inputs.new_zeros(len(inputs), rows.count).index_add_(1, mine, gradient * inputs)
        total += effect.double().square().mean(0)
    return (total / probes).sqrt()


def permutation_importance(
    fitted: FittedRecoNN, rows: Rows, parameters: Tensor, records: Tensor, key: Key
) -> Tensor:
    """(rows,): growth of MAE + MSE over (h, p) held-out shadows and their (h, *shape) records."""
    features = fitted.features
    inputs = features.standardised(parameters)
    mine = rows.of.to(inputs.device)[features.columns]

    def error(seen: Tensor) -> float:
        return error_on(fitted.network, Pairs(features.projected(seen), records))

    before = error(inputs)
    growth = torch.zeros(rows.count, dtype=torch.float64)
    for row in torch.unique(mine).tolist():
        # A cyclic shift of a random order moves every shadow's row to another shadow.
        order = torch.randperm(len(inputs), generator=key.fold("row", row).generator())
        donor = torch.empty_like(order)
        donor[order] = order.roll(1)
        columns = (mine == row).nonzero()[:, 0]
        shuffled = inputs.clone()
        shuffled[:, columns] = inputs[donor.to(inputs.device)][:, columns]
        growth[row] = error(shuffled) - before
    return growth
