"""python benchmarks/memory.py [KEY=VALUE ...] is `attnlab bench memory ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("memory"))
