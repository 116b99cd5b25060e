"""Normal equations of several least-squares problems at once: (J^T J + damping) step = J^T residual."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Normal:
    """Levenberg-Marquardt in fp64, for several dampings; one Jacobian may serve several targets."""

    matrix: Tensor  # (j, d, d): J^T J, j = m or 1
    right: Tensor  # (m, d): J^T r
    dtype: torch.dtype

    @staticmethod
    def of(jacobian: Tensor, residual: Tensor) -> Normal:
        """(j, q, d) and (m, q)."""
        j = jacobian.double()
        right = torch.matmul(residual.double()[:, None], j)[:, 0]
        return Normal(j.transpose(1, 2) @ j, right, jacobian.dtype)

    def solve(self, damping: Tensor) -> Tensor:
        """(j,) to steps (m, d)."""
        scale = self.matrix.diagonal(dim1=1, dim2=2).mean(1) * damping.double()
        eye = torch.eye(self.matrix.shape[1], dtype=torch.float64, device=self.matrix.device)
        factor = torch.linalg.cholesky(self.matrix + scale.clamp_min(1e-300)[:, None, None] * eye)
        shared = len(factor) == 1
        right = self.right.T[None] if shared else self.right[:, :, None]
        solved = torch.cholesky_solve(right, factor)
        return (solved[0].T if shared else solved[:, :, 0]).to(self.dtype)
