"""Who may import whom; what the project's own code never imports; what an import does not load."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ("collectives", "tuner", "integrations")
SOURCES = sorted(
    path for top in (*OWN, "tests", "examples", "benchmarks", "tuning_tables") for path in (ROOT / top).rglob("*.py")
)

STANDARD = {
    "schedule",
    "contract",
    "algorithms",
    "proof.rendezvous",
    "verify",
    "draw",
}  # the standard library, and one another
SIMULATOR = (
    "collectives.foresight.fabric",
    "collectives.foresight.traffic",
    "collectives.simulate",
    "collectives.foresight.foresee",
)
FORESEEN = {
    *SIMULATOR,
    *(f"collectives.{name}" for name in ("schedule", "algorithms", "nest", "errors")),
    "collectives.foresight.network",
    "collectives.tables.table",
}
MAY = {
    "collectives.errors": set(),
    "collectives.schedule": set(),
    "collectives.nest": set(),
    "collectives.contract": {"collectives.schedule"},
    "collectives.algorithms": {"collectives.schedule", "collectives.contract", "collectives.nest"},
    "collectives.proof.rendezvous": {"collectives.schedule"},
    "collectives.verify": {
        "collectives.schedule",
        "collectives.contract",
        "collectives.algorithms",
        "collectives.proof.rendezvous",
    },
    "collectives.draw": {"collectives.schedule", "collectives.proof.rendezvous"},
    "collectives.foresight.network": {
        "collectives.errors",
        *(f"collectives.tables.{name}" for name in ("strict", "table", "advice")),
    },
    **dict.fromkeys(SIMULATOR, FORESEEN),
    "collectives.foresight.forecast": {*FORESEEN, "collectives.tables.choice", "collectives.selection"},
}
MUST_NOT = {
    "collectives": {"tuner", "integrations", "tests"},
    "collectives.selection": {f"collectives.{x}" for x in ("schedule", "algorithms", "native", "communicator", "plan")},
    "collectives.plan": {"collectives.native", "collectives.cuda", "collectives.communicator", "collectives.verify"},
    "collectives.native": {"collectives.communicator", "collectives.algorithms", "collectives.verify"},
    "tuner": {"tests"},
    "integrations": {"tuner", "tests"},
}


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.AST, name: str) -> list[tuple[str, bool]]:
    """(module, whether it is loaded as soon as this one is)."""
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                found += [(alias.name, node not in lazy) for alias in node.names]
            case ast.ImportFrom(module=str(base), level=0):
                found.append((base, node not in lazy))
                found += [(f"{base}.{alias.name}", node not in lazy) for alias in node.names]
            case ast.ImportFrom(level=level) if level:
                base = ".".join([*name.split(".")[:-level], *([node.module] if node.module else [])])
                found.append((base, node not in lazy))
            case ast.Call(func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(what)), *_]):
                found.append((what, node not in lazy))
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(what)), *_]):
                found.append((what, node not in lazy))
    return found


def below(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


PARSED = {module(path): ast.parse(path.read_text(), str(path)) for path in SOURCES}
IMPORTS = {name: imports(tree, name) for name, tree in PARSED.items()}


def test_sees_imports():
    code = (
        "import a.b\nfrom c import d\nif TYPE_CHECKING:\n  import e\ndef f():\n  import_module('g')\n  from .h import i"
    )
    found = imports(ast.parse(code), "top.mid.leaf")
    expected = [("a.b", True), ("c", True), ("c.d", True), ("e", False), ("g", False), ("top.mid.h", False)]
    assert sorted(found) == sorted(expected)
    assert {"collectives.verify", "tests.unit.test_imports"} <= IMPORTS.keys()


@pytest.mark.parametrize("top", MAY)
def test_imports_only_what_it_may(top):
    allowed = MAY[top] | {top}
    own = {
        n
        for name, found in IMPORTS.items()
        if below(name, top)
        for n, _ in found
        if n.partition(".")[0] in (*OWN, "tests")
    }
    assert {n for n in own if n != "collectives" and not any(below(n, ok) for ok in allowed)} == set()


@pytest.mark.parametrize("top", MUST_NOT)
def test_imports_nothing_that_stands_above_it(top):
    found = {(name, n) for name in IMPORTS if below(name, top) for n, _ in IMPORTS[name]}
    assert {(name, n) for name, n in found if any(below(n, above) for above in MUST_NOT[top])} == set()


def test_schedules_need_only_the_standard_library():
    tops = [f"collectives.{name}" for name in STANDARD]
    found = {
        (name, n.partition(".")[0]) for name in IMPORTS if any(below(name, t) for t in tops) for n, _ in IMPORTS[name]
    }
    assert {(name, n) for name, n in found if n not in {*sys.stdlib_module_names, "collectives"}} == set()


def test_nothing_of_our_own_imports_numpy_or_jax():
    assert [(name, n) for name in IMPORTS for n, _ in IMPORTS[name] if n.partition(".")[0] in ("numpy", "jax")] == []


def test_collectives_load_torch_cupy_and_optuna_only_when_they_are_needed():
    heavy = ("torch", "cupy", "cupyx", "optuna", "matplotlib")
    eager = [(name, n) for name in IMPORTS for n, now in IMPORTS[name] if now and n.partition(".")[0] in heavy]
    late = "collectives.cuda.cupy_driver"  # all of it is CuPy, and nothing loads it before it is needed
    assert [(name, n) for name, n in eager if below(name, "collectives") and name != late] == []
    assert [name for name in IMPORTS for n, now in IMPORTS[name] if now and below(n, late)] == []


@pytest.mark.parametrize("name", ["collectives", *(f"collectives.{name}" for name in sorted(STANDARD))])
def test_what_an_import_loads(name):
    code = f"import json, sys; import {name}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {m.partition(".")[0] for m in json.loads(done.stdout)}
    assert loaded & {"torch", "cupy", "optuna", "numba", "numpy", "jax", "mpi4py", "tuner", "integrations"} == set()
