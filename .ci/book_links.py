"""A preprocessor of mdBook, for links that work in the repository and not in the book.

`[the unit](../deploy/weir.service)` leads to a file beside docs/, which the book does not have: there
the path stands behind the words. And mdBook calls the page of a README.md index.html.
"""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def replaced(chapter_path, text):
    """The text with the links of a page that lead out of the book replaced."""

    def link(match):
        words, target = match.groups()
        if ":" in target or target.startswith("#"):
            return match.group()
        path = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(chapter_path), target.split("#")[0])
        )
        if path.startswith("docs/"):
            return match.group().replace("README.md", "index.md")
        return words if path in words else f"{words} (`{path}`)"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(link, text[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def walk(items):
    """All chapters below these items of a book."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            chapter = item["Chapter"]
            yield chapter
            yield from walk(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _context, book = json.load(sys.stdin)
    for chapter in walk(book.get("items") or book["sections"]):
        if chapter["path"]:
            chapter["content"] = replaced(chapter["path"], chapter["content"])
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
