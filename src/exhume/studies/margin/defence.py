"""What Buzaglo23 leaves for later: does protecting the records on the margin stop the reconstruction?

Victims that trained on noisy copies of all their records, of the half nearest to the margin, or of as many at
random; the noise white or with each record's own spectrum. Each is attacked twice, once by an adversary who
also tries every candidate smoothed. Stopping early and several noisy copies are there for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from exhume.attacks.margin.first_layer import FirstLayer, Smoothed
from exhume.core.contract import Records
from exhume.core.results import AttackSpec, Chart, Findings, Point
from exhume.defences.margin import NoisyMargin, ProtectedDescent
from exhume.studies.claims import Claims, fewer, flattened, mean_of
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.margin.game import MarginGame, from_small_start, quick
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose

__all__ = ["STUDY"]

_EARLY = 0.1  # loss at which a victim stops early
_HALF = 0.5


@dataclass(frozen=True)
class _Setting:
    source: str
    classes: int
    each: int
    width: int
    attack: FirstLayer
    strengths: tuple[float, ...] = (0.5, 1.0, 2.0)
    copies: int = 4
    victims: int = 2  # networks of each kind, on images of their own
    decoys: int = 1000
    shown: tuple[str, ...] = ("none", "record.all.2", "record.margin.2")

    def recipes(self, shape: tuple[int, ...]) -> dict[str, MarginDescent | ProtectedDescent]:
        plain = replace(from_small_start(shape, self.width, self.classes), stop_loss=2e-5)
        noises: dict[str, NoisyMargin] = {}
        for s in self.strengths:
            noises[f"white.all.{s:g}"] = NoisyMargin(s, colour="white")
            noises[f"record.all.{s:g}"] = NoisyMargin(s)
            noises[f"record.margin.{s:g}"] = NoisyMargin(s, share=_HALF)
            noises[f"record.random.{s:g}"] = NoisyMargin(s, share=_HALF, whom="random")
        several = NoisyMargin(self.middle, colour="white", copies=self.copies)
        noises[f"white.copies{self.copies}.{self.middle:g}"] = several
        return {
            "none": plain,
            **{name: ProtectedDescent(plain, noise) for name, noise in noises.items()},
            "early": replace(plain, stop_loss=_EARLY),
        }

    @property
    def middle(self) -> float:
        return self.strengths[len(self.strengths) // 2]


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        "digits", 3, 4, 60, quick().first, strengths=(2.0,), copies=2, victims=1, decoys=60
    ),
    "cpu": _Setting("cifar10", classes=5, each=10, width=300, attack=FirstLayer(restarts=2)),
    "paper": _Setting(
        "cifar10", classes=10, each=50, width=1000, attack=FirstLayer(restarts=16), victims=3
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    records = run.records(setting.source)
    measured: dict[str, list[dict[str, float]]] = {}
    sections: list[Findings] = []
    for index in range(setting.victims):
        key, here = run.key.fold("margin-defence", index), run.part(f"victim {index + 1}")
        chosen = choose(records, setting.classes, setting.each, setting.decoys, key.fold("choose"))
        for name, recipe in setting.recipes(records.shape).items():
            game = MarginGame.begun(here, name, setting.attack, recipe, chosen, key=key)
            numbers, findings = _arm(game, setting.attack, chosen[0])
            measured.setdefault(name, []).append(numbers)
            if not index and name in setting.shown:
                sections.append(findings)
    metrics = flattened({name: mean_of(several) for name, several in measured.items()})
    images = setting.classes * setting.each
    return Outcome(
        claims=_claims(setting, metrics),
        metrics=metrics | {"records": float(images), "victims": float(setting.victims)},
        attacks=sections,
        classes=list(records.classes[: setting.classes]),
        charts=_charts(setting, metrics),
        deviations=[
            f"{images} images in {setting.classes} classes of {setting.source}, width {setting.width}; "
            "steps grow as the loss falls.",
            "Test images are the decoys; none of them was trained on.",
        ],
    )


def _arm(game: MarginGame, attack: FirstLayer, train: Records) -> tuple[dict[str, float], Findings]:
    """The numbers of one victim, attacked plainly and by one who smooths, and the former's findings."""
    found, plain = game.attacked(attack, game.name)
    _, smoothed = game.attacked(Smoothed(attack), game.name)
    good, chosen, report = plain.members.good, _chosen(game, train), game.victim.report
    title = f"First layer, defence {game.name}"
    spec = AttackSpec(game.name.replace(".", "-"), title, "Buzaglo23", "the released weights")
    return {
        "good": float(good.sum()),
        "good_smoothed": smoothed.metrics["good"],
        "good_chosen": float(good[chosen].sum()),
        "good_others": float(good[~chosen].sum()),
        "decoy_rate": plain.metrics["decoy_rate"],
        "tpr_at_1pct": plain.metrics["tpr_at_1pct"],
        "test_accuracy": game.test_accuracy,
        "residual_at_truth": report["residual_at_truth"],
        "on_margin": report["on_margin"],
    }, game.findings(found, plain, spec)


