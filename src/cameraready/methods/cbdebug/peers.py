"""What else one could do: other retraining methods on the same concepts, and oracles that see the true groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from cameraready.methods.cbdebug.augmentation import Augmentation, augmentation, span, strongest
from cameraready.methods.cbdebug.groups import group_report
from cameraready.methods.cbdebug.inputs import class_codes, concept_indices
from cameraready.methods.cbdebug.model import ConceptModel
from cameraready.methods.cbdebug.post_hoc import PostHocCBM
from cameraready.methods.cbdebug.prototypes import PrototypeCBM

UPWEIGHTS = (2, 5, 10, 20)  # JTT's are tuned in its paper, too
FORGET = 10.0  # weight of the forgetting loss; the alignment's is 5


def retrained(cbm: ConceptModel, images: Any, y: ArrayLike, undesired: Any, weights: ArrayLike | None = None) -> Any:
    """Plain (or weighted) retraining after removal; of no concept for ``undesired=[]``."""
    flagged = concept_indices(undesired, cbm.concept_names_)
    n = len(cbm.tensor(images))
    u = np.ones(n) if weights is None else np.asarray(weights, dtype=float)
    plan = Augmentation(None, torch.zeros(n))
    return cbm.without(flagged).retrained(images, y, weights=u / u.mean(), augmentation=plan)


def jtt(cbm: ConceptModel, images: Any, y: ArrayLike, undesired: Any, *, upweight: float = 20.0) -> Any:
    """Just train twice: images that the model gets wrong weigh ``upweight`` times as much (Liu et al., ICML 2021)."""
    wrong = cbm.predict(images) != np.asarray(y)
    return retrained(cbm, images, y, undesired, np.where(wrong, upweight, 1.0))


def tuned_jtt(cbm: ConceptModel, images: Any, y: ArrayLike, undesired: Any, validation: tuple[Any, Any, Any]) -> Any:
    """`jtt` after removal, its weight tuned as in its paper: by the worst group of group-labelled validation images."""
    models = [jtt(cbm, images, y, undesired, upweight=upweight) for upweight in UPWEIGHTS]
    return max(models, key=lambda model: group_report(model, *validation).worst_group)


def group_weights(y: ArrayLike, groups: ArrayLike) -> NDArray[np.float64]:
    """Weights that give each pair of class and group the same total."""
    pairs = np.stack([np.unique(v, return_inverse=True)[1] for v in (np.asarray(y), np.asarray(groups))], axis=1)
    _, code, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(len(pairs) / (len(counts) * counts[code.ravel()]))


def predicted_groups(cbm: ConceptModel, images: Any, undesired: Any) -> NDArray[np.int64]:
    """Two clusters of the undesired concepts' activations, in place of group labels."""
    V = cbm.concepts(images)[:, concept_indices(undesired, cbm.concept_names_)]
    return KMeans(2, n_init=10, random_state=cbm.random_state).fit_predict(StandardScaler().fit_transform(V))


def dfr(cbm: ConceptModel, images: Any, y: ArrayLike, undesired: Any, groups: ArrayLike, *, draws: int = 10) -> Any:
    """Last layer retrained on group-balanced subsets, averaged over ten draws (Kirichenko et al., ICLR 2023)."""
    x, rng = cbm.tensor(images), np.random.default_rng(cbm.random_state)
    labels, heads = np.asarray(y), []
    pairs = _pairs(labels, groups)
    size = min(len(members) for members in pairs)
    for _ in range(draws):
        rows = np.concatenate([rng.choice(members, size, replace=False) for members in pairs])
        heads.append(retrained(cbm, x[rows], labels[rows], undesired).network_.head)
    other = cbm.copied()
    with torch.no_grad():
        other.network_.head.weight.copy_(torch.stack([h.weight for h in heads]).mean(0))
        other.network_.head.bias.copy_(torch.stack([h.bias for h in heads]).mean(0))
    return other


def group_dro(
    cbm: PostHocCBM, images: Any, y: ArrayLike, undesired: Any, groups: ArrayLike, *, steps: int = 400
) -> Any:
    """Group distributionally robust head on true groups (Sagawa et al., ICLR 2020): an oracle.

    Adam on the groups' losses under exponentiated-gradient group weights (step 0.01 there, 0.1 here for full batches),
    and the head's own l1 penalty.
    """
    other = cbm.without(concept_indices(undesired, cbm.concept_names_))
    c = torch.from_numpy(other.concepts(images))
    labels = np.asarray(y)
    codes = torch.from_numpy(class_codes(labels, len(c), classes=cbm.classes_)[1])
    members = [torch.from_numpy(rows) for rows in _pairs(labels, groups)]
    head, q = other.network_.head.requires_grad_(True), torch.ones(len(members)) / len(members)
    kept = torch.ones(c.shape[1])
    kept[list(other.removed_)] = 0
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(steps):
        scores = c @ (head.weight * kept).T + head.bias
        each = nn.functional.cross_entropy(scores, codes, reduction="none")
        losses = torch.stack([each[rows].mean() for rows in members])
        q = q * torch.exp(0.1 * losses.detach())
        q = q / q.sum()
        optimizer.zero_grad()
        ((q * losses).sum() + cbm.strength * head.weight.abs().sum()).backward()
        optimizer.step()
    with torch.no_grad():
        head.weight.mul_(kept)
    head.requires_grad_(False)
    return other


