from __future__ import annotations

import json
import math
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from report_runs import NASTY, MakeRun, attack, audit, evidence, study
from safetensors.torch import save_file

from exhume.core.contract import ExhumeError, Shard
from exhume.core.notation import duration_of
from exhume.report.figures import png_data_uri
from exhume.report.gallery import selection
from exhume.report.page import draw
from exhume.report.words import metric_rows, number, percent, show
from exhume.store.shards import write_shard


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def drawn(run: Path, *, redact: bool = False) -> str:
    return draw(run, redact=redact).read_text(encoding="utf-8")


def test_the_page_is_written_privately_and_leaves_nothing_else(make_run: MakeRun) -> None:
    run = make_run(audit(), evidence())
    before = {p.name for p in run.iterdir()}
    path = draw(run)
    assert path == run / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {p.name for p in run.iterdir()} == before | {"report.html"}
    assert draw(run, redact=True) == run / "report-redacted.html"


def test_drawing_twice_gives_the_same_bytes(make_run: MakeRun) -> None:
    run = make_run(audit(), evidence())
    assert drawn(run) == drawn(run)


def test_the_page_says_verdict_knowledge_and_key_figures(make_run: MakeRun) -> None:
    text = drawn(make_run(audit(), evidence()))
    for words in (
        "This page shows private records",
        '<p class="word">leaks</p>',
        "Most records come back.",
        "every training record except the target",
        "86 of 100",
        "86% (78% to 92%)",
        "by chance 0%",
        "Showing 200 of 230 targets: the 100 with the largest gain over what was held",
        "fewer shadows",
        "data.path",
        "How to read this page",
    ):
        assert words in text


def test_the_page_ends_with_what_it_means_and_what_to_do(make_run: MakeRun) -> None:
    leak = {"successes": 86, "trials": 100, "low": 0.78, "high": 0.92, "chance": 0.01}
    page = drawn(
        make_run(audit(leak=leak, strength="recognised", expected_by_chance=1.0), evidence(9))
    )
    end = page[page.index("The run</h2>") :]
    assert end.index("What this means</h2>") < end.index("What to do next</h2>")
    assert "tell which records are behind it: 86 of the 100 that were tried, where chance" in end
    assert "the same command with --try-fixes shows what stops it." in end


def test_the_glossary_has_exactly_the_words_that_the_page_uses(make_run: MakeRun) -> None:
    def terms(page: str) -> set[str]:
        part = page[page.index('<details class="glossary">') :].split("</details>")[0]
        return set(re.findall(r"<dt>(.*?)</dt>", part))

    run = make_run(audit(), evidence(9))
    page = drawn(run)
    assert {"Target", "Oracle", "MSE"} <= terms(page)
    assert not {"Distance", "Shadow model", "Epsilon", "p"} & terms(page)
    lineup = {
        "identified": 8,
        "targets": 9,
        "strangers": 99,
        "chance": 0.01,
        "p": 1e-4,
        "needed": 2,
    }
    other = attack(lineup=lineup | {"detectable": 0.2}, notes=["Distance 4 of a shadow model."])
    (run / "result.json").write_text(json.dumps(audit(attacks=[other])))
    more = {"Line-up", "Stranger", "p", "Distance", "Shadow model"}
    assert more <= terms(drawn(run))


def test_cards_that_beat_what_was_held_come_first(make_run: MakeRun) -> None:
    tensors = evidence(3) | {
        "mse": torch.tensor([0.01, 0.03, 0.02]),
        "oracle_mse": torch.tensor([0.01, 0.3, 0.04]),
    }
    page = drawn(make_run(audit(), tensors))
    ratios = re.findall(r'<span class="ratio">(.*?)×</span>', page)
    assert ratios == ["0.1", "0.5", "1"]


def test_nothing_outside_the_file_is_named(make_run: MakeRun) -> None:
    for tag, attributes in Tags(drawn(make_run(audit(), evidence()))).found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
        assert not any(name.startswith("on") or name == "style" for name in attributes)


