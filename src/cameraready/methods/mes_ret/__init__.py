"""Many black boxes under one budget: an evolution strategy a task, tied by rewards."""

from cameraready.methods.mes_ret.gym_task import GymTask
from cameraready.methods.mes_ret.labels import labels_for
from cameraready.methods.mes_ret.minimize import minimize_many
from cameraready.methods.mes_ret.policy import GlobalLayout, PolicySpace, align
from cameraready.methods.mes_ret.reward import expected_gain_ratio
from cameraready.methods.mes_ret.strategy import ManyTaskES
from cameraready.methods.mes_ret.tasks import Batch, Results, TaskResult, TaskSpec

__all__ = [
    "Batch",
    "GlobalLayout",
    "GymTask",
    "ManyTaskES",
    "PolicySpace",
    "Results",
    "TaskResult",
    "TaskSpec",
    "align",
    "expected_gain_ratio",
    "labels_for",
    "minimize_many",
]
