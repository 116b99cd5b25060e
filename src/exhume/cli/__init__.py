"""The command line: `frame` is what commands share, the other files are the commands."""

from exhume.cli import audits as _audits  # noqa: F401 - it puts the commands into the app
from exhume.cli import commands as _commands  # noqa: F401
from exhume.cli.frame import app

__all__ = ["app", "main"]


def main() -> None:
    app()
