"""python benchmarks/trainer.py [KEY=VALUE ...] is `attnlab bench trainer ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("trainer"))
