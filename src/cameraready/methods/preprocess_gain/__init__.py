"""Will denoising or encoding help a classifier? Exact finite-sample theory, plug-in estimates, a leakage-free test."""

from cameraready.coverage import NotCovered
from cameraready.methods.preprocess_gain.advisor import ProcessingAdvisor
from cameraready.methods.preprocess_gain.autoencoder import DenoisingAE
from cameraready.methods.preprocess_gain.contrastive import ContrastiveEncoder
from cameraready.methods.preprocess_gain.default_processors import default_processors
from cameraready.methods.preprocess_gain.denoisers import Blur, PCAWiener, SkimageDenoiser
from cameraready.methods.preprocess_gain.plugin_accuracy import acc_bayes, acc_plugin, acc_plugin_unbalanced
from cameraready.methods.preprocess_gain.processing_gain import (
    break_even,
    efficiency,
    kept_energy_pca,
)
from cameraready.methods.preprocess_gain.separation import estimate_separation

__all__ = [
    "Blur",
    "ContrastiveEncoder",
    "DenoisingAE",
    "NotCovered",
    "PCAWiener",
    "ProcessingAdvisor",
    "SkimageDenoiser",
    "acc_bayes",
    "acc_plugin",
    "acc_plugin_unbalanced",
    "break_even",
    "default_processors",
    "efficiency",
    "estimate_separation",
    "kept_energy_pca",
]
