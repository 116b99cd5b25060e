"""The audit of an update, from files to verdict, on small networks whose records are known."""

from __future__ import annotations

import json
import shutil
import stat

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume import readers
from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.span import SpanAttack
from exhume.auditing.attack import cached_reconstruction
from exhume.auditing.kinds.update import read_updates
from exhume.auditing.kinds.update_files import client_updates, private_records
from exhume.auditing.proof import labels_behind, proof_of
from exhume.cli import app
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Reconstruction,
    Records,
    Status,
)
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer
from exhume.readers.updates import Recording
from exhume.settings import Brief, UpdateSettings
from exhume.store.shards import FolderStore, NullStore
from exhume.train.local import Steps
from exhume.victims.gradient import release_batches

MODEL = """
import torch
from torch import nn

def relu():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 150), nn.ReLU(), nn.Linear(150, 10))

def narrow():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))

def norm():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 10)
    )

def wide():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 150), nn.BatchNorm1d(150), nn.ReLU(), nn.Linear(150, 10)
    )

def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 10)
    )

def tanh():
    from exhume.models.two_layer import TwoLayer
    return TwoLayer((1, 8, 8), 600, 1, "tanh")
"""
INDEX = [3, 17, 40, 41]
QUICK = ["--threads", "1", "--search-steps", "3", "--restarts", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, few_digits):
    """A folder with networks and few.npz, the first digits."""
    folder = tmp_path_factory.mktemp("update")
    (folder / "nets_of_test.py").write_text(MODEL)
    shutil.copy(few_digits, folder / "few.npz")
    return folder


@pytest.fixture
def invoke(place, monkeypatch):
    monkeypatch.chdir(place)
    runner = CliRunner()

    def run(*arguments, model="relu"):
        named = f"nets_of_test.py:{model}"
        return runner.invoke(app, ["audit-update", *map(str, arguments), "--model", named, *QUICK])

    return run


def batch(index=INDEX):
    digits = readers.load("digits")
    return digits.inputs[index], digits.labels[index]


def made(name):
    space = {}
    exec(MODEL, space)
    return space[name]()


def trained(module, *, steps=1, rate=0.1, reduction="mean", index=INDEX):
    """The module after plain SGD on a batch, written out."""
    inputs, labels = batch(index)
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(module(inputs), labels, reduction=reduction).backward()
        optimiser.step()
    return module


def gradient_of(module, path, *, change=lambda named: named, **options):
    trained(module, rate=0.0, **options)
    save_file(change({n: p.grad.clone() for n, p in module.named_parameters()}), path)
    return path


def result_of(out):
    return json.loads((out / "result.json").read_text())


def section(out, name):
    return next(a for a in result_of(out)["attacks"] if a["id"] == name)


def test_a_gradient_with_its_records(invoke, place):
    path, out = gradient_of(made("relu"), place / "g.safetensors"), place / "scored"
    options = ["--data", "digits", "--records", "3,17,40-41", "--batch-size", "4"]
    done = invoke(path, *options, "--out", out, "--redact")
    assert done.exit_code == 0, done.output
    assert "The release leaks: 4 of 4 records" in done.stdout
    assert done.stdout.rstrip().endswith(f"report: {out / 'report.html'}")
    metrics = section(out, "bias-ratio")["metrics"]
    assert metrics["certified"] == metrics["targets"] == 4
    assert metrics["min_cosine"] == pytest.approx(1)
    assert metrics["label_accuracy"] == 1
    assert metrics["null_success"] < 0.01
    assert metrics["update_residual"] < 1e-3
    assert "weigh the neurons differently" in section(out, "span")["status"]["reason"]
    assert not [a for a in result_of(out)["attacks"] if a["id"] == "matching"]  # all is proved
    assert "Gradient matching: every record is proved" in result_of(out)["victim"]["not_run"]
    page = (out / "report.html").read_text()
    assert "The private records, and what came back" in page
    assert "data:image/png" not in (out / "report-redacted.html").read_text()
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert invoke(path, *options, "--out", out, "--fail-over", "0.5").exit_code == 1