def lisa(cbm: PostHocCBM, images: Any, y: ArrayLike, undesired: Any, *, draws: int = 4) -> Any:
    """Selective mixup in feature space: same class, other predicted group (after Yao et al., ICML 2022)."""
    rng = np.random.default_rng(cbm.random_state)
    labels, groups = np.asarray(y), predicted_groups(cbm, images, undesired)
    codes = class_codes(labels, len(labels), classes=cbm.classes_)[1]
    features = cbm.run(cbm.network_.features, images)
    partner = np.arange(len(labels))
    mixed = []
    for _ in range(draws):
        for i in range(len(labels)):
            across = np.flatnonzero((labels == labels[i]) & (groups != groups[i]))
            partner[i] = rng.choice(across) if len(across) else i
        share = torch.from_numpy(rng.beta(2.0, 2.0, size=(len(labels), 1)).astype(np.float32))
        mixed.append(cbm.network_.from_features(share * features + (1 - share) * features[partner]).numpy())
    other = cbm.without(concept_indices(undesired, cbm.concept_names_))
    other.fit_head_(np.concatenate(mixed), np.tile(codes, draws), np.ones(draws * len(codes)))
    return other


def augmentation_only(cbm: ConceptModel, images: Any, y: ArrayLike, undesired: Any, kind: Any) -> Any:
    """Augmentation of all images alike, without weights (the paper's "Augment")."""
    x = cbm.tensor(images)
    flagged = concept_indices(undesired, cbm.concept_names_)
    codes = class_codes(y, len(x), classes=cbm.classes_)[1]
    plan = augmentation(kind, cbm, x, codes, flagged=flagged, probability=np.full(len(x), 0.5))
    return cbm.without(flagged).retrained(x, y, weights=np.ones(len(x)), augmentation=plan)


class Affine(nn.Module):
    """f -> f - (f - offset) P^T: a part of the features taken out."""

    def __init__(self, taken: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("taken", taken.float())
        self.register_buffer("offset", offset.float())

    def forward(self, f: Tensor) -> Tensor:
        return f - (f - self.offset) @ self.taken.T


def project_out(cbm: PostHocCBM, images: Any, y: ArrayLike, undesired: Any) -> PostHocCBM:
    """The span of the undesired directions projected out of the features, f - U U^T f, and the model fitted anew."""
    directions = cbm.directions_[concept_indices(undesired, cbm.concept_names_)]
    basis = span(directions)
    return _refitted(cbm, images, y, undesired, Affine(basis @ basis.T, torch.zeros(len(basis))))


def leace(cbm: PostHocCBM, images: Any, y: ArrayLike, undesired: Any) -> PostHocCBM:
    """Undesired activations made linearly unreadable in the features, with least change (LEACE, NeurIPS 2023)."""
    from concept_erasure import LeaceFitter

    features = cbm.run(cbm.network_.features, images)
    V = torch.from_numpy(cbm.concepts(images)[:, concept_indices(undesired, cbm.concept_names_)])
    eraser = LeaceFitter.fit(features.double(), V.double()).eraser
    taken = eraser.proj_left @ eraser.proj_right
    return _refitted(cbm, images, y, undesired, Affine(taken, eraser.bias))


def forgetting(cbm: PrototypeCBM, images: Any, y: ArrayLike, undesired: Any) -> PrototypeCBM:
    """Retraining with a penalty on flagged prototypes where they were strongest (after ProtoPDebug, ICLR 2023).

    As there, no prototype is removed: it is to turn to something else. The place is looked at in its picture, for a
    crop alone fills a small part of what the network sees at once, and then hardly moves it.
    """
    x, flagged = cbm.tensor(images), concept_indices(undesired, cbm.concept_names_)
    codes = class_codes(y, len(x), classes=cbm.classes_)[1]
    rows, concepts, places = liked_places(cbm, x, codes, flagged)

    def activation(network: nn.Module) -> Tensor:
        return FORGET * network.maps(x[rows]).flatten(2)[torch.arange(len(rows)), concepts, places].mean()

    plan = Augmentation(None, torch.zeros(len(x)))
    return cbm.retrained(x, y, weights=np.ones(len(x)), augmentation=plan, extra_loss=activation)


def liked_places(
    cbm: PrototypeCBM, x: Tensor, codes: NDArray[np.int64], flagged: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Images that flagged prototypes like most, which prototype each, and its place in the flattened map."""
    rows, concepts = np.array(strongest(cbm.concepts(x), codes, flagged)).T
    maps = cbm.maps(x[rows])
    return rows, concepts, maps[np.arange(len(rows)), concepts].reshape(len(rows), -1).argmax(1)


def _refitted(cbm: PostHocCBM, images: Any, y: ArrayLike, undesired: Any, taken_out: Affine) -> PostHocCBM:
    """The same model on an encoder that ends by taking something out, without the undesired concepts in its head."""
    encoder = nn.Sequential(nn.Identity() if cbm.encoder is None else cbm.encoder, nn.Flatten(), taken_out).eval()
    model = clone(cbm).set_params(encoder=encoder).fit(images, y)
    return retrained(model, images, y, undesired)


def _pairs(labels: NDArray[Any], groups: ArrayLike) -> list[NDArray[np.int64]]:
    """Rows of each pair of class and group that occurs."""
    other = np.asarray(groups)
    every = [np.flatnonzero((labels == a) & (other == b)) for a in np.unique(labels) for b in np.unique(other)]
    return [rows for rows in every if len(rows)]
