"""The one small interface of all concept bottleneck models: concepts(images), a linear head, and retraining."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from cameraready.methods.cbdebug.augmentation import Augmentation
from cameraready.methods.cbdebug.inputs import class_codes, image_tensor
from cameraready.methods.cbdebug.training import Schedule, train


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; each module's own mode is put back."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class ConceptModel(ClassifierMixin, BaseEstimator):
    """A classifier that decides by a linear head on concept activations.

    A fitted model has ``network_`` (a torch module with ``concepts(x) -> (N, M)`` and ``head``, an ``nn.Linear``),
    ``classes_``, ``concept_names_`` and ``removed_``, the numbers of the concepts that debugging has taken out.
    Parameters of constructors are named in the subclasses; all have ``device`` (None: that of the images, if they are
    a tensor, else the CPU), ``batch_size`` and ``random_state``.
    """

    network_: nn.Module
    classes_: NDArray[Any]
    concept_names_: list[str]
    removed_: tuple[int, ...]
    device: str | None
    batch_size: int
    random_state: int | None

    def concepts(self, images: Any) -> NDArray[np.float32]:
        """Concept activations (N, M), in eval mode and in the order of the images."""
        check_fitted(self)
        return self.run(self.network_.concepts, images).numpy()

    def decision_function(self, images: Any) -> NDArray[np.float32]:
        """Logits (N, K)."""
        check_fitted(self)
        return self.run(lambda x: logits(self.network_, self.network_.concepts(x)), images).numpy()

    def predict_proba(self, images: Any) -> NDArray[np.float32]:
        """Class probabilities (N, K)."""
        return torch.from_numpy(self.decision_function(images)).softmax(1).numpy()

    def predict(self, images: Any) -> NDArray[Any]:
        """The likeliest class of each image."""
        return self.classes_[self.decision_function(images).argmax(1)]

    def maps(self, images: Any) -> NDArray[np.float32] | None:
        """Where each concept is seen, (N, M, h, w), for models that know; else None."""
        check_fitted(self)
        if not hasattr(self.network_, "maps"):
            return None
        return self.run(self.network_.maps, images).numpy()

    def at_features(self, x: Tensor) -> tuple[Self, Tensor]:
        """This model and x; where retraining leaves the encoder alone, the part after it and its features of x."""
        return self, x

    @property
    def head_weight_(self) -> NDArray[np.float32]:
        """(K, M): what each concept adds to each class's logit."""
        return self.network_.head.weight.detach().cpu().numpy()

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The kinds of `Augmentation` that this model can be retrained with on images; the best-suited first."""
        return ("patch", "mix") if hasattr(self.network_, "maps") else ("mix",)

    def without(self, removed: Sequence[int]) -> Self:
        """A copy whose head no longer uses these concepts: removal alone, as at test time."""
        other = self.copied()
        with torch.no_grad():
            other.network_.head.weight[:, list(removed)] = 0
        other.removed_ = tuple(sorted({*self.removed_, *removed}))
        return other

    def copied(self) -> Self:
        """A copy that shares nothing which retraining changes."""
        other = copy.copy(self)
        other.network_ = copy.deepcopy(self.network_)
        return other

    @abstractmethod
    def retrained(self, images: Any, y: ArrayLike, *, weights: NDArray[np.float64], augmentation: Augmentation) -> Self:
        """A copy trained on with one weight an image; columns of ``removed_`` stay exactly 0 throughout."""

    def run(self, function: Callable[[Tensor], Tensor], images: Any) -> Tensor:
        """``function`` over batches, collected on the CPU as float32."""
        x = self.tensor(images)
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}; a batch holds at least one image")
        self.network_.to(x.device)
        with evaluating(self.network_):
            try:
                parts = [function(batch).float().cpu() for batch in x.split(self.batch_size)]
            except RuntimeError as error:
                raise ValueError(f"the encoder does not take images of shape {tuple(x.shape)}: {error}") from error
        return torch.cat(parts)

    def tensor(self, images: Any) -> Tensor:
        return image_tensor(images, device=self.device)

    def _name_concepts(self, names: Sequence[str] | None, n_concepts: int, kind: str = "concept") -> None:
        self.concept_names_ = [f"{kind} {j}" for j in range(n_concepts)] if names is None else [str(n) for n in names]
        if len(self.concept_names_) != n_concepts:
            raise ValueError(f"concept_names has {len(self.concept_names_)} names for {n_concepts} concepts")
        if len(set(self.concept_names_)) != n_concepts:
            raise ValueError("concept_names has repeats; each concept needs a name of its own")


def check_fitted(model: ConceptModel) -> None:
    if not hasattr(model, "network_"):
        raise NotFittedError(f"this {type(model).__name__} is not fitted; call fit first")


def logits(network: nn.Module, concepts: Tensor) -> Tensor:
    """The network's own read-out where it has one (prototypes), else its head."""
    return network.logits(concepts) if hasattr(network, "logits") else network.head(concepts)


