"""What the claims run: contestants on Gaussian mixtures, and on digits, tables and photographs with noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.neighbors import NearestCentroid
from sklearn.neural_network import MLPClassifier
from sklearn.random_projection import GaussianRandomProjection

from cameraready.methods.preprocess_gain import (
    Blur,
    DenoisingAE,
    PCAWiener,
    ProcessingAdvisor,
    SkimageDenoiser,
    acc_bayes,
    acc_plugin_unbalanced,
    efficiency,
)
from cameraready.methods.preprocess_gain.measurement import stratified_subset
from cameraready.methods.preprocess_gain.peers import SmallCNN, inverse_power_law
from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.tuning import regularisation_grid, with_tuning

RAW, PROCESSED, SIMULATED, THEORY, LAW = "raw", "processed", "simulated", "plug-in theory", "inverse power law"
LABELS = {"digits": 120, "breast-cancer": 60, "wine": 30, "keel:satimage": 120}  # a quarter of what is predicted at
WIENER, DAE, BLUR, NL_MEANS = "PCA-Wiener", "denoising autoencoder", "blur", "non-local means"


def excess_over_bayes(n: int, n_test: int, d: int, rng: np.random.Generator) -> dict[str, float]:
    """Accuracy of the nearest class mean of n labels behind each processor, less the Bayes rule's on the same test.

    The mean has length 1 and is smooth, so that blur keeps part of it.
    """
    mu = np.sin(np.arange(d) / 4)
    mu /= np.linalg.norm(mu)
    (X, y), (X_test, y_test) = _mixture(n, mu, rng), _mixture(n_test, mu, rng)
    bayes = np.mean(np.sign(X_test @ mu) == y_test)
    network = DenoisingAE(noise=1.0, bottleneck=5, epochs=3, batch_size=256, n_draws=1)
    processors = {WIENER: PCAWiener(), "PCA (5)": PCA(5, random_state=0), DAE: network, BLUR: Blur(1.0)}
    return {
        name: np.mean(NearestCentroid().fit(view(X), y).predict(view(X_test)) == y_test) - bayes
        for name, view in _views(processors, X)
    }


def learned_component(
    name: str, noise: str, n: int, draws: int, seed: int, rng: np.random.Generator
) -> dict[str, float]:
    """Mean accuracies from n labels, raw and on the first component of 1000 unlabelled inputs; d = 100, m = 1.

    Non-spherical noise is whitened first, for the raw inputs too, by its covariance in 1000 recordings without a
    signal. l^2 = 1 is above d / N = 0.1, and above what the estimated whitening needs.
    """
    model = MLPClassifier((64,), max_iter=100, learning_rate_init=0.01, random_state=seed)
    model = {"nearest mean": NearestCentroid(), "logistic regression": LogisticRegression(), "MLP": model}[name]
    grid = regularisation_grid(model) if name == "logistic regression" else {}
    found: dict[str, list[float]] = {RAW: [], PROCESSED: []}
    for _ in range(draws):
        mix = whiten = np.eye(100)
        if noise == "non-spherical":
            basis = np.linalg.qr(rng.normal(size=(100, 100)))[0]
            mix = (basis * np.geomspace(0.2, 5.0, 100)) @ basis.T
            blank = rng.normal(size=(1000, 100)) @ mix
            whiten = np.linalg.inv(np.linalg.cholesky(blank.T @ blank / 1000)).T
        mu = rng.normal(size=100)
        mu /= np.linalg.norm(mu)
        X, pool, X_test = (_mixture(size, mu, rng) for size in (n, 1000, 4000))
        (X, y), (pool, _), (X_test, y_test) = ((x @ mix @ whiten, labels) for x, labels in (X, pool, X_test))
        for method, view in _views({PROCESSED: PCA(1, random_state=0)}, pool):
            fitted = with_tuning(model, grid, scoring="accuracy", n_splits=3, seed=seed).fit(view(X), y)
            found[method].append(np.mean(fitted.predict(view(X_test)) == y_test))
    return {method: float(np.mean(accuracies)) for method, accuracies in found.items()}


def theory_and_simulation(draws: int, d: int, k: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Efficiency by m and n, and recovery by imbalance, of an ideal projection from d (100) to k; the largest error."""
    z1, z2 = rng.normal(size=(2, draws, d))
    errors = []
    for m in (0.5, 1.0, 2.0, 3.0):
        for n in (16, 128, 1024):
            seen = efficiency(*(_simulated(m, z1[:, :p], z2[:, :p], n / 2, n / 2) for p in (d, k)))
            told = efficiency(*(acc_plugin_unbalanced(m, p, n / 2, n / 2) for p in (d, k)))
            yield {"method": SIMULATED, "m": m, "n": n, "efficiency": seen}
            yield {"method": THEORY, "m": m, "n": n, "efficiency": told}
            errors.append(abs(seen - told))
    z1, z2 = rng.normal(size=(2, 5 * draws, 100))
    for n1, n2 in ((50, 50), (80, 20), (95, 5)):
        raw, processed = (_simulated(1.0, z1[:, :p], z2[:, :p], n1, n2) for p in (100, k))
        told = efficiency(*(acc_plugin_unbalanced(1.0, p, n1, n2) for p in (100, k)), acc_bayes(1.0))
        recovery = efficiency(raw, processed, acc_bayes(1.0))
        errors.append(abs(recovery - told))
        yield {"method": f"{n1}:{n2}", "recovery": recovery}
        yield {"method": "by imbalance", "imbalance": n1 / 100, "gain": processed - raw}
    yield {"method": THEORY, "error": max(errors)}


