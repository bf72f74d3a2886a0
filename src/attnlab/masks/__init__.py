"""Which keys a query may attend to: fixed patterns of positions (`patterns.py`), masks that are learned (`learned.py`)
and masks out of a file (`saved.py`), each described by plain data (`spec.py`). Nothing here knows of encoders or
training; tokens that are kept whatever the pattern says are found by the caller."""
