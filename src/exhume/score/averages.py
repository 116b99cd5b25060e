"""Averages: a candidate nearer to a mean of its batch than to any record of it counts for none of them.

Who is in a batch decides which candidates are averages. So when a line-up moves records among places, the
batch of a release is what then sits at its target places, and the averages of that batch are dropped before
anybody is counted. Were only the true batch cleared of averages, the truth would enter the observed count and
not the counts by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Records

_SMALL = 0.1  # of all records; means of larger groups are found by a matrix product


@dataclass(frozen=True, eq=False)
class BatchAnswers:
    """What answers one release, candidate by candidate, and who is in its batch."""

    similarity: tuple[Tensor, ...]  # (k, n) for each measure
    products: Tensor  # (m, k) of every record with every candidate
    gram: Tensor  # (m, m) of the records
    mates: Tensor  # (b,) their places; records that stand nowhere are numbered from n on
    groups: tuple[Tensor, ...]  # (g,) of which the means are taken, among the mates

    def no_averages(self, seated: Tensor) -> Tensor:
        """(d, k) bool: candidates that are no average. seated: (d, m) the record at every place."""
        batch = seated[:, self.mates]  # (d, b)
        own = self.gram.diagonal()
        nearest = torch.full(
            (len(seated), self.products.shape[1]), torch.inf, dtype=self.gram.dtype
        )
        for mate in batch.T:
            apart = own[mate, None] - 2 * self.products[mate]  # less the candidate's square
            nearest = torch.minimum(nearest, apart)
        good = torch.ones_like(nearest, dtype=torch.bool)
        for group in self.groups:
            members = batch[:, group]
            along = torch.zeros_like(nearest)
            for member in members.T:
                along += self.products[member]
            to_mean = self._squared_mean(members)[:, None] - 2 * along / len(group)
            good &= to_mean >= nearest
        return good

    def _squared_mean(self, members: Tensor) -> Tensor:
        """(d,) |mean|² of records (d, g)."""
        size, every = members.shape[1], len(self.gram)
        if size <= _SMALL * every:
            pairs = sum(self.gram[one[:, None], members].sum(1) for one in members.T)
            return torch.as_tensor(pairs) / size**2
        weights = torch.zeros(len(members), every, dtype=self.gram.dtype)
        weights.scatter_(1, members, 1 / size)
        return ((weights @ self.gram) * weights).sum(1)

    def best(self, good: Tensor) -> tuple[Tensor, ...]:
        """(d, n) for each measure: of the candidates that are left (d, k), the most alike."""
        ever = good.any(0)
        fewer = (~good[:, ever]).any(1).nonzero()[:, 0]  # mostly nothing more is dropped
        measures = []
        for similarity in self.similarity:
            nothing = torch.full((1, similarity.shape[1]), -torch.inf, dtype=torch.float64)
            most = torch.cat([nothing, similarity[ever]]).amax(0).repeat(len(good), 1)
            most[fewer] = -torch.inf
            for candidate in ever.nonzero()[:, 0].tolist():
                at = fewer[good[fewer, candidate]]
                most[at] = torch.maximum(most[at], similarity[candidate])
            measures.append(most)
        return tuple(measures)


@dataclass(frozen=True, eq=False)
class Batches:
    """What answers each release, and the releases' batches."""

    answers: tuple[BatchAnswers, ...]
    records: int  # at places, and besides
    entered = False  # who is in another batch changes nothing

    @property
    def depends(self) -> bool:
        """Some batch has several records, so that it has an average."""
        return any(answers.groups for answers in self.answers)

    def each(self, seated: Tensor) -> Iterator[tuple[int, Tensor, tuple[Tensor, ...]]]:
        """Without the averages of the batches that sit there."""
        for release, answers in enumerate(self.answers):
            good = answers.no_averages(seated)
            some = good.any(1).nonzero()[:, 0]
            yield release, some, answers.best(good[some])

    @property
    def dropped(self) -> int:
        """Candidates that are averages of the true batches."""
        return sum(int((~good).sum()) for good in self._good())

    def _good(self) -> list[Tensor]:
        seated = torch.arange(self.records)[None]
        return [answers.no_averages(seated) for answers in self.answers]


def batches_of(
    candidates: Sequence[Tensor],
    similarity: Sequence[tuple[Tensor, ...]],
    batches: Sequence[Records],
    inputs: Tensor,
    *,
    stratum: Tensor,
    target: Tensor,
) -> Batches:
    """candidates: (k, *shape) that answer each release; similarity: (k, n) of each with the n at places.

    inputs, stratum: of these n; target: (n,) which record of all batches together sits there, -1: none.
    Records of a batch that have no place, such as copies, stay where they are.
    """
    private = torch.cat([batch.inputs for batch in batches]).flatten(1).double()
    labels = torch.cat([batch.labels.cpu() for batch in batches])
    behind = torch.repeat_interleave(
        torch.arange(len(batches)), torch.tensor([len(batch) for batch in batches])
    )
    beside = torch.ones(len(private), dtype=torch.bool)
    beside[target[target >= 0]] = False
    seated = (target >= 0).nonzero()[:, 0]
    records = torch.cat([inputs.flatten(1).double().cpu(), private[beside].cpu()])
    middle = records.mean(0)
    records = records - middle
    gram = records @ records.T
    owner = torch.cat([behind[target[seated]], behind[beside]])
    places = torch.cat([seated, torch.arange(len(inputs), len(records))])
    strata = torch.cat([stratum[seated], labels[beside].to(stratum)])
    answers = []
    for release, found in enumerate(candidates):
        own = owner == release
        flat = found.flatten(1).double().cpu() - middle
        answers.append(
            BatchAnswers(
                tuple(similarity[release]),
                records @ flat.T,
                gram,
                places[own],
                _groups(strata[own]),
            )
        )
    return Batches(tuple(answers), len(records))


def _groups(strata: Tensor) -> tuple[Tensor, ...]:
    """Those whose means are averages: everybody, and everybody of a class."""
    every = [torch.arange(len(strata))]
    every += [(strata == label).nonzero()[:, 0] for label in torch.unique(strata)]
    return tuple(group for group in every if len(group) > 1)
