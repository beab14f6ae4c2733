"""A small regression that the tests of pdt train: the network, its data, and the loop."""

import torch
from torch import nn

from cameraready.methods.pdt import PredictiveDifferential

STEPS = 4
DATA = torch.Generator().manual_seed(3)
X = torch.randn(32, 6, generator=DATA)
Y = torch.sin(X @ torch.randn(6, 2, generator=DATA))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def sgd(net, **options):
    return torch.optim.SGD(net.parameters(), **{"lr": 0.1, "momentum": 0.5, **options})


def wrap(optimizer, **options):
    return PredictiveDifferential(optimizer, **{"snapshot_every": STEPS, **options})


def train(net, optimizer, steps, *, first=0, observe=True):
    for step in range(first, first + steps):
        batch = torch.randint(32, (8,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(X[batch]), Y[batch])
        loss.backward()
        if observe and isinstance(optimizer, PredictiveDifferential):
            optimizer.observe(loss)
        optimizer.step()


def weights(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()
