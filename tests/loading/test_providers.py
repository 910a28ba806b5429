"""Providers: functions of higher layers stand where lower ones call them, once each."""

import pytest

import flowvm as flow
from flowvm import compiler
from flowvm.eager import overrides
from flowvm.eager.interpreter import lowerings, on_missing, on_recorded
from flowvm.errors import MissingNameError
from flowvm.graph.capture.capture import capturing
from flowvm.loading import providers
from flowvm.meta import device
from flowvm.meta.meta import about_memory
from flowvm.ops.places.embedding import sparse_gradients
from flowvm.ops.sparse import table
from flowvm.ranks.wires import makers, wires
from flowvm.utils import cpp_extension
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.scheduling import planners
from flowvm.vm.watch.trace import Trace


@pytest.mark.parametrize(
    ("listed", "function"),
    [
        (compiler.captured, providers._captured), (overrides.on_first, providers._give_way),
        (table.on_first, providers._fill_sparse_table),
        (sparse_gradients, providers._sparse_gradient), (on_recorded, providers._foretell),
        (on_missing, providers._foretell_layers), (about_memory, providers._holders),
        (planners, providers._rule_of),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_providers_are_registered_once(listed, function):
    assert listed.count(function) == 1


def test_devices_have_their_functions():
    assert lowerings["cuda"] is providers._lower_for_cuda
    assert lowerings["meta"] is providers._lower_for_meta
    assert device.backends["cuda"] is providers._why_no_cuda
    assert makers["cuda"] is providers._cuda_lane
    assert wires["cuda"] is providers._communicator
    assert engine.failures.about_memory is providers._about_memory
    assert Trace.screen is providers._trace_screen
    assert flow.cuda.amp.__name__ == "flowvm.cuda.amp"


def test_captures_are_known_to_the_compiler():
    assert not providers._captured()
    with capturing("f", []):
        assert providers._captured()
        assert compiler.is_compiling()
    assert not compiler.is_compiling()


def test_reports_of_memory_are_lines():
    flow.ones(4).numpy()
    assert providers._about_memory(0)
    assert providers._holders().startswith("\n")


def test_rules_and_namespaces_are_found():
    assert providers._rule_of("fifo", None, None, ()).name == "fifo"
    assert flow.ones(1).__array_namespace__().__name__ == "flowvm.array_api"
    with pytest.raises(ValueError, match="1999"):
        flow.ones(1).__array_namespace__(api_version="1999.01")


def test_there_is_no_extension_in_cpp():
    with pytest.raises(MissingNameError, match=r"flowvm\.utils\.cpp_extension has no 'load'"):
        _ = cpp_extension.load
