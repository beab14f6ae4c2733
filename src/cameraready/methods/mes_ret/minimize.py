"""From a list of functions to their minima: the loop around `ManyTaskES`, here or on a Ray pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cameraready.methods.mes_ret.inputs import check_whole
from cameraready.methods.mes_ret.strategy import ManyTaskES
from cameraready.methods.mes_ret.tasks import Batch, Results, TaskSpec

PATIENCE = 3  # points in a row that a function may raise on before its task is suspended
Function = Callable[[np.ndarray], float]
Answer = tuple[np.ndarray, list[str]]  # values, and what was raised where a value is missing ("" elsewhere)


def minimize_many(
    functions: Sequence[Function],
    bounds: Sequence[TaskSpec] | Sequence[tuple[ArrayLike, ArrayLike]],
    max_evals: int,
    *,
    workers: int | None = None,
    **settings: Any,
) -> Results:
    """Minimise many functions under one budget.

    Parameters
    ----------
    functions : each takes one point of shape (n,) and returns a number.
    bounds : a `TaskSpec` or a pair (lower, upper) for each.
    max_evals : evaluations of all functions together.
    workers : number of Ray processes that evaluate; None evaluates here.
    **settings : of `ManyTaskES`.

    Returns
    -------
    Results : one `TaskResult` a function. A point on which a function raises counts as infinite; after three such
        points in a row the task is suspended, and its ``stop`` holds what was raised.

    Raises
    ------
    ValueError : another number of bounds than of functions; whatever `ManyTaskES` refuses.
    ImportError : ``workers`` without Ray.

    Examples
    --------
    >>> print([round(r.f_best, 6) for r in minimize_many([abs, lambda x: (x[0] - 2) ** 2], [(-1, 1), (0, 5)], 400)])
    [0.0, 0.0]
    """
    if len(functions) != len(bounds):
        raise ValueError(f"{len(functions)} functions and {len(bounds)} bounds; pass one pair of bounds a function")
    for i, (function, pair) in enumerate(zip(functions, bounds, strict=True)):
        if not callable(function):
            raise ValueError(f"functions[{i}]={function!r} cannot be called; pass a function of one point")
        if not isinstance(pair, TaskSpec) and len(pair) != 2:
            raise ValueError(f"bounds[{i}] holds {len(pair)} things; pass (lower, upper) or a TaskSpec")
    specs = [b if isinstance(b, TaskSpec) else TaskSpec(f"task {i}", *b) for i, b in enumerate(bounds)]
    es = ManyTaskES(specs, max_evals=max_evals, **settings)
    failures = [0] * len(specs)
    with _Pool(functions, workers) as pool:
        while not es.stop():
            for batch, (values, errors) in pool.evaluate(es.ask()):
                for error in errors:
                    failures[batch.index] = failures[batch.index] + 1 if error else 0
                    if failures[batch.index] == PATIENCE:
                        es.suspend(batch.index, error)
                        break
                else:
                    es.tell([(batch.index, batch.X, values)])
    return es.result


def evaluate(function: Function, X: np.ndarray) -> Answer:
    """Values of the rows of ``X``; infinite, with the error's text, where the function raises."""
    values, errors = np.full(len(X), np.inf), [""] * len(X)
    for i, x in enumerate(X):
        try:
            values[i] = np.asarray(function(x), float).reshape(())
        except Exception as error:  # the user's function: one bad point must not end the other tasks
            errors[i] = f"{type(error).__name__}: {error}"
    return values, errors


class _Pool:
    """Evaluates batches: in this process, or on Ray actors that hold the functions."""

    def __init__(self, functions: Sequence[Function], workers: int | None) -> None:
        self.functions, self.workers, self.started = functions, workers, False
        if workers is not None:
            check_whole("workers", workers, least=1)

    def __enter__(self) -> _Pool:
        if self.workers is None:
            return self
        try:
            import ray
            from ray.util import ActorPool
        except ImportError as error:
            raise ImportError("workers needs Ray: pip install 'cameraready[cluster]'") from error
        if not ray.is_initialized():
            ray.init(num_cpus=self.workers, include_dashboard=False, log_to_driver=False)
            self.started = True
        self.actors = [ray.remote(_Worker).remote(list(self.functions)) for _ in range(self.workers)]
        self.pool = ActorPool(self.actors)
        return self

    def __exit__(self, *_: object) -> None:
        if self.workers is not None:
            import ray

            for actor in self.actors:
                ray.kill(actor)
            if self.started:
                ray.shutdown()

    def evaluate(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Answer]]:
        if self.workers is None:
            return ((batch, evaluate(self.functions[batch.index], batch.X)) for batch in batches)
        answers = self.pool.map(lambda actor, batch: actor.evaluate.remote(batch.index, batch.X), batches)
        return iter(list(zip(batches, answers, strict=True)))


class _Worker:
    def __init__(self, functions: list[Function]) -> None:
        self.functions = functions

    def evaluate(self, index: int, X: np.ndarray) -> Answer:
        return evaluate(self.functions[index], X)