def _chosen(game: MarginGame, train: Records) -> Tensor:
    """(n,) who is protected; without a defence, the half that one of the margin would protect."""
    recipe = game.recipe
    if isinstance(recipe, MarginDescent):
        recipe = ProtectedDescent(recipe, NoisyMargin(1.0, share=_HALF))
    centred = Records(train.inputs - game.victim.centre, train.labels, train.classes)
    initial = recipe.network.initial(game.key.fold("victim"))
    return recipe.protected(initial, centred, key=game.key.fold("defence"), store=game.run.store)


def _claims(setting: _Setting, m: Mapping[str, float]) -> Claims:
    strong = setting.strengths[-1]
    margin, random = f"record.margin.{strong:g}", f"record.random.{strong:g}"
    everyone, white = f"record.all.{strong:g}", f"white.all.{setting.middle:g}"
    none = m["none.good"]
    return {
        "protected": (
            "Records on the margin that are trained on with noise no longer come back",
            "left for later",
            f"{m[f'{margin}.good_chosen']:g} against {m['none.good_chosen']:g} without",
            m[f"{margin}.good_chosen"] <= 0.1 * m["none.good_chosen"],
        ),
        "enough": (
            "It is enough to protect the half on the margin: fewer than half as many come back",
            "left for later",
            f"{m[f'{margin}.good']:g} against {none:g}; of the others "
            f"{m[f'{margin}.good_others']:g} instead of {m['none.good_others']:g}",
            m[f"{margin}.good"] < 0.5 * none,
        ),
        "margin-not-random": (
            "Protecting those on the margin saves more than protecting as many at random",
            "samples on the margin are the ones at risk",
            f"{m[f'{margin}.good']:g} left against {m[f'{random}.good']:g}",
            m[f"{margin}.good"] < m[f"{random}.good"],
        ),
        "all": (
            "Noise of a record's own spectrum on all records stops the attack, smoothed or not",
            "—",
            f"{max(m[f'{everyone}.good'], m[f'{everyone}.good_smoothed']):g} of {none:g} left; accuracy "
            f"{m[f'{everyone}.test_accuracy']:.3f} instead of {m['none.test_accuracy']:.3f}",
            max(m[f"{everyone}.good"], m[f"{everyone}.good_smoothed"]) <= 0.1 * none,
        ),
        "white": (
            "White noise that stops the plain attack also stops one that smooths",
            "—",
            f"{m[f'{white}.good']:g} plain, {m[f'{white}.good_smoothed']:g} smoothed, {none:g} without noise",
            m[f"{white}.good_smoothed"] < 0.5 * none,
        ),
        "early": (
            f"Stopping at a loss of {_EARLY:g} halves the count",
            "—",
            *fewer(m["early.good"], none, share=0.5),
        ),
    }


def _charts(setting: _Setting, m: Mapping[str, float]) -> list[Chart]:
    noise = "norm of the noise, over that of a record"
    kinds = {
        "white, all": ("white.all", "good"),
        "white, all, smoothed": ("white.all", "good_smoothed"),
        "spectrum, all, smoothed": ("record.all", "good_smoothed"),
        "spectrum, margin half": ("record.margin", "good"),
        "spectrum, random half": ("record.random", "good"),
    }
    trained = {name.removesuffix(", smoothed"): kind for name, (kind, _) in kinds.items()}

    def series(kind: str, metric: str) -> list[Point]:
        start = Point(0.0, m[f"none.{metric}"])
        return [start, *(Point(s, m[f"{kind}.{s:g}.{metric}"]) for s in setting.strengths)]

    good = {name: series(kind, metric) for name, (kind, metric) in kinds.items()}
    right = {name: series(kind, "test_accuracy") for name, kind in trained.items()}
    return [
        Chart("Images that come back", noise, "images with SSIM above 0.4", good),
        Chart("What it costs", noise, "test accuracy", right),
    ]


STUDY = Study("margin-defence", _SCALES, _run)
