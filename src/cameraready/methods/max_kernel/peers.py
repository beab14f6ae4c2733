"""CMA-ES (pycma) as a contestant of `bo_loop`: the same box, initial designs and budget."""

from __future__ import annotations

import cma
import numpy as np
import torch
from botorch.utils.sampling import draw_sobol_samples

from cameraready.methods.max_kernel.loop import BOTrace, make_trace
from cameraready.methods.max_kernel.problems import Problem


def cma_es(problem: Problem, *, n_init: int, n_iter: int, seed: int) -> BOTrace:
    """Minimise ``-f`` by CMA-ES with its default population, from the best of the shared initial designs.

    The step size is 0.3 of the box, as pycma advises; steps outside the box are reflected into it (``BoundTransform``).
    """
    low, high = problem.bounds
    cube = torch.stack([torch.zeros_like(low), torch.ones_like(low)])
    Z = draw_sobol_samples(cube, n_init, 1, seed=seed).squeeze(1)
    values = problem(low + (high - low) * Z)
    options = {"bounds": [0.0, 1.0], "seed": seed + 1, "verbose": -9}
    strategy = cma.CMAEvolutionStrategy(Z[values.argmax()].numpy(), 0.3, options)
    while len(Z) < n_init + n_iter:
        asked = strategy.ask()
        new = torch.as_tensor(np.array(asked))
        new_values = problem(low + (high - low) * new)
        strategy.tell(asked, (-new_values).tolist())
        Z, values = torch.cat([Z, new]), torch.cat([values, new_values])
    Z, values = Z[: n_init + n_iter], values[: n_init + n_iter]
    return make_trace(
        low + (high - low) * Z, values, values, n_init=n_init, optimum=problem.optimum, fit_s=[], acq_s=[]
    )
