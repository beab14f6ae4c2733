"""From claims to trials: factors x seeds at a scale, each with a fingerprint of all that its result depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cameraready.evidence.claim import Claim
from cameraready.evidence.fingerprint import data_digest, data_digests, digest_of, source_digest, versions
from cameraready.registry import claims_module


@dataclass(frozen=True)
class TrialSpec:
    """One trial as it is sent to a worker: names and plain values only."""

    slug: str
    claim: str
    seed: int
    cell: Mapping[str, Any]
    timeout: float
    fingerprint: str = ""
    on: str = ""
    on_digest: str = ""

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
    specs: dict[str, TrialSpec] = {}  # by fingerprint: a value that is given twice is run, and counted, once
    for cell in claim.cells(scale, overrides=overrides):
        for seed in range(seeds or claim.scales[scale].seeds):
            spec = TrialSpec(slug, claim.name, seed, cell, claim.timeout, on=on, on_digest=on_digest)
            spec = replace(spec, fingerprint=fingerprint_of(spec, claim))
            specs[spec.fingerprint] = spec
    return list(specs.values())


def fingerprint_of(spec: TrialSpec, claim: Claim) -> str:
    """Digest of all that the trial's result depends on, as it is on this machine."""
    named = {value: data_digest(value) for value in spec.cell.values() if isinstance(value, str)}
    return digest_of(
        {
            "trial": [spec.slug, spec.claim, spec.seed, dict(spec.cell)],
            "method": source_digest(spec.slug, spec.claim),
            "versions": versions(spec.slug),
            "data": {**data_digests(spec.slug, spec.claim), **named},
            "on": [spec.on_digest, claim.dataset_factor and claim.dataset_factor[1].kind] if spec.on else "",
        }
    )
