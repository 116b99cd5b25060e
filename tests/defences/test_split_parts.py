"""Trained split networks on disk: what is written where, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from exhume.core.contract import ExhumeError, Key, Records
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Dropout, Noise, RandomHead, Shredder
from exhume.models.split.blueprint import Blueprint, OwnNetwork
from exhume.models.split.networks import VGG16, ResNet18
from exhume.models.split.parts import (
    load_bodies,
    load_client,
    load_pipeline,
    save_client,
    save_pipeline,
    save_server,
)
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, SplitJob

DEFENCES = (
    Noise(),
    Noise(0.5),
    Dropout(0.5),
    RandomHead(),
    Shredder(0.5),
    DropoutEnsemble(3, 0.3),
    Ensembler(3, 2),
)
FACTORY = f"{__file__}:small"


def small():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(32, 3),
    )


@pytest.fixture(scope="module")
def job():
    key = Key.from_seed(0)
    inputs = torch.rand(60, 1, 8, 8, generator=key.generator())
    records = Records(inputs, torch.arange(60) % 3, ("a", "b", "c"))
    network = OwnNetwork(FACTORY, (1, 8, 8))
    return SplitJob(network, "0", "2", records, Schedule(1, 30, 0.05), augment=False)


@pytest.fixture(scope="module")
def trained(job):
    return Ensembler(3, 2).train(job, key=Key.from_seed(0), store=NullStore())


@pytest.fixture
def kept(job, trained, tmp_path):
    """Folders of the client and of the server."""
    save_pipeline(trained, job.blueprint, tmp_path / "client", tmp_path / "server")
    return tmp_path / "client", tmp_path / "server"


def rewrite(folder, **changed):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def refile(path, change):
    """Alter a part, and the manifest so that only its content gives it away."""
    state = load_file(path)
    state = change(state) or state
    save_file(state, path)
    rewrite(path.parent, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("defence", DEFENCES, ids=str)
def test_every_defence_comes_back_with_the_same_bits(defence, job, tmp_path, key):
    made = defence.train(job, key=key, store=NullStore())
    save_pipeline(made, job.blueprint, tmp_path / "c", tmp_path / "s")
    back = load_pipeline(tmp_path / "c", tmp_path / "s", factory=FACTORY)
    x = job.records.inputs[:7]
    assert torch.equal(back(x), made(x))
    assert torch.equal(back.released(x), made.released(x))
    assert back.client.selected == made.client.selected
    modules = (back.client.head, back.client.tail, *back.bodies)
    assert not any(m.training for m in modules)
    assert not any(p.requires_grad for m in modules for p in m.parameters())


@pytest.mark.parametrize(
    ("network", "second"),
    [(ResNet18(width=2), "pool"), (VGG16(width=2, outputs=7), "pool")],
    ids=["resnet", "vgg"],
)
def test_our_networks_are_named_with_their_arguments(network, second, tmp_path, key):
    plan = Blueprint(network, "conv1", second)
    bodies = tuple(plan.split().body.eval() for _ in range(3))
    noise = torch.randn(plan.shapes()[0], generator=key.generator())
    client = SplitClient(plan.split().head.eval(), noise, (0, 2), plan.tail(2).eval())
    made = Pipeline(client, bodies, "conv1")
    save_pipeline(made, plan, tmp_path / "c", tmp_path / "s")
    back = load_pipeline(tmp_path / "c", tmp_path / "s")  # needs no code of the user's
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(back(x), made(x))


def test_the_servers_bytes_are_the_same_for_every_selection(job, tmp_path, key):
    ensembler = Ensembler(3, 2)
    parts = ensembler.stage_one(job, key=key, store=NullStore())
    seen = []
    for chosen in ((0, 1), (0, 2), (1, 2)):
        made = ensembler.stage_two(job, parts, chosen, key=key, store=NullStore())
        place = tmp_path / "".join(map(str, chosen))
        save_pipeline(made, job.blueprint, place / "client", place / "server")
        seen.append(tree(place / "server"))
    assert seen[0] == seen[1] == seen[2]
    assert sorted(seen[0]) == sorted(
        f"body{i}/{n}" for i in range(3) for n in ("manifest.json", "body.safetensors")
    )
    whole = b"".join(seen[0].values())
    assert b"selected" not in whole
    assert b"tail" not in whole


def test_a_rotated_selector_goes_with_the_old_bodies(job, tmp_path, key):
    ensembler = Ensembler(3, 2)
    parts = ensembler.stage_one(job, key=key, store=NullStore())
    first, second = (
        ensembler.stage_two(job, parts, chosen, key=key, store=NullStore())
        for chosen in ((0, 1), (1, 2))
    )
    save_pipeline(first, job.blueprint, tmp_path / "c1", tmp_path / "s")
    save_client(second, job.blueprint, tmp_path / "c2")
    back = load_pipeline(tmp_path / "c2", tmp_path / "s", factory=FACTORY)
    assert torch.equal(back(job.records.inputs[:4]), second(job.records.inputs[:4]))


def test_only_the_owner_reads_the_clients_part(kept):
    client = kept[0]
    assert client.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in client.iterdir()} == {0o600}
    for path, mode in ((client, 0o755), (client / "client.safetensors", 0o640)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(ExhumeError, match=rf"others can read .*\(mode {mode:o}\).*chmod"):
            load_client(client, factory=FACTORY)
        path.chmod(before)
    load_client(client, factory=FACTORY)


def test_a_manifest_does_not_decide_which_code_runs(kept):
    client, server = kept
    with pytest.raises(ExhumeError, match="say factory=.* to allow that this code is run"):
        load_client(client)
    with pytest.raises(ExhumeError, match="to allow that this code is run"):
        load_bodies(server, factory="os:abort")


def test_missing_and_altered_parts(kept):
    client, server = kept
    body = server / "body1" / "body.safetensors"
    whole = body.read_bytes()
    body.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ExhumeError, match="altered or damaged"):
        load_pipeline(client, server, factory=FACTORY)
    body.unlink()
    with pytest.raises(ExhumeError, match="is missing, though the manifest names it"):
        load_pipeline(client, server, factory=FACTORY)
    shutil.rmtree(server / "body1")
    with pytest.raises(ExhumeError, match="has no body1; there are body0, body2"):
        load_pipeline(client, server, factory=FACTORY)
    part = client / "client.safetensors"
    part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(ExhumeError, match="altered or damaged"):
        load_client(client, factory=FACTORY)
    part.write_bytes(b"not tensors")
    rewrite(client, sha256=hashlib.sha256(b"not tensors").hexdigest())
    with pytest.raises(ExhumeError, match="is no safetensors file"):
        load_client(client, factory=FACTORY)
    with pytest.raises(ExhumeError, match="holds no body"):
        load_bodies(client, factory=FACTORY)
    with pytest.raises(ExhumeError, match="there is no folder"):
        load_client(server / "nowhere", factory=FACTORY)


def test_a_body_of_another_training(job, kept, tmp_path, key):
    client, _ = kept
    other = Ensembler(3, 2).train(job, key=key.fold("other"), store=NullStore())
    save_server(other, job.blueprint, tmp_path / "other")
    with pytest.raises(ExhumeError, match="body0 is not the one that this client was trained with"):
        load_pipeline(client, tmp_path / "other", factory=FACTORY)


def test_a_body_of_another_network(kept, key):
    client, server = kept

    def widen(state):
        name = next(n for n in state if n.endswith("0.weight"))
        state[name] = torch.zeros(9, 4, 3, 3)

    refile(server / "body0" / "body.safetensors", widen)
    with pytest.raises(
        ExhumeError, match="those of another network or split: 1.0.weight has shape"
    ):
        load_pipeline(client, server, factory=FACTORY)
    described = {"type": "ResNet18", "input_shape": [1, 8, 8], "outputs": 3, "width": 4}
    plan = Blueprint(ResNet18((1, 8, 8), 3, 4), "conv1", "pool")
    rewrite(server / "body0", network={**described, "max_pool": True})
    with pytest.raises(ExhumeError, match="has no layer '0'"):
        load_pipeline(client, server, factory=FACTORY)
    rewrite(server / "body0", first=plan.first, second=plan.second)
    refile(server / "body0" / "body.safetensors", lambda _: dict(plan.split().body.state_dict()))
    with pytest.raises(ExhumeError, match=r"body0 is a piece of ResNet18.*network is OwnNetwork"):
        load_pipeline(client, server, factory=FACTORY)


def test_a_body_that_was_cut_elsewhere(job, kept, key, tmp_path):
    client, _ = kept
    elsewhere = replace(job, first="1")
    made = Noise().train(elsewhere, key=key, store=NullStore())
    save_server(made, elsewhere.blueprint, tmp_path / "elsewhere")
    for i in (1, 2):
        shutil.copytree(tmp_path / "elsewhere" / "body0", tmp_path / "elsewhere" / f"body{i}")
    with pytest.raises(
        ExhumeError, match="body0 is a piece of .* cut at '1' and '2', .* cut at '0' and '2'"
    ):
        load_pipeline(client, tmp_path / "elsewhere", factory=FACTORY)
    with pytest.raises(ExhumeError, match="cut after '0', the blueprint says '1'"):
        save_pipeline(
            load_pipeline(*kept, factory=FACTORY),
            elsewhere.blueprint,
            tmp_path / "x",
            tmp_path / "y",
        )


def test_fewer_bodies_than_are_selected(kept):
    client, _ = kept
    sums = json.loads((client / "manifest.json").read_text())["bodies"]
    rewrite(client, bodies=sums[:1])
    with pytest.raises(ExhumeError, match="2 bodies are selected and there are 1"):
        load_client(client, factory=FACTORY)
    rewrite(client, bodies=sums)
    for selector in ([], [1, 0], [0, 3], [-1, 0]):
        refile(
            client / "client.safetensors", lambda s, to=selector: s | {"selected": torch.tensor(to)}
        )
        (client / "client.safetensors").chmod(0o600)
        with pytest.raises(ExhumeError, match="the selector is no choice of 3 bodies"):
            load_client(client, factory=FACTORY)


def test_a_noise_map_of_another_split(kept):
    client, _ = kept
    refile(client / "client.safetensors", lambda s: s | {"noise": torch.zeros(4, 4, 4)})
    (client / "client.safetensors").chmod(0o600)
    with pytest.raises(
        ExhumeError, match=r"noise map has shape \(4, 4, 4\), features .* \(4, 8, 8\)"
    ):
        load_client(client, factory=FACTORY)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not readable as JSON"),
        ("[]", "reads manifests of schema 1"),
        ('{"schema": 2}', "reads manifests of schema 1"),
        ('{"schema": 1, "kind": "split client"}', "describes a 'split client'"),
        ('{"schema": 1, "kind": "split body"}', "'network' is missing or no dict"),
    ],
)
def test_damaged_manifests(content, sentence, kept):
    (kept[1] / "body0" / "manifest.json").write_text(content)
    with pytest.raises(ExhumeError, match=sentence):
        load_bodies(kept[1], factory=FACTORY)
    (kept[1] / "body0" / "manifest.json").unlink()
    with pytest.raises(ExhumeError, match=r"no manifest.json, so this is no exported split body"):
        load_bodies(kept[1], factory=FACTORY)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ({"type": "Transformer"}, "network 'Transformer' is not one of"),
        (
            {"type": "VGG16", "size": 3},
            "network VGG16 takes input_shape, outputs, width, given are",
        ),
        (
            {"type": "VGG16", "input_shape": [3, 32, 32], "outputs": "x", "width": 4},
            "network VGG16: outputs is 'x', int is needed",
        ),
    ],
)
def test_unknown_networks(network, sentence, kept):
    rewrite(kept[1] / "body0", network=network)
    with pytest.raises(ExhumeError, match=sentence):
        load_bodies(kept[1], factory=FACTORY)


def test_nothing_is_overwritten(job, trained, kept, tmp_path):
    for save, place in ((save_client, kept[0]), (save_server, kept[1])):
        before = tree(place)
        with pytest.raises(ExhumeError, match="holds files already"):
            save(trained, job.blueprint, place)
        assert tree(place) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ExhumeError, match="cannot write to"):
        save_client(trained, job.blueprint, tmp_path / "file" / "client")


def test_a_network_without_a_name(trained, tmp_path):
    class Unnamed:
        input_shape = (1, 8, 8)

        def module(self, key):
            return small()

    with pytest.raises(ExhumeError, match="a Unnamed cannot be named in a manifest"):
        save_server(trained, Blueprint(Unnamed(), "0", "2"), tmp_path / "s")


def test_somebodys_factory_draws_from_our_key_and_leaves_the_global_generator(key):
    network = OwnNetwork(FACTORY, (1, 8, 8))
    torch.manual_seed(5)
    untouched = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (network.module(k) for k in (key, key, key.fold("x")))
    assert torch.equal(torch.rand(1), untouched)
    assert torch.equal(one[3].weight, two[3].weight)
    assert not torch.equal(one[3].weight, other[3].weight)
    assert Path(__file__).name in network.factory
