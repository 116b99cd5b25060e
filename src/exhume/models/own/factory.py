"""The user's model by name: `package.module:factory` or `file.py:factory`, called without arguments.

Every road to a user's network leads through `Factory`: the code is found once, and called while the global
generators of torch, numpy and Python start from a key, so that one key means one set of weights everywhere.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.nn.parameter import UninitializedParameter

from exhume.core.contract import Architecture, ExhumeError, Key
from exhume.naming import called, first_line, named, seeded_globals

__all__ = ["Factory", "model_named", "module_named"]


@dataclass(frozen=True, eq=False)
class Factory:
    """What the name stands for: a function, a module, or an architecture of ours."""

    spec: str
    found: object

    @staticmethod
    def named(spec: str, root: Path | None = None) -> Factory:
        """root: the folder that the name counts from; None: the present one."""
        return Factory(spec, named(spec, "model", root))

    def drawn(self, key: Key) -> nn.Module | Architecture:
        """What the factory returns at the weights that this key draws."""
        return self.made(key.fold("initial"))

    def made(self, stream: Key) -> nn.Module | Architecture:
        """What the factory returns when the global generators start from this very key."""
        if isinstance(self.found, Architecture):
            return self.found
        if isinstance(self.found, nn.Module):
            made: object = self._copied(self.found)
        else:
            made = self.found
            if callable(made):
                with seeded_globals(stream):
                    made = called(made, self.spec, "model")
        if isinstance(made, nn.Module):
            return self._checked(made.cpu())
        if not isinstance(made, Architecture):
            raise ExhumeError(f"model: {self.spec} gives a {type(made).__name__}, not an nn.Module")
        return made

    def _copied(self, module: nn.Module) -> nn.Module:
        try:
            return copy.deepcopy(module)
        except RuntimeError as error:
            raise ExhumeError(
                f"model: {self.spec} cannot be copied: {first_line(error)}"
            ) from error

    def _checked(self, module: nn.Module) -> nn.Module:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, UninitializedParameter):
                raise ExhumeError(
                    f"model: {self.spec}: {name} has no shape yet; run one batch through it in the factory"
                )
        return module


def model_named(spec: str, key: Key, root: Path | None = None) -> nn.Module | Architecture:
    """What the factory returns at the weights that the key draws: a module, or an architecture of ours."""
    return Factory.named(spec, root).drawn(key)


def module_named(spec: str, key: Key) -> nn.Module:
    """`model_named`, an architecture as the module that it builds."""
    made = model_named(spec, key)
    return made.build() if isinstance(made, Architecture) else made
