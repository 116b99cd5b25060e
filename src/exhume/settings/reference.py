"""All settings in words: for `help(exhume.audit)`, as the docs' page, as a commented brief for `exhume init`.

`python -m exhume.settings` prints the page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from exhume.core.errors import ExhumeError, unknown_name
from exhume.core.plugins import KINDS as PLUGGED
from exhume.core.plugins import plugins, refuse_kinds_called
from exhume.settings.brief import OUR_NAMES, RELEASES, Brief, release_section
from exhume.settings.schema import settings_of, toml_of, toml_value, types_of
from exhume.settings.sections import BudgetSettings, Settings, VictimSettings

_TYPES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    tuple[int, ...]: "list of whole numbers",
    tuple[str, ...]: "list of texts",
}
_SECTION_WORDS = {
    "": "",
    "data": "The records.",
    "victim": "Weights, trained this way; what other sections call the model.",
    "attack": "",
    "machine": "",
    "checkpoint": "A file of weights, attacked as it is. `file` is another name of `checkpoint`.",
    "update": "What clients send in federated learning.",
    "split": "Features that the client of a split network sends to a server.",
    "fitted": "A fitted linear model of scikit-learn's.",
    "versions": "Two versions of a model, before and after a person was erased or added.",
    "budget": "What all attacks together may take.",
}


def sections() -> dict[str, Any]:
    """The sections of a brief by name; "" has the keys above all sections."""
    hints = types_of(Settings)
    shared = {f.name: hints[f.name] for f in fields(Settings) if is_dataclass(hints[f.name])}
    return {"": Settings, **shared, **RELEASES, "budget": BudgetSettings}


def brief_keys(indent: str = "") -> str:
    """Every section with its keys, a line each."""
    lines = []
    for name, kind in sections().items():
        known = ", ".join(settings_of(kind))
        lines.append(f"{indent}[{name}] {known}" if name else f"{indent}{known}")
    return "\n".join(lines)


def reference_page() -> str:
    """Markdown: a table for each section."""
    parts = [_PAGE_HEAD]
    for name, kind in sections().items():
        parts.append(f"## `[{name}]`" if name else "## Above all sections")
        parts += [_SECTION_WORDS[name]] if _SECTION_WORDS[name] else []
        parts.append(
            "\n".join(
                ["| key | type | default | meaning |", "|---|---|---|---|", *_table_rows(kind)]
            )
        )
    return "\n\n".join(parts) + "\n"


def _table_rows(kind: Any) -> list[str]:
    hints = types_of(kind)
    rows = []
    for name, (field, known) in settings_of(kind).items():
        usual = f"`{toml_value(field.default)}`" if field.default is not None else "the brief's"
        words = f"{known.help} {known.legal}".strip().replace("|", "\\|")
        rows.append(f"| `{name}` | {_TYPES[hints[name]]} | {usual} | {words} |")
    return rows


_PAGE_HEAD = """# All settings

