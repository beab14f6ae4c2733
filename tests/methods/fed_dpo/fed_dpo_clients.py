"""Log-linear clients with tastes of their own, for several tests."""

import numpy as np

from cameraready.methods.fed_dpo import LogLinearPairs, PreferenceClient


def log_linear_clients(n, *, d=3, pairs=40, seed=0, apart=1.0, beta=1.0):
    """n clients of slightly different sizes, whose labels follow tastes of spread ``apart``."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=d)
    clients = []
    for i in range(n):
        D = rng.normal(size=(pairs + 3 * i, d))
        p = 1 / (1 + np.exp(-D @ (common + apart * rng.normal(size=d))))
        clients.append(
            PreferenceClient(LogLinearPairs(D * np.where(rng.random(len(D)) < p, 1, -1)[:, None]), beta=beta)
        )
    return clients
