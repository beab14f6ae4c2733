"""Small problems with a shortcut, and every family of concept bottleneck fitted on one."""

import hashlib
from functools import cache

import numpy as np
import torch
from torch import nn

from cameraready.methods.cbdebug import (
    ConceptBank,
    IndependentCBM,
    JointCBM,
    ModuleCBM,
    PostHocCBM,
    PrototypeCBM,
    SequentialCBM,
)

FAMILIES = ["post-hoc", "joint", "sequential", "independent", "prototype", "module"]


def shortcut_features(n=400, seed=0, agreement=0.9):
    """Features (shape, background), of which the background is clearer and agrees with the class in nine of ten."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    background = np.where(rng.random(n) < agreement, y, 1 - y)
    X = np.stack([3.0 * y, 4.0 * background], axis=1) + rng.normal(size=(n, 2))
    return X.astype(np.float32), y, background


def pictures(n=120, seed=0):
    """32 x 32 pictures: a bright square at the left (class 0) or a bright cross at the right (class 1), on stripes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    background = np.where(rng.random(n) < 0.9, y, 1 - y)
    X = 0.1 * rng.random((n, 1, 32, 32))
    X[background == 1, :, ::4] += 0.4
    X[background == 0, :, :, ::4] += 0.4
    X[y == 0, :, 10:22, 4:14] = 0.9
    X[y == 1, :, 14:18, 16:28] = X[y == 1, :, 8:24, 20:24] = 0.9
    masks = np.zeros((n, 32, 32), dtype=bool)
    masks[y == 0, 10:22, 4:14] = True
    masks[y == 1, 8:24, 16:28] = True
    return X.astype(np.float32), y, background, masks


class SmallBottleneck(nn.Module):
    """A user's own network: two concepts with dropout before them, and a head that likes the second one."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[-0.5, -0.5], [0.5, 0.5]]))
            self.head.bias.copy_(torch.tensor([1.7, -1.7]))

    def concepts(self, x):
        return self.dropout(x)


@cache
def fitted(family):
    """A fitted model, its training data, and the names of its undesired concepts."""
    if family == "prototype":
        X, y, *_ = pictures()
        model = PrototypeCBM(n_prototypes=16, align_epochs=3, epochs=10, lr=3e-3, batch_size=30).fit(X, y)
        model.epochs = 3  # of retraining
        return model, X, y, ["prototype 2"]
    X, y, background = shortcut_features()
    names, labels = ["shape", "background"], np.stack([y, background], axis=1)
    if family == "post-hoc":
        model = PostHocCBM(None, ConceptBank(tuple(names), np.eye(2))).fit(X, y)
    elif family == "module":
        model, names = ModuleCBM(SmallBottleneck()), ["concept 0", "concept 1"]
    else:
        kind = {"joint": JointCBM, "sequential": SequentialCBM, "independent": IndependentCBM}[family]
        model = kind(concept_names=names, lr=1e-2).fit(X, y, labels)
    return model, X, y, [names[1]]


def digest(model):
    """A hash of all that a model has learned."""
    total = hashlib.sha256()
    for name, value in sorted(model.network_.state_dict().items()):
        total.update(name.encode() + value.cpu().numpy().tobytes())
    total.update(repr((model.removed_, model.concept_names_)).encode())
    return total.hexdigest()