def test_every_text_of_the_user_is_escaped(make_run: MakeRun) -> None:
    verdict = {"word": "leaks", "sentence": NASTY, "detail": NASTY}
    result = audit(
        title=NASTY,
        data=NASTY,
        verdict=verdict,
        victim={NASTY: NASTY},
        classes=[NASTY] * 3,
        deviations=[NASTY],
        attacks=[
            attack(
                name=NASTY,
                paper=NASTY,
                sees=NASTY,
                knows=[NASTY],
                notes=[NASTY],
                status={"outcome": "stopped early", "reason": NASTY},
                metrics={NASTY: 1.0, "success": 0.5},
                baselines=[{"name": NASTY, NASTY: NASTY}],
            )
        ],
    )
    config = f"{json.dumps(NASTY)} = {json.dumps(NASTY)}\n"
    text = drawn(make_run(result, evidence(5), config=config, environment={NASTY: NASTY}))
    tags = Tags(text).found
    assert [tag for tag, _ in tags].count("script") == 1
    assert all(str(a.get("src", "")).startswith("data:image/png") for t, a in tags if t == "img")
    assert "<img src=x" not in text


def secrets() -> dict[str, Any]:
    return audit(
        classes=["Jane Doe", "John Roe", "Ann Poe"],
        verdict={
            "word": "leaks",
            "sentence": "Read from /home/jane/my data/mnist.npz here.",
            "detail": "",
        },
        victim={"checkpoint": "/srv/Secret Place/model.pt", "run": r"C:\Users\jane\x.pt"},
        attacks=[attack(notes=["see ~/private/notes.txt, and/or ../up/there/x.csv"])],
    )


def test_the_redacted_page_holds_no_record(make_run: MakeRun) -> None:
    tensors = evidence(30)
    text = drawn(make_run(secrets(), tensors), redact=True)
    tags = {tag for tag, _ in Tags(text).found}
    assert not tags & {"img", "canvas", "script", "dialog"}
    assert "data:image" not in text
    assert "data-rank" not in text
    assert "data-mse" not in text
    assert 'class="dots' not in text
    for role in ("targets", "reconstructions", "nearest"):
        assert png_data_uri(tensors[role][0]).split(",")[1][60:90] not in text
    for value in tensors["mse"].tolist():
        assert repr(value) not in text
    for words in ("Redacted version", "left out of this redacted version", "83% to 89%"):
        assert words in text
    assert 'class="chart"' in text  # the histogram stays


def test_the_redacted_page_names_no_place_and_no_person(make_run: MakeRun) -> None:
    environment = {
        "torch": "2.13.0",
        "hostname": "janes-laptop",
        "executable": "/home/jane/bin/python",
    }
    config = 'source = "patients.csv:income"\n[data]\npath = "/home/jane/my data/mnist.npz"\n'
    run = make_run(secrets(), evidence(30), environment=environment, config=config)
    text = drawn(run, redact=True)
    for gone in (
        "jane",
        "Jane",
        "John",
        "Secret Place",
        "my data",
        "/srv",
        "~/",
        "../up",
        str(run.parent),
    ):
        assert gone not in text
    for gone in ("mnist.npz", "model.pt", "x.pt", "notes.txt", "x.csv", "patients"):
        assert gone not in text
    for stays in ("redacted.npz", "redacted.pt", "redacted.csv:income", "and/or", "2.13.0"):
        assert stays in text
    assert "jane" in drawn(run)


def test_the_redacted_page_names_no_group(make_run: MakeRun) -> None:
    row = {"identified": 9, "targets": 9, "low": 0.6, "high": 1.0, "stands_out": True}
    note = "More than of all comes back of Jane Doe (9 of 9, at least 60%)."
    leak = {"successes": 9, "trials": 30, "low": 0.1, "high": 0.5}
    groups = [row | {"name": "Jane Doe"}]
    result = secrets() | {
        "leak": leak,
        "groups": groups,
        "attacks": [attack(notes=[note], groups=groups)],
    }
    run = make_run(result, evidence(30))
    text = drawn(run, redact=True)
    assert "Jane" not in text
    assert "More exposed than the others: group 1: 9 of 9." in text
    assert "More exposed than the others: Jane Doe: 9 of 9." in drawn(run)