def test_a_proof_stands_whatever_records_are_named(invoke, place):
    """The client mirrors its images, its owner names them as they lie on disk."""
    module = made("relu")
    inputs, labels = batch()
    F.cross_entropy(module(inputs.flip(-1)), labels).backward()
    path, out = place / "mirrored.safetensors", place / "mirrored"
    save_file({n: p.grad.clone() for n, p in module.named_parameters()}, path)
    options = ["--data", "digits", "--records", "3,17,40-41", "--batch-size", "4"]
    done = invoke(path, *options, "--out", out)
    verdict = result_of(out)["verdict"]
    assert verdict["word"] == "leaks", done.output
    assert verdict["sentence"].startswith("The release leaks: 4 records were reconstructed")
    assert "They are not the records as they were named" in verdict["detail"]
    assert "are flipped left to right" in verdict["detail"]
    assert "sorted naturally" not in verdict["detail"]  # their order is not to blame
    proving = [attack for attack in result_of(out)["attacks"] if attack["proved"]]
    assert proving
    assert all(attack["lineup"] is None for attack in proving)  # of other records


def test_a_proof_stands_where_nobody_knows_which_records_a_client_used(invoke, place):
    """It mirrors four of the six images that are named for it: whether they give the update is not known."""
    module = made("relu")
    inputs, labels = batch()
    F.cross_entropy(module(inputs.flip(-1)), labels).backward()
    path, out = place / "some.safetensors", place / "some"
    save_file({n: p.grad.clone() for n, p in module.named_parameters()}, path)
    options = ["--data", "digits", "--records", "3,17,40-43", "--batch-size", "4"]
    done = invoke(path, *options, "--out", out)
    verdict = result_of(out)["verdict"]
    assert verdict["word"] == "leaks", done.output
    assert "are flipped left to right" in verdict["detail"]


@pytest.mark.slow
def test_a_little_noise_is_allowed_for(invoke, place, key):
    def noisy(named):
        return {
            n: t + 1e-3 * t.std() * torch.randn(t.shape, generator=key.fold(n).generator())
            for n, t in named.items()
        }

    path = gradient_of(made("relu"), place / "noisy.safetensors", change=noisy)
    out = place / "noisy"
    done = invoke(path, "--data", "few.npz", "--records", "3,17,40,41", "--out", out)
    assert done.exit_code == 0, done.output
    assert section(out, "bias-ratio")["status"]["outcome"] == "not applicable"
    assert section(out, "tolerant-ratio")["metrics"]["success"] == 1
    assert section(out, "tolerant-ratio")["metrics"]["certified"] == 0


def test_without_records_a_proof_is_a_leak(invoke, place):
    out = place / "proved"
    done = invoke(
        gradient_of(made("relu"), place / "g.safetensors"), "--shape", "1,8,8", "--out", out
    )
    assert done.exit_code == 0
    assert "The release leaks: 4 records were reconstructed, and the release itself" in done.stdout
    assert "Training on 4 reconstructions gives the update back" in done.stdout
    page = (out / "report.html").read_text()
    assert "What came back" in page
    assert "data:image/png" in page
    path = place / "g.safetensors"
    limited = invoke(path, "--shape", "1,8,8", "--out", out, "--fail-over", "0.9")
    assert limited.exit_code == 1


def test_without_records_and_proof_nothing_is_audited(invoke, place):
    out = place / "unproved"
    path = gradient_of(made("conv"), place / "c.safetensors")
    done = invoke(path, "--shape", "1,8,8", "--batch-size", "4", "--out", out, model="conv")
    assert done.exit_code == 2
    assert "Not audited: there are no private records to compare" in done.stdout
    assert "not fully connected with a bias" in section(out, "bias-ratio")["status"]["reason"]
    assert section(out, "matching")["metrics"]["update_residual"] > 1e-3
    assert (out / "report.html").exists()


