import numpy as np
import pytest

from cameraready.methods.mes_ret import TaskSpec, minimize_many


def square(x):
    return float(((x - 0.2) ** 2).sum())


def test_a_list_of_functions_is_minimised_and_reads_as_a_table():
    found = minimize_many(
        [square, lambda x: square(x) + 3], [([-1, -1], [1, 1]), TaskSpec("second", [0.0], [1.0])], 3000
    )
    assert [r.f_best for r in found] == pytest.approx([0.0, 3.0], abs=1e-8)
    assert "second" in str(found)
    assert "max_evals" in str(found)


def test_a_function_that_sometimes_raises_goes_on_and_one_that_always_does_is_suspended():
    calls = [0]

    def sometimes(x):
        calls[0] += 1
        if calls[0] % 5 == 0:
            raise ArithmeticError("diverged")
        return square(x)

    def never(x):
        raise OSError("no licence")

    found = minimize_many([sometimes, never], [([0, 0], [1, 1])] * 2, 1500)
    assert found[0].f_best < 1e-6
    assert found[0].stop == "max_evals"
    assert found[1].stop == "suspended: OSError: no licence"
    assert found[1].f_best == np.inf


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="2 functions and 1 bounds"):
        minimize_many([square, square], [(0, 1)], 100)
    with pytest.raises(ValueError, match="workers=0"):
        minimize_many([square], [(0, 1)], 100, workers=0)
    with pytest.raises(ValueError, match="cannot be called"):
        minimize_many([3], [(0, 1)], 100)
    with pytest.raises(ValueError, match="holds 3 things"):
        minimize_many([square], [(0, 1, 2)], 100)


@pytest.mark.slow
def test_ray_workers_give_the_same_answer():
    pytest.importorskip("ray")

    def here(x):  # pickled by value: the workers cannot import this file
        return float(((x - 0.2) ** 2).sum())

    runs = [minimize_many([here, here], [([0, 0], [1, 1])] * 2, 400, workers=w, seed=1) for w in (None, 2)]
    assert [r.f_best for r in runs[0]] == [r.f_best for r in runs[1]]
