"""Made-up results and evidence for the tests of the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

NASTY = "</script><img src=x onerror=alert(1)>"
MakeRun = Callable[..., Path]


def write_run(
    run: Path,
    result: dict[str, Any],
    tensors: dict[str, Any] | None = None,
    *,
    config: str = 'seed = 0\n[data]\npath = "/home/jane/my data/mnist.npz"\n',
    environment: dict[str, Any] | None = None,
) -> Path:
    run.mkdir()
    (run / "result.json").write_text(json.dumps(result))
    (run / "config.toml").write_text(config)
    (run / "environment.json").write_text(json.dumps(environment or {"torch": "2.13.0"}))
    if tensors:
        save_file(tensors, run / "closed-form.safetensors")
    return run


def evidence(
    targets: int = 230, shape: tuple[int, ...] = (1, 6, 6), seed: int = 0
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    truth = torch.rand(targets, *shape, generator=random)
    near = torch.rand(targets, *shape, generator=random)
    share = torch.rand(targets, *[1] * len(shape), generator=random)
    back = share * truth + (1 - share) * near
    error = (truth - back).flatten(1).square().mean(1)
    labels = torch.randint(0, 3, (targets,), generator=random)
    return {
        "targets": truth,
        "reconstructions": back,
        "nearest": near,
        "nearest_to_reconstruction": near.clone(),
        "mse": error,
        "oracle_mse": (truth - near).flatten(1).square().mean(1),
        "null_mse": 2 * error + 0.1,
        "confidence": torch.rand(targets, generator=random),
        "labels": labels,
        "inferred": (labels + (share.flatten() < 0.1)) % 3,
    }


def attack(**changes: Any) -> dict[str, Any]:
    return {
        "id": "closed-form",
        "name": "Closed-form reconstructor",
        "paper": "Balle22",
        "sees": "the released weights",
        "knows": ["architecture", "fixed"],
        "status": {"outcome": "converged", "reason": "", "ever": True},
        "metrics": {
            "mse": 0.0163,
            "success": 0.86,
            "success_low": 0.83,
            "success_high": 0.89,
            "null_success": 0.0,
            "null_success_low": 0.0,
            "null_success_high": 0.007,
            "label_accuracy": 0.94,
            "oracle_mse": 0.03,
        },
        "leak": {"successes": 86, "trials": 100, "low": 0.78, "high": 0.92, "chance": 0.0},
        "baselines": [{"name": "mean image", "mse": 0.07, "mae": 0.15, "ssim": 0.2, "psnr": 11.5}],
        "cost": {"seconds": 61.2, "models": 2001},
        "notes": ["one note"],
        "evidence": "closed-form.safetensors",
        **changes,
    }


def audit(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 4,
        "kind": "audit",
        "title": "An informed adversary",
        "data": "mnist",
        "seed": 0,
        "verdict": {
            "word": "leaks",
            "sentence": "Most records come back.",
            "detail": "Decoys do not.",
        },
        "attacks": [attack()],
        "victim": {"architecture": "MLP 784-10-10", "test_accuracy": 0.87},
        "classes": ["zero", "one", "two"],
        "deviations": ["fewer shadows"],
        "wall_seconds": 93.0,
        **changes,
    }


def study(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "study",
        "study": "informed-mnist",
        "scale": "cpu",
        "seed": 0,
        "title": "A study",
        "claims": [
            {
                "id": "a",
                "statement": "beats the oracle",
                "paper": 0.01,
                "measured": 0.02,
                "holds": True,
            },
            {
                "id": "b",
                "statement": "infers labels",
                "paper": "99%",
                "measured": 0.9,
                "holds": False,
            },
        ],
        "metrics": {"fit_seconds": 1.5},
        "attacks": [],
        "deviations": [],
        "wall_seconds": 5.0,
        "environment": {"python": "3.11"},
        **changes,
    }
