"""The report as a static site: every claim with its verdict, drawn and explained, readable without a network."""

from cameraready.evidence.site.pages import build

__all__ = ["build"]
