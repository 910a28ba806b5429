"""Facts: kept with the declaration that they are said of, and with no other of its name."""

import flowvm as flow
from flowvm.ops.declare.facts import Fact
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.shapes.join import _cat_of


def test_a_fact_is_that_of_the_declaration_and_not_of_the_name():
    fact = Fact[str]()
    own = flow.elementwise("exp", "x + 1", doc="x + 1.")
    fact.say("the exponential", flow.exp)
    assert fact.of(operator_of(flow.exp.call)) == fact.of(flow.exp) == "the exponential"
    assert fact.of(own) is None
    assert Fact[str]().of(flow.exp) is None


def test_operators_of_one_declaration_share_its_facts():
    fact = Fact[str]()
    fact.say("a product", flow.mul)
    fact.say("joined", _cat_of)
    assert fact.of(flow.mul._variant("ts")) == fact.of(flow.mul._variant("tt")) == "a product"
    assert fact.of(_cat_of(2)) == fact.of(_cat_of(5)) == "joined"


def test_a_function_is_a_fact_where_it_is_decorated():
    fact = Fact[object]()

    @fact(flow.tanh, flow.sinh)
    def rule():
        raise AssertionError("not called")

    assert fact.of(flow.tanh) is fact.of(flow.sinh) is rule