def noisy_digits(noise: float, n: int, inner_splits: int, seed: int, rng: np.random.Generator) -> dict[str, float]:
    """MLP accuracies: 1000 digits are the pool, n of them labelled; the filter sees all 1000, the rest is the test."""
    X, y = _digits(noise, rng)
    few = stratified_subset(y[:1000], n, rng)
    network = MLPClassifier((128,), max_iter=100, learning_rate_init=0.005, random_state=seed)
    return {
        name: _score(network, view(X), y, few, np.arange(1000, len(X)), seed, scoring="accuracy", splits=inner_splits)
        for name, view in _views({WIENER: PCAWiener()}, X[:1000])
    }


def imbalanced_digits(share: float, n: int, noise: float, seed: int, rng: np.random.Generator) -> dict[str, float]:
    """Digits below 5 against the others; the unlabelled pool is as imbalanced as the labels, the test is balanced."""
    X, digit = _digits(noise, rng)
    y = (digit < 5).astype(int)
    large, small = (np.flatnonzero(y[:1000] == k) for k in (1, 0))
    few, pool = (np.concatenate([large[: round(share * s)], small[: s - round(share * s)]]) for s in (n, 450))
    model = LogisticRegression(max_iter=1000, class_weight="balanced")
    return {
        name: _score(model, view(X), y, few, np.arange(1000, len(X)), seed)
        for name, view in _views({WIENER: PCAWiener()}, X[pool])
    }


