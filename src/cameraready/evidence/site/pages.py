"""Write the site: an index, a page for each method, and the assets that they share."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from cameraready.evidence.site import wording
from cameraready.evidence.site.card_text import WEB, to_html
from cameraready.evidence.site.forest import KINDS
from cameraready.evidence.site.palette import DARK, LIGHT
from cameraready.evidence.site.views import MethodView, count, view
from cameraready.evidence.verdict import MethodResult

ASSETS = ("site.css", "site.js")


def build(methods: Sequence[MethodResult], out: Path) -> Path:
    """Write the report into a folder and return its index.html, which opens in a browser from disk.

    Parameters
    ----------
    methods : what stands at the end of a run, in the order of the index.
    out : the folder; made where missing, pages of the same name are replaced.

    Raises
    ------
    ValueError : a method's slug that cannot be a file name, or the same slug twice.
    """
    slugs = [method.card.slug for method in methods]
    for slug in slugs:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", slug):
            raise ValueError(f"slug {slug!r} cannot name a page; use letters, digits, _ and -")
        if slugs.count(slug) > 1:
            raise ValueError(f"slug {slug!r} occurs {slugs.count(slug)} times; give each method once")
    views = [view(method) for method in methods]
    out = Path(out)
    (out / "methods").mkdir(parents=True, exist_ok=True)
    _write_assets(out / "assets")
    environment = _environment()
    for method in views:
        page = out / method.href
        page.write_text(environment.get_template("method.html").render(root="../", method=method), encoding="utf-8")
    index = out / "index.html"
    index.write_text(environment.get_template("index.html").render(root="", **_index(views)), encoding="utf-8")
    return index


def _index(views: Sequence[MethodView]) -> Mapping[str, Any]:
    results = [claim.result for method in views for claim in method.claims]
    return {
        "methods": views,
        "counts": count(results),
        "claims": len(results),
        "scales": list(dict.fromkeys(result.scale for result in results)),
        "fields": sorted({method.card.field for method in views}, key=str.casefold),
        "meaning": wording.MEANING,
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("cameraready.evidence.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        version=metadata.version("cameraready"),
        made=datetime.datetime.now().astimezone(),
        light=LIGHT.css(),
        dark=DARK.css(),
        value=wording.value,
        interval=wording.interval,
        kinds=KINDS,
        needed=wording.needed,
        plural=wording.plural,
        label=wording.label,
        to_html=to_html,
        web_link=lambda url: url.startswith(WEB),
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _write_assets(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    ours = resources.files("cameraready.evidence.site") / "assets"
    for name in ASSETS:
        (folder / name).write_bytes((ours / name).read_bytes())
    # Bundling Vega takes a second and a half; what stands there from the last report is as good.
    library, stamp = folder / "vega.js", f"/* vl-convert {metadata.version('vl-convert-python')} */\n"
    if not library.is_file() or not library.read_text(encoding="utf-8").startswith(stamp):
        library.write_text(stamp + _vega(), encoding="utf-8")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and their embedding as one script; its own names stay inside a function, one is published."""
    return f"(() => {{\n{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}\n}})();\n"
