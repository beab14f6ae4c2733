"""What ReCoG is compared with and does not learn: averages, naive Bayes, similarity, scikit-learn on a few labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from cameraready.methods.recog.classifier import FewShotClassifier, FewShotMethod
from cameraready.methods.recog.label_statistics import LabelStatistics
from cameraready.methods.recog.molecules import Molecules, tanimoto
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable

Features = Literal["ecfp", "aux", "ecfp+aux"]


class FunctionClassifier(FewShotClassifier):
    """A classifier whose probability is a function of molecules and context."""

    def __init__(
        self, tasks: tuple[str, ...], probability: Callable[[Molecules, NDArray[np.int8]], NDArray[Any]]
    ) -> None:
        super().__init__(tasks)
        self._function = probability

    def _probability(self, molecules: Molecules, context: NDArray[np.int8]) -> NDArray[Any]:
        return self._function(molecules, context)


class FewShotSklearn(BaseEstimator, FewShotMethod):
    """A scikit-learn classifier trained on the support alone.

    Parameters
    ----------
    estimator : classifier with predict_proba
    features : Morgan counts, the molecule's labels in the old assays (1, -1, and 0 where unknown), or both.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> chain = ["C" * n for n in range(1, 25)]
    >>> import pandas as pd
    >>> table = MoleculeTable.from_frame(pd.DataFrame({"smiles": chain, "long": [len(s) > 12 for s in chain]}))
    >>> peer = FewShotSklearn(LogisticRegression(), features="ecfp").fit(table)
    >>> peer.adapt(["C", "CCO"], [0, 1]).predict(["CCCO"]).tolist()
    [1]
    """

    def __init__(self, estimator: ClassifierMixin, *, features: Features = "ecfp") -> None:
        self.estimator = estimator
        self.features = features

    def _fit(self, table: MoleculeTable) -> None:
        if self.features not in ("ecfp", "aux", "ecfp+aux"):
            raise ValueError(f"features={self.features!r}; choose 'ecfp', 'aux' or 'ecfp+aux'")

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier:
        fitted = clone(self.estimator).fit(self._features(support, context), y)
        return FunctionClassifier(self.tasks_, partial(self._score, fitted))

    def _score(self, fitted: ClassifierMixin, molecules: Molecules, known: NDArray[np.int8]) -> NDArray[Any]:
        return np.asarray(fitted.predict_proba(self._features(molecules, known))[:, 1])

    def _features(self, molecules: Molecules, context: NDArray[np.int8]) -> Any:
        signs = signed(context)
        if self.features == "aux":
            return signs
        return molecules.counts if self.features == "ecfp" else sparse.hstack([molecules.counts, signs], format="csr")


class AuxMean(BaseEstimator, FewShotMethod):
    """The mean of a molecule's old labels; looks neither at the support nor at the structure. 0.5 if none is known.

    Parameters
    ----------
    unknown : {"skipped", "neutral"}
        The mean of the known labels, or of all with 1/2 for each unknown one. The latter also ranks by how many labels
        are known: where most are inactive, a molecule with few of them comes out higher.
    """

    def __init__(self, *, unknown: Literal["skipped", "neutral"] = "skipped") -> None:
        self.unknown = unknown

    def _fit(self, table: MoleculeTable) -> None:
        if self.unknown not in ("skipped", "neutral"):
            raise ValueError(f"unknown={self.unknown!r}; choose 'skipped' or 'neutral'")

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier:
        return FunctionClassifier(self.tasks_, self._score)

    def _score(self, molecules: Molecules, known: NDArray[np.int8]) -> NDArray[Any]:
        n = (known != UNKNOWN).sum(axis=1) if self.unknown == "skipped" else known.shape[1]
        return (1 + signed(known).sum(axis=1) / np.maximum(n, 1)) / 2


class EvidenceBayes(BaseEstimator, FewShotMethod):
    """Naive Bayes on the old labels, with the training table's mean rates as prior.

    Parameters
    ----------
    strength : kappa, molecules that the prior counts for.
    similarity : weight of a vote of the support by Tanimoto similarity; 0 for the labels alone.
    """

    def __init__(self, *, strength: float = 5.0, similarity: float = 0.0) -> None:
        self.strength = strength
        self.similarity = similarity

    def _fit(self, table: MoleculeTable) -> None:
        if not 0 < self.strength < np.inf:
            raise ValueError(f"strength={self.strength!r}; pass a number above 0")
        if not 0 <= self.similarity < np.inf:
            raise ValueError(f"similarity={self.similarity!r}; pass a number of at least 0")
        self._prior = LabelStatistics.of(table.labels).prior()

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier:
        of_class = [context[y == label] for label in (0, 1)]
        positive = np.stack([(known == 1).sum(axis=0) for known in of_class], axis=1)
        number = np.stack([(known != UNKNOWN).sum(axis=0) for known in of_class], axis=1)
        theta = (positive + self.strength * self._prior) / (number + self.strength)
        present, absent = np.log(theta[:, 1] / theta[:, 0]), np.log((1 - theta[:, 1]) / (1 - theta[:, 0]))
        return FunctionClassifier(self.tasks_, partial(self._score, support, y, present, absent))

    def _score(
        self,
        support: Molecules,
        y: NDArray[np.int8],
        present: NDArray[Any],
        absent: NDArray[Any],
        molecules: Molecules,
        known: NDArray[np.int8],
    ) -> NDArray[Any]:
        ratios = (known == 1) @ present + (known == 0) @ absent
        score = ratios / np.sqrt(np.maximum((known != UNKNOWN).sum(axis=1), 1))
        if self.similarity:
            score = score + self.similarity * similarity_vote(support, y, molecules)
        return np.asarray(expit(score))


class TanimotoVote(BaseEstimator, FewShotMethod):
    """Weighted nearest neighbours: the support's labels, by a softmax of ten times the Tanimoto similarity."""

    def _fit(self, table: MoleculeTable) -> None: ...

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier:
        return FunctionClassifier(self.tasks_, partial(self._score, support, y))

    def _score(
        self, support: Molecules, y: NDArray[np.int8], molecules: Molecules, known: NDArray[np.int8]
    ) -> NDArray[Any]:
        return (1 + similarity_vote(support, y, molecules)) / 2


def similarity_vote(support: Molecules, y: NDArray[np.int8], molecules: Molecules) -> NDArray[Any]:
    """In [-1, 1], (n,)."""
    return np.asarray(softmax(10 * tanimoto(molecules, support), axis=1) @ (2.0 * y - 1))


def signed(context: NDArray[np.int8]) -> NDArray[np.float64]:
    """1 active, -1 inactive, 0 unknown."""
    return np.where(context == UNKNOWN, 0.0, 2.0 * context - 1)
