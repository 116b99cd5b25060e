"""What a stated privacy allows any attack, beside what the attacks of an audit reach.

The targets of a privately trained model come in lists of ten. The adversary is told which list its record is
on, and has to say which of the ten it is: by guessing, one time in ten. The same releases answer this
question to the prior-aware attack, from their final weights and from every step, and to the attacks that
reconstruct, whose answer is snapped to the list. For the latter, being within a mean squared error of eta
counts as well.

A channel of a split network has a bound of the same kind. Its namer knows the head and all inputs that come
into question; only the noise is unknown to it.

Where an attack is certainly above its bound, training, noise or numbers are not what is stated: an alarm.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from exhume.attacks.informed.prior_aware import FittedPriorAware, PriorAware
from exhume.auditing.kinds.training_game import Game
from exhume.bounds.channel import bits, naming
from exhume.bounds.channel import success as channel_success
from exhume.bounds.dp_sgd import dp_sgd
from exhume.bounds.prior import (
    ALARM_LEVEL,
    Certificate,
    Kappa,
    certify,
    kappa_of_balls,
    kappa_of_naming,
)
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Recipe,
    Records,
    Shard,
    Status,
    Store,
    Weights,
    silent,
)
from exhume.core.results import AttackSpec, Findings, LimitRow, PrivacyLimits, Section
from exhume.models.split.channel import likeliest
from exhume.models.split.pipeline import Pipeline
from exhume.score.measures import mse
from exhume.score.targets import named_rightly, nearest_is_right
from exhume.score.verdict import broken, not_audited
from exhume.settings import VictimSettings
from exhume.store.shards import address, digest
from exhume.train.dp import ClaimedPrivacy, Privacy, epsilon, read_from_opacus
from exhume.train.optimisers import Descent
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_trails

_INSIDE = ("surely", "of")  # of a certificate: not in the result


@dataclass(frozen=True, eq=False)
class CertificateTable:
    """Every comparison, by attack and game, and what has to be said about them."""

    made: Mapping[tuple[str, str], Certificate]
    notes: tuple[str, ...]

    def section(self) -> PrivacyLimits:
        """For the result: numbers and words, no records."""
        rows = []
        for (attack, game), one in self.made.items():
            numbers = {name: value for name, value in asdict(one).items() if name not in _INSIDE}
            rows.append(
                LimitRow(attack=attack, game=game, **numbers, rate=one.rate, alarm=one.alarm)
            )
        return PrivacyLimits(self.alarm, self.notes, tuple(rows))

    @property
    def alarm(self) -> str:
        """In words; empty where there is none."""
        loud = [
            f"{attack} ({game}): {one.sentence()}"
            for (attack, game), one in self.made.items()
            if one.alarm
        ]
        return " ".join(loud)


_REASON = "why"


def claimed_privacy(
    victim: VictimSettings,
    recipe: Recipe,
    fixed: Records,
    initial: Tensor,
    *,
    key: Key,
    store: Store,
) -> ClaimedPrivacy | NotApplicable | None:
    """None: training is not private, or nobody says so. A reason: it is, but there is no certificate."""
    if isinstance(recipe, FullBatch):
        return (
            ClaimedPrivacy(recipe.privacy, recipe.descent.steps) if recipe.privacy.noise else None
        )
    if not isinstance(recipe, OwnTraining):
        return None
    said = None
    if victim.dp_noise:
        said = ClaimedPrivacy(
            Privacy(victim.dp_clip, victim.dp_noise, victim.dp_sampling), victim.dp_steps
        )
    read = _read(recipe, fixed, initial, key, store)
    if said is not None and isinstance(read, ClaimedPrivacy):
        _check_same(said, read)
    return read or said


def _read(
    recipe: OwnTraining, fixed: Records, initial: Tensor, key: Key, store: Store
) -> ClaimedPrivacy | NotApplicable | None:
    """By training once on as many records as a released model has; kept in the store."""
    place = address("stated privacy 1", recipe, (digest(fixed), digest(initial)), key, 0)
    held = store.load(place)
    if held is None or not held.notes:
        held = _held(recipe, fixed, initial, key)
        store.save(place, held)
    if _REASON in held.notes:
        return NotApplicable(held.notes[_REASON], ever=True)
    if not held.notes["privacy"]:
        return None
    clip, noise, sampling, steps = held.notes["privacy"]
    return ClaimedPrivacy(Privacy(clip, noise, sampling), steps, "Opacus")


def _held(recipe: OwnTraining, fixed: Records, initial: Tensor, key: Key) -> Shard:
    one_more = Records(fixed.inputs[None, :1], fixed.labels[None, :1], fixed.classes)
    try:
        read = read_from_opacus(lambda: recipe.fit(initial, fixed, one_more, key))
    except NotApplicable as why:
        return Shard({}, {_REASON: why.why})
    if read is None:
        return Shard({}, {"privacy": []})
    one = read.privacy
    return Shard({}, {"privacy": [one.clip, one.noise, one.sampling, read.steps]})


def _check_same(said: ClaimedPrivacy, read: ClaimedPrivacy) -> None:
    pairs = {
        "dp_clip": (said.privacy.clip, read.privacy.clip),
        "dp_noise": (said.privacy.noise, read.privacy.noise),
        "dp_sampling": (said.privacy.sampling, read.privacy.sampling),
        "dp_steps": (float(said.steps), float(read.steps)),
    }
    for name, (mine, theirs) in pairs.items():
        if abs(mine - theirs) > 1e-6 * abs(theirs):
            raise ExhumeError(f"victim.{name}: {mine:g} given, but Opacus trained with {theirs:g}")


@dataclass(frozen=True)
class Allowed:
    """What guessing reaches, and what the stated privacy allows: for naming, and within an error."""

    naming: float  # kappa
    within: Kappa
    eta: float  # mean squared error
    noise: float
    steps: int
    sampling: float = 1.0

    def bound(self, loss: str) -> tuple[float, float]:
        """kappa and gamma of the loss, "naming" or "within"."""
        kappa = self.naming if loss == "naming" else self.within.high
        return kappa, dp_sgd(kappa, self.noise, self.steps, self.sampling).gamma


def allowed_by(privacy: Privacy, steps: int, listed: Records, eta: float) -> Allowed:
    """Full-batch training, where every step sees the record, or Poisson sampling."""
    if not privacy.noise:
        raise ExhumeError("dp_noise: 0 given; without noise nothing is guaranteed")
    return Allowed(
        kappa_of_naming(listed.inputs),
        kappa_of_balls(listed.inputs, eta),
        eta,
        privacy.noise,
        steps,
        privacy.sampling,
    )


def named_by_steps(
    prepared: FittedPriorAware,
    recipe: FullBatch,
    initial: Tensor,
    targets: Records,
    *,
    key: Key,
    first: int = 0,
    draws: bool = True,
    chunk: int = 16,
    progress: Progress = silent,
) -> Tensor:
    """(t,) bool: was the record named by an adversary who saw every step of its training?

    draws: whether it also saw which of the fixed records each step has drawn.
    The releases of `release_one_each` with this key, trained again: a fleet does not keep its steps.
    """
    right: list[Tensor] = []
    stage = "attacking every step"
    progress(stage, 0, len(targets))
    for start in range(0, len(targets), chunk):
        release, secret = release_trails(
            recipe,
            initial,
            prepared.fixed,
            targets[start : start + chunk],
            key=key,
            first=first + start,
            draws=draws,
        )
        right.append(named_rightly(secret, prepared.run(release), prepared.candidates))
        progress(stage, min(start + chunk, len(targets)), len(targets))
    return torch.cat(right)


LISTED = 10  # candidates on a list
_STEPS, _END = "Prior-aware attack, every step seen", "Prior-aware attack, final weights"
_NAMING = "the record named among {}"


_DELTA = 1e-5
PRIOR_AWARE = AttackSpec(
    "prior-aware",
    "Naming the record among ten",
    "Hayes et al. 2023",
    "the weights, after every step and at the end",
)


def audit_limits(
    game: Game,
    targets: Records,
    found: Sequence[Findings],
    *,
    chunk: int,
    store: Store,
    draws: bool = True,
    stated: ClaimedPrivacy | None = None,
    progress: Progress = silent,
) -> Findings:
    """The section of the report. Naming one of ten is no reconstruction: only an alarm counts.

    found: the attacks on all targets that were run before. draws: where steps draw their records, whether an
    adversary who sees every step sees which of the known ones it has drawn. stated: of training that is the
    owner's own.
    """
    recipe = game.recipe
    answers = {f.section.spec.name: f.evidence["reconstructions"] for f in found if f.evidence}
    if stated is not None and not isinstance(recipe, FullBatch):
        return _by_answers(game, stated, targets, answers)
    if not isinstance(recipe, FullBatch) or not recipe.privacy.noise:
        why = NotApplicable(
            f"recipe: full-batch private training is needed, not {recipe}", ever=True
        )
        return _refused(game, why)
    started = time.perf_counter()
    limits = _measured(
        recipe,
        game.victim[0],
        targets,
        game.knowledge,
        answers,
        key=game.key,
        chunk=chunk,
        store=store,
        draws=draws,
        progress=progress,
    )
    seconds = time.perf_counter() - started
    knows = ["recipe", "initial", "fixed", "candidates"]
    cost = Cost(seconds, models=2 * len(targets) + PriorAware.draws)
    return _findings(game, limits, knows, cost)


def _by_answers(
    game: Game, stated: ClaimedPrivacy, targets: Records, answers: dict[str, Tensor]
) -> Findings:
    """Training that cannot be done without its noise: what the other attacks found, beside the bound."""
    if not answers:
        why = NotApplicable("no attack before it has reconstructed anything to compare", ever=True)
        return _refused(game, why)
    privacy, steps = stated.privacy, stated.steps
    spent = epsilon(privacy.noise, steps, delta=_DELTA, sampling=privacy.sampling)
    facts = {**game.facts, "privacy": str(stated), "epsilon": spent, "delta": _DELTA}
    limits = _of_answers(stated, targets, answers)
    known = list(game.knowledge.known())
    return _findings(replace(game, facts=facts), limits, known, Cost(), sees="the released weights")


def _refused(game: Game, why: NotApplicable) -> Findings:
    section = Section.inapplicable(PRIOR_AWARE, why, game.knowledge.known())
    return Findings(section, not_audited(why.why), facts=game.facts)


def _findings(
    game: Game,
    measured: CertificateTable,
    knows: list[str],
    cost: Cost,
    sees: str = PRIOR_AWARE.sees,
) -> Findings:
    best = next(iter(measured.made.values()))  # the strongest that could be tried comes first
    alarm = measured.alarm
    section = Section(
        replace(PRIOR_AWARE, sees=sees),
        Status(Outcome.CONVERGED),
        tuple(knows),
        {
            "named": best.rate,
            "named_low": best.low,
            "named_high": best.high,
            "guessing": best.kappa,
            "allowed": best.bound,
        },
        counts=bool(alarm),
        cost=cost,
        limits=measured.section(),
    )
    verdict = broken(alarm) if alarm else not_audited("naming reconstructs nothing")
    return Findings(section, verdict, facts=game.facts)


def _measured(
    recipe: FullBatch,
    release: Weights,
    targets: Records,
    known: Knowledge,
    answers: Mapping[str, Tensor],
    *,
    key: Key,
    chunk: int,
    store: Store,
    draws: bool = True,
    progress: Progress = silent,
) -> CertificateTable:
    """The audit's own releases, asked another question.

    release: one model per target, by `release_one_each` with this key; known: recipe, start, fixed set.

    answers: (t, *shape) of each attack that reconstructs, by its name. draws: see `named_by_steps`.
    """
    size, groups = _lists(targets)
    listed = _shuffled(targets, groups, key.fold("lists"))
    attack = PriorAware(chunk=chunk)
    prepared = attack.prepare(
        replace(known, shadow=None, public=None, candidates=listed),
        key=key.fold("prior-aware"),
        store=store,
        progress=progress,
    )
    naming = _NAMING.format(size)
    right: dict[tuple[str, str], Tensor] = {}
    ends, steps = [], []
    for group in groups:
        own, among = targets[group], prepared.among(group)
        found = among.run(Weights(release.parameters[group], release.layout)).candidates[:, 0]
        ends.append(nearest_is_right(found, own.inputs, own.inputs))
        if isinstance(recipe.descent, Descent):
            assert known.initial is not None  # or it could not have been prepared
            steps.append(
                named_by_steps(
                    among, recipe, known.initial, own, key=key, first=group.start, draws=draws
                )
            )
            progress("attacking every step", group.stop, len(listed))
    if steps:
        right[_STEPS, naming] = torch.cat(steps)
    right[_END, naming] = torch.cat(ends)
    right |= _snapped(targets, answers)
    stated = ClaimedPrivacy(recipe.privacy, recipe.descent.steps)
    undone = "" if steps else "only steps of gradient descent can be undone"
    return _certified(right, stated, targets, answers, undone)


def _of_answers(
    stated: ClaimedPrivacy, targets: Records, answers: Mapping[str, Tensor]
) -> CertificateTable:
    """Attacks that reconstruct, with their answers snapped, where only the owner can do the training."""
    why = "training that cannot be done without its noise cannot be reckoned with"
    return _certified(_snapped(targets, answers), stated, targets, answers, why)


def _lists(targets: Records) -> tuple[int, list[slice]]:
    size = min(LISTED, len(targets))
    return size, [slice(start, start + size) for start in range(0, len(targets) - size + 1, size)]


def _snapped(targets: Records, answers: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Which answers are nearest to the right record of their list."""
    size, groups = _lists(targets)
    right = {}
    for name, given in answers.items():
        found = [nearest_is_right(given[g], targets[g].inputs, targets[g].inputs) for g in groups]
        right[name, _NAMING.format(size)] = torch.cat(found)
    return right


