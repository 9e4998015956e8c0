"""Results files, held against their schema."""

import json
import pathlib

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read_lines(path):
    """A results file's lines, each held against the schema."""
    schema = json.loads((ROOT / "results" / "schema.json").read_text())
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, schema)
    return lines
