from __future__ import annotations

import pytest

from exhume.core.contract import ExhumeError
from exhume.studies import run_study


@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("split-text", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["known_table.token_accuracy"] == 1
    assert metrics["cipher.token_accuracy"] > 0.9 > metrics["frequency.token_accuracy"]
    assert metrics["cipher.token_accuracy"] > metrics["cipher_seen_50.token_accuracy"]
    assert metrics["decoder_on_shadow.token_accuracy"] > 0.9
    assert metrics["decoder_on_client.token_accuracy"] < 0.4
    assert metrics["translation.bleu"] > metrics["shadow_translation.bleu"] > 5
    held = {claim["id"]: claim["holds"] for claim in result["claims"]}
    assert held["decodes-itself"]
    assert not held["secret-embeddings-protect"]
    lines = (tmp_path / "run" / "table.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    assert rows[0][:5] == [
        "ground truth",
        "translation",
        "shadow's translation",
        "decoder on shadow",
        "decoder on client",
    ]
    assert all(len(row) == 6 for row in rows)
    assert len(rows) == 51
    assert rows[1][0] not in (tmp_path / "run" / "result.json").read_text()


def test_the_folder_of_sentences_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("EXHUME_MULTI30K", str(tmp_path / "nowhere"))
    with pytest.raises(ExhumeError, match="nowhere"):
        run_study("split-text", "cpu", tmp_path / "run")
