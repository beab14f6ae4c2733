import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cameraready.methods.lapace import Constraints, steering
from cameraready.methods.lapace.steering import Penalty, steer

NUMBERS = ("age", "income", "loan")


@st.composite
def constraints_(draw):
    """Any mixture of constraints that does not contradict itself."""
    columns = ["age", "income", "loan", "home", "married", "school"]
    immutable = draw(st.lists(st.sampled_from(columns), max_size=3, unique=True))
    free = [name for name in columns if name not in immutable]
    ranges, banned, linear = {}, {}, []
    for name in draw(st.lists(st.sampled_from(NUMBERS), max_size=2, unique=True)):
        if name in free:
            low = draw(st.floats(18, 40))
            ranges[name] = (low, low + draw(st.floats(2, 40)))
    if "home" in free and draw(st.booleans()):
        banned["home"] = [draw(st.sampled_from(["own", "rent", "parents"]))]
    if {"loan", "income"} <= set(free) and draw(st.booleans()):
        linear.append(({"loan": 1.0, "income": -draw(st.floats(0.2, 1.0))}, "<=", draw(st.floats(-2, 5))))
    if {"age", "income"} <= set(free) and draw(st.booleans()):
        linear.append(({"age": 1.0, "income": 0.5}, ">=", draw(st.floats(20, 50))))
    increasing = draw(st.lists(st.sampled_from(["age", "income", "school"]), max_size=2, unique=True))
    decreasing = draw(st.lists(st.sampled_from(["loan"]), max_size=1))
    return Constraints(
        immutable=immutable, increasing=increasing, decreasing=decreasing, ranges=ranges, banned=banned, linear=linear
    )


def violations(row, option, constraints):
    """Checked in the user's own columns, apart from the code under test."""

    def value(source, name):
        return source["school"] if name != "school" else ["low", "middle", "high"].index(source["school"])

    def number(source, name):
        return value(source, name) if name == "school" else source[name]

    found = [name for name in constraints.immutable if option[name] != row[name]]
    found += [name for name in constraints.increasing if number(option, name) < number(row, name)]
    found += [name for name in constraints.decreasing if number(option, name) > number(row, name)]
    found += [name for name, (low, high) in constraints.ranges.items() if not low <= option[name] <= high]
    found += [name for name, levels in constraints.banned.items() if option[name] in levels]
    for coefficients, operator, bound in constraints.linear:
        total = sum(float(option[name]) * c for name, c in coefficients.items())
        if (total > bound + 1e-9) if operator == "<=" else (total < bound - 1e-9):
            found.append(f"{coefficients}")
    return found


@settings(max_examples=30, deadline=None)
@example(
    constraints=Constraints(ranges={"loan": (18.68663453690247, 20.68663453690247)}), select="first", steering=False
)
@example(constraints=Constraints(linear=[({"loan": 1.0, "income": -0.25}, "<=", 0.0)]), select="first", steering=False)
@given(constraints=constraints_(), select=st.sampled_from(["first", "confident", "last", 0.4]), steering=st.booleans())
def test_every_returned_row_keeps_every_constraint_and_has_the_class(
    explainer, declined, constraints, select, steering
):
    rows = declined.head(3)
    found = explainer.explain(rows, target=1, constraints=constraints, select=select, steering=steering)
    for (_, row), explanation in zip(rows.iterrows(), found, strict=True):
        assert (explanation.status == "ok") == (len(explanation.options) > 0)
        for _, option in explanation.options.iterrows():
            assert violations(row, option, constraints) == []
        if len(explanation.options):
            assert (explainer.predict_proba(explanation.options)[:, 1] >= 0.5).all()


def test_constraints_leave_some_options(explainer, declined):
    constraints = Constraints(immutable=["married"], increasing=["age"], ranges={"income": (20, 90)})
    found = explainer.explain(declined, target=1, constraints=constraints)
    assert np.mean([explanation.status == "ok" for explanation in found]) > 0.8


def test_a_row_that_contradicts_the_constraints_is_marked_and_raises_nothing(explainer, declined):
    old = declined.head(2).assign(age=[74, 30])
    constraints = Constraints(increasing=["age"], ranges={"age": (18, 60)})
    contradicted, _ = explainer.explain(old, target=1, constraints=constraints)
    assert contradicted.status == "infeasible"