class ModuleCBM(ConceptModel):
    """Any torch module with ``concepts(x) -> (N, M)`` and ``head``, an ``nn.Linear`` on them, as it was trained.

    Parameters
    ----------
    module : the trained module; it is not changed.
    classes : label of each head row; by default 0, 1, ...
    concept_names : M names; by default "concept 0", ...
    epochs, lr, head_lr : retraining by Adam; ``lr=0`` leaves everything but the head alone.

    Raises
    ------
    TypeError : a module without ``concepts`` or without a linear ``head``.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        classes: ArrayLike | None = None,
        concept_names: Sequence[str] | None = None,
        epochs: int = 10,
        lr: float = 1e-4,
        head_lr: float = 1e-2,
        batch_size: int = 64,
        device: str | None = None,
        random_state: int | None = 0,
    ) -> None:
        head = getattr(module, "head", None)
        if not callable(getattr(module, "concepts", None)) or not isinstance(head, nn.Linear):
            raise TypeError(
                f"{type(module).__name__} is no concept bottleneck: it needs a method concepts(x) -> (N, M) and an "
                "attribute head that is an nn.Linear on them"
            )
        self.module = module
        self.classes = classes
        self.concept_names = concept_names
        self.epochs = epochs
        self.lr = lr
        self.head_lr = head_lr
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state
        self.network_ = module
        self.classes_ = np.arange(head.out_features) if classes is None else np.asarray(classes)
        if len(self.classes_) != head.out_features:
            raise ValueError(f"classes has {len(self.classes_)} labels; the head has {head.out_features} rows")
        self.removed_ = ()
        self._name_concepts(concept_names, head.in_features)

    def retrained(self, images: Any, y: ArrayLike, *, weights: NDArray[np.float64], augmentation: Augmentation) -> Self:
        other = self.copied()
        x = self.tensor(images)
        codes, u = training_tensors(self.classes_, y, weights, x)
        network = other.network_.to(x.device)

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            scores = logits(network, network.concepts(augmentation.images(x[rows], rows, generator)))
            return (u[rows] * nn.functional.cross_entropy(scores, codes[rows], reduction="none")).mean()

        schedule = Schedule(self.epochs, lr=self.lr, head_lr=self.head_lr, batch_size=self.batch_size)
        train(network, len(x), loss, schedule=schedule, removed=self.removed_, seed=self.random_state)
        return other


def training_tensors(
    classes: NDArray[Any], y: ArrayLike, weights: NDArray[np.float64], x: Tensor
) -> tuple[Tensor, Tensor]:
    """Class numbers and weights beside the images."""
    codes = class_codes(y, len(x), classes=classes)[1]
    return torch.as_tensor(codes, device=x.device), torch.as_tensor(weights, dtype=torch.float32, device=x.device)


def as_concept_model(model: Any) -> ConceptModel:
    """The model itself, or a user's torch module behind the same interface."""
    if isinstance(model, ConceptModel):
        check_fitted(model)
        return model
    if isinstance(model, nn.Module):
        return ModuleCBM(model)
    raise TypeError(
        f"{type(model).__name__} is no concept model; pass one of cbdebug's, or a torch module with concepts(x), head"
    )