def test_redaction_spares_the_text_around_bare_separators(make_run: MakeRun) -> None:
    text = drawn(
        make_run(study(deviations=["1/2 of it. And so on.."]), config='a = "/"\nb = ".."'),
        redact=True,
    )
    assert "1/2 of it. And so on.." in text


def test_a_redacted_table_of_vectors_holds_no_strip(make_run: MakeRun) -> None:
    text = drawn(make_run(audit(), evidence(20, (12,))), redact=True)
    assert 'class="strip"' not in text


def test_vectors_are_drawn_as_strips(make_run: MakeRun) -> None:
    text = drawn(make_run(audit(), evidence(20, (12,))))
    assert text.count('class="strip"') == 20 * 4
    assert "<img" not in text
    assert "Showing all 20 targets" in text


def test_missing_columns_are_left_out(make_run: MakeRun) -> None:
    kept = ("targets", "reconstructions")
    text = drawn(make_run(audit(), {k: v for k, v in evidence(8).items() if k in kept}))
    assert text.count("<img") == 16
    assert "Nearest held" not in text
    assert 'value="confidence"' not in text
    assert "data-filter>" not in text


def test_values_that_are_not_finite_do_not_stop_the_page(make_run: MakeRun) -> None:
    tensors = evidence(9)
    tensors["mse"][:3] = math.nan
    tensors["oracle_mse"][2:5] = 0.0
    tensors["confidence"][:] = math.inf
    tensors["reconstructions"][0] = math.nan
    result = audit(attacks=[attack(metrics={"mse": math.nan, "success": None, "oracle_mse": 0.0})])
    assert drawn(make_run(result, tensors)).count('<li class="card') == 9


def test_a_study_shows_its_claims(make_run: MakeRun) -> None:
    text = drawn(make_run(study()))
    assert "1 of 2 claims hold" in text
    assert "does not hold" in text
    assert "Study informed-mnist · scale cpu · seed 0" in text
    assert "Fit seconds" in text
    assert 'class="verdict' not in text


def test_a_study_written_without_a_kind_is_one(make_run: MakeRun) -> None:
    result = study()
    del result["kind"]
    assert "1 of 2 claims hold" in drawn(make_run(result))


def test_a_release_that_was_not_audited(make_run: MakeRun) -> None:
    status = {"outcome": "not applicable", "reason": "The recipe is unknown.", "ever": True}
    bare = attack(status=status, metrics={}, baselines=[], cost={}, evidence=None)
    verdict = {"word": "not audited", "sentence": "No attack applies.", "detail": ""}
    text = drawn(make_run(audit(verdict=verdict, attacks=[bare])))
    assert "The recipe is unknown. More knowledge could change this." in text
    assert 'class="verdict unknown"' in text
    assert "It draws no records" in text
    assert "<script" not in text


def test_several_attacks_share_the_room_for_records(make_run: MakeRun, monkeypatch: Any) -> None:
    monkeypatch.setattr("exhume.report.page.RECORDS_SIZE", 100_000)
    tensors = evidence(40, (3, 16, 16))
    run = make_run(
        audit(attacks=[attack(), attack(name="Second", evidence="b.safetensors")]), tensors
    )
    save_file(tensors, run / "b.safetensors")
    text = drawn(run)
    assert text.count("of 40 targets") == 2
    assert "The attacks side by side" in text
    assert len(text) < 200_000


def test_a_run_without_settings_is_drawn(make_run: MakeRun) -> None:
    run = make_run(audit(), evidence(3))
    (run / "config.toml").unlink()
    (run / "environment.json").unlink()
    assert "Settings" not in drawn(run)


def damaged(**changes: Any) -> str:
    return json.dumps(audit(**changes))