def test_the_penalty_is_the_sum_of_squared_hinges(explainer, declined):
    space = explainer.background_.space
    codes = space.codes(declined.head(1))
    constraints = Constraints(immutable=["married"], increasing=["income"], banned={"home": ["rent"]})
    penalty = Penalty(constraints.bind(space, codes), torch.zeros(1))
    x = torch.as_tensor(space.scale(codes), dtype=torch.float32)
    x[0, space.blocks[space.names.index("home")]] = torch.tensor([0.5, 0.2, 0.3])  # own, parents, rent
    income = space.blocks[space.names.index("income")].start
    x[0, income] -= 0.1
    married = space.blocks[space.names.index("married")].start
    x[0, married : married + 2] = 1 - x[0, married : married + 2]
    assert penalty(x, torch.tensor([0])).item() == pytest.approx(0.1**2 + 2 * 1.0 + 0.3**2, rel=1e-4)


def test_steering_meets_the_constraints_and_leaves_satisfied_points_alone(explainer, declined, monkeypatch):
    space, vae = explainer.background_.space, explainer.vae_
    codes = space.codes(declined)
    bound = Constraints(ranges={"income": (60, None)}).bind(space, codes)
    z = vae.encode(torch.as_tensor(space.scale(codes), dtype=torch.float32))[0].detach()
    rows = np.arange(len(codes))
    penalty = Penalty(bound, z)
    before = penalty(vae.decode(z), torch.as_tensor(rows)).detach()

    def objective(point):
        near, away = vae.distance_to_components(point, 1), (point - z).square().sum(dim=-1)
        return steering.PENALTY * penalty(vae.decode(point), torch.as_tensor(rows)) + near + steering.DISTANCE * away

    violated = before >= steering.ENOUGH
    assert violated.sum() > 10
    assert objective(steer(vae, z, bound, rows, target=1))[violated].mean() < objective(z)[violated].mean()
    monkeypatch.setattr(steering, "MAHALANOBIS", 0.0)
    monkeypatch.setattr(steering, "DISTANCE", 0.0)
    after = penalty(vae.decode(steer(vae, z, bound, rows, target=1)), torch.as_tensor(rows)).detach()
    assert after.mean() < 0.05 * before.mean()
    assert (after <= before + 1e-6).all()
    loose = Constraints(ranges={"income": (None, 1e6)}).bind(space, codes)
    torch.testing.assert_close(steer(vae, z, loose, rows, target=1), z)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"immutable": ["sex"]}, "sex"),
        ({"increasing": ["home"]}, "home.*categorical"),
        ({"ranges": {"income": (1e6, 2e6)}}, "income.*excludes the whole training range"),
        ({"ranges": {"income": (50, 20)}}, "income.*no value"),
        ({"banned": {"home": ["own", "rent", "parents"]}}, "all levels of 'home'"),
        ({"banned": {"home": ["castle"]}}, "castle"),
        ({"banned": {"age": [3]}}, "age.*continuous"),
        ({"ranges": {"school": ("low", "phd")}}, "phd"),
        ({"linear": [({"school": 1.0}, "<=", 0)]}, "school.*ordinal"),
        ({"linear": [({"income": 1.0, "loan": 1.0}, "<=", -50)]}, "excludes the whole training range"),
    ],
)
def test_constraints_that_cannot_be_are_refused_before_work_starts(explainer, declined, asked, message):
    with pytest.raises(ValueError, match=message):
        explainer.explain(declined, target=1, constraints=Constraints(**asked))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"immutable": "age"}, TypeError),
        ({"immutable": ["age"], "ranges": {"age": (20, 30)}}, ValueError),
        ({"immutable": ["age"], "linear": [({"age": 1.0}, "<=", 3)]}, ValueError),
        ({"linear": [({"age": 1.0}, "<", 3)]}, ValueError),
        ({"linear": [({"age": np.nan}, "<=", 3)]}, ValueError),
    ],
)
def test_contradictions_are_refused_at_once(asked, error):
    with pytest.raises(error):
        Constraints(**asked)


def test_a_range_of_ordinal_levels_is_in_the_users_words(explainer, declined):
    rows = declined[declined["school"] != "high"]
    found = explainer.explain(rows, target=1, constraints=Constraints(ranges={"school": (None, "middle")}))
    options = pd.concat([explanation.options for explanation in found])
    assert len(options)
    assert set(options["school"]) <= {"low", "middle"}
