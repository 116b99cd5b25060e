"""What the claims about the informed adversary turn on: their metrics and bars."""

from __future__ import annotations

from types import SimpleNamespace

from exhume.score.intervals import Correlation
from exhume.score.measures import STATISTICS
from exhume.studies import study_named
from exhume.studies.informed import (
    cifar10,
    reconstructors,
    transfer,
    zero_gradients,
)


def test_mnist(claims_turn, claimed):
    right = {"success": 0.6, "null_success": 0.0, "success_low": 0.501, "success_high": 0.7}
    right |= {"reconn.300.mae_plus_mse": 1.05 * 0.0583}
    smoke = study_named("informed-mnist").scales["smoke"]
    claims_turn(
        lambda metrics: claimed("informed-mnist", metrics, smoke),
        right | {"mae_plus_mse": 0.0583, "label_accuracy": 0.901},
        ("beats-oracle", {"success_low": 0.5}),
        ("closed-form", {"mae_plus_mse": 0.0584}),
        ("label", {"label_accuracy": 0.9}),
        ("notebook", {"reconn.300.mae_plus_mse": 0.0613}),
    )


def test_init(claims_turn, claimed):
    claims_turn(
        lambda metrics: claimed("informed-init", metrics),
        {"auc_shared": 0.95, "auc_fresh": 0.65},
        ("shared", {"auc_shared": 0.949}),
        ("fresh", {"auc_fresh": 0.651}),
    )


def test_glm(claims_turn, claimed):
    right = {"largest_error": 1e-5, "label_accuracy": 1.0, "attack_seconds": 0.99, "targets": 9}
    sklearn = {"success": 0.51, "targets": 9, "median_largest_error": 0.1}
    claims_turn(
        lambda metrics: claimed("informed-glm", {"asked": 1e-12, **metrics}),
        right
        | {"sklearn_low": 0.501, "sklearn_high": 0.6}
        | {f"sklearn_{name}": value for name, value in sklearn.items()},
        ("exact", {"largest_error": 1.1e-5}),
        ("exact", {"label_accuracy": 0.99}),
        ("instant", {"attack_seconds": 1.0}),
        ("sklearn-default", {"sklearn_low": 0.5}),
    )


def test_versions(claims_turn, claimed):
    smoke = study_named("versions").scales["smoke"]
    claims_turn(
        lambda metrics: claimed("versions", metrics, smoke),
        {"ridge.remaining.largest_error_worst": 1e-6, "ridge.difference.identified": 0.51}
        | {"softmax.difference.identified": 0.51, "network.through-training.identified": 0.5}
        | {"network.through-training.identified_low": 0.02, "network.ratio.p": 0.01}
        | {"network.through-training.chance": 0.019, "network.ratio.identified": 0.5},
        ("exact", {"ridge.remaining.largest_error_worst": 1.1e-6}),
        ("public", {"softmax.difference.identified": 0.5}),
        ("network", {"network.through-training.identified_low": 0.018}),
        ("difference", {"network.ratio.p": 0.011}),
    )


def test_reconstructors(claims_turn, claimed):
    """The correction's interval lies below the closed form's error, with ELU and with ReLU."""
    right = {
        **{"through_training.mse": 0.99e-4, "through_training.label_accuracy": 1.0},
        **{"closed_form.100.mae_plus_mse": 0.05, "reconn.100.mae_plus_mse": 0.051},
        **{"closed_form.100.mse": 0.02, "closed_form.200.mse": 0.019},
        **{"reconn.150.mae_plus_mse": 1.05 * 0.0583, "reconn_change.150.mae_plus_mse": 0.1},
        "paper_setting.corrected.mse": 0.0089,
        "paper_setting.through_training.mse": 0.99e-4,
        "paper_setting.through_training.targets": 4.0,
    }
    pairs = {"closed_form.200": "corrected.200"}
    pairs |= {f"relu.closed_form.{n}": f"relu.corrected.{n}" for n in (100, 200)}
    for plain, better in pairs.items():
        right |= {f"{plain}.mse": 0.019, f"{better}.mse_low": 0.01, f"{better}.mse_high": 0.0189}
        right |= {f"{arm}.mae_plus_mse": 0.05 for arm in (plain, better)}
    smoke = study_named("reconstructors").scales["smoke"]
    claims_turn(
        lambda metrics: claimed(
            "reconstructors", metrics | reconstructors.compared(smoke, metrics), smoke
        ),
        right,
        ("exact", {"through_training.mse": 1e-4}),
        ("paper-setting-exact", {"paper_setting.through_training.mse": 1e-4}),
        ("closed-form", {"reconn.100.mae_plus_mse": 0.05}),
        ("shadows", {"closed_form.100.mse": 0.019}),
        *(("corrected", {f"{better}.mse_high": 0.019}) for better in pairs.values()),
        ("notebook", {"reconn.150.mae_plus_mse": 0.0613}),
        ("paper-setting", {"paper_setting.corrected.mse": 0.0090}),
    )


def test_gallery(claims_turn, claimed):
    names = {name: name.replace(" ", "-") for name in STATISTICS}

    def decide(metrics):
        found = dict(metrics)
        for name in names:
            own = name.replace(" ", "_")
            found |= Correlation(0.5, metrics[name], 0.6).metrics(own)
            found |= Correlation(0.0, -1.0, 1.0).metrics(f"{own}.relative")
        return claimed("informed-gallery", found)

    claims_turn(
        decide,
        dict.fromkeys(names, 0.01)
        | {"success": 0.6, "null_success": 0.0, "success_low": 0.501}
        | {"success_high": 0.7},
        *((claim, {name: 0.0}) for name, claim in names.items()),
        ("beats-oracle", {"success_low": 0.5}),
    )


