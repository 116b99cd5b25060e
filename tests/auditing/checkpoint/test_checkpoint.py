"""The audit of a checkpoint, from a planted network to verdict, page and exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from exhume import readers
from exhume.auditing import audit
from exhume.auditing.kinds.checkpoint_records import preprocessing_given, records_given, rows_given
from exhume.cli import app
from exhume.core.contract import ExhumeError, Records
from exhume.models.mlp import HomogeneousMLP
from exhume.settings import Brief, CheckpointSettings
from exhume.store.shards import NullStore
from exhume.train.margin import MarginDescent
from exhume.victims.margin import choose, release_margin

TRAINED, LEFT = 10, 200
pytestmark = pytest.mark.xdist_group("checkpoint")


def load(source, reading):
    return readers.load(source, reading=reading)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder: net.pt trained on the first rows of digits.npz, mean.npz, and other.npz."""
    from exhume.core.contract import Key

    key, folder = Key.from_seed(1), tmp_path_factory.mktemp("given")
    pictures = torch.rand(400, 1, 8, 8, generator=key.generator())
    records = Records(pictures, torch.arange(400) % 5, tuple("abcde"))
    train, others = choose(records, 5, TRAINED // 5, LEFT, key)
    mlp = HomogeneousMLP(train.shape, (100, 100), 5, first_scale=1e-4)
    recipe = MarginDescent(mlp, growing_steps=0.01, stop_loss=1e-5)
    victim = release_margin(recipe, train, key=key, store=NullStore())
    module = mlp.build()
    torch.nn.utils.vector_to_parameters(victim.release.parameters[0].clone(), module.parameters())
    torch.save(module.state_dict(), folder / "net.pt")
    names = np.array(train.classes)

    def write(name, records):
        inputs = torch.cat([r.inputs for r in records]).numpy()
        labels = torch.cat([r.labels for r in records]).numpy()
        np.savez(folder / name, x=inputs, y=labels, classes=names)

    write("digits.npz", [train, others])
    write("train.npz", [train])
    write("other.npz", [others])
    np.savez(folder / "mean.npz", mean=victim.centre.numpy())
    return folder


@pytest.fixture(scope="module")
def settings(given):
    return CheckpointSettings(
        str(given / "net.pt"),
        mean=str(given / "mean.npz"),
        trained_on=str(given / "digits.npz"),
        rows=f"0:{TRAINED}",
        restarts=2,
        steps=120,
    )


@pytest.fixture(scope="module")
def invoke():
    return lambda *arguments: CliRunner().invoke(app, ["audit-weights", *map(str, arguments)])


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """The audit of what was planted. Nobody changes its folder."""
    return audit(Brief.of(settings), tmp_path_factory.mktemp("whole") / "run", redact=True)


def test_planted_images_leak(whole):
    assert whole.verdict.word == "leaks"
    assert whole.metrics["good"] >= TRAINED / 2
    assert whole.metrics["decoys"] == LEFT
    assert whole.metrics["success"] == whole.metrics["good_share"]
    result = json.loads((whole.folder / "result.json").read_text())
    assert result["victim"]["train_accuracy"] == 1
    assert result["victim"]["records_by_the_spectrum"] == TRAINED
    assert 0 < result["victim"]["residual_at_truth"] < 0.5
    assert result["attacks"][0]["knows"] == ["architecture", "centre"]


def test_the_page_shows_the_planted_images(whole):
    page = whole.report.read_text()
    for text in ("Records brought back", "Nearest decoy", "Just above 0.4", "luckiest decoys"):
        assert text in page
    assert "Similarity against margin" in page
    assert "Records at risk" in page


def test_every_planted_image_is_listed_by_its_risk(whole):
    listed = (whole.folder / "records-at-risk.csv").read_text().splitlines()
    assert listed[0] == "rank,row,brought_back,leak,margin,gradient_norm,outlier_score,why"
    assert sorted(int(line.split(",")[1]) for line in listed[1:]) == list(range(TRAINED))


def test_the_page_that_is_shared_shows_nothing(whole):
    hidden = whole.redacted.read_text()
    assert "data:image/png" not in hidden
    assert "Similarity against margin" not in hidden
    assert str(whole.folder.parent) not in hidden


def test_the_truth_changes_the_score_and_nothing_else(whole, settings, given, tmp_path):
    """Another secret, the same weights: identical candidates."""
    np.save(tmp_path / "rows.npy", np.arange(0, LEFT, 4))
    other = replace(settings, trained_on=str(given / "other.npz"), rows=str(tmp_path / "rows.npy"))
    done = audit(Brief.of(other), tmp_path / "two")
    assert done.verdict.word == "not audited"  # they are none that it was trained on
    assert "the network gets only 14% of its training records right" in done.verdict.sentence
    assert done.leak.share < 0.1
    first, second = (
        {p.name for p in (run / "shards").iterdir()} for run in (whole.folder, tmp_path / "two")
    )
    assert first == second
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    said = " ".join(result["attacks"][0]["notes"])
    assert "check --activation, --mean and --std, the scale" in said


def test_killed_and_resumed_it_ends_with_the_same_numbers(whole, settings, tmp_path):
    def stop(stage, done, total):
        if stage == "restart 2 of 2" and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(Brief.of(settings), tmp_path / "run", progress=stop)
    stages = []
    again = audit(
        Brief.of(settings), tmp_path / "run", progress=lambda stage, *_: stages.append(stage)
    )
    assert "restart 1 of 2" not in stages
    assert again.metrics == whole.metrics
    with pytest.raises(ExhumeError, match="holds a run with other settings"):
        audit(Brief.of(replace(settings, seed=9)), tmp_path / "run")


def test_where_decay_removed_the_start_the_second_layer_is_read(given, tmp_path, key):
    """A network whose second layer is a sum over few records gets the attack that uses it."""
    mlp = HomogeneousMLP((1, 8, 8), (100, 100), 5)
    layers = mlp.matrices(mlp.initial(key))
    records = torch.rand(6, 64, generator=key.generator()) - 0.5
    mixed = torch.randn(100, 6, generator=key.fold("mix").generator())
    first = mixed @ records
    active = (records @ first.T + layers.bias).clamp_min(0)
    later = (mixed @ active, *layers.later[1:])
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc3.weight")
    torch.save(dict(zip(names, (first, layers.bias, *later), strict=True)), tmp_path / "net.pt")
    settings = CheckpointSettings(str(tmp_path / "net.pt"), shape=(1, 8, 8), restarts=1, steps=20)
    audit(Brief.of(settings), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["attacks"][0]["id"] == "hidden-span"
    assert "outside the second layer's span" in result["attacks"][0]["notes"][0]


def test_without_the_truth_nothing_is_claimed(settings, tmp_path):
    blind = replace(settings, trained_on="", rows="", shape=(1, 8, 8))
    done = audit(Brief.of(blind), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "without the training records nothing could be scored" in done.verdict.sentence
    assert 1 <= done.metrics["agreed"] <= done.metrics["distinct"]
    page = done.report.read_text()
    assert "what the attack is surest of comes first" in page
    assert "Private record" not in page
    assert done.metrics["restarts"] == 2
    vectors = replace(blind, shape=(64,), mean="0.5", restarts=1, steps=3)
    flat = audit(Brief.of(vectors), tmp_path / "flat")
    assert 'class="strip"' in flat.report.read_text()  # records that are no images


def test_exit_codes(given, invoke, tmp_path):
    score = ["--trained-on", given / "train.npz", "--decoys", given / "other.npz"]
    common = [given / "net.pt", "--mean", given / "mean.npz", "--restarts", 2, "--steps", 120]
    smooth = invoke(*common, *score, "--activation", "gelu", "--out", tmp_path / "smooth")
    assert smooth.exit_code == 0  # read with the wrong activation, its images still come back
    assert "The release leaks:" in smooth.stdout
    gated = ["--out", tmp_path / "run", "--fail-over", "0.1"]
    assert invoke(*common, *score, *gated).exit_code == 1
    linear = invoke(*common, *score, "--activation", "identity", "--out", tmp_path / "linear")
    assert linear.exit_code == 0  # no attack reads it, but its rows look like the images
    result = json.loads((tmp_path / "linear" / "result.json").read_text())
    assert [row["run"] for row in result["plan"]] == [False, True]
    assert [one["id"] for one in result["attacks"]] == ["as-stored"]
    assert result["plan"][0]["why"].startswith("does not apply: fc1.weight: with no activation")
    page = (tmp_path / "linear" / "report.html").read_text()
    assert "no further knowledge would change this" in page
    assert "0 of 1 conditions hold" in page


def test_the_same_command_finds_its_own_folder(given, invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [given / "net.pt", "--shape", "1,8,8", "--steps", 3, "--restarts", 1]
    assert invoke(*command).stdout == invoke(*command).stdout
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "8"], "shape: records of 8 numbers given, but fc1.weight takes 64"),
        (["--shape", "a,b"], "--shape: 'a,b' is not a list of whole numbers"),
        (["--shape", "0,8"], "shape: (0, 8) given, every size must be at least 1"),
        ([], "--shape: the shape of one record is needed"),
        (["--shape", "1,8,8", "--head", "many"], "head: 'many' is not one of"),
        (["--shape", "1,8,8", "--head", "binary"], "head: binary needs 1 outputs"),
        (["--shape", "1,8,8", "--restarts", "0"], "restarts: 0 given, at least 1 needed"),
        (["--shape", "1,8,8", "--activation", "rulu"], "activation: 'rulu' is not one of"),
        (["--shape", "1,8,8", "--mean", "nowhere.npz"], "--mean: cannot read nowhere.npz"),
        (["--shape", "1,8,8", "--rows", "0:3"], "only together with --trained-on"),
        (["--trained-on", "digits"], "--trained-on: give --decoys too"),
        (["--trained-on", "digits", "--rows", "x"], "--rows: 'x' is not a list of row numbers"),
        (["--trained-on", "digits", "--rows", "0:9999"], "does not lie within the 1797 records"),
        (["--trained-on", "digits", "--decoys", "digits"], "no record is left that was not"),
        (["--trained-on", "digits", "--rows", "0:9", "--shape", "8,8"], "--shape: (8, 8) given"),
    ],
)
def test_failures_are_one_sentence(given, invoke, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(given / "net.pt", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert len([line for line in result.stderr.splitlines() if "exhume: " in line]) == 1


def test_a_run_folder_inside_the_data(given, invoke, tmp_path):
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for shade in range(3):
            Image.new("L", (8, 8), 40 * shade + ord(name)).save(
                tmp_path / "photos" / name / f"{shade}.png"
            )
    inside = tmp_path / "photos" / "run"
    result = invoke(
        given / "net.pt", "--trained-on", tmp_path / "photos", "--rows", "0:4", "--out", inside
    )
    assert result.exit_code == 2
    assert "lies inside the data" in result.stderr
    assert not inside.exists()


def test_a_missing_checkpoint(invoke):
    result = invoke("nowhere.pt", "--shape", "3")
    assert (result.exit_code, result.stderr) == (
        2,
        "exhume: checkpoint: there is no file nowhere.pt\n",
    )


def mean_given(text, shape):
    return preprocessing_given(text, "", shape).mean


def test_the_mean(tmp_path):
    shape = (3, 2, 2)
    assert mean_given("", shape) is None
    assert torch.equal(mean_given("0", shape), torch.zeros(shape))
    channels = mean_given("0.1,0.2,0.3", shape)
    torch.testing.assert_close(channels[:, 1, 0], torch.tensor([0.1, 0.2, 0.3]))
    whole = np.random.default_rng(0).random(shape).astype(np.float32)
    np.savez(tmp_path / "mean.npz", anything=whole.reshape(-1))
    assert torch.equal(mean_given(str(tmp_path / "mean.npz"), shape), torch.from_numpy(whole))
    np.savez(tmp_path / "two.npz", a=whole, b=whole)
    np.savez(tmp_path / "text.npz", mean=np.array(["a"]))
    np.savez(tmp_path / "bytes.npz", mean=255 * whole)
    np.savez(tmp_path / "small.npz", mean=whole[:, :1])
    np.savez(tmp_path / "nan.npz", mean=np.nan * whole)
    for name, message in {
        "two": "--mean: .* an array mean is needed",
        "text": "numbers are needed",
        "bytes": r"has values beyond \[-1, 1\]; images lie in",
        "small": r"shape \(3, 1, 2\) given",
        "nan": "holds NaN or infinite values",
    }.items():
        with pytest.raises(ExhumeError, match=message):
            mean_given(str(tmp_path / f"{name}.npz"), shape)
    with pytest.raises(ExhumeError, match="neither numbers such as"):
        mean_given("half", shape)
    with pytest.raises(ExhumeError, match="--std: 0.5,0,1 has values that are not above 0"):
        preprocessing_given("0", "0.5,0,1", shape)
    assert float(mean_given("300", (4,)).max()) == 300  # vectors have any range


@pytest.mark.parametrize("shape", [(3, 4, 4), (7,)])
def test_what_enters_comes_back(shape, key):
    records = torch.rand(5, *shape, generator=key.generator())
    given = preprocessing_given("0.4", "0.5", shape)
    found = given.entering(records)
    torch.testing.assert_close(found, (records - 0.4) / 0.5)
    attacked = found + given.centre  # as an attack hands it back, but for the stretch
    back = given.records(attacked)
    if len(shape) == 1:
        torch.testing.assert_close(back, records)
    else:
        assert (float(back.min()), float(back.max())) == (0, 1)
        flat = [
            torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
            for a, b in zip(back, records, strict=True)
        ]
        assert min(flat) > 0.999
    control = given.scaled_by(records).for_control()
    size = control.entering(records - records.mean(0)).square().flatten(1).sum(1).mean()
    assert 50 < float(size) < 500  # whatever the records are, as long as a small image's


def test_rows(tmp_path):
    assert rows_given("0:3,5", 6).tolist() == [0, 1, 2, 5]
    assert rows_given("2,1:3", 6).tolist() == [1, 2]
    np.save(tmp_path / "rows.npy", np.array([4, 2]))
    assert rows_given(str(tmp_path / "rows.npy"), 6).tolist() == [2, 4]
    np.save(tmp_path / "rows.npy", np.array([0.5]))
    with pytest.raises(ExhumeError, match="one list of whole numbers"):
        rows_given(str(tmp_path / "rows.npy"), 6)
    with pytest.raises(ExhumeError, match="cannot read"):
        rows_given(str(tmp_path / "nothing.npy"), 6)
    for text in ("1:2:3", "-1", "3:3"):
        with pytest.raises(ExhumeError, match="--rows"):
            rows_given(text, 6)


def test_decoys_are_apart_from_what_was_trained_on(tmp_path, make_records, key):
    def write(name, records):
        np.savez(
            tmp_path / name,
            x=records.inputs.numpy(),
            y=records.labels.numpy(),
            classes=np.array(records.classes),
        )
        return str(tmp_path / name)

    def of(trained, decoys):
        said = CheckpointSettings("net.pt", trained_on=trained, decoys=decoys)
        return records_given(said, key, load=load)

    records = make_records(20, (1, 6, 6), 4, key)
    first = Records(records.inputs, records.labels % 2, records.classes)
    trained = write("trained.npz", first[torch.arange(6)])
    mixed = write("mixed.npz", records)
    given = of(trained, mixed)
    assert given.notes == ("6 decoys are copies of training records and were left out.",)
    assert given.decoys.labels.bincount().tolist() == [3, 3]  # as many of each, as in training
    skewed = Records(records.inputs[:3], torch.tensor([0, 1, 1]), records.classes)
    given = of(write("skewed.npz", skewed), mixed)
    assert given.decoys.labels.bincount().tolist() == [2, 4]
    assert len(given.strangers) == 17  # a line-up goes class by class and can use all
    missing = Records(
        records.inputs[:3], torch.tensor([0, 1, 3]), (*records.classes[:3], "no such")
    )
    given = of(write("missing.npz", missing), mixed)
    assert given.notes[1] == "There are no decoys of no such; the null is of the other classes."
    assert given.decoys.labels.bincount().tolist() == [4, 4]
    others = Records(records.inputs[6:], records.labels[6:], ("e", "f", "g", "h"))
    strange = of(trained, write("strange.npz", others))
    assert strange.notes == ("No decoy has a class of the training records; all were used.",)
    small = make_records(6, (1, 5, 5), 2, key)
    with pytest.raises(ExhumeError, match=r"--decoys: records of shape \(1, 5, 5\)"):
        of(trained, write("small.npz", small))
