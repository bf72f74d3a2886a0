"""python benchmarks/step.py [KEY=VALUE ...]: the same as `attnlab bench step`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("step"))
