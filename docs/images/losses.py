"""Draws losses.svg of what `cargo run --release -p language-model --example precision -- losses` prints.

Usage: python3 losses.py < losses.csv > losses.svg
"""

import csv
import math
import sys

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 320, 50, 40
COLORS = {"F32": "#888888", "FiveBytes": "#d9480f"}
STYLES = {
    "F32": 'stroke="#999999" stroke-width="4"',
    "FiveBytes": 'stroke="#d9480f" stroke-width="1.5" stroke-dasharray="6 4"',
}
NAMES = {"F32": "fp32, Burn's AdamW", "FiveBytes": "bf16, AdamW in five bytes"}

runs = {}
for row in csv.DictReader(sys.stdin):
    run = runs.setdefault((row["precision"], row["seed"]), [])
    run.append((int(row["step"]), float(row["loss"])))

last = max(step for run in runs.values() for step, _ in run)
losses = [math.log(loss) for run in runs.values() for _, loss in run]
low, high = min(losses), max(losses)


def place(step, loss):
    x = LEFT + (WIDTH - LEFT - 20) * step / last
    y = 20 + (HEIGHT - BOTTOM - 20) * (high - math.log(loss)) / (high - low)
    return f"{x:.1f},{y:.1f}"


print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">')
print(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
for loss in [0.05, 0.1, 0.25, 0.5, 1, 2, 4]:
    if low <= math.log(loss) <= high:
        (x, y), right = place(0, loss).split(","), WIDTH - 20
        print(f'<line x1="{x}" y1="{y}" x2="{right}" y2="{y}" stroke="#dddddd"/>')
        print(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{loss}</text>')
for step in range(0, last + 1, 100):
    x = place(step, 1).split(",")[0]
    print(f'<text x="{x}" y="{HEIGHT - 22}" text-anchor="middle">{step}</text>')
print(f'<text x="{WIDTH / 2}" y="{HEIGHT - 5}" text-anchor="middle">step; loss on a logarithmic scale, three seeds</text>')
for (precision, _), run in runs.items():
    points = " ".join(place(step, loss) for step, loss in run)
    print(f'<polyline points="{points}" fill="none" {STYLES[precision]}/>')
for at, precision in enumerate(COLORS):
    y = 30 + 18 * at
    print(f'<line x1="400" y1="{y}" x2="424" y2="{y}" stroke="{COLORS[precision]}" stroke-width="2"/>')
    print(f'<text x="430" y="{y + 4}">{NAMES[precision]}</text>')
print("</svg>")
