"""What clients send in federated learning: updates from files, or made here of the user's records.

The line-up is of each client's records among those that no client had. A proof needs no records: training on
the reconstructions gives the update back (`auditing.proof`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span import decode
from exhume.auditing.case import (
    RUNG_TARGETS,
    Answer,
    Case,
    Fix,
    Inputs,
    Kind,
    Ladder,
    Load,
    Question,
    Row,
    Rung,
    Safer,
    Scored,
    Seats,
    another_seed,
)
from exhume.auditing.kinds.update_files import (
    ClientUpdate,
    Truth,
    client_updates,
    in_torchvision_order,
    model_for,
    private_records,
    reading_of,
    simulate_updates,
    updates_of_batches,
)
from exhume.auditing.kinds.update_rows import (
    NOTHING_KNOWN,
    SERVERS,
    NoiseBound,
    best_server,
    by_client,
    candidates_of,
    keeps_order,
    listed_words_verdict,
    noise_bound,
    observed_metrics,
    rows_on,
    seconds_to_search,
    server_rows,
    steps_behind,
    tokens_of,
    unproved_verdict,
    unscored_evidence,
    with_less_noise,
    with_search,
    with_words,
    wrong_records,
)
from exhume.auditing.premise import check_named_records, order_seconds
from exhume.auditing.proof import proof_of
from exhume.choices import recipe_for, threads_for
from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    ReleaseDefence,
    Store,
)
from exhume.core.evidence import Premise
from exhume.core.notation import about
from exhume.core.records import Column
from exhume.core.results import NOT_JUDGED, Facts, Findings
from exhume.defences.release import NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.mlp import MLP
from exhume.models.own_texts import TextModel
from exhume.report.folder import RunFolder
from exhume.score.batches import UpdateScores, score_updates
from exhume.score.intervals import rate_of
from exhume.score.places import Places, places_for
from exhume.score.texts import alike_lists, alike_texts, score_texts, score_words
from exhume.settings import Brief
from exhume.settings.releases import UpdateSettings
from exhume.store.shards import address, digest
from exhume.train.dp import NOT_PRIVATE
from exhume.train.local import Steps
from exhume.victims import keep_secret

_ENOUGH = 100  # steps of a search below which its silence is no evidence
_AT_ONCE = 2.0  # seconds: what may be compared before the plan is shown
_COMPARED = 0.2  # of a budget: what comparing the named records with the updates may take
_AS_TRUTH = 1.05  # times what the records themselves leave unexplained
_DEVIATIONS = (
    "Of several local steps most attacks see the average of their gradients; local-steps and gradient "
    "matching simulate them. Of an adapter, A is taken as it ended.",
    "Records are taken to lie in [0, 1] by gradient matching: put the client's normalisation into the model.",
)


def read_updates(brief: Brief, load: Load) -> UpdateCase | None:
    settings = brief.update
    if settings is None:
        return None
    records = load(settings.data, reading_of(settings)) if settings.data else None
    classes = tuple(records.classes) if records is not None else ()
    if settings.made:
        assert records is not None  # the settings see to it
        if settings.model:
            network = model_for(settings, records)
        else:
            network = recipe_for(brief.settings, records).architecture
        key = Key.from_seed(settings.seed)
        return UpdateCase(settings, *simulate_updates(settings, network, records, key), classes)
    updates = client_updates(settings, records)
    if records is None:
        return UpdateCase(settings, updates, None, classes)
    named, others = private_records(settings, records, [update.client for update in updates])
    case = UpdateCase(settings, updates, Truth(named, others, True), classes)
    seconds = order_seconds(updates, named)
    return replace(case, unchecked=seconds) if seconds > _AT_ONCE else case.checked(records)


@dataclass(frozen=True, eq=False)
class UpdateCase(Case):
    kind_name = "update"
    settings: UpdateSettings
    updates: list[ClientUpdate]
    truth: Truth | None
    classes: tuple[str, ...]
    unchecked: float | None = None  # seconds of comparing the named records with the updates

    # Read and plan

    def checked(self, records: Records | None = None) -> UpdateCase:
        """With what the named records say of the updates. records: the whole set they are named in."""
        assert self.truth is not None  # or there is nothing to compare
        reordered: dict[str, Records] = {}
        if records is not None:
            reordered = in_torchvision_order(self.settings, records, list(self.truth.private))
        updates, truth = check_named_records(self.updates, self.truth, reordered)
        return replace(self, updates=updates, truth=truth, unchecked=None)

    def made(self, folder: RunFolder, progress: Progress) -> UpdateCase:
        """The named records are compared with the updates here where that takes long."""
        if self.unchecked is None:
            return self
        progress("comparing the named records with the updates", 0, 1)
        case = self.checked()
        progress("comparing the named records with the updates", 1, 1)
        return case

    @property
    def title(self) -> str:
        return "the updates of clients"

    @property
    def deviations(self) -> tuple[str, ...]:
        return _DEVIATIONS

    @property
    def key(self) -> Key:
        return Key.from_seed(self.settings.seed)

    @property
    def net(self) -> Architecture:
        return self.updates[0].architecture

    def digests(self) -> dict[str, str]:
        sent = torch.cat([update.gradient.values.flatten().double() for update in self.updates])
        return {"update_digest": digest(sent)[:16]}

    def resolve_settings(self, brief: Brief, store: Store) -> Brief:
        """The budget turned into steps of the searches: they share what the exact attacks leave of it."""
        settings, budget = self.settings, brief.budget.seconds
        if budget is not None:
            most = min(settings.search_seconds, budget / 2, seconds_to_search(budget, self.updates))
            settings = replace(settings, search_seconds=most)
        if not settings.search_steps and not isinstance(self.net, TextModel):
            settings = with_search(settings, self.updates)
        return replace(brief, update=replace(settings, threads=threads_for(settings.threads)))

    def resolved(self, brief: Brief, store: Store) -> UpdateCase:
        assert brief.update is not None  # or it would not have been read
        case, budget, seconds = replace(self, settings=brief.update), brief.budget.seconds, None
        if self.truth is not None and budget is not None and self.unchecked is not None:
            seconds = self.unchecked if self.unchecked > _COMPARED * budget else None
        if seconds is None or self.truth is None:
            return case
        doubt = (
            f"the named records were not compared with the updates: finding the order of their batches takes "
            f"{about(seconds)}, more than {_COMPARED:.0%} of the budget"
        )
        return replace(case, unchecked=None, truth=replace(self.truth, doubt=doubt))

    def inputs(self) -> Inputs:
        given = self.settings
        doubts = dict.fromkeys(doubt for update in self.updates for doubt in update.doubts)
        columns: tuple[Column, ...] = ()
        if self.truth is not None:
            columns = next(iter(self.truth.private.values())).columns
            said = (self.truth.doubt, self.truth.wrong)
            doubts |= dict.fromkeys(doubt for doubt in said if doubt and doubt not in doubts)
        takes = ""
        if self.unchecked is not None:
            takes = (
                f"the named records are compared with the updates first: {about(self.unchecked)}"
            )
        return Inputs(
            *(given.data, given.seed, given.threads, self.classes),
            columns=columns,
            takes=takes,
            doubts=tuple(doubts),
        )

    def rows(self) -> list[Row]:
        rows = rows_on(self.settings, self.updates)
        if self.settings.server == "chooses":
            records = sum(update.batch_size or 0 for update in self.updates)
            rows += server_rows(self.net, records)
        return rows

    # Attack

    def questions(self, row: Row) -> list[Question]:
        return [self._question(row, update) for update in self.updates]

    def _question(self, row: Row, update: ClientUpdate) -> Question:
        key, size = self.key.fold("update", update.client, update.round), update.batch_size
        net = update.architecture
        steps = replace(update.steps, privacy=NOT_PRIVATE)  # the noise is in the update
        local = steps.of(net) if steps != Steps() else None
        what = (update.fingerprint(),) + ((repr(steps),) if local else ())
        place = address(f"audit-update {row.id} 1", row.attack, what, key, size or 0)
        known = Knowledge(architecture=net, batch_size=size, local=local)
        return Question(update.gradient, known, key.fold(row.id), update.client, update, place)

    def learnt(self, row: Row, question: Question, earlier: Mapping[str, Answer]) -> Question:
        """With the batch size, where an attack has counted it and proved its count."""
        update: ClientUpdate = question.source
        if update.batch_size is not None:
            return question
        for answer in earlier.values():
            if answer.proof.residual is not None and answer.proof.records:
                return self._question(row, replace(update, batch_size=answer.proof.records))
        span = earlier.get("span")
        if span is not None and "batch_size" in span.found.observed:
            counted = int(span.found.observed["batch_size"])
            return self._question(row, replace(update, batch_size=counted))
        return question

    def settled(self, question: Question, earlier: Sequence[Answer]) -> bool:
        """Every record of the batch is proved."""
        most = max((answer.proof.records for answer in earlier), default=0)
        size = question.knowledge.batch_size
        return size is not None and most >= size

    def as_records(self, row: Row, question: Question, found: Reconstruction) -> Reconstruction:
        """Features of a deeper network, carried back through the known layers below."""
        update: ClientUpdate = question.source
        net = update.architecture
        same = found.candidates.shape[2:] == tuple(net.input_shape)
        if same or not row.whole or found.status.outcome is Outcome.NOT_APPLICABLE:
            return found
        assert isinstance(net, MLP)  # only its deeper layers are read so
        key = self.key.fold("update", update.client, update.round).fold("decode")
        records = decode(net, update.start(), found.candidates[0], key)
        return replace(found, candidates=records[None].to(update.gradient.values.dtype))

    def proved(self, row: Row, question: Question, found: Reconstruction) -> Answer:
        """Only the candidates that explain the whole update, with their labels, where there are such."""
        if not row.whole:
            return Answer(question, found)
        update: ClientUpdate = question.source
        steps = update.steps.still()
        proof = proof_of(update.gradient, update.architecture, found, steps, row.id)
        if proof.chosen is None or proof.labels is None:
            return Answer(question, found, proof)
        found = replace(
            found,
            candidates=found.candidates[:, proof.chosen],
            confidence=found.confidence[:, proof.chosen],
            labels=proof.labels[None],
        )
        return Answer(question, found, proof)

    # Judge

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        """Every record of a client against everything found in its updates."""
        truth, key = self.truth, self.key.fold("score")
        if truth is None:
            return None
        texts, alike = isinstance(self.net, TextModel), None
        if isinstance(self.net, TextModel):
            alike = alike_lists(self.net.padding)
            if row.whole:
                alike = alike_texts(self.net.padding, ordered=keeps_order(answers))
        found = [
            tokens_of(mine, records, row) if texts else candidates_of(mine, records)
            for mine, records in by_client(answers, truth)
        ]
        known = alike if row.whole else None
        return Seats(
            self.places,
            [one.found() for one in found],
            key.fold("line-up"),
            alike,
            () if texts else tuple(truth.private.values()),
            (self.places, key.fold("placebo"), known) if truth.chosen else None,
            wrong_records(answers, truth)[1],
            confidence=[] if texts else [one.sure() for one in found],
            groups=Records.joined(list(truth.private.values())).class_names(),
        )

    @cached_property
    def places(self) -> Places:
        """Each client's records among those that no client had."""
        assert self.truth is not None  # asked before
        private = list(self.truth.private.values())
        release = torch.cat([torch.full((len(r),), place) for place, r in enumerate(private)])
        padding = self.net.padding if isinstance(self.net, TextModel) else None
        key = self.key.fold("score").fold("places")
        return places_for(Records.joined(private), release, self.truth.others, key, padding=padding)

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        proved = self._proved(answers)
        metrics = observed_metrics(answers, proved)
        evidence: dict[str, Tensor] = {}
        verdict, leak = NOT_JUDGED, None
        if self.truth is not None and ranks is not None:
            scores = self._scores(row, answers, self.truth)
            metrics |= scores.metrics
            evidence = scores.evidence | {"rank": ranks}
        elif row.whole:
            evidence, verdict = unscored_evidence(answers), unproved_verdict(answers)
        else:
            metrics["listed"] = float(sum(a.found.candidates.shape[1] for a in answers))
            words = torch.unique(torch.cat([answer.found.found() for answer in answers]))
            evidence, verdict = {"listed": words}, NOTHING_KNOWN
            if row.certain:
                verdict = listed_words_verdict(answers)
                leak = rate_of(len(answers), len(answers))  # of every update all words are known
        if isinstance(self.net, TextModel):
            ordered = row.whole and keeps_order(answers)
            vocabulary = self.updates[0].vocabulary
            evidence = with_words(evidence, vocabulary, self.net.padding, ordered=ordered)
        notes = [answer.proof.sentence for answer in answers if answer.proof.sentence]
        if (bound := self._bound) is not None:
            notes.append(f"{bound.sentence[0].upper()}{bound.sentence[1:]}.")
            metrics["bound"] = bound.most
        behind = {id(a.question.source): a.proof.records for a in answers}
        return Scored(
            {name: value for name, value in metrics.items() if math.isfinite(value)},
            evidence,
            (f"Updates attacked: {len(answers)}.", *notes),
            verdict=verdict,
            leak=leak,
            proved=proved,
            members=sum(u.batch_size or behind.get(id(u), 0) for u in self.updates),
        )

    def _proved(self, answers: Sequence[Answer]) -> int:
        """Records that are proved, of each client at most as many as it has.

        Where the records of some clients are wrong, only their proofs count: those of the others could have
        been compared with the truth, and were not.
        """
        total, truth = 0, self.truth
        strange = frozenset() if truth is None else wrong_records(answers, truth)[0]
        for client in {answer.question.name for answer in answers}:
            counts = [a.proof.records for a in answers if a.question.name == client]
            if truth is None or client in strange:
                total += max(counts)
            elif not strange:
                total += min(sum(counts), len(truth.private[client]))
        return total

    def _scores(self, row: Row, answers: Sequence[Answer], truth: Truth) -> UpdateScores:
        others = truth.others if len(truth.others) else None
        texts, key = isinstance(self.net, TextModel), self.key.fold("score")
        pairs = [
            (keep_secret(r), tokens_of(mine, r, row) if texts else candidates_of(mine, r))
            for mine, r in by_client(answers, truth)
        ]
        if not isinstance(self.net, TextModel):
            return score_updates(pairs, others, key)
        padding = self.net.padding
        if row.whole:
            return score_texts(pairs, others, key, padding=padding, ordered=keeps_order(answers))
        return score_words(pairs, others, key, padding=padding)

    def premise(self) -> Premise | None:
        return None if self.truth is None else self.truth.premise

    def doubt(self, row: Row, answers: Sequence[Answer], metrics: Mapping[str, float]) -> str:
        """Weak effort is no evidence: silence of a search that did not arrive says nothing.

        Where the update itself holds noise, nobody can explain more of it than the records do.
        """
        if self.truth is None or self.truth.doubt:
            return "" if self.truth is None else self.truth.doubt
        search, name = row.attack, row.spec.name
        if isinstance(search, GradientMatching) and search.steps < _ENOUGH:
            return f"{name} made only {search.steps} steps; more --search-steps may find more"
        late = [answer for answer in answers if not answer.found.status.converged]
        if all(
            a.found.observed.get("mismatch", 1.0) <= _AS_TRUTH * a.question.source.unexplained
            for a in late
        ):
            return ""
        why = f"{name} did not converge"
        if "own_mismatch" in metrics:
            explained = metrics["own_explained"]
            why += f": it explains {explained:.0%} of the update; more --search-steps may help"
        return why

    def together(self, found: Sequence[Findings]) -> list[Findings]:
        """With facts about the updates; of the servers that choose weights, the one who gets most."""
        ran = {each.section.spec.id for each in found}
        rows = [row for row in self.rows() if row.when == "if needed" and row.id not in ran]
        spared = ", ".join(row.spec.name for row in rows)
        more: Facts = {"not_run": f"{spared}: every record is proved already"} if spared else {}
        servers = [each for each in found if each.section.spec.id in SERVERS]
        others = [each for each in found if each.section.spec.id not in SERVERS]
        told = [replace(each, facts={**each.facts, **more}) for each in others]
        return told + ([best_server(servers)] if servers else [])

    def facts(self) -> Facts:
        settings, updates = self.settings, self.updates
        sizes = sorted({update.batch_size for update in updates if update.batch_size})
        facts: Facts = {
            "architecture": str(self.net),
            "loss": f"{settings.loss}, {settings.reduction} over the batch",
            "updates": len(updates),
            "clients": len({update.client for update in updates}),
            "local_steps": max(_count(update) for update in updates),
            "batch_size": ", ".join(map(str, sizes)) or "not given",
            "checked": ", ".join(dict.fromkeys(name for u in updates for name in u.checked)),
        }
        if how := str(steps_behind(updates).routine):
            facts["local_training"] = how
        if updates[0].steps.privacy.clips:
            facts["privacy"] = str(updates[0].steps.privacy)
        if updates[0].notes:
            facts["read_as"] = " ".join(updates[0].notes)
        return facts

    # Controls

    def ladders(self) -> list[Ladder]:
        """Easier updates of the same model, of records that no client had: without noise, or of fewer."""
        if self.truth is None or not len(self.truth.others):
            return []
        size = max(update.batch_size or 1 for update in self.updates)
        noise = max(update.noise for update in self.updates)
        bound, steps = self._bound, self.updates[0].steps
        if bound is not None:
            private = [
                self._rung(size, 0.0, easier, (value, words))
                for easier, value, words in with_less_noise(steps)
            ]
            own = f"{steps.privacy.noise:.2g}"
            words = f"with your noise of {own} times the clip; {bound.sentence}"
            return [Ladder("noise multiplier", own, words, tuple(private))]
        if noise:
            yours = f"{noise:.2g}"
            rungs = [self._rung(size, share * noise, steps) for share in (0.0, 1 / 16, 1 / 4)]
            return [Ladder("noise beside the update", yours, f"with your {yours}", tuple(rungs))]
        rungs = [self._rung(2**power, 0.0, steps) for power in range(12) if 2**power < size]
        own = f"at your batch of {size}"
        return [Ladder("records in a batch", str(size), own, tuple(rungs))]

    @cached_property
    def _bound(self) -> NoiseBound | None:
        """What the noise of the client who adds least, for all that it sent, allows at most."""
        sent = Counter(update.client for update in self.updates)
        images = len(self.net.input_shape) == 3
        return noise_bound(self.updates[0].steps, max(sent.values()), images=images)

    def _rung(
        self, size: int, noise: float, steps: Steps, said: tuple[str, str] | None = None
    ) -> Rung:
        """said: the rung's value and words, where it is not the batch or the measured noise that differs."""
        value, words = said or (str(size), f"at a batch of {size}")
        if said is None and max(update.noise for update in self.updates):
            value = f"{noise:.2g}"
            words = f"with noise of {value} times the update" if noise else "without the noise"
        count = max(1, RUNG_TARGETS // size)
        each = sum(row.seconds for row in rows_on(self.settings, self.updates)) / len(self.updates)
        return Rung(value, words, each * count, lambda *_: self._easier(count, size, noise, steps))

    def _easier(self, count: int, size: int, noise: float, steps: Steps) -> UpdateCase:
        """As many batches of so many records, at the weights that the client was sent."""
        assert self.truth is not None  # or there were no ladder
        others, update = self.truth.others, self.updates[0]
        key = self.key.fold("control", size, f"{noise:.6g}")
        drawn = key.fold("private", str(steps.privacy)) if steps.privacy.noise else None
        needed = count * size
        if 2 * needed > len(others):
            raise ExhumeError(
                f"{needed} other records and strangers are needed, there are {len(others)}"
            )
        order = torch.randperm(len(others), generator=key.generator())
        batches = others[order[:needed]]
        updates, private = updates_of_batches(
            *(update.architecture, update.start(), batches, size),
            steps=steps,
            key=drawn,
            statistics=list(update.gradient.statistics),
        )
        for place, easier in enumerate(updates):
            sent = easier.gradient
            if noise:
                sent = _protected(NoiseRelease(noise), easier, key.fold(place))
            updates[place] = replace(
                easier,
                gradient=sent,
                noise=noise or easier.noise,
                vocabulary=update.vocabulary,
                averaged=update.averaged,
            )
        return replace(self, updates=updates, truth=Truth(private, others[order[needed:]]))

    # Fixes

    def redealt(self) -> UpdateCase:
        settings = replace(self.settings, seed=another_seed(self.settings.seed))
        if not settings.made or self.truth is None:
            return replace(self, settings=settings)
        every = Records.joined([*self.truth.private.values(), self.truth.others])
        key = Key.from_seed(settings.seed)
        return UpdateCase(settings, *simulate_updates(settings, self.net, every, key), self.classes)

    def fixes(self) -> list[Fix]:
        if self.truth is None:
            return []
        seconds = sum(row.seconds for row in rows_on(self.settings, self.updates))
        measure, fixed = "likeness to the true update", self._fixed
        return [
            Fix(name, words, "none", measure, seconds, partial(fixed, name, how), short=name)
            for name, words, how in _FIXES
        ]

    def _fixed(self, name: str, defence: ReleaseDefence, *_: object) -> Safer:
        key = self.key.fold("fix", name)
        updates, alike = [], []
        for place, update in enumerate(self.updates):
            safer = _protected(defence, update, key.fold(place))
            pair = safer.values[0], update.gradient.values[0]
            alike.append(float(torch.cosine_similarity(*pair, dim=0)))
            updates.append(replace(update, gradient=safer, unexplained=1 - alike[-1]))
        return Safer(replace(self, updates=updates), sum(alike) / len(alike), 1.0)


UPDATE = Kind(UpdateCase, "What the updates of clients give away", read_updates)

_FIXES: tuple[tuple[str, str, ReleaseDefence], ...] = (
    ("noise-0.01", "noise of 1% of the update's size", NoiseRelease(0.01)),
    ("noise-1", "noise as large as the update", NoiseRelease(1.0)),
    ("4-bit", "updates in 4 bits", QuantiseRelease(4)),
    ("pruned", "only the largest 1% of the update's values", PruneRelease(0.99)),
)


def _protected(defence: ReleaseDefence, update: ClientUpdate, key: Key) -> Gradient:
    safer = defence.protect(update.gradient, key)
    assert isinstance(safer, Gradient)  # a defence keeps the kind of release
    return safer


def _count(update: ClientUpdate) -> int:
    """Local steps behind an update, as far as the number of records is known."""
    known = update.batch_size or max(1, update.steps.routine.local_batch)
    return len(update.steps.rates(known))
