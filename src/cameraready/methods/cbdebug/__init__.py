"""CBDebug: concept bottleneck models repaired by removing undesired concepts and retraining."""

from cameraready.methods.cbdebug.debugger import CBDebug, DebugReport
from cameraready.methods.cbdebug.experts import (
    AttributeExpert,
    CallbackExpert,
    CSVExpert,
    Expert,
    LLMExpert,
    MaskExpert,
    NoisyExpert,
)
from cameraready.methods.cbdebug.explanations import explain_concepts
from cameraready.methods.cbdebug.folders import read_folder
from cameraready.methods.cbdebug.groups import GroupReport, concept_reliance, flip_rate, group_report
from cameraready.methods.cbdebug.labelled import IndependentCBM, JointCBM, SequentialCBM
from cameraready.methods.cbdebug.model import ModuleCBM
from cameraready.methods.cbdebug.networks import small_encoder
from cameraready.methods.cbdebug.post_hoc import ConceptBank, PostHocCBM, concept_bank
from cameraready.methods.cbdebug.prototypes import PrototypeCBM
from cameraready.methods.cbdebug.sample_weights import (
    SampleWeights,
    augment_probability,
    ipw_weights,
    permutation_weights,
)

__all__ = [
    "AttributeExpert",
    "CBDebug",
    "CSVExpert",
    "CallbackExpert",
    "ConceptBank",
    "DebugReport",
    "Expert",
    "GroupReport",
    "IndependentCBM",
    "JointCBM",
    "LLMExpert",
    "MaskExpert",
    "ModuleCBM",
    "NoisyExpert",
    "PostHocCBM",
    "PrototypeCBM",
    "SampleWeights",
    "SequentialCBM",
    "augment_probability",
    "concept_bank",
    "concept_reliance",
    "explain_concepts",
    "flip_rate",
    "group_report",
    "ipw_weights",
    "permutation_weights",
    "read_folder",
    "small_encoder",
]
