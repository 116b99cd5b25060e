"""Every file a user brings, read: records by name or path, networks, checkpoints, updates, fitted models.

records = load("mnist")                      # a named set, fetched once and then cached
records = load("photos/")                    # a folder of images, one sub-folder per class
records = load("people.csv:income")          # a table, and the column of its labels
records = load("mine.py:dataset")            # a torch Dataset of the user's own
parts = split(records, Sizes(fixed=500, target=10), key)
"""

from exhume.readers.arrays import check_classes as check_classes
from exhume.readers.arrays import from_dataset as from_dataset
from exhume.readers.loading import RecordsByRole as RecordsByRole
from exhume.readers.loading import Sizes as Sizes
from exhume.readers.loading import file_names as file_names
from exhume.readers.loading import load as load
from exhume.readers.loading import pairs as pairs
from exhume.readers.loading import places as places
from exhume.readers.loading import split as split
from exhume.readers.named import catalogue as catalogue
from exhume.readers.named import fetch as fetch
from exhume.readers.sentences import TextPairs as TextPairs
from exhume.readers.table import table as table
from exhume.readers.tokens import TextReading as TextReading