def _shuffled(targets: Records, groups: Sequence[slice], key: Key) -> Records:
    """The lists, each in an order that says nothing: copies, list after list."""
    generator = key.generator()
    orders = [
        torch.arange(g.start, g.stop)[torch.randperm(g.stop - g.start, generator=generator)]
        for g in groups
    ]
    rows = torch.cat(orders).to(targets.labels.device)
    return Records(targets.inputs[rows], targets.labels[rows], targets.classes)


def _certified(
    right: dict[tuple[str, str], Tensor],
    stated: ClaimedPrivacy,
    targets: Records,
    answers: Mapping[str, Tensor],
    undone: str,
) -> CertificateTable:
    privacy, steps = stated.privacy, stated.steps
    kappas = [kappa_of_naming(targets[group].inputs) for group in _lists(targets)[1]]
    eta = _reach(targets.inputs)
    within = allowed_by(privacy, steps, targets, eta)
    listed, naming = len(right[next(iter(right))]), set(right)
    for name, given in answers.items():
        right[name, f"mean squared error of at most {eta:.3g}"] = mse(given, targets.inputs) <= eta
    # lists may differ in kappa; what is allowed on average is the average of what is allowed
    bounds = [dp_sgd(kappa, privacy.noise, steps, privacy.sampling).gamma for kappa in kappas]
    named = fmean(kappas), fmean(bounds)
    made = {}
    for (attack, game), success in right.items():
        kappa, bound = named if (attack, game) in naming else within.bound("within")
        made[attack, game] = certify(
            int(success.sum()), len(success), kappa=kappa, bound=bound, comparisons=len(right)
        )
    return CertificateTable(made, _notes(stated, within, len(targets) - listed, undone))


