"""What each rule estimates and decides, and how it says so, on small tables with a known answer."""

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pandas as pd
import pytest

from cameraready.evidence import agree, all_of, at_least, at_most, difference, rank, ratio, slope, trend
from cameraready.evidence.rules import Threshold
from cameraready.evidence.wording import number

OURS, PEER = "QKMeans", "k-means++ (scikit-learn)"


def table_of(rows, factors=()):
    table = pd.DataFrame(rows)
    table.attrs["factors"] = list(factors)
    return table


def paired(ours, peer, metric="seconds"):
    """A table with one cell: the value of each method in each seed."""
    return table_of(
        {"seed": seed, "method": name, metric: values[seed]}
        for name, values in ((OURS, ours), (PEER, peer))
        for seed in range(len(values))
    )


def grid(value, *, seeds=range(4), methods=(OURS, PEER), **factors):
    """A table over the cross product of the factors; ``value(seed, method, **cell)`` is the metric "seconds"."""
    rows = []
    for seed, method, *cell in product(seeds, methods, *factors.values()):
        named = dict(zip(factors, cell, strict=True))
        rows.append({"seed": seed, "method": method, **named, "seconds": value(seed, method, **named)})
    return table_of(rows, factors)


# What each rule estimates


def test_ratio_is_the_geometric_mean_of_paired_ratios():
    finding = ratio("seconds", OURS, to=PEER, at_most=2)(paired([1, 8], [2, 4]))
    assert finding.effect == pytest.approx(1.0)
    assert (finding.n, finding.kind) == (2, "ratio")


def test_ratio_averages_the_cells_inside_a_seed():
    table = grid(lambda seed, method, k: {OURS: 1.0, PEER: k}[method] * (1 + seed), k=[2, 8])
    finding = ratio("seconds", OURS, to=PEER, at_most=1)(table)
    assert finding.effect == pytest.approx(1 / 4)
    assert finding.n == 4


def test_difference_is_paired_by_seed():
    finding = difference("seconds", OURS, to=PEER, at_least=0.5)(paired([101, 202, 303.3], [100, 201, 302]))
    assert finding.effect == pytest.approx(1.1)
    assert finding.high - finding.low < 1  # the spread of the seeds is gone
    assert finding.verdict == "supported"


def test_at_most_and_at_least_compare_the_mean():
    table = paired([1.0, 2.0, 3.0], [9.0, 9.0, 9.0])
    assert at_most("seconds", OURS, 5)(table).verdict == "supported"
    assert at_least("seconds", OURS, 5)(table).verdict == "not supported"
    assert at_most("seconds", OURS, 2.1)(table).verdict == "inconclusive"


def test_agree_needs_the_whole_interval_inside_the_margin():
    table = paired([10.0, 10.1, 9.9, 10.0], [10.0, 10.0, 10.0, 10.0])
    assert agree("seconds", OURS, to=PEER, within=0.5)(table).verdict == "supported"
    assert agree("seconds", OURS, to=PEER, within=0.05)(table).verdict == "inconclusive"
    assert agree("seconds", OURS, to=PEER, within=0.05, relative=True)(table).verdict == "supported"
    assert agree("seconds", OURS, to=PEER, within=0.5)(paired([12, 12.1, 12], [10, 10, 10])).verdict == "not supported"


def test_slope_is_the_exponent_of_a_power_law():
    table = grid(lambda seed, method, n: (1 + seed) * n**1.5, n=[10, 100, 1000])
    finding = slope("seconds", OURS, x="n", between=(1.4, 1.6))(table)
    assert finding.effect == pytest.approx(1.5)
    assert finding.verdict == "supported"
    assert slope("seconds", OURS, x="n", at_most=1.2)(table).verdict == "not supported"


@pytest.mark.parametrize(
    ("log", "value"), [("", lambda x: 3 * x), ("x", lambda x: 3 * math.log(x)), ("y", lambda x: math.exp(3 * x))]
)
def test_slope_takes_logarithms_of_the_axes_it_is_told(log, value):
    table = grid(lambda seed, method, x: value(x), x=[0.5, 1.0, 2.0, 4.0])
    assert slope("seconds", OURS, x="x", log=log, at_least=1)(table).effect == pytest.approx(3)


def test_slope_runs_along_a_recorded_column_inside_each_cell():
    rows = [
        {"seed": seed, "dataset": dataset, "method": OURS, "step": step, "loss": offset * step**-0.5}
        for seed, (dataset, offset), step in product(range(3), {"a": 1.0, "b": 7.0}.items(), [1, 4, 16])
    ]
    finding = slope("loss", OURS, x="step", at_most=-0.4)(table_of(rows, ["dataset"]))
    assert (finding.effect, finding.n) == (pytest.approx(-0.5), 3)


