"""Named sets that need no archive and no network."""

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from cameraready import data


def test_digits_are_float32_rows_of_64():
    digits = data.load("digits")
    assert digits.shape == (1797, 64)
    assert digits.dtype == np.float32
    labelled = data.load("digits-labelled")
    np.testing.assert_array_equal(labelled.images.reshape(1797, 64), digits)
    assert set(labelled.labels) == set(range(10))


def test_photos_are_the_sample_photographs_scaled_to_one():
    for photo, original in zip(data.load("photos"), load_sample_images().images, strict=True):
        assert photo.dtype == np.float32
        np.testing.assert_array_equal(np.rint(photo * 255), original)


def test_photo_patches_are_all_patches_at_the_stride_in_row_column_colour_order():
    patches, photos = data.load("photo-patches"), data.load("photos")
    assert patches.shape == (133140, 192)
    assert patches.dtype == np.float32
    across = (640 - 8) // 2 + 1
    np.testing.assert_array_equal(patches[5 * across + 7], photos[0][10:18, 14:22].ravel())
    np.testing.assert_array_equal(patches[-1], photos[1][418:426, 632:640].ravel())
    assert data.load("photo-patches", size=100, stride=50).shape == (2 * 7 * 11, 30000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "size=0 must lie between 1 and"),
        ({"size": 428}, "427 pixels"),
        ({"stride": 0}, "stride=0 must be at least 1"),
    ],
)
def test_impossible_patches_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        data.load("photo-patches", **options)


def test_photo_pixels_are_every_pixel():
    pixels = data.load("photo-pixels")
    assert pixels.shape == (546560, 3)
    np.testing.assert_array_equal(pixels[640:1280], data.load("photos")[0][1])


def test_the_sphere_has_its_intrinsic_dimension_and_unit_radius():
    points = data.load("manifold-sphere", n=3000, dim=4, ambient=32)
    assert points.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-5)
    spectrum = np.linalg.svd(points, compute_uv=False)
    assert (spectrum[:5] > 0.9 * np.sqrt(3000 / 5)).all()  # isotropic in 5 directions ...
    assert (spectrum[5:] < 1e-3).all()  # ... and in no other


def test_the_sphere_is_uniform_so_a_coordinate_squared_follows_its_beta_law():
    from scipy.stats import beta, kstest

    points = data.load("manifold-sphere", n=5000, dim=2, ambient=3, seed=3)
    # On S^d a coordinate squared is Beta(1/2, d/2). One fixed seed: the level is the false-alarm rate.
    assert kstest(points[:, 0] ** 2, beta(0.5, 1.0).cdf).pvalue > 1e-3


def test_noise_moves_the_same_points_by_its_standard_deviation():
    clean = data.load("manifold-sphere", n=2000, seed=5)
    noisy = data.load("manifold-sphere", n=2000, seed=5, noise=0.1)
    assert np.std(noisy - clean) == pytest.approx(0.1, rel=0.02)
    assert not np.array_equal(clean, data.load("manifold-sphere", n=2000, seed=6))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, "n=0"),
        ({"dim": 0}, "dim=0"),
        ({"dim": 4, "ambient": 4}, r"ambient=4 .* dim \+ 1 = 5"),
        ({"noise": -1.0}, "noise=-1.0"),
        ({"noise": float("nan")}, "noise=nan"),
    ],
)
def test_an_impossible_sphere_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        data.load("manifold-sphere", **options)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("breast-cancer", (569, 30), 2),
        ("wine", (178, 13), 3),
        ("diabetes", (442, 10), None),
    ],
)
def test_tables_have_named_features_and_a_target(name, shape, classes):
    X, y = data.load(name)
    assert X.shape == shape
    assert len(y) == len(X)
    assert y.name == "target"
    assert classes is None or y.nunique() == classes


def test_english_text_is_prose_and_the_same_each_time():
    text = data.load("english-text")
    assert len(text) > 300_000
    words = text.lower().split()
    assert 0.03 < words.count("the") / len(words) < 0.12
    assert data.load("english-text") == text


def test_python_source_is_the_standard_library_without_its_tests():
    text = data.load("python-source")
    assert "class JSONDecoder" in text
    assert len(text) > 5_000_000
