"""Attackers of one cut, doubts about them, easier versions of it, and fixes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from exhume.auditing.attack import line_ups
from exhume.auditing.case import RUNG_TARGETS
from exhume.auditing.judge import Judged
from exhume.auditing.kinds.split import SplitCase, fewer_targets, untrained
from exhume.auditing.kinds.split_attackers import attacker_named, models_of, names_for, rounds_of
from exhume.auditing.kinds.split_files import read_split
from exhume.auditing.kinds.split_words import AttackedCut
from exhume.auditing.plan import Clock
from exhume.auditing.run import fix, read
from exhume.core.contract import Outcome, Status, silent
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Findings, Section, Verdict
from exhume.models.split.inverter import OwnForm
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.report.folder import RunFolder
from exhume.settings import Brief


class Form:
    """Of a head that nobody builds here."""

    input_shape = (1, 8, 8)

    def module(self, key):
        return nn.Sequential(nn.Identity(), nn.Identity(), nn.Flatten())


FORM = OwnForm(Form(), "0", "1")


def pipeline_of(*layers, bodies=1):
    head = nn.Sequential(*layers)
    client = SplitClient(head, torch.zeros(1), tuple(range(bodies)), nn.Flatten())
    return Pipeline(client, (nn.Identity(),) * bodies, "head")


def lookalike(settings, *layers):
    return attacker_named("lookalike", settings, pipeline_of(*layers), (1, 8, 8), FORM)


def conv(*more, **how):
    return nn.Conv2d(1, 3, *more, **how)


def test_a_lookalike_of_one_convolution(settings):
    one = lookalike(
        settings, conv(5, padding=2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    assert one.why_not is None
    assert one.attack.kernel == 5
    assert lookalike(settings, conv(3, padding="same"), nn.ReLU()).why_not is None


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ((nn.Identity(),), "has no convolution"),
        ((conv(3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 1)), "has 2 convolutions"),
        ((conv(3, padding=1), nn.PReLU()), "has 1 convolutions and PReLU"),
        ((conv(3, 2, 1), nn.ReLU()), r"has Conv2d\(1, 3, kernel_size=\(3, 3\), stride=\(2, 2\)"),
        ((conv(2), nn.ReLU()), "has Conv2d"),
        ((conv(3, padding=1),), "sends values below zero"),
    ],
)
def test_where_a_lookalike_does_not_apply(layers, reason, settings):
    why = lookalike(settings, *layers).why_not
    assert why is not None
    with pytest.raises(
        type(why), match=f"a lookalike is one convolution .* the client's head {reason}"
    ):
        raise why


def test_every_attacker_has_a_counterpart_of_one_body(settings):
    """A plain network is the easier version of one with several bodies."""
    plain = pipeline_of(nn.Identity())
    for name in names_for(3):
        assert attacker_named(name, settings, plain, (1, 8, 8), FORM).id == name
    assert attacker_named("body-3", settings, plain, (1, 8, 8), FORM).attack.reads == (0,)
    several = pipeline_of(nn.Identity(), bodies=3)
    assert attacker_named("body-3", settings, several, (1, 8, 8), FORM).attack.reads == (2,)
    assert attacker_named("adaptive", settings, several, (1, 8, 8), FORM).attack.reads == "learned"


def test_what_attackers_take():
    assert [models_of(name) for name in ("as-sent", "body-1", "own-form")] == [0, 2, 3]
    assert [rounds_of(name, 4) for name in ("as-sent", "body-1", "adaptive")] == [0, 1, 4]


def test_an_untrained_network_shows_in_its_accuracy(settings, records):
    owned = read_split(settings, records)
    pipeline, test = owned.pipeline("0"), owned.parts.test
    assert untrained(pipeline, test, 1.0, "after 0") == ""
    sentence = untrained(pipeline, test, 0.5, "after 0")
    assert sentence.startswith("after 0, the network names 50% of held-out records, a guess ")
    fewer = replace(test, classes=("a", "b", "c", "d"))
    assert untrained(pipeline, fewer, 0.5, "after 0") == ""  # its outputs are no classes of these


def cut_with(real, bound, doubt=""):
    """A cut whose one attacker and whose bound have these p-values."""

    def found(p, **more):
        row = LineupRow(20, 30, 99, 0.02, p, 3, 0.2, adjusted=p)
        status = Status(Outcome.CONVERGED)
        return Findings(Section(AttackSpec("a", "A, after 0"), status, lineup=row, **more))

    return AttackedCut("after 0", {"shadow": found(real, doubt=doubt), "head-known": found(bound)})


def test_a_cut_in_one_word():
    assert cut_with(0.001, 1.0).word == "leaks"
    assert cut_with(0.001, 0.001, "weak").word == "leaks"
    assert cut_with(0.5, 0.001).word == "at risk"
    assert cut_with(0.5, 0.5, "weak").word == "not audited"
    assert cut_with(0.5, 0.5).word == "no leak found"


def test_fewer_targets_leave_strangers(settings, records):
    parts = read_split(replace(settings, targets=30), records).parts
    few = fewer_targets(parts)
    assert len(few.target) == RUNG_TARGETS
    assert len(few.test) == len(parts.test) + 30 - RUNG_TARGETS


def on_rung(ladder, ids, folder):
    """The line-ups of these attacks on the easiest version."""
    case = ladder.rungs[0].case(folder, silent)
    rows = [row for row in case.rows() if row.id in ids and not row.why_not]
    return line_ups(case, rows, folder.store(), silent, tests=len(ids))


def test_an_easier_version_is_attacked_alike(settings, records, tmp_path):
    hiding = settings.model.replace(":net", ":hiding")
    deep = replace(settings, model=hiding, weights="", first=("1",))
    (ladder,) = SplitCase(deep, records, read_split(deep, records)).ladders()
    assert [rung.words for rung in ladder.rungs] == ["after 0"]
    with RunFolder.claimed(tmp_path / "run", resume_anyway=False, progress=silent) as folder:
        rows = on_rung(ladder, ["after-1-as-sent", "after-1-lookalike"], folder)
    assert list(rows) == ["after-1-as-sent"]  # the other does not apply
    row = rows["after-1-as-sent"]
    assert (row.identified, row.targets) == (12, 12)
    assert row.p <= 0.01
    first = replace(deep, first=("0",))
    assert SplitCase(first, records, read_split(first, records)).ladders() == []


def test_a_fix_is_trained_and_attacked(settings, tmp_path, only):
    """Of a network that leaks; with its guarantee, its cost, and what the strongest still gets."""
    only("as-sent", "shadow", "head-known")
    one = replace(settings, first=("0",), numbers=4)
    brief = Brief.of(one).with_budget(fixes=True).resolved()
    (released,) = read(brief, silent)
    safe, leaks = Verdict("no leak found", "", ""), Verdict("leaks", "It leaks.", "")
    clock = Clock(silent)
    with RunFolder.claimed(tmp_path / "run", resume_anyway=False, progress=silent) as folder:
        quiet, judged = (Judged([], {released.name: verdict}) for verdict in (safe, leaks))
        assert fix(brief, [released], quiet, tests=3, folder=folder, clock=clock) == []
        (tried,) = fix(brief, [released], judged, tests=3, folder=folder, clock=clock)
    assert (tried.id, tried.release) == ("split-channel", released.name)
    assert tried.words == "a channel of at most 8 bits a request"
    assert tried.guarantee == "8 bits a request on average, for any attacker"
    assert "records recovered, without it" in tried.outcome
    assert "Inverting a shadow" in tried.outcome
    assert tried.without.trials > 0  # the plain network, attacked on the same new targets
    assert "times the client's (which is " in tried.outcome
    assert "multiply-adds), and 16 bytes up" in tried.outcome
    assert tried.verdict != "no leak found"  # one epoch trains nothing
    assert (tried.tried, tried.leak.trials) == (True, 12)
    assert 0 <= tried.kept <= 1
    assert 0 <= tried.before <= 1


def test_the_easier_version_of_a_defended_network_has_no_defence(settings, records, tmp_path, only):
    names = ("as-sent", "shadow", "head-known")
    only(*names)
    one = replace(settings, first=("0",), defend="ensembler")
    case = SplitCase(one, records, read_split(one, records))
    tested = [row.id for row in case.rows() if row.tested]
    assert len(tested) == len(names)
    with RunFolder.claimed(tmp_path / "run", resume_anyway=False, progress=silent) as folder:
        (ladder,) = case.made(folder, silent).ladders()
        ids = tested[:2]
        rows = on_rung(ladder, ids, folder)
    assert (ladder.words, ladder.rungs[0].words) == ("with ensembler", "without the defence")
    assert list(rows) == ids
    assert all(row.targets <= RUNG_TARGETS for row in rows.values())
