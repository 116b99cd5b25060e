"""The audit of a split network: what is refused, what is written, what the verdict says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from exhume.auditing import audit
from exhume.auditing.split import attackers
from exhume.auditing.split.reading import read_split, sizes_of
from exhume.auditing.split.words import depth_sentence
from exhume.cli import app
from exhume.contract import ExhumeError, Key, Outcome, Records, Status
from exhume.models.split.parts import load_pipeline
from exhume.results import AttackSpec, Findings, Section, Verdict
from exhume.settings import Brief, SplitSettings

MODEL = f"{__file__}:net"
FIXED = f"{__file__}:same"


def net():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(16, 3),
    )


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def identity():
    return nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


class Negative(nn.Module):
    def forward(self, x):
        return 1 - x


def negative():
    return nn.Sequential(Negative(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


def pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    return Pair()


def same():
    torch.manual_seed(0)
    return net()


def bars(count, key):
    """Bars: across, down, or a cross."""
    labels = torch.arange(count) % 3
    at = torch.randint(1, 7, (2, count), generator=key.generator())
    images = 0.1 * torch.rand(count, 1, 8, 8, generator=key.fold("n").generator())
    for i in range(count):
        if labels[i] != 1:
            images[i, 0, at[0, i]] = 1
        if labels[i] != 0:
            images[i, 0, :, at[1, i]] = 1
    return Records(images, labels, ("across", "down", "cross"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with records and weights."""
    folder = tmp_path_factory.mktemp("owner")
    records = bars(300, Key.from_seed(0))
    np.savez(folder / "records.npz", inputs=records.inputs.numpy(), labels=records.labels.numpy())
    torch.manual_seed(0)
    model = net()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(records.inputs), records.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), folder / "net.pt")
    return folder


@pytest.fixture
def settings(place):
    return SplitSettings(
        MODEL,
        str(place / "records.npz"),
        weights=str(place / "net.pt"),
        first=("0", "1"),
        channels=4,
        attack_epochs=1,
        batch=32,
        epochs=1,
        bodies=2,
        selected=1,
        targets=30,
        seed=0,
        threads=1,
    )