Every key of an audit.toml, of the mapping that `exhume.audit` takes, and, with dashes, every option of the
audit commands (`exhume audit --help` says which options a command has). Options win over the file. What a
section leaves open about seed, threads, records and model is as the brief says it in `seed`, `[machine]`,
`[data]` and `[victim]`. The page is made from the schema: `python -m exhume.settings > docs/settings.md`."""


# A commented brief: what was asked for, and what else could stand there


KINDS = {
    "training": "weights of a model that you train; exhume trains it your way and attacks it",
    "checkpoint": "a file of weights that you have",
    "updates": "updates of clients in federated learning",
    "features": "what the client of a split network sends to a server",
    "fitted": "a fitted linear model of scikit-learn's",
    "versions": "two versions of a linear model, before and after a person was erased or added",
}
HOLDS = {
    "whole": "all weights, or of an update the gradient",
    "adapter": "a LoRA adapter of a base model, after few steps",
    "delta": "differences to a base model, after few steps",
}
_WIDTH = 108  # of a line
_SECTIONS = {"training": "victim", "updates": "update", "features": "split"}


def brief_file(
    release: str,
    *,
    data: str,
    model: str,
    checkpoint: str,
    budget: str,
    holds: str = "whole",
    base: str = "",
    training: Mapping[str, Any] | None = None,
) -> str:
    """release: one of `kinds_to_release()`; holds: what is in the file, one of `HOLDS`.

    base: of an adapter or a delta.
    training: settings of `[victim]`. The text is read back once, so that it is legal.
    """
    if holds not in HOLDS:
        raise ExhumeError(f"holds: {holds!r} is not one of {', '.join(HOLDS)}")
    if release not in KINDS:
        return _brief_of_added(release, data=data, budget=budget)
    filed = {"file": checkpoint} if holds == "whole" else {"base": base, holds: checkpoint}
    named = {"model": model} if ":" in model else {}
    said: dict[str, Mapping[str, Any]] = {
        "training": {"network": model, **(training or {})},
        "checkpoint": {**filed, "rows": "0:100"},
        "updates": named | ({"made": 4, "batch_size": 8} if holds == "whole" else filed | _TUNED),
        "features": {"model": model},
        "fitted": {"file": checkpoint},
        "versions": {"before": checkpoint, "after": checkpoint, "person": "0", "others": "1"},
    }
    name, tuned = _SECTIONS.get(release, release), release == "updates" and holds != "whole"
    known = settings_of(RELEASES.get(name, VictimSettings))
    section = _section(name, said[release], _SHOWN[release], known)
    return _brief_text(data, budget, _RELEASED["tuned" if tuned else release] + section)


def kinds_to_release() -> dict[str, str]:
    """What `exhume init` offers, in words: ours, then what other packages bring."""
    refuse_kinds_called(OUR_NAMES | set(KINDS))
    return KINDS | {
        one.name: f"a kind of release of the package {one.package}" for one in plugins(PLUGGED)
    }


def _brief_of_added(release: str, *, data: str, budget: str) -> str:
    """For a kind of another package: its files as examples, everything else as it could be said."""
    kind = release_section(release)
    if kind is None:
        raise unknown_name("release", release, kinds_to_release())
    known = settings_of(kind)
    said = {name: one.example or "" for name, (_, one) in known.items() if one.file}
    shown = tuple(name for name, (field, _) in known.items() if field.default is not None)
    words = f"\n# Released: {(kind.__doc__ or release).splitlines()[0]}\n"
    return _brief_text(data, budget, words + _section(release, said, shown, known))


def _brief_text(data: str, budget: str, released: str) -> str:
    parts = [
        _BRIEF_HEAD,
        toml_of({"budget": {"time": budget, "fixes": True}}),
        f"{_DATA}{toml_of({'data': {'source': data}}).lstrip()}",
        released,
    ]
    text = "\n".join(part.strip("\n") + "\n" for part in parts)
    Brief.from_mapping(tomllib.loads(text), where="the brief")
    return text


def _section(
    name: str, said: Mapping[str, Any], shown: tuple[str, ...], known: Mapping[str, Any]
) -> str:
    """What was said, then what could be, with the settings' own help beside it."""
    lines = [f"[{name}]", *(_line(key, value, known) for key, value in said.items())]
    for key in shown:
        if key not in said:
            field, setting = known[key]
            example = field.default if setting.example is None else setting.example
            lines += [f"# {line}" for line in _line(key, example, known).split("\n")]
    return "\n".join(lines)


def _line(key: str, value: Any, known: Mapping[str, Any]) -> str:
    written = f"{key} = {toml_value(value)}"
    if key not in known:
        return written
    words = known[key][1].help
    beside = f"{written:31} # {words}"
    return beside if len(beside) <= _WIDTH else f"# {words}\n{written}"


_BRIEF_HEAD = """
# What is released, and how long looking for leaks may take. Run it with: exhume audit audit.toml
seed = 0
"""
_DATA = """
# Your records: a name from `exhume data list`, a folder of images with a sub-folder per class, an .npz file
# with x and y, a .csv table, idx files, a torch Dataset (mine.py:dataset), a `datasets` folder; for updates
# also texts: a .txt file (each line a text, a tab and its label), a folder of .txt files, tokens in an .npz.
"""
_RELEASED = {
    "training": """
# Released: weights, trained like this on all but one of the records, to someone who knows the others, the
# training and its start. What this adversary cannot find, no weaker one of the same kind finds.
""",
    "checkpoint": """
# Released: this file, to anyone. [data] above is what it was trained on; it serves to score only.
""",
    "updates": """
# Released: what a client sends to the server in one round, to that server.
""",
    "tuned": """
# Released: what a few steps of fine-tuning add to a base, to anyone who has the base.
""",
    "features": """
# Released: the features that the client of a split network sends, to the server that computes the rest.
""",
    "fitted": """
# Released: a fitted LogisticRegression in a .skops file, to someone who has all of [data] but one record.
""",
    "versions": """
# Released: a fitted linear model before and after an erasure request, .skops files, to anyone. Name the
# later file, the person's row of [data], and the rows that neither model was fitted on.
""",
}
_TUNED = {"rate": 0.1, "steps": 1, "batch_size": 8, "records": "0-7"}
_SHOWN = {
    "training": (
        *("hidden", "activation", "optimiser", "batch", "momentum", "steps", "rate"),
        *("weight_decay", "schedule", "label_smoothing", "loss", "train"),
        *("dp_clip", "dp_noise", "dp_sampling"),
    ),
    "checkpoint": ("rows", "activation", "mean", "scaling"),
    "updates": ("update", "records", "vocabulary", "length", "padding", "scaling"),
    "features": ("weights", "first", "second", "defend"),
    "fitted": ("targets",),
    "versions": ("change",),
}
