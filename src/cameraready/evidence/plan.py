"""From claims to trials: factors x seeds at a scale, each with a fingerprint of all that its result depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cameraready.evidence.claim import Claim
from cameraready.evidence.fingerprint import data_digests, digest_of, source_digest, versions
from cameraready.registry import claims_module


@dataclass(frozen=True)
class TrialSpec:
    """One trial as it is sent to a worker: names and plain values only."""

    slug: str
    claim: str
    seed: int
    cell: Mapping[str, Any]
    timeout: float
    fingerprint: str
    on: str = ""

    @property
    def name(self) -> str:
        """What a person calls this trial."""
        cell = ", ".join(f"{key}={value}" for key, value in self.cell.items())
        return f"{self.slug}:{self.claim} [{cell}{', ' if cell else ''}seed={self.seed}]"


def claims_of(slug: str) -> tuple[Claim, ...]:
    """A method's claims in the order of its claims.py."""
    return tuple(value for value in vars(claims_module(slug)).values() if isinstance(value, Claim))


def plan(
    slug: str,
    claim: Claim,
    scale: str,
    *,
    seeds: int | None = None,
    overrides: Mapping[str, Sequence[Any]] | None = None,
    on: str = "",
    on_digest: str = "",
) -> list[TrialSpec]:
    """The trials of one claim at one scale.

    Parameters
    ----------
    seeds : how many seeds, instead of the scale's.
    overrides : factor to values, instead of the scale's.
    on : the user's file for the claim's `Dataset` factor, and ``on_digest`` the digest of its content.
    """
    overrides = dict(overrides or {})
    if on and claim.dataset_factor:
        overrides[claim.dataset_factor[0]] = [os.path.basename(on)]
    common = {
        "method": source_digest(slug, claim.name),
        "versions": versions(slug),
        "data": data_digests(slug),
        "on": on_digest,
    }
    return [
        TrialSpec(
            slug=slug,
            claim=claim.name,
            seed=seed,
            cell=cell,
            timeout=claim.timeout,
            fingerprint=digest_of({**common, "cell": cell, "seed": seed}),
            on=on,
        )
        for cell in claim.cells(scale, overrides=overrides)
        for seed in range(seeds or claim.scales[scale].seeds)
    ]

