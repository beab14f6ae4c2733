"""Write README.md's table of methods from the cards, and each card's evidence from the stored trials of a run.

`make cards` after `make verify`. With --check only say whether the table is up to date.
"""

import sys
from pathlib import Path

from cameraready.evidence.store import Store
from cameraready.evidence.verdict import ClaimResult
from cameraready.evidence.verify import collect, prepare
from cameraready.registry import Card, cards

README = Path(__file__).parent.parent / "README.md"
TABLE = "<!-- methods: written by `make cards` -->", "<!-- end of methods -->"
EVIDENCE = "<!-- evidence: written by `make cards` -->", "<!-- end of evidence -->"


def table() -> str:
    """The Markdown table of the methods, a row a card."""
    rows = ["| method | field | what it does | interface | paper |", "| --- | --- | --- | --- | --- |"]
    for slug, card in cards().items():
        link = f"[`{slug}`](src/cameraready/methods/{slug}/README.md)"
        rows.append(f"| {link} | {card.field} | {card.summary} | {card.interface} | {card.venue}: {card.paper} |")
    return "\n".join(rows)


def evidence(card: Card) -> str:
    """The Markdown table of a method's verdicts at quick scale."""
    (method,) = collect(prepare([card.slug], "quick", Store("results")))
    if any(result.outcome == "not run" for result in method.claims):
        raise SystemExit(f"{card.slug} has claims without results; run `make verify` first")
    rows = ["| claim | verdict | what was measured |", "| --- | --- | --- |", *map(row, method.claims)]
    machines = {result.environment["processor"] for result in method.claims if result.environment}
    return "\n".join(rows) + f"\n\nQuick scale, one core a trial, on {' and '.join(sorted(machines))}."


def row(result: ClaimResult) -> str:
    """A claim with its verdict."""
    return " | ".join(["", f"`{result.claim.name}`: {result.claim.says}", result.outcome, result.sentence, ""]).strip()


def between(text: str, marks: tuple[str, str], content: str, where: Path) -> str:
    """The text with what stands between two marks replaced."""
    before, start, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not start or not end:
        raise SystemExit(f"{where} has no lines {marks[0]!r} and {marks[1]!r}")
    return f"{before}{start}\n{content}\n{end}{after}"


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    updated = between(text, TABLE, table(), README)
    if "--check" in sys.argv:
        sys.exit(0 if updated == text else "README.md: the table of methods is out of date; run `make cards`")
    README.write_text(updated, encoding="utf-8")
    for card in cards().values():
        path = card.folder / "README.md"
        path.write_text(between(path.read_text(encoding="utf-8"), EVIDENCE, evidence(card), path), encoding="utf-8")
