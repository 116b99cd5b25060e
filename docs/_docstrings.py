"""What the code says about itself, in the pages: a hook of mkdocs.

A line `::: attacks/informed/closed_form.py ClosedForm` becomes the class's docstring, as a table of what
it sees, assumes and guarantees, and its settings with their defaults; a function's becomes its signature and words. Nothing of exhume is imported.
The README of every example becomes a page of the site.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTIVE = re.compile(r"^::: (\S+\.py) (\w+)$", re.MULTILINE)
PARTS = ("Sees", "Assumes", "Guarantees", "Reference")
EXAMPLE = re.compile(r"\((?:\.\./)+examples/([\w-]+)/README\.md")


def on_files(files, config):
    """Called by mkdocs once all pages are known."""
    from mkdocs.structure.files import File

    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        text = readme.read_text(encoding="utf-8").replace("](../../docs/", "](../").replace(".ipynb)", ".md)")
        place = f"examples/{readme.parent.name}.md"
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Called by mkdocs for every page."""
    up = "../" * page.file.src_uri.count("/")
    return rendered(EXAMPLE.sub(rf"({up}examples/\1.md", markdown))


def rendered(markdown: str) -> str:
    return DIRECTIVE.sub(lambda found: described(found[1], found[2]), markdown)


def described(file: str, name: str) -> str:
    """Markdown for one class of the package."""
    path = ROOT / "src" / "exhume" / file
    source = path.read_text(encoding="utf-8")
    body = ast.parse(source).body
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            settings = _settings(node, source.splitlines(), constants_of(body))
            return _words(node) + _usage(file, name) + settings
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _signature(node) + _said(ast.get_docstring(node) or "")
    raise ValueError(f"{file} has no class {name}")


def _signature(node: ast.FunctionDef) -> str:
    """As it is called: one argument a line where they are many."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({ast.unparse(node.args)}){returns}"
    if len(line) > 90:
        given = [ast.unparse(argument) for argument in _arguments(node.args)]
        line = f"{node.name}(\n    " + ",\n    ".join(given) + f",\n){returns}"
    return f"```python\n{line}\n```\n"


def _arguments(args: ast.arguments) -> list[ast.arguments]:
    """Each argument by itself, a bare * before those that need their names."""
    alone = []
    missing = len(args.args) - len(args.defaults)
    for place, one in enumerate(args.args):
        default = [args.defaults[place - missing]] if place >= missing else []
        alone.append(_only(args=[one], defaults=default))
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        alone.append(_only(args=[one], defaults=[default] if default else []))
    if args.kwonlyargs:
        alone.insert(len(args.args), ast.Name("*"))
    return alone


def _only(**given) -> ast.arguments:
    empty = {"posonlyargs": [], "args": [], "kwonlyargs": [], "kw_defaults": [], "defaults": []}
    return ast.arguments(**{**empty, **given})


def _said(docstring: str) -> str:
    """A docstring as Markdown: examples in a block; the keys of a brief have a page of their own."""
    text = docstring.replace("KEYS", "[All settings](settings.md).")
    examples = [line.removeprefix(">>> ") for line in text.splitlines() if line.startswith(">>> ")]
    words = "\n".join(line for line in text.splitlines() if not line.startswith(">>> ")).strip()
    shown = ["", "```python", *examples, "```"] if examples else []
    return "\n".join([words, *shown, ""])


def _words(node: ast.ClassDef) -> str:
    summary, parts, rest = sections(ast.get_docstring(node) or "")
    rows = [f"| {part} | {parts[part]} |" for part in PARTS if part in parts]
    table = ["| | |", "|---|---|", *rows] if rows else []
    return "\n".join([f"*{summary}*", "", *table, "", rest, ""])


def sections(docstring: str) -> tuple[str, dict[str, str], str]:
    """The first sentence, the named parts, and what else is said."""
    summary, _, body = docstring.partition("\n\n")
    parts: dict[str, str] = {}
    rest: list[str] = []
    current = None
    for line in body.splitlines():
        head = re.match(rf"({'|'.join(PARTS)}): (.*)", line)
        if head:
            current = head[1]
            parts[current] = _cell(head[2])
        elif current and line.strip():
            parts[current] += " " + _cell(line.strip())
        else:
            current = None
            rest.append(line)
    return " ".join(summary.split()), parts, "\n".join(rest).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _usage(file: str, name: str) -> str:
    module = "exhume." + file.removesuffix(".py").replace("/", ".")
    return f"\n```python\nfrom {module} import {name}\n```\n"


def constants_of(body: list[ast.stmt]) -> dict[str, str]:
    """What a file's constants are, its own and those that it takes from others of ours, as they are written."""
    found = {}
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            found[target.id] = ast.unparse(node.value) if node.value else ""
        elif isinstance(node, ast.Assign) and isinstance(target, ast.Tuple):  # also of range(4)
            values = [ast.unparse(e) for e in getattr(node.value, "elts", [])]
            numbered = zip(target.elts, values or map(str, range(len(target.elts))), strict=True)
            found |= {name.id: value for name, value in numbered}
        elif isinstance(node, ast.ImportFrom) and any(one.name.isupper() for one in node.names):
            file = ROOT / "src" / f"{node.module.replace('.', '/')}.py"
            if file.exists():
                theirs = constants_of(ast.parse(file.read_text(encoding="utf-8")).body)
                found |= {one.name: theirs[one.name] for one in node.names if one.name in theirs}
    return found


def _settings(node: ast.ClassDef, lines: list[str], constants: dict[str, str]) -> str:
    """A row for each setting; a default that is a constant is shown as what it is."""
    rows = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            written = ast.unparse(item.value) if item.value else ""
            default = f"`{constants.get(written, written)}`" if written else "given"
            rows.append(
                f"| `{item.target.id}` | {_cell(default)} | {_cell(_remark(item, lines))} |"
            )
    if not rows:
        return ""
    return "\n".join(["", "| setting | default | |", "|---|---|---|", *rows, ""])


def _remark(item: ast.AnnAssign, lines: list[str]) -> str:
    """The comment beside a field."""
    found = []
    for line in lines[item.lineno - 1 : item.end_lineno]:
        _, mark, remark = line.partition("  # ")
        if mark and not remark.startswith("noqa"):
            found.append(remark.strip())
    return " ".join(found)
