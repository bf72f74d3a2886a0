"""python benchmarks/blocks.py [KEY=VALUE ...] is `attnlab bench blocks ...`; see README.md."""

from attnlab.report.bench import script

if __name__ == "__main__":
    raise SystemExit(script("blocks"))
