"""What several claims share: models, envelopes, logs, and the ranking of optimisers on real rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cameraready.methods.signsgd_scaling.decay import fit_decay
from cameraready.methods.signsgd_scaling.frontier import frontier, runs_table, sketches
from cameraready.methods.signsgd_scaling.power_law import PLRF
from cameraready.methods.signsgd_scaling.real_rows import train_on_rows
from cameraready.methods.signsgd_scaling.regression import GaussianRegression

SIGN, SGD = "signSGD", "SGD"
OPTIMIZERS = {SGD: "sgd", SIGN: "signsgd"}
BUDGETS_A_DECADE = 5


def decays_of(point):
    alpha, beta = (float(part) for part in point.split(","))
    return alpha, beta


def sizes_to(d_max):
    """Model sizes from 32 to ``d_max``, each about 1.7 times the one before."""
    return np.geomspace(32, d_max, round(np.log(d_max / 32) / np.log(1.72)) + 1)


def models_of(trial, alpha, beta, sizes):
    return sketches(alpha, beta, [int(size) for size in sizes], seed=trial.seed, most=4)


def envelopes(models, variants, f_min, f_max):
    """Slopes of the best risk over compute, of every variant in the same window, and the best models there.

    The window spans 1.2 decades between ``f_min`` and ``f_max``: the one in which most best sizes are inside the range
    of sizes, for all variants, and the latest of equals. A best size at the end would make a slope too shallow.

    Parameters
    ----------
    variants : name to (optimizer, schedule).
    """
    budgets = np.geomspace(f_min, f_max, round(BUDGETS_A_DECADE * np.log10(f_max / f_min)) + 1)
    best = {
        name: frontier(runs_table(models, optimizer, budgets, schedule=schedule, rates=12))
        for name, (optimizer, schedule) in variants.items()
    }
    interior = np.all([table["interior"] for table in best.values()], axis=0)
    length = min(len(budgets), round(1.2 * BUDGETS_A_DECADE) + 1)
    counts = np.convolve(interior, np.ones(length), mode="valid")
    first = int(np.flatnonzero(counts == counts.max())[-1])
    chosen = np.arange(first, first + length)
    used = chosen[interior[chosen]] if counts[first] >= 3 else chosen
    slopes = {
        name: float(np.polyfit(np.log(table["compute"].iloc[used]), np.log(table["risk"].iloc[used]), 1)[0])
        for name, table in best.items()
    }
    return slopes, {name: table.iloc[chosen] for name, table in best.items()}


def training_logs(trial, alpha, beta, optimizer, sizes, budgets, sketches):
    """Training logs of models of several sizes and rates: N, d, lr, loss, averaged over sketches."""
    rows = []
    for d in np.unique(np.round(sizes).astype(int)):
        steps = np.unique([int(f / d) for f in budgets])
        models = [PLRF(alpha, beta, int(d), seed=sketches * trial.seed + i) for i in range(sketches)]
        for lr in models[0].rate_grid(optimizer, 9)[2:]:
            losses = np.mean(
                [
                    m.mode_recursion(optimizer, lr=lr, steps=int(steps[-1]), schedule="constant", batch=1, record=steps)
                    for m in models
                ],
                axis=0,
            )
            rows += [(N, d, lr, loss) for N, loss in zip(steps, losses, strict=True) if np.isfinite(loss)]
    return pd.DataFrame(rows, columns=["N", "d", "lr", "loss"])


def record_ranking(trial, X, y, steps):
    """Record, at five budgets, the risk of both optimisers at their best rate, expected and on the real rows."""
    X, y = X[:, X.std(axis=0) > 0], (y - y.mean()) / y.std()
    problem = GaussianRegression.from_data(X, y)
    budgets = np.geomspace(steps / 30, steps, 5).round().astype(int)
    expected, actual = {}, {}
    for name, optimizer in OPTIMIZERS.items():
        covered = bool(problem.coverage(optimizer))
        predicted, measured = [], []
        for lr in problem.rate_grid(optimizer, 8):
            if covered:
                curve = problem.mode_recursion(
                    optimizer, lr=lr, steps=steps, schedule="constant", batch=1, record=budgets
                )
            else:  # as the instrument advises where its formula does not hold
                simulated = problem.simulate(optimizer, lr=lr, steps=steps, seeds=6, seed=trial.seed, record=budgets)
                curve = simulated["risk_mean"]
            predicted.append(np.asarray(curve))
            runs = [
                train_on_rows(problem, X, y, optimizer=optimizer, lr=lr, record=budgets, rng=trial.rng)
                for _ in range(6)
            ]
            measured.append(np.mean(runs, axis=0))
        expected[name], actual[name] = np.min(predicted, axis=0), np.min(measured, axis=0)
        for N, first, second in zip(budgets, expected[name], actual[name], strict=True):
            trial.record(method=f"{name}, expected", N=N, risk=first)
            trial.record(method=f"{name}, on the rows", N=N, risk=second)
        trial.record(method=f"{name}, formula", formula_covers=covered)
    same = np.sign(np.log(expected[SIGN] / expected[SGD])) == np.sign(np.log(actual[SIGN] / actual[SGD]))
    tie = np.abs(np.log(actual[SIGN] / actual[SGD])) < 0.03
    trial.record(method="theory", agreement=np.mean(same), ties=np.mean(tie))
    if X.shape[1] >= 10 and len(X) >= 100:
        found = fit_decay(X, y, intervals=False)
        trial.record(method="fitted law", law_covers=bool(found.coverage), decay=found.alpha, distance=found.distance)
