"""Records to audit with: named sets, the user's own files, sentence pairs, and the split of roles.

records = load("mnist")                      # a named set, fetched once and then cached
records = load("photos/")                    # a folder of images, one sub-folder per class
parts = split(records, Sizes(fixed=500, target=10), key)
"""

from exhume.data.loading import load
from exhume.data.named import Named, catalogue, fetch
from exhume.data.sentences import TextPairs
from exhume.data.splits import Sizes, Split, split
from exhume.data.text import pairs

__all__ = [
    "Named",
    "Sizes",
    "Split",
    "TextPairs",
    "catalogue",
    "fetch",
    "load",
    "pairs",
    "split",
]
