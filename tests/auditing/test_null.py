"""p-values of line-ups through every kind's own path where answers know the class and nothing else.

Linear models, whose answers depend on who sits where, are in `test_fitted`.
"""

from __future__ import annotations

import pytest
import torch

from exhume.auditing.attack import line_up_row
from exhume.auditing.case import Answer
from exhume.auditing.kinds.checkpoint import checkpoint_case
from exhume.auditing.kinds.split import read_released_split
from exhume.auditing.kinds.training import read_training
from exhume.auditing.kinds.update import read_updates
from exhume.core.contract import Key, Outcome, Reconstruction, Records, Status, silent
from exhume.settings import Brief, CheckpointSettings
from exhume.store.shards import NullStore
from exhume.studies.verdict import nets

pytestmark = pytest.mark.slow
NETS = nets.__name__
CLASSES = 5


def pictures(key, count):
    """Records near the middle of their class."""
    middles = torch.rand(CLASSES, 1, 8, 8, generator=Key.from_seed(0).fold("middles").generator())
    labels = torch.arange(count) % CLASSES
    noise = torch.randn(count, 1, 8, 8, generator=key.fold("noise").generator())
    names = tuple(map(str, range(CLASSES)))
    return Records((middles[labels] + 0.2 * noise).clamp(0, 1), labels, names)


def guessed(key, labels):
    """(n, 1, 8, 8) other records of these classes, nearer to the middle or not."""
    other = pictures(key.fold("guesses"), 50 * CLASSES).inputs.view(50, CLASSES, 1, 8, 8)
    picks = torch.randint(50, (len(labels),), generator=key.fold("picks").generator())
    mean = other.mean(0)[labels]
    return mean + 0.5 * (other[picks, labels] - mean)


def brought_back(question, candidates):
    """(r, k, *shape) as an answer."""
    sure = torch.rand(candidates.shape[:2], generator=question.key.fold("sure").generator())
    return Answer(question, Reconstruction(candidates, sure, Status(Outcome.CONVERGED)))


def weights(key, seed):
    records = pictures(key, 260)
    sizes = {"fixed": 20, "targets": 15, "shadows": 20, "public": 5, "test": 200}
    brief = Brief.from_mapping(
        {
            "seed": seed,
            "data": {"source": "digits", **sizes},
            "victim": {"hidden": [4], "steps": 1},
            "machine": {"threads": 1},
        }
    ).resolved()
    case = read_training(brief, lambda *_: records).trained(NullStore(), silent)
    row = case.rows()[0]
    (question,) = case.questions(row)
    labels = case.played.victim[1].open().labels
    return case, row, [brought_back(question, guessed(key, labels)[:, None])]


def split(key, seed):
    records = pictures(key, 400)
    brief = Brief.from_mapping(
        {
            "seed": seed,
            "victim": {"released": False},
            "machine": {"threads": 1},
            "split": {
                **{"model": f"{NETS}:identity_head", "data": "digits", "first": "head"},
                **{"second": "body", "channels": 2, "targets": 20, "lpips": False},
            },
        }
    ).resolved()
    case = read_released_split(brief, lambda *_: records)
    case = case.made(FolderOfNothing(), silent)
    row = case.rows()[1]
    (question,) = case.questions(row)
    labels = case.owned.parts.target.labels
    return case, row, [brought_back(question, guessed(key, labels)[:, None])]


class FolderOfNothing:
    @staticmethod
    def store():
        return NullStore()


def updates(key, seed):
    """Four batches of eight, whose candidates include means of batches."""
    records = pictures(key, 260)
    brief = Brief.from_mapping(
        {
            "seed": seed,
            "data": {"source": "digits"},
            "victim": {"released": False},
            "machine": {"threads": 1},
            "update": {"made": 4, "batch_size": 8, "model": f"{NETS}:mlp", "search_steps": 1},
        }
    ).resolved()
    case = read_updates(brief, lambda *_: records)
    row = case.rows()[0]
    answers = []
    for place, question in enumerate(case.questions(row)):
        labels = torch.randint(CLASSES, (12,), generator=key.fold("labels", place).generator())
        some = guessed(key.fold(place), labels)
        some[:4] = 0.5 + 0.3 * (some[:4] - 0.5)
        answers.append(brought_back(question, some[None]))
    return case, row, answers


def checkpoints(key, seed):
    """Chosen by the user, at random: what was trained on, and others."""
    records = pictures(key, 240)
    sets = {"own": records[:40], "others": records[40:]}
    settings = CheckpointSettings(
        checkpoint="net.pt", trained_on="own", decoys="others", mean="0", seed=seed, threads=1
    )
    net = nets.mlp()
    case = checkpoint_case(settings, net.state_dict(), lambda name, _: sets[name])
    row = case.rows()[0]
    (question,) = case.questions(row)
    labels = torch.randint(CLASSES, (60,), generator=key.fold("labels").generator())
    return case, row, [brought_back(question, guessed(key, labels)[None])]


@pytest.mark.parametrize(
    "drawn", [weights, split, updates, checkpoints], ids=lambda drawn: drawn.__name__
)
def test_p_values_of_400_null_line_ups(drawn, fewer_draws):
    low = []
    for seed in range(400):
        case, row, answers = drawn(Key.from_seed(seed).fold("null"), seed)
        low.append(line_up_row(case.seats(row, answers), row.tests).row.p <= 0.05)
    assert sum(low) <= 0.08 * len(low)
