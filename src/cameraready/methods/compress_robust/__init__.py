"""Audit any torch classifier for structured compressibility and what it costs in adversarial robustness."""

from cameraready.coverage import NotCovered
from cameraready.methods.compress_robust.attacks import attack
from cameraready.methods.compress_robust.audit import audit
from cameraready.methods.compress_robust.audit_report import AuditReport
from cameraready.methods.compress_robust.certificates import alignment_estimate, certified_radius, loss_gap_bound
from cameraready.methods.compress_robust.compressibility import compressibility, decompose
from cameraready.methods.compress_robust.compression import layer_targets, low_rank, prune_rows
from cameraready.methods.compress_robust.knobs import Knob
from cameraready.methods.compress_robust.layer_table import layer_table
from cameraready.methods.compress_robust.lipschitz import lipschitz_bound
from cameraready.methods.compress_robust.masking import masking_checks
from cameraready.methods.compress_robust.operator_norms import norm_bound, operator_norm
from cameraready.methods.compress_robust.regularisers import GroupLasso, NuclearNorm, SpreadControl
from cameraready.methods.compress_robust.sensitive import sensitive_directions
from cameraready.methods.compress_robust.sweep import sweep
from cameraready.methods.compress_robust.training import Recipe
from cameraready.methods.compress_robust.universal import universal_perturbation

__all__ = [
    "AuditReport",
    "GroupLasso",
    "Knob",
    "NotCovered",
    "NuclearNorm",
    "Recipe",
    "SpreadControl",
    "alignment_estimate",
    "attack",
    "audit",
    "certified_radius",
    "compressibility",
    "decompose",
    "layer_table",
    "layer_targets",
    "lipschitz_bound",
    "loss_gap_bound",
    "low_rank",
    "masking_checks",
    "norm_bound",
    "operator_norm",
    "prune_rows",
    "sensitive_directions",
    "sweep",
    "universal_perturbation",
]
