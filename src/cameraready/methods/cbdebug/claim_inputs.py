"""Real digits on real textures, with a planted shortcut; the models that the claims debug."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer that is made imports it, which takes a second
from numpy.typing import NDArray
from torch import nn

from cameraready import data
from cameraready.methods.cbdebug.networks import conv_maps, wide_field_maps
from cameraready.methods.cbdebug.post_hoc import PostHocCBM, concept_bank
from cameraready.methods.cbdebug.prototypes import PrototypeCBM

Textures = Mapping[str, NDArray[np.float32]]  # name -> grey picture in [0, 1]
TEXTURES = ("grass", "gravel", "brick", "camera")
SIDE, OBJECT = 32, 20  # pixels of a picture, and of the object pasted into it
PLACES = (4, 9)  # rows and columns at which the object's corner may lie
LOOPS = (0, 6, 8, 9)  # digits with a closed loop: class 1
TRAINING = 600


@dataclass(frozen=True, eq=False)
class Pictures:
    """Objects on backgrounds.

    ``images`` (N, 1, 32, 32); ``y`` and ``background`` (N,) 0 or 1 (the first texture goes with class 1 in training; of
    clean pictures the number of the texture); ``kind`` (N,) which digit; ``masks`` (N, 32, 32) True on the object;
    ``swapped`` the same objects at the same places on the other background.
    """

    images: NDArray[np.float32]
    y: NDArray[np.int64]
    background: NDArray[np.int64]
    kind: NDArray[np.int64]
    masks: NDArray[np.bool_]
    swapped: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Problem:
    """A biased training set, a balanced test set, and other images of single digits and textures."""

    train: Pictures
    test: Pictures
    clean: Pictures  # digits on backgrounds that tell nothing: for the encoder
    textures: tuple[str, ...]  # the backgrounds of the clean pictures
    biased: tuple[str, str]  # those of the others

    @property
    def flags(self) -> range:
        """The concepts that should not matter: the textures, which come first."""
        return range(len(self.textures))


@cache
def bundled_textures() -> Textures:
    """Pictures that come with scikit-image."""
    from skimage import data as pictures

    return {name: getattr(pictures, name)().astype(np.float32) / 255 for name in TEXTURES}


def photograph_textures(photos: Sequence[NDArray[np.float32]]) -> Textures:
    """Colour photographs (height, width, 3) as textures; the first two go with the classes."""
    if len(photos) < 2:
        raise ValueError(f"{len(photos)} picture was given; one for each of two classes is needed, in one folder")
    textures = {f"photograph {i + 1}": photo.mean(axis=2) for i, photo in enumerate(photos)}
    for name, grey in textures.items():
        if min(grey.shape) <= 2 * SIDE:
            raise ValueError(f"{name} has {grey.shape} pixels; crops of {2 * SIDE} x {2 * SIDE} need a larger one")
    return textures


@cache
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(1797, 20, 20) pictures in [0, 1], and which digit each is."""
    images, kinds = data.load("digits-labelled")
    small = torch.from_numpy(np.asarray(images, dtype=np.float32)[:, None] / 16)
    resized = nn.functional.interpolate(small, size=(OBJECT, OBJECT), mode="bilinear", align_corners=False)
    return resized[:, 0].numpy(), np.asarray(kinds)


