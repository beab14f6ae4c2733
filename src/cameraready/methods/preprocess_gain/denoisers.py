"""Denoisers without labels as scikit-learn transformers, and blur as a control."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from scipy import integrate, ndimage, optimize

from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.signals import SignalTransformer, check_sigma

_METHODS = ("wavelet", "tv", "nl_means", "bm3d")
_LOOKED_AT = 200  # training signals that the noise level is estimated on


class PCAWiener(SignalTransformer):
    """Wiener filter in the basis of principal components: each is shrunk by (1 - sigma^2 / variance)+.

    Chance spreads the variances of pure noise up to sigma^2 (1 + sqrt(p / n))^2, so that some noise passes. Cutting
    there instead is better for signals of low rank, and was worse on digits, in error and in what a classifier gains.

    Parameters
    ----------
    sigma : the noise's standard deviation in units of X, or "estimate": the median eigenvalue over that of the
        Marchenko-Pastur law, right when less than half of the components carry signal.
    image_shape : accepted so that images may come as (n, H, W[, C]); the filter itself does not use it.

    Attributes
    ----------
    mean_ : shape (p,).
    components_ : shape (r, p), those that are kept.
    shrinkage_ : shape (r,), between 0 and 1.
    sigma_ : the noise's standard deviation that was used.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> clean = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 50))
    >>> noisy = clean + 0.5 * rng.normal(size=clean.shape)
    >>> wiener = PCAWiener().fit(noisy)
    >>> bool(abs(wiener.sigma_ - 0.5) < 0.02)
    True
    >>> bool(np.var(wiener.transform(noisy) - clean) < 0.1 * 0.5**2)
    True
    """

    def __init__(self, sigma: float | str = "estimate", *, image_shape: tuple[int, ...] | None = None) -> None:
        self.sigma = sigma
        self.image_shape = image_shape

    def _fit(self, signals: Array) -> None:
        check_sigma(self.sigma)
        X = signals.reshape(len(signals), -1).astype(float)
        self.mean_ = X.mean(axis=0)
        _, values, rows = np.linalg.svd(X - self.mean_, full_matrices=False)
        variances = values**2 / max(len(X) - 1, 1)
        varying = int(np.count_nonzero(np.ptp(X, axis=0) > 0))
        self.sigma_ = noise_level(variances, len(X), varying) if self.sigma == "estimate" else float(self.sigma)
        kept = variances > max(self.sigma_**2, 1e-12 * variances.max(initial=0.0))  # else shrinkage would be negative
        self.components_, self.shrinkage_ = rows[kept], 1 - self.sigma_**2 / variances[kept]

    def _transform(self, signals: Array) -> Array:
        X = signals.reshape(len(signals), -1)
        scores = (X - self.mean_) @ self.components_.T
        clean = self.mean_ + (scores * self.shrinkage_) @ self.components_
        return clean.reshape(signals.shape).astype(signals.dtype)


class SkimageDenoiser(SignalTransformer):
    """A denoiser of scikit-image, signal by signal, on values scaled to the training inputs' range.

    Parameters
    ----------
    method : "wavelet" (BayesShrink), "tv" (Chambolle's total variation), "nl_means" (images only), or "bm3d": needs
        the package bm3d, whose licence is for non-commercial use, and which is therefore not installed with us.
    sigma : the noise's standard deviation in units of X, or "estimate" (from the finest wavelets, over training
        signals).
    strength : multiplies sigma where the method uses it; 1 is the method's own recommendation.
    image_shape : (H, W) or (H, W, C) of flat rows; None reads flat rows as signals over time or wavelength.

    Attributes
    ----------
    sigma_ : the noise's standard deviation in units of X.
    low_, range_ : what values are scaled by.

    Examples
    --------
    >>> t = np.linspace(0, 1, 128)
    >>> clean = np.sign(np.sin(2 * np.pi * np.outer([2, 3, 4], t)))
    >>> noisy = clean + 0.3 * np.random.default_rng(0).normal(size=clean.shape)
    >>> bool(np.var(SkimageDenoiser("tv").fit_transform(noisy) - clean) < 0.5 * 0.3**2)
    True
    """

    def __init__(
        self,
        method: Literal["wavelet", "tv", "nl_means", "bm3d"] = "wavelet",
        *,
        sigma: float | str = "estimate",
        strength: float = 1.0,
        image_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.method = method
        self.sigma = sigma
        self.strength = strength
        self.image_shape = image_shape

    def _fit(self, signals: Array) -> None:
        if self.method not in _METHODS:
            raise ValueError(f"method={self.method!r}; choose one of {', '.join(_METHODS)}")
        if not self.strength > 0:
            raise ValueError(f"strength={self.strength}; it must be positive, and 1 is usual")
        check_sigma(self.sigma)
        if signals.ndim == 2 and self.method in ("nl_means", "bm3d"):
            raise ValueError(f"method={self.method!r} needs images: pass image_shape=(height, width[, channels])")
        _restoration()
        self.low_, span = float(signals.min()), float(np.ptp(signals))
        self.range_ = span if span > 0 else 1.0
        self.sigma_ = estimate_sigma(signals) if self.sigma == "estimate" else float(self.sigma)

    def _transform(self, signals: Array) -> Array:
        channel = -1 if signals.ndim == 4 else None
        scaled = (signals.astype(float) - self.low_) / self.range_
        sigma = self.sigma_ / self.range_ * self.strength
        if sigma == 0:
            return signals.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # very short signals have no level of wavelets
            clean = np.stack([_denoise(self.method, image, sigma, channel) for image in scaled])
        clean = np.where(np.isfinite(clean), clean, scaled)  # a constant signal divides 0 by 0
        return (clean * self.range_ + self.low_).astype(signals.dtype)


class Blur(SignalTransformer):
    """Gaussian blur: a control, which removes noise and detail alike.

    Parameters
    ----------
    width : standard deviation of the Gaussian in samples or pixels.
    image_shape : (H, W) or (H, W, C) of flat rows; None reads flat rows as signals.
    """

    def __init__(self, width: float = 1.0, *, image_shape: tuple[int, ...] | None = None) -> None:
        self.width = width
        self.image_shape = image_shape

    def _fit(self, signals: Array) -> None:
        if not (np.isfinite(self.width) and self.width > 0):
            raise ValueError(f"width={self.width}; it must be a positive number of pixels")
        self.fitted_ = True

    def _transform(self, signals: Array) -> Array:
        axes = (1,) if signals.ndim == 2 else (1, 2)
        return ndimage.gaussian_filter(signals, self.width, axes=axes)


def noise_level(variances: Array, n: int, d: int) -> float:
    """Standard deviation of white noise from the median of the sample covariance's non-zero eigenvalues.

    ``variances`` are the eigenvalues for n samples in d varying directions; centring costs one sample.
    """
    n = max(n - 1, 1)
    rank = min(n, d)
    if rank == 0:
        return 0.0
    gamma = d / n
    scale = marchenko_pastur_median(min(gamma, 1 / gamma)) * max(gamma, 1.0)
    return float(np.sqrt(np.median(np.sort(variances)[::-1][:rank]) / scale))


def marchenko_pastur_median(gamma: float) -> float:
    """Median eigenvalue of a white sample covariance with d / n = gamma, at most 1, in units of sigma^2.

    Examples
    --------
    >>> round(marchenko_pastur_median(0.5), 2)
    0.83
    """
    low, high = (1 - np.sqrt(gamma)) ** 2, (1 + np.sqrt(gamma)) ** 2
    middle, half = (low + high) / 2, (high - low) / 2

    # With t = middle - half cos(theta) the density's square-root edges are smooth.
    def below(theta: float) -> float:
        def density(a: float) -> float:
            sine2 = np.sin(a / 2) ** 2  # middle - half cos(a) = low + 2 half sine2, without cancellation
            return 4 * half**2 * sine2 * (1 - sine2) / (2 * np.pi * gamma * (low + 2 * half * sine2))

        return float(integrate.quad(density, 0.0, theta)[0])

    theta = optimize.brentq(lambda a: below(a) - 0.5, 1e-6, np.pi)
    return float(middle - half * np.cos(theta))


def estimate_sigma(signals: Array) -> float:
    """Noise of signals (n, p), (n, H, W) or (n, H, W, C): median over signals of scikit-image's wavelet estimate."""
    restoration = _restoration()
    chosen = signals[:: max(len(signals) // _LOOKED_AT, 1)].astype(float)
    channel = -1 if signals.ndim == 4 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [restoration.estimate_sigma(s, channel_axis=channel, average_sigmas=True) for s in chosen]
    return float(np.nan_to_num(np.median(found)))


def _denoise(method: str, image: Array, sigma: float, channel: int | None) -> Array:
    restoration = _restoration()
    if method == "wavelet":
        return restoration.denoise_wavelet(image, sigma=sigma, channel_axis=channel, rescale_sigma=False)
    if method == "tv":
        return restoration.denoise_tv_chambolle(image, weight=sigma, channel_axis=channel)
    if method == "nl_means":
        # h = 0.8 sigma in the fast mode, patches of 5 within 6 pixels: what scikit-image's gallery recommends.
        return restoration.denoise_nl_means(
            image, patch_size=5, patch_distance=6, h=0.8 * sigma, sigma=sigma, fast_mode=True, channel_axis=channel
        )
    try:
        from bm3d import bm3d
    except ImportError:
        raise ImportError("method='bm3d' needs the package bm3d (licence: non-commercial): pip install bm3d") from None
    return bm3d(image, sigma_psd=sigma)


def _restoration() -> Any:
    try:
        import pywt  # noqa: F401  (scikit-image imports it when it estimates noise)
        from skimage import restoration
    except ImportError:
        message = "denoisers need scikit-image and PyWavelets: pip install 'cameraready[denoising]'"
        raise ImportError(message) from None
    return restoration
