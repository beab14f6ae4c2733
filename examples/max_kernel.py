"""Where to put four sensors next: a CSV of past layouts, and a model that knows the sensors are identical."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

from cameraready.methods.max_kernel import BlockPermutations, MaxKernelGP, invariance_defect

# A log as a user would have it: positions in metres in a hall of 40 m x 25 m, and the mean error of localisation.
log = Path(tempfile.mkdtemp()) / "sensor_layouts.csv"
rng = np.random.default_rng(0)
layouts = rng.uniform(0, [40, 25], size=(30, 4, 2))
targets = rng.uniform(0, [40, 25], size=(200, 2))
error = np.linalg.norm(targets[:, None] - layouts[:, None], axis=-1).min(-1).mean(-1)
columns = [f"{axis}_{sensor}" for sensor in range(1, 5) for axis in "xy"]
pd.DataFrame(layouts.reshape(30, 8), columns=columns).assign(error_m=error).to_csv(log, index=False)

table = pd.read_csv(log)
X = torch.tensor(table[columns].to_numpy())
y = -torch.tensor(table[["error_m"]].to_numpy())  # BoTorch maximises
bounds = torch.tensor([[0.0, 0.0] * 4, [40.0, 25.0] * 4], dtype=torch.float64)

sensors = BlockPermutations(4, 2)
gp = MaxKernelGP(X, y, group=sensors, input_transform=Normalize(8, bounds=bounds), outcome_transform=Standardize(1))
fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
candidate, _ = optimize_acqf(LogExpectedImprovement(gp, y.max()), bounds, q=1, num_restarts=4, raw_samples=128)

print(f"best layout so far: mean error {-y.max():.2f} m")
print(f"try next: {[tuple(round(v, 1) for v in pair) for pair in candidate.view(4, 2).tolist()]}")
print(f"prediction there: {-gp.posterior(candidate).mean.item():.2f} m")
print(f"relabelling the sensors changes predictions by at most {invariance_defect(gp, sensors, X):.1e} m")
