"""Whether an update is that of a text model, and whether the records given are texts for it."""

from __future__ import annotations

from torch import nn

from exhume.core.contract import Architecture, ExhumeError, Records, Vocabulary
from exhume.models.own_texts import LOSSES, LanguageModel, TextModel, takes_tokens, writes_text
from exhume.readers import dictionary_at
from exhume.settings import UpdateSettings

__all__ = ["check_fits", "is_text", "text_model", "vocabulary_of"]

_MASKS = ("[MASK]", "<mask>")


def is_text(made: nn.Module | Architecture, shape: tuple[int, ...]) -> bool:
    """By what it takes: tokens go into an embedding of it."""
    return isinstance(made, nn.Module) and len(shape) == 1 and takes_tokens(made, shape[0])


def check_fits(
    made: nn.Module | Architecture, shape: tuple[int, ...], records: Records | None
) -> None:
    """Refuse numbers for a model of texts, and texts for a model of numbers."""
    tokens = records is not None and records.vocabulary is not None
    if records is not None and not tokens and is_text(made, shape):
        raise ExhumeError(
            "data: it holds numbers, but the model takes tokens; give texts, input_ids, or an array called "
            "tokens of whole numbers"
        )
    if tokens and isinstance(made, nn.Module) and not is_text(made, shape):
        TextModel.of(made, shape[0])  # says why
    if tokens and not isinstance(made, nn.Module):
        raise ExhumeError("data: it holds texts, but the model takes numbers")


def text_model(
    module: nn.Module, length: int, records: Records | None, settings: UpdateSettings
) -> TextModel:
    """Padding and mask as the settings say, or the vocabulary, or the model."""
    filler = None if settings.padding < 0 else settings.padding
    known = records.vocabulary if records is not None else None
    if filler is None and known is not None:
        filler = known.padding
    if settings.loss in LOSSES:
        mask = _mask(settings, known) if settings.loss == "masked" else None
        net: TextModel = LanguageModel.of(module, length, filler, settings.loss, mask)
    elif writes_text(module, length):
        raise ExhumeError(
            "loss: the model answers for every place of a text: say --loss next-token or --loss masked"
        )
    else:
        net = TextModel.of(module, length, filler)
    if records is not None and int(records.inputs.max()) >= net.vocabulary:
        odd = int((records.inputs >= net.vocabulary).any(1).nonzero()[0, 0])
        raise ExhumeError(
            f"data: record {odd} has the token {int(records.inputs[odd].max())}, the model's embedding has "
            f"{net.vocabulary} rows"
        )
    return net


def _mask(settings: UpdateSettings, known: Vocabulary | None) -> int | None:
    if settings.mask >= 0:
        return settings.mask
    if (known is None or not known.words) and settings.vocabulary:
        known = dictionary_at(settings.vocabulary).vocabulary(None)
    words = known.words if known is not None else ()
    return next((words.index(name) for name in _MASKS if name in words), None)


def vocabulary_of(settings: UpdateSettings, records: Records | None) -> Vocabulary:
    """What the numbers mean; refuses texts whose words were numbered here: the sender's model has others."""
    if records is None or records.vocabulary is None:
        known = dictionary_at(settings.vocabulary) if settings.vocabulary else None
        return known.vocabulary(None) if known else Vocabulary()
    if not records.vocabulary.given and not settings.made:
        raise ExhumeError(
            "vocabulary: say with --vocabulary how the words of the texts are numbered, as the update's "
            "model was trained with its own numbers"
        )
    return records.vocabulary
