"""`flow.onnx` where the package `onnx` is not installed."""

import subprocess
import sys


def test_an_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import flowvm as flow\n"
        "try: flow.onnx.export(flow.relu, flow.ones(2))\n"
        "except flow.errors.ArgumentError as e: print(e)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install onnx" in process.stdout, process.stderr
