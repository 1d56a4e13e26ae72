"""MPI libraries' own collectives: tables for them, their files, and the libraries themselves following these."""

import json
from typing import Any

import pytest

from collectives.tables.table import Place, Rule, Table
from tests import launch

pytestmark = pytest.mark.full
BORDER = 4 << 10


def table(target, algorithm="ring", params=None, ranks=4):
    """Long messages by an algorithm whose results are not rounded as the library's own choice rounds."""
    key: dict[str, Any] = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
    rules = [
        Rule(**key, min_bytes=0, max_bytes=BORDER, algorithm="default"),
        Rule(**key, min_bytes=BORDER + 1, max_bytes=None, algorithm=algorithm, params=params or {}),
    ]
    place = Place(nodes=1, ranks_per_node=[ranks], fingerprint=f"{ranks} | a test")
    return Table(topology=place, target=target, rules=rules)


def treering(library, *arguments):
    found = launch.find(library)
    if found is None:
        pytest.skip(f"needs {library}")
    return launch.run_command([found.python, "-m", "tuner.cli", *arguments], found.environment(), timeout=240)


@pytest.mark.parametrize(
    "library, ranks, algorithm",
    [(each, 4, "ring") for each in launch.LIBRARIES]
    + [("mpich", 2, "ring"), ("openmpi", 2, "rabenseifner"), ("impi", 2, "recursive_doubling")],
)
def test_a_library_follows_its_file(library, ranks, algorithm, tmp_path):
    """Seen in the result's bits: it adds in another order than the library's own choice, or hands over to others."""
    table(library, algorithm, ranks=ranks).save(tmp_path / "table.json")
    export = "export", str(tmp_path / "table.json"), "--to", library
    done = treering(library, *export, "--prove", "--rounds", "2", "--sizes", "1K,64K", "--json")
    assert done.returncode == 0, launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    lines = {line["bytes"]: line for line in json.loads(done.stdout)}
    assert lines[64 << 10]["effect"] == "seen", lines
    own = ("seen", "cannot be seen") if library == "impi" else ("seen",)  # Intel MPI's own bits differ from run to run
    assert lines[1 << 10]["effect"] in own, lines
    assert lines[64 << 10]["chosen"]["algorithm"] == algorithm


def test_a_library_is_tuned(tmp_path):
    out = tmp_path / "table.json"
    done = treering("openmpi", "tune", "--target", "openmpi", "-n", "2", "--sizes", "64,64K", "--budget", "5s",
                    "--output", str(out))  # fmt: skip
    said = launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert done.returncode == 0, said
    assert "times to gain in the geometric mean" in done.stderr, said
    found = json.loads(out.read_text())
    assert found["target"] == "openmpi"
    assert found["topology"]["ranks_per_node"] == [2]
    assert {rule["runner_up"]["algorithm"] for rule in found["rules"]} <= {
        "default", "basic_linear", "nonoverlapping", "recursive_doubling", "ring", "segmented_ring", "rabenseifner",
    }  # fmt: skip
    assert all(rule["native_us"] > 0 for rule in found["rules"])


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("tune", "--target", "mpich", "-n", "2"), "mpi4py uses Open MPI v5.0"),
        (("tune", "--target", "openmpi"), "say how many with -n RANKS"),
        (("tune", "--target", "openmpi", "-n", "2", "--collective", "alltoall"), "not alltoall"),
        (("tune", "--target", "openmpi", "-n", "2", "--dtype", "bfloat16"), "MPI has no bfloat16"),
        (("export", "TABLE", "--to", "impi"), "is for openmpi, not impi"),
        (("export", "OURS", "--to", "openmpi"), "is for treering's own collectives, not openmpi"),
        (("export", "UNKNOWN", "--to", "openmpi"), "this Open MPI has no spiral; it has basic_linear"),
        (("export", "TABLE", "--to", "openmpi", "--output", "/nowhere/rules"), "its folder does not exist"),
    ],
)
def test_what_cannot_be_is_said(arguments, says, tmp_path):
    tables = {"TABLE": table("openmpi"), "OURS": table(None, "one_shot"), "UNKNOWN": table("openmpi", "spiral")}
    for name, each in tables.items():
        each.save(tmp_path / name)
    given = [str(tmp_path / each) if each in tables else each for each in arguments]
    done = treering("openmpi", *given)
    assert done.returncode in (1, 2), launch.describe(done.args, done.returncode, done.stdout, done.stderr)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_open_mpi_6_reads_json(tmp_path):
    table("openmpi", "segmented_ring", {"segment_bytes": 1 << 16}).save(tmp_path / "table.json")
    done = treering("openmpi", "export", str(tmp_path / "table.json"), "--to", "openmpi-json")
    assert done.returncode == 0, done.stderr
    rules = json.loads((tmp_path / "table.rules.json").read_text())
    assert rules["rule_file_version"] == 3
    (sizes,) = rules["collectives"]["allreduce"]
    assert (sizes["comm_size_min"], sizes["comm_size_max"]) == (4, 4)
    assert sizes["rules"] == [
        {"msg_size_min": BORDER + 1, "msg_size_max": "inf", "alg": "segmented_ring", "seg_size": 1 << 16}
    ]


def test_treering_does_not_follow_a_librarys_table(tmp_path):
    table("openmpi").save(tmp_path / "table.json")
    found = launch.find("mpich")
    if found is None:
        pytest.skip("needs MPICH")
    program = f"import collectives; collectives.Communicator(table={str(tmp_path / 'table.json')!r})"
    done = launch.run_command([found.python, "-c", program], found.environment())
    assert done.returncode != 0
    assert "is for the collectives of openmpi itself" in done.stderr
