"""Rules take the rows that they are told to take, and say what is missing in them or wrong with them."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from cameraready.evidence import at_most, difference, rank, ratio, slope, trend

OURS, PEER = "QKMeans", "k-means++ (scikit-learn)"


def table_of(rows, factors=()):
    table = pd.DataFrame(rows)
    table.attrs["factors"] = list(factors)
    return table


def grid(value, *, seeds=range(4), methods=(OURS, PEER), **factors):
    """A table over the cross product of the factors; ``value(seed, method, **cell)`` is the metric "seconds"."""
    rows = []
    for seed, method, *cell in product(seeds, methods, *factors.values()):
        named = dict(zip(factors, cell, strict=True))
        rows.append({"seed": seed, "method": method, **named, "seconds": value(seed, method, **named)})
    return table_of(rows, factors)


def without(table, **columns):
    """The table without the rows that have these values."""
    dropped = np.logical_and.reduce([table[name] == value for name, value in columns.items()])
    return table[~dropped]


# Choosing rows


def test_where_picks_the_largest_the_smallest_or_named_values():
    table = grid(lambda seed, method, k: float(k), k=[2, 4, 8])
    assert at_most("seconds", OURS, 9, where={"k": "max"})(table).effect == 8
    assert at_most("seconds", OURS, 9, where={"k": "min"})(table).effect == 2
    assert at_most("seconds", OURS, 9, where={"k": 4})(table).effect == 4
    assert at_most("seconds", OURS, 9, where={"k": [2, 8]})(table).effect == 5


def test_max_names_a_value_in_a_column_of_text():
    table = grid(lambda seed, method, pooling: {"max": 1.0, "mean": 2.0}[pooling], pooling=["max", "mean"])
    assert at_most("seconds", OURS, 9, where={"pooling": "max"})(table).effect == 1


def test_none_is_a_value_of_a_factor():
    table = grid(lambda seed, method, mixup: 1.0 if mixup is None else 2.0, mixup=[None, "ppr"])
    assert at_most("seconds", OURS, 9, where={"mixup": None})(table).effect == 1
    assert len(at_most("seconds", OURS, 9, each="mixup")(table).parts) == 2


def test_each_needs_every_value_and_shows_the_one_that_decides():
    table = grid(lambda seed, method, k: (k if method == OURS else 4.0) * (1 + 0.01 * seed), k=[1, 2, 9])
    finding = ratio("seconds", OURS, to=PEER, at_most=1, each="k")(table)
    assert (finding.verdict, finding.kind, finding.effect) == ("not supported", "all", pytest.approx(9 / 4))
    assert [part.verdict for part in finding.parts] == ["supported", "supported", "not supported"]
    assert "k = 9" in finding.parts[2].label
    assert "k = 9" in finding.sentence


def test_max_is_taken_inside_each_value():
    rows = [
        {"seed": seed, "dataset": dataset, "method": OURS, "n": n, "seconds": float(n)}
        for seed, (dataset, sizes) in product(range(3), {"small": [1, 2], "large": [10, 20]}.items())
        for n in sizes
    ]
    finding = at_most("seconds", OURS, 99, where={"n": "max"}, each="dataset")(table_of(rows, ["dataset"]))
    assert [part.effect for part in finding.parts] == [2, 20]


def test_rows_about_something_else_are_not_part_of_a_metric():
    rows = []
    for seed in range(3):
        rows.append({"seed": seed, "method": OURS, "seconds": 2.0})
        rows.append({"seed": seed, "method": OURS, "cost": 5.0 + seed, "n": 1})
    assert at_most("seconds", OURS, 3)(table_of(rows)).effect == 2
    assert at_most("cost", OURS, 9)(table_of(rows)).effect == 6


def test_several_rows_of_a_method_are_averaged():
    rows = [{"seed": seed, "method": OURS, "seconds": float(value)} for seed in range(3) for value in (1, 3)]
    finding = at_most("seconds", OURS, 3)(table_of(rows))
    assert (finding.effect, finding.n) == (2, 3)


# What is missing or wrong is said


def test_a_missing_cell_is_named_and_leaves_the_finding_inconclusive():
    table = grid(lambda seed, method, k: (1.0 if method == OURS else 4.0) * (1 + 0.01 * seed), k=[64, 512])
    finding = ratio("seconds", OURS, to=PEER, at_most=0.5)(without(table, method=PEER, seed=2, k=512))
    assert (finding.verdict, finding.n, finding.effect) == ("inconclusive", 3, pytest.approx(0.25))
    assert f"{PEER} has no seconds at seed 2, k = 512" in finding.sentence


def test_a_cell_that_both_methods_miss_in_one_seed_is_named():
    table = grid(lambda seed, method, k: 1.0, k=[64, 512])
    finding = ratio("seconds", OURS, to=PEER, at_most=2)(without(table, seed=1, k=64))
    assert finding.verdict == "inconclusive"
    assert "seed 1, k = 64 (" not in finding.sentence
    assert "seed 1, k = 64" in finding.sentence


@pytest.mark.parametrize("options", [{"where": {"k": "max"}}, {"each": "k"}])
def test_a_seed_of_which_no_row_is_left_is_missed(options):
    table = without(grid(lambda seed, method, k: 1.0, k=[64, 512]), seed=1, k=512)
    finding = ratio("seconds", OURS, to=PEER, at_most=2, **options)(table)
    assert finding.verdict == "inconclusive"
    assert f"{OURS} has no seconds at seed 1" in finding.sentence
    assert table.attrs == {"factors": ["k"]}


def test_seeds_can_be_chosen():
    table = grid(lambda seed, method: 1.0)
    assert at_most("seconds", OURS, 2, where={"seed": [0, 1, 3]})(table).n == 3


def test_a_cell_that_one_method_always_misses_leaves_no_effect():
    table = grid(lambda seed, method, k: 1.0, k=[64, 512])
    finding = ratio("seconds", OURS, to=PEER, at_most=2)(without(table, method=PEER, k=512))
    assert (finding.verdict, finding.n) == ("inconclusive", 0)
    assert math.isnan(finding.effect)
    assert "(and 3 more gaps)" in finding.sentence


def test_unequal_numbers_of_rows_are_not_averaged_against_each_other():
    rows = [{"seed": seed, "method": OURS, "n": n, "seconds": float(n)} for seed in range(3) for n in (1, 100)]
    rows += [{"seed": seed, "method": PEER, "n": 1, "seconds": 2.0} for seed in range(3)]
    finding = ratio("seconds", OURS, to=PEER, at_most=100)(table_of(rows))
    assert finding.verdict == "inconclusive"
    assert f"{OURS} has 2 rows with seconds but {PEER} has 1" in finding.sentence


def test_a_missing_level_of_a_slope_or_trend_is_named():
    table = without(grid(lambda seed, method, n: float(n + seed), n=[1, 2, 3]), method=OURS, seed=0, n=3)
    for rule in (
        slope("seconds", OURS, x="n", at_least=0),
        trend("seconds", OURS, over="n", direction="increasing"),
    ):
        finding = rule(table)
        assert (finding.verdict, finding.n) == ("inconclusive", 3)
        assert "n = 3" in finding.sentence


def test_a_method_that_misses_a_data_set_makes_ranks_inconclusive():
    table = grid(lambda seed, method, d: len(method), seeds=range(8), methods=["a", "bb", "ccc"], d=["x", "y"])
    finding = rank("seconds", "a", at_most=2)(without(table, method="ccc", d="y"))
    assert finding.verdict == "inconclusive"
    assert "ccc has no seconds" in finding.sentence


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (ratio("secs", OURS, to=PEER, at_most=1), "no column 'secs'.*'seconds'"),
        (ratio("seconds", "QKMean", to=PEER, at_most=1), "no row of method 'QKMean'.*'QKMeans'"),
        (ratio("seconds", OURS, to="k-means", at_most=1), "no row of method 'k-means'"),
        (at_most("seconds", OURS, 1, where={"k": 3}), "no row has k = 3; there is 1, 2"),
        (at_most("seconds", OURS, 1, where={"size": 3}), "no column 'size'"),
        (at_most("seconds", OURS, 1, each="size"), "no column 'size'"),
        (at_most("method", OURS, 1), "column 'method' is not numeric"),
        (slope("seconds", OURS, x="k", at_most=1, where={"k": 1}), "1 value of k; .*need"),
        (slope("seconds", OURS, x="method", at_most=1), "is not a number"),
        (trend("seconds", OURS, over="k", direction="increasing", where={"k": 1}), "1 value of k"),
        (rank("seconds", "Nobody", at_most=1), "no row of method 'Nobody'"),
    ],
)
def test_a_rule_that_does_not_fit_the_table_says_what_there_is(rule, message):
    with pytest.raises(ValueError, match=message):
        rule(grid(lambda seed, method, k: 1.0, k=[1, 2]))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_values_that_have_no_logarithm_are_named(value):
    table = grid(lambda seed, method, n: value if (seed, method, n) == (2, OURS, 4) else 1.0, n=[1, 4])
    row = table.index[(table["seed"] == 2) & (table["method"] == OURS) & (table["n"] == 4)][0]
    for rule in (ratio("seconds", OURS, to=PEER, at_most=1), slope("seconds", OURS, x="n", at_most=1)):
        with pytest.raises(ValueError, match=rf"seconds = {value:g} in row {row} \({OURS}, seed 2.*positive"):
            rule(table)
    assert difference("seconds", OURS, to=PEER, at_most=1)(table).n == 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_named(value):
    table = grid(lambda seed, method, k: value if (seed, method, k) == (1, PEER, 8) else 1.0, k=[4, 8])
    for rule in (difference("seconds", OURS, to=PEER, at_most=1), rank("seconds", OURS, at_most=2)):
        with pytest.raises(ValueError, match=rf"seconds = {value} in row .*seed 1, k = 8.*finite"):
            rule(table)


def test_a_metric_that_is_nan_everywhere_is_an_error():
    with pytest.raises(ValueError, match="all are NaN"):
        at_most("seconds", OURS, 1)(grid(lambda seed, method: math.nan if method == OURS else 1.0))


def test_a_table_that_does_not_name_its_factors_is_refused():
    with pytest.raises(ValueError, match="factors"):
        at_most("seconds", OURS, 1)(pd.DataFrame({"seed": [0, 1], "method": OURS, "seconds": 1.0}))
