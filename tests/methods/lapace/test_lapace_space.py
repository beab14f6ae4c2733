import numpy as np
import pandas as pd
import pytest

from cameraready.methods.lapace import TabularSpace


def test_decoding_undoes_encoding_and_keeps_every_type(people):
    space = TabularSpace.infer(people).fit(people)
    back = space.decode(space.encode(people))
    inside = (people[["income", "loan", "age"]] - back[["income", "loan", "age"]]).abs().max(axis=1) < 1e-4
    assert inside.mean() > 0.97  # the rest lies beyond the clipped quantiles
    pd.testing.assert_frame_equal(back[inside], people[inside], check_exact=False, rtol=1e-5)
    assert (back.dtypes == people.dtypes).all()


def test_codes_carry_values_exactly(people):
    space = TabularSpace.infer(people).fit(people)
    pd.testing.assert_frame_equal(space.frame(space.codes(people)), people, check_exact=True)


def test_decoded_rows_are_legal_whatever_comes_in(people):
    space = TabularSpace.infer(people).fit(people)
    rows = space.decode(np.random.default_rng(0).normal(size=(500, space.n_encoded)) * 3)
    assert set(rows["home"]) <= set(people["home"])
    assert pd.api.types.is_integer_dtype(rows["age"])
    for name in ("age", "income", "loan"):
        assert rows[name].between(people[name].min(), people[name].max()).all()


def test_another_category_counts_as_one_column(people):
    space = TabularSpace.infer(people).fit(people)
    row = people.iloc[[0]]
    other = row.assign(home="parents" if row["home"].iloc[0] != "parents" else "own")
    assert space.distances(space.encode(row), space.encode(other))[0, 0] == pytest.approx(1 / 6)


def test_columns_may_come_in_any_order(people):
    space = TabularSpace.infer(people).fit(people)
    np.testing.assert_array_equal(space.encode(people), space.encode(people[people.columns[::-1]]))


def test_a_constant_column_takes_no_part_and_is_restored(people):
    frame = people.assign(country="NO")
    space = TabularSpace.infer(frame).fit(frame)
    assert space.n_encoded == TabularSpace.infer(people).fit(people).n_encoded
    assert (space.decode(space.encode(frame))["country"] == "NO").all()


def test_two_hundred_levels_are_one_group():
    frame = pd.DataFrame({"shop": [f"s{i % 250}" for i in range(500)], "x": np.arange(500.0)})
    space = TabularSpace.infer(frame).fit(frame)
    assert space.n_encoded == 251
    assert space.decode(space.encode(frame))["shop"].equals(frame["shop"])


def test_missing_values_are_encoded_and_never_recommended():
    frame = pd.DataFrame({"x": [1.0, 2.0, np.nan, 4.0], "home": ["a", None, "b", "a"]})
    space = TabularSpace.infer(frame, missing="indicator").fit(frame)
    assert space.n_encoded == 2 + 3
    encoded = space.encode(frame)
    assert encoded[2, 1] == 1
    assert encoded[1, -1] == 1
    assert not space.decode(encoded).isna().any().any()
    assert space.frame(space.codes(frame)).isna().equals(frame.isna())


def test_a_value_that_an_integer_column_cannot_hold_is_copied_not_truncated(people):
    space = TabularSpace.infer(people).fit(people)
    query = people.head(1).astype({"age": float}).assign(age=40.5)
    assert space.frame(space.codes(query))["age"].iloc[0] == 40.5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f: f.assign(extra=1), ValueError, "extra"),
        (lambda f: f.drop(columns="age"), ValueError, "age.*absent"),
        (lambda f: f.assign(home="castle"), ValueError, "'castle'"),
        (lambda f: f.assign(income=np.nan), ValueError, "income.*missing"),
        (lambda f: f.assign(income=np.inf), ValueError, "income.*infinite"),
        (lambda f: f.to_numpy(), TypeError, "DataFrame"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(people, change, error, message):
    space = TabularSpace.infer(people).fit(people)
    with pytest.raises(error, match=message):
        space.encode(change(people))


def test_what_no_column_kind_fits_is_refused():
    with pytest.raises(TypeError, match="datetime"):
        TabularSpace.infer(pd.DataFrame({"day": pd.date_range("2020", periods=5)}))
    with pytest.raises(ValueError, match="declared twice"):
        TabularSpace(continuous=["x"], categorical=["x"])
    with pytest.raises(TypeError, match="declare it categorical"):
        TabularSpace(continuous=["x"]).fit(pd.DataFrame({"x": ["a", "b"]}))
    with pytest.raises(ValueError, match="missing='indicator'"):
        TabularSpace(continuous=["x"]).fit(pd.DataFrame({"x": [1.0, np.nan]}))
