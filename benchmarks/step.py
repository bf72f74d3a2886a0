"""python benchmarks/step.py [KEY=VALUE ...] is `attnlab bench step ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("step"))
