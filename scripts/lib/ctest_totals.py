#!/usr/bin/env python3
"""ctest_totals.py FILE...: adds up `ctest --output-junit`; prints "PASSED FAILED SKIPPED".

The names of failed tests go to stderr. A file that is missing or broken counts as one failure: a
test run that crashed must not read as zero failures.
"""

import sys
import xml.etree.ElementTree as ET


def totals(path: str) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError) as error:
        print(f"  failed: {path}: {error}", file=sys.stderr)
        return 0, 1, 0
    for case in cases:
        # ctest writes status run, fail, notrun (skipped, or its program missing) or disabled.
        status = case.get("status")
        # A test that did not run counts as skipped only if it said so itself.
        asked = any((s.get("message") or "").startswith("SKIP_") for s in case.iter("skipped"))
        if status == "run":
            passed += 1
        elif status == "disabled" or (status == "notrun" and asked):
            skipped += 1
        else:
            failed += 1
            print(f"  failed: {case.get('name')}", file=sys.stderr)
    return passed, failed, skipped


if __name__ == "__main__":
    sums = [sum(column) for column in zip(*map(totals, sys.argv[1:]), strict=True)]
    print(*(sums or [0, 0, 0]))
