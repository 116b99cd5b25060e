from __future__ import annotations

import pytest
import torch

from exhume.attacks.informed.normal import Normal


@pytest.mark.parametrize("problems", [1, 3])
def test_steps_solve_the_damped_problem(problems, key):
    """One Jacobian for all residuals, or one each; the reference stacks the damping under J."""
    generator = key.generator()
    jacobian = torch.randn(problems, 9, 4, generator=generator, dtype=torch.float64)
    residual = torch.randn(3, 9, generator=generator, dtype=torch.float64)
    damping = torch.full((problems,), 0.3, dtype=torch.float64)
    found = Normal.of(jacobian, residual).solve(damping)
    for i in range(3):
        j = jacobian[i if problems > 1 else 0]
        scale = (0.3 * j.square().sum(0).mean()).sqrt()
        stacked = torch.cat([j, scale * torch.eye(4, dtype=torch.float64)])
        right = torch.cat([residual[i], torch.zeros(4, dtype=torch.float64)])
        torch.testing.assert_close(found[i], torch.linalg.lstsq(stacked, right).solution)
