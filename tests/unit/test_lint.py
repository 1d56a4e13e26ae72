"""The lint of tables, and their JSON schema, which is to say what the loader says."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectives.selection import Table, load
from tests.unit.tuning_table_mutants import everything, exchanged, reordered, saved
from tuner import cli
from tuner.commands.lint import schema

FOLDER = Path(__file__).parents[2] / "tuning_tables"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def fits(value: Any, rule: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a value is as a JSON schema says, of the words that ours has; KeyError for another word."""
    if "$ref" in rule:
        return fits(value, whole["$defs"][rule["$ref"].rpartition("/")[2]], whole)
    for word, said in rule.items():
        match word:
            case "type":
                right = isinstance(value, TYPES[said]) and (said == "boolean" or not isinstance(value, bool))
            case "anyOf":
                right = any(fits(value, each, whole) for each in said)
            case "enum":
                right = value in said
            case "minimum":
                right = value >= said
            case "exclusiveMinimum":
                right = value > said
            case "maximum":
                right = value <= said
            case "minLength" | "minItems":
                right = len(value) >= said
            case "maxItems":
                right = len(value) <= said
            case "required":
                right = all(name in value for name in said)
            case "properties":
                right = all(fits(value[name], each, whole) for name, each in said.items() if name in value)
            case "additionalProperties" if said is False:
                right = value.keys() <= rule["properties"].keys()
            case "additionalProperties":
                right = all(fits(each, said, whole) for each in value.values())
            case "prefixItems":
                right = all(fits(each, of, whole) for each, of in zip(value, said, strict=False))
            case "items":
                right = said is False or all(fits(each, said, whole) for each in value)
            case "title" | "description" | "default" | "$schema" | "$defs":
                right = True
            case _:
                raise KeyError(word)
        if not right:
            return False
    return True


def test_the_schema_is_the_file_and_says_what_the_loader_says():
    made = schema()
    assert json.loads((FOLDER / "schema" / "table.json").read_text()) == made
    whole = saved(everything())
    assert fits(json.loads(whole), made, made)
    counts = {True: 0, False: 0}
    for mutant in [*exchanged(whole), *reordered(whole, random.Random(3), 20)]:
        if b"0" * 400 in mutant.text:  # a schema has no words for what is no double
            continue
        try:
            value = json.loads(mutant.text)
            converted = msgspec.convert(value, Table)
        except msgspec.ValidationError:
            taken = False
        except ValueError:  # no JSON at all
            continue
        else:
            taken = all(
                getattr(each, name) in said["enum"]
                for each in (*converted.rules, *converted.tuned)
                for name, said in made["$defs"][type(each).__name__]["properties"].items() if "enum" in said
            )  # fmt: skip
        assert fits(value, made, made) == taken, mutant
        counts[taken] += 1
    assert min(counts.values()) > 200


def lint(capsys, *arguments):
    status = cli.main(["lint", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_tables_of_this_folder_are_right(capsys):
    status, out = lint(capsys, FOLDER)
    assert status == 0, out


def test_lint_names_what_should_not_be_committed(capsys, tmp_path):
    path = tmp_path / "t.json"
    table = everything()
    table.topology = msgspec.structs.replace(table.topology, fingerprint="1x2 | here")
    table.samples = None
    table.save(path)
    assert lint(capsys, path) == (0, f"{path}: right, {len(table.rules)} rules for 1x2 | here\n")
    raw = json.loads(path.read_text())
    raw |= {"samples": "absent.jsonl", "topology": {**raw["topology"], "fingerprint": "1x4 | there"}}
    first = next(rule for rule in raw["rules"] if rule["measured_bytes"])
    first["measured_bytes"] = 1 << 30
    following = raw["rules"][raw["rules"].index(first) + 1]
    following |= {"algorithm": first["algorithm"], "params": first["params"]}
    path.write_text(json.dumps(raw))
    status, out = lint(capsys, tmp_path)
    assert status == 1
    for said in ("fingerprint speaks of 1x4, and ranks_per_node of 1x2", "absent.jsonl is not beside it",
                 "measured_bytes 1073741824 lies outside", "chooses what the rule before it does",
                 "not in the form of tables"):  # fmt: skip
        assert said in out
    assert lint(capsys, path, "--fix")[0] == 1
    assert "not in the form" not in lint(capsys, path)[1]
    (tmp_path / "u.json").write_bytes(path.read_bytes())
    (tmp_path / "v.json").write_text("{}")
    status, out = lint(capsys, tmp_path, "--json")
    said = json.loads(out)["tables"]
    assert "t.json is for the same, and would be taken" in said[f"{tmp_path}/u.json"][-1]
    assert "missing required field `topology`" in said[f"{tmp_path}/v.json"][0]


def test_what_fix_writes_is_the_same_table(capsys, tmp_path):
    path = tmp_path / "t.json"
    everything().save(path)
    before = load(path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    lint(capsys, path, "--fix")
    assert load(path) == before
    with pytest.raises(SystemExit):
        cli.main(["lint", "--wrong"])