DAMAGE = {
    "no result": ("result.json", None, "result.json: missing"),
    "cut off": ("result.json", '{"schema": 1, "ki', "result.json: not readable as JSON"),
    "not text": ("result.json", b"\xff\xfe\x00", "result.json: not a text file in UTF-8"),
    "a list": ("result.json", "[]", "result.json: must hold a JSON object, not list"),
    "later schema": (
        "result.json",
        '{"schema": 5, "kind": "audit"}',
        "schema is 5, this version reads 4",
    ),
    "other kind": ("result.json", '{"schema": 1, "kind": "x"}', "kind is 'x', legal are"),
    "an earlier version": (
        "result.json",
        '{"schema": 1, "kind": "audit"}',
        "this version reads 4: the",
    ),
    "attacks": ("result.json", damaged(attacks={}), "attacks must be a list, not dict"),
    "an attack": ("result.json", damaged(attacks=[1]), r"attacks\[0\] must be an object"),
    "metrics": (
        "result.json",
        damaged(attacks=[attack(metrics=[])]),
        r"attacks\[0\].metrics must be an object, not list",
    ),
    "escape": (
        "result.json",
        damaged(attacks=[attack(evidence="../x")]),
        "evidence '../x' lies outside the run folder",
    ),
    "no evidence": ("closed-form.safetensors", None, "closed-form.safetensors: the evidence named"),
    "bad evidence": (
        "closed-form.safetensors",
        b"junk",
        "closed-form.safetensors: not readable as",
    ),
    "bad config": ("config.toml", "a = ", "config.toml is not a TOML file"),
    "bad environment": ("environment.json", "{", "environment.json: not readable as JSON"),
}


@pytest.mark.parametrize(("name", "content", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_one_sentence_naming_the_file(
    make_run: MakeRun, name: str, content: str | bytes | None, message: str
) -> None:
    run = make_run(audit(), evidence(3))
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ExhumeError, match=message):
        draw(run)
    assert not list(run.glob("*report*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mse": torch.zeros(4)}, "disagree on the number of targets"),
        ({"mse": torch.zeros(3, 2)}, "must have one number per target"),
        ({"nearest": torch.zeros(3, 5)}, "records must share one shape"),
    ],
)
def test_evidence_that_contradicts_itself(make_run: MakeRun, changes: Any, message: str) -> None:
    with pytest.raises(ExhumeError, match=message):
        draw(make_run(audit(), {**evidence(3), **changes}))


@pytest.mark.parametrize(
    ("count", "most"), [(0, 5), (3, 5), (5, 5), (6, 5), (500, 200), (201, 200), (9, 1)]
)
def test_a_selection_is_distinct_sorted_and_has_both_ends(count: int, most: int) -> None:
    error = torch.rand(count, generator=torch.Generator().manual_seed(count))
    chosen, best, worst = selection(error, most)
    order = torch.argsort(error).tolist()
    assert len(chosen) == len(set(chosen)) == min(count, most)
    assert error[chosen].tolist() == sorted(error[chosen].tolist())
    assert chosen[:best] == order[:best]
    assert chosen[len(chosen) - worst :] == order[count - worst :]


def test_numbers_read_well() -> None:
    assert [number(v) for v in (0.016349, 0.5, 19.24, 2001, 12345.6, 0.0, math.nan)] == [
        "0.0163",
        "0.5",
        "19.2",
        "2,001",
        "12,346",
        "0",
        "–",
    ]
    assert (number(1e-7), number(2.5e-5), number(-3e7)) == ("10⁻⁷", "2.5 × 10⁻⁵", "-3 × 10⁷")
    assert [percent(v) for v in (0.86, 0.8612, 0.0, math.nan)] == ["86%", "86.1%", "0%", "–"]
    assert [duration_of(v) for v in (0.5, 61.2, 930, 9000)] == [
        "under 1 s",
        "61 s",
        "16 min",
        "2.5 h",
    ]
    assert [show(v) for v in (None, True, [], [1, "a"], {"k": 2})] == [
        "–",
        "yes",
        "none",
        "1, a",
        "k 2",
    ]


def test_intervals_join_their_metric() -> None:
    rows = metric_rows(
        {"odd": 3, "success": 0.5, "success_low": 0.4, "success_high": 0.6, "low": 1}
    )
    assert [(r.name, r.value) for r in rows] == [
        ("Success rate", "50% (40% to 60%)"),
        ("Odd", "3"),
        ("Low", "1"),
    ]


