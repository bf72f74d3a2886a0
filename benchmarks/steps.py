"""python benchmarks/steps.py [KEY=VALUE ...] is `attnlab bench steps ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("steps"))
