"""Is my run below the edge of stability, and will this table let it memorise noise?  stable_minima.py [table.csv]"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cameraready import data
from cameraready.methods.stable_minima import (
    StabilityMonitor,
    generalisation_bound,
    relu_report,
    sharpness,
    shatterability,
    suggest_lr,
)

table = data.open(sys.argv[1], kind="table") if len(sys.argv) > 1 else data.load("diabetes")
X, y = np.asarray(table.X, dtype=float), np.asarray(table.y, dtype=float)[:, None]
X, y = (X - X.mean(axis=0)) / X.std(axis=0) / np.sqrt(X.shape[1]), (y - y.mean()) / y.std()
order, half = np.random.default_rng(0).permutation(len(X)), len(X) // 2
train, held = order[:half], order[half:]

print(shatterability(X[train]), "\n")

torch.manual_seed(0)
Xt, yt = torch.tensor(X[train], dtype=torch.float32), torch.tensor(y[train], dtype=torch.float32)
net, loss_fn = nn.Sequential(nn.Linear(X.shape[1], 256), nn.ReLU(), nn.Linear(256, 1)), nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
monitor = StabilityMonitor(loss_fn, (Xt, yt), every=250, report=print)
for _ in range(1000):
    optimizer.zero_grad()
    loss_fn(net(Xt), yt).backward()
    optimizer.step()
    monitor(net, optimizer)

print("\n", sharpness(net, loss_fn, DataLoader(TensorDataset(Xt, yt), 32), k=3, batches=4, optimizer=optimizer), sep="")
report = relu_report(net, Xt, yt, lr=0.2)
print(f"\n{report}")
print(f"for a bound of 3 on the weighted path norm: lr = {suggest_lr(net, (Xt, yt), target_pathnorm=3.0):.3g}")
print("\n", generalisation_bound(report, X[held], B=np.abs(y).max(), y_heldout=y[held], n_directions=256), sep="")