def test_depths_are_attacked_and_a_weak_attacker_proves_nothing(settings, tmp_path):
    done = audit(Brief.of(settings), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [a["id"] for a in result["attacks"]] == [
        f"after-{depth}-{line}"
        for depth in "01"
        for line in ("as-sent", "shadow", "matched", "head-known")
    ]
    assert result["victim"]["test_accuracy"] > 0.9
    assert result["victim"]["bytes_up_per_input"] == 3 * 8 * 8 * 4
    assert result["charts"][0]["series"].keys() == {
        "as-sent",
        "shadow",
        "matched",
        "head-known",
        "mean image",
    }
    assert done.verdict.word == "not audited"  # shadows of one epoch
    assert "so they are no attackers; raise --attack-epochs" in done.verdict.sentence
    page = done.report.read_text()
    assert "Inputs recognised" in page
    assert page.count("<img") > 60
    again = audit(Brief.of(settings), tmp_path / "run")
    assert again.metrics == done.metrics


def test_a_shadow_that_learned_gets_a_verdict_and_the_bound_beside_it(settings, tmp_path):
    longer = replace(settings, first=("0",), attack_epochs=25)
    done = audit(Brief.of(longer), tmp_path / "run", redact=True)
    assert done.verdict.word in ("leaks", "no leak found")
    assert "An adversary who knew the client's head would recognise" in done.verdict.detail
    assert "No other depth was tried." in done.verdict.detail
    assert "<img" not in done.redacted.read_text()


def test_a_defence_is_trained_attacked_costed_and_kept(settings, tmp_path):
    defended = replace(settings, first=("0",), defend="ensembler")
    done = audit(Brief.of(defended), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    lines = [a["id"].removeprefix("after-0-with-ensembler-") for a in result["attacks"][4:]]
    assert lines == ["as-sent", "shadow", "matched", "subsets", "head-known"]
    told = result["victim"]
    assert told["defended_bytes_up_per_input"] == 2 * told["bytes_up_per_input"]
    assert told["bodies"] == 2
    assert "The defence costs" in done.verdict.detail
    client, server = (tmp_path / "run" / "defence" / side for side in ("client", "server"))
    kept = load_pipeline(client, server, factory=MODEL)
    records = bars(300, Key.from_seed(0))
    own = read_split(defended, records).parts.test
    assert kept.accuracy(own.inputs, own.labels) == told["defended_accuracy"]
    again = audit(Brief.of(defended), tmp_path / "run")
    assert again.metrics == done.metrics
    elsewhere = audit(Brief.of(defended), tmp_path / "other")
    assert (elsewhere.folder / "secret.key").read_text() != (done.folder / "secret.key").read_text()


@pytest.mark.parametrize("defence", ["single", "shredder", "dropout", "dropout-ensemble"])
def test_every_defence_has_a_name(defence, settings, tmp_path):
    one = replace(settings, first=("0",), defend=defence, targets=12)
    result = audit(Brief.of(one), tmp_path / "run")
    assert f"with {defence}" in result.verdict.sentence


def test_a_killed_run_ends_with_the_same_numbers(settings, tmp_path, monkeypatch):
    whole = audit(Brief.of(replace(settings, first=("0",))), tmp_path / "whole")
    calls = iter(range(100))

    def dies(*args, **kwargs):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    real = attackers.recognise
    monkeypatch.setattr(attackers, "recognise", dies)
    with pytest.raises(KeyboardInterrupt):
        audit(Brief.of(replace(settings, first=("0",))), tmp_path / "killed")
    monkeypatch.setattr(attackers, "recognise", real)
    assert (
        audit(Brief.of(replace(settings, first=("0",))), tmp_path / "killed").metrics
        == whole.metrics
    )
    with pytest.raises(ExhumeError, match="holds a run with other settings"):
        audit(Brief.of(replace(settings, first=("1",))), tmp_path / "killed")


def test_the_command_and_its_exit_codes(settings, place, tmp_path, monkeypatch):
    quick = ["--channels", "4", "--attack-epochs", "30", "--batch", "32", "--targets", "30"]
    base = ["audit-split", MODEL, "--data", settings.data, "--weights", settings.weights]
    weak = [*base, *quick[:2], "--attack-epochs", "1", "--targets", "30", "--first", "0"]
    result = CliRunner().invoke(app, [*weak, "--out", str(tmp_path / "weak")])
    assert result.exit_code == 2
    assert "Not audited" in result.stdout

    def given_everything(settings, pipeline):
        (bound,) = [one for one in real(settings, pipeline) if one.given_head]
        return [replace(bound, id="shadow"), bound]

    real, knows = attackers.attackers_of, attackers.server_knowledge
    monkeypatch.setattr(attackers, "attackers_of", given_everything)
    monkeypatch.setattr(
        attackers, "server_knowledge", lambda *a, **k: knows(*a, **{**k, "with_head": True})
    )
    leaky = [*base, *quick, "--first", "0"]
    assert CliRunner().invoke(app, [*leaky, "--out", str(tmp_path / "a")]).exit_code == 0
    gate = ["--fail-over", "0.3", "--out", str(tmp_path / "a")]
    result = CliRunner().invoke(app, [*leaky, *gate])
    assert result.exit_code == 1, result.output
    assert "The split after 0 leaks" in result.stdout


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"defend": "prayer"}, "defend: 'prayer' is not one of ensembler"),
        ({"model": ""}, "model, data: both are needed"),
        ({"bodies": 0}, "bodies: 0 given, at least 1 needed"),
        ({"held": -1}, "held: -1 given, at least 0 needed"),
        ({"rate": 0.0}, "a rate above 0 needed"),
        ({"first": ("0", "0")}, "first: 0, 0 names a layer twice"),
    ],
)
def test_settings_that_mean_nothing(change, sentence, settings):
    with pytest.raises(ExhumeError, match=sentence):
        replace(settings, **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first": ("9",)}, "the network has no layer '9'"),
        ({"first": ("1",), "second": "0"}, "'0' does not come after '1'"),
        ({"first": ("2",), "second": "2"}, "the body would be empty"),
        ({"targets": 5}, "5 records for the part target, at least 10 needed"),
        ({"held": 1000}, "records needed"),
        ({"model": f"{__file__}:pair", "weights": ""}, "fewer than two|must be"),
        ({"model": f"{__file__}:narrow", "weights": "", "first": ()}, "fewer than two points"),
        ({"model": f"{__file__}:nothing"}, "has no nothing"),
    ],
)
def test_splits_that_cannot_be(change, sentence, settings):
    with pytest.raises(ExhumeError, match=sentence):
        read_split(replace(settings, **change), bars(300, Key.from_seed(0)))


def test_weights_that_do_not_fit(settings, tmp_path):
    records = bars(300, Key.from_seed(0))
    state = net().state_dict()
    save_file({**state, "3.bias": torch.zeros(4)}, tmp_path / "a.safetensors")
    with pytest.raises(ExhumeError, match=r"3.bias has shape \(4,\) in the file and \(3,\)"):
        read_split(replace(settings, weights=str(tmp_path / "a.safetensors")), records)
    save_file({**state, "3.bias": torch.full((3,), torch.nan)}, tmp_path / "b.safetensors")
    with pytest.raises(ExhumeError, match="3.bias holds NaN"):
        read_split(replace(settings, weights=str(tmp_path / "b.safetensors")), records)
    with pytest.raises(ExhumeError, match="weights: there is no file"):
        read_split(replace(settings, weights="nowhere.pt"), records)


