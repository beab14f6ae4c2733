"""CBDebug: removal of undesired concepts, then retraining by sample weights and targeted augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from torch import nn

from cameraready.methods.cbdebug.augmentation import KINDS, augmentation
from cameraready.methods.cbdebug.experts import Expert
from cameraready.methods.cbdebug.explanations import explain_concepts
from cameraready.methods.cbdebug.inputs import checked_activations, class_codes, concept_indices
from cameraready.methods.cbdebug.model import ConceptModel, as_concept_model
from cameraready.methods.cbdebug.sample_weights import (
    SampleWeights,
    augment_probability,
    ipw_weights,
    permutation_weights,
)

HELD_OUT = 0.2


@dataclass(frozen=True)
class DebugReport:
    """What `CBDebug.fix` did.

    Attributes
    ----------
    removed : names of the concepts taken out.
    head_share : share of the head's absolute weight that they had.
    weights : the sample weights.
    augment : the augmentation used.
    held_out_losses : for ``augment="auto"``, the weighted loss of each candidate on a held-out fifth of the training
        images; else empty.
    note : what was out of the ordinary.
    """

    removed: tuple[str, ...]
    head_share: float
    weights: SampleWeights
    augment: str | None
    held_out_losses: dict[str, float]
    note: str = ""

    def __str__(self) -> str:
        if not self.removed:
            return f"nothing removed: {self.note}"
        lines = [
            f"removed: {', '.join(self.removed)} ({self.head_share:.0%} of the head's weight)",
            f"retrained with {self.weights}",
            f"augmentation: {self.augment or 'none'}",
        ]
        if self.held_out_losses:
            tried = ", ".join(f"{kind} {loss:.3f}" for kind, loss in self.held_out_losses.items())
            lines[-1] += f" (chosen by weighted loss on held-out training images: {tried})"
        return "\n".join(lines)


class CBDebug(BaseEstimator):
    """Repair a concept bottleneck model that relies on concepts it should not use.

    Removal takes the flagged concepts C_spur out of the head. Retraining weighs each image i by an estimate of
    P(y) P(v) / P(y, v), v being its activations of the flagged concepts, under which v says nothing about y, and alters
    over-represented images. No group labels are seen.

    Parameters
    ----------
    weights : "permutation" (paper), "ipw" (logistic, less variance) or None (augmentation alone).
    augment : "patch", "mix", "swap" or None, see `Augmentation`. "auto" compares none with the one that suits the
        model, by the weighted loss on a held-out fifth of the training images: two more trainings.
    gamma : power of the probability with which images are altered (paper: 2).
    n_permutations, n_splits : of the permutation weights.
    random_state : seed of all that is random here; the models have their own.

    Attributes
    ----------
    sample_weight_, augment_prob_ : (N,) of the last fix.
    n_eff_ : effective sample size of the weights.
    report_ : `DebugReport`.

    Examples
    --------
    >>> from cameraready.methods.cbdebug import ConceptBank, PostHocCBM
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 400)
    >>> background = np.where(rng.random(400) < 0.95, y, 1 - y)          # a shortcut
    >>> X = np.stack([y, background], axis=1) * 3.0 + rng.normal(size=(400, 2))
    >>> model = PostHocCBM(None, ConceptBank(("shape", "background"), np.eye(2))).fit(X, y)
    >>> fixed = CBDebug().fix(model, X, y, undesired=["background"])
    >>> fixed.head_weight_[:, 1].tolist(), bool(model.head_weight_[1, 1] > 0)
    ([0.0, 0.0], True)
    """

    sample_weight_: NDArray[np.float64]
    augment_prob_: NDArray[np.float64]
    n_eff_: float
    report_: DebugReport

    def __init__(
        self,
        *,
        weights: Literal["permutation", "ipw"] | None = "permutation",
        augment: Literal["auto", "patch", "mix", "swap"] | None = "auto",
        gamma: float = 2.0,
        n_permutations: int = 5,
        n_splits: int = 5,
        random_state: int | None = 0,
    ) -> None:
        self.weights = weights
        self.augment = augment
        self.gamma = gamma
        self.n_permutations = n_permutations
        self.n_splits = n_splits
        self.random_state = random_state

    def fix(
        self, cbm: ConceptModel | nn.Module, images: Any, y: ArrayLike, undesired: Sequence[int | str] | Expert
    ) -> Any:
        """A debugged model of the same type; ``cbm`` is not changed.

        Parameters
        ----------
        cbm : a fitted model of this package, or a torch module with ``concepts(x)`` and ``head``.
        images, y : the training data: (N, C, H, W) images or (N, d) features, and (N,) class labels.
        undesired : names or numbers of concepts, or an `Expert` who is shown `explain_concepts` of these images.

        Raises
        ------
        ValueError : all concepts flagged, an unknown one, one class only, activations that are not finite.
        """
        self._check()
        model = as_concept_model(cbm)
        x = model.tensor(images)
        codes = class_codes(y, len(x), classes=model.classes_)[1]
        if absent := np.setdiff1d(model.classes_, model.classes_[codes]).tolist():
            raise ValueError(f"y has no image of class {absent[0]!r}; retraining needs every class of the model")
        labels = model.classes_[codes]
        if hasattr(undesired, "flag"):
            undesired = undesired.flag(explain_concepts(model, x, y=labels))
        new = concept_indices(undesired, model.concept_names_)
        flagged = concept_indices(sorted({*new, *model.removed_}), model.concept_names_)
        # A frozen encoder runs once; images are needed only where they are altered.
        part, data = (model, x) if self.augment in ("patch", "mix") else model.at_features(x)
        activations = checked_activations(part.concepts(data))
        found = self._sample_weights(codes, activations[:, flagged])
        self.augment_prob_ = augment_probability(found.weights, gamma=self.gamma)
        self.sample_weight_ = np.ones(len(x)) if self.weights is None else found.weights
        self.n_eff_ = float(self.sample_weight_.sum() ** 2 / (self.sample_weight_**2).sum())
        kind, losses = self._augmentation_kind(part, data, codes, flagged)
        plan = augmentation(kind, part, data, codes, flagged=flagged, probability=self.augment_prob_)
        fixed = part.without(flagged).retrained(data, labels, weights=self.sample_weight_, augmentation=plan)
        if part is not model:
            fixed.network_.encoder = model.network_.encoder
        size = np.abs(model.head_weight_)
        self.report_ = DebugReport(
            removed=tuple(model.concept_names_[j] for j in flagged),
            head_share=float(size[:, flagged].sum() / size.sum()) if size.any() else 0.0,
            weights=found if self.weights else SampleWeights(self.sample_weight_, float(len(x)), "uniform"),
            augment=kind,
            held_out_losses=losses,
            note="" if flagged else "no concept was flagged, so this is plain retraining",
        )
        return fixed.network_ if isinstance(cbm, nn.Module) else fixed

    def _check(self) -> None:
        if self.weights not in ("permutation", "ipw", None):
            raise ValueError(f"weights={self.weights!r}; pass 'permutation', 'ipw' or None")
        if self.augment not in ("auto", *KINDS, None):
            raise ValueError(f"augment={self.augment!r}; pass 'auto', 'patch', 'mix', 'swap' or None")
        if self.weights is None and self.augment is None:
            raise ValueError("weights=None with augment=None is plain retraining after removal; choose at least one")
        if not self.gamma > 0:
            raise ValueError(f"gamma={self.gamma} is not positive; 2 is the paper's")

    def _sample_weights(self, codes: NDArray[np.int64], V: NDArray[np.float32]) -> SampleWeights:
        if V.shape[1] == 0:
            return SampleWeights(np.ones(len(codes)), float(len(codes)), "uniform", "no concept was flagged")
        if self.weights == "ipw":
            return ipw_weights(codes, V, n_splits=self.n_splits, random_state=self.random_state)
        return permutation_weights(
            codes,
            V,
            n_permutations=self.n_permutations,
            n_splits=self.n_splits,
            random_state=self.random_state,
        )

    def _augmentation_kind(
        self, model: ConceptModel, x: torch.Tensor, codes: NDArray[np.int64], flagged: list[int]
    ) -> tuple[Any, dict[str, float]]:
        """The asked kind, or that with the least weighted loss on held-out training images. Groups are never seen."""
        if not flagged or not self.augment_prob_.any():
            return None, {}
        if self.augment != "auto":
            return self.augment, {}
        suited = next((kind for kind in model.augmentations if kind == "swap" or x.ndim == 4), None)
        counts = np.bincount(codes)
        if suited is None or counts.min() < 2 or int(np.ceil(HELD_OUT * len(x))) < len(counts):
            return None, {}
        seen, held_out = train_test_split(
            np.arange(len(x)), test_size=HELD_OUT, stratify=codes, random_state=self.random_state
        )
        kinds = (suited,) if self.weights is None else (None, suited)
        losses = {}
        for kind in kinds:
            plan = augmentation(
                kind, model, x[seen], codes[seen], flagged=flagged, probability=self.augment_prob_[seen]
            )
            trial = model.without(flagged).retrained(
                x[seen], model.classes_[codes[seen]], weights=self.sample_weight_[seen], augmentation=plan
            )
            scores = torch.from_numpy(trial.decision_function(x[held_out]))
            each = nn.functional.cross_entropy(scores, torch.from_numpy(codes[held_out]), reduction="none").numpy()
            losses[kind or "none"] = float(np.average(each, weights=self.sample_weight_[held_out]))
        best = min(losses, key=losses.__getitem__)
        return (None if best == "none" else best), losses
