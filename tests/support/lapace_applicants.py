"""A small table of loan applicants and a plain function that decides on them."""

import numpy as np
import pandas as pd

from cameraready.methods.lapace import Training

QUICK = Training(epochs=40)


def applicants(n=400, seed=0):
    rng = np.random.default_rng(seed)
    income = rng.gamma(4.0, 12.0, n)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 75, n),
            "income": income,
            "loan": rng.gamma(2.0, 8.0, n).astype(np.float32),
            "home": rng.choice(["own", "rent", "parents"], n, p=[0.5, 0.35, 0.15]),
            "married": rng.random(n) < 0.5,
            "school": pd.Categorical(
                rng.choice(["low", "middle", "high"], n), categories=["low", "middle", "high"], ordered=True
            ),
        }
    )


def score(rows):
    """A plain function: richer, smaller loans, owners and schooling are better."""
    school = rows["school"].cat.codes.to_numpy()
    logit = 0.08 * rows["income"] - 0.15 * rows["loan"] + (rows["home"] == "own") + 0.5 * school - 2.5
    p = 1 / (1 + np.exp(-logit.to_numpy(dtype=float)))
    return np.column_stack([1 - p, p])
