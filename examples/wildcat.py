"""Attention over 16,384 noisy image patches (non-local means) in a fraction of exact attention's time."""

import time

import numpy as np
import torch
import torch.nn.functional as F

from cameraready import data
from cameraready.methods.wildcat import compress_kv, weighted_attention, wildcat_attention

patches = data.load("photo-patches", size=7, stride=1)[:16384].reshape(-1, 49, 3).mean(-1)
noisy = patches + np.random.default_rng(0).normal(0, 0.1, patches.shape).astype(np.float32)
key = torch.from_numpy(noisy / 0.8)[None]  # (heads, n, E); 0.8 is the kernel's bandwidth
pixel = torch.from_numpy(noisy[:, 24:25])[None]  # each patch's centre
bias = -key.square().sum(-1) / 2  # makes softmax(q.k + bias) the Gaussian kernel exp(-|q - k|^2 / 2)

smooth, info = wildcat_attention(key, key, pixel, scale=1.0, key_bias=bias, rank=256, bins=1, return_info=True)
start = time.perf_counter()
exact = F.scaled_dot_product_attention(key, key, pixel, bias[:, None, :], scale=1.0)
seconds = time.perf_counter() - start
error = ((smooth - exact).norm() / exact.norm()).item()
print(f"relative error {error:.4f} from {int(info.rank)} of {key.shape[1]} keys, {seconds / info.seconds:.0f}x faster")

clean = torch.from_numpy(patches[:, 24:25])[None]
for name, image in (("noisy", pixel), ("exact", exact), ("WildCat", smooth)):
    print(f"{name:8s} PSNR {-10 * (image - clean).square().mean().log10().item():.2f} dB")

# The same as two steps: a key-value cache compressed once, then asked again and again.
cache = compress_kv(key, pixel, 256, scale=1.0, key_bias=bias)
again = weighted_attention(key[:, :5], cache, scale=1.0)
print(f"cache: {cache.nbytes / 1e3:.0f} kB instead of {(key.nbytes + pixel.nbytes) / 1e3:.0f} kB")
assert error < 0.05
assert torch.allclose(again, exact[:, :5], atol=0.05)
