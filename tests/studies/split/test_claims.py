"""What the claims about split networks turn on: who is compared with whom, and the bars."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from exhume.studies import study_named
from exhume.studies.claims import papers_of
from exhume.studies.split import (
    ensembler_selector,
    ensembler_tables,
    knowledge,
    points,
    text,
)
from exhume.studies.split.ensembler import Network, Trained
from exhume.studies.split.ensembler_tables import Cells


def test_tables(claims_turn, claimed, around, key):
    """Rows are compared image by image, single shadows with single shadows; strengths were chosen before."""
    right = {"none": 0.7, "ensembler": 0.671}
    right |= {"ensembler.adaptive": 0.2, "single.shadow": 0.21, "none.shadow": 0.22}
    right |= {"none.own_form": 0.23, "none.training_set": 0.23}
    right |= {"ensembler.lookalike": 0.2, "none.lookalike": 0.21}
    right |= {"mean_image.affine": 0.3, "ensembler.lookalike.affine": 0.29}
    right |= {"ensembler.matched.affine": 0.299, "ensembler.committee.affine": 0.1}
    right |= {"none.shadow.chosen": 0.001, "none.own_form.chosen": 0.001}

    def cells(numbers, name):
        """Where there are eight shadows the first is taken, and is so much better than their mean."""
        mean, affine = (numbers.get(n, 0.0) for n in (name, f"{name}.affine"))
        better = numbers.get(f"{name}.chosen", 0.0)
        shadows = (
            [around(mean + better), *[around(mean - better / 7)] * 7] if better else [around(mean)]
        )
        each = {"ssim": torch.stack(shadows)[None], "affine_ssim": around(affine)[None, None]}
        empty = torch.empty(0)
        return Cells(each, {"mismatch": torch.tensor([[0.1, *[0.2] * 7]])}, 0.0, empty, empty)

    def decide(numbers):
        names = {name.removesuffix(".affine") for name in right} - {"none", "ensembler"}
        rows = {name: cells(numbers, name) for name in names}
        networks = {name: (Network(0, name),) for name in ("none", "ensembler")}
        facts = {one: {"accuracy": numbers[name]} for name, (one,) in networks.items()}
        said = ensembler_tables.compared(rows, Trained(networks, facts, {}), key)
        return claimed("ensembler-cifar10", said)

    claims_turn(
        decide,
        right,
        ("network", {"none": 0.69}),
        ("ensembler-below-single", {"ensembler.adaptive": 0.2098}),
        ("single-below-none", {"none.shadow": 0.205}),
        ("accuracy", {"ensembler": 0.669}),
        ("withstands", {"ensembler.matched.affine": 0.31}),
        ("withstands", {"ensembler.lookalike.affine": 0.31}),
        ("hides-from-lookalike", {"ensembler.lookalike": 0.2098}),
        ("own-form", {"none.own_form": 0.22}),
        ("training-set", {"none.training_set": 0.22}),
        ("choosing", {"none.shadow.chosen": -0.001}),
        ("choosing", {"none.own_form.chosen": -0.001}),
    )
    other = papers_of(
        "ensembler-cifar100"
    )  # its table has three rows: what is not there is not claimed
    assert "0.0864 against 0.4558" in other["ensembler-below-single"]
    assert "single-below-none" not in other


def test_selector(claims_turn, claimed, around, key):
    setting = study_named("ensembler-selector").scales["smoke"]
    right = {"plain.adaptive": 0.2, "plain.subsets": 0.21, "plain.lookalike": 0.209}
    right |= {"lambda_0.adaptive": 0.2, "lambda_2.adaptive": 0.19}
    right |= {"lambda_0.lookalike": 0.2, "lambda_2.lookalike": 0.19}
    rows = tuple(right)
    right |= {"enumeration.rank": 1.0, "enumeration.subsets": 3.0}
    right |= {"lambda_0.delta_accuracy": -0.02, "lambda_2.delta_accuracy": -0.049}
    right |= {"lambda_0.likeness": 0.9, "lambda_2.likeness": 0.1}

    def decide(numbers):
        each = {row: {"affine_ssim": around(numbers[row])} for row in rows}
        found = {n: SimpleNamespace(scores=SimpleNamespace(each=one)) for n, one in each.items()}
        said = ensembler_selector.compared(setting, found, numbers, key)
        return claimed("ensembler-selector", numbers | said)

    claims_turn(
        decide,
        right,
        ("accuracy-names-the-secret", {"enumeration.rank": 2.0}),
        ("enumeration-pays", {"plain.subsets": 0.2002, "plain.lookalike": 0.199}),
        ("secret-matters", {"plain.lookalike": 0.211}),
        ("lambda-helps-against-adaptive", {"lambda_2.adaptive": 0.1998}),
        ("lambda-helps-against-lookalike", {"lambda_0.lookalike": 0.1902}),
        ("lambda-is-cheap", {"lambda_2.delta_accuracy": -0.051}),
    )


def test_knowledge(claims_turn, claimed, around, key):
    right = {"mean_image": 0.1, "paper": 0.2, "faces": 0.19}
    right |= {"queries_10": 0.21, "queries_60": 0.21, "queries_noise": 0.21}

    def decide(means):
        each = {row: {"ssim": around(mean)} for row, mean in means.items()}
        rows = {n: SimpleNamespace(scores=SimpleNamespace(each=one)) for n, one in each.items()}
        return claimed("split-knowledge", knowledge.compared(rows, (10, 60), key))

    claims_turn(
        decide,
        right,
        ("query-free", {"mean_image": 0.1998}),
        ("queries-matter", {"queries_60": 0.2002}),
        ("few-queries", {"queries_10": 0.2002}),
        ("other-data", {"queries_noise": 0.2002}),
        ("like-data", {"faces": 0.1998}),
    )


def test_points(claims_turn, claimed, around, key):
    """Twenty shadows of a cell, which agree."""
    right = {"conv1.conv8": 0.3, "conv1.pool": 0.301, "conv7.conv8": 0.295, "conv7.pool": 0.296}
    right |= {"conv1.head_known": 0.5, "conv7.head_known": 0.498}

    def decide(means):
        shadows = {cell: around(mean).expand(20, -1) for cell, mean in means.items()}
        rows = {"mean_image": SimpleNamespace(mean=lambda measure: 0.1)}
        cuts = (("conv1", "conv7"), ("conv8", "pool"))
        grid = points._Grid("vgg16", "VGG-16", *cuts, rows, shadows, 0.9)
        return claimed("split-points", {"grids": [points.trends(grid, key)]})

    claims_turn(
        decide,
        right,
        ("vgg16-first", {"conv7.conv8": 0.3, "conv7.pool": 0.301}),
        ("vgg16-second", {"conv1.pool": 0.311, "conv7.pool": 0.306}),
        ("vgg16-second", {"conv1.pool": 0.289, "conv7.pool": 0.284}),
        ("vgg16-bound", {"conv7.head_known": 0.4998}),
    )


def test_text(claims_turn, claimed, around, key):
    right = {"decoder_on_shadow": 0.905, "decoder_on_client": 0.199, "null": 0.2}
    right |= {"cipher": 0.49, "cipher_fixed_noise": 0.49}
    names = tuple(right)
    right |= {"translation.bleu": 20.0, "shadow_translation.bleu": 10.0}

    def decide(numbers):
        rows = {name: SimpleNamespace(right=around(numbers[name])) for name in names}
        shown = {f"{name}.{n}": 0.0 for name in names for n in ("token_accuracy", "bleu")}
        shown |= {"translation_fixed_noise.bleu": 15.0}
        return claimed("split-text", shown | numbers | text.compared(rows, key))

    claims_turn(
        decide,
        right,
        ("shadow-translates", {"shadow_translation.bleu": 9.9}),
        ("shadow-translates", {"shadow_translation.bleu": 20.0}),
        ("decodes-itself", {"decoder_on_shadow": 0.9}),
        ("not-the-client", {"decoder_on_client": 0.1998}),
        ("secret-embeddings-protect", {"cipher": 0.5}),
        ("noise-protects", {"cipher_fixed_noise": 0.5}),
    )
