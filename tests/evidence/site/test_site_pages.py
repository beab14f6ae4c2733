"""The pages as files: what they say, what they keep inert, what they refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cameraready.evidence.site import build, write_pictures
from cameraready.evidence.site.card_text import to_html
from cameraready.evidence.site.views import view
from cameraready.evidence.verdict import MethodResult

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """The texts of a page, its elements, and whether every element was closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append((self.elements[-1][1], data))
        elif data.strip():
            self.words.append(data.strip())

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_the_index_has_a_card_with_a_working_link_for_every_method(site: Path, methods: list[MethodResult]) -> None:
    page = Page(site / "index.html")
    links = [element[1]["href"] for element in page.elements if element[0] == "a"]
    for method in methods:
        assert method.card.title in page.text
        assert method.card.summary in page.text
        assert f"methods/{method.card.slug}.html" in links
    for name in ("1 supported", "1 not supported", "2 inconclusive", "1 untestable", "1 skipped", "1 not run"):
        assert name in page.text


def test_every_local_link_and_asset_exists_and_anchors_are_there(site: Path) -> None:
    for path in pages(site):
        page = Page(path)
        names = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
        assert len(names) == sum("id" in attributes for _, attributes in page.elements)
        for _, attributes in page.elements:
            target = attributes.get("href") or attributes.get("src") or ""
            if target.startswith("#"):
                assert target[1:] in names
            elif target and not target.startswith(("https:", "data:")):
                assert (path.parent / target).is_file(), target


def test_nothing_that_a_page_loads_comes_from_elsewhere(site: Path) -> None:
    for path in pages(site):
        for tag, attributes in Page(path).elements:
            if tag in ("script", "link", "img", "iframe", "source", "use"):
                assert not re.match(r"(https?:)?//", attributes.get("src") or attributes.get("href") or "")
    assert not re.search(r"url\(|@import|https?://", (site / "assets/site.css").read_text())


def test_a_claim_shows_sentence_rule_finding_interval_peers_run_facts_and_how_to_repeat_it(site: Path) -> None:
    text = Page(site / "methods/qkmeans.html").text
    for said in (
        "At large k, seeding is several times faster than k-means++ at nearly the same cost.",
        "seconds of QKMeans at most 0.5 times that of k-means++ (scikit-learn), at the largest k",
        "QKMeans had 1.00 times the cost of k-means++ (scikit-learn)",
        "0.0362 [0.0331, 0.0397]",
        "needs ≤ 0.5",
        "sklearn.cluster.kmeans_plusplus, n_local_trials=1",
        "Seeds 5",
        "Cells 6",
        "Trials 30",
        "Peak memory 412 MiB",
        "Fingerprint 9f2c41d07ab3",
        "torch 2.13.0+cpu",
        "cameraready verify qkmeans:seeding-speed --scale quick",
        "from cameraready.methods.qkmeans import QKMeans, QKMeansInit",
        "pip install 'cameraready[clustering]'",
        "When not to use it",
    ):
        assert said in text, said


def test_parts_of_a_finding_are_rows_with_their_own_verdicts(site: Path) -> None:
    text = Page(site / "methods/qkmeans.html").text
    heading = "cost of QKMeans at most 1.05 times that of k-means++ (scikit-learn), for each dataset supported"
    assert re.search(
        re.escape(heading) + r" dataset = digits .*? supported dataset = image patches .*? supported", text
    )


def test_failed_trials_are_shown_with_their_traceback_and_the_verdict_carries_a_warning(site: Path) -> None:
    text = Page(site / "methods/qkmeans.html").text
    assert "Incomplete: 2 trials failed, of 15 planned." in text
    assert "Seed 3, rho = 0.1: TimeoutError: 120 s Traceback (most recent call last):" in text


@pytest.mark.parametrize(
    ("slug", "outcome", "reason"),
    [
        ("wildcat", "untestable", "needs a GPU with 128k tokens; use --scale full"),
        ("wildcat", "not run", "No measurements at quick scale yet."),
        ("max_kernel", "skipped", "Needs botorch and gpytorch: pip install 'cameraready[bo]'."),
    ],
)
def test_outcomes_that_judge_nothing_say_why_and_do_not_look_supported(site, slug, outcome, reason) -> None:
    html = (site / f"methods/{slug}.html").read_text()
    [article] = re.findall(rf'<article class="claim {outcome.replace(" ", "-")}".*?</article>', html, re.DOTALL)
    assert f'class="badge {outcome.replace(" ", "-")}' in article
    assert 'class="badge supported' not in article
    assert 'class="forest"' not in article
    words = Page(site / f"methods/{slug}.html").text
    assert reason in words


