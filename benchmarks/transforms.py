"""python benchmarks/transforms.py [KEY=VALUE ...] is `attnlab bench transforms ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("transforms"))
