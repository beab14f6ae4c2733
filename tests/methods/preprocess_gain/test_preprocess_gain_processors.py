"""Denoisers and encoders as scikit-learn transformers."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from cameraready.methods.preprocess_gain import Blur, ContrastiveEncoder, DenoisingAE, PCAWiener, SkimageDenoiser
from cameraready.methods.preprocess_gain.contrastive import nt_xent
from cameraready.methods.preprocess_gain.denoisers import marchenko_pastur_median, noise_level

ALL = [
    PCAWiener(),
    Blur(),
    SkimageDenoiser("wavelet"),
    pytest.param(SkimageDenoiser("tv"), marks=pytest.mark.slow),
    pytest.param(DenoisingAE(epochs=1, n_draws=1), marks=pytest.mark.slow),
    pytest.param(DenoisingAE(epochs=3, encode=True, linear=True), marks=pytest.mark.slow),
    pytest.param(ContrastiveEncoder(4, epochs=1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("transformer", ALL, ids=repr)
def test_scikit_learn_accepts_every_transformer(transformer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # skipped array-API checks
        check_estimator(transformer)


@pytest.fixture(scope="module")
def spectra():
    """Rank 3 signals of 60 channels; noise of standard deviation 0.5."""
    rng = np.random.default_rng(0)
    clean = rng.normal(size=(800, 3)) @ rng.normal(size=(3, 60))
    return clean, clean + 0.5 * rng.normal(size=clean.shape)


def test_the_wiener_filter_comes_near_the_optimal_error():
    """The best linear filter's error is the sum of s sigma^2 / (s + sigma^2) over the signal's variances s.

    With 8000 samples of 60 channels the noise that passes adds at most a tenth.
    """
    rng = np.random.default_rng(0)
    clean = rng.normal(size=(8000, 3)) @ rng.normal(size=(3, 60))
    noisy = clean + 0.5 * rng.normal(size=clean.shape)
    variances = np.linalg.eigvalsh(np.cov(clean.T))[-3:]
    best = (variances * 0.25 / (variances + 0.25)).sum() / 60
    for sigma in ("estimate", 0.5):
        wiener = PCAWiener(sigma=sigma).fit(noisy)
        assert 0.98 * best < np.mean((wiener.transform(noisy) - clean) ** 2) < 1.1 * best
        seen = np.linalg.eigvalsh(np.cov(noisy.T))[::-1][: len(wiener.shrinkage_)]
        np.testing.assert_allclose(wiener.shrinkage_, 1 - wiener.sigma_**2 / seen)


def test_the_noise_level_is_found_with_more_samples_than_channels_and_with_fewer(spectra):
    """The median over 60 eigenvalues has a standard error below 2 %."""
    assert PCAWiener().fit(spectra[1]).sigma_ == pytest.approx(0.5, rel=0.04)
    rng = np.random.default_rng(1)
    for n, d in ((1000, 200), (200, 200), (150, 600)):
        X = 3.0 * rng.normal(size=(n, d))
        values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / (n - 1)
        assert noise_level(values, n, d) == pytest.approx(3.0, rel=0.02)


def test_the_median_of_marchenko_and_pastur_halves_the_density():
    for gamma in (0.1, 0.5, 1.0):
        median, (low, high) = marchenko_pastur_median(gamma), ((1 - gamma**0.5) ** 2, (1 + gamma**0.5) ** 2)
        x = np.linspace(low, median, 2_000_001)[1:]
        density = np.sqrt((high - x) * (x - low)) / (2 * np.pi * gamma * x)
        assert np.trapezoid(density, x) == pytest.approx(0.5, abs=3e-3)


def test_too_much_noise_shrinks_to_the_mean_and_never_beyond(spectra):
    noisy = spectra[1]
    wiener = PCAWiener(sigma=1e3).fit(noisy)
    np.testing.assert_allclose(wiener.transform(noisy), np.broadcast_to(noisy.mean(axis=0), noisy.shape))
    shrinkage = PCAWiener(sigma=0.5).fit(noisy).shrinkage_
    assert ((shrinkage > 0) & (shrinkage < 1)).all()
    np.testing.assert_allclose(PCAWiener(sigma=0.0).fit(noisy).transform(noisy), noisy, atol=1e-10)


def test_constant_pixels_survive(spectra):
    noisy = spectra[1].copy()
    noisy[:, :20] = 7.0
    for transformer in (PCAWiener(), SkimageDenoiser("tv"), DenoisingAE(epochs=2)):
        assert np.isfinite(transformer.fit(noisy[:100]).transform(noisy[:100])).all()
    assert PCAWiener().fit(noisy).sigma_ == pytest.approx(0.5, rel=0.05)
    np.testing.assert_allclose(SkimageDenoiser("wavelet").fit_transform(np.full((3, 16), 2.0)), 2.0)


@pytest.fixture(scope="module")
def images():
    """Discs of random place on 16 x 16 pixels, on a scale of 0 to 100, with noise of standard deviation 20."""
    rng = np.random.default_rng(0)
    i, j = np.mgrid[:16, :16]
    centre = rng.uniform(5, 11, size=(200, 2, 1, 1))
    clean = 100.0 * ((i - centre[:, 0]) ** 2 + (j - centre[:, 1]) ** 2 < 16)
    return clean, clean + 20 * rng.normal(size=clean.shape)


@pytest.mark.parametrize("method", ["wavelet", "tv", "nl_means"])
def test_denoisers_remove_noise_of_any_unit_from_images(images, method):
    clean, noisy = (part[:40] for part in images)
    denoiser = SkimageDenoiser(method).fit(noisy)
    denoised = denoiser.transform(noisy)
    assert denoised.shape == noisy.shape
    assert np.mean((denoised - clean) ** 2) < 0.7 * 20**2
    flat = SkimageDenoiser(method, image_shape=(16, 16)).fit_transform(noisy.reshape(40, -1))
    np.testing.assert_allclose(flat, denoised.reshape(40, -1))
    np.testing.assert_allclose(denoiser.transform(noisy.reshape(40, -1)), flat)  # it remembers that they are images
    moved = SkimageDenoiser(method).fit_transform(noisy / 50 - 3)
    np.testing.assert_allclose(moved, denoised / 50 - 3, atol=1e-8)


@pytest.mark.slow
def test_a_denoising_autoencoder_learns_from_noisy_inputs_alone(images):
    """No target: the error must fall well below the noise, on images it has not seen too."""
    clean, noisy = images
    network = DenoisingAE(noise=20.0, hidden=32, bottleneck=16, epochs=40, random_state=0).fit(noisy[:150])
    assert np.mean((network.transform(noisy[150:]) - clean[150:]) ** 2) < 0.75 * 20**2
    with_target = DenoisingAE(noise=20.0, hidden=32, epochs=40, bottleneck=16).fit(noisy[:150], target=clean[:150])
    assert np.mean((with_target.transform(noisy[:150]) - clean[:150]) ** 2) < 0.65 * 20**2
    assert DenoisingAE(epochs=2, encode=True, bottleneck=5).fit_transform(noisy).shape == (200, 5)


def test_a_linear_autoencoder_comes_near_the_wiener_filter(spectra):
    clean, noisy = spectra
    network = DenoisingAE(noise=0.5, linear=True, bottleneck=3, epochs=60).fit(noisy)
    wiener = np.mean((PCAWiener(sigma=0.5).fit(noisy).transform(noisy) - clean) ** 2)
    assert np.mean((network.transform(noisy) - clean) ** 2) < 1.6 * wiener


def test_the_contrastive_loss_is_the_cross_entropy_written_out():
    codes = torch.randn((6, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = (codes / codes.norm(dim=1, keepdim=True)).numpy()
    expected = 0.0
    for i in range(6):
        others = [np.exp(unit[i] @ unit[j] / 0.3) for j in range(6) if j != i]
        expected -= np.log(np.exp(unit[i] @ unit[(i + 3) % 6] / 0.3) / sum(others)) / 6
    assert float(nt_xent(codes, 0.3)) == pytest.approx(expected, rel=1e-10)


def test_contrastive_codes_separate_what_noise_hides():
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    X = np.eye(3)[y] @ rng.normal(size=(3, 30)) + 0.7 * rng.normal(size=(600, 30))
    encoder = ContrastiveEncoder(8, noise=0.7, epochs=20).fit(X[:300])
    codes = encoder.transform(X[300:])
    model = make_pipeline(LogisticRegression()).fit(codes[:30], y[300:330])
    assert model.score(codes[30:], y[330:]) > 0.9


def test_a_fit_neither_reads_nor_moves_the_global_generators(spectra):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = DenoisingAE(epochs=2, random_state=1).fit(spectra[1]).transform(spectra[1])
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    np.testing.assert_array_equal(DenoisingAE(epochs=2, random_state=1).fit_transform(spectra[1]), first)


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        (PCAWiener(sigma=-1.0), "sigma=-1.0"),
        (PCAWiener(sigma="guess"), "sigma='guess'"),
        (PCAWiener(image_shape=(7, 7)), r"image_shape=\(7, 7\) does not fit rows of 60"),
        (SkimageDenoiser("median"), "method='median'"),
        (SkimageDenoiser("nl_means"), "needs images"),
        (SkimageDenoiser(strength=0.0), "strength=0.0"),
        (Blur(0.0), "width=0.0"),
        (DenoisingAE(epochs=0), "epochs=0"),
        (DenoisingAE(bottleneck=0), "bottleneck=0"),
        (ContrastiveEncoder(0), "n_components=0"),
    ],
)
def test_impossible_settings_are_refused(transformer, message, spectra):
    with pytest.raises(ValueError, match=message):
        transformer.fit(spectra[1])
    with pytest.raises(ValueError, match="NaN"):
        PCAWiener().fit([[1.0, np.nan], [1.0, 2.0]])


def test_images_that_contradict_image_shape_are_refused():
    with pytest.raises(ValueError, match=r"images of shape \(4, 5\)"):
        Blur(image_shape=(5, 4)).fit(np.zeros((3, 4, 5)))
    with pytest.raises(ValueError, match=r"images of shape \(5, 4\)"):
        Blur().fit(np.zeros((3, 4, 5))).transform(np.zeros((3, 5, 4)))
    with pytest.raises(ValueError, match="target has shape"):
        DenoisingAE().fit(np.random.default_rng(0).normal(size=(9, 4)), target=np.zeros((9, 5)))


def test_bm3d_is_named_with_its_licence_where_it_is_missing():
    pytest.importorskip("skimage")
    try:
        import bm3d  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="non-commercial"):
            SkimageDenoiser("bm3d", sigma=1.0).fit_transform(np.random.default_rng(0).normal(size=(2, 16, 16)))
