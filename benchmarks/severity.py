"""Error by corruption and severity of one run: python benchmarks/severity.py RUN OUT.svg

Reads scores/corruptions.json, which asd evaluate RUN --on corruptions writes; prints as JSON how many corruptions are
worse at severity 5 than at 1 and which do not rise at every step, and draws them all.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import altair as alt
import vl_convert


def main(run: Path, out: Path) -> None:
    score = json.loads((run / "scores" / "corruptions.json").read_text())
    errors: dict[str, list[float]] = score["errors"]
    rows = [
        {"corruption": name.replace("_", " "), "severity": severity, "error": error}
        for name, each in errors.items()
        for severity, error in enumerate(each, start=1)
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("severity:O", axis=alt.Axis(labelAngle=0)), y=alt.Y("error:Q", scale=alt.Scale(domain=[0.4, 1]))
    )
    line = base.mark_line(point=True, color="#0072B2").properties(width=120, height=90)
    names = [name.replace("_", " ") for name in errors]
    chart = line.facet(facet=alt.Facet("corruption:N", title=None, sort=names), columns=5)
    out.write_text(vl_convert.vegalite_to_svg(chart.to_dict()))
    falling = [name for name, each in errors.items() if any(b < a for a, b in pairwise(each))]
    worse = sum(each[-1] > each[0] for each in errors.values())
    print(json.dumps({"source": score["source"], "worse_at_5": worse, "of": len(errors), "not_rising": falling}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
