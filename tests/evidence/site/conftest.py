"""Results made by hand that show every kind of outcome, as a run of real methods would leave them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cameraready.evidence.charts import bar, line, scatter
from cameraready.evidence.claim import Claim, Dataset, Scale, claim
from cameraready.evidence.finding import Finding, Threshold, combine
from cameraready.evidence.verdict import ClaimResult, FailedTrial, MethodResult
from cameraready.registry import Card

SCRIPT = "<script>window.pwned = true</script>"
NAN = math.nan
ENVIRONMENT = {
    "python": "3.11.7",
    "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
    "cpu": "2 x Intel Xeon Platinum 8481C",
    "device": "cpu",
    "cameraready": "0.1.0",
    "numpy": "2.4.6",
    "torch": "2.13.0+cpu",
    "scikit-learn": "1.9.0",
}

BODY = """\
## How to use

```python
from cameraready.methods.qkmeans import QKMeans

model = QKMeans(n_clusters=4096, random_state=0).fit(embeddings)   # (n, D) float32, any estimator of scikit-learn
```

Pass `rho` below 0.25 where time matters more than the last per cent of quality; see `init=` for other estimators.

## How it works

A proposal drawn with probability proportional to an envelope of the squared distance is accepted so that the law of
*k*-means++ is kept **exactly**. One pass over the data; after that, time hardly depends on `n`.

| parameter | default | meaning |
| --- | --- | --- |
| `rho` | 0.25 | trades time against quality |
| `engine` | "auto" | exact or approximate nearest centres |

## When not to use it

- fewer than about a hundred clusters: plain k-means++ is as fast;
- data without a low intrinsic dimension.

## Attribution

