"""Who says which concepts are undesired: people, known masks and attributes, language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cameraready.methods.cbdebug.explanations import ConceptExplanation, ConceptExplanations
from cameraready.methods.cbdebug.inputs import check_length


class Expert(Protocol):
    """Anyone who answers ``flag(explanations)`` with the numbers of undesired concepts."""

    def flag(self, explanations: ConceptExplanations) -> list[int]: ...


class CallbackExpert:
    """Ask a function ``undesired(explanation) -> bool`` about each concept.

    Examples
    --------
    >>> expert = CallbackExpert(lambda concept: "background" in concept.name)
    """

    def __init__(self, undesired: Callable[[ConceptExplanation], bool]) -> None:
        self.undesired = undesired

    def flag(self, explanations: ConceptExplanations) -> list[int]:
        return [concept.index for concept in explanations if self.undesired(concept)]


class CSVExpert:
    """Read the file that the page of ``explanations.to_html`` saves: columns concept and undesired (1, or 0 or empty).

    Raises
    ------
    ValueError : missing columns, or concepts that are not those of the model.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def flag(self, explanations: ConceptExplanations) -> list[int]:
        import pandas as pd

        table = pd.read_csv(self.path, dtype=str, keep_default_na=False)
        if missing := {"concept", "undesired"} - set(table.columns):
            raise ValueError(f"{self.path} has no column {', '.join(sorted(missing))}; it has {list(table.columns)}")
        names = explanations.names
        answers = table.undesired.str.strip()
        if not answers.isin(["0", "1", ""]).all():
            raise ValueError(
                f"{self.path} has answers {sorted(set(answers) - {'0', '1', ''})}; undesired is 1, 0 or empty"
            )
        chosen = table.concept[answers == "1"].tolist()
        if unknown := [name for name in chosen if name not in names]:
            raise ValueError(f"{self.path} flags {unknown}, not concepts of this model ({', '.join(names[:8])})")
        return sorted(names.index(name) for name in chosen)


class MaskExpert:
    """Object masks decide: undesired is a concept that is mostly seen outside the object.

    Parameters
    ----------
    masks : (N, H, W) bool, True on the object, for the images that are explained.
    top : strongest images looked at (paper: 30).
    share : of them whose strongest place lies outside the object, above which a concept is flagged (paper: 0.5).
    """

    def __init__(self, masks: ArrayLike, *, top: int = 30, share: float = 0.5) -> None:
        self.masks: NDArray[np.bool_] = np.asarray(masks, dtype=bool)
        self.top = top
        self.share = share

    def flag(self, explanations: ConceptExplanations) -> list[int]:
        images = explanations.images
        check_length("masks", self.masks, len(images))
        if images.ndim != 4 or self.masks.shape[1:] != tuple(images.shape[2:]):
            raise ValueError(f"masks has shape {self.masks.shape}; the images have shape {tuple(images.shape)}")
        flagged = []
        for j in range(len(explanations)):
            rows = explanations.strongest(j, self.top)
            outside = [not self.masks[row][explanations.peak(row, j)] for row in rows]
            if np.mean(outside) > self.share:
                flagged.append(j)
        return flagged


class AttributeExpert:
    """A known attribute decides: undesired is a concept that tells it, and tells it better than the task.

    Flagged where |AUC with the attribute - 1/2| > ``margin`` and exceeds that with the class.

    Parameters
    ----------
    attribute : (N,) two values, for the images that are explained.
    task : (N,) two values; by default the classes that the explanation was given.
    """

    def __init__(self, attribute: ArrayLike, *, task: ArrayLike | None = None, margin: float = 0.25) -> None:
        self.attribute = np.asarray(attribute)
        self.task = None if task is None else np.asarray(task)
        self.margin = margin

    def flag(self, explanations: ConceptExplanations) -> list[int]:
        from sklearn.metrics import roc_auc_score

        task = explanations.y if self.task is None else self.task
        if task is None:
            raise ValueError("the classes are not known; pass y to explain_concepts, or task")
        for name, values in (("attribute", self.attribute), ("task", task)):
            check_length(name, values, len(explanations.activations))
            if len(np.unique(values)) != 2:
                raise ValueError(f"{name} has {len(np.unique(values))} values; two are needed: one against the rest")

        def tells(values: Any, j: int) -> float:
            return abs(roc_auc_score(values == np.unique(values)[0], explanations.activations[:, j]) - 0.5)

        return [
            j
            for j in range(len(explanations))
            if (told := tells(self.attribute, j)) > self.margin and told > tells(np.asarray(task), j)
        ]


class LLMExpert:
    """Ask a language model about each concept's name, as the paper's automated user.

    Parameters
    ----------
    client : OpenAI-compatible: ``client.chat.completions.create(model=..., messages=[...])``.
    model : the language model's name.
    task : what is told apart, such as "waterbird or landbird, from a photograph".

    An answer that is neither SPURIOUS nor NOT is asked for again twice; then the concept stays unflagged, and its name
    goes to ``unanswered``.
    """

    def __init__(self, client: Any, *, model: str, task: str) -> None:
        self.client = client
        self.model = model
        self.task = task
        self.unanswered: list[str] = []

    def flag(self, explanations: ConceptExplanations) -> list[int]:
        self.unanswered = []
        return [concept.index for concept in explanations if self._spurious(concept)]

    def _spurious(self, concept: ConceptExplanation) -> bool:
        spoken_for = max(concept.weights, key=concept.weights.__getitem__)
        question = (
            f"An image classifier decides: {self.task}. Its evidence for the class {spoken_for!r} includes the concept "
            f"{concept.name!r}. Does this concept belong to what defines the class, or is it something that only "
            "happens to come with it, such as surroundings? Answer with one word: SPURIOUS or NOT."
        )
        for _ in range(3):
            reply = self.client.chat.completions.create(
                model=self.model, messages=[{"role": "user", "content": question}]
            )
            words = (reply.choices[0].message.content or "").upper().replace(".", " ").replace("*", " ").split()
            if words and words[0] in ("SPURIOUS", "NOT"):
                return words[0] == "SPURIOUS"
        self.unanswered.append(concept.name)
        return False


class NoisyExpert:
    """Another expert who overlooks flags with probability ``p_miss`` and adds wrong ones with ``p_false``."""

    def __init__(
        self, expert: Expert, *, p_miss: float = 0.0, p_false: float = 0.0, random_state: int | None = 0
    ) -> None:
        if not (0 <= p_miss <= 1 and 0 <= p_false <= 1):
            raise ValueError(f"p_miss={p_miss}, p_false={p_false}; both are probabilities from 0 to 1")
        self.expert = expert
        self.p_miss = p_miss
        self.p_false = p_false
        self.random_state = random_state

    def flag(self, explanations: ConceptExplanations) -> list[int]:
        right = set(self.expert.flag(explanations))
        draws = np.random.default_rng(self.random_state).random(len(explanations))
        return [j for j, u in enumerate(draws) if (u >= self.p_miss if j in right else u < self.p_false)]


def given(flags: Sequence[int]) -> CallbackExpert:
    """An expert who always flags the same concepts; with `NoisyExpert`, flags with errors.

    Examples
    --------
    >>> expert = NoisyExpert(given([0, 3]), p_miss=0.25)
    """
    return CallbackExpert(lambda concept: concept.index in flags)