def test_without_a_batch_size_matching_says_what_it_lacks(invoke, place):
    out = place / "sizeless"
    path = gradient_of(made("conv"), place / "c.safetensors")
    done = invoke(path, "--shape", "1,8,8", "--out", out, model="conv")
    assert done.exit_code == 2
    assert section(out, "matching")["status"]["reason"] == "gradient matching needs the batch size"


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_another_precision(invoke, place, kind):
    def cast(named):
        return {name: tensor.to(kind) for name, tensor in named.items()}

    name = str(kind).removeprefix("torch.")
    path = gradient_of(made("narrow"), place / f"{name}.safetensors", change=cast)
    out, options = place / name, ["--data", "few.npz", "--records", "3,17,40,41"]
    done = invoke(path, *options, "--batch-size", "4", "--out", out, model="narrow")
    assert done.exit_code == 0, done.output
    assert "The release leaks: 4 of 4 records" in done.stdout
    if kind is torch.bfloat16:  # rounded so much that neurons no longer agree but roughly
        assert section(out, "bias-ratio")["status"]["outcome"] == "not applicable"
        assert section(out, "tolerant-ratio")["metrics"]["success"] == 1


@pytest.mark.parametrize("steps", [1, 4])
def test_states_before_and_after_local_steps(invoke, place, steps):
    torch.save(made("relu").state_dict(), place / "before.pt")
    torch.save(trained(made("relu"), steps=steps).state_dict(), place / f"after{steps}.pt")
    out = place / f"states{steps}"
    states = ["--before", "before.pt", "--after", f"after{steps}.pt", "--rate", "0.1"]
    done = invoke(
        *states, "--steps", steps, "--data", "few.npz", "--records", "3,17,40,41", "--out", out
    )
    assert done.exit_code == 0, done.output
    assert section(out, "bias-ratio")["metrics"]["recovered"] == 1
    assert section(out, "bias-ratio")["metrics"]["update_residual"] < 1e-3
    assert result_of(out)["victim"]["local_steps"] == steps


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_in_either_mode(invoke, place, mode):
    module = made("norm").train(mode == "train")
    path, out = gradient_of(module, place / "n.safetensors"), place / f"norm-{mode}"
    options = ["--data", "few.npz", "--records", "3,17,40,41", "--batch-size", "4"]
    done = invoke(path, *options, "--batch-norm", mode, "--out", out, model="norm")
    if mode == "train":  # three steps of search are no evidence
        assert done.exit_code == 2
        assert "Not audited: gradient matching made only 3 steps" in done.stdout, done.stderr
        assert section(out, "matching")["metrics"]["candidates"] == 4
    else:  # a norm that was never trained passes everything on, so that gates lie behind the layer
        assert done.exit_code == 0, done.output
        assert section(out, "gates")["metrics"]["certified"] == 4
    assert "batch-norm mode" in result_of(out)["victim"]["checked"]
    assert "TwoLayer and MLP" in section(out, "span")["status"]["reason"]


def test_a_proof_of_a_network_with_buffers(invoke, place):
    """Whether other records would give the same update is asked in double precision."""
    path, out = gradient_of(made("wide").eval(), place / "w.safetensors"), place / "wide"
    options = ["--shape", "1,8,8", "--batch-size", "4", "--batch-norm", "eval"]
    done = invoke(path, *options, "--out", out, model="wide")
    assert done.exit_code == 0, done.output
    assert section(out, "bias-ratio")["metrics"]["certified"] == 4


def test_a_summed_loss(invoke, place):
    path = gradient_of(made("relu"), place / "sum.safetensors", reduction="sum")
    options = ["--shape", "1,8,8", "--batch-size", "4"]
    done = invoke(path, *options, "--reduction", "sum", "--out", place / "sum")
    assert done.exit_code == 0
    assert section(place / "sum", "bias-ratio")["metrics"]["update_residual"] < 1e-3


def test_a_queried_network_of_ours_falls_to_the_span_attack(invoke, place, key):
    network = TwoLayer((1, 8, 8), 600, 1, "tanh")
    inputs, labels = batch()
    at = SpanAttack(spread=0.3).query(network, key)
    private = Records(inputs[None], labels[None] % 2, ("even", "odd"))
    release, _ = release_batches(network, at, private)
    save_file(network.layout.split(at), place / "q.safetensors")
    save_file(network.layout.split(release.values[0]), place / "gq.safetensors")
    options = ["--before", "q.safetensors", "--data", "few.npz", "--records", "3,17,40,41"]
    done = invoke("gq.safetensors", *options, "--out", place / "span", model="tanh")
    assert done.exit_code == 0, done.output
    found = section(place / "span", "span")
    assert found["metrics"]["min_cosine"] > 0.9999
    assert "and so would the negative of each" in found["notes"][1]
    lost = invoke("gq.safetensors", "--out", place / "lost", model="tanh")
    assert "an architecture has no weights of its own; give --before" in lost.stderr


