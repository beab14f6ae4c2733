"""Loan applicants, and the explainers and black boxes fitted to them, once for all tests."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from cameraready.methods.lapace import LAPACEExplainer, TabularSpace
from lapace_applicants import QUICK, applicants, score


@pytest.fixture(scope="session")
def people():
    return applicants()


@pytest.fixture(scope="session")
def declined(people):
    return people[score(people)[:, 1] < 0.4].head(20)


@pytest.fixture(scope="session")
def explainer(people):
    return LAPACEExplainer(score, TabularSpace.infer(people), training=QUICK).fit(people)


@pytest.fixture(scope="session")
def forest(people):
    """A scikit-learn pipeline with labels that are words."""
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["home", "married", "school"]), remainder="passthrough"
    )
    rng = np.random.default_rng(1)
    accepted = np.where(rng.random(len(people)) < score(people)[:, 1], "yes", "no")
    return make_pipeline(encoder, RandomForestClassifier(30, random_state=0)).fit(people, accepted)
