"""Draw the packages of confluo_tools and their imports: `python docs/imports.py` writes docs/imports.svg.

Each box is a package (or a module) with its lines of Python and of pyx; each arrow is "imports", read from the syntax
trees, also of imports inside functions.  Rows are layers: a package imports only what is drawn below it.
Exit status 1 when the imports have a circle or one runs up.  Standard library only.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "confluo_tools"
SYSTEMS = ("capture", "monitor", "retx", "trace", "vote", "pingmesh", "replay", "stream", "sql", "top")
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 118, 46, 22, 44, 24

ARROWHEAD = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>'
)


def imports() -> tuple[dict[str, set[str]], dict[str, int]]:
    """({package: packages it imports}, {package: lines}) below confluo_tools."""
    names = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    edges: dict[str, set[str]] = {name: set() for name in names}
    lines: dict[str, int] = defaultdict(int)
    for path in sorted(PACKAGE.rglob("*.py")):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        text = path.read_text()
        if package == "__init__":
            continue
        lines[package] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in found:
                words = name.split(".")
                if words[0] == "confluo_tools" and len(words) > 1 and words[1] in names - {package}:
                    edges[package].add(words[1])
    for path in (ROOT / "pyx").rglob("*"):
        if path.suffix in (".pyx", ".pxd", ".h"):
            lines["core"] += path.read_text().count("\n")
    return edges, lines


def layers(edges: dict[str, set[str]]) -> dict[str, int]:
    """{package: length of its longest chain of imports}.  Raises ValueError for a circle."""
    depth: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> int:
        if name in trail:
            raise ValueError("circle: " + " -> ".join([*trail[trail.index(name) :], name]))
        if name not in depth:
            depth[name] = 1 + max((visit(other, (*trail, name)) for other in sorted(edges[name])), default=-1)
        return depth[name]

    for name in sorted(edges):
        visit(name, ())
    return depth


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports that are not implied by a chain of others: what is drawn."""

    def reach(name: str) -> set[str]:
        found: set[str] = set()
        for other in edges[name]:
            found |= {other} | reach(other)
        return found

    return {name: {o for o in to if not any(o in reach(p) for p in to - {o})} for name, to in edges.items()}


def draw(edges: dict[str, set[str]], lines: dict[str, int]) -> str:
    """The picture as SVG."""
    depth = layers(edges)
    for name in SYSTEMS:
        depth[name] = max(depth[s] for s in SYSTEMS)
    top = max(depth.values())
    rows = [sorted((n for n in depth if depth[n] == level), key=lambda n: n) for level in range(top, -1, -1)]
    rows = [row for row in rows if row]
    wide = max(map(len, rows)) * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    high = len(rows) * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    at: dict[str, tuple[float, float]] = {}
    for y, row in enumerate(rows):
        left = (wide - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for x, name in enumerate(row):
            at[name] = left + x * (WIDTH + GAP_X), MARGIN + y * (HEIGHT + GAP_Y)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" font-family="sans-serif">',
        ARROWHEAD,
        f'<rect width="{wide:g}" height="{high:g}" fill="#fff"/>',
    ]
    for name, others in sorted(reduced(edges).items()):
        for other in sorted(others):
            (x1, y1), (x2, y2) = at[name], at[other]
            a, b = (x1 + WIDTH / 2, y1 + HEIGHT), (x2 + WIDTH / 2, y2)
            bend = (b[1] - a[1]) / 2
            curve = f"M{a[0]:g} {a[1]:g}C{a[0]:g} {a[1] + bend:g} {b[0]:g} {b[1] - bend:g} {b[0]:g} {b[1] - 2:g}"
            out.append(f'<path d="{curve}" fill="none" stroke="#999" marker-end="url(#a)"/>')
    for name, (x, y) in sorted(at.items()):
        fill = "#dbeafe" if name in SYSTEMS else "#fef3c7" if name in ("commands", "__main__") else "#f1f5f9"
        middle = x + WIDTH / 2
        out += [
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}" stroke="#475569"/>',
            f'<text x="{middle:g}" y="{y + 20:g}" text-anchor="middle" font-size="14">{name}</text>',
            f'<text x="{middle:g}" y="{y + 37:g}" text-anchor="middle" font-size="11">{lines[name]:,} lines</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    edges, lines = imports()
    try:
        picture = draw(edges, lines)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 1
    (ROOT / "docs" / "imports.svg").write_text(picture)
    print(f"{len(edges)} packages, {sum(map(len, edges.values()))} imports between them, no circle: docs/imports.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