def test_a_recorded_run_of_two_clients(invoke, place):
    recording = Recording(place / "recorded")
    for client, index in (("0", INDEX), ("1", [7, 8, 9])):
        end = trained(made("relu"), index=index).state_dict()
        recording.write(
            made("relu").state_dict(), end, round=1, client=client, rate=0.1, batch_size=len(index)
        )
    (place / "who.json").write_text(json.dumps({"0": INDEX, "1": [7, 8, 9]}))
    done = invoke("recorded", "--data", "few.npz", "--records", "who.json", "--out", place / "two")
    assert done.exit_code == 0, done.output
    assert "7 of 7 records" in done.stdout
    assert result_of(place / "two")["victim"]["clients"] == 2
    several = invoke("recorded", "--data", "few.npz", "--records", "1,2", "--out", place / "x")
    assert "there are 2 clients (0, 1), so a JSON file" in several.stderr


def test_rounds_of_one_client_are_taken_together(invoke, place):
    """Half of its records in each round: what either round gives away counts."""
    recording, module = Recording(place / "rounds"), made("relu")
    for number, index in ((1, INDEX[:2]), (2, INDEX[2:])):
        before = {n: t.clone() for n, t in module.state_dict().items()}
        trained(module, index=index)
        recording.write(before, module.state_dict(), round=number, client="a", rate=0.1)
    out = place / "taken"
    done = invoke("rounds", "--data", "few.npz", "--records", "3,17,40,41", "--out", out)
    assert done.exit_code == 0, done.output
    assert "4 of 4 records" in done.stdout
    assert (result_of(out)["victim"]["updates"], result_of(out)["victim"]["clients"]) == (2, 1)


@pytest.mark.parametrize(("net", "code"), [("relu", 0), ("conv", 2)])
def test_a_set_of_the_private_records_alone(invoke, place, net, code):
    """There is no null then: only a proof says that it leaks."""
    inputs, labels = batch()
    np.savez(place / "own.npz", x=inputs.numpy(), y=labels.numpy())
    path, out = gradient_of(made(net), place / "o.safetensors"), place / f"own-{net}"
    done = invoke(path, "--data", "own.npz", "--batch-size", "4", "--out", out, model=net)
    assert done.exit_code == code
    said = (
        "The release leaks: 4 records were" if net == "relu" else "Not audited: gradient matching"
    )
    assert said in done.stdout
    lineups = [a["lineup"] for a in result_of(out)["attacks"] if a["lineup"]]
    assert {(one["targets"], one["left_out"]) for one in lineups} == {(0, 4)}  # nobody beside them
    assert "The private records, and what came back" in (out / "report.html").read_text()


def test_the_same_command_takes_up_its_run(invoke, place):
    path, out = gradient_of(made("conv"), place / "c.safetensors"), place / "again"
    options = [
        path,
        "--data",
        "few.npz",
        "--records",
        "3,17,40,41",
        "--batch-size",
        "4",
        "--out",
        out,
    ]
    assert invoke(*options, model="conv").exit_code == 2  # three steps of search are no evidence
    first = result_of(out)["attacks"]
    tensors = (out / "matching.safetensors").read_bytes()
    shards = {p: p.stat().st_mtime_ns for p in (out / "shards").iterdir()}
    assert invoke(*options, model="conv").exit_code == 2
    assert result_of(out)["attacks"] == first  # seconds included: nothing ran twice
    assert (out / "matching.safetensors").read_bytes() == tensors
    assert {p: p.stat().st_mtime_ns for p in (out / "shards").iterdir()} == shards
    other = invoke(*options, "--seed", "1", model="conv")
    assert other.exit_code == 2
    assert "holds a run with other settings" in other.stderr


def nan(named):
    return named | {"1.weight": named["1.weight"] * torch.nan}


def zero(named):
    return {n: torch.zeros_like(t) for n, t in named.items()}


