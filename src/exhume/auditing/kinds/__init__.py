"""The kinds of release there are, in the order of the page."""

from exhume.auditing.kinds.checkpoint import CHECKPOINT
from exhume.auditing.kinds.fitted import FITTED
from exhume.auditing.kinds.split import SPLIT
from exhume.auditing.kinds.training import TRAINING
from exhume.auditing.kinds.update import UPDATE
from exhume.auditing.kinds.versions import VERSIONS

KINDS = (TRAINING, CHECKPOINT, UPDATE, SPLIT, FITTED, VERSIONS)
