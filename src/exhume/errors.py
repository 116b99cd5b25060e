"""What can go wrong and be said in a sentence. Importing it costs nothing."""

from __future__ import annotations

__all__ = ["ExhumeError", "NotApplicable"]


class ExhumeError(Exception):
    """Something the user can act on, said in one sentence. The command line prints it and exits 2."""


class NotApplicable(ExhumeError):  # noqa: N818 - a result as much as an error
    """An attack cannot be mounted with this release and this knowledge."""

    def __init__(self, why: str, *, ever: bool) -> None:
        super().__init__(why)
        self.why = why
        self.ever = ever  # could it work with more knowledge or a later version, or never?
