"""Fit a diode model to the measured curves of eight solar cells at once: one budget for all of them."""

import numpy as np

from cameraready.methods.mes_ret import ManyTaskES, TaskSpec

VOLTS = np.linspace(0.0, 0.58, 40)
rng = np.random.default_rng(0)


def current(x, volts):
    """Current of a cell: photocurrent, log10 of the diode's, ideality, shunt resistance."""
    photo, log_diode, ideality, shunt = np.moveaxis(np.asarray(x)[..., None], -2, 0)
    return photo - 10**log_diode * np.expm1(volts / (0.0257 * ideality)) - volts / shunt


# Eight cells as a tester would have measured them: alike, not equal, with noise of a milliampere.
true = np.column_stack([rng.uniform(*ends, size=8) for ends in ((0.6, 0.8), (-7.0, -6.0), (1.3, 1.6), (20.0, 60.0))])
measured = current(true, VOLTS) + 0.001 * rng.standard_normal((8, VOLTS.size))

cells = [TaskSpec(f"cell {i}", [0.0, -9.0, 1.0, 5.0], [1.0, -4.0, 2.0, 100.0]) for i in range(8)]
es = ManyTaskES(cells, max_evals=10_000, seed=0)
while not es.stop():
    todo = es.ask()
    errors = [np.sqrt(((current(b.X, VOLTS) - measured[b.index]) ** 2).mean(axis=1)) for b in todo]
    es.tell([(b.task, b.X, error) for b, error in zip(todo, errors, strict=True)])

print(es.result)
print("photocurrents are off by at most", np.abs([r.x_best[0] for r in es.result] - true[:, 0]).max().round(5), "A")