def test_what_does_not_apply_is_one_line_and_the_strongest_comes_first(make_run: MakeRun) -> None:
    status = {"outcome": "not applicable", "reason": "No patches.", "ever": False}
    weak = {"successes": 1, "trials": 10, "share": 0.1, "low": 0.0, "high": 0.4}
    strong = weak | {"successes": 9, "share": 0.9}
    attacks = [
        attack(name="Refused", status=status, metrics={}, baselines=[], cost={}, evidence=None),
        attack(name="Weak", leak=weak, evidence=None),
        attack(name="Strong", leak=strong, evidence=None),
    ]
    text = drawn(make_run(audit(attacks=attacks)))
    assert "1 attack does not apply here" in text
    assert "No patches. No further knowledge would change this." in text
    assert text.count("The adversary") == 1
    assert text.index(">Strong</h2>") < text.index(">Weak</h2>")
    assert ">Refused</h2>" not in text


COLUMNS = [
    {"name": "age", "low": 20.0, "high": 60.0, "texts": []},
    {"name": "town", "low": 0.0, "high": 1.0, "texts": ["Aarhus", "Bonn"]},
]


def of_a_table(run: Path, columns: Any = COLUMNS) -> Path:
    """Two records of a table: one comes back whole, one does not."""
    truth = torch.tensor([[0.5, 1.0, 0.0], [0.25, 0.0, 1.0]])
    back = torch.tensor([[0.5, 0.9, 0.2], [0.75, 0.1, 0.8]])
    shard = {
        "targets": truth,
        "reconstructions": back,
        "labels": torch.tensor([0, 1]),
        "rank": torch.tensor([1, 7]),
    }
    write_shard(run / "closed-form.safetensors", Shard(shard, {"columns": columns}))
    return run


def test_a_record_of_a_table_is_read_column_by_column(make_run: MakeRun) -> None:
    page = drawn(of_a_table(make_run(audit(attacks=[attack(baselines=[])]))))
    assert '<tr class="same"><th scope="row">age</th><td>40</td><td>40</td></tr>' in page
    assert '<tr><th scope="row">age</th><td>30</td><td>50</td></tr>' in page
    assert '<tr class="same"><th scope="row">town</th><td>Bonn</td><td>Bonn</td></tr>' in page
    assert 'class="cards tabular"' in page


def test_a_redacted_table_names_no_column(make_run: MakeRun) -> None:
    page = drawn(of_a_table(make_run(audit())), redact=True)
    assert "Bonn" not in page
    assert "town" not in page


def test_cards_say_who_was_identified(make_run: MakeRun) -> None:
    page = drawn(of_a_table(make_run(audit())))
    assert page.count('<strong class="identified">identified</strong>') == 1
    assert "<dd>place 7</dd>" in page


def test_columns_that_do_not_fit_are_not_shown(make_run: MakeRun) -> None:
    page = drawn(of_a_table(make_run(audit()), COLUMNS[:1]))
    assert 'class="cells"' not in page


def test_damaged_columns_are_a_sentence(make_run: MakeRun) -> None:
    run = of_a_table(make_run(audit()), [{"name": 3}])
    with pytest.raises(ExhumeError, match="columns"):
        draw(run)


def test_only_the_strongest_attack_is_unfolded(make_run: MakeRun) -> None:
    weaker = attack(
        id="b", name="Weaker", leak={"successes": 1, "trials": 100, "low": 0, "high": 0.1}
    )
    page = drawn(make_run(audit(attacks=[weaker, attack()]), evidence(4)))
    assert page.count('<details class="fold">') == 1
    assert page.index("Closed-form reconstructor</h2>") < page.index('<details class="fold">')


def test_a_column_without_any_value_is_left_out(make_run: MakeRun) -> None:
    bare = {"leak": None, "evidence": "", "metrics": {"mse": 0.1}}
    plain = attack(baselines=[{"name": "mean record", "mse": 0.07}], **bare)
    page = drawn(make_run(audit(attacks=[plain, attack(id="b", baselines=[], **bare)])))
    assert '<th scope="col">SSIM</th>' not in page
    assert '<th scope="col">Brought back</th>' not in page
    assert "<td>–</td>" not in page
