"""Which minima await a student of your teacher, and does one more neuron help?  relu_landscape.py [teacher.npy]"""

import sys

import numpy as np

from cameraready.methods.relu_landscape import Landscape, sgd_ode

if len(sys.argv) > 1:
    V = np.load(sys.argv[1])  # your own (M, d) teacher weights
else:
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 9)))[0].T * np.linspace(0.9, 1.1, 9)[:, None]

land = Landscape(V, K=len(V))
table = land.find_minima(n_starts=60, seed=0)
print(table[["loss", "count", "family", "lambda_min", "status"]].to_string())

wider = Landscape(V, K=len(V) + 1).find_minima(n_starts=60, seed=0)
for name, found in (("K = M", table), ("K = M + 1", wider)):
    low, high = found.spurious_interval()
    print(f"{name}: {found.spurious_fraction():.0%} of the starts end in a spurious minimum ({low:.0%} to {high:.0%})")

path = sgd_ode(*land.random_stats(seed=1), eta=0.2, t_max=200)
end = land.classify(path.Q[-1], path.R[-1])
print(f"SGD with learning rate 0.2 / d: loss {path.loss[0]:.3f} -> {path.loss[-1]:.4f} after 200 d steps; {end.layout}")
