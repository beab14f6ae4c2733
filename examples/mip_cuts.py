"""A set-covering model from a file, with the learned cut selector and by SCIP's default, in a fresh process each."""

import tempfile
from pathlib import Path

import pyscipopt

from cameraready.methods.mip_cuts import Budget, attach, setcover, solve

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "roster.mps"  # any .mps, .lp or .cip file
    setcover(150, 300, density=0.05, seed=1).writeProblem(str(path), verbose=False)

    model = pyscipopt.Model()
    model.hideOutput()
    model.readProblem(str(path))
    selector = attach(model, policy="setcover", budget=Budget(memory_mb=64, seconds=30))
    model.optimize()
    print(f"cost {model.getObjVal():g}, gap {model.getGap():.1%}\n{selector.report()}\n")

    for name in ("default", "gate", "rl"):
        print(solve(path, selector=name, time_limit=20), "\n")
