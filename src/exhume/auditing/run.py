"""The audit, top to bottom: what is released, which attacks apply, what they found, the verdict, the page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from exhume import data
from exhume.auditing.acts import Act, CheckpointAct, TrainingAct, UpdateAct
from exhume.auditing.brief import Brief
from exhume.auditing.checkpoint.attack import opened
from exhume.auditing.estimate import seconds_per_model
from exhume.auditing.findings import Audit, Findings, pages_of
from exhume.auditing.fixes import chart_of, try_fixes
from exhume.auditing.fixes_for import fixes_for
from exhume.auditing.linear.release import FittedAct
from exhume.auditing.plan import Planned, choose
from exhume.auditing.split.release import SplitAct
from exhume.auditing.training.claimed_privacy import stated_by
from exhume.auditing.training.game import check_apart, dealt, start_of
from exhume.auditing.updates.attack import gathered
from exhume.choices import recipe_for, resolve, sized, threads_for
from exhume.contract import (
    ExhumeError,
    Key,
    NotApplicable,
    Progress,
    Recipe,
    Records,
    Store,
    silent,
)
from exhume.report.folder import RunFolder, environment
from exhume.score.verdict import Verdict, broken, gravest, not_audited
from exhume.settings import Settings
from exhume.train.claimed_privacy import Stated

__all__ = ["audit"]


def audit(
    brief: Brief | Settings,
    out: Path,
    *,
    progress: Progress = silent,
    redact: bool = False,
    fitted: tuple[object, Records] | None = None,
) -> Audit:
    """Attack everything that the brief says is released; write the run folder; say the verdict.

    The same brief and folder resume a stopped run and end with the same bits.
    fitted: a linear model in memory and what it was fitted on, in the place of [fitted] and [data].
    """
    started = time.perf_counter()
    if isinstance(brief, Settings):
        brief = Brief(brief)
    given = _gather(brief, out, progress, fitted)
    folder = RunFolder.create(out)
    brief, acts = _resolved(brief, given, folder)
    torch.set_num_threads(brief.settings.machine.threads)
    folder.write_json("environment.json", environment())
    offers = [replace(offer, release=act.title) for act in acts for offer in act.offers()]
    plan = choose(offers, brief.budget.seconds)
    found, plan_told = _run(plan, folder, progress)
    alarm = _alarm(found)
    releases = _releases(acts, found, plan)
    verdict = broken(alarm) if alarm else _overall(releases)
    strongest = max(found, key=_success, default=None)
    for act in acts:
        if isinstance(act, TrainingAct):
            act.write_risk(folder)
    fixes = _fixes(brief, acts, found, folder, progress) if brief.budget.fixes else []
    before = {
        name: max((_success(one) for one in found if one.section["release"] == name), default=0.0)
        for name in releases
    }
    folder.write_json(
        "result.json",
        {
            "schema": 1,
            "kind": "audit",
            "title": _title(brief),
            "data": brief.settings.data.source,
            "seed": brief.settings.seed,
            "verdict": asdict(verdict),
            "attacks": [findings.section for findings in found],
            "plan": plan_told,
            "fixes": fixes,
            "releases": [_told(*one, fixes) for one in releases.items()],
            "charts": [chart.plain() for chart in chart_of(fixes, before)],
            "victim": _facts(found),
            "classes": next((act.classes for act in acts if act.classes), []),
            "deviations": list(dict.fromkeys(d for act in acts for d in act.deviations)),
            "wall_seconds": time.perf_counter() - started,
        },
    )
    report, redacted = pages_of(folder, redact=redact, progress=progress)
    metrics = strongest.metrics if strongest else {}
    advice = tuple(row["sentence"] for row in fixes)
    return Audit(verdict, metrics, folder.path, report, redacted, advice, alarm)


# What is released


@dataclass(frozen=True, eq=False)
class _Given:
    """Everything that is read before anything is written."""

    records: Records | None
    acts: list[Act]  # those that need no run folder


def _gather(
    brief: Brief, out: Path, progress: Progress, fitted: tuple[object, Records] | None
) -> _Given:
    settings = brief.settings
    loaded: dict[tuple[str, data.Reading], Records] = {}

    def load(source: str, reading: data.Reading = data.Reading()) -> Records:  # noqa: B008 - frozen
        if (source, reading) not in loaded:
            loaded[source, reading] = data.load(source, reading=reading, progress=progress)
        return loaded[source, reading]

    check_apart(out, settings.data.source)
    acts: list[Act] = []
    records = load(settings.data.source) if brief.weights else None
    if records is not None:
        resolve(settings, records)  # refuses what cannot be
    if brief.checkpoint is not None:
        acts.append(CheckpointAct(brief.checkpoint, opened(brief.checkpoint, progress=progress)))
    if brief.update is not None:
        own = brief.update
        theirs = load(own.data, own.reading()) if own.data else records
        built_in = None
        if own.made and not own.model and theirs is not None:
            built_in = recipe_for(settings, theirs).architecture
        names = list(theirs.classes) if theirs is not None else []
        cases = gathered(own, theirs, built_in)
        acts.append(UpdateAct.of(own, cases, names, brief.budget.seconds))
    if brief.split is not None:
        acts.append(SplitAct.of(brief.split, load(brief.split.data)))
    if brief.fitted is not None:
        model, on = fitted or (None, load(settings.data.source))
        acts.append(FittedAct.of(brief.fitted, on, settings.seed, model))
    return _Given(records, acts)


def _resolved(brief: Brief, given: _Given, folder: RunFolder) -> tuple[Brief, list[Act]]:
    """The brief with every choice made and written down, and what it says is released."""
    linear = [act for act in given.acts if isinstance(act, FittedAct)]
    if linear:
        brief = replace(brief, fitted=linear[0].settings)
    if not brief.weights:
        machine = brief.settings.machine
        machine = replace(machine, threads=threads_for(machine.threads))
        brief = brief.with_settings(replace(brief.settings, machine=machine))
        return brief.taken_up(folder), given.acts
    assert given.records is not None  # weights are trained on them
    settings = resolve(brief.settings, given.records)
    seconds = _per_model(settings, given.records, folder.store())
    if brief.budget.seconds is not None:
        asked = sized(brief.settings, len(given.records), seconds, brief.budget.seconds)
        settings = resolve(asked, given.records)
    brief = brief.with_settings(settings).taken_up(folder)
    recipe = recipe_for(brief.settings, given.records)
    stated = _stated(brief.settings, recipe, given.records, folder.store())
    training = TrainingAct(brief.settings, given.records, recipe, seconds, stated)
    return brief, [training, *given.acts]


def _per_model(settings: Settings, records: Records, store: Store) -> float:
    recipe, key = recipe_for(settings, records), Key.from_seed(settings.seed)
    return seconds_per_model(
        recipe,
        dealt(settings, records).fixed,
        threads=settings.machine.threads,
        initial=start_of(settings, recipe, key),
        key=key,
        store=store,
    )


def _stated(
    settings: Settings, recipe: Recipe, records: Records, store: Store
) -> Stated | NotApplicable | None:
    key = Key.from_seed(settings.seed)
    fixed, initial = dealt(settings, records).fixed, start_of(settings, recipe, key)
    return stated_by(settings.victim, recipe, fixed, initial, key=key, store=store)


# What was found


def _run(
    plan: Sequence[Planned], folder: RunFolder, progress: Progress
) -> tuple[list[Findings], list[dict[str, Any]]]:
    """Every attack that was chosen, and the plan with what each really took."""
    found: list[Findings] = []
    told: list[dict[str, Any]] = []
    for planned in plan:
        run = planned.offer.run
        if not planned.taken or run is None:
            told.append(planned.told())
            continue
        started = time.perf_counter()
        new = run(folder, progress)
        told.append(planned.told(time.perf_counter() - started))
        for findings in new:
            findings.section["verdict"] = findings.verdict.word
            findings.section["release"] = planned.offer.release
            if findings.evidence:
                name = f"{findings.section['id']}.safetensors"
                folder.write_tensors(name, findings.evidence)
                findings.section["evidence"] = name
        found += new
    return found, told


def _fixes(
    brief: Brief,
    acts: Sequence[Act],
    found: Sequence[Findings],
    folder: RunFolder,
    progress: Progress,
) -> list[dict[str, Any]]:
    """As much time again as the attacks had, so that the estimate alone decides what is tried."""
    return try_fixes(fixes_for(acts, found), brief.budget.seconds, folder, progress)


def _releases(
    acts: Sequence[Act], found: Sequence[Findings], plan: Sequence[Planned]
) -> dict[str, Verdict]:
    """The verdict on each thing that is released, by its name.

    One attack that succeeds is enough; where none could be run, nothing is known.
    """
    verdicts = {}
    for act in acts:
        own = [one for one in found if one.section["release"] == act.title and one.counts]
        left = [one for one in plan if one.offer.release == act.title]
        reasons = "; ".join(f"{one.offer.name}: {one.why}" for one in left)
        own.sort(key=_success, reverse=True)  # of equal words, the sentence of the strongest
        judged = [one.verdict for one in own]
        verdicts[act.title] = gravest(judged) if judged else not_audited(reasons)
    return verdicts


def _overall(releases: Mapping[str, Verdict]) -> Verdict:
    """Of one release its own; of several the gravest word, and every sentence."""
    verdicts = list(releases.values())
    if len(verdicts) == 1:
        return verdicts[0]
    word = gravest(verdicts).word
    count = sum(verdict.word == word for verdict in verdicts)
    some = f"{count} of {len(verdicts)} releases"
    rest = "" if count == len(verdicts) else "; the others were not audited"
    says = {
        "leaks": f"{some} leak.",
        "no leak found": f"No leak found in {some}{rest}.",
        "not audited": "Not audited: no attack could be run on any release.",
    }
    detail = " ".join(f"{name.capitalize()}: {one.sentence}" for name, one in releases.items())
    return Verdict(word, says[word], detail)


def _told(name: str, verdict: Verdict, fixes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """One line of the overview: a release, its verdict, and the best fix that was tried."""
    own = [row for row in fixes if row["release"] == name and row["tried"]]
    best = own[0]["sentence"] if own and own[0]["verdict"] == "no leak found" else ""
    if own and not best:
        best = "None of the fixes that were tried stops it."
    return {"name": name, **asdict(verdict), "fix": best}


def _alarm(found: Sequence[Findings]) -> str:
    """Where an attack did better than private training, as stated, allows any attack."""
    alarms = (findings.section.get("limits", {}).get("alarm", "") for findings in found)
    return " ".join(filter(None, alarms))


def _success(findings: Findings) -> float:
    metrics = findings.metrics if findings.counts else {}
    return metrics.get("success", metrics.get("good_share", -1.0))


def _facts(found: Sequence[Findings]) -> dict[str, str | float]:
    facts: dict[str, str | float] = {}
    for findings in found:
        for name, value in findings.victim.items():
            if facts.setdefault(name, value) != value:
                facts[f"{name} ({findings.section['name']})"] = value
    return facts


_TITLES = {
    "weights": "An informed adversary against a released classifier",
    "checkpoint": "Training images from released weights alone",
    "update": "What the updates of clients give away",
    "split": "What the features of a split network give away",
    "fitted": "What a fitted linear model gives away",
}


def _title(brief: Brief) -> str:
    released = [name for name in _TITLES if getattr(brief, name)]
    if not released:
        raise ExhumeError("brief: nothing is said to be released")
    return (
        _TITLES[released[0]] if len(released) == 1 else "What you release, and what it gives away"
    )