def test_trend_finds_an_order_and_its_direction():
    rng = np.random.default_rng(0)
    table = grid(lambda seed, method, rho: rho + 0.1 * rng.normal(), rho=[0.1, 0.3, 0.5, 0.9])
    up = trend("seconds", OURS, over="rho", direction="increasing")(table)
    assert (up.verdict, up.kind) == ("supported", "trend")
    assert up.effect > 0.8
    assert trend("seconds", OURS, over="rho", direction="decreasing")(table).verdict == "not supported"


def test_trend_of_a_constant_decides_nothing():
    table = grid(lambda seed, method, rho: 1.0, rho=[1, 2, 3, 4])
    finding = trend("seconds", OURS, over="rho", direction="increasing")(table)
    assert (finding.effect, finding.verdict) == (0.0, "inconclusive")


def test_trend_says_when_no_order_could_be_shown():
    table = grid(lambda seed, method, rho: rho, seeds=range(3), rho=[1, 2])
    finding = trend("seconds", OURS, over="rho", direction="increasing")(table)
    assert finding.verdict == "inconclusive"
    assert "too few to show any order" in finding.sentence


def test_rank_counts_ties_in_the_middle_and_knows_which_end_is_best():
    values = {"a": 1.0, "b": 2.0, "c": 2.0}
    table = grid(lambda seed, method: values[method], seeds=range(8), methods=list(values))
    assert rank("seconds", "a", at_most=1.5)(table).effect == 1
    assert rank("seconds", "b", at_most=1.5)(table).effect == 2.5
    assert rank("seconds", "b", at_most=1.5, best="max")(table).effect == 1.5
    assert rank("seconds", "a", at_most=1.5)(table).verdict == "supported"


def test_first_of_two_in_five_seeds_is_not_yet_evidence():
    assert rank("seconds", OURS, at_most=1.5)(paired([1] * 5, [2] * 5)).verdict == "inconclusive"
    assert rank("seconds", OURS, at_most=1.5)(paired([1] * 6, [2] * 6)).verdict == "supported"


# all_of


def test_all_of_is_supported_only_if_every_rule_is():
    table = paired([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
    yes, no, open_ = (at_most("seconds", OURS, bound) for bound in (5, 0.1, 1.01))
    assert all_of(yes, yes)(table).verdict == "supported"
    assert all_of(yes, open_)(table).verdict == "inconclusive"
    assert all_of(yes, open_, no)(table).verdict == "not supported"
    assert all_of(yes)(table) == yes(table)


def test_all_of_keeps_nested_parts_and_decides_by_the_innermost():
    table = grid(lambda seed, method, k: k * (1 + 0.01 * seed), k=[1, 2])
    finding = all_of(at_most("seconds", OURS, 5), at_most("seconds", OURS, 1.5, each="k"))(table)
    assert finding.verdict == "not supported"
    assert [len(part.parts) for part in finding.parts] == [0, 2]
    assert finding.sentence.startswith("1 of 3 conditions is not supported. At k = 2: ")


# Verdicts


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.95, 1.05, "supported"),
        (0.9, 1.1, "supported"),
        (0.8, 1.0, "inconclusive"),
        (0.8, 1.2, "inconclusive"),
        (0.5, 0.8, "not supported"),
        (1.2, 1.3, "not supported"),
        (math.nan, math.nan, "inconclusive"),
    ],
)
def test_a_two_sided_threshold_needs_the_interval_between_its_bounds(low, high, verdict):
    assert Threshold(at_least=0.9, at_most=1.1).verdict(low, high) == verdict


def test_one_seed_decides_nothing_and_says_so():
    finding = ratio("seconds", OURS, to=PEER, at_most=0.5)(paired([1.0], [100.0]))
    assert (finding.verdict, finding.n, finding.effect) == ("inconclusive", 1, pytest.approx(0.01))
    assert math.isnan(finding.low)
    assert math.isnan(finding.high)
    assert "One seed cannot give an interval" in finding.sentence


@pytest.mark.filterwarnings("error")
def test_two_seeds_that_disagree_wildly_leave_the_ratio_open():
    finding = ratio("seconds", OURS, to=PEER, at_most=2)(paired([1e-150, 1e150], [1.0, 1.0]))
    assert (finding.low, finding.high, finding.verdict) == (0.0, math.inf, "inconclusive")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [2, 3, 10])
