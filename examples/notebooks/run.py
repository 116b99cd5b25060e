"""Run a notebook from top to bottom and keep what its cells print: `python run.py weights.ipynb`."""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path


def run(notebook: Path) -> dict:
    """The notebook with fresh outputs; all cells share one namespace, as in Jupyter."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    names: dict = {"__name__": "notebook"}
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, 1):
        said = io.StringIO()
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(said):
            exec(compile(tree, notebook.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names) if last else None
        cell["execution_count"], cell["outputs"] = count, []
        if said.getvalue():
            stream = {"output_type": "stream", "name": "stdout", "text": said.getvalue()}
            cell["outputs"].append(stream)
        if value is not None:
            shown = {"data": {"text/plain": repr(value)}, "metadata": {}}
            shown |= {"output_type": "execute_result", "execution_count": count}
            cell["outputs"].append(shown)
    return content


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