def _reach(records: Tensor) -> float:
    """A quarter of the usual squared distance to the nearest other record: balls of two hardly meet."""
    flat = records.flatten(1).double()
    apart = torch.cdist(flat, flat).square().fill_diagonal_(torch.inf) / flat.shape[1]
    return float(apart.min(1).values.median()) / 4


def _notes(stated: ClaimedPrivacy, within: Allowed, left_out: int, undone: str) -> tuple[str, ...]:
    kappa = within.within
    privacy = stated.privacy
    formula = "Phi(Phi^-1(kappa) + sqrt(T)/sigma)"
    drawn = ""
    if privacy.samples:
        formula = "that of the sampled Gaussian mechanism (its loss distribution)"
        drawn = f", sampling rate {privacy.sampling:g}"
    notes = [
        f"The bound is {formula} for T = {stated.steps} steps, noise "
        f"multiplier {privacy.noise:g}{drawn} and clip {privacy.clip:g}; kappa is what guessing "
        "reaches. No attack exceeds it if training is as stated, not even one that sees every step.",
        f"For a mean squared error of {within.eta:.3g}, the best single guess is right for {kappa.low:.2%} "
        f"to {kappa.high:.2%} of the targets; the bound takes the larger.",
        f"An alarm means that the exact lower limit of the success, at {ALARM_LEVEL:g} over the number of "
        "rows, is above the bound.",
    ]
    if within.bound("naming")[1] > 0.99:
        notes.append("At this noise the stated privacy forbids practically nothing.")
    if undone:
        notes.append(f"Every step: not tried, since {undone}.")
    if left_out:
        notes.append(
            f"{left_out} targets that fill no list of {LISTED} were left out of the naming."
        )
    return tuple(notes)


