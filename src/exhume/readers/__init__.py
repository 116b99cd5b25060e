"""Every file a user brings, read: records by name or path, networks, checkpoints, updates, fitted models.

records = load("mnist")                      # a named set, fetched once and then cached
records = load("photos/")                    # a folder of images, one sub-folder per class
records = load("people.csv:income")          # a table, and the column of its labels
records = load("mine.py:dataset")            # a torch Dataset of the user's own
parts = split(records, Sizes(fixed=500, target=10), key)
"""

from exhume.core.records import Column
from exhume.readers.arrays import check_classes, columns_of, from_dataset
from exhume.readers.loading import Sizes, Split, file_names, load, pairs, places, split
from exhume.readers.named import Named, catalogue, fetch
from exhume.readers.sentences import TextPairs
from exhume.readers.table import Table, table
from exhume.readers.tokens import Reading, dictionary_at

__all__ = [
    "Column",
    "Named",
    "Reading",
    "Sizes",
    "Split",
    "Table",
    "TextPairs",
    "catalogue",
    "check_classes",
    "columns_of",
    "dictionary_at",
    "fetch",
    "file_names",
    "from_dataset",
    "load",
    "pairs",
    "places",
    "split",
    "table",
]
