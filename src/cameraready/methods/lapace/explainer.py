"""LAPACE: latent paths from an input to the centroids of the class that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.black_box import BlackBox
from cameraready.methods.lapace.centroids import Centroids, find_centroids
from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.constraints import Constraints
from cameraready.methods.lapace.mixture_vae import LGMVAE
from cameraready.methods.lapace.path_search import Chosen, PathSearch, Walk
from cameraready.methods.lapace.results import CounterfactualPath, Explanation
from cameraready.methods.lapace.space import TabularSpace
from cameraready.methods.lapace.training import Training, train

CHUNK_BYTES = 64 * 2**20
Select = Literal["first", "confident", "last"] | float


class LAPACEExplainer:
    """Counterfactual explanations of any tabular classifier: several options an input, one call for many inputs.

    Parameters
    ----------
    predict_proba : function from a DataFrame to probabilities (n, C), or an object with that method.
    space : which columns hold what; ``TabularSpace.infer(df)`` guesses.
    n_components : components K of every class, the most options an input can get. Default 3.
    latent_dim : default half the encoded width, within [4, 16].
    labels : "model" explains the model by its own labels (default); "truth" trains the autoencoder on ``fit``'s y.
    threshold : probability from which a point counts as valid; the class must also be the most probable. Default 0.5.
    grid : points T on a path. Default 21.
    training : settings of the autoencoder's training.
    classes : labels of predict_proba's columns, default the model's ``classes_`` or 0 to C-1.
    random_state : same seed, same explanations (on one device).
    device : "cpu" or a torch device for the autoencoder; the model runs wherever it runs.

    Attributes
    ----------
    centroids_ : DataFrame, a row a centroid: class, k, weight, probability, LOF, active, source, then the columns.
    vae_ : the fitted `LGMVAE`. background_ : model, space and training rows. history_ : validation ELBO by epoch.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> people = pd.DataFrame({"income": rng.normal(50, 10, 300), "home": rng.choice(["own", "rent"], 300)})
    >>> def predict_proba(rows):
    ...     p = 1 / (1 + np.exp(-(rows["income"] - 50 + 5 * (rows["home"] == "own")) / 3))
    ...     return np.column_stack([1 - p, p])
    >>> explainer = LAPACEExplainer(predict_proba, TabularSpace.infer(people)).fit(people)
    >>> found = explainer.explain(people[people["income"] < 40], target=1, constraints=Constraints(immutable=["home"]))
    >>> found[0].status, bool((predict_proba(found[0].options)[:, 1] >= 0.5).all())
    ('ok', True)
    """

    def __init__(
        self,
        predict_proba: Any,
        space: TabularSpace,
        *,
        n_components: int = 3,
        latent_dim: int | None = None,
        labels: Literal["model", "truth"] = "model",
        threshold: float = 0.5,
        grid: int = 21,
        training: Training | None = None,
        classes: Sequence[Any] | None = None,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.predict_proba = predict_proba
        self.space = space
        self.n_components = n_components
        self.latent_dim = latent_dim
        self.labels = labels
        self.threshold = threshold
        self.grid = grid
        self.training = training or Training()
        self.classes = classes
        self.random_state = random_state
        self.device = device

    def fit(self, X: pd.DataFrame, y: Any = None) -> LAPACEExplainer:
        """Train the autoencoder on training rows X; y is needed for ``labels="truth"`` only.

        Raises
        ------
        TypeError, ValueError : unusable rows (see `TabularSpace.fit`), a model whose answers are no probabilities or
            that predicts one class only, settings out of range.
        """
        self._check_settings()
        self.background_ = Background(self.predict_proba, self.space, X, classes=self.classes)
        labels = self._training_labels(X, y)
        device = torch.device(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.vae_ = LGMVAE(
                self.background_.space,
                len(self.background_.classes),
                n_components=self.n_components,
                latent_dim=self.latent_dim,
            ).to(device)
        x = torch.as_tensor(self.background_.encoded, dtype=torch.float32, device=device)
        y_ = torch.as_tensor(labels, device=device)
        self.history_ = train(self.vae_, x, y_, settings=self.training, seed=self.random_state)
        self._find_centroids()
        return self

    def explain(
        self,
        X: pd.DataFrame,
        *,
        target: Any = "opposite",
        constraints: Constraints | None = None,
        select: Select = "first",
        n_options: int | None = None,
        keep_unchanged: float | None = None,
        steering: bool = True,
    ) -> list[Explanation]:
        """Options for every row of X, in order.

        Parameters
        ----------
        target : a class, or "opposite" where there are two.
        constraints : kept exactly by every returned row; rows that cannot are dropped.
        select : where on each path the option lies: "first" where it enters the class for good (near), "confident"
            where its probability reaches 0.8 for good, "last" at the centroid (typical, the same for all inputs), or a
            share in [0, 1] of the way from the first to the last.
        n_options : at most K, default K; the nearest, then greedily the most different. Equal options are one.
        keep_unchanged : tau in (0, 1): a number that the path moves by less than tau of its range, and a category that
            it does not move, keep the input's value exactly. Fewer columns change; options then depend on the input.
        steering : False only projects onto the constraints, without the gradient steps through the decoder before.

        Returns
        -------
        One `Explanation` a row. A row that cannot be explained has another status than "ok", and raises nothing.

        Raises
        ------
        ValueError, TypeError : unknown columns, levels or classes, settings out of range, constraints that exclude the
            training data.
        """
        self._require_fitted()
        n_options = self._check_request(select, n_options, keep_unchanged)
        background = self.background_
        codes = background.space.codes(X)
        bound = (constraints or Constraints()).bind(background.space, codes)
        if len(codes) == 0:
            return []
        proba = background.box(codes)
        error = np.isnan(proba).any(axis=1)
        labels = np.where(error, 0, proba.argmax(axis=1))
        targets = background.targets(target, labels)
        own = proba[np.arange(len(codes)), targets]
        already = ~error & (labels == targets) & (own >= self.threshold)
        status = np.select([error, already, ~bound.feasible], ["model_error", "already_target", "infeasible"], "open")
        found: dict[int, Explanation] = {}
        for position, state in enumerate(status):
            if state != "open":
                kept = codes[[position]] if state == "already_target" else codes[:0]
                found[position] = self._plain(str(state), targets[position], codes[position], kept, own[[position]])
        for goal in np.unique(targets[status == "open"]):
            rows = np.flatnonzero((status == "open") & (targets == goal))
            if not self._centroids.active[goal].any():
                found |= {row: self._plain("no_valid_path", goal, codes[row], codes[:0], own[:0]) for row in rows}
                continue
            for chunk in np.array_split(rows, self._chunks(len(rows))):
                search = PathSearch(
                    model=self.vae_,
                    background=background,
                    bound=bound,
                    target=int(goal),
                    threshold=self.threshold,
                    keep_unchanged=keep_unchanged,
                    steering=steering,
                    device=torch.device(self.device),
                )
                found |= self._explain_rows(chunk, search, select, n_options)
        return [found[position] for position in range(len(codes))]

    def save(self, directory: str | Path) -> None:
        """Write everything but the model, with the training rows, to ``directory``."""
        self._require_fitted()
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: value for name, value in vars(self).items() if name not in ("predict_proba", "vae_")}
        box = self.background_.box
        call, box.call = box.call, None  # type: ignore[assignment]
        try:
            joblib.dump(state, folder / "explainer.joblib")
        finally:
            box.call = call
        torch.save(self.vae_.cpu().state_dict(), folder / "vae.pt")
        self.vae_.to(self.device)

    @classmethod
    def load(cls, directory: str | Path, predict_proba: Any) -> LAPACEExplainer:
        """Read what `save` wrote; the model is given anew. Files are pickles: load only those that you trust."""
        folder = Path(directory)
        explainer = cls.__new__(cls)
        vars(explainer).update(joblib.load(folder / "explainer.joblib"))
        explainer.predict_proba = predict_proba
        background = explainer.background_
        background.box.call = BlackBox(predict_proba, background.space).call
        explainer.vae_ = LGMVAE(
            background.space,
            len(background.classes),
            n_components=explainer.n_components,
            latent_dim=explainer.latent_dim,
        )
        explainer.vae_.load_state_dict(torch.load(folder / "vae.pt", weights_only=True))
        explainer.vae_.to(explainer.device)
        return explainer

    def _explain_rows(
        self, rows: NDArray[np.intp], search: PathSearch, select: Select, n_options: int
    ) -> dict[int, Explanation]:
        goal, inputs = search.target, search.bound.inputs
        active = np.flatnonzero(self._centroids.active[goal])
        centres = self._centroids.latents[goal, torch.as_tensor(active)].to(self.device)
        walk = search.walk(rows, centres, np.linspace(0.0, 1.0, self.grid))
        chosen = search.select(walk, select)
        orders = self._orders(chosen, inputs[rows], n_options)
        after_first = np.logical_or.accumulate(walk.valid, axis=2)
        dropped = (after_first & ~walk.valid).sum(axis=(1, 2))
        return {
            int(row): self._explanation(i, orders[i], walk, chosen, inputs[row], goal, active, int(dropped[i]))
            for i, row in enumerate(rows)
        }

    def _explanation(
        self,
        i: int,
        order: NDArray[np.intp],
        walk: Walk,
        chosen: Chosen,
        start: Array,
        goal: int,
        active: NDArray[np.intp],
        dropped: int,
    ) -> Explanation:
        paths = tuple(
            CounterfactualPath(
                background=self.background_,
                target=goal,
                start=start,
                component=int(k),
                alphas=walk.alphas,
                codes=walk.codes[i, j],
                probability=walk.p[i, j],
                valid=walk.valid[i, j],
                alpha=float(chosen.alpha[i, j]),
            )
            for j, k in enumerate(active)
        )
        return Explanation(
            background=self.background_,
            status="ok" if len(order) else "no_valid_path",
            target=self.background_.classes[goal],
            start=start,
            option_codes=chosen.codes[i, order],
            probability=chosen.p[i, order],
            paths=paths,
            dropped=dropped,
        )

    def _orders(self, chosen: Chosen, inputs: Array, n_options: int) -> list[NDArray[np.intp]]:
        """For every input the paths whose points become options: the nearest first, then greedy max-min distance."""
        space = self.background_.space
        n, K, _ = chosen.codes.shape
        encoded = space.scale(chosen.codes.reshape(n * K, -1)).reshape(n, K, -1)
        near = np.where(chosen.found, space.distance(encoded, space.scale(inputs)[:, None]), np.inf)
        between = space.distance(encoded[:, :, None], encoded[:, None])
        each, order = np.arange(n), np.full((n, n_options), -1)
        best, further = near.argmin(axis=1), chosen.found.any(axis=1)
        gain = np.where(chosen.found, np.inf, -np.inf)  # distance to the nearest option so far, 0 for an option itself
        for o in range(n_options):
            order[further, o] = best[further]
            gain = np.minimum(gain, between[each, best])
            best = gain.argmax(axis=1)
            further = gain[each, best] > 0  # the same row twice is one option
        by_distance = np.where(order < 0, np.inf, near[each[:, None], order]).argsort(axis=1, kind="stable")
        order = np.take_along_axis(order, by_distance, axis=1)
        return [row[row >= 0] for row in order]

    def _plain(self, status: str, goal: int, start: Array, options: Array, p: Array) -> Explanation:
        return Explanation(
            background=self.background_,
            status=status,
            target=self.background_.classes[goal],
            start=start,
            option_codes=options,
            probability=p[: len(options)],
        )

    def _find_centroids(self) -> None:
        device = torch.device(self.device)
        found = find_centroids(self.vae_, self.background_, threshold=self.threshold, device=device)
        self._centroids: Centroids = found
        self.centroids_ = found.report(self.background_)

    def _chunks(self, n: int) -> int:
        points = self.n_components * self.grid
        space = self.background_.space
        wide = 8 * (space.n_encoded + len(space.columns)) + 4 * (self.vae_.latent_dim + 4 * 64)
        return max(1, -(-n * points * wide // CHUNK_BYTES))

    def _training_labels(self, X: pd.DataFrame, y: Any) -> NDArray[np.intp]:
        if self.labels == "model":
            return self.background_.labels
        if y is None:
            raise ValueError("labels='truth' needs y: fit(X, y)")
        if len(y) != len(X) or len(X) != len(self.background_.labels):
            raise ValueError(f"y has {len(y)} labels for {len(self.background_.labels)} usable rows")
        classes = self.background_.classes
        if unknown := sorted(set(np.asarray(y).tolist()) - set(classes), key=str):
            raise ValueError(f"y holds {unknown}, which are not among the model's classes {classes}")
        return np.array([classes.index(label) for label in np.asarray(y).tolist()])

    def _check_settings(self) -> None:
        for name, least in (("n_components", 1), ("grid", 2)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r}; an integer of at least {least} is needed")
        if self.latent_dim is not None and self.latent_dim < 1:
            raise ValueError(f"latent_dim={self.latent_dim}; at least 1 is needed")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold={self.threshold} is not in [0, 1)")
        if self.labels not in ("model", "truth"):
            raise ValueError(f"labels={self.labels!r}; choose 'model' or 'truth'")
        if not isinstance(self.space, TabularSpace):
            raise TypeError(f"space is {type(self.space).__name__}; pass TabularSpace(...) or TabularSpace.infer(df)")

    def _check_request(self, select: Select, n_options: int | None, keep_unchanged: float | None) -> int:
        number = isinstance(select, int | float) and not isinstance(select, bool) and 0 <= select <= 1
        if not number and select not in ("first", "confident", "last"):
            raise ValueError(f"select={select!r}; choose 'first', 'confident', 'last' or a number in [0, 1]")
        if keep_unchanged is not None and not 0 < keep_unchanged < 1:
            raise ValueError(f"keep_unchanged={keep_unchanged} is not in (0, 1); 0.05 is usual")
        wanted = self.n_components if n_options is None else n_options
        if not 1 <= wanted <= self.n_components:
            raise ValueError(
                f"n_options={n_options}: between 1 and n_components={self.n_components}; raise n_components for more"
            )
        return wanted

    def _require_fitted(self) -> None:
        if not hasattr(self, "vae_"):
            raise ValueError("this LAPACEExplainer is not fitted; call fit(training rows) first")
