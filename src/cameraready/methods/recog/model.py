"""`ReCoG`: learn from a table of old assays, then rank molecules in a new one from a few labels."""

from __future__ import annotations

import copy
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from cameraready.methods.recog.classifier import Context, FewShotClassifier, FewShotMethod, as_context, as_molecules
from cameraready.methods.recog.encoders import make_encoder
from cameraready.methods.recog.episodes import Episodes, adaptation, split_targets
from cameraready.methods.recog.label_statistics import LabelStatistics
from cameraready.methods.recog.molecules import Molecules, tanimoto
from cameraready.methods.recog.network import ReCoGNetwork
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable
from cameraready.methods.recog.training import Schedule, inner_step, train

CHUNK = 1024  # queries at a time
EXPLAINED = ["molecule", "probability", "task", "label", "gate", "llr", "evidence"]
EXPLAINED += ["nearest", "nearest_label", "similarity"]


class ReCoG(BaseEstimator, FewShotMethod):
    """Few-shot property prediction on a relational and compact context graph.

    Parameters
    ----------
    encoder : {"ecfp", "gin"}
        An MLP on Morgan fingerprints, or a graph network on atoms and bonds (needs torch_geometric).
    steps : training steps of 4 episodes each; 2000 for best results.
    shots : labelled molecules of each class in the training's episodes; what you adapt to may have others.
    relations : cross-task relations (molecule, target, task); False for a plain molecule-task graph.
    bottleneck : gates on the context edges, trained to stay shut where they do not help.
    beta : weight of the bottleneck's compression term, 0.01 to 0.2.
    targets : names of the tasks to train on as targets; default: all. The others are context only.
    adapt_by : {"forward", "maml"}
        The forward pass alone, or one gradient step on the support first (never with one molecule a class).
    inner_rate : learning rate of that step.
    width : of the network
    layers : of the "gin" encoder
    learning_rate, weight_decay : of AdamW
    device : "cpu", "cuda", ...
    random_state : seed of the weights and episodes

    Attributes
    ----------
    module : ReCoGNetwork; called with `Episodes` it returns ``(logits, kl, gates, base)``
    tasks_ : tuple of str, the old assays
    held_out_ : tuple of str, the tasks that were kept to stop the training
    history_ : DataFrame of step, loss, compression, held_out_auc

    Examples
    --------
    >>> chain = ["C" * n for n in range(1, 25)]
    >>> labels = pd.DataFrame({f"longer than {n}": [float(len(s) > n) for s in chain] for n in (8, 10, 12, 14)})
    >>> table = MoleculeTable.from_frame(labels.assign(smiles=chain))
    >>> model = ReCoG(steps=0, random_state=0).fit(table, tasks=["longer than 8", "longer than 10", "longer than 14"])
    >>> new = model.adapt(["CCCC", "CCCCC", "C" * 20, "C" * 21], [0, 0, 1, 1])
    >>> new.predict(["CCC", "C" * 22]).tolist()
    [0, 1]
    """

    def __init__(
        self,
        encoder: Literal["ecfp", "gin"] = "ecfp",
        *,
        steps: int = 300,
        shots: int = 10,
        relations: bool = True,
        bottleneck: bool = True,
        beta: float = 0.05,
        targets: Sequence[str] | None = None,
        adapt_by: Literal["forward", "maml"] = "forward",
        inner_rate: float = 0.05,
        width: int = 64,
        layers: int = 3,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        device: str = "cpu",
        random_state: int | None = None,
    ) -> None:
        self.encoder = encoder
        self.steps = steps
        self.shots = shots
        self.relations = relations
        self.bottleneck = bottleneck
        self.beta = beta
        self.targets = targets
        self.adapt_by = adapt_by
        self.inner_rate = inner_rate
        self.width = width
        self.layers = layers
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def fit(self, table: MoleculeTable, tasks: Sequence[str] | None = None) -> ReCoG:
        """Train on these tasks of the table (default: all).

        Raises
        ------
        ValueError : parameters out of range, an unknown task, fewer than two tasks with two molecules of each class,
            a GPU that is not there.
        ImportError : encoder="gin" without torch_geometric.
        """
        self._check()
        super().fit(table, tasks)
        return self

    def _check(self) -> None:
        for name, least in (("steps", 0), ("shots", 1), ("width", 1), ("layers", 1)):
            if not isinstance(value := getattr(self, name), numbers.Integral) or value < least:
                raise ValueError(f"{name}={value!r}; pass a whole number of at least {least}")
        for name in ("beta", "weight_decay", "learning_rate", "inner_rate"):
            if not isinstance(value := getattr(self, name), numbers.Real) or not 0 <= value < np.inf:
                raise ValueError(f"{name}={value!r}; pass a number of at least 0")
        if self.adapt_by not in ("forward", "maml"):
            raise ValueError(f"adapt_by={self.adapt_by!r}; choose 'forward' or 'maml'")
        try:
            kind = torch.device(self.device).type
        except RuntimeError as error:
            raise ValueError(f"device={self.device!r}; choose 'cpu', 'cuda', ... ({error})") from error
        if kind == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device={self.device!r}, but torch sees no GPU here; pass 'cpu'")

    def _fit(self, table: MoleculeTable) -> None:
        rng = np.random.default_rng(self.random_state)
        chosen = np.arange(len(table.tasks)) if self.targets is None else table.columns_of(self.targets)
        targets, held_out = (chosen[part] for part in split_targets(table.labels[:, chosen], rng))
        if self.steps and len(targets) < 2:
            raise ValueError(
                f"{len(targets)} of the {len(chosen)} tasks have two actives and two inactives; training needs two"
            )
        self.held_out_ = tuple(table.tasks[column] for column in held_out)
        self._statistics = LabelStatistics.of(table.labels)
        device = torch.device(self.device)
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**63 - 1)))
            encoder = make_encoder(self.encoder, width=self.width, layers=self.layers)
            self.module = ReCoGNetwork(
                encoder, width=self.width, relations=self.relations, bottleneck=self.bottleneck
            ).to(device)
            schedule = Schedule(
                self.steps, self.shots, self.beta, self.learning_rate, self.weight_decay, self._inner_rate
            )
            self.history_ = train(
                self.module,
                table,
                self._statistics,
                targets=targets,
                held_out=held_out,
                schedule=schedule,
                rng=rng,
                device=device,
            )

    @property
    def _inner_rate(self) -> float | None:
        return self.inner_rate if self.adapt_by == "maml" else None

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> ReCoGClassifier:
        return ReCoGClassifier(self, support, y, context)


