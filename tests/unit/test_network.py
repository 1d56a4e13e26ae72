"""Files of networks: what is wrong is an error that names the place; and what is simulated with them by the command."""

import json

import pytest

from collectives.foresight.network import TYPICAL, load, of_links, parse
from tuner.cli import main

LINKS = [
    {"class": "shared-memory", "alpha_us": 1, "beta_us_per_MiB": 100, "gamma_us_per_MiB": 50},
    {"class": "mpi", "alpha_us": 3, "beta_us_per_MiB": 84, "gamma_us_per_MiB": 50},
]
FILE = {"nodes": 4, "ranks_per_node": 2, "links": LINKS, "interface": {"beta_us_per_MiB": 84}}


def link(**more):
    return [LINKS[0], LINKS[1] | more]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"speed": 3}, "unknown field `speed`"),
        ({"links": link(beta_us_per_MiB=-1)}, r"`float` >= 0.*`\$.links\[1\].beta_us_per_MiB`"),
        ({"links": link(latency=1)}, r"unknown field `latency`.*`\$.links\[1\]`"),
        ({"links": LINKS[:1]}, "links has no class 'mpi', which links nodes"),
        ({"links": [LINKS[0] | {"up_to_bytes": 64}, *LINKS[1:]]}, "'shared-memory': up_to_bytes must grow"),
        ({"ranks_per_node": None}, r"`\$.ranks_per_node`"),
        ({"ranks_per_node": [2, 2, 2]}, "ranks_per_node has 3 entries for 4 nodes"),
        ({"ranks_per_node": [2, 2, 2, 0]}, r">= 1.*`\$.ranks_per_node\[3\]`"),
        ({"nodes": 1 << 20}, "2097152 ranks; at most"),
        ({"interface": None, "levels": [{"nodes": 2}]}, "levels need an interface"),
        ({"levels": [{"nodes": 2}, {"nodes": 3}]}, r"levels\[1\].nodes is 3; it must be a multiple of 2"),
        ({"levels": [{"nodes": 2, "oversubscription": 0}]}, r"`\$.levels\[0\].oversubscription`"),
        ({"torus": {"shape": [2, 3], "beta_us_per_MiB": 1}}, r"torus.shape \[2, 3\] has 6 places for 4 nodes"),
        ({"schema": 2}, "schema is 2"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_network_is_named(change, said, tmp_path, capsys):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({**FILE, **change}))
    with pytest.raises(ValueError, match=said) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert main(["simulate", "--network", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_what_is_no_network_is_an_error(tmp_path):
    without_ranks = {name: value for name, value in FILE.items() if name != "ranks_per_node"}
    for text, said in (
        (b"{", "line 1: not JSON"),
        (b'{"nodes": 1, "nodes": 2}', "'nodes' stands twice"),
        (b'{"nodes": NaN}', "NaN is not a number"),
        (b"\xff", "decode"),
        (json.dumps(without_ranks).encode(), "missing required field `ranks_per_node`"),
    ):
        with pytest.raises(ValueError, match=said):
            parse(text)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match="not a file"):
            load(path)


def test_links_of_a_table_are_filled_up_with_typical_ones():
    network = of_links([], [[0, 1], [2, 3, 4]])
    assert network.links == TYPICAL.links
    assert (network.shape, network.placed) == ("2+3", [[0, 1], [2, 3, 4]])
    assert network.check("x") is network
    with pytest.raises(ValueError, match=r"torus.shape \[2, 2\] has 4 places for 8"):
        parse(json.dumps({**FILE, "torus": {"shape": [2, 2], "beta_us_per_MiB": 1}}).encode()).resized(8, 1)


# The command


def simulate(capsys, *arguments):
    status = main(["simulate", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_rows_and_the_best_of_them(capsys, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(FILE))
    status, out, _ = simulate(
        capsys, "--network", str(path), "--sizes", "8,1M", "--algorithms", "ring,two_shot", "--json"
    )
    found = json.loads(out)
    assert status == 0
    assert {row["algorithm"] for row in found["rows"]} == {"ring", "two_shot"}
    for best in found["best"]:
        same = [row for row in found["rows"] if row["bytes"] == best["bytes"]]
        assert best["predicted_us"] == min(row["predicted_us"] for row in same)
        assert best["loads"].keys() >= {"port", "interface"}
    assert [row["bytes"] for row in found["best"]] == [8, 1 << 20]
    assert any(row["params"] == {"segment_bytes": 65536, "slots": 2} for row in found["rows"])


def test_a_sweep_shows_where_the_best_changes_and_draws_it(capsys, tmp_path):
    shapes = [
        "--nodes",
        "1-2",
        "--ranks-per-node",
        "2,4",
        "--sizes",
        "8,64K",
        "--algorithms",
        "one_shot,two_shot:kernel_bytes=65536",
    ]
    status, out, err = simulate(capsys, *shapes, "--plot", str(tmp_path / "map.png"))
    assert status == 0
    assert "typical costs" in err
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["1x2", "1x4", "2x2", "2x4"]
    assert "two_shot" in out.splitlines()[-1]
    status, _, _ = simulate(
        capsys, *shapes[:2], "--ranks-per-node", "2", *shapes[4:], "--plot", str(tmp_path / "map.svg")
    )
    assert status == 0
    one = ["--nodes", "2", *shapes[2:3], "2", *shapes[4:]]
    assert simulate(capsys, *one, "--plot", str(tmp_path / "lines.png"))[0] == 0
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("map.png", "map.svg", "lines.png"))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--nodes", "2"], "which topology"),
        (["--network", "x", "--table", "y"], "--network contradicts --table"),
        (["--nodes", "2", "--ranks-per-node", "2", "--algorithms", "rong"], "no algorithm called 'rong'"),
        (
            [
                "--nodes",
                "2",
                "--ranks-per-node",
                "2",
                "--algorithms",
                "ring",
                "--sizes",
                "8",
                "--plot",
                "/nowhere/x.png",
            ],
            "--plot",
        ),
    ],
    ids=str,
)
def test_wrong_use_says_how_to_mend_it(arguments, said, capsys):
    status, _, err = simulate(capsys, *arguments)
    assert status == 2
    assert said in err


def test_what_does_not_fit_says_so(capsys, monkeypatch):
    monkeypatch.setattr("collectives.foresight.foresee.available", lambda: 1 << 20)
    named = ["--nodes", "3", "--ranks-per-node", "40", "--algorithms", "double_tree:slots=2,segment_bytes=65536"]
    status, _, err = simulate(capsys, *named, "--sizes", "8")
    assert status == 1
    assert "GiB of memory" in err
