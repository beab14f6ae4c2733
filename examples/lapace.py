"""Declined for a loan: what would have to change, with age and family left alone?"""

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from cameraready.methods.lapace import Constraints, LAPACEExplainer, TabularSpace

rng = np.random.default_rng(0)  # your own file: people = pd.read_csv("loans.csv")
people = pd.DataFrame(
    {
        "age": rng.integers(18, 75, 600),
        "family": rng.choice(["single", "married"], 600),
        "home": rng.choice(["own", "rent"], 600),
        "income": rng.gamma(4.0, 12.0, 600).round(1),
        "loan": rng.gamma(2.0, 8.0, 600).round(1),
    }
)
good = 0.08 * people["income"] - 0.15 * people["loan"] + (people["home"] == "own") + rng.logistic(size=600) > 2
accepted = np.where(good, "accepted", "declined")

columns = make_column_transformer((OneHotEncoder(), ["family", "home"]), remainder="passthrough")
model = make_pipeline(columns, RandomForestClassifier(60, random_state=0)).fit(people, accepted)

explainer = LAPACEExplainer(model, TabularSpace.infer(people)).fit(people)
declined = people[model.predict(people) == "declined"].head(2)
limits = Constraints(
    immutable=["family", "age"], ranges={"income": (None, 90)}, linear=[({"loan": 1, "income": -0.6}, "<=", 0)]
)
for explanation in explainer.explain(declined, target="accepted", constraints=limits, select="confident"):
    print(explanation.row.to_dict())
    print(explanation, "\n")