_FEW = 10  # inputs on a short list
_REQUESTS = 2_000
_SPEC = AttackSpec(
    "channel-namer",
    "Naming the input, the head and all inputs known",
    "ours",
    "what the client sends, and everything but its noise",
)


def audit_channel(
    pipeline: Pipeline, inputs: Records, met: Sequence[Findings], key: Key
) -> Findings:
    """The section of the report. Naming a listed input is no reconstruction: only an alarm counts.

    inputs: those that come into question; met: the other attackers of the same channel.
    """
    started, pool = time.perf_counter(), inputs.inputs
    sigma, quiet = pipeline.client.sigma, replace(pipeline.client, sigma=0.0)
    words = replace(pipeline, client=quiet).released(pool)
    made = {}
    for count in sorted({min(_FEW, len(pool)), len(pool)}):
        right = _named(pipeline, pool, words, count, key.fold("among", count))
        game = f"the input named among {count:,}"
        made[_SPEC.name, game] = _certificate(right, count, words.shape[1], sigma)
    measured = CertificateTable(made, _channel_notes(words.shape[1], sigma, met))
    alarm, best = measured.alarm, next(iter(made.values()))
    metrics = {"named": best.rate, "guessing": best.kappa, "allowed": best.bound}
    section = Section(
        _SPEC,
        Status(Outcome.CONVERGED),
        ("candidates", "parts"),
        metrics,
        counts=bool(alarm),
        cost=Cost(time.perf_counter() - started),
        limits=measured.section(),
    )
    verdict = broken(alarm) if alarm else not_audited("naming reconstructs nothing")
    return Findings(section, verdict)


