"""The methods it is compared with: nearest neighbour, FACE, growing spheres, Wachter, REVISE, and DiCE by dice-ml."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import dijkstra
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.mixture_vae import LGMVAE
from cameraready.methods.lapace.results import Explanation
from cameraready.methods.lapace.space import TabularSpace
from cameraready.methods.lapace.training import Training, train

Network = Callable[[Tensor], Tensor]


class Peer:
    """A counterfactual method with the interface of `LAPACEExplainer`: ``fit(X)``, ``explain(X, target, n_options)``.

    Parameters
    ----------
    predict_proba, space : as for `LAPACEExplainer`. random_state : seed of what is random.
    """

    def __init__(self, predict_proba: Any, space: TabularSpace, *, random_state: int = 0) -> None:
        self.predict_proba = predict_proba
        self.space = space
        self.random_state = random_state

    def fit(self, X: pd.DataFrame) -> Peer:
        self.background_ = Background(self.predict_proba, self.space, X)
        self._prepare(X)
        return self

    def explain(self, X: pd.DataFrame, *, target: Any = "opposite", n_options: int = 3) -> list[Explanation]:
        background = self.background_
        codes = background.space.codes(X)
        proba = background.box(codes)
        labels = proba.argmax(axis=1)
        goals = background.targets(target, labels)
        found: list[Explanation] = [None] * len(codes)  # type: ignore[list-item]
        for goal in np.unique(goals):
            rows = np.flatnonzero(goals == goal)
            for row, options in zip(rows, self._options(codes[rows], int(goal), n_options), strict=True):
                p = background.box(options)[:, goal] if len(options) else np.empty(0)
                found[row] = Explanation(
                    background=background,
                    status="ok" if len(options) else "no_valid_path",
                    target=background.classes[goal],
                    start=codes[row],
                    option_codes=options,
                    probability=p,
                )
        return found

    def _prepare(self, X: pd.DataFrame) -> None:
        """What is learned once from the training rows."""

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        """Option sets as codes (o, n_columns), one an input of codes (n, n_columns)."""
        raise NotImplementedError

    def _valid(self, codes: Array, goal: int) -> NDArray[np.bool_]:
        return self.background_.box(codes).argmax(axis=1) == goal

    def _nearest(self, options: Array, start: Array, n_options: int) -> Array:
        """The options nearest to an input, without repeats."""
        space = self.background_.space
        options = np.unique(options, axis=0)
        order = space.distances(space.scale(options), space.scale(start[None]))[:, 0].argsort(kind="stable")
        return options[order[:n_options]]


class NearestNeighbourCE(Peer):
    """The training rows of the target class that are nearest to the input."""

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        background, space = self.background_, self.background_.space
        rows = np.unique(background.codes[background.labels == goal], axis=0)
        index = NearestNeighbors(metric="manhattan").fit(space.scale(rows) * space.weights)
        near = index.kneighbors(space.scale(codes) * space.weights, min(n_options, len(rows)), return_distance=False)
        return [rows[row] for row in near]


class FACE(Peer):
    """Training rows of the target class with the shortest way through the k-nearest-neighbour graph (k = 10)."""

    k = 10

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        background, space = self.background_, self.background_.space
        points = background.encoded * space.weights
        queries = space.scale(codes) * space.weights
        n, m = len(points), len(queries)
        index = NearestNeighbors(metric="manhattan").fit(points)
        k = min(self.k, n - 1)
        inner = index.kneighbors_graph(None, k, mode="distance")
        outer = index.kneighbors_graph(queries, k, mode="distance")
        for graph in (inner, outer):
            graph.data += 1e-9  # an edge of 0 would be no edge
        # The rows' own graph is undirected; a query only has edges to its neighbours, so that none is a stepping stone.
        graph = block_array([[inner.maximum(inner.T), None], [outer, csr_array((m, m))]], format="csr")
        ways = dijkstra(graph, indices=n + np.arange(m))[:, :n]
        ways[:, background.labels != goal] = np.inf
        order = ways.argsort(axis=1, kind="stable")
        return [
            background.codes[[j for j in order[i, : 5 * n_options] if np.isfinite(ways[i, j])][:n_options]]
            for i in range(m)
        ]


class GrowingSpheres(Peer):
    """Random rows in a sphere around the input that shrinks, then grows until it holds rows of the target class.

    Then columns go back to the input's values, smallest changes first, as long as the class stays. Laugel et al. 2018.
    All inputs are searched in parallel.
    """

    samples, start_radius, growth, rounds, halvings = 2000, 0.1, 1.3, 30, 10

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        rng = np.random.default_rng(self.random_state)
        n = len(codes)
        radius = np.full(n, self.start_radius)
        found = self._spheres(codes, np.zeros(n), radius, goal, rng)
        shrinking = np.array([len(rows) > 0 for rows in found])
        for _ in range(self.halvings):
            inside = np.flatnonzero(shrinking)
            closer = self._spheres(codes[inside], np.zeros(len(inside)), radius[inside] / 2, goal, rng)
            for i, rows in zip(inside, closer, strict=True):
                shrinking[i] = len(rows) > 0
                if shrinking[i]:
                    found[i], radius[i] = rows, radius[i] / 2
        for _ in range(self.rounds):
            growing = np.flatnonzero([len(rows) < n_options for rows in found])
            outer = radius[growing] * self.growth
            new = self._spheres(codes[growing], radius[growing], outer, goal, rng)
            radius[growing] = outer
            for i, rows in zip(growing, new, strict=True):
                found[i] = np.concatenate([found[i], rows])
        nearest = [self._nearest(rows, codes[i], n_options) for i, rows in enumerate(found)]
        sparse = self._sparsify(nearest, codes, goal)
        return [self._nearest(rows, codes[i], n_options) for i, rows in enumerate(sparse)]

    def _spheres(self, codes: Array, inner: Array, outer: Array, goal: int, rng: np.random.Generator) -> list[Array]:
        """For every input, the rows of the class among samples that are uniform in its spherical layer."""
        space, n = self.background_.space, len(codes)
        if n == 0:
            return []
        d = space.n_encoded
        directions = rng.normal(size=(n, self.samples, d))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        hollow = ((inner / outer) ** d)[:, None]
        radii = outer[:, None] * (rng.uniform(size=(n, self.samples)) * (1 - hollow) + hollow) ** (1 / d)
        points = space.scale(codes)[:, None] + radii[..., None] * directions
        rows = space.snap(points.reshape(-1, d))
        valid = self._valid(rows, goal).reshape(n, -1)
        return [part[keep] for part, keep in zip(rows.reshape(n, self.samples, -1), valid, strict=True)]

    def _sparsify(self, sets: list[Array], codes: Array, goal: int) -> list[Array]:
        space = self.background_.space
        owner = np.repeat(np.arange(len(sets)), [len(rows) for rows in sets])
        rows, starts = np.concatenate(sets), codes[owner]
        moves = np.where(space.numeric, np.abs(rows - starts) / np.maximum(space.spans, 1e-12), 1.0)
        for columns in moves.argsort(axis=1, kind="stable").T:
            trial = rows.copy()
            each = np.arange(len(rows)), columns
            trial[each] = starts[each]
            rows = np.where(self._valid(trial, goal)[:, None], trial, rows)
        return [rows[owner == i] for i in range(len(sets))]


class WachterCE(Peer):
    """min over x' of lam (target loss) + L1 distance by Adam; lam doubles until the class changes. Wachter 2018.

    All inputs and ``n_options`` starts (the input, and the input with noise of 0.05) run in parallel.

    Parameters
    ----------
    network : differentiable map from encoded rows (m, D) to class scores (m, C), the same model as ``predict_proba``.
    """

    first_lam, rounds, steps, learning_rate = 0.1, 12, 50, 0.01

    def __init__(self, predict_proba: Any, space: TabularSpace, *, network: Network, random_state: int = 0) -> None:
        super().__init__(predict_proba, space, random_state=random_state)
        self.network = network

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        space = self.background_.space
        x0 = torch.as_tensor(space.scale(codes)).repeat_interleave(n_options, dim=0)
        generator = torch.Generator().manual_seed(self.random_state)
        noise = 0.05 * torch.randn(x0.shape, generator=generator, dtype=x0.dtype)
        noise[::n_options] = 0.0
        weights = torch.as_tensor(space.weights)

        def objective(x: Tensor, lam: float, rows: Tensor) -> Tensor:
            wrong = nn.functional.cross_entropy(self.network(x), torch.full((len(x),), goal), reduction="none")
            return lam * wrong + ((x - x0[rows]).abs() * weights).sum(dim=-1)

        found = _escalate(
            self,
            start=(x0 + noise).clamp(0, 1),
            to_encoded=lambda x: x.clamp(0, 1),
            objective=objective,
            goal=goal,
        )
        return _gather(self, found, codes, n_options)


class ReviseCE(Peer):
    """Wachter's search in the latent space of a plain VAE of the same size as LAPACE's. Joshi et al. 2019 (REVISE)."""

    first_lam, rounds, steps, learning_rate = 0.1, 12, 50, 0.05

    def __init__(self, predict_proba: Any, space: TabularSpace, *, network: Network, random_state: int = 0) -> None:
        super().__init__(predict_proba, space, random_state=random_state)
        self.network = network

    def _prepare(self, X: pd.DataFrame) -> None:
        background = self.background_
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.vae_ = LGMVAE(background.space, len(background.classes))
        x = torch.as_tensor(background.encoded, dtype=torch.float32)
        train(
            self.vae_,
            x,
            torch.as_tensor(background.labels),
            settings=Training(prior="standard"),
            seed=self.random_state,
        )
        self.vae_.double()

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        space = self.background_.space
        x0 = torch.as_tensor(space.scale(codes)).repeat_interleave(n_options, dim=0)
        with torch.no_grad():
            z0 = self.vae_.encode(x0)[0]
        noise = 0.2 * torch.randn(z0.shape, generator=torch.Generator().manual_seed(self.random_state), dtype=z0.dtype)
        noise[::n_options] = 0.0
        weights = torch.as_tensor(space.weights)

        def objective(z: Tensor, lam: float, rows: Tensor) -> Tensor:
            x = self.vae_.decode(z)
            wrong = nn.functional.cross_entropy(self.network(x), torch.full((len(x),), goal), reduction="none")
            return lam * wrong + ((x - x0[rows]).abs() * weights).sum(dim=-1)

        found = _escalate(self, start=z0 + noise, to_encoded=self.vae_.decode, objective=objective, goal=goal)
        return _gather(self, found, codes, n_options)


def _escalate(
    peer: WachterCE | ReviseCE,
    *,
    start: Tensor,
    to_encoded: Callable[[Tensor], Tensor],
    objective: Callable[[Tensor, float, Tensor], Tensor],
    goal: int,
) -> Array:
    """Adam rounds with a doubling lam; a point leaves as soon as its *decoded* row has the class. NaN: never did."""
    space = peer.background_.space
    found = np.full((len(start), len(space.columns)), np.nan)
    left, point, lam = torch.arange(len(start)), start.clone(), peer.first_lam
    for _ in range(peer.rounds):
        point = point.detach().requires_grad_(True)
        optimizer = torch.optim.Adam([point], lr=peer.learning_rate)
        for _ in range(peer.steps):
            optimizer.zero_grad()
            objective(point, lam, left).sum().backward()
            optimizer.step()
        with torch.no_grad():
            codes = space.snap(to_encoded(point).numpy())
        valid = peer._valid(codes, goal)
        found[left.numpy()[valid]] = codes[valid]
        keep = torch.as_tensor(~valid)
        left, point, lam = left[keep], point.detach()[keep], 2 * lam
        if not len(left):
            break
    return found


def _gather(peer: Peer, found: Array, codes: Array, n_options: int) -> list[Array]:
    sets = found.reshape(len(codes), n_options, -1)
    missing = np.isnan(sets).all(axis=2)
    return [peer._nearest(sets[i][~missing[i]], codes[i], n_options) for i in range(len(codes))]


def torch_network(classifier: Any) -> nn.Module:
    """A scikit-learn ``MLPClassifier`` (ReLU) as a torch module: rows (m, D) to class scores (m, C), float64."""
    layers: list[nn.Module] = []
    for W, b in zip(classifier.coefs_, classifier.intercepts_, strict=True):
        linear = nn.Linear(*W.shape, dtype=torch.float64)
        linear.weight.data, linear.bias.data = torch.as_tensor(W.T.copy()), torch.as_tensor(b.copy())
        layers += [linear, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    return nn.Sequential(network, _TwoScores()) if classifier.n_outputs_ == 1 else network


class _TwoScores(nn.Module):
    """A single logit as the scores of two classes."""

    def forward(self, logit: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(logit), logit], dim=-1)


class DiceAdapter(Peer):
    """dice-ml's DiCE for black boxes, with its own defaults and its binary search for sparsity.

    Parameters
    ----------
    method : "random", "genetic" or "kdtree".
    """

    def __init__(
        self,
        predict_proba: Any,
        space: TabularSpace,
        *,
        method: Literal["random", "genetic", "kdtree"] = "random",
        random_state: int = 0,
    ) -> None:
        super().__init__(predict_proba, space, random_state=random_state)
        self.method = method

    def _prepare(self, X: pd.DataFrame) -> None:
        import dice_ml

        background = self.background_
        rows = self._for_dice(background.space.frame(background.codes))
        data = dice_ml.Data(
            dataframe=rows.assign(_outcome=background.labels),
            continuous_features=[column.name for column in background.space.columns if column.kind == "continuous"],
            outcome_name="_outcome",
        )
        model = dice_ml.Model(model=_ForDice(background), backend="sklearn")
        with _quiet():
            self.dice_ = dice_ml.Dice(data, model, method=self.method)

    def _for_dice(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Categories as plain strings, which is all that dice-ml takes."""
        kinds = {column.name: column.kind for column in self.background_.space.columns}
        return frame.astype({name: object for name, kind in kinds.items() if kind != "continuous"}).astype(
            {name: str for name, kind in kinds.items() if kind != "continuous"}
        )

    def _options(self, codes: Array, goal: int, n_options: int) -> list[Array]:
        queries = self._for_dice(self.background_.space.frame(codes))
        # The default linear search calls the model once for every unit of a column, up to 10,000 times an option: a
        # minute and more an input where incomes are in single units. For wide ranges DiCE's advice is the binary one.
        asked: dict[str, Any] = {"total_CFs": n_options, "desired_class": goal, "posthoc_sparsity_algorithm": "binary"}
        if self.method == "random":
            asked["random_seed"] = self.random_state
        sets = []
        for i in range(len(queries)):
            try:
                with _quiet():
                    answer = self.dice_.generate_counterfactuals(queries.iloc[[i]], **asked).cf_examples_list[0]
            except Exception:  # dice-ml raises where it finds nothing, in several types
                sets.append(codes[:0])
                continue
            found = codes[:0] if answer.final_cfs_df is None else _from_dice(self.background_, answer.final_cfs_df)
            if len(found) and answer.final_cfs_df_sparse is not None:
                sparse = _from_dice(self.background_, answer.final_cfs_df_sparse)
                found = np.where(self._valid(sparse, goal)[:, None], sparse, found)  # a binary search may end outside
            sets.append(found)
        return sets


class _ForDice:
    """The black box as the scikit-learn model that dice-ml expects."""

    def __init__(self, background: Background) -> None:
        self.background = background
        self.classes_ = np.arange(len(background.classes))

    def predict_proba(self, rows: pd.DataFrame) -> Array:
        return self.background.box(_from_dice(self.background, rows))

    def predict(self, rows: pd.DataFrame) -> NDArray[np.intp]:
        return self.predict_proba(rows).argmax(axis=1)


def _from_dice(background: Background, rows: pd.DataFrame) -> Array:
    columns = []
    for column in background.space.columns:
        if column.levels is None:
            columns.append(rows[column.name].to_numpy(dtype=float))
        else:
            names = {str(level): code for code, level in enumerate(column.levels)}
            columns.append(rows[column.name].astype(str).map(names).to_numpy(dtype=float))
    return np.column_stack(columns)


@contextlib.contextmanager
def _quiet() -> Any:
    """dice-ml prints and shows progress bars."""
    sink = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        warnings.simplefilter("ignore")
        yield