def noisy_photographs(
    noise: float, counts: list[int], n_pool: int, n_test: int, seed: int, rng: np.random.Generator
) -> Iterator[tuple[int, dict[str, float]]]:
    """CNN accuracies for each number of labels: grass or gravel in 16 x 16 patches.

    Training patches are from the photographs' left halves, test patches from the right ones.
    """
    X, y = _patches(n_pool, slice(0, 256), rng)
    X_test, y_test = _patches(n_test, slice(256, 512), rng)
    X, X_test = (x + noise * rng.normal(size=x.shape) for x in (X, X_test))
    processors = {
        NL_MEANS: SkimageDenoiser("nl_means", sigma=noise),
        DAE: DenoisingAE(noise=noise, hidden=32, epochs=20, n_draws=2, random_state=seed),
        "strong total variation": SkimageDenoiser("tv", sigma=noise, strength=5.0),
        "wide blur": Blur(3.0),
    }
    most = np.concatenate([np.flatnonzero(y == k)[: max(counts) // 2] for k in (0, 1)])
    seen = [(name, view(X[most]), view(X_test)) for name, view in _views(processors, X)]
    for n in counts:
        few = np.concatenate([np.flatnonzero(y[most] == k)[: n // 2] for k in (0, 1)])
        yield (
            n,
            {
                name: float(np.mean(SmallCNN(seed=seed).fit(Z[few], y[most][few]).predict(Z_test) == y_test))
                for name, Z, Z_test in seen
            },
        )


def gains_at_four_times(
    dataset: str, classifier: str, noise: float, repeats: int, seed: int, rng: np.random.Generator
) -> Iterator[tuple[str, float, float]]:
    """(method, predicted, measured) gain at 4 n labels for each processor that the theory covers.

    The predictors know n labels and, unlabelled, 3 n and a tenth of the rows more; the gain to predict is the mean of
    20 random splits. What the theory does not cover has no prediction, and is left out for all contestants.
    """
    (X, y), n = _labelled(dataset), LABELS[dataset]
    X = X + noise * rng.normal(size=X.shape)
    codes = np.unique(y, return_inverse=True)[1]
    processors = {
        WIENER: PCAWiener(),
        "PCA (4)": PCA(4, random_state=0),
        "random projection": GaussianRandomProjection(8, random_state=0),
    }
    model, n_train = _balanced(classifier, codes.max() + 1), 4 * n + len(X) // 10
    gains: dict[str, list[float]] = {name: [] for name in processors}
    for _ in range(20):
        order = rng.permutation(len(X))
        train, test = order[:n_train], order[n_train:]
        few = train[stratified_subset(codes[train], 4 * n, rng)]
        scores = {name: _score(model, view(X), y, few, test, seed) for name, view in _views(processors, X[train])}
        for name, values in gains.items():
            values.append(scores[name] - scores[RAW])
    order = rng.permutation(len(X))[:n_train]
    known = order[stratified_subset(codes[order], n, rng)]
    advisor = ProcessingAdvisor(model, list(processors.items()), repeats=repeats, random_state=seed)
    advisor.fit(X[known], y[known], X_unlabelled=X[np.setdiff1d(order, known)])
    found = advisor.predict_gain(4 * n).set_index("processor")
    accuracy = {name: values.mean(axis=1) for name, values in advisor.measurements_.scores.items()}
    for name, values in gains.items():
        if found.loc[name, "status"] == "covered":
            law = [inverse_power_law(advisor.n_grid_, accuracy[key], 4 * n) for key in (name, RAW)]
            yield THEORY, found.loc[name, "predicted_gain"], np.mean(values)
            yield LAW, law[0] - law[1], np.mean(values)
            yield "last measured gain", accuracy[name][-1] - accuracy[RAW][-1], np.mean(values)


def _views(processors: Mapping[str, Any], fitted_on: Array) -> Iterator[tuple[str, Any]]:
    """(name, function of inputs) of the raw inputs and of each processor, fitted on the given inputs."""
    yield RAW, lambda x: x
    for name, processor in processors.items():
        yield name, clone(processor).fit(fitted_on).transform


def _score(
    model: Any,
    Z: Array,
    y: Array,
    few: Array,
    test: Array,
    seed: int,
    *,
    scoring: str = "balanced_accuracy",
    splits: int = 3,
) -> float:
    """Score on the test rows of the classifier fitted, and its regularisation tuned, on the few labelled ones."""
    tuned = with_tuning(model, regularisation_grid(model), scoring=scoring, n_splits=splits, seed=seed)
    return float(get_scorer(scoring)(tuned.fit(Z[few], y[few]), Z[test], y[test]))


def _mixture(n: int, mu: Array, rng: np.random.Generator) -> tuple[Array, np.ndarray]:
    """n samples of N(y mu, I), y = +-1 in equal numbers."""
    y = np.where(rng.permutation(n) < n // 2, 1, -1)
    return y[:, None] * mu + rng.normal(size=(n, len(mu))), y


def _simulated(m: float, z1: Array, z2: Array, n1: float, n2: float) -> float:
    """Balanced accuracy of the nearer of two estimated means: draws of the means, each rule's accuracy exact.

    z1, z2 are standard normal, of shape (draws, d); the true means are +m and -m along the first axis.
    """
    first, second = z1 / np.sqrt(n1), z2 / np.sqrt(n2)
    first[:, 0] += m
    second[:, 0] -= m
    w, b = first - second, ((second**2).sum(axis=1) - (first**2).sum(axis=1)) / 2
    length = np.sqrt((w**2).sum(axis=1))
    return float((ndtr((w[:, 0] * m + b) / length) + ndtr((w[:, 0] * m - b) / length)).mean() / 2)


def _labelled(name: str) -> tuple[Array, np.ndarray]:
    """Features of unit variance, and labels, of "digits" or of a table."""
    from cameraready import data

    if name == "digits":
        images, y = data.load("digits-labelled")
        X = images.reshape(len(images), -1) / 16.0
        return X / X.std(), np.asarray(y)
    table = data.load(name)
    X = table.X.to_numpy(dtype=float)
    return (X - X.mean(axis=0)) / X.std(axis=0), table.y.to_numpy()


def _digits(noise: float, rng: np.random.Generator) -> tuple[Array, np.ndarray]:
    """Digits in random order, their grey levels between 0 and 1, with noise."""
    X, y = _labelled("digits")
    order = rng.permutation(len(X))
    return (X / X.max())[order] + noise * rng.normal(size=X.shape), y[order]


def _balanced(name: str, n_classes: int) -> Any:
    """A plug-in classifier whose threshold does not move with the classes' shares."""
    if name == "nearest mean":
        return NearestCentroid()
    if name == "shrinkage LDA":
        even = np.full(n_classes, 1 / n_classes)
        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1, priors=even)
    return LogisticRegression(max_iter=1000, class_weight="balanced")


def _patches(n: int, columns: slice, rng: np.random.Generator, size: int = 16) -> tuple[Array, np.ndarray]:
    """n square patches, in [0, 1], of these columns of two bundled photographs (grass, gravel)."""
    from skimage import data as photographs

    y = np.arange(n) % 2
    rng.shuffle(y)
    images = [image[:, columns] / 255.0 for image in (photographs.grass(), photographs.gravel())]
    corners = [rng.integers(0, images[0].shape[axis] - size, size=n) for axis in (0, 1)]
    return np.stack([images[k][i : i + size, j : j + size] for k, i, j in zip(y, *corners, strict=True)]), y