Shah, Agrawal, Jaiswal (2026). Code by the [authors](https://example.org/qkmeans), picture ![of it](https://example.org/a.png),
and [a file](../../LICENSE).
"""


@dataclass(frozen=True)
class Declared:
    """A rule of which only the words matter here."""

    words: str

    def __call__(self, table: pd.DataFrame) -> Finding:
        raise AssertionError("the site never judges; it shows findings")

    def describe(self) -> str:
        return self.words


def found(
    effect: float,
    low: float,
    high: float,
    *,
    label: str,
    kind: str = "ratio",
    at_least: float | None = None,
    at_most: float | None = None,
    sentence: str = "",
    n: int = 5,
) -> Finding:
    threshold = Threshold(at_least, at_most)
    return Finding(effect, low, high, threshold, n, threshold.verdict(low, high), sentence, label, kind)


def make_claim(
    name: str, says: str, *, factors: Mapping[str, Any] | None = None, seeds: int = 5, **options: Any
) -> Claim:
    factors = {"k": [64, 256, 1024]} if factors is None else factors
    # The decorator looks at the names of the function's arguments.
    run: dict[str, Any] = {}
    exec(f"def run(trial, {', '.join(factors)}): ...", run)
    return claim(
        name, says=says, factors=factors, scales={"quick": Scale(seeds=seeds), "full": Scale(seeds=20)}, **options
    )(run["run"])


def seeding_table(seeds: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    methods = {"QKMeans": (0.0004, 1.02), "k-means++ (scikit-learn)": (0.012, 1.0), "AFK-MC2 (m=200)": (0.003, 1.05)}
    sizes = {"digits": 1.0, "image patches": 9.0}
    rows = []
    for seed, k, (dataset, size), (method, (speed, power)) in product(
        range(seeds), (64, 256, 1024), sizes.items(), methods.items()
    ):
        worse = 1.06 if method.startswith("AFK") else 1.0
        rows.append(
            {
                "seed": seed,
                "method": method,
                "dataset": dataset,
                "k": k,
                "seconds": speed * size * k**power * rng.lognormal(0, 0.12),
                "cost": 157_000 * size * worse * k**-0.2 * rng.normal(1, 0.008),
            }
        )
    return pd.DataFrame(rows)


def attention_table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for seed in range(400):
        for method, error, speed in (("Wildcat", 0.02, 1.0), ("Nyströmformer", 0.05, 1.6), ("KDEformer", 0.04, 2.5)):
            noise = rng.lognormal(0, 0.5)
            rows.append(
                {
                    "seed": seed,
                    "method": method,
                    "error": error * noise,
                    "milliseconds": speed / noise**0.4 * rng.lognormal(0, 0.2),
                    "rank": int(2 ** rng.integers(4, 8)),
                }
            )
    return pd.DataFrame(rows * 2)


def memory_table() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"seed": seed, "method": "Wildcat", "n": n, "bytes": 640.0 * n}
            for seed, n in product(range(2), (1024, 4096, 16384))
        ]
    )


def result(claim: Claim, outcome: str, **options: Any) -> ClaimResult:
    defaults: dict[str, Any] = {
        "scale": "quick",
        "trials": 30,
        "planned": 30,
        "fingerprint": "9f2c41d07ab3",
        "environment": ENVIRONMENT,
        "seconds": 94.0,
        "peak_rss": 412 << 20,
    }
    if outcome in ("untestable", "skipped", "not run"):
        defaults |= {"trials": 0, "planned": 0, "fingerprint": "", "environment": {}, "seconds": 0.0, "peak_rss": 0}
    return ClaimResult(claim=claim, outcome=outcome, **(defaults | options))  # type: ignore[arg-type]


def card(slug: str, title: str, field: str, **options: Any) -> Card:
    defaults: dict[str, Any] = {
        "venue": "ICML 2026",
        "paper": "Fast k-means Seeding Under The Manifold Hypothesis",
        "authors": "Shah, Agrawal, Jaiswal",
        "summary": "Seeds k-means for thousands of clusters in time that hardly depends on the number of points.",
        "interface": "scikit-learn estimator and init= callable",
        "imports": ("QKMeans", "QKMeansInit"),
        "extra": field,
    }
    return Card(slug=slug, title=title, field=field, **(defaults | options))


def qkmeans() -> MethodResult:
    factors = {"dataset": Dataset("embeddings", default=["digits", "image patches"]), "k": [64, 256, 1024]}
    peers = {
        "k-means++ (scikit-learn)": "sklearn.cluster.kmeans_plusplus, n_local_trials=1",
        "AFK-MC2 (m=200)": "in-house chain of length 200, as in the paper",
    }
    table = seeding_table()
    time = "seconds of QKMeans at most 0.5 times that of k-means++ (scikit-learn)"
    cost = "cost of QKMeans at most 1.05 times that of k-means++ (scikit-learn)"
    speed = make_claim(
        "seeding-speed",
        "At large k, seeding is several times faster than k-means++ at nearly the same cost.",
        factors=factors,
        holds=Declared(f"{time}, at the largest k; and {cost}, for each dataset"),
        chart=[
            line(x="k", y="seconds", log="xy", title="Seconds for the seeding"),
            line(x="k", y="cost", facet="dataset"),
        ],
        peers=peers,
        source="Theorem 1, Section 5",
    )
    finding = combine(
        [
            found(
                0.0362,
                0.0331,
                0.0397,
                at_most=0.5,
                label=f"{time}, at k = 1024",
                sentence="At k = 1024: QKMeans took 0.0362 times the seconds of k-means++ (scikit-learn) (95 % "
                "interval 0.0331 to 0.0397, 5 seeds); the claim needs at most 0.5.",
            ),
            combine(
                [
                    found(
                        1.0004,
                        0.9961,
                        1.0049,
                        at_most=1.05,
                        label=f"{cost}, at dataset = digits",
                        sentence="At dataset = digits: QKMeans had 1.00 times the cost of k-means++ (scikit-learn) "
                        "(95 % interval 0.996 to 1.005, 5 seeds); the claim needs at most 1.05.",
                    ),
                    found(0.9987, 0.9942, 1.0031, at_most=1.05, label=f"{cost}, at dataset = image patches"),
                ],
                f"{cost}, for each dataset",
            ),
        ],
        "all of",
    )
    exponent = make_claim(
        "cost-exponent",
        "The cost of the seeding falls with k as the manifold's dimension predicts.",
        factors=factors,
        holds=Declared("slope of log cost over log k of QKMeans between -0.15 and -0.05"),
        chart=line(x="k", y="cost", color="method", facet="dataset", log="xy"),
        source="Lemma 4",
    )
    slope = found(
        -0.201,
        -0.205,
        -0.196,
        at_least=-0.15,
        at_most=-0.05,
        kind="slope",
        label="slope of log cost over log k of QKMeans between -0.15 and -0.05",
        sentence="The cost changed as k to the power -0.201 (95 % interval -0.205 to -0.196, "
        "5 seeds); the claim needs between -0.15 and -0.05.",
    )
    quality = make_claim(
        "rho-trades-time",
        "A smaller rho costs quality and saves time.",
        factors={"rho": [0.1, 0.25, 0.5]},
        holds=Declared("cost falls as rho rises (Page's test)"),
        chart=bar(x="method", y="cost"),
        peers=peers,
    )
    trend = found(
        0.4,
        -0.1,
        0.9,
        at_least=0.0,
        kind="trend",
        label="cost of QKMeans increasing with rho",
        sentence="Cost fell in 3 of 5 seeds; the interval of the trend spans zero.",
    )
    failed = (
        FailedTrial(
            3,
            {"rho": 0.1},
            "TimeoutError: 120 s",
            'Traceback (most recent call last):\n  File "cameraready/methods/qkmeans/seeding.py", line 143, in draw\n'
            "    accepted = scan(batch, envelope, uniform, accepted)\nTimeoutError: the trial took longer than 120 s",
        ),
        FailedTrial(
            4,
            {"rho": 0.1},
            f"ValueError: {SCRIPT}",
            "Traceback (most recent call last):\n"
            + '  File "a/very/long/path/'
            + "folder/" * 30
            + 'x.py", line 1\n'
            + f"ValueError: {SCRIPT}",
        ),
    )
    return MethodResult(
        card(
            "qkmeans",
            "k-means seeding for thousands of clusters",
            "clustering",
            body=BODY,
            url="https://example.org/qkmeans",
        ),
        (
            result(speed, "supported", finding=finding, table=table, trials=30),
            result(exponent, "not supported", finding=slope, table=table[table["method"] == "QKMeans"]),
            result(quality, "inconclusive", finding=trend, table=table, trials=13, planned=15, failed=failed),
        ),
    )


def wildcat() -> MethodResult:
    peers = {"Nyströmformer": "64 landmarks, 6 iterations of the pseudo-inverse", "KDEformer": "sampling 64 columns"}
    error = make_claim(
        "error-at-equal-time",
        "At equal time the error of the attention output is smaller than that of every other low-rank method.",
        factors={"rank": [16, 32, 64, 128]},
        holds=Declared("error of Wildcat at most 0.9 times each peer"),
        chart=[scatter(x="milliseconds", y="error", log="xy"), bar(x="method", y="error", log="y")],
        peers=peers,
    )
    parts = combine(
        [
            found(
                0.41, 0.38, 0.45, at_most=0.9, label="error of Wildcat at most 0.9 times that of Nyströmformer", n=400
            ),
            found(
                0.87,
                0.79,
                0.96,
                at_most=0.9,
                label="error of Wildcat at most 0.9 times that of KDEformer",
                n=400,
                sentence="Wildcat had 0.87 times the error of KDEformer (95 % interval 0.79 to 0.96, 400 seeds); the "
                "claim needs at most 0.9.",
            ),
        ],
        "all of",
    )
    memory = make_claim(
        "memory",
        "Memory grows linearly with the sequence.",
        holds=Declared("slope of log bytes on log n at most 1.1"),
        chart=line(x="n", y="bytes", log="xy"),
    )
    decays = make_claim(
        "decode-gpu",
        "Decoding on a GPU is 2 times faster than FlashAttention at 128k tokens.",
        holds=Declared("tokens per second at least 2 times"),
        untestable_at={"quick": "needs a GPU"},
    )
    return MethodResult(
        card(
            "wildcat",
            "Attention in near-linear time by weighted coresets",
            "attention",
            venue="ICLR 2026",
            paper="WildCat: Near-Linear Attention in Theory and Practice",
            authors="Schröder, Mackey",
            summary="Drop-in attention for transformers whose memory and time grow linearly with the sequence.",
            imports=("WildcatAttention",),
            interface="torch module, transformers attention implementation",
        ),
        (
            result(error, "inconclusive", finding=parts, table=attention_table(), trials=1600, planned=1600),
            result(
                memory,
                "supported",
                finding=found(
                    1.0,
                    1.0,
                    1.0,
                    at_most=1.1,
                    kind="slope",
                    label="slope of log bytes over log n of Wildcat at most 1.1",
                    sentence="Memory grew with slope 1, the same in every seed.",
                ),
                table=memory_table(),
            ),
            result(
                decays,
                "untestable",
                reason="Quick scale cannot test this: it needs a GPU with 128k tokens; use --scale full.",
            ),
            result(
                make_claim(
                    "speed",
                    "Faster than exact attention from 4,096 tokens on.",
                    holds=Declared("seconds at most 0.8 times"),
                ),
                "not run",
                reason="No measurements at quick scale yet.",
            ),
        ),
    )


def max_kernel() -> MethodResult:
    skipped = make_claim(
        "sample-efficiency",
        "Bayesian optimisation with the max kernel needs fewer evaluations.",
        holds=Declared("regret at most 0.8 times"),
    )
    return MethodResult(
        card(
            "max_kernel",
            "Kernels over groups of actions",
            "Bayesian optimisation",
            venue="ICLR 2026",
            extra="bo",
            imports=("MaxKernel",),
            interface="GPyTorch kernel",
            summary="A kernel for sets of candidates, for GPyTorch and BoTorch.",
        ),
        (result(skipped, "skipped", reason="Needs botorch and gpytorch: pip install 'cameraready[bo]'."),),
    )


def hostile() -> MethodResult:
    """Names that try to break out of the page, and names that are far too long."""
    long = "AnUnbreakablyLongMethodNameThatSomebodyGenerated_" * 3
    rng = np.random.default_rng(2)
    methods = [f"{SCRIPT}", f"</script>{SCRIPT}", long, *(f"peer number {place}" for place in range(8))]
    table = pd.DataFrame(
        [
            {
                "seed": seed,
                "method": method,
                "n.items[0]": n,
                "loss": rng.lognormal(place, 0.1),
                "extra": math.inf if place == 4 else 1.0,
            }
            for seed, n, (place, method) in product(range(3), (10, 1000), enumerate(methods))
        ]
    )
    evil = make_claim(
        "markup",
        f"A sentence with {SCRIPT} & <b>markup</b> that stays text.",
        factors={"n": [10, 1000]},
        holds=Declared(f"loss {SCRIPT} at most 1"),
        chart=[
            line(x="n.items[0]", y="loss", log="y", title=f"Loss {SCRIPT}"),
            bar(x="method", y="loss"),
            bar(x="method", y="extra"),
            line(x="n", y="never recorded"),
        ],
        peers={long: f"settings {SCRIPT}" + "x" * 200, SCRIPT: "none"},
    )
    finding = found(0.5, NAN, NAN, at_most=1.0, kind="rank", label=f"{SCRIPT} {long}", sentence=f"{SCRIPT} was {long}.")
    nothing = found(NAN, NAN, NAN, at_most=1.0, label="nothing measured", n=0)
    unbounded = found(-math.inf, -math.inf, 2.0, at_least=-1.0, kind="difference", label="unbounded")
    inner = combine([nothing, replace(nothing, label="nothing again")], "inner")
    deep = combine([combine([inner, unbounded], f"middle {SCRIPT}"), finding], "all of")
    return MethodResult(
        card(
            "hostile",
            f"A title with {SCRIPT}",
            f"field {SCRIPT}",
            summary=f"{SCRIPT} {long}",
            url="javascript:window.pwned=true",
            body=f"# Head\n\n{SCRIPT}\n\n[click](javascript:alert(1)) <img src=x onerror='window.pwned=true'>",
            paper=SCRIPT,
        ),
        (
            result(
                evil,
                "inconclusive",
                finding=deep,
                table=table,
                on="/data/my file; rm -rf.parquet",
                environment={SCRIPT: SCRIPT},
            ),
            result(evil, "inconclusive", finding=finding, scale="full", table=table.head(0)),
        ),
    )


@pytest.fixture(scope="session")
def methods() -> list[MethodResult]:
    return [qkmeans(), wildcat(), max_kernel(), hostile()]


@pytest.fixture(scope="session")
def site(methods: list[MethodResult], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a built report with every kind of outcome."""
    from cameraready.evidence.site import build

    return build(methods, tmp_path_factory.mktemp("report")).parent
