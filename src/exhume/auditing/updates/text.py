"""Whether an update is that of a text model, and whether the records given are texts for it."""

from __future__ import annotations

from torch import nn

from exhume.contract import Architecture, ExhumeError, Records, Vocabulary
from exhume.data import dictionary_at
from exhume.models.own.text import TextModel, takes_tokens
from exhume.settings import UpdateSettings

__all__ = ["check_fits", "is_text", "text_model", "vocabulary_of"]


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


def text_model(module: nn.Module, length: int, records: Records | None, padding: int) -> TextModel:
    """padding: -1: as the records' vocabulary says, or the model."""
    filler = None if padding < 0 else padding
    if filler is None and records is not None and records.vocabulary is not None:
        filler = records.vocabulary.padding
    net = TextModel.of(module, length, filler)
    if records is not None and int(records.inputs.max()) >= net.vocabulary:
        odd = int((records.inputs >= net.vocabulary).any(1).nonzero()[0, 0])
        raise ExhumeError(
            f"data: record {odd} has the token {int(records.inputs[odd].max())}, the model's embedding has "
            f"{net.vocabulary} rows"
        )
    return net


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
