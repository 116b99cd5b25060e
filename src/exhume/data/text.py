"""One door to sentence pairs: a name, a tab-separated file or its zip, or parallel files."""

from __future__ import annotations

from pathlib import Path

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.data.named import content_of
from exhume.data.sentences import TextPairs, parallel, tabbed, tabbed_zip
from exhume.settings.sources import PAIR_SETS, unknown_source

__all__ = ["pairs"]

_FORMATS = "a tab-separated .txt file, a .zip that holds one, a folder with train.en and train.de"


def pairs(
    source: str | Path,
    *,
    part: str = "train",
    languages: tuple[str, str] | None = None,
    cache: Path | None = None,
    progress: Progress = silent,
) -> TextPairs:
    """Sentence pairs of a named set (`en-fr`) or of a path.

    part: which pair of parallel files, by their stem; other sources have one part only.
    languages: source and target; None takes those of the file names, English first.
    """
    text = str(source)
    if isinstance(source, str) and text in PAIR_SETS:
        return TextPairs.of(content_of(text, cache=cache, progress=progress))
    path = Path(text).expanduser()
    if path.is_dir():
        return parallel(path, part, languages)
    if not path.exists():
        raise unknown_source(text, PAIR_SETS, _FORMATS)
    columns = languages or ("en", path.stem.split("-")[0])
    if path.suffix == ".zip":
        return tabbed_zip(path, str(path), columns)
    if path.suffix in (".txt", ".tsv"):
        return tabbed(_bytes(path), str(path), columns)
    raise ExhumeError(f"{path}: not a file of sentence pairs; legal are {_FORMATS}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ExhumeError(f"{path}: cannot be read ({error})") from error
