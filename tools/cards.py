"""Write the table of methods in README.md from the cards; with --check only say whether it is up to date."""

import sys
from pathlib import Path

from cameraready.registry import cards

START, END = "<!-- methods: written by `make cards` -->", "<!-- end of methods -->"


def table() -> str:
    """The Markdown table, a row a card."""
    rows = ["| method | field | what it does | interface | paper |", "| --- | --- | --- | --- | --- |"]
    for slug, card in cards().items():
        link = f"[`{slug}`](src/cameraready/methods/{slug}/README.md)"
        rows.append(f"| {link} | {card.field} | {card.summary} | {card.interface} | {card.venue}: {card.paper} |")
    return "\n".join(rows)


def updated(text: str) -> str:
    """README.md with its table replaced."""
    before, _, rest = text.partition(START)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md has no lines {START!r} and {END!r}")
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    readme = Path(__file__).parent.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(0 if updated(text) == text else "README.md: the table of methods is out of date; run `make cards`")
    readme.write_text(updated(text), encoding="utf-8")
