from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhume.core.contract import ExhumeError
from exhume.settings import Brief, DataSettings, Settings


@given(st.text(), st.integers(), st.lists(st.integers(1, 99), max_size=3), st.floats(1e-9, 10))
def test_toml_round_trip(tmp_path_factory, source, seed, hidden, rate):
    if any(0xD800 <= ord(c) <= 0xDFFF for c in source):
        return
    settings = Settings.from_mapping(
        {"seed": seed, "data": {"source": source}, "victim": {"hidden": hidden, "rate": rate}}
    )
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_bytes(Brief(settings).toml().encode())
    assert Settings.from_toml(path) == settings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"sead": 1}, "unknown key 'sead'; did you mean 'seed'"),
        ({"data": {"shadow": 5}}, "data: unknown key 'shadow'; did you mean 'shadows'"),
        ({"zzz": 1}, "unknown key 'zzz'; known: seed, data, victim, attack, machine"),
        ({"data": 3}, "data: a section is needed here, got 3"),
        ({"data": {"fixed": "many"}}, "fixed: a whole number is needed, got 'many'"),
        ({"data": {"fixed": True}}, "fixed: a whole number is needed, got True"),
        ({"data": {"fixed": -1}}, "data.fixed: -1 given, at least 0 needed"),
        ({"victim": {"hidden": [1.5]}}, r"hidden: a list of whole numbers is needed, got \[1.5\]"),
        ({"victim": {"rate": "fast"}}, "rate: a number is needed, got 'fast'"),
        ({"victim": {"rate": float("nan")}}, "victim.rate: nan given, a finite number above 0"),
        ({"victim": {"rate": -0.1}}, "victim.rate: -0.1 given"),
        ({"victim": {"momentum": 1.0}}, "victim.momentum: 1.0 given, 0 or more and below 1"),
        ({"victim": {"weight_decay": -1.0}}, "victim.weight_decay: -1.0 given"),
        ({"victim": {"steps": 0}}, "victim.steps: 0 given, at least 1 needed"),
    ],
)
def test_bad_settings_are_named(content, message):
    with pytest.raises(ExhumeError, match=message):
        Settings.from_mapping(content)


def test_files_that_are_not_settings(tmp_path):
    with pytest.raises(ExhumeError, match="nothing.toml: cannot be read .No such file"):
        Settings.from_toml(tmp_path / "nothing.toml")
    path = tmp_path / "bad.toml"
    path.write_text("= 3")
    with pytest.raises(ExhumeError, match="bad.toml is not a TOML file"):
        Settings.from_toml(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ExhumeError, match="bad.toml: not a text file"):
        Settings.from_toml(path)


def test_options_that_are_not_given_change_nothing():
    settings = Settings(data=DataSettings(fixed=5))
    assert settings.with_values("data", fixed=None, targets=7).data == DataSettings(
        fixed=5, targets=7
    )
