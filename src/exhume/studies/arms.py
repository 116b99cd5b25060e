"""One arm of a study of the informed adversary: a game, an attack on it, and its scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.baseline import holdings
from exhume.auditing import Game
from exhume.contract import Attack, Progress, Reconstruction, Store, Weights
from exhume.score.intervals import bootstrap
from exhume.score.targets import TargetScores, score_targets
from exhume.victims.informed import first_of

__all__ = ["Arm", "play"]

KEPT = ("mse", "mae", "mae_plus_mse", "label_accuracy", "success", "null_success", "oracle_mse")


@dataclass(frozen=True, eq=False)
class Arm:
    """What an attack brought back, and how good it was."""

    scores: TargetScores
    found: Reconstruction
    interval: tuple[float, float]  # of the mean squared error, 95%, over targets

    @property
    def mse(self) -> float:
        return self.scores.metrics["mse"]

    @property
    def seconds(self) -> float:
        return self.found.cost.seconds

    def metrics(self, prefix: str) -> dict[str, float]:
        """The scores worth a line each, named after the arm; null_success is the rate by chance."""
        found = self.scores.metrics
        named = {f"{prefix}.{name}": found[name] for name in KEPT if name in found}
        low, high = self.interval
        return {
            **named,
            f"{prefix}.mse_low": low,
            f"{prefix}.mse_high": high,
            f"{prefix}.targets": found["targets"],
            f"{prefix}.seconds": self.seconds,
        }


def play(
    game: Game,
    attack: Attack,
    *,
    store: Store,
    progress: Progress,
    shadows: int | None = None,
    targets: int | None = None,
    release: Weights | None = None,
) -> Arm:
    """Attack the first targets with the first shadows; None: all of them.

    A `release` replaces the game's own: the same models after a defence or a loss of precision.
    """
    knowledge, key = game.knowledge, game.key
    pool = holdings(knowledge)
    if shadows is not None and knowledge.shadow is not None:
        knowledge = replace(knowledge, shadow=knowledge.shadow[:shadows])
    prepared = attack.prepare(knowledge, key=key.fold("attack"), store=store, progress=progress)
    own, secret = game.victim
    victim = (own if release is None else release, secret)
    if targets is not None:
        victim = first_of(victim, targets)
    found = prepared.run(victim[0])
    scores = score_targets(victim[1], found, pool, key.fold("score"), baselines={})
    interval = bootstrap(scores.attack.mse, key.fold("interval"))
    return Arm(scores, found, interval)