def test_transfer(claims_turn, claimed, around, key):
    """On the same targets: 10 and 30 shadows fine-tuned against as many from scratch, 300 against 30."""
    setting = study_named("informed-transfer").scales["cpu"]
    right = dict.fromkeys(("tuned.10", "tuned.30", "tuned.300"), 0.019)
    right |= dict.fromkeys(("scratch.10", "scratch.30", "mean_record"), 0.02)
    right["scratch.300"] = 0.02
    right |= dict.fromkeys(("zero_shot", "zero_shot_moved"), 0.019) | {"closed_form.300": 0.018}

    def decide(means):
        errors = {name: around(mean) for name, mean in means.items()}
        said = {"set": "", **transfer.compared(setting, errors, key, "MNIST")}
        return claimed("informed-transfer", {"sets": [said], "mnist": [said], "others": []})

    claims_turn(
        decide,
        right,
        ("few", {"tuned.10": 0.0198}),
        ("few", {"scratch.30": 0.0192}),
        ("many", {"scratch.300": 0.018}),
        ("zero-shot", {"zero_shot": 0.0198}),
        ("zero-shot-moved", {"zero_shot_moved": 0.0198}),
        ("closed-form", {"closed_form.300": 0.0188}),
    )


def test_zero_gradients(claims_turn, claimed, around, key):
    """max(-0.5, x) is nearer to ELU than to ReLU; the share of zeros rises with the rate."""
    right = {"relu": 0.03, "floor": 0.019, "elu": 0.01, "leaky-relu": 0.011, "tanh": 0.012}
    right |= {"cnn.relu.conv": 0.9, "cnn.relu.conv_low": 0.801, "cnn.relu.conv_high": 1.0}
    for rate, share in {"0.01": 0.2, "0.1": 0.2, "0.2": 0.3}.items():
        ends = {f"cnn.relu.rate_{rate}.conv{end}": share for end in ("", "_low", "_high")}
        right |= ends | {f"cnn.relu.rate_{rate}.dead": share}
    right |= {f"cnn.{name}.conv_most": 0.009 for name in ("elu", "leaky-relu", "tanh")}

    def decide(numbers):
        attacked = {
            name: SimpleNamespace(errors=around(numbers[name]), mse=numbers[name])
            for name in zero_gradients.MLP
        }
        said = zero_gradients.judge(attacked, numbers, (0.01, 0.1, 0.2), key)
        said["link"] = Correlation(0.5, numbers["link_low"], 0.6)
        errors = {f"mlp.{name}.mse": numbers[name] for name in zero_gradients.MLP}
        return claimed("informed-zero-gradients", numbers | errors | said)

    claims_turn(
        decide,
        right | {"link_low": 0.01},
        ("convolutions", {"cnn.relu.conv_low": 0.8}),
        ("dead", {"cnn.relu.rate_0.1.conv": 0.19}),
        ("dead", {"cnn.relu.rate_0.2.conv": 0.2}),
        ("others", {"cnn.tanh.conv_most": 0.01}),
        ("outlier", {"tanh": 0.0298}),
        ("floor", {"floor": 0.0199}),
        ("link", {"link_low": 0.0}),
    )


def test_cifar10(claims_turn, claimed, around, key):
    """Arms are compared target by target; private training must be no better than the mean record."""
    setting = study_named("informed-cifar10").scales["cpu"]
    right = {"closed_form": 0.02, "closed_form_per_label": 0.021, "steps_10": 0.019}
    right |= {"reconn": 0.029, "mean_record": 0.03, "seen.reconn": 0.3, "seen.reconn_pixels": 0.31}
    right |= {"dp.epsilon_1e+06": 0.031, "dp.epsilon_10000": 0.032}
    right |= {"dp.not_private": 0.02, "dp.mean_record": 0.029}
    right |= {"success_low": 0.501}

    def arm(numbers, name):
        metrics = {"success_low": numbers["success_low"], "success_high": 0.9}
        scores = SimpleNamespace(metrics=metrics | {"null_success": 0.01})
        return SimpleNamespace(errors=around(numbers.get(name, 0.0)), scores=scores)

    def decide(numbers):
        arms = {name: arm(numbers, name) for name in numbers}
        seen = {n: around(numbers[f"seen.{n}"]) for n in ("reconn", "reconn_pixels")}
        said = cifar10.compared(setting, arms, seen, key)
        found = {"closed_form.null_success": 0.01, "closed_form.success": 0.6}
        return claimed("informed-cifar10", found | said, setting)

    claims_turn(
        decide,
        right,
        ("beats-oracle", {"success_low": 0.5}),
        ("reconn-learns", {"reconn": 0.0298}),
        ("imprint", {"closed_form_per_label": 0.0202}),
        ("perceptual", {"seen.reconn": 0.3098}),
        ("private", {"dp.epsilon_10000": 0.028}),
        ("private-most", {"dp.epsilon_1e+06": 0.028}),
        ("private", {"dp.not_private": 0.0288}),
        ("steps", {"steps_10": 0.0198}),
    )