class ReCoGClassifier(FewShotClassifier):
    """A `ReCoG` model with the labels of one new task; made by `ReCoG.adapt`."""

    def __init__(self, model: ReCoG, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> None:
        super().__init__(model.tasks_)
        self._model = model
        self._support, self._y, self._context = support, y, context
        self.module = model.module
        if model._inner_rate is not None:
            moved = inner_step(model.module, self._episodes(support, context), model._inner_rate)
            self.module = copy.deepcopy(model.module)
            self.module.load_state_dict(moved, strict=False)

    def explain(self, query: Sequence[str] | Molecules, context: Context = None) -> pd.DataFrame:
        """What a prediction rests on: one row for each known label of each molecule, one with no task where none is.

        Columns: molecule; probability of active; task, its label, its gate (0 shut to 1 open), llr (the log likelihood
        ratio of that label for the new task), evidence (what it adds to the logit); the nearest molecule of the
        support, its label and Tanimoto similarity.
        """
        molecules = as_molecules(query)
        known = as_context(context, len(molecules) + len(molecules.rejected), self.tasks_)[molecules.rows]
        if molecules.rejected:
            warnings.warn(f"rows {[row for row, _ in molecules.rejected]} are not molecules", stacklevel=2)
        if len(molecules) == 0:
            return pd.DataFrame(columns=EXPLAINED)
        episodes = self._episodes(molecules, known)
        with torch.no_grad():
            logits, _, gates, _ = self.module(episodes)
            h = self.module.encoder(episodes.inputs)
            evidence = self.module.condition(episodes, h[episodes.support]).evidence[0].cpu().numpy()
        weight = self.module.evidence_weight.item()
        probability, gates = torch.sigmoid(logits[0]).cpu().numpy(), gates[0].cpu().numpy()
        similar = tanimoto(molecules, self._support)
        rows = []
        for q, name in enumerate(molecules.smiles):
            nearest = int(similar[q].argmax())
            neighbour = (self._support.smiles[nearest], int(self._y[nearest]), float(similar[q, nearest]))
            tasks = np.flatnonzero(known[q] != UNKNOWN)
            for p in tasks:
                label = known[q, p]
                llr = float(evidence[p, label])
                gate = float(gates[q, p])
                adds = weight * gate * llr / np.sqrt(len(tasks))
                rows.append((name, probability[q], self.tasks_[p], int(label), gate, llr, adds, *neighbour))
            if len(tasks) == 0:
                rows.append((name, probability[q], None, None, np.nan, np.nan, 0.0, *neighbour))
        return pd.DataFrame(rows, columns=EXPLAINED).astype({"label": "Int64"})

    def _probability(self, molecules: Molecules, context: NDArray[np.int8]) -> NDArray[Any]:
        chunks = []
        for start in range(0, len(molecules), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(molecules)))
            episodes = self._episodes(molecules.take(rows), context[rows])
            with torch.no_grad():
                chunks.append(torch.sigmoid(self.module(episodes).logits[0]).cpu().numpy())
        return np.concatenate(chunks)

    def _episodes(self, molecules: Molecules, context: NDArray[np.int8]) -> Episodes:
        model = self._model
        return adaptation(
            self._support,
            self._y,
            self._context,
            molecules,
            context,
            model._statistics,
            model.module.encoder,
            device=torch.device(model.device),
        )
