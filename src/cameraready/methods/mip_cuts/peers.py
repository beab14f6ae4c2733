"""HiGHS, another solver, as a contestant."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any


def solve_by_highs(
    path: str, *, time_limit: float | None, seed: int | None, on_read: Callable[[], None]
) -> dict[str, Any]:
    """HiGHS's defaults on one thread; ``on_read`` is called when the model is read."""
    import highspy

    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)  # SCIP's default; HiGHS's own is 1e-4
    if seed is not None:
        solver.setOptionValue("random_seed", seed)
    if time_limit is not None:
        solver.setOptionValue("time_limit", float(time_limit))
    if solver.readModel(path) == highspy.HighsStatus.kError:
        raise ValueError(f"HiGHS cannot read {path}; write it as .mps or .lp")
    on_read()
    start = time.process_time()
    solver.run()
    seconds = time.process_time() - start
    info, status = solver.getInfo(), solver.getModelStatus()
    names = {"kOptimal": "optimal", "kInfeasible": "infeasible", "kUnbounded": "unbounded", "kTimeLimit": "timelimit"}
    primal, dual = info.objective_function_value, info.mip_dual_bound
    solved = info.primal_solution_status == 2
    return {
        "status": names.get(status.name, solver.modelStatusToString(status).lower()),
        "objective": primal if solved else math.nan,
        "dual": dual,
        "nodes": max(0, int(info.mip_node_count)),
        "lp_iterations": max(0, int(info.simplex_iteration_count)),
        "seconds": seconds,
    }
