#!/usr/bin/env python3
"""proto_check.py [--write]: the .proto files compile, and no field was ever renumbered.

scripts/proto_fields.txt holds every field and enum value with its number. One that is there may
not change its number, and one that is removed must be reserved. --write adds what is new.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "scripts/proto_fields.txt"
OPEN = re.compile(r"^(message|enum|oneof|service)\s+(\w+)\s*\{")
FIELD = re.compile(r"^(?:optional |repeated )?(?:map<[^>]+>|[\w.]+)\s+(\w+)\s*=\s*(\d+)")
VALUE = re.compile(r"^(\w+)\s*=\s*(\d+)")
RESERVED = re.compile(r"^reserved\s+([^;]+);")


def parse(path: Path) -> tuple[dict[str, int], set[str], list[str]]:
    """(name -> number, reserved "Message#number", style errors) of one file."""
    numbers: dict[str, int] = {}
    reserved: set[str] = set()
    errors: list[str] = []
    scope: list[tuple[str, str]] = []
    package = re.search(r"^package ([\w.]+);", path.read_text(), re.M).group(1)
    for line_number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.split("//")[0].strip()
        # A oneof gives its fields no scope of their own.
        owner = ".".join([package, *(name for kind, name in scope if kind != "oneof")])
        if opened := OPEN.match(line):
            if not line.endswith("}"):
                scope.append((opened[1], opened[2]))
        elif line.startswith("}") and scope:
            scope.pop()
        elif held := RESERVED.match(line):
            for first, last in re.findall(r"(\d+)(?:\s+to\s+(\d+))?", held[1]):
                numbers_held = range(int(first), int(last or first) + 1)
                reserved |= {f"{owner}#{n}" for n in numbers_held}
        elif scope and scope[-1][0] == "enum" and (value := VALUE.match(line)):
            prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", scope[-1][1]).upper()
            numbers[f"{owner}.{value[1]}"] = int(value[2])
            if not value[1].startswith(prefix + "_"):
                errors.append(f"{path}:{line_number}: enum value {value[1]} lacks prefix {prefix}_")
            if value[2] == "0" and not value[1].endswith("_UNSPECIFIED"):
                errors.append(f"{path}:{line_number}: value 0 must be {prefix}_UNSPECIFIED")
        elif scope and scope[-1][0] in ("message", "oneof") and (field := FIELD.match(line)):
            numbers[f"{owner}.{field[1]}"] = int(field[2])
            if not re.fullmatch(r"[a-z][a-z0-9_]*", field[1]):
                errors.append(f"{path}:{line_number}: field {field[1]} is not lower_snake_case")
    return numbers, reserved, errors


def main() -> int:
    files = sorted((ROOT / "proto/latchd").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        compiled = subprocess.run(
            ["protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={out}/set", *map(str, files)]
        )
    numbers: dict[str, int] = {}
    reserved: set[str] = set()
    errors = [] if compiled.returncode == 0 else ["protoc failed"]
    for path in files:
        found, held, bad = parse(path)
        numbers |= found
        reserved |= held
        errors += bad
    locked = {}
    if LOCK.exists():
        rows = [r for r in LOCK.read_text().splitlines() if r and not r.startswith("#")]
        locked = {name: int(n) for name, n in (r.split(" = ") for r in rows)}
    for name, number in locked.items():
        owner = name.rsplit(".", 1)[0]
        if name not in numbers and f"{owner}#{number}" not in reserved:
            errors.append(f"{name} = {number} was removed: reserve {number} in {owner}")
        elif numbers.get(name, number) != number:
            errors.append(f"{name} changed its number from {number} to {numbers[name]}")
    new = sorted(numbers.keys() - locked.keys())
    if "--write" in sys.argv and not errors:
        everything = sorted((locked | numbers).items())
        head = (
            "# Every field and enum value that was ever released; see scripts/lib/proto_check.py.\n"
        )
        LOCK.write_text(head + "".join(f"{k} = {v}\n" for k, v in everything))
    elif new:
        errors.append(f"{len(new)} not in {LOCK}, e.g. {new[0]}: run proto_check.py --write")
    for error in errors:
        print(f"  {error}", file=sys.stderr)
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
