"""Lists of public names are written by `tools.faces` from what is said beside the definitions."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import faces

ROOT = faces.ROOT
FACE = f"{faces.BEGIN}\n{faces.END}\n"


@pytest.fixture
def house(tmp_path):
    """A house of two faces, and a file of two names."""
    for name in ("flowvm/nn", "ops", "autograd", "graph"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "flowvm/__init__.py").write_text(FACE)
    (tmp_path / "ops/__init__.py").write_text(FACE)
    (tmp_path / "flowvm/nn/functional.py").write_text(FACE)
    (tmp_path / "pyproject.toml").write_text("packages = [\n]\n")
    return tmp_path


def texts(house):
    return {str(p.relative_to(house)): text for p, text in faces.written(house)}


def test_names_go_to_their_faces(house):
    (house / "ops/sums.py").write_text(
        "# public: flow, F\ndef total(x): ...\n\n\ndef part(x): ...\n"
        "\n\nwhole = total  # public: flow\n"
    )
    actual = texts(house)
    assert "from flowvm.ops.sums import total, whole" in actual["ops/__init__.py"]
    assert '__all__ = ["total", "whole"]' in actual["ops/__init__.py"]
    assert '__all__ = ["total"]' in actual["flowvm/nn/functional.py"]
    assert "total" not in actual["flowvm/__init__.py"]  # which takes all of ops


def test_a_comment_below_the_imports_is_of_the_file(house):
    (house / "ops/sums.py").write_text(
        "import math\n\n# public: flow\n\nLEAST = int(0)\nONE = 1\n\n\n"
        "def total(x): ...\n\n\ndef _inner(x): ...\n\n\n# not public\ndef part(x): ...\n\n\n"
        "class CELU: ...\n"
    )
    assert '__all__ = ["CELU", "total"]' in texts(house)["ops/__init__.py"]


def test_late_names_are_imported_when_they_are_named(house):
    (house / "flowvm/files.py").write_text(
        "# public: flow (late)\ndef load(): ...\n"
        "\n\n# public: flow (late, unlisted)\ndef peek(): ...\n"
        '\n\nNAMES = "one two"  # public: each of flow (late, unlisted)\n'
    )
    actual = texts(house)["flowvm/__init__.py"]
    assert "if TYPE_CHECKING:\n    from flowvm.files import load, peek as peek\n" in actual
    assert '**dict.fromkeys(("load", "one", "peek", "two"), "flowvm.files"),' in actual
    assert '__all__ = ["load"]' in actual


def test_what_a_face_defines_is_public(house):
    (house / "flowvm/nn/functional.py").write_text(
        f"from flowvm import ops\nfrom flowvm import nn as nn\n{FACE}\ndef own(): ...\n"
    )
    assert '__all__ = ["nn", "own"]' in texts(house)["flowvm/nn/functional.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# public: flow\n# more\n\nx = 1\n", r"sums.py:1: no definition stands behind"),
        ("# public: flaw!\ndef f(): ...\n", r"'flaw!' is no face"),
        ("# public: nn.init\ndef f(): ...\n", "f is public in flowvm.nn.init, no face"),
    ],
)
def test_a_comment_that_says_nothing_is_an_error(house, text, message):
    (house / "ops/sums.py").write_text(text)
    with pytest.raises(faces.FacesError, match=message):
        texts(house)


DECLARED = """

# public: flow, F
squareplus = elementwise(
    "squareplus",
    "(x + sqrt(x * x + 4)) / 2",
    types="float",
    doc="Softplus without an exponential: (x + sqrt(x * x + 4)) / 2.",
)
"""
SAMPLED = """
samples(
    squareplus,
    lambda rng: [Sample((rng.standard_normal(5),))],
    lambda x: (x + np.sqrt(x * x + 4)) / 2,
    grad=False,
)
"""
LAYER = """

@layer(F.squareplus)
class Squareplus(Module):
    \"\"\"Softplus without an exponential.\"\"\"
"""
PROGRAM = """
import pickle
import flowvm as flow
from flowvm import nn
from flowvm.ops import SAMPLES
assert flow.squareplus is flow.ops.squareplus is nn.functional.squareplus
assert "squareplus" in flow.__all__ and "squareplus" in nn.functional.__all__
assert "Squareplus" in nn.__all__ and "Squareplus" in dir(nn)
assert [one.name for one in SAMPLES].count("squareplus") == 1
layer = pickle.loads(pickle.dumps(nn.Squareplus()))
assert repr(layer) == "Squareplus()" and layer.forward.__doc__ == flow.squareplus.__doc__
print(flow.__file__)
"""


def test_an_activation_with_a_layer_is_three_places(tmp_path):
    """As CONTRIBUTING.md has it: the declaration, its samples, a row of the layers."""
    house = tmp_path / "flowvm"
    ignore = shutil.ignore_patterns("*.o", "assets")
    shutil.copytree(ROOT / "flowvm", house, ignore=ignore)
    for name in faces.MOVED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, place in (
        ("ops/pointwise/activation.py", DECLARED),
        ("ops/pointwise/activation.py", SAMPLED),
        ("flowvm/nn/modules/activation.py", LAYER),
    ):
        path = tmp_path / file
        path.write_text(path.read_text() + place)
    for path, text in faces.written(tmp_path):
        path.write_text(text)
    for name in faces.MOVED:
        (house / name).symlink_to(tmp_path / name)  # as it is built
    paths = [str(tmp_path), *(p for p in sys.path if p and Path(p) != ROOT)]
    process = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {paths!r}\n{PROGRAM}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert Path(process.stdout.strip()).is_relative_to(house)
