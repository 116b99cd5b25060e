"""Run the federation, then audit what its server has recorded: `python run.py [FOLDER]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from federation import CLIENTS, simulate

from exhume.cli import app

if __name__ == "__main__":
    here = Path(__file__).parent
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/flower")
    recorded, who = out / "recorded", out / "who.json"
    simulate(recorded)
    who.write_text(json.dumps(CLIENTS))
    app(
        [
            *("audit-update", str(recorded), "--model", f"{here / 'federation.py'}:make"),
            *("--data", "mnist", "--records", str(who), "--out", str(out / "audit")),
        ]
    )
