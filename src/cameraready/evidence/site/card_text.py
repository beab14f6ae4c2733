"""A card's Markdown as HTML that is safe to embed: no raw HTML, no script links, nothing fetched from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

WEB = ("https://", "http://", "mailto:")


def to_html(text: str, *, top: int = 3) -> Markup:
    """Convert a card's text; its highest heading becomes ``<h{top}>`` so that it fits below the page's own headings.

    Links into the repository become plain text and images become links, since a page opens without either at hand.
    Comments are left out, and so is the evidence that `make cards` writes: a page shows the verdicts of its own run.

    Examples
    --------
    >>> str(to_html("# Use <b>it</b>")).strip()
    '<h3>Use &lt;b&gt;it&lt;/b&gt;</h3>'
    """
    text = re.sub(r"<!-- evidence.*?<!-- end of evidence -->|<!--.*?-->", "", text, flags=re.DOTALL)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    levels = [int(token.tag[1]) for token in tokens if token.type == "heading_open"]
    shift = top - min(levels, default=top)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + shift, 6)}"
        elif token.type == "table_open":
            token.attrSet("class", "plain")
        token.children = _without_fetching(token.children or []) if token.type == "inline" else token.children
    # Wide tables and code scroll inside their own box, which the keyboard reaches, and not with the page. Raw HTML is
    # off, so every tag here is the renderer's.
    html = markdown.renderer.render(tokens, markdown.options, {})
    html = html.replace("<table", '<div class="scroll" tabindex="0"><table').replace("</table>", "</table></div>")
    return Markup(html.replace("<pre><code", '<pre tabindex="0"><code'))


def _without_fetching(children: Sequence[Token]) -> list[Token]:
    kept: list[Token] = []
    dropped = 0
    for token in children:
        if token.type == "image":
            source = str(token.attrGet("src") or "")
            words = Token("text", "", 0, content=token.content or source)
            if source.startswith(WEB):
                kept += [Token("link_open", "a", 1, attrs={"href": source}), words, Token("link_close", "a", -1)]
            else:
                kept.append(words)
        elif token.type == "link_open" and not str(token.attrGet("href") or "").startswith((*WEB, "#")):
            dropped += 1
        elif token.type == "link_close" and dropped:
            dropped -= 1
        else:
            kept.append(token)
    return kept