def test_constant_data_are_exact_even_on_the_threshold(n):
    table = paired([0.21] * n, [0.2] * n)
    for rule in (
        ratio("seconds", OURS, to=PEER, at_most=1.05),
        ratio("seconds", OURS, to=PEER, at_least=1.05),
        at_most("seconds", OURS, 0.21),
        at_least("seconds", OURS, 0.21),
        difference("seconds", OURS, to=PEER, at_most=0.01),
        agree("seconds", OURS, to=PEER, within=0.01),
    ):
        finding = rule(table)
        assert finding.low == finding.high
        assert finding.verdict == "supported"
        assert f"the same in all {n} seeds" in finding.sentence
    assert ratio("seconds", OURS, to=PEER, at_most=1.0499)(table).verdict == "not supported"


def test_two_seeds_that_differ_but_give_the_same_effect_do_not_make_it_known():
    rule = difference("seconds", OURS, to=PEER, at_least=0)
    assert rule(paired([0.75, 0.5], [0.5, 0.25])).verdict == "inconclusive"
    assert rule(paired([0.75, 0.5, 1.0], [0.5, 0.25, 0.75])).verdict == "supported"
    assert rule(paired([0.75, 0.75], [0.5, 0.5])).verdict == "supported"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: ratio("seconds", OURS, to=PEER), "no threshold"),
        (lambda: ratio("seconds", OURS, to=PEER, at_most=0), "positive"),
        (lambda: ratio("seconds", OURS, to=OURS, at_most=1), "compared with itself"),
        (lambda: difference("seconds", OURS, to=PEER, at_most=1, between=(0, 1)), "stands alone"),
        (lambda: difference("seconds", OURS, to=PEER, between=(1, 0)), "swap"),
        (lambda: difference("seconds", OURS, to=PEER, at_most=math.nan), "finite"),
        (lambda: agree("seconds", OURS, to=PEER, within=0), "within=0"),
        (lambda: agree("seconds", OURS, to=PEER, within=2, relative=True), "between 0 and 1"),
        (lambda: slope("seconds", OURS, x="n", at_most=1, log="z"), "log='z'"),
        (lambda: trend("seconds", OURS, over="n", direction="up"), "direction='up'"),
        (lambda: rank("seconds", OURS, at_most=1, best="low"), "best='low'"),
        (lambda: all_of(), "no rule"),
    ],
)
def test_a_rule_that_makes_no_sense_cannot_be_declared(declare, message):
    with pytest.raises(ValueError, match=message):
        declare()


# Words


def test_the_sentence_tells_a_stranger_what_was_found():
    values = [0.11, 0.12, 0.13]
    assert ratio("seconds", OURS, to=PEER, at_most=0.5)(paired(values, [1.0] * 3)).sentence == (
        "QKMeans took 0.120 times the seconds of k-means++ (scikit-learn) (95 % interval 0.0973 to 0.147, 3 seeds); "
        "the claim needs at most 0.5."
    )


def test_rounding_never_moves_a_number_to_the_other_side_of_the_bound():
    finding = at_most("seconds", OURS, 1.05)(paired([1.05001, 1.05002, 1.050015], [1.0] * 3))
    assert finding.verdict == "not supported"
    assert "was 1.05002 (95 % interval 1.05000 to 1.05003" not in finding.sentence
    assert "1.05 " not in finding.sentence.split(";")[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.1234, "0.123"),
        (0.5, "0.500"),
        (99.96, "100"),
        (12345.6, "12300"),
        (-0.000456, "-0.000456"),
        (1e-12, "1e-12"),
        (2.5e9, "2.5e+09"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_written_out_where_that_is_readable(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            ratio("seconds", OURS, to=PEER, at_most=0.5, where={"k": "max"}),
            "seconds of QKMeans at most 0.5 times that of k-means++ (scikit-learn), at the largest k",
        ),
        (at_least("score", OURS, 0.9, each="dataset"), "score of QKMeans at least 0.9, for each dataset"),
        (trend("loss", OURS, over="rho", direction="decreasing"), "loss of QKMeans decreasing with rho"),
        (slope("seconds", OURS, x="n", between=(0.9, 1.1)), "slope of log seconds over log n of QKMeans between"),
        (rank("loss", OURS, at_most=1.5), "mean rank of QKMeans by loss (lowest first) at most 1.5"),
        (all_of(at_most("a", OURS, 1), at_most("b", OURS, 2)), "a of QKMeans at most 1; and b of QKMeans at most 2"),
    ],
)
def test_a_rule_describes_itself_before_anything_is_run(rule, words):
    assert words in rule.describe()


def test_declaring_rules_imports_no_array_library():
    code = "import cameraready.evidence, sys; print([m for m in ('numpy', 'scipy', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
