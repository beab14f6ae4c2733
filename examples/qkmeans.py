"""Group the patches of two photographs into visual words: seeds in a fraction of a second, then a few Lloyd steps."""

from time import perf_counter

from sklearn.cluster import KMeans

from cameraready import data
from cameraready.methods.qkmeans import QKMeansInit, plan, qkmeans_plusplus, quantization_exponent

patches = data.load("photo-patches")[::3]  # (44380, 192) float32
n, dim = patches.shape

eps, error, _ = quantization_exponent(patches, 1024, random_state=0)
print(f"cost falls like k^-{eps:.2f} (+-{error:.2f}): intrinsic dimension about {2 / eps:.0f} of {dim}")

for method, work in plan(n, 1000, dim, eps).items():
    print(f"  predicted for 1000 seeds, {method}: {work.distances / 1e6:.0f} million distances, {work.seconds:.2f} s")

start = perf_counter()
centers, indices, stats = qkmeans_plusplus(patches, 1000, greedy=False, random_state=0, return_stats=True)
print(f"1000 seeds in {perf_counter() - start:.2f} s: {stats.distances_computed / 1e6:.1f} million distances")

seeding = QKMeansInit(greedy=False)
words = KMeans(256, init=seeding, n_init=1, max_iter=3, random_state=0).fit(patches)
print(f"256 visual words: inertia {words.inertia_:.0f} after {words.n_iter_} Lloyd steps")