def test_names_with_markup_stay_text_in_html_and_inside_chart_specifications(site: Path) -> None:
    ours = {"../assets/vega.js", "../assets/site.js"}
    page = Page(site / "methods/hostile.html")
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert {attributes["src"] for attributes in scripts if "src" in attributes} == ours
    assert len([attributes for attributes in scripts if not attributes]) == 1  # the theme, before the first paint
    specs = [json.loads(data) for attributes, data in page.scripts if attributes.get("type") == "application/json"]
    assert "<script>window.pwned = true</script>" in specs[0]["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any("javascript:" in (attributes.get("href") or "") for _, attributes in page.elements)
    assert not any(tag == "img" for tag, _ in page.elements)
    assert "cameraready verify hostile:markup --scale quick --on '/data/my file; rm -rf.parquet'" in page.text


def test_a_chart_that_cannot_be_drawn_says_so_where_it_would_stand(site: Path) -> None:
    text = Page(site / "methods/hostile.html").text
    assert "This chart could not be drawn: column 'n' was not recorded; the columns are seed, method" in text
    assert "6 of 66 rows without a finite method and extra are not drawn." in text


def test_the_same_claim_at_two_scales_has_two_anchors(site: Path) -> None:
    names = [attributes.get("id") for _, attributes in Page(site / "methods/hostile.html").elements]
    assert {"markup-quick", "markup-full"} <= set(names)


def test_thousands_of_rows_make_a_small_page(site: Path) -> None:
    assert (site / "methods/wildcat.html").stat().st_size < 250_000


def test_an_empty_report_says_what_to_do(tmp_path: Path) -> None:
    assert "cameraready verify --scale quick" in Page(build([], tmp_path / "new" / "folder")).text


def test_a_method_without_claims_has_a_page(tmp_path: Path, methods: list[MethodResult]) -> None:
    index = build([replace(methods[0], claims=())], tmp_path)
    assert "This method has no claims yet." in Page(index.parent / "methods/qkmeans.html").text


def test_a_report_written_again_replaces_the_old_one_and_keeps_vega(
    tmp_path: Path, methods: list[MethodResult]
) -> None:
    build(methods[:1], tmp_path)
    library = (tmp_path / "assets/vega.js").stat()
    changed = replace(methods[0], card=replace(methods[0].card, title="Another title"))
    assert "Another title" in Page(build([changed], tmp_path)).text
    assert (tmp_path / "assets/vega.js").stat().st_mtime_ns == library.st_mtime_ns


@pytest.mark.parametrize("slug", ["../escape", "", "a/b", "a b"])
def test_a_slug_that_cannot_name_a_page_is_refused_before_anything_is_written(tmp_path, methods, slug) -> None:
    with pytest.raises(ValueError, match="cannot name a page"):
        build([replace(methods[0], card=replace(methods[0].card, slug=slug))], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_given_twice_is_refused(tmp_path: Path, methods: list[MethodResult]) -> None:
    with pytest.raises(ValueError, match="'qkmeans' occurs 2 times"):
        build([methods[0], methods[0]], tmp_path)


def test_colours_follow_the_methods_of_the_page_before_their_peers(methods: list[MethodResult]) -> None:
    [claim, *_] = view(methods[0]).claims
    assert claim.levels["method"] == ["QKMeans", "k-means++ (scikit-learn)", "AFK-MC2 (m=200)"]
    assert claim.levels["dataset"] == ("digits", "image patches")


def test_more_contestants_than_colours_start_afresh_in_every_claim(methods: list[MethodResult]) -> None:
    [first, *_] = methods[0].claims
    crowded = [
        replace(first, table=first.table.assign(method=[f"{part}{i % 5}" for i in range(len(first.table))]))
        for part in "ab"
    ]
    for claim, part in zip(view(replace(methods[0], claims=tuple(crowded))).claims, "ab", strict=True):
        assert claim.levels["method"] == [f"{part}{i}" for i in range(5)]


def test_a_card_s_text_keeps_web_links_and_drops_what_would_be_fetched_or_is_not_there() -> None:
    html = str(to_html("# A\n## B\n[web](https://a.org) [file](../x.md) ![seen](https://a.org/a.png) ![not](b.png)"))
    assert html.startswith("<h3>A</h3>\n<h4>B</h4>")
    assert '<a href="https://a.org">web</a> file <a href="https://a.org/a.png">seen</a> not' in html


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_pictures_are_files_for_papers(methods: list[MethodResult], tmp_path: Path, kind: str, magic: bytes) -> None:
    methods = methods[:1]
    written = write_pictures(methods, tmp_path, kind=kind)  # type: ignore[arg-type]
    effects = sum(claim.finding is not None for method in methods for claim in method.claims)
    charts = sum(not figure.problem for method in methods for claim in view(method).claims for figure in claim.figures)
    assert effects > 0
    assert charts > 0
    assert len(set(written)) == effects + charts
    assert all(path.read_bytes().startswith(magic) for path in written)
    with pytest.raises(ValueError, match="png, svg, pdf"):
        write_pictures(methods, tmp_path, kind="gif")  # type: ignore[arg-type]
