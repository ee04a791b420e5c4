"""Settings for every test.

The suite draws the same examples on every run, and a failure prints how to repeat it.
`./run test --hypothesis-profile=long` draws many more, new ones each time.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("suite")
