from __future__ import annotations

import pytest
import torch

from exhume.choices import resolve
from exhume.core.contract import Key
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies import run_study
from exhume.studies.arms import Bench
from exhume.studies.claims import Words, claims_of
from exhume.studies.informed.sweeps import Pooled
from exhume.studies.informed.varied import judge_starts, trained_before
from exhume.train.functional import accuracy


def planted(errors: dict[int, float], successes: int) -> dict[int, Pooled]:
    common = 0.01 * torch.randn(60, generator=Key.from_seed(1).generator()).double()
    return {
        steps: Pooled(mean + common, (0.0, 0.0), {}, successes, 1, 60)
        for steps, mean in errors.items()
    }


def held(errors: dict[int, float], successes: int = 50) -> dict[str, bool | None]:
    arms = planted(errors, successes)
    found, said = judge_starts(arms, Key.from_seed(0))
    for steps, arm in arms.items():
        found |= {f"before_{steps}.mse": arm.mse, f"before_{steps}.start_accuracy": 0.92}
    claims = claims_of("informed-start", Words.of("informed-start", None, found | said))
    return {name: claim[-1] for name, claim in claims.items()}


def test_claims_follow_the_errors():
    assert held({0: 0.01, 10: 0.02, 100: 0.03}) == {"harder": True, "gradual": True, "leaks": True}
    assert held({0: 0.01, 10: 0.03, 100: 0.02})["gradual"] is False
    assert held({0: 0.03, 10: 0.02, 100: 0.01})["harder"] is False
    assert held({0: 0.01, 10: 0.02}, successes=2)["leaks"] is None


def test_earlier_training_sees_the_public_records_and_no_others(make_records, key):
    records = make_records(200, (6,), 2, key)
    sizes = DataSettings("made", fixed=50, targets=20, shadows=40, public=60, test=30)
    settings = resolve(Settings(0, sizes, VictimSettings(hidden=(4,), rate=0.5)), records)
    bench = Bench(None, settings, records)
    fresh, again, begun = (trained_before(bench, steps) for steps in (0, 1, 200))
    assert not torch.equal(fresh, again)  # one step is a step
    assert accuracy(bench.recipe.architecture, begun[None], bench.parts.test) > 0.9
    order = torch.randperm(200, generator=Key.from_seed(0).fold("split").generator())
    others = torch.cat([order[:110], order[170:]])  # all but public: fixed, targets, shadows, test
    changed = records.inputs.clone()
    changed[others] = 0
    blanked = type(records)(changed, records.labels, records.classes)
    assert torch.equal(trained_before(Bench(None, settings, blanked), 200), begun)


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-start", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["before_0.start_accuracy"] < 0.4 < metrics["before_100.start_accuracy"]
    assert metrics["before_0.mse"] < metrics["mean_record.mse"]
    assert metrics["before_0.success_low"] > metrics["before_0.null_success_high"]
    assert len(result["charts"][0]["series"]["closed form"]) == 3
