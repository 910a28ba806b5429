"""The names of `torch._dynamo`: those of `flow.compiler`, and hints that change nothing."""

import flowvm as flow
from flowvm import compiler
from flowvm.compat import dynamo


def test_dynamo_has_the_compilers_names():
    for name in ("allow_in_graph", "assume_constant_result", "disable", "is_compiling", "reset"):
        assert getattr(dynamo, name) is getattr(compiler, name)


def test_hints_of_dynamo_change_nothing():
    x = flow.arange(3.0)
    version = x._version
    dynamo.mark_static_address(x, guard=False)
    dynamo.mark_static(x)
    dynamo.mark_static(x, 0)
    dynamo.mark_dynamic(x, 0, min=1, max=8)
    dynamo.maybe_mark_dynamic(x, [0])
    dynamo.graph_break("here")
    with dynamo.TransformGetItemToIndex():
        assert x[1].item() == 1
    assert x._version == version
    assert x.tolist() == [0, 1, 2]


def test_compiled_modules_are_no_instances_of_dynamos_class():
    module = flow.nn.Linear(2, 1)
    assert not isinstance(flow.compile(module), dynamo.OptimizedModule)