def identified_at_most(strangers: int, sigma: float) -> float:
    """Share of inputs that any attack may identify among so many strangers, by either of two measures."""
    return channel_success(min(1.0, 2 / (strangers + 1)), sigma)


def _named(pipeline: Pipeline, pool: Tensor, words: Tensor, count: int, key: Key) -> Tensor:
    """(r,) bool: requests of inputs from lists of so many, each list drawn anew unless it is all of them."""
    draw = key.generator()
    if count == len(pool):
        which = torch.randint(count, (_REQUESTS,), generator=draw)
        sent = pipeline.released(pool[which], key.fold("noise"))
        return likeliest(sent, words)[0].cpu() == which
    lists = torch.stack(
        [torch.randperm(len(pool), generator=draw)[:count] for _ in range(_REQUESTS)]
    )
    sent = pipeline.released(pool[lists[:, 0]], key.fold("noise"))
    nearest = (sent[:, None] - words[lists]).norm(dim=2).argmin(1).cpu()
    named: Tensor = nearest == 0
    return named


def _certificate(right: Tensor, count: int, numbers: int, sigma: float) -> Certificate:
    bound = naming(count, numbers, sigma)
    total = int(right.sum()), len(right)
    return certify(*total, kappa=1 / count, bound=bound, comparisons=2, of="the channel")


def _channel_notes(numbers: int, sigma: float, met: Sequence[Findings]) -> tuple[str, ...]:
    told, ten = bits(numbers, sigma), bits(numbers, sigma, 10)
    notes = [
        f"A request is {numbers} numbers of length at most 1 with fresh Gaussian noise of {sigma:.3g}: at "
        f"most {told:.3g} bits about its input, on average over inputs (not for each of them).",
        "The bound is min{1, (b + 1)/log2 K, Phi(Phi^-1(1/K) + 1/sigma)} for naming one of K. It holds for "
        "every attacker, whatever it knows of the network, if the noise is an ideal Gaussian, fresh for "
        "every request, and nothing else is sent.",
        f"Ten requests of the same input are worth {ten:.3g} bits; of ten different ones, {10 * told:.3g}.",
        f"An alarm means that the exact lower limit of the success, at {ALARM_LEVEL:g} over the number of "
        "rows, is above the bound.",
    ]
    rows = [one.section.lineup for one in met if one.section.lineup is not None]
    if rows:
        most = identified_at_most(min(row.strangers for row in rows), sigma)
        notes.append(
            f"In the line-ups of this channel, no attack can identify more than {most:.1%} of the inputs, on "
            "average."
        )
    return tuple(notes)
