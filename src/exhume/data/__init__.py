"""Records to audit with: named sets, the user's own files, sentence pairs, and the split of roles.

records = load("mnist")                      # a named set, fetched once and then cached
records = load("photos/")                    # a folder of images, one sub-folder per class
records = load("people.csv:income")          # a table, and the column of its labels
records = load("mine.py:dataset")            # a torch Dataset of the user's own
parts = split(records, Sizes(fixed=500, target=10), key)
"""

from exhume.data.columns import columns_of
from exhume.data.loading import file_names, load
from exhume.data.named import catalogue, fetch
from exhume.data.sentences import TextPairs
from exhume.data.sets import Named
from exhume.data.splits import Sizes, Split, places, split
from exhume.data.table import Column, Table, table
from exhume.data.text import pairs
from exhume.data.tokens import Reading
from exhume.data.torch_set import check_classes, from_dataset
from exhume.data.vocabulary import dictionary_at

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