def crops(texture: NDArray[np.float32], n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(n, 32, 32): 64-pixel crops of a texture at random places, halved."""
    corners = rng.integers(0, np.array(texture.shape) - 2 * SIDE, size=(n, 2))
    found = np.stack([texture[r : r + 2 * SIDE, c : c + 2 * SIDE] for r, c in corners])
    return found.reshape(n, SIDE, 2, SIDE, 2).mean((2, 4))


def problem(
    *, rho: float, seed: int, textures: Textures | None = None, biased: tuple[str, str] | None = None
) -> Problem:
    """Background agrees with class with probability ``rho`` in training, one half in the test set.

    The first of the ``biased`` textures (by default the first two) goes with class 1.
    """
    textures = bundled_textures() if textures is None else textures
    biased = biased or tuple(textures)[:2]  # type: ignore[assignment]
    rng = np.random.default_rng(seed)
    clean, train, test = np.split(rng.permutation(len(_digits()[0])), [TRAINING, 2 * TRAINING])
    made = _composed(clean, None, rng, textures=list(textures.values()))
    pair = [textures[name] for name in biased]
    parts = [_composed(rows, agreement, rng, textures=pair) for rows, agreement in ((train, rho), (test, 0.5))]
    return Problem(*parts, made, tuple(textures), biased)


def _composed(
    rows: NDArray[np.int64],
    agreement: float | None,
    rng: np.random.Generator,
    *,
    textures: Sequence[NDArray[np.float32]],
) -> Pictures:
    """Two textures agree with the class by the given probability; by none, each is drawn alike."""
    objects, kinds = (values[rows] for values in _digits())
    n, y = len(rows), np.isin(kinds, LOOPS).astype(np.int64)
    if agreement is None:
        background = chosen = rng.integers(0, len(textures), n)
    else:
        background = np.where(rng.random(n) < agreement, y, 1 - y)
        chosen = 1 - background  # texture 0 goes with class 1
    pool = np.stack([crops(texture, n, rng) for texture in textures])
    images, swapped = pool[chosen, np.arange(n)], pool[(chosen + 1) % len(textures), np.arange(n)]
    masks = np.zeros((n, SIDE, SIDE), dtype=bool)
    for i, (row, column) in enumerate(rng.integers(*PLACES, size=(n, 2))):
        place = (i, slice(row, row + OBJECT), slice(column, column + OBJECT))
        images[place] = swapped[place] = objects[i]
        masks[place] = True
    return Pictures(images[:, None], y, background, kinds, masks, swapped[:, None])


def pretrained(maps: nn.Module, found: Problem, *, epochs: int = 12) -> nn.Sequential:
    """A small network that has learned to tell digits and backgrounds apart where they are independent: like a large
    pretrained encoder it knows both, so that a shortcut is open to the head.
    """
    clean, sizes = found.clean, (10, len(found.textures))
    encoder = nn.Sequential(maps, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    network = nn.Sequential(encoder, nn.Linear(128, sum(sizes)))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    x, kinds, textures = map(torch.from_numpy, (clean.images, clean.kind, clean.background))
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            of_kind, of_texture = network(x[rows]).split(sizes, dim=1)
            loss = nn.functional.cross_entropy(of_kind, kinds[rows])
            (loss + nn.functional.cross_entropy(of_texture, textures[rows])).backward()
            optimizer.step()
    return encoder.eval()


def post_hoc(found: Problem, seed: int) -> tuple[PostHocCBM, Problem]:
    """A model of the encoder's features, and the problem with these in place of its images: frozen, it runs once.

    Texture directions are from clean images, the others from the biased ones, which is how they come to leak.
    """
    torch.manual_seed(seed)
    encoder = pretrained(conv_maps(1, 16), found)
    parts = [_encoded(encoder, part) for part in (found.train, found.test, found.clean)]
    train, _, clean = parts
    shown = {name: (clean.images, clean.background == i) for i, name in enumerate(found.textures)}
    shown |= {f"object {kind}": (train.images, train.kind == kind) for kind in np.unique(train.kind)}
    bank = concept_bank(None, {name: (f[has], f[~has]) for name, (f, has) in shown.items()}, random_state=seed)
    model = PostHocCBM(None, bank, random_state=seed).fit(train.images, train.y)
    return model, Problem(*parts, found.textures, found.biased)


@torch.no_grad()
def _encoded(encoder: nn.Module, part: Pictures) -> Pictures:
    images, swapped = (encoder(torch.from_numpy(x)).numpy() for x in (part.images, part.swapped))
    return replace(part, images=images, swapped=swapped)


def prototypes(found: Problem, seed: int) -> PrototypeCBM:
    """24 prototypes on a backbone that was pretrained like the encoder of `post_hoc`, and is only trained on slowly."""
    torch.manual_seed(seed)
    backbone = pretrained(wide_field_maps(1, 16), found)[0]
    model = PrototypeCBM(backbone, align_epochs=8, epochs=15, lr=1e-4, random_state=seed)
    return model.fit(found.train.images, found.train.y)


def validation(found: Problem) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Images, classes and groups of the clean pictures on the biased textures: what a peer that needs group labels
    for its tuning may see.
    """
    clean = found.clean
    rows = np.isin(clean.background, [found.textures.index(name) for name in found.biased])
    return clean.images[rows], clean.y[rows], clean.background[rows]


def background_auc(model: Any, flags: Sequence[int], test: Pictures) -> float:
    """How well the flagged concept that knows it best tells the background, where that tells nothing of the class.

    Below 0.75 the flags are too weak a label, and the set-up is not one in which the method can be judged.
    """
    from sklearn.metrics import roc_auc_score

    told = [roc_auc_score(test.background, v) for v in model.concepts(test.images)[:, list(flags)].T]
    return max((max(auc, 1 - auc) for auc in told), default=0.5)


def record(trial: Any, name: str, model: Any, test: Pictures, **more: Any) -> None:
    """Accuracy in the worst group and on average, and the share of predictions that flip with the background."""
    from cameraready.methods.cbdebug.groups import flip_rate, group_report

    report = group_report(model, test.images, test.y, test.background)
    flips = flip_rate(model, test.images, test.swapped)
    trial.record(method=name, worst_group=report.worst_group, mean_accuracy=report.mean, flip_rate=flips, **more)
