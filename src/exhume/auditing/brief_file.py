"""The text of a commented brief, for `exhume init`: every line says what else could stand there."""

from __future__ import annotations

import tomllib

from exhume.auditing.brief import Brief
from exhume.contract import ExhumeError
from exhume.settings import toml_of

__all__ = ["HOLDS", "KINDS", "brief_file"]

HOLDS = ("whole", "adapter", "delta")
KINDS = ("training", "checkpoint", "updates", "features", "fitted")


def brief_file(
    release: str,
    *,
    data: str,
    model: str,
    checkpoint: str,
    budget: str,
    holds: str = "whole",
    base: str = "",
) -> str:
    """release: one of `KINDS`; holds: what is in the file, one of `HOLDS`; base: of an adapter or a delta.

    The text is read back once, so that it is legal.
    """
    if holds not in HOLDS:
        raise ExhumeError(f"holds: {holds!r} is not one of {', '.join(HOLDS)}")
    filed = {"file": checkpoint} if holds == "whole" else {"base": base, holds: checkpoint}
    parts = [_HEAD, "", _section("budget", {"time": budget}), _FIXES]
    parts += ["", _DATA, _section("data", {"source": data}), ""]
    match release:
        case "training":
            parts += [_TRAINING, _section("victim", {"network": model}), _VICTIM]
        case "checkpoint":
            parts += [_CHECKPOINT, _section("checkpoint", filed), _ROWS]
        case "updates":
            own = {"model": model} if ":" in model else {}
            if holds == "whole":
                parts += [_UPDATES, _section("update", own), _MADE]
            else:
                parts += [_TUNED, _section("update", own | filed), _STEPS]
        case "features":
            parts += [_SPLIT, _section("split", {"model": model}), _POINTS]
        case "fitted":
            parts += [_FITTED, _section("fitted", {"file": checkpoint})]
        case other:
            raise ExhumeError(f"release: {other!r} is not one of {', '.join(KINDS)}")
    text = "\n".join(part.strip("\n") for part in parts) + "\n"
    Brief.from_mapping(tomllib.loads(text), where="the brief")
    return text


def _section(name: str, values: dict[str, str]) -> str:
    return toml_of({name: values}).strip("\n")


_HEAD = """
# What is released, and how long looking for leaks may take. Run it with: exhume audit audit.toml
seed = 0
"""
_FIXES = """
fixes = true            # where it leaks, also try what stops it
"""
_DATA = """
# Your records: a name from `exhume data list`, a folder of images with a sub-folder per class, an .npz file
# with x and y, a .csv table, idx files, a torch Dataset (mine.py:dataset), a `datasets` folder; for updates
# also texts: a .txt file (a text, a tab, its label a line), a folder of .txt files, tokens in an .npz file.
"""
_TRAINING = """
# Released: weights, trained like this on all but one of the records, to someone who knows the others, the
# training and its start. The strongest adversary there is: what it cannot find, nobody can by this road.
"""
_VICTIM = """
# hidden = [64, 32]     # widths, of mlp and cnn
# activation = "relu"
optimiser = "gd"        # gd: all records in every step; sgd or adam: with batch = 32
steps = 100
rate = 0.1
# train = "train.py:train"      # or your own function train(model, records, rng)
# dp_clip = 1.0         # private training
# dp_noise = 1.0
# dp_sampling = 0.1     # probability with which a record enters a step
"""
_CHECKPOINT = """
# Released: this file, to anyone. [data] above is what it was trained on; it serves to score only.
"""
_ROWS = """
rows = "0:100"          # those of the records that it was trained on; the others are decoys
# activation = "relu"
# mean = "0.5"          # what your preprocessing subtracts from [0, 1] pixels
"""
_UPDATES = """
# Released: what a client sends to the server in one round, to that server.
"""
_MADE = """
made = 4                # updates that are made here, from your records
batch_size = 8
# update = "update.safetensors" # or one that you have (then without made)
# vocabulary = "vocab.txt"      # of texts: the words in the order of their token numbers, or vocab.json
# length = 64           # of texts: tokens of a record; longer ones are cut
# padding = 0           # of texts: the token that fills up, if neither vocabulary nor model says
"""
_TUNED = """
# Released: what a few steps of fine-tuning add to a base, to anyone who has the base.
"""
_STEPS = """
rate = 0.1              # of the SGD that made it; other optimisers are not covered
steps = 1               # many steps: audit the training instead ([victim] with start)
batch_size = 8
records = "0-7"         # those of the records that it was made of
# scaling = 2.0         # of an adapter, if there is no adapter_config.json beside it
"""
_SPLIT = """
# Released: the features that the client of a split network sends, to the server that computes the rest.
"""
_POINTS = """
# weights = "net.safetensors"   # its state dict
# first = ["conv1", "block1"]   # last layers of the client's part; the first named is the one in use
# second = "pool"       # last layer of the server's part
# defend = "ensembler"  # train a defence, and attack that
"""
_FITTED = """
# Released: a fitted LogisticRegression in a .skops file, to someone who has all of [data] but one record.
"""
