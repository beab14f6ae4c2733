"""The law of the seeds, against exact probabilities; chi-square tests with a false-alarm rate of 0.001."""

import itertools

import numpy as np
import pytest
from scipy import stats

from cameraready.methods.qkmeans.plusplus import _generator
from cameraready.methods.qkmeans.points import Points, Threads
from cameraready.methods.qkmeans.seeding import Seeding, Settings

K = 3
X = np.random.default_rng(5).normal(size=(12, 2)) * np.repeat([[1.0], [6.0]], 6, axis=0)
DISTANCES = ((X[:, None] - X[None]) ** 2).sum(-1)


def exact_law(weights: np.ndarray) -> dict[tuple[int, int, int], float]:
    """Probability of every ordered triple under weighted k-means++."""
    law = {}
    for a in range(12):
        second = weights * DISTANCES[a]
        for b in np.flatnonzero(second):
            third = weights * np.minimum(DISTANCES[a], DISTANCES[b])
            for c in np.flatnonzero(third):
                law[a, int(b), int(c)] = weights[a] / weights.sum() * second[b] / second.sum() * third[c] / third.sum()
    return law


def sample(runs: int, settings: Settings, weights: np.ndarray | None = None) -> list[tuple[int, ...]]:
    rng = _generator(0)
    with Threads(1) as threads:
        points = Points(X, threads)
        return [
            tuple(Seeding(points, K, settings=settings, weights=weights, rng=rng).run()[0].tolist())
            for _ in range(runs)
        ]


def p_value(drawn: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square test of the draws against the law; outcomes expected fewer than 5 times are counted together."""
    expected = np.array(list(law.values())) * len(drawn)
    counts = dict.fromkeys(law, 0)
    for outcome in drawn:
        counts[outcome] += 1
    observed = np.array(list(counts.values()))
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    kept = expected > 0
    return stats.chisquare(observed[kept], expected[kept], sum_check=False).pvalue


SETTINGS = [
    pytest.param(Settings(max_batch=batch, refresh=refresh), id=f"batch={batch}, refresh={refresh}")
    for batch, refresh in itertools.product([1, 4, 2048], ["auto", "off", (1, 2)])
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_seeds_follow_the_k_means_plusplus_law_exactly(settings):
    assert p_value(sample(200_000, settings), exact_law(np.ones(12))) > 0.001


@pytest.mark.parametrize("settings", [SETTINGS[4], SETTINGS[8]])
def test_seeds_follow_the_k_means_plusplus_law(settings):
    assert p_value(sample(5_000, settings), exact_law(np.ones(12))) > 0.001


def test_the_law_test_notices_uniform_seeds():
    rng = np.random.default_rng(0)
    uniform = [tuple(rng.permutation(12)[:3].tolist()) for _ in range(5_000)]
    assert p_value(uniform, exact_law(np.ones(12))) < 1e-9


def test_weighted_seeds_follow_the_weighted_law():
    weights = np.array([0, 1, 2, 5, 1, 1, 0.1, 3, 0, 1, 1, 0.5])
    assert p_value(sample(5_000, Settings(), weights), exact_law(weights)) > 0.001


def test_greedy_seeds_are_the_best_of_their_candidates():
    # K = 3 draws 3 candidates a round; here the sample of reference is the whole data set, so potentials are exact.
    # Rows of the same potential (two that serve each other) tie: the outcome is the potential, not the row.
    potentials = np.round([np.minimum(DISTANCES[a], DISTANCES).sum(axis=1) for a in range(12)], 9)
    law = {}
    for a in range(12):
        probability = DISTANCES[a] / DISTANCES[a].sum()
        for value in np.unique(potentials[a]):
            not_better, worse = probability[potentials[a] >= value].sum(), probability[potentials[a] > value].sum()
            law[a, value] = (not_better**3 - worse**3) / 12
    drawn = [(a, potentials[a, b]) for a, b, _ in sample(5_000, Settings(greedy=True))]
    assert p_value(drawn, law) > 0.001
