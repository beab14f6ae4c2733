"""Counterfactual explanations as latent paths to the centroids of a label-conditional mixture autoencoder."""

from cameraready.methods.lapace.constraints import Constraints
from cameraready.methods.lapace.explainer import LAPACEExplainer
from cameraready.methods.lapace.metrics import evaluate_counterfactuals, measure_each, retrained_models
from cameraready.methods.lapace.mixture_vae import LGMVAE
from cameraready.methods.lapace.results import CounterfactualPath, Explanation
from cameraready.methods.lapace.space import TabularSpace
from cameraready.methods.lapace.training import Training

__all__ = [
    "LGMVAE",
    "Constraints",
    "CounterfactualPath",
    "Explanation",
    "LAPACEExplainer",
    "TabularSpace",
    "Training",
    "evaluate_counterfactuals",
    "measure_each",
    "retrained_models",
]
