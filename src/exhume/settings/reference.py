"""All settings in words: for `help(exhume.audit)`, and as the docs' page (`python -m exhume.settings`)."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from exhume.settings.brief import RELEASES
from exhume.settings.schema import settings_of, toml_value, types_of
from exhume.settings.sections import BudgetSettings, Settings

__all__ = ["brief_keys", "reference_page"]

_TYPES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    tuple[int, ...]: "list of whole numbers",
    tuple[str, ...]: "list of texts",
}
_RELEASED = {
    "": "",
    "data": "The records.",
    "victim": "Weights, trained this way; what other sections call the model.",
    "attack": "",
    "machine": "",
    "checkpoint": "A file of weights, attacked as it is. `file` is another name of `checkpoint`.",
    "update": "What clients send in federated learning.",
    "split": "Features that the client of a split network sends to a server.",
    "fitted": "A fitted linear model of scikit-learn's.",
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
    parts = [_HEAD]
    for name, kind in sections().items():
        parts.append(f"## `[{name}]`" if name else "## Above all sections")
        parts += [_RELEASED[name]] if _RELEASED[name] else []
        parts.append(
            "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *_rows(kind)])
        )
    return "\n\n".join(parts) + "\n"


def _rows(kind: Any) -> list[str]:
    hints = types_of(kind)
    rows = []
    for name, (field, known) in settings_of(kind).items():
        usual = f"`{toml_value(field.default)}`" if field.default is not None else "the brief's"
        words = f"{known.help} {known.legal}".strip().replace("|", "\\|")
        rows.append(f"| `{name}` | {_TYPES[hints[name]]} | {usual} | {words} |")
    return rows


_HEAD = """# All settings

Every key of an audit.toml, of the mapping that `exhume.audit` takes, and, with dashes, every option of the
audit commands (`exhume audit --help` says which options a command has). Options win over the file. What a
section leaves open about seed, threads, records and model is as the brief says it in `seed`, `[machine]`,
`[data]` and `[victim]`. The page is made from the schema: `python -m exhume.settings > docs/settings.md`."""
