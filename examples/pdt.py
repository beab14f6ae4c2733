"""Wrap the optimizer, keep the loop, and see whether prediction pays on handwritten digits."""

import torch
from torch import nn

from cameraready import data
from cameraready.methods.pdt import PredictiveDifferential, Task, fit_dmd, train_pair

images, labels = data.load("digits-labelled")
x, y = torch.tensor(images / 16.0, dtype=torch.float32).flatten(1), torch.tensor(labels)


def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


# Your own loop: one line more to wrap the optimizer, one to tell it the loss.
torch.manual_seed(0)
net = network()
optimizer = PredictiveDifferential(torch.optim.Adam(net.parameters(), lr=4e-3), snapshot_every=22)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
snapshots = []
for _ in range(12):
    for batch in torch.randperm(1400).split(64):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.observe(loss)
        optimizer.step()
    schedule.step()
    snapshots.append([parameter.detach().clone() for parameter in net.parameters()])
    print(optimizer.last_report)

# The dynamics behind it, from snapshots of any run.
print(fit_dmd(snapshots[-6:], rank=3, differential=True))

# Is it worth it here? The same weights and batches, with and without; tune the learning rate of the baseline first.
task = Task(train=(x[:1400], y[:1400]), test=(x[1400:], y[1400:]))
print(train_pair(network, lambda p: torch.optim.Adam(p, lr=4e-3), task, epochs=20, seeds=(0, 1)))
