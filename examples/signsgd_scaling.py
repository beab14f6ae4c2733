"""A table and a CSV of training logs: which optimiser, which model size, and what ten times the compute would give."""

import io

import numpy as np
import pandas as pd

from cameraready.methods.signsgd_scaling import PLRF, WSD, ScalingLaw, fit_runs, recommend

# A table of features and a target; bring your own by cameraready.data.open("my.csv", kind="table").
rng = np.random.default_rng(0)
j = np.arange(1, 121)
X = rng.normal(size=(4000, 120)) * j**-0.7
y = X @ j**-0.4 + 0.05 * rng.normal(size=4000)

advice = recommend(X, y, flops=1e4)
print(advice)

# The exponents of both optimisers there, and a check of the formula by simulation.
alpha, beta = advice.decay.alpha, advice.decay.beta
for name in ("sgd", "signsgd"):
    law = ScalingLaw(alpha, beta, name)
    print(f"{name}: risk ~ compute^-{law.slope:.3f}, size ~ compute^{law.size_exponent:.3f} ({law.phase})")
model = PLRF(alpha, beta, d=100)
print(model.coverage("signsgd"))
for schedule in ("constant", WSD(decay=0.2)):
    simulated = model.simulate("signsgd", lr=2e-3, steps=2000, schedule=schedule, seeds=4).iloc[-1]
    predicted = model.predict_risk("signsgd", lr=2e-3, steps=2000, schedule=schedule).iloc[-1]
    print(
        f"{schedule}: simulated {simulated.risk_mean:.4f} +- {simulated.risk_se:.4f}, predicted "
        f"{predicted.risk_mean:.4f}"
    )

# Measured losses as a CSV with the columns N, d, lr, loss: here of six models of each size, averaged.
steps, rows = [100, 200, 400, 800, 1600], ["N,d,lr,loss"]
for d in (16, 24, 32, 48, 64, 96):
    for lr in (0.002, 0.004, 0.008, 0.016):
        models = [PLRF(0.7, 0.4, d, seed=seed) for seed in range(6)]
        curves = [m.simulate("signsgd", lr=lr, steps=1600, record=steps, seeds=2)["risk_mean"] for m in models]
        rows += [f"{N},{d},{lr},{loss}" for N, loss in zip(steps, np.mean(curves, axis=0), strict=True)]
fit = fit_runs(pd.read_csv(io.StringIO("\n".join(rows))), optimizer="signsgd", intervals=False)
print(fit)
print(fit.compute_optimal(1e6) if fit.coverage else fit.coverage)
