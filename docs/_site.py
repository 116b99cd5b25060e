"""A site that opens from a folder and asks nobody: a hook of mkdocs.

Formulas between dollar signs become MathML, which browsers draw without a script. The search of the theme wants a
script from elsewhere, since browsers start no worker from a file; a few lines of our own take its place. The
notebooks of the examples become pages, with what they printed.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\w$\\])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])", re.DOTALL)
WORKER_OF_OTHERS = re.compile(r'<script src="https?://[^"]*iframe-worker[^"]*"></script>')
# The worker's script in a hidden frame of this page: each takes the other's messages as events.
WORKER = """<script>
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow, script = inside.document.createElement("script");
      const tell = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }));
      const waiting = [];
      this.postMessage = (data) => waiting.push(data);
      inside.postMessage = (data) => tell(this, data);
      script.onload = () => {
        this.postMessage = (data) => tell(inside, data);
        waiting.forEach(this.postMessage);
      };
      script.src = url;
      inside.document.documentElement.append(script);
    }
  };
}
</script>"""


def on_files(files, config):
    """Called by mkdocs once all pages are known."""
    from mkdocs.structure.files import File

    for notebook in sorted((ROOT / "examples").glob("*/*.ipynb")):
        place = f"examples/{notebook.stem}.md"
        files.append(File.generated(config, place, content=page_of(notebook)))
    return files


def page_of(notebook: Path) -> str:
    """The cells of a notebook, and what each printed or showed."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                parts.append(f'<img alt="Output" src="data:image/png;base64,{shown["image/png"]}">')
            else:
                parts.append(f"```text\n{''.join(shown['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown, **_):
    """Called by mkdocs for every page."""
    pieces = CODE.split(markdown)  # every second piece is code
    return "".join(
        piece if place % 2 else FORMULA.sub(drawn, piece) for place, piece in enumerate(pieces)
    )


def drawn(formula: re.Match[str]) -> str:
    """MathML of one formula."""
    from latex2mathml.converter import convert

    how = "block" if formula[1] else "inline"
    return convert(html.unescape((formula[1] or formula[2]).strip()), display=how)


def on_post_page(output, **_):
    """Called by mkdocs for every page that is written."""
    return WORKER_OF_OTHERS.sub(lambda _: WORKER, output)


def on_post_template(output_content, **_):
    """Called by mkdocs for pages of the theme itself."""
    return on_post_page(output_content)
