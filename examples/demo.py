"""Payments between accounts: one fraud scheme is labelled, another is not. Node table and edge list as CSV."""

import io

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data

from cameraready.methods.demo import DEMO

rng = np.random.default_rng(0)
n = 600
accounts = pd.DataFrame(rng.lognormal(size=(n, 4)), columns=["amount", "payments", "age", "countries"])
accounts.loc[:39, "amount"] *= 8  # the scheme that was found: large amounts
accounts.loc[40:69, "countries"] *= 8  # the scheme that was not: many countries
accounts["label"] = -1  # not looked at
accounts.loc[:24, "label"] = 1
accounts.loc[100:249, "label"] = 0
nodes_csv = accounts.to_csv(index_label="account")
edges_csv = pd.DataFrame(rng.integers(0, n, size=(1500, 2)), columns=["payer", "payee"]).to_csv(index=False)

nodes = pd.read_csv(io.StringIO(nodes_csv), index_col="account")  # from here on as with files
edges = pd.read_csv(io.StringIO(edges_csv))
number = {account: i for i, account in enumerate(nodes.index)}
data = Data(
    x=torch.tensor(np.log1p(nodes.drop(columns="label").to_numpy()), dtype=torch.float32),
    edge_index=torch.tensor(edges.apply(lambda ends: ends.map(number)).to_numpy().T),
)
detector = DEMO(epochs=60, contamination=0.1, random_state=0).fit(data, labels=nodes["label"].to_numpy())

scores = pd.Series(detector.decision_scores_, index=nodes.index)
hidden = {
    "labelled scheme, hidden accounts": range(25, 40),
    "unlabelled scheme": range(40, 70),
    "others": range(250, n),
}
for name, rows in hidden.items():
    print(f"{name:33} {detector.labels_[list(rows)].mean():4.0%} flagged")
print(detector.explain(int(scores.loc[25:69].idxmax())))
