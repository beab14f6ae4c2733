"""The report as a static site: every claim with its verdict, drawn and explained, readable without a network."""

from cameraready.evidence.site.pages import build
from cameraready.evidence.site.pictures import write_pictures

__all__ = ["build", "write_pictures"]
