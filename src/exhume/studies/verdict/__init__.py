"""Whether the verdict can be trusted."""

from exhume.studies.verdict import trust

__all__ = ["STUDIES"]

STUDIES = (trust.STUDY,)
