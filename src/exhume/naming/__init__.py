"""The user's own code: found by name, identified by what it does."""

from exhume.naming.code import digest_of_code
from exhume.naming.finding import called, first_line, named, seeded_globals

__all__ = ["called", "digest_of_code", "first_line", "named", "seeded_globals"]