def renamed(named):
    return {f"net{n}": t for n, t in named.items()}


PROBLEMS = {
    "nan": ("relu", {"change": nan}, [], "1.weight holds NaN"),
    "zero": (
        "relu",
        {"change": zero},
        [],
        "every value is zero, so that there is nothing to attack",
    ),
    "renamed": (
        "relu",
        {"change": renamed},
        [],
        "the file has net1.bias (150,), net1.weight (150, 64) and 2 more, the model wants 1.weight "
        "(150, 64), 1.bias (150,) and 2 more: the same shapes under other names; rename them",
    ),
    "other model": (
        "conv",
        {},
        [],
        "the file has 0.bias (4,), 0.weight (4, 1, 3, 3), the model wants 1.weight (150, 64), 1.bias "
        "(150,): it comes from another model",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_payload_that_does_not_fit_is_one_sentence(invoke, place, name):
    net, options, said, message = PROBLEMS[name]
    path = gradient_of(made(net), place / "bad.safetensors", **options)
    model = "relu" if name == "other model" else net
    done = invoke(path, "--shape", "1,8,8", *said, "--out", place / "bad", model=model)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (place / "bad").exists()


def test_what_may_be_wrong_is_a_doubt_and_ends_nothing(place, monkeypatch):
    monkeypatch.chdir(place)
    save_file(trained(made("relu"), steps=9, rate=1.0).state_dict(), place / "later.safetensors")
    gradient_of(made("relu"), place / "g.safetensors")
    gradient_of(made("relu"), place / "sum.safetensors", reduction="sum")
    gradient_of(made("norm"), place / "n.safetensors")

    def doubts(net="relu", **said):
        usual = {"update": "g.safetensors", "shape": (1, 8, 8), "seed": 0, "data": ""}
        settings = UpdateSettings(model=f"nets_of_test.py:{net}", **usual | said)
        (case,) = client_updates(settings, None)
        return " ".join(case.doubts)

    assert doubts() == ""
    assert doubts(batch_size=4) == ""
    assert "it was not taken at these weights" in doubts(before="later.safetensors")
    assert "batch norm is said to have been in eval mode" in doubts(
        "norm", update="n.safetensors", batch_norm="eval"
    )
    assert "has a gradient larger than a mean's can be" in doubts(update="sum.safetensors")
    assert "has a gradient of at least 4 records, 3 are said" in doubts(batch_size=3)


def test_records_by_the_names_of_their_files(tmp_path):
    """Naturally sorted, 2 before 10: whoever names files need not know."""
    from PIL import Image

    folder, names = tmp_path / "photos", []
    for person in ("anna", "ben"):
        (folder / person).mkdir(parents=True)
        for number in (1, 2, 10):
            name = f"{person}/{number}.png"
            names.append(name)
            Image.new("L", (4, 4), 20 * len(names)).save(folder / name)
    records = readers.load(str(folder))
    assert readers.file_names(str(folder)) == names
    assert readers.file_names("digits") == readers.file_names(str(tmp_path / "nothing")) == []

    def rows(spec, clients=("0",)):
        settings = UpdateSettings(model="m:m", update="u", data=str(folder), records=spec, seed=0)
        private, others = private_records(settings, records, clients)
        assert len(others) + sum(map(len, private.values())) == 6
        return {
            client: [round(float(one[0, 0, 0]) * 255 / 20) - 1 for one in own.inputs]
            for client, own in private.items()
        }

    assert rows("ben/2.png,anna/10.png") == {"0": [4, 2]}
    assert rows(f"{folder}/ben/10.png") == {"0": [5]}  # it exists, and is not read as a list
    assert rows("0-1, ben/1.png") == {"0": [0, 1, 3]}
    assert rows("0=anna/2.png") == {"0": [1]}
    assert rows("0") == {"0": [0]}
    both = rows("a=anna/2.png,5; b=ben/1.png", ("a", "b"))
    assert both == {"a": [1, 5], "b": [3]}
    (tmp_path / "list.txt").write_text("anna/2.png\nben/2.png\n")
    assert rows(str(tmp_path / "list.txt")) == {"0": [1, 4]}
    (tmp_path / "who.json").write_text('{"a": ["ben/10.png", 0], "b": [1]}')
    assert rows(str(tmp_path / "who.json"), ("a", "b")) == {"a": [5, 0], "b": [1]}
    with pytest.raises(
        ExhumeError, match=r"'anna/3.png' is not among the 6 files of the data, such"
    ):
        rows("anna/3.png")
    Image.new("L", (4, 4)).save(tmp_path / "other.png")
    with pytest.raises(ExhumeError, match=r"other.png: not a text file"):
        rows(str(tmp_path / "other.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a gradient, a recorded folder, or --before and --after"),
        (["g", "--loss", "hinge"], "loss: 'hinge' is not one of cross-entropy, logistic, mse"),
        (["g", "--reduction", "max"], "'max' is not one of mean, sum"),
        (["--after", "b"], "--after and --rate belong together"),
        (["--after", "b", "--rate", "1"], "--after needs the state before it"),
        (["g", "--before", "a", "--after", "b", "--rate", "1"], "not both"),
        (["g", "--steps", "2"], "several local steps need --before"),
        (["g", "--steps", "0"], "steps: 0 given, at least 1 needed"),
        (["g", "--budget", "0"], "budget: '0' is not a time such as 90s, 10m or 1.5h"),
        (["g", "--shape", "1,0"], "sizes must be at least 1"),
        (["g", "--shape", "a"], "--shape: 'a' is not a list"),
        (["g", "--records", "1"], "say with --data which set they belong to"),
        (["g"], "say the shape of a record"),
        (["g", "--data", "digits", "--shape", "64"], "the records of digits are (1, 8, 8)"),
        (
            ["g", "--data", "digits", "--records", "x"],
            "is not a list of row numbers such as 3,17,40-43",
        ),
        (["g", "--data", "digits", "--records", "5000"], "different indices from 0 to 1796"),
        (["g", "--data", "digits", "--records", "n.json"], "n.json: cannot be read"),
        (["g", "--data", "digits", "--records", "l.json"], "must hold a JSON object, not list"),
        (["g", "--data", "digits", "--records", "w.json"], "must hold lists of whole numbers"),
        (["nothing", "--shape", "1,8,8"], "there is no file nothing"),
    ],
)
def test_what_is_said_wrongly(invoke, place, arguments, message):
    path = gradient_of(made("relu"), place / "g.safetensors")
    (place / "l.json").write_text("[]")
    (place / "w.json").write_text('{"client": "all"}')
    done = invoke(*[path if a == "g" else a for a in arguments], "--out", place / "wrong")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert not (place / "wrong").exists()


# The parts


def candidates(records, labels=None, confidence=None):
    count = len(records)
    confidence = torch.zeros(1, count) if confidence is None else confidence
    return Reconstruction(
        records[None],
        confidence,
        Status(Outcome.CONVERGED),
        labels=None if labels is None else labels[None],
    )


@pytest.mark.parametrize("size", [2, 4])
def test_in_a_batch_of_one_class_no_mixture_is_proved(size):
    """Its neurons agree on mixtures; what is claimed is a record, and pairs that came back are claimed."""
    network, digits = MLP((1, 8, 8), (100,), 10, "relu"), readers.load("digits")
    claimed = 0
    for label in range(10):
        key = Key.from_seed(label)
        rows = (digits.labels == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=key.generator())[:size]]
        private = Records(digits.inputs[rows][None], digits.labels[rows][None], digits.classes)
        release, _ = release_batches(network, network.initial(key), private)
        prepared = BiasRatio().prepare(Knowledge(architecture=network), key=key, store=NullStore())
        found = prepared.run(release)
        proof = proof_of(release, network, found, Steps(), "bias-ratio")
        if proof.records:
            claims = found.candidates[0][proof.chosen].flatten(1).double()
            apart = torch.cdist(claims, private.inputs[0].flatten(1).double())
            assert bool((apart.min(1).values < 1e-3).all())
            assert torch.equal(proof.labels, torch.full((size,), label))
            claimed += 1
    assert claimed >= (6 if size == 2 else 0)


