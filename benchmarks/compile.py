"""python benchmarks/compile.py [KEY=VALUE ...] is `attnlab bench compile ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("compile"))
