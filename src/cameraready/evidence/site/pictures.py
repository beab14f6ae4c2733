"""The report's pictures as files, for papers and slides: each claim's effects with their intervals, and its charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from cameraready.evidence.site import drawing, views
from cameraready.evidence.verdict import MethodResult


def write_pictures(methods: Sequence[MethodResult], out: Path, *, kind: drawing.PictureKind = "png") -> list[Path]:
    """Write ``out/SLUG/CLAIM.KIND`` (effects) and ``out/SLUG/CLAIM-1.KIND``, ... (charts in the order of the claim).

    Claims without measurements have no picture, and neither has a chart that cannot be drawn (the page says why).

    Parameters
    ----------
    methods : what stands at the end of a run.
    out : the folder; made where missing, pictures of the same name are replaced.
    kind : "png" at two pixels a unit, or "svg" or "pdf", which scale.

    Raises
    ------
    ValueError : another kind of picture.
    """
    if kind not in get_args(drawing.PictureKind):
        raise ValueError(f"pictures come as {', '.join(get_args(drawing.PictureKind))}, not as {kind!r}")
    written = []
    for method in map(views.view, methods):
        folder = Path(out) / method.card.slug
        for claim in method.claims:
            finding = claim.result.finding
            specs = {"": drawing.forest_spec(finding)} if finding else {}
            charts, table = claim.result.claim.charts, claim.result.table
            for number, (chart, figure) in enumerate(zip(charts, claim.figures, strict=False), start=1):
                if table is not None and not figure.problem:
                    specs[f"-{number}"] = drawing.chart_spec(chart, table, levels=claim.levels)
            for suffix, spec in specs.items():
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{claim.anchor}{suffix}.{kind}"
                path.write_bytes(drawing.render(spec, kind))
                written.append(path)
    return written
