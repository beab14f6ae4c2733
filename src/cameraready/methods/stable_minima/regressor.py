"""A two-layer ReLU regressor trained by full-batch gradient descent, which knows how stable its minimum is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from cameraready.methods.stable_minima.relu_report import ReluReport, measured
from cameraready.methods.stable_minima.two_layer import TwoLayer, gradient_descent, hessian, largest_eigenvalue

Floats = NDArray[np.float64]


def stability(net: TwoLayer, X: Floats, y: Floats, *, lr: float) -> ReluReport:
    """The `ReluReport` of a network on its training data, for gradient descent on 1/(2n) sum (f(x_i) - y_i)^2."""
    return measured(net.block(X), y[:, None], lambda_max=largest_eigenvalue(hessian(net, X, y)), edge=2 / lr)


class TwoLayerReLURegressor(RegressorMixin, BaseEstimator):
    """f(x) = sum_k v_k ReLU(w_k.x - b_k) + c by gradient descent on half the mean squared error, in float64.

    A large learning rate keeps the network at flat minima: its weighted path norm cannot exceed 1/lr + ... (see
    ``stability_``). Whether that prevents memorising depends on the geometry of the data: see `shatterability`.

    Parameters
    ----------
    width : number of neurons.
    lr : learning rate, in units where columns are standardised, the mean squared norm of a row is 1, and y has
        variance 1; 0.3 is large and usually trains at the edge of stability.
    epochs : gradient steps, each on all the data.
    standardise : bring X and y to these units; otherwise they are taken as they are.
    random_state : seed of the weights, uniform in +-1/sqrt(fan in).

    Attributes
    ----------
    net_ : the trained `TwoLayer`, in the units above.
    stability_ : `ReluReport` on the training data at the end of training, in these units: sharpness against the edge
        2 / lr, path norm, bounds, neurons.

    Raises
    ------
    ValueError : width or epochs below 1, lr not positive, a learning rate at which training diverges.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TwoLayerReLURegressor(width=64, epochs=500, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.5), model.stability_.stable
    (True, True)
    """

    def __init__(
        self,
        width: int = 512,
        *,
        lr: float = 0.3,
        epochs: int = 4000,
        standardise: bool = True,
        random_state: Any = None,
    ) -> None:
        self.width = width
        self.lr = lr
        self.epochs = epochs
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> TwoLayerReLURegressor:
        """Train on X (n, d) and y (n,)."""
        for name in ("width", "epochs"):
            if not isinstance(value := getattr(self, name), (int, np.integer)) or value < 1:
                raise ValueError(f"{name}={value!r}; it must be a whole number, at least 1")
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr}; it must be positive")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self.x_mean_, self.x_scale_ = np.zeros(X.shape[1]), np.ones(X.shape[1])
        self.y_mean_, self.y_scale_ = 0.0, 1.0
        if self.standardise:
            spread, self.x_mean_ = X.std(axis=0), X.mean(axis=0)
            self.x_scale_ = np.where(spread > 0, spread, 1.0) * np.sqrt(X.shape[1])
            self.y_mean_, self.y_scale_ = float(y.mean()), float(y.std()) or 1.0
        inputs, targets = self._inputs(X), (y - self.y_mean_) / self.y_scale_
        seed = check_random_state(self.random_state).randint(2**31)
        start = TwoLayer.random(X.shape[1], width=int(self.width), rng=np.random.default_rng(seed))
        try:
            self.net_ = gradient_descent(start, inputs, targets, lr=self.lr, steps=int(self.epochs))
        except FloatingPointError as error:
            limit = 2 / largest_eigenvalue(hessian(start, inputs, targets))
            raise ValueError(f"{error}; at the start, stable steps are below lr={limit:.3g}") from error
        self.stability_ = stability(self.net_, inputs, targets, lr=self.lr)
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Predictions (n,), in the units of y."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.net_.predict(self._inputs(X)) * self.y_scale_ + self.y_mean_

    def _inputs(self, X: Floats) -> Floats:
        return (X - self.x_mean_) / self.x_scale_