def test_records_that_do_not_fit(settings):
    flat = Records(torch.rand(300, 64), torch.arange(300) % 3, ("a", "b", "c"))
    with pytest.raises(ExhumeError, match="only images are covered so far"):
        read_split(settings, flat)
    many = Records(torch.rand(300, 1, 8, 8), torch.arange(300) % 4, tuple("abcd"))
    with pytest.raises(ExhumeError, match="4 classes, but the network has 3 outputs"):
        read_split(settings, many)
    colour = Records(torch.rand(300, 3, 8, 8), torch.arange(300) % 3, tuple("abc"))
    with pytest.raises(ExhumeError, match=r"cannot take records of shape \(3, 8, 8\)"):
        read_split(settings, colour)


def test_depths_are_chosen_where_none_is_named(settings):
    owned = read_split(replace(settings, first=(), weights=""), bars(300, Key.from_seed(0)))
    assert (owned.first, owned.second) == (("0", "1"), "2")
    assert "as the factory made it" in owned.notes[0]


def test_a_finished_module_cannot_be_trained_afresh(settings, tmp_path):
    fixed = replace(settings, model=FIXED, weights="", first=("0",), defend="single")
    with pytest.raises(ExhumeError, match="gives the same weights at every call"):
        audit(Brief.of(fixed), tmp_path / "run")
    few = replace(settings, defend="ensembler", bodies=2, selected=3)
    with pytest.raises(ExhumeError, match="3 of 2 bodies; legal is 1 <= P <= N"):
        audit(Brief.of(few), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sizes_and_folder(settings):
    sizes = sizes_of(settings, 1000)
    assert (sizes.fixed, sizes.target, sizes.shadow, sizes.public, sizes.test) == (
        *(0, 30, 300, 100),
        100,
    )
    assert sizes_of(replace(settings, defend="single", train=70), 1000).fixed == 70
    other = Brief.of(replace(settings, seed=1)).folder()
    assert Brief.of(settings).folder() == Brief.of(settings).folder() != other


def test_depths_in_words():
    assert depth_sentence({"a": "leaks"}) == "No other depth was tried."
    words = {"a": "leaks", "b": "no leak found", "c": "not audited", "d": "no leak found"}
    assert depth_sentence(words) == (
        "Without a defence, it leaks after a; nothing was found after b, d; nothing can be said "
        "after c."
    )


def cut_with(real, bound, accuracy=0.9):
    """A cut whose one attacker and whose bound have these verdicts."""

    def found(word, share, **more):
        metrics = {"affine_ssim": 0.1, "ssim": 0.1, "recognised_share": share, **more}
        section = Section(AttackSpec("a", "A"), Status(Outcome.CONVERGED), metrics=metrics)
        return Findings(section, Verdict(word, f"{word}.", ""))

    shadow = found(real, 0.0, own_shadow_accuracy=accuracy)
    return attackers.AttackedCut(
        "after 0", 0.9, 3, {"shadow": shadow, attackers.HEAD_KNOWN: found(bound, 0.95)}
    )


@pytest.mark.parametrize("head", ["identity", "negative"])
def test_a_head_that_hides_nothing_leaks(head, settings, tmp_path):
    """Whatever the shadows learn: somebody looks at what is sent."""
    plain = replace(settings, model=f"{__file__}:{head}", weights="", first=("0",), targets=60)
    done = audit(Brief.of(plain), tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert done.result.strongest.spec.id == "after-0-as-sent"
    assert done.leak.share > 0.9


def test_what_only_a_secret_head_protects_is_at_risk():
    verdict = cut_with("no leak found", "leaks").verdict
    assert verdict.word == "at risk"
    assert "an adversary who knows the client's head recognises 95%" in verdict.sentence
    assert "the head stays secret, not what is sent" in verdict.detail
    assert cut_with("no leak found", "leaks", accuracy=0.34).verdict.word == "at risk"
    assert cut_with("no leak found", "no leak found").verdict.word == "no leak found"
    assert cut_with("no leak found", "no leak found", accuracy=0.34).verdict.word == "not audited"
    assert cut_with("leaks", "leaks").verdict.word == "leaks"


def test_a_gate_on_what_is_at_risk(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(
        attackers.AttackedCut, "verdict", property(lambda cut: Verdict("at risk", "Secret.", ""))
    )
    base = ["audit-split", MODEL, "--data", settings.data, "--weights", settings.weights]
    weak = [*base, "--channels", "4", "--attack-epochs", "1", "--targets", "30", "--first", "0"]
    weak += ["--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, weak).exit_code == 0
    gated = CliRunner().invoke(app, [*weak, "--fail-on", "at-risk"])
    assert gated.exit_code == 1
    assert "the verdict is 'at risk'" in gated.stderr