def test_only_the_right_records_explain_an_update(key):
    network = MLP((1, 8, 8), (40,), 10, "tanh")
    inputs, labels = batch()
    private = Records(inputs[None], labels[None], ())
    at = network.initial(key)
    release, _ = release_batches(network, at, private)
    assert torch.equal(labels_behind(release, network, inputs), labels)
    right = proof_of(release, network, candidates(inputs), Steps(), "span")
    assert right.records == 4
    assert torch.equal(right.labels, labels)
    more = torch.cat([inputs[:2].mean(0, keepdim=True), inputs])
    counts = torch.tensor([[2.0, 9.0, 9.0, 9.0, 9.0]])
    best = proof_of(release, network, candidates(more, confidence=counts), Steps(), "bias-ratio")
    assert best.chosen.tolist() == [False, True, True, True, True]
    assert proof_of(release, network, candidates(inputs, labels), Steps(), "span").records == 4
    for wrong in (inputs[:3], inputs + 0.01, inputs.flip(2)):
        proof = proof_of(release, network, candidates(wrong), Steps(), "span")
        assert proof.records == 0
        assert proof.residual > 1e-3
    local, _ = release_batches(network, at, private, steps=3, rate=0.5)
    assert proof_of(local, network, candidates(inputs), Steps(3, 0.5), "span").records == 4
    assert proof_of(local, network, candidates(inputs), Steps(), "span").records == 0


