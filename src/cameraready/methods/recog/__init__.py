"""Few-shot molecular property prediction on a relational and compact context graph (ReCoG)."""

from cameraready.methods.recog.evaluation import Comparison, compare, evaluate_fewshot
from cameraready.methods.recog.model import ReCoG, ReCoGClassifier
from cameraready.methods.recog.molecules import Molecules
from cameraready.methods.recog.peers import AuxMean, EvidenceBayes, FewShotSklearn, TanimotoVote
from cameraready.methods.recog.table import LoadReport, MoleculeTable

__all__ = [
    "AuxMean",
    "Comparison",
    "EvidenceBayes",
    "FewShotSklearn",
    "LoadReport",
    "MoleculeTable",
    "Molecules",
    "ReCoG",
    "ReCoGClassifier",
    "TanimotoVote",
    "compare",
    "evaluate_fewshot",
]
