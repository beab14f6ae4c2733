"""Noisy spectra, 80 labels, 400 spectra without a label: denoise before the classifier, or not?"""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from cameraready.methods.preprocess_gain import Blur, PCAWiener, ProcessingAdvisor, acc_plugin, break_even

rng = np.random.default_rng(0)
wavelength = np.linspace(0, 1, 120)
lines = np.exp(-((wavelength - np.array([[0.3], [0.33], [0.7]])) ** 2) / 2e-4)  # two lines side by side, and a third


def spectra(y):
    """Substance 1 has the second line a little stronger; strengths vary; every channel is noisy."""
    strength = np.stack([1 + 0 * y, 0.6 + 0.7 * y, 1 + 0 * y], axis=1) * rng.normal(1, 0.2, size=(len(y), 3))
    return strength @ lines + 0.4 * rng.normal(size=(len(y), 120))


y = np.tile([0, 1], 40)
processors = [("PCA-Wiener", PCAWiener()), ("PCA (4)", PCA(4, random_state=0)), ("wide blur", Blur(8.0))]
advisor = ProcessingAdvisor(LogisticRegression(), processors, n_grid=[16, 64], repeats=2, random_state=0)
advisor.fit(spectra(y), y, X_unlabelled=spectra(rng.integers(0, 2, size=400)))

print(advisor.report_[["processor", "n", "predicted_gain", "measured_gain", "ci_low", "ci_high", "verdict"]].round(3))
print(advisor.summary())
print(advisor.predict_gain(n=1000).round(3).to_string(index=False))  # still worth it with 1000 labels?

accuracy, share = acc_plugin(1.0, 200, 50), break_even(1.0, 200, 10, 50)
print(f"200 dimensions, m = 1, 50 labels: accuracy {accuracy:.3f}; going to 10 must keep {share:.0%} of the signal")