def test_a_mixture_is_no_record_where_all_neurons_are_weighed_alike(key):
    """One output: every neuron that the same records switch on has the same ratio, which is a mixture."""
    network = MLP((1, 8, 8), (40,), 1, "relu")
    inputs, labels = batch()
    private = Records(inputs[None], labels[None] % 2, ())
    release, _ = release_batches(network, network.initial(key), private)
    sure = candidates(inputs[:2].mean(0, keepdim=True), confidence=torch.full((1, 1), 9.0))
    assert proof_of(release, network, sure, Steps(), "bias-ratio").records == 0


def test_an_update_smaller_than_its_records_proves_nothing(key):
    network = MLP((1, 8, 8), (), 2)  # 130 numbers, 4 records of 64
    inputs, labels = batch()
    release, _ = release_batches(
        network, network.initial(key), Records(inputs[None], labels[None] % 2, ())
    )
    proof = proof_of(release, network, candidates(inputs, labels % 2), Steps(), "matching")
    assert (proof.records, proof.residual < 1e-6) == (0, True)


def test_what_is_kept_comes_back_whole(tmp_path):
    store = FolderStore(tmp_path)
    inputs, labels = batch()
    made_now = candidates(inputs, labels)
    again = (
        cached_reconstruction(store, "a" * 64, lambda: made_now),
        cached_reconstruction(store, "a" * 64, lambda: 1 / 0),
    )
    for found in again:
        assert torch.equal(found.candidates, made_now.candidates)
        assert torch.equal(found.labels, made_now.labels)
        assert (found.status, found.cost, found.observed) == (made_now.status, made_now.cost, {})

    def refuse():
        raise NotApplicable("no", ever=False)

    for make in (refuse, lambda: 1 / 0):
        status = cached_reconstruction(store, "b" * 64, make).status
        assert status == Status(Outcome.NOT_APPLICABLE, "no", ever=False)


def test_a_budget_becomes_steps(place, monkeypatch):
    """Counted from the model's size, not timed: the same brief has the same steps everywhere."""
    monkeypatch.chdir(place)
    path = gradient_of(made("conv"), place / "c.safetensors")
    settings = UpdateSettings("nets_of_test.py:conv", str(path), shape=(1, 8, 8), batch_size=4)

    def steps_of(seconds):
        brief = Brief.of(settings).with_budget(time=seconds).resolved()
        case = read_updates(brief, lambda source, reading: readers.load(source))
        resolved = case.resolve_settings(brief, NullStore())
        rows = case.resolved(resolved, NullStore()).rows()
        decoding = next(row.attack for row in rows if row.id == "features")
        return resolved.update.search_steps, decoding.steps

    assert steps_of("1s") == steps_of("1s") < steps_of("10s")
    assert (steps_of("0.01s"), steps_of("10h")) == ((50, 50), (2000, 1000))
    with pytest.raises(ExhumeError, match="restarts: 0 given, at least 1 needed"):
        UpdateSettings("m", "u", restarts=0)
