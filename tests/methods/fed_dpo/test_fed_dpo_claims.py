"""A user's own table of choices, for `cameraready verify fed_dpo --on FILE`."""

import numpy as np
import pandas as pd
import pytest

from cameraready.methods.fed_dpo.claim_choices import choice_pairs, people_clients

TABLE = pd.DataFrame(
    {
        "id": ["ann", "ann", "ann", "bob", "bob"],
        "chid": [1, 1, 1, 2, 2],
        "choice": [0, 1, 0, 1, 0],
        "price": [3.0, 1.0, 2.0, 5.0, 4.0],
        "green": [True, False, False, True, False],
    }
)


def test_a_pair_is_the_chosen_alternative_minus_another_in_white_features():
    D, person = choice_pairs(TABLE)
    assert person.tolist() == ["ann", "ann", "bob"]
    assert np.allclose(D.T @ D / 3, np.eye(2))
    plain = np.array([[-2.0, -1.0], [-1.0, 0.0], [1.0, 1.0]])
    back = np.linalg.lstsq(D, plain, rcond=None)[0]
    assert np.allclose(D @ back, plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chid": [1, 1, 1, 1, 1]}, "1 situations"),
        ({"price": [1.0, np.nan, 1.0, 1.0, 1.0]}, "not finite"),
        ({"price": [1.0] * 5}, "constant"),
    ],
)
def test_a_table_that_says_no_choices_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        choice_pairs(TABLE.assign(**change))


def test_columns_and_people_are_asked_for():
    with pytest.raises(ValueError, match="no column chid"):
        choice_pairs(TABLE.drop(columns="chid"))
    with pytest.raises(ValueError, match="2 persons"):
        people_clients(TABLE, np.random.default_rng(0), split="IID")
