"""The user's own code: found by name, identified by what it does."""

from exhume.naming.code import digest_of_code
from exhume.naming.finding import called, drawing_from, first_line, is_spec, named

__all__ = ["called", "digest_of_code", "drawing_from", "first_line", "is_spec", "named"]
