"""A channel in the audit: attackers, certificates, the alarm; a container as a cut; errors before data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from exhume.auditing import audit
from exhume.auditing.kinds.split import read_released_split
from exhume.auditing.kinds.split_files import read_network, read_split
from exhume.auditing.limits import audit_channel, identified_at_most
from exhume.bounds.channel import naming, sigma_for, success
from exhume.core.contract import ExhumeError, Key
from exhume.defences.split.channel import Channel
from exhume.integrations.exporting import export_run
from exhume.models.split import pipeline as pipelines
from exhume.models.split.blueprint import OwnNetwork
from exhume.models.split.parts import load_bodies, load_client, load_pipeline
from exhume.report.folder import RunFolder
from exhume.settings import Brief
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, SplitJob

pytestmark = pytest.mark.xdist_group("split channel")
SIGMA = sigma_for(4.0, 4)
INPUTS = 12 + 30 + 30  # targets, those held out, those sent before
NAMES = ("as-sent", "shadow", "own-form", "lookalike", "matched", "head-known")


def named(settings, factory):
    return settings.model.replace(":net", f":{factory}")


@pytest.fixture(scope="module")
def trained(records):
    """Twelve bits of six numbers."""
    network = OwnNetwork(f"{__file__.replace('test_channel', 'conftest')}:net", (1, 8, 8))
    job = SplitJob(network, "0", "2", records[:120], Schedule(6, 30, 0.1), augment=False)
    return Channel.of_bits(12.0, 6).train(job, key=Key.from_seed(0), store=NullStore())


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """Four bits through four numbers; the key is given, so that it is the same audit every time."""
    one = replace(
        settings, first=("0",), defend="channel", bits=4.0, numbers=4, attack_epochs=6, epochs=8
    )
    folder = RunFolder.create(tmp_path_factory.mktemp("channel") / "run")
    (folder.path / "secret.key").write_text("17" * 32)
    return audit(Brief.of(one), folder.path)


def test_no_attacker_identifies_more_than_a_channel_allows(whole):
    attacks = {a.spec.id.removeprefix("after-0-with-channel-"): a for a in whole.result.attacks}
    assert list(attacks)[4:] == [*NAMES, "channel-namer"]
    assert whole.verdict.word != "leaks"
    assert attacks["as-sent"].status.reason.endswith("are no pictures")
    assert attacks["lookalike"].applies
    for name in NAMES[1:]:
        row = attacks[name].lineup
        assert row.share <= identified_at_most(row.strangers, SIGMA)


def test_the_best_namer_stands_beside_the_certificate(whole):
    namer = whole.result.attacks[-1]
    limits = namer.limits
    games = [row.game for row in limits.rows]
    assert games == ["the input named among 10", f"the input named among {INPUTS}"]
    assert [row.bound for row in limits.rows] == [naming(k, 4, SIGMA) for k in (10, INPUTS)]
    assert all(row.rate <= row.bound for row in limits.rows)
    assert not namer.counts
    assert "at most 4 bits about its input, on average over inputs" in limits.notes[0]
    assert not whole.alarm
    assert json.loads((whole.folder / "result.json").read_text())["alarm"] == ""


def test_what_a_channel_costs_is_said(whole):
    facts = whole.result.victim
    assert (facts["channel_bits"], facts["defended_bytes_up_per_input"]) == (4.0, 16)
    assert 0 < facts["client_share_of_multiply_adds"] < 1
    notes = " ".join(note for one in whole.result.attacks for note in one.notes)
    assert "points of accuracy" in notes
    assert "of a request's multiply-adds" in notes
    assert "16 bytes up" in notes
    page = whole.report.read_text()
    assert "of a request&#39;s multiply-adds" in page
    assert "No attack did certainly better than the stated guarantee allows" in page


def test_both_sides_are_kept_and_exported(whole, settings, tmp_path):
    client, server = (whole.folder / "defence" / side for side in ("client", "server"))
    kept = load_pipeline(client, server, factory=settings.model)
    assert kept.client.sigma == SIGMA
    factory = export_run(whole.folder, tmp_path / "client", tmp_path / "server")
    assert factory == settings.model
    assert load_client(tmp_path / "client", factory=factory).client.sigma == SIGMA
    (body,) = load_bodies(tmp_path / "server", factory=factory)
    assert body.feature == (4,)


def test_the_namer_stays_below_the_bound_and_less_noise_than_stated_is_an_alarm(
    trained, records, key, monkeypatch
):
    found = audit_channel(trained, records[120:], [], key)
    rows = found.section.limits.rows
    assert not any(row.alarm for row in rows)
    assert rows[0].rate > rows[0].bound / 3
    assert found.verdict.word == "not audited"
    real = pipelines.through
    monkeypatch.setattr(pipelines, "through", lambda v, sigma, g: real(v, sigma / 20, g))
    loud = replace(trained, client=replace(trained.client, sigma=sigma_for(0.5, 6)))
    found = audit_channel(loud, records[120:], [], key)
    assert any(row.alarm for row in found.section.limits.rows)
    assert found.section.counts
    assert found.verdict.word == "leaks"
    assert "the implementation of the channel is wrong" in found.section.limits.alarm


def test_what_any_attack_may_identify():
    assert identified_at_most(99, 0.5) == success(0.02, 0.5)
    assert identified_at_most(0, 0.5) == 1


def test_a_container_is_cut_behind_its_last_layer(settings, records):
    one = replace(settings, model=named(settings, "contained"), weights="", first=("stem", "block"))
    owned = read_split(one, records)
    assert (owned.first, owned.second) == (("stem.1", "block.2"), "flat")
    assert "'stem' is several layers: the cut is behind its last one, 'stem.1'." in owned.notes
    x = records.inputs[:2]
    assert torch.equal(owned.pipeline("stem.1")(x), owned.module(x))
    assert owned.shallower() == ("stem.0",)
    twice = replace(one, first=("stem", "stem.1"))
    with pytest.raises(ExhumeError, match=r"first: stem, stem.1 names a layer twice"):
        read_network(twice)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first": ("9",)}, "the network has no layer '9'"),
        ({"second": "0"}, "'0' does not come after '0'"),
        ({"weights": "nowhere.pt"}, "weights: there is no file"),
        ({"defend": "ensembler", "bodies": 2, "selected": 3}, "3 of 2 bodies"),
        ({"device": "cuda:99"}, "device: 'cuda:99' cannot be used here"),
        ({"device": "abacus"}, "device: 'abacus' cannot be used here: cpu and cuda are known"),
        ({"defend": "channel", "bits": 600.0, "numbers": 4}, "bits: 600.0 given, more than 0"),
    ],
)
def test_errors_come_before_data_are_read(change, sentence, settings):
    def load(source, reading):
        raise AssertionError("data were read")

    with pytest.raises(ExhumeError, match=sentence):
        read_released_split(Brief.of(replace(settings, **change)), load)
